"""Results as rows of text, for the terminal, Markdown and HTML alike, and as CSV files of plain numbers."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deltamask.summary import SHARES, Curve, Numbers, Reached, Row, Spread

__all__ = [
    "CLIENTS",
    "COMPARISON",
    "PRICE",
    "ROUNDS",
    "STAGES",
    "client_rows",
    "comparison_csv",
    "comparison_rows",
    "failures",
    "flat",
    "human",
    "price_rows",
    "round_rows",
    "rounds_csv",
    "spread",
    "stage_rows",
]

Record = dict[str, Any]
Cells = tuple[str, ...]

COMPARISON = (
    "method",
    "accuracy",
    "best",
    "uplink bytes",
    "downlink bytes",
    "uplink bpp",
    "downlink bpp",
    "total MB",
    "wrong",
    "seconds",
)
PRICE = (
    "method",
    *(f"MB to {100 * share:.0f}%" for share in SHARES),
    *(f"uplink MB to {100 * share:.0f}%" for share in SHARES),
    "encode ms",
    "decode ms",
    "peak MiB",
)
ROUNDS = ("round", "thresholded", "expected", "sampled", "uplink B", "uplink bpp", "downlink bpp", "flips", "wrong")
CLIENTS = ("client", "images", "classes", "effective classes")
STAGES = ("stage", "seconds", "share")

_NEVER = "—"
_MOST_CLIENTS = 40  # that a table lists one by one


def human(size: float) -> str:
    """Bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError


def spread(value: Spread) -> str:
    """A share in percent, with its standard deviation where there is one."""
    return f"{100 * value.mean:.1f}" + ("" if value.std is None else f" ± {100 * value.std:.1f}")


def comparison_rows(rows: Sequence[Row]) -> list[Cells]:
    """One row for each label, in the columns of `COMPARISON`."""
    return [(row.label, *_comparison(row.numbers)) for row in rows]


def price_rows(rows: Sequence[Row]) -> list[Cells]:
    """One row for each label that has a result, in the columns of `PRICE`."""
    return [(row.label, *_price(row.numbers)) for row in rows if row.numbers]


def failures(rows: Sequence[Row]) -> list[str]:
    """A sentence for each run that has no result."""
    return [
        f"{row.label}, seed {seed}, failed: {' '.join(reason.split())}"
        for row in rows
        for seed, reason in row.entry.failed.items()
    ]


def round_rows(record: Record) -> list[Cells]:
    """One row for each round, in the columns of `ROUNDS`."""

    def percent(r: Record, view: str) -> str:
        value = r.get(f"accuracy_{view}", r["accuracy"] if view == "thresholded" else None)
        return "" if value is None else f"{100 * value:.1f}"

    return [
        (
            str(r["round"]),
            percent(r, "thresholded"),
            percent(r, "expected"),
            percent(r, "sampled"),
            f"{r['uplink_bytes']:,}",
            f"{r['uplink_bpp']:.4f}",
            f"{r['downlink_bpp']:.4f}",
            f"{r['flips']:,}",
            f"{r['wrong_positions']:,}",
        )
        for r in record["history"]
    ]


def client_rows(partition: Record) -> list[Cells]:
    """One row for each client, in the columns of `CLIENTS`; of many clients, how far each column reaches."""
    columns = [partition.get(key, []) for key in ("sizes", "classes_present", "effective_classes_by_client")]
    formats = ("{:,.0f}", "{:.0f}", "{:.2f}")
    clients = len(columns[0])

    def row(name: str, values: Sequence[float | None]) -> Cells:
        return (name, *("" if v is None else f.format(v) for f, v in zip(formats, values, strict=True)))

    if clients <= _MOST_CLIENTS:
        return [row(str(k), [column[k] if column else None for column in columns]) for k in range(clients)]
    reach: dict[str, Callable[[Sequence[float]], float]] = {"least": min, "median": statistics.median, "most": max}
    return [
        row(f"{name} of {clients}", [pick(column) if column else None for column in columns])
        for name, pick in reach.items()
    ]


def stage_rows(record: Record) -> list[Cells]:
    """Seconds by stage, the longest first, in the columns of `STAGES`."""
    total = sum(record["stages"].values()) or 1.0
    ordered = sorted(record["stages"].items(), key=lambda item: -item[1])
    return [(name, f"{spent:.2f}", f"{100 * spent / total:.1f}%") for name, spent in ordered]


