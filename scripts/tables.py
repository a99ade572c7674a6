"""Write the tables and figures of README and docs from the files in ``results/``.

python scripts/tables.py           # rewrites what lies between <!-- table: NAME --> and <!-- end -->, and docs/*.svg
python scripts/tables.py --check   # exit code 1 where a document does not match its results
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable

import tables_crosscheck
import tables_methods
import tables_partition
import tables_real
from study import EMBEDDED
from tablekit import RESULTS, ROOT, per_answer, percent, read, records, sweep, table

DOCUMENTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("embedded", "guide", "methods", "paper-claims", "performance", "real")),
)


def embedded() -> str:
    rows = []
    order = EMBEDDED["compare"]
    runs = records("embedded/compare")
    for label in (x for x in order if x in runs):
        group = runs[label]
        wrong = statistics.mean(r["wrong_positions"] / sum(len(x["clients"]) for x in r["history"]) for r in group)
        rows.append(
            [
                label,
                percent(group, "accuracy"),
                percent(group, "best_accuracy"),
                f"{per_answer(group, 'uplink_bytes'):,.0f}",
                f"{statistics.mean(r['uplink_bpp'] for r in group):.4g}",
                f"{statistics.mean(r['downlink_bpp'] for r in group):.4g}",
                f"{wrong:,.0f}",
                str(len(group)),
            ]
        )
    head = ["method", "accuracy", "best", "uplink bytes", "uplink bpp", "downlink bpp", "wrong positions", "seeds"]
    return table(head, rows)


def codecs() -> str:
    report = read("bench_codecs")
    shown = ("context", "rans", "rice", "bfuse8", "bfuse8x3", "xor8", "blockfuse8", "bfuse16", "bloom", "bitmap")
    by_name = {row["name"]: row for row in report["rows"]}
    peers = [row["name"] for row in report["rows"] if row["peer"]]
    rows = []
    for name in (*(x for x in shown if x in by_name), *peers):
        row = by_name[name]
        decode = row["decode_ns_per_position"]
        rows.append(
            [
                f"*{name}*" if row["peer"] else f"`{name}`",
                f"{row['bits_per_position']:.4f}",
                f"{row['over_entropy']:.3f}",
                "" if row["wrong_positions"] is None else f"{row['wrong_positions']:,}",
                f"{row['encode_ns_per_key']:.1f}",
                "" if decode is None else f"{decode:.3g}",
            ]
        )
    return table(["code", "bpp", "x entropy", "wrong positions", "encode, ns/key", "decode, ns/position"], rows)


def targets() -> str:
    """Each target on each machine that `make bench` has run on: results/bench_codecs*.json, bench_round*.json."""
    machines: list[str] = []
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for name in ("bench_codecs", "bench_round"):
        for path in sorted(RESULTS.glob(f"{name}*.json")):
            report = read(path.stem)
            machine = report["provenance"]["cpu"]
            if machine not in machines:
                machines.append(machine)
            for goal in report["targets"]:
                measured = goal["measured"] if goal["met"] is not False else f"**{goal['measured']}**"
                what = re.sub(r" \(four random loads .*\)", "", goal["what"])
                cells.setdefault((what, goal["target"]), {})[machine] = measured
            if "four_random_loads_ns" in report:
                loads = cells.setdefault(("four random loads, for comparison", ""), {})
                loads[machine] = f"{report['four_random_loads_ns']:.2f} ns"
    rows = [[*key, *(found.get(machine, "") for machine in machines)] for key, found in cells.items()]
    return table(["what", "target", *machines], rows)


TABLES: dict[str, Callable[[], str]] = {
    "embedded": embedded,
    "score-lr": sweep("embedded/score-lr", "learning rate of the scores"),
    "theta0": sweep("embedded/theta0", "theta0"),
    "channel": sweep("embedded/channel", "channel"),
    "klms": sweep("embedded/klms", "blocks"),
    "finetune-lr": sweep("embedded/finetune-lr", "learning rate"),
    "codecs": codecs,
    "targets": targets,
    **tables_methods.TABLES,
    **tables_real.TABLES,
    **tables_partition.TABLES,
    **tables_crosscheck.TABLES,
}


def filled(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", replace, text, flags=re.DOTALL)


def main() -> int:
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        before = path.read_text()
        after = filled(before)
        if before != after:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(after)
    if "--check" not in sys.argv:
        stale += tables_methods.draw()
    print("changed: " + ", ".join(stale) if stale else "all tables match their results")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
