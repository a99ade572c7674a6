"""Write the tables of README and docs from the files in ``results/``.

python scripts/tables.py           # rewrites what lies between <!-- table: NAME --> and <!-- end -->
python scripts/tables.py --check   # exit code 1 where a document does not match its results
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from study import EMBEDDED

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
DOCUMENTS = ("README.md", "docs/embedded.md", "docs/guide.md", "docs/performance.md")


def records(folder: str) -> dict[str, list[dict]]:
    """label -> results of all its seeds, in the order of the files' names."""
    found: dict[str, list[dict]] = {}
    for path in sorted((RESULTS / folder).glob("*.json")):
        record = json.loads(path.read_text())
        found.setdefault(record["label"], []).append(record)
    return found


def spread(values: list[float], digits: int = 1) -> str:
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(runs: list[dict], key: str) -> str:
    return spread([100 * r[key] for r in runs])


def per_answer(runs: list[dict], key: str) -> float:
    shares = []
    for r in runs:
        answers = sum(len(x["clients"]) for x in r["history"])
        shares.append(sum(x[key] for x in r["history"]) / answers)
    return statistics.mean(shares)


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


def sweep(folder: str, column: str) -> Callable[[], str]:
    def make() -> str:
        rows = [
            [
                label,
                percent(group, "accuracy"),
                spread([100 * r["accuracy_by_view"].get("expected", r["accuracy"]) for r in group]),
                percent(group, "best_accuracy"),
                f"{statistics.mean(r['uplink_bpp'] for r in group):.4f}",
                f"{group[0]['history'][1]['uplink_bpp']:.4f}",
                f"{statistics.mean(r['history'][-1]['uplink_bpp'] for r in group):.4f}",
                str(len(group)),
            ]
            for label, group in records(folder).items()
        ]
        head = [column, "thresholded", "expected", "best", "uplink bpp", "first round", "last round", "seeds"]
        return table(head, rows)

    return make


def codecs() -> str:
    report = json.loads((RESULTS / "bench_codecs.json").read_text())
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
    rows = []
    for name in ("bench_codecs", "bench_round"):
        report = json.loads((RESULTS / f"{name}.json").read_text())
        for goal in report["targets"]:
            met = {True: "yes", False: "**no**", None: ""}[goal["met"]]
            rows.append([goal["what"], goal["target"], goal["measured"], met])
        if name == "bench_codecs":
            rows.append(["four random loads, for comparison", "", f"{report['four_random_loads_ns']:.2f} ns", ""])
    return table(["what", "target", "measured", "met"], rows)


def partitioners() -> dict:
    return json.loads((RESULTS / "partitioners.json").read_text())


def partition_name(case: dict) -> str:
    return (
        f"{case['images']:,} images of {case['classes']} classes, {case['clients']} clients, Dir({case['alpha']:g})"
    )


def partitioners_alike() -> str:
    report = partitioners()

    def shown(case: dict, key: str, who: str) -> str:
        value = case["statistics"][key][who]
        return f"{value['mean']:.3f} ± {value['sd']:.3f}"

    rows = [
        [
            partition_name(case),
            *(shown(case, k, w) for k in ("effective_classes", "spread_of_sizes") for w in ("ours", "flwr_datasets")),
            f"{min(s['ks']['p'] for s in case['statistics'].values()):.2g}",
            "yes" if case["agree"] else "**no**",
        ]
        for case in report["cases"]
    ]
    head = ["split", "effective classes", "flwr-datasets", "spread of sizes", "flwr-datasets", "p", "agree"]
    limits = report["tolerance"]
    note = (
        f"Mean ± standard deviation over {report['cases'][0]['splits']['ours']} seeds; flwr-datasets "
        f"{report['peer']['flwr-datasets']}. Tolerance {limits['effective_classes']}, level {limits['ks_level']}."
    )
    return table(head, rows) + "\n\n" + note


def partitioners_exact() -> str:
    report = partitioners()
    rows = [
        ["`iid`, our order", f"`IidPartitioner`, {report['iid']['splits']} seeds", same(report["iid"]["same"])],
        ["`column:NAME`, a client for each value", "`NaturalIdPartitioner`", same(report["column"]["same"])],
    ]
    for case in report["cases"]:
        given = case["same_shares"]
        moved = f"{given['images_elsewhere']:,} of {given['images']:,} images elsewhere"
        rows.append(
            [
                partition_name(case),
                f"`DirichletPartitioner`, our shares reversed, {given['splits']} seeds",
                moved if given["images_elsewhere"] else "same class counts",
            ]
        )
    return table(["ours", "flwr-datasets", "result"], rows)


def same(value: bool) -> str:
    return "same images for every client" if value else "**not the same**"


def partitioners_end() -> str:
    rows = []
    for case in partitioners()["cases"]:
        present = case["classes_present"]
        cells = [f"{present[who][at]:.1f}" for who in ("ours", "flwr_datasets") for at in ("first", "others", "last")]
        rows.append([partition_name(case), *cells])
    return table(["classes that a client has", "first", "others", "last", "flwr: first", "others", "last"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "embedded": embedded,
    "score-lr": sweep("embedded/score-lr", "learning rate of the scores"),
    "theta0": sweep("embedded/theta0", "theta0"),
    "channel": sweep("embedded/channel", "channel"),
    "finetune-lr": sweep("embedded/finetune-lr", "learning rate"),
    "codecs": codecs,
    "targets": targets,
    "partitioners": partitioners_alike,
    "partitioners-exact": partitioners_exact,
    "partitioners-end": partitioners_end,
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
    print("changed: " + ", ".join(stale) if stale else "all tables match their results")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
