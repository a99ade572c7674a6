"""Numbers of a comparison, by hand: means over seeds, bytes until a share of fine-tuning's accuracy, blanks."""

from __future__ import annotations

import csv
import io

import pytest

from deltamask import summary, tables
from deltamask.summary import Entry, Spread


def record(
    accuracies: list[float], *, up: int = 100, down: int = 1000, head: tuple[int, int] = (10, 20), **more
) -> dict:
    """A run of two clients a round, with ``up`` and ``down`` bytes of all clients in each round."""
    history = [
        {
            "round": n,
            "accuracy": accuracy,
            "clients": [0, 1] if n else [],
            "uplink_bytes": up if n else 0,
            "downlink_bytes": down if n else 0,
            "head_uplink_bytes": 0 if n else head[0],
            "head_downlink_bytes": 0 if n else head[1],
        }
        for n, accuracy in enumerate(accuracies)
    ]
    rounds = len(history) - 1
    return {
        "method": "m",
        "accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        "linear_head_accuracy": accuracies[0],
        "uplink_bytes": rounds * up + head[0],
        "downlink_bytes": rounds * down + head[1],
        "uplink_bpp": 0.5,
        "downlink_bpp": 32.0,
        "wrong_positions": 4,
        "seconds": 3.0,
        "stages": {"train": 2.0, "encode": 0.06, "decode": 0.03},
        "peak_memory_mib": 500.0,
        "history": history,
        **more,
    }


FINETUNE = {0: record([0.2, 0.7, 1.0], up=5000, down=5000), 1: record([0.2, 0.8, 0.8], up=5000, down=5000)}  # 0.9


def reached(*records: dict) -> list[tuple[int, float | None, float | None]]:
    entries = {"m": Entry(dict(enumerate(records))), "finetune": Entry(FINETUNE)}
    numbers = summary.rows(entries)[0].numbers
    assert numbers is not None
    assert [r.share for r in numbers.reached] == [0.90, 0.95, 0.99]
    assert {r.of for r in numbers.reached} == {len(records)}
    return [(r.seeds, r.total_bytes, r.uplink_bytes) for r in numbers.reached]


def test_means_of_a_label() -> None:
    one, two = record([0.2, 0.5, 0.6]), record([0.3, 0.9, 0.8], up=300, peak_memory_mib=None, seconds=5.0)
    (row,) = summary.rows({"m": Entry({4: one, 7: two})})
    n = row.numbers
    assert n is not None
    assert (n.accuracy.mean, n.best.mean, n.before.mean) == pytest.approx((0.7, 0.75, 0.25))
    assert n.accuracy.std == pytest.approx(0.02**0.5)  # of 0.6 and 0.8, with n - 1
    assert n.uplink_bytes_per_answer == 100  # 4 answers with 200 bytes, and 4 with 600
    assert n.downlink_bytes_per_answer == 500
    assert (n.uplink_bytes, n.downlink_bytes, n.total_bytes) == (410, 2020, 2430)
    assert (n.encode_ms, n.decode_ms) == pytest.approx((15, 7.5))
    assert (n.peak_memory_mib, n.seconds, n.wrong_positions_per_answer) == (500, 4, 1)
    assert n.reached == ()  # nobody to compare with
    assert Spread.of([0.5]) == Spread(0.5, None)


def test_bytes_until_a_share_of_the_reference() -> None:
    # 0.9 of fine-tuning's 0.9 is 0.81, then 0.855 and 0.891. Each round has 1100 bytes; the classifier had 30.
    assert reached(record([0.2, 0.81, 0.86, 0.5])) == [(1, 1130, 110), (1, 2230, 210), (0, None, None)]
    assert reached(record([0.9, 0.1])) == [(1, 30, 10)] * 3  # the classifier was enough
    assert reached(record([0.1, 0.8099])) == [(0, None, None)] * 3


def test_over_seeds_all_must_get_there() -> None:
    fast, slow = record([0.2, 0.86, 0.86]), record([0.2, 0.7, 0.85], down=2000)
    assert reached(fast, slow) == [(2, (1130 + 4230) / 2, (110 + 210) / 2), (1, None, None), (0, None, None)]


