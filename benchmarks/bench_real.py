"""What a round of the standard real run costs, from a straightforward loop to what the defaults and settings do.

    python benchmarks/bench_real.py [--assets ../shared/assets] [--out results/bench_real]

writes OUT.json and, from it, OUT.md. Each line in a process of its own, with what the lines before it have; seconds
by stage of the quicker one of two rounds after a first. The evaluation is of 3,000 test images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from provenance import markdown_table, provenance, write_json
from reporting import made_by, show_table, wide_console

SEED = 0
ROUNDS = 4
# (what is added, settings, whether pages are kept, threads)
LINES: tuple[tuple[str, dict[str, Any], bool, int], ...] = (
    ("straightforward loop", {}, False, 1),
    ("frozen prefix computed once", {"train.prefix_cache": True}, False, 1),
    ("headline view alone in most rounds", {"evaluation.all_views_every": ROUNDS}, False, 1),
    ("bfloat16 products", {"train.precision": "bfloat16", "evaluation.precision": "bfloat16"}, False, 1),
    ("memory of large arrays kept", {}, True, 1),
    ("two threads", {}, True, 2),
)
STAGES = ("broadcast", "train", "encode", "decode", "aggregate", "evaluate")
CODE = """
import json, sys, torch
words = json.loads(sys.argv[1])
torch.set_num_threads(words["threads"])
import deltamask
from deltamask.memory import keep_pages
if words["keep"]:
    keep_pages()
print(json.dumps(deltamask.run(words["settings"]).record))
"""


def measure(settings: dict[str, Any], keep: bool, threads: int) -> dict[str, Any]:
    """The record of a run in a process of its own."""
    words = json.dumps({"settings": settings, "keep": keep, "threads": threads})
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-c", CODE, words], env=env, stdout=subprocess.PIPE, text=True, check=True)
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--assets", default="../shared/assets", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/bench_real"), help="default: %(default)s")
    options = parser.parse_args()
    console = wide_console()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        settings: dict[str, Any] = {
            "model": f"{options.assets}/vit-small-dinov2",
            "dataset": f"{options.assets}/cifar10-15k",
            "image_size": 56,
            "clients": 10,
            "rounds": ROUNDS,
            "seed": SEED,
            "theta0": 0.95,
            "data.train_images": 2000,
            "data.cache_dir": cache,
            "train.batch": 16,
            "train.score_lr": 0.1,
            "train.prefix_cache": False,
        }
        for what, more, keep, threads in LINES:
            console.print(what)
            settings |= more
            record = measure(settings, keep, threads)
            # The last round looks at every view whatever the settings say.
            quick = min(record["history"][2:ROUNDS], key=lambda r: sum(r["stages"].values()))
            rows.append(
                {
                    "what": what,
                    "threads": threads,
                    "stages": quick["stages"],
                    "seconds": sum(quick["stages"].values()),
                    "peak_memory_mib": record["peak_memory_mib"],
                }
            )
    report = {"provenance": provenance(SEED, ("torch", "transformers")) | {"threads": "1 or 2"}, "rows": rows}
    write_json(options.out.with_suffix(".json"), report)
    head, cells = table(report)
    text = f"# A round of the standard real run\n\n{markdown_table(head, cells)}\n\n"
    options.out.with_suffix(".md").write_text(text + made_by("bench_real.py", report["provenance"]) + "\n")
    show_table(console, "A round of the standard real run", head, cells)


def table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(head, rows): seconds by stage and of the whole round."""
    head = ["each with those above", "threads", *(f"{stage} s" for stage in STAGES), "round s", "faster", "peak MiB"]
    first = report["rows"][0]["seconds"]
    cells = [
        [
            row["what"],
            str(row["threads"]),
            *(f"{row['stages'][stage]:.2f}" for stage in STAGES),
            f"{row['seconds']:.1f}",
            f"{first / row['seconds']:.1f} x",
            "" if row["peak_memory_mib"] is None else f"{row['peak_memory_mib']:,.0f}",
        ]
        for row in report["rows"]
    ]
    return head, cells


if __name__ == "__main__":
    main()
