"""Tables of docs/real.md."""

from __future__ import annotations

import statistics
import sys

from tablekit import ROOT, per_answer, percent, read, records, spread, sweep, table


def real_standard() -> str:
    rows = []
    runs = records("real/standard")
    best = {label: statistics.mean(r["accuracy"] for r in group) for label, group in runs.items()}
    for label, group in runs.items():
        last = [r["history"][-1] for r in group]
        rows.append(
            [
                label,
                percent(group, "linear_head_accuracy"),
                percent(group, "accuracy"),
                spread([100 * r["accuracy_by_view"].get("expected", r["accuracy"]) for r in group]),
                percent(group, "best_accuracy"),
                f"{100 * (best[label] - best['finetune']):+.1f}",
                f"{per_answer(group, 'uplink_bytes'):,.0f}",
                f"{statistics.mean(r['uplink_bpp'] for r in group):.4g}",
                f"{statistics.mean(r['uplink_bpp'] for r in last):.4g}",
                f"{statistics.mean(r['downlink_bpp'] for r in group):.4g}",
                f"{statistics.mean(r['peak_memory_mib'] for r in group):,.0f}",
                str(len(group)),
            ]
        )
    head = [
        "method",
        "before",
        "accuracy",
        "expected mask",
        "best",
        "to fine-tuning",
        "uplink bytes",
        "uplink bpp",
        "in the last round",
        "downlink bpp",
        "peak MiB",
        "seeds",
    ]
    return table(head, rows) + "\n\n" + real_stages(runs)


def real_stages(runs: dict[str, list[dict]]) -> str:
    """Where the time of a round goes, as shares: these runs had other work beside them on the machine."""
    if not runs:
        return ""
    names = ["train", "encode", "decode", "aggregate", "broadcast", "evaluate"]
    rows = []
    for label, group in runs.items():
        total = sum(sum(r["stages"].values()) for r in group)
        shares = (100 * sum(r["stages"].get(n, 0) for r in group) / total for n in names)
        rows.append([label, *(f"{share:.1f}" for share in shares)])
    made = next(iter(runs.values()))[0]
    note = (
        f"One thread each on {made['hardware']['cpu']}, with other work beside them, so that seconds would mean "
        f"little; those of a round on a quiet machine are below. Commit {made['commit'][:10]}."
    )
    return table(["share of the time, %", *names], rows) + "\n\n" + note


def real_heads() -> str:
    rows = []
    for label, group in records("real/heads").items():
        kind, split = label.split(", ")
        classes = statistics.mean(r["partition"]["effective_classes"] for r in group)
        rows.append(
            [
                split,
                kind,
                f"{classes:.2f}",
                percent(group, "linear_head_accuracy"),
                percent(group, "accuracy"),
                percent(group, "best_accuracy"),
                f"{statistics.mean(r['head_uplink_bytes'] / r['config']['clients'] for r in group):,.0f}",
                f"{statistics.mean(r['head_downlink_bytes'] / r['config']['clients'] for r in group):,.0f}",
                f"{statistics.mean(r['uplink_bpp'] for r in group):.4g}",
                str(len(group)),
            ]
        )
    head = [
        "partition",
        "head",
        "effective classes",
        "head alone",
        "accuracy",
        "best",
        "head bytes up",
        "down",
        "uplink bpp",
        "seeds",
    ]
    return table(head, sorted(rows, key=lambda row: row[0] != "iid"))


def real_cost() -> str:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import bench_real

    report = read("bench_real")
    made = report["provenance"]
    return table(*bench_real.table(report)) + f"\n\n{made['cpu']}; commit {made['commit'][:10]}."


def dry_run() -> str:
    report = read("dry_run")
    rows = [
        [
            label,
            f"{run['masked_weights']:,}",
            f"{run['stages']['train']:.1f}",
            f"{1000 * run['stages']['train'] / report['images']:.0f}",
            f"{run['stages']['evaluate']:.1f}",
            f"{sum(run['stages'].values()):.1f}",
            f"{run['peak_memory_mib']:,.0f}",
            f"{run['uplink_bytes'] / report['clients']:,.0f}",
            f"{run['uplink_bpp']:.4g}",
        ]
        for label, run in report["runs"].items()
    ]
    head = [
        "settings",
        "masked weights",
        "train s",
        "ms an image",
        "evaluate s",
        "round s",
        "peak MiB",
        "uplink bytes",
        "uplink bpp",
    ]
    note = (
        f"{report['model']}: {report['clients']} clients with {report['images'] // report['clients']} images each, "
        f"{report['test_images']} test images (all views), the last of {report['rounds']} rounds, "
        f"{report['threads']} threads of {report['hardware']['cpu']}; commit {report['commit'][:10]}. "
        "Random weights learn nothing: bytes are those of the first steps of training."
    )
    return table(head, rows) + "\n\n" + note


TABLES = {
    "real-standard": real_standard,
    "real-heads": real_heads,
    "real-masks": sweep("real/tune-masks", "masks"),
    "real-finetune": sweep("real/tune-finetune", "fine-tuning"),
    "real-precision": sweep("real/tune-precision", "products in"),
    "real-cost": real_cost,
    "dry-run": dry_run,
}
