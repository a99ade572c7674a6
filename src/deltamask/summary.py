"""Results of a comparison -> its numbers: means over seeds, and the bytes that shares of fine-tuning's accuracy took.

Nothing here reads, writes or formats: records are the contents of ``result.json`` files, rows are numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

__all__ = [
    "REFERENCE",
    "SHARES",
    "Curve",
    "Entry",
    "Numbers",
    "Point",
    "Reached",
    "Row",
    "Spread",
    "curves",
    "rows",
    "target",
    "trajectory",
]

Record = dict[str, Any]

REFERENCE = "finetune"
"""The label whose accuracy the others are held against."""
SHARES = (0.90, 0.95, 0.99)
"""Shares of the reference's accuracy that get a column each."""

_SLACK = 1e-9  # accuracies are ratios of small integers: rounding in a product must not hide that one is reached


@dataclass(frozen=True)
class Entry:
    """What a label has come to: a record for each seed, and for other seeds the reason why there is none."""

    records: Mapping[int, Record]
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        """How many seeds were asked for."""
        return len(self.records) + len(self.failed)


@dataclass(frozen=True)
class Point:
    """A model on its way: its headline accuracy and all bytes so far, of all clients, with the classifier."""

    round: int
    accuracy: float
    uplink_bytes: float
    downlink_bytes: float

    @property
    def total_bytes(self) -> float:
        """Both ways."""
        return self.uplink_bytes + self.downlink_bytes


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the sample standard deviation; none for a single seed."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Reached:
    """How a label got to a share of the reference's accuracy: mean bytes, if every seed that ended got there."""

    share: float
    seeds: int
    of: int
    total_bytes: float | None
    uplink_bytes: float | None


@dataclass(frozen=True)
class Numbers:
    """Means over the seeds of a label. What is None was not measured, or there was nothing to measure."""

    accuracy: Spread
    """Headline accuracy after the last round."""
    best: Spread
    """Headline accuracy of each seed's best round."""
    before: Spread
    """The untouched model with its classifier."""
    uplink_bytes_per_answer: float | None
    """Frames of one client in one round, without the classifier."""
    downlink_bytes_per_answer: float | None
    uplink_bpp: float
    downlink_bpp: float
    uplink_bytes: float
    """Of a whole run: all clients and rounds, with the classifier."""
    downlink_bytes: float
    reached: tuple[Reached, ...]
    """One for each of `SHARES`; empty where the reference is missing."""
    encode_ms: float | None
    """Of one client in one round."""
    decode_ms: float | None
    peak_memory_mib: float | None
    """The largest of all seeds."""
    wrong_positions_per_answer: float | None
    """How many of one payload's changes the codec made up."""
    seconds: float

    @property
    def total_bytes(self) -> float:
        """Both ways."""
        return self.uplink_bytes + self.downlink_bytes


@dataclass(frozen=True)
class Row:
    """A label of a comparison; ``numbers`` is None where no seed came to an end."""

    label: str
    entry: Entry
    numbers: Numbers | None


@dataclass(frozen=True)
class Curve:
    """The way of a label: of every seed, and the mean over the seeds round by round."""

    label: str
    seeds: tuple[tuple[Point, ...], ...]
    mean: tuple[Point, ...]


def trajectory(record: Record) -> tuple[Point, ...]:
    """One point for each round; round 0 has cost the classifier."""
    history = record["history"]
    up = accumulate(r["uplink_bytes"] + r["head_uplink_bytes"] for r in history)
    down = accumulate(r["downlink_bytes"] + r["head_downlink_bytes"] for r in history)
    return tuple(Point(r["round"], r["accuracy"], u, d) for r, u, d in zip(history, up, down, strict=True))


def curves(entries: Mapping[str, Entry]) -> list[Curve]:
    """The labels that have a result, in their order."""
    found = []
    for label, entry in entries.items():
        seeds = tuple(trajectory(record) for record in entry.records.values())
        if seeds:
            found.append(Curve(label, seeds, tuple(map(_middle, zip(*seeds, strict=False)))))
    return found


def target(entries: Mapping[str, Entry]) -> float | None:
    """The reference's final accuracy, its mean over the seeds; None where it has no result."""
    entry = entries.get(REFERENCE)
    if entry is None or not entry.records:
        return None
    return statistics.fmean(r["accuracy"] for r in entry.records.values())


def rows(entries: Mapping[str, Entry]) -> list[Row]:
    """One row for each label, in their order."""
    goal = target(entries)
    return [
        Row(label, entry, _numbers(list(entry.records.values()), goal) if entry.records else None)
        for label, entry in entries.items()
    ]


def _numbers(records: list[Record], goal: float | None) -> Numbers:
    def mean(of: Callable[[Record], float | None]) -> float | None:
        values = [value for r in records if (value := of(r)) is not None]
        return statistics.fmean(values) if values else None

    def field_mean(key: str) -> float:
        return statistics.fmean(r[key] for r in records)

    def spread(key: str) -> Spread:
        return Spread.of([r[key] for r in records])

    peaks = [peak for r in records if (peak := r["peak_memory_mib"]) is not None]
    return Numbers(
        accuracy=spread("accuracy"),
        best=spread("best_accuracy"),
        before=spread("linear_head_accuracy"),
        uplink_bytes_per_answer=mean(lambda r: _per_answer(r, sum(x["uplink_bytes"] for x in r["history"]))),
        downlink_bytes_per_answer=mean(lambda r: _per_answer(r, sum(x["downlink_bytes"] for x in r["history"]))),
        uplink_bpp=field_mean("uplink_bpp"),
        downlink_bpp=field_mean("downlink_bpp"),
        uplink_bytes=field_mean("uplink_bytes"),
        downlink_bytes=field_mean("downlink_bytes"),
        reached=() if goal is None else tuple(_reached(records, share, share * goal) for share in SHARES),
        encode_ms=mean(lambda r: _per_answer(r, _milliseconds(r, "encode"))),
        decode_ms=mean(lambda r: _per_answer(r, _milliseconds(r, "decode"))),
        peak_memory_mib=max(peaks) if peaks else None,
        wrong_positions_per_answer=mean(lambda r: _per_answer(r, r["wrong_positions"])),
        seconds=field_mean("seconds"),
    )


def _per_answer(record: Record, amount: float | None) -> float | None:
    """An amount of a whole run, for one client in one round."""
    answers = sum(len(r["clients"]) for r in record["history"])
    return amount / answers if answers and amount is not None else None


def _milliseconds(record: Record, stage: str) -> float | None:
    seconds = record["stages"].get(stage)
    return None if seconds is None else 1000 * seconds


def _reached(records: list[Record], share: float, accuracy: float) -> Reached:
    """When each seed's accuracy is there for the first time; that it may fall again does not matter."""
    firsts = [next((p for p in trajectory(r) if p.accuracy >= accuracy - _SLACK), None) for r in records]
    there = [point for point in firsts if point is not None]
    if len(there) < len(records):
        return Reached(share, len(there), len(records), None, None)
    total = statistics.fmean(p.total_bytes for p in there)
    return Reached(share, len(there), len(records), total, statistics.fmean(p.uplink_bytes for p in there))


def _middle(points: tuple[Point, ...]) -> Point:
    """The mean of the same round of several seeds."""
    return Point(
        points[0].round,
        statistics.fmean(p.accuracy for p in points),
        statistics.fmean(p.uplink_bytes for p in points),
        statistics.fmean(p.downlink_bytes for p in points),
    )