def flat(row: Row) -> dict[str, str | float | None]:
    """A row as plain numbers, each named with its unit."""
    entry, n = row.entry, row.numbers
    cells: dict[str, str | float | None] = {
        "label": row.label,
        "method": next((str(r["method"]) for r in entry.records.values()), row.label.partition(":")[0]),
        "seeds": len(entry.records),
        "seeds_failed": len(entry.failed),
        "failed": "; ".join(failures([row])),
    }
    if n is None:
        return cells
    for name, value in (("accuracy", n.accuracy), ("best_accuracy", n.best), ("classifier_accuracy", n.before)):
        cells[f"{name}_percent_mean"] = 100 * value.mean
        cells[f"{name}_percent_std"] = None if value.std is None else 100 * value.std
    cells |= {
        "uplink_bytes_per_client_and_round": n.uplink_bytes_per_answer,
        "downlink_bytes_per_client_and_round": n.downlink_bytes_per_answer,
        "uplink_bits_per_param": n.uplink_bpp,
        "downlink_bits_per_param": n.downlink_bpp,
        "uplink_bytes": n.uplink_bytes,
        "downlink_bytes": n.downlink_bytes,
        "total_bytes": n.total_bytes,
    }
    reached: dict[float, Reached] = {r.share: r for r in n.reached}
    for share in SHARES:
        name, found = f"{100 * share:.0f}_percent", reached.get(share)
        cells[f"total_bytes_to_{name}"] = found.total_bytes if found else None
        cells[f"uplink_bytes_to_{name}"] = found.uplink_bytes if found else None
        cells[f"seeds_at_{name}"] = found.seeds if found else None
    return cells | {
        "encode_ms_per_client_and_round": n.encode_ms,
        "decode_ms_per_client_and_round": n.decode_ms,
        "peak_memory_mib": n.peak_memory_mib,
        "wrong_positions_per_client_and_round": n.wrong_positions_per_answer,
        "seconds": n.seconds,
    }


def comparison_csv(rows: Sequence[Row]) -> str:
    """A line for each label, in the columns of `flat`; empty where there is no number."""
    return _csv([flat(row) for row in rows])


def rounds_csv(found: Sequence[Curve], seeds: Mapping[str, Sequence[int]]) -> str:
    """A line for each label, seed and round: accuracy, and the bytes so far of all clients with the classifier."""
    return _csv(
        [
            {
                "label": curve.label,
                "seed": seed,
                "round": point.round,
                "accuracy_percent": 100 * point.accuracy,
                "uplink_bytes_so_far": point.uplink_bytes,
                "downlink_bytes_so_far": point.downlink_bytes,
                "total_bytes_so_far": point.total_bytes,
            }
            for curve in found
            for seed, points in zip(seeds[curve.label], curve.seeds, strict=True)
            for point in points
        ]
    )


def _csv(lines: Sequence[Mapping[str, object]]) -> str:
    head = max(lines, key=len, default={})  # a label that failed has the first columns alone
    text = io.StringIO()
    writer = csv.DictWriter(text, list(head), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _comparison(n: Numbers | None) -> Cells:
    if n is None:
        return ("failed", *[""] * (len(COMPARISON) - 2))
    return (
        spread(n.accuracy),
        f"{100 * n.best.mean:.1f}",
        _number(n.uplink_bytes_per_answer, ",.0f"),
        _number(n.downlink_bytes_per_answer, ",.0f"),
        f"{n.uplink_bpp:.4g}",
        f"{n.downlink_bpp:.4g}",
        _megabytes(n.total_bytes),
        _number(n.wrong_positions_per_answer, ",.0f"),
        f"{n.seconds:,.0f}",
    )


def _price(n: Numbers) -> Cells:
    def reached(size: Callable[[Reached], float | None]) -> list[str]:
        return [_price_of(r, size(r)) for r in n.reached] or [""] * len(SHARES)

    return (
        *reached(lambda r: r.total_bytes),
        *reached(lambda r: r.uplink_bytes),
        _number(n.encode_ms, ",.1f"),
        _number(n.decode_ms, ",.1f"),
        _number(n.peak_memory_mib, ",.0f"),
    )


def _price_of(reached: Reached, size: float | None) -> str:
    if size is None:
        return f"{reached.seeds} of {reached.of}" if reached.seeds else _NEVER
    return _megabytes(size)


def _megabytes(size: float) -> str:
    """With three digits, or all of the whole ones."""
    return f"{size / 1e6:,.0f}" if size >= 99.95e6 else f"{size / 1e6:#.3g}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