def test_the_reference_is_a_mean_of_final_accuracies() -> None:
    assert summary.target({"finetune": Entry(FINETUNE)}) == pytest.approx(0.9)
    assert summary.target({"finetune": Entry({}, {0: "diverged"})}) is None
    assert summary.target({"m": Entry(FINETUNE)}) is None


def test_curves_are_cumulative_and_averaged_by_round() -> None:
    entries = {"m": Entry({0: record([0.2, 0.4]), 1: record([0.4, 0.8], up=300)}), "x": Entry({}, {0: "failed"})}
    (curve,) = summary.curves(entries)
    assert [(p.round, p.uplink_bytes, p.total_bytes) for p in curve.seeds[0]] == [(0, 10, 30), (1, 110, 1130)]
    assert [(p.accuracy, p.uplink_bytes) for p in curve.mean] == [
        (pytest.approx(0.3), 10),
        (pytest.approx(0.6), 210),
    ]


def test_no_rounds_and_no_stages_leave_blanks() -> None:
    (row,) = summary.rows({"m": Entry({0: record([0.2], stages={})})})
    assert row.numbers is not None
    assert (row.numbers.uplink_bytes_per_answer, row.numbers.encode_ms) == (None, None)
    assert tables.price_rows([row]) == [("m", *[""] * 8, "500")]


@pytest.fixture
def entries() -> dict[str, Entry]:
    return {
        "m": Entry({0: record([0.2, 0.86]), 1: record([0.2, 0.85])}),
        "half": Entry({0: record([0.2, 0.3])}, {1: 'DataError: a, "b"\nand c'}),
        "lost": Entry({}, {0: "diverged", 1: "diverged"}),
        "finetune": Entry(FINETUNE),
    }


def test_tables_of_text(entries) -> None:
    rows = summary.rows(entries)
    assert [len(r) for r in tables.comparison_rows(rows)] == [len(tables.COMPARISON)] * 4
    assert tables.comparison_rows(rows)[0][:3] == ("m", "85.5 ± 0.7", "85.5")
    assert tables.comparison_rows(rows)[2][:3] == ("lost", "failed", "")
    assert [r[0] for r in tables.price_rows(rows)] == ["m", "half", "finetune"]
    assert tables.price_rows(rows)[0][1:7] == ("0.00113", "1 of 2", "—", "0.000110", "1 of 2", "—")
    assert tables.failures(rows)[0] == 'half, seed 1, failed: DataError: a, "b" and c'
    assert len(tables.failures(rows)) == 3


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.00"), (52_000, "0.0520"), (80_000_000, "80.0"), (99_960_000, "100"), (849_346_560_000, "849,347")],
)
def test_megabytes(size, text) -> None:
    entries = {"finetune": Entry({0: record([0.9, 0.9], up=0, down=0, head=(0, size))})}
    assert tables.price_rows(summary.rows(entries))[0][1] == text


def test_csv_has_every_number_in_full(entries) -> None:
    rows = summary.rows(entries)
    lines = list(csv.DictReader(io.StringIO(tables.comparison_csv(rows))))
    assert [line["label"] for line in lines] == list(entries)
    assert len(lines[0]) == len(tables.flat(rows[0]))
    for line, row in zip(lines, rows, strict=True):
        for name, value in tables.flat(row).items():
            assert line[name] == ("" if value is None else str(value))
    m, half, lost = lines[:3]
    assert float(m["total_bytes_to_90_percent"]) == 1130
    assert (m["total_bytes_to_95_percent"], m["seeds_at_95_percent"]) == ("", "1")
    assert float(m["accuracy_percent_mean"]) == pytest.approx(85.5)
    assert half["accuracy_percent_std"] == ""
    assert (half["seeds"], half["seeds_failed"]) == ("1", "1")
    assert lost["accuracy_percent_mean"] == ""
    assert "diverged" in lost["failed"]


def test_csv_of_rounds(entries) -> None:
    seeds = {label: list(entry.records) for label, entry in entries.items()}
    lines = list(csv.DictReader(io.StringIO(tables.rounds_csv(summary.curves(entries), seeds))))
    assert len(lines) == 2 * 2 + 2 + 2 * 3
    assert lines[3] == {
        "label": "m",
        "seed": "1",
        "round": "1",
        "accuracy_percent": "85.0",
        "uplink_bytes_so_far": "110",
        "downlink_bytes_so_far": "1020",
        "total_bytes_so_far": "1130",
    }
