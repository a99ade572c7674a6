"""Results -> one page of tables and figures, and files of numbers; never trains, reads ``result.json`` files only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltamask import figures, tables
from deltamask.errors import DataError
from deltamask.files import write_atomically
from deltamask.page import Code, Drawing, Fold, Grid, Heading, Part, Text, as_html, as_markdown
from deltamask.summary import REFERENCE, Entry, Row, curves, rows, target

__all__ = [
    "LEGEND",
    "PRICE_TITLE",
    "first_of",
    "headline",
    "load_result",
    "parts",
    "price_note",
    "write_comparison",
    "write_report",
]

Record = dict[str, Any]

LEGEND = (
    "Accuracy in percent of the test images, after the last round and at best. Bytes of real frames are "
    "for each client and round, and so are the wrong positions, which the codec made up; bpp = 8 x bytes / masked "
    "weights. The total counts all clients, both ways, with the classifier."
)
PRICE_TITLE = "The price of fine-tuning's accuracy"
_PRICE = (
    "MB of all clients, the classifier included, when test accuracy first reaches a share of what `{0}` ends with "
    "({1:.1f}%): both ways, and the uplink alone. — is never; k of n: only k of n seeds got there. The classifier "
    "alone is round 0. Encoding and decoding are for one client and round; memory is the most that a run held."
)
_NO_REFERENCE = (
    "Bytes until a share of fine-tuning's accuracy need a result of `{0}` in the same comparison. Encoding and "
    "decoding are for one client and round; memory is the most that a run held."
)
_ROUND_0 = (
    'Round 0, thresholded, is the untouched backbone with its classifier; "wrong" counts positions that the codec '
    "made up."
)
_NO_COUNTS = "This result does not hold the counts of each class: `deltamask partition` draws them."
_WHO = (
    "Training images of each client, how many classes they are of, and the effective classes: the inverse Simpson "
    "index of the client's labels over the number of classes, 1 where all classes are alike."
)

_NUMBERS = (
    "accuracy",
    "best_accuracy",
    "linear_head_accuracy",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bpp",
    "downlink_bpp",
    "wrong_positions",
    "seconds",
    "masked_weights",
    "rounds",
)
_ROUND_NUMBERS = (
    "round",
    "accuracy",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bpp",
    "downlink_bpp",
    "head_uplink_bytes",
    "head_downlink_bytes",
    "flips",
    "wrong_positions",
)


_ORIGIN = ("commit", "python", "versions", "hardware", "config", "seconds")
_SHOWN = {
    "config": ("model", "dataset", "clients", "partition", "participation"),
    "partition": ("sizes", "effective_classes"),
    "hardware": ("cores", "cpu"),
}


def load_result(folder: Path) -> Record:
    """The content of ``result.json`` in ``folder``; `DataError` where there is none."""
    path = folder / "result.json"
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        _check_shape(record)
    except FileNotFoundError:
        raise DataError(
            f"no {path}; a run writes it when it ends, continue an unfinished one with --resume"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not the result of a run ({error!r}); remove its folder to run it again") from None
    return record


def first_of(entries: Mapping[str, Entry]) -> str:
    """The label that is shown round by round: the first one with a result."""
    return next(label for label, entry in entries.items() if entry.records)


def headline(row: Row) -> str:
    """One sentence: what came out at which price."""
    n = row.numbers
    if n is None:
        return f"{row.label}: no result"
    return (
        f"{row.label}: {tables.spread(n.accuracy)}% with {n.uplink_bpp:.4g} bits per parameter up, "
        f"{tables.spread(n.before)}% before"
    )


def price_note(entries: Mapping[str, Entry]) -> str:
    """What the columns of `tables.PRICE` mean in this comparison."""
    goal = target(entries)
    return _NO_REFERENCE.format(REFERENCE) if goal is None else _PRICE.format(REFERENCE, 100 * goal)


def parts(entries: Mapping[str, Entry], drawings: Mapping[str, str]) -> list[Part]:
    """All of the page below its title. ``drawings`` are SVG elements by name; a missing one is left out."""
    first, found = first_of(entries), rows(entries)
    record = next(iter(entries[first].records.values()))
    origin = {key: record[key] for key in _ORIGIN}
    price: list[Part] = [Text(price_note(entries)), Grid(tables.PRICE, tables.price_rows(found))]
    page: list[Part | None] = [
        Text(_facts(entries[first], record)),
        _drawing(drawings, "comparison"),
        Heading("Methods"),
        Grid(tables.COMPARISON, tables.comparison_rows(found)),
        *map(Text, tables.failures(found)),
        Text(LEGEND),
        *([Heading(PRICE_TITLE), *price] if len(entries) > 1 else []),
        Heading(f"{first}, round by round"),
        _drawing(drawings, "rounds"),
        Grid(tables.ROUNDS, tables.round_rows(record)),
        Text(_ROUND_0),
        Heading("Who has what"),
        _drawing(drawings, "who") if "class_counts" in record["partition"] else Text(_NO_COUNTS),
        Text(_WHO),
        Fold("client by client", Grid(tables.CLIENTS, tables.client_rows(record["partition"]))),
        Heading("Time"),
        Grid(tables.STAGES, tables.stage_rows(record)),
        Heading("Where this comes from"),
        Fold("versions, commit, hardware, settings", Code(json.dumps(origin, indent=1))),
    ]
    if not drawings:
        page.insert(1, Text("Figures need matplotlib: `pip install 'deltamask[demo]'`"))
    return [part for part in page if part is not None]


def write_report(out: Path, entries: Mapping[str, Entry]) -> None:
    """``report.md`` and ``report.html`` in ``out``; figures need matplotlib (extra ``demo``)."""
    _write_pages(out, entries, _drawings(entries))


def write_comparison(out: Path, entries: Mapping[str, Entry]) -> None:
    """The report, ``comparison.csv`` (a line a label), ``runs.csv`` (a line a round) and ``comparison.svg``."""
    drawings = _drawings(entries)
    _write_pages(out, entries, drawings)
    seeds = {label: list(entry.records) for label, entry in entries.items()}
    write_atomically(out / "comparison.csv", tables.comparison_csv(rows(entries)).encode())
    write_atomically(out / "runs.csv", tables.rounds_csv(curves(entries), seeds).encode())
    if "comparison" in drawings:
        write_atomically(out / "comparison.svg", drawings["comparison"].encode())


def _write_pages(out: Path, entries: Mapping[str, Entry], drawings: Mapping[str, str]) -> None:
    label = first_of(entries)
    title = headline(rows(entries)[list(entries).index(label)])
    page = parts(entries, drawings)
    write_atomically(out / "report.md", as_markdown(title, page).encode())
    write_atomically(out / "report.html", as_html(title, page).encode())


def _drawings(entries: Mapping[str, Entry]) -> dict[str, str]:
    if not figures.available():
        return {}
    found, first = curves(entries), first_of(entries)
    record = next(iter(entries[first].records.values()))
    drawn = {
        "comparison": figures.svg(figures.comparison(found, target(entries))),
        "rounds": figures.svg(figures.by_round(found, first, record["history"])),
    }
    counts = record["partition"].get("class_counts")
    if counts is not None:
        drawn["who"] = figures.svg(figures.who_has_what(counts, record["config"]["partition"]))
    return drawn


def _drawing(drawings: Mapping[str, str], name: str) -> Drawing | None:
    return Drawing(drawings[name]) if name in drawings else None


def _facts(entry: Entry, record: Record) -> str:
    config, where = record["config"], record["hardware"]
    seeds = sorted(entry.records)
    said = (
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))} (mean ± standard deviation)"
    )
    return (
        f"{config['model']} on {config['dataset']}: {record['masked_weights']:,} masked weights, "
        f"{config['clients']} clients ({config['partition']}, "
        f"{record['partition']['effective_classes']:.2f} effective classes), "
        f"participation {config['participation']:g}, {record['rounds']} rounds, {said}. "
        f"{where['cores']} cores of {where['cpu']}."
    )


def _check_shape(record: Any) -> None:
    """Raises where ``record`` lacks what the tables take, or has something else in its place."""
    _check_numbers(record, _NUMBERS)
    for line in record["history"]:
        _check_numbers(line, _ROUND_NUMBERS)
        len(line["clients"])
    if not record["history"]:
        raise ValueError("an empty history")
    _check_numbers(record["stages"], tuple(record["stages"].keys()))
    _check_numbers(record, ("peak_memory_mib",) if record["peak_memory_mib"] is not None else ())
    for table, keys in _SHOWN.items():
        for key in keys:
            record[table][key]
    for key in ("method", "seed", *_ORIGIN):
        record[key]


def _check_numbers(record: Any, keys: tuple[str, ...]) -> None:
    for key in keys:
        value = record[key]
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{key} is {value!r}")
