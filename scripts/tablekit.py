"""What all tables share: reading result files, means with their spread, Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

__all__ = ["RESULTS", "ROOT", "per_answer", "percent", "read", "records", "spread", "sweep", "table"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


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


def read(name: str) -> dict:
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text())


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
