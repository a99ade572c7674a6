"""Results -> tables, figures and one HTML page; never trains, reads ``result.json`` files only."""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deltamask import figures
from deltamask.errors import DataError

__all__ = [
    "CLIENTS",
    "COMPARISON",
    "ROUNDS",
    "client_rows",
    "comparison_rows",
    "load_result",
    "markdown",
    "round_rows",
    "stage_rows",
    "write_report",
]

Record = dict[str, Any]

_LEGEND = (
    "Accuracy in percent of the test images, after the last round and at best. Bytes are those of real frames; "
    "bpp = 8 x bytes / masked weights, for each client and round. The total counts all clients, both ways, with "
    "the classifier."
)

_WHO = (
    "Training images of each client, how many classes they are of, and the effective classes: the inverse Simpson "
    "index of the client's labels over the number of classes, 1 where all classes are alike."
)

COMPARISON = (
    "method",
    "accuracy",
    "best",
    "uplink B/client/round",
    "uplink bpp",
    "downlink bpp",
    "total MB",
    "wrong positions",
    "seconds",
)
ROUNDS = ("round", "thresholded", "expected", "sampled", "uplink B", "uplink bpp", "downlink bpp", "flips", "wrong")
CLIENTS = ("client", "images", "classes", "effective classes")
_MOST_CLIENTS = 40  # that a table lists one by one


