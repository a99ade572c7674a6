"""What the benchmarks share in telling what they found: targets on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from provenance import Target, markdown_table
from rich.console import Console
from rich.table import Table

__all__ = ["cells", "made_by", "show_table", "show_targets", "targets_table", "wide_console"]

Row = TypeVar("Row")

_HEAD = ("what", "target", "measured", "met")


def wide_console() -> Console:
    """The terminal; a log or a pipe, which has no width of its own, gets enough for every table."""
    console = Console()
    if not console.is_terminal:
        console.width = 160
    return console


def cells(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> list[list[str]]:
    """The text of each row under each column."""
    return [[cell(row) for cell in columns.values()] for row in rows]


def show_table(console: Console, title: str, head: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on the terminal; all columns but the first are right-aligned."""
    table = Table(title=title)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def show_targets(console: Console, targets: Iterable[Target]) -> None:
    """The targets on the terminal."""
    table = Table(*_HEAD, title="Targets")
    for goal in targets:
        table.add_row(goal.what, goal.target, goal.measured, goal.verdict)
    console.print(table)


def targets_table(targets: Iterable[Target]) -> str:
    """The targets as a Markdown table."""
    return markdown_table(_HEAD, [[goal.what, goal.target, goal.measured or "", goal.verdict] for goal in targets])


def made_by(script: str, facts: Mapping[str, Any]) -> str:
    """The last line of a report: the command and where it ran."""
    return f"Made by `python benchmarks/{script}`: " + "; ".join(f"{k} {v}" for k, v in facts.items()) + "."