def load_result(folder: Path) -> Record:
    """The content of ``result.json`` in ``folder``; `DataError` where there is none."""
    path = folder / "result.json"
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        record["history"], record["config"]
    except FileNotFoundError:
        raise DataError(
            f"no {path}; a run writes it when it ends, continue an unfinished one with --resume"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not the result of a run ({error!r})") from None
    return record


def human(size: float) -> str:
    """Bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError


def comparison_rows(results: dict[str, Record]) -> list[tuple[str, ...]]:
    """One row for each labelled result, in the columns of `COMPARISON`."""
    rows: list[tuple[str, ...]] = []
    for label, r in results.items():
        rounds = r["history"][1:]
        answers = sum(len(x["clients"]) for x in rounds)
        up = sum(x["uplink_bytes"] for x in rounds) / answers if answers else 0
        rows.append(
            (
                label,
                f"{100 * r['accuracy']:.1f}",
                f"{100 * r['best_accuracy']:.1f}",
                f"{up:,.0f}",
                f"{r['uplink_bpp']:.4g}",
                f"{r['downlink_bpp']:.4g}",
                f"{(r['uplink_bytes'] + r['downlink_bytes']) / 1e6:,.2f}",
                f"{r['wrong_positions']:,}",
                f"{r['seconds']:.0f}",
            )
        )
    return rows


def round_rows(record: Record) -> list[tuple[str, ...]]:
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


def client_rows(partition: Record) -> list[tuple[str, ...]]:
    """One row for each client, in the columns of `CLIENTS`; of many clients, how far each column reaches."""
    columns = [partition.get(key, []) for key in ("sizes", "classes_present", "effective_classes_by_client")]
    formats = ("{:,.0f}", "{:.0f}", "{:.2f}")
    clients = len(columns[0])

    def row(name: str, values: Sequence[float | None]) -> tuple[str, ...]:
        return (name, *("" if v is None else f.format(v) for f, v in zip(formats, values, strict=True)))

    if clients <= _MOST_CLIENTS:
        return [row(str(k), [column[k] if column else None for column in columns]) for k in range(clients)]
    spread: dict[str, Callable[[Sequence[float]], float]] = {"least": min, "median": statistics.median, "most": max}
    return [
        row(f"{name} of {clients}", [pick(column) if column else None for column in columns])
        for name, pick in spread.items()
    ]


def stage_rows(record: Record) -> list[tuple[str, ...]]:
    """Seconds by stage, the longest first."""
    total = sum(record["stages"].values()) or 1.0
    ordered = sorted(record["stages"].items(), key=lambda item: -item[1])
    return [(name, f"{spent:.2f}", f"{100 * spent / total:.1f}%") for name, spent in ordered]


def markdown(results: dict[str, Record], first: str) -> str:
    """The whole report as Markdown; ``first`` is the run that is shown round by round."""
    record = results[first]
    parts = [
        f"# {headline(first, record)}",
        _facts(record),
        "## Methods",
        _LEGEND,
        _table(COMPARISON, comparison_rows(results)),
        f"## {first}, round by round",
        _table(ROUNDS, round_rows(record)),
        "Round 0, thresholded, is the untouched backbone with its classifier; *wrong*: made up by the codec.",
        "## Who has what",
        _WHO,
        _table(CLIENTS, client_rows(record["partition"])),
        "## Time",
        _table(("stage", "seconds", "share"), stage_rows(record)),
        "## Where this comes from",
        "```json\n" + json.dumps(_origin(record), indent=1) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def headline(label: str, record: Record) -> str:
    """One sentence: what came out at which price."""
    return (
        f"{label}: {100 * record['accuracy']:.1f}% with {record['uplink_bpp']:.4g} bits per parameter up, "
        f"{100 * record['linear_head_accuracy']:.1f}% before"
    )


def write_report(out: Path, results: dict[str, Record], first: str | None = None) -> list[Path]:
    """``report.md`` and ``report.html`` in ``out``; figures need matplotlib (extra ``demo``)."""
    from deltamask.files import write_atomically

    first = first or next(iter(results))
    text = markdown(results, first)
    write_atomically(out / "report.md", text.encode())
    write_atomically(out / "report.html", _html(results, first).encode())
    return [out / "report.md", out / "report.html"]


def _facts(record: Record) -> str:
    config, where = record["config"], record["hardware"]
    return (
        f"{config['model']} on {config['dataset']}: {record['masked_weights']:,} masked weights, "
        f"{config['clients']} clients ({config['partition']}, "
        f"{record['partition']['effective_classes']:.2f} effective classes), "
        f"participation {config['participation']:g}, {record['rounds']} rounds, seed {config['seed']}. "
        f"{where['cores']} cores of {where['cpu']}."
    )


def _origin(record: Record) -> Record:
    return {key: record[key] for key in ("commit", "python", "versions", "hardware", "config", "seconds")}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in row)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } figure { margin: 1rem 0; background: #fff; border-radius: .5rem; padding: .5rem; }
figure svg { width: 100%; height: auto; } pre { overflow-x: auto; font-size: .8rem; } summary { cursor: pointer; }
"""


def _html(results: dict[str, Record], first: str) -> str:
    record = results[first]
    origin = html.escape(json.dumps(_origin(record), indent=1))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>DeltaMask report</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(headline(first, record))}</h1><p>{html.escape(_facts(record))}</p>"
        f"{_html_accuracy(results, first)}"
        f"<h2>Methods</h2>{_html_table(COMPARISON, comparison_rows(results))}"
        f"<p>{_LEGEND}</p>"
        f"<h2>{html.escape(first)}, round by round</h2>{_html_table(ROUNDS, round_rows(record))}"
        "<p>Round 0, thresholded, is the untouched backbone with its classifier. "
        "<i>wrong</i> counts positions that the codec made up.</p>"
        f"<h2>Who has what</h2>{_html_who(record)}<p>{_WHO}</p><details><summary>client by client</summary>"
        f"{_html_table(CLIENTS, client_rows(record['partition']))}</details>"
        f"<h2>Time</h2>{_html_table(('stage', 'seconds', 'share'), stage_rows(record))}"
        f"<h2>Where this comes from</h2><details><summary>versions, commit, hardware, settings</summary>"
        f"<pre>{origin}</pre></details></html>"
    )


def _html_accuracy(results: dict[str, Record], first: str) -> str:
    if not figures.available():
        return "<p>Figures need matplotlib: pip install 'deltamask[demo]'</p>"
    return f"<figure>{figures.svg(figures.accuracy(results, first))}</figure>"


def _html_who(record: Record) -> str:
    counts = record["partition"].get("class_counts")
    if counts is None:
        return (
            "<p>This result does not hold the counts of each class: <code>deltamask partition</code> draws them.</p>"
        )
    if not figures.available():
        return ""  # the figure above says why
    return f"<figure>{figures.svg(figures.who_has_what(counts, record['config']['partition']))}</figure>"
