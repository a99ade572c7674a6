"""What all commands share: the application, common options, and how things are shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deltamask.errors import DataError

__all__ = [
    "Clients",
    "ConfigFile",
    "Dataset",
    "Json",
    "Model",
    "Resume",
    "Rounds",
    "Seed",
    "Set",
    "app",
    "console",
    "epilog",
    "escape",
    "overrides",
    "print_json",
    "read_bytes",
    "screen",
    "show_facts",
    "show_file",
    "show_files",
    "show_table",
]

app = typer.Typer(
    name="deltamask",
    help="Federated fine-tuning of foundation models over thin uplinks: send masks, at hundredths of a bit a weight.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console(stderr=True)
screen = Console()
if not screen.is_terminal:
    screen.width = 120  # a log or a pipe has no width of its own

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. channel.codec=bfuse8. May be repeated."),
]
Model = Annotated[str | None, typer.Option(help="Backbone: a name, a folder, a hub id or MODULE:FUNCTION.")]
Dataset = Annotated[str | None, typer.Option(help="Data set: a name, a folder or a hub id.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything that is random.")]
ConfigFile = Annotated[Path | None, typer.Argument(help="TOML file of settings; none: the embedded default.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out from its last whole round.")]


def overrides(sets: list[str] | None, **named: Any) -> list[str]:
    """Settings that have an option of their own, and then those of --set."""
    return [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None] + (sets or [])


def epilog(*keys: str) -> str:
    """The settings of those keys, or all, as the foot of a help page."""
    from deltamask.config import settings

    lines = [f"- `{key}` = `{default}`: {text}" for key, default, text in settings() if not keys or key in keys]
    return "**Settings** (in TOML or with --set):\n\n" + "\n".join(lines)


def read_bytes(path: Path) -> bytes:
    """The content of a file, or one line on why there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def print_json(value: object) -> None:
    """What `--json` puts on standard output."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def show_table(title: str, head: tuple[str, ...], rows: Any, note: str = "") -> None:
    """A table on the screen, numbers to the right, its head folded where it would not fit."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)] if rows else []
    if sum(3 + max(width, len(name)) for width, name in zip(widths, head, strict=False)) >= screen.width:
        # Names fold above their numbers: rich would rather cut the numbers.
        words = [max(width, 5, *map(len, name.split())) for width, name in zip(widths, head, strict=True)]
        head = tuple(fill(name, width) for name, width in zip(head, words, strict=True))
    table = Table(
        *head, title=title, title_justify="left", header_style="bold", caption=note or None, caption_justify="left"
    )
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "left" if len(head) == 2 else "right"
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    screen.print(table)


def show_facts(facts: dict[str, Any], as_json: bool) -> None:
    """A name and a value a line."""
    if as_json:
        print_json(facts)
    else:
        for key, value in facts.items():
            shown = (
                f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
            )
            screen.print(f"{key:>18}  {escape(shown)}", highlight=False, soft_wrap=True)


def show_files(out: Path) -> None:
    """The files that a run or a comparison leaves, with their sizes."""
    names = ("report.html", "report.md", "comparison.svg", "comparison.csv", "runs.csv")
    for name in (*names, "mask.dmask", "result.json", "rounds.jsonl"):
        if (out / name).exists():
            show_file(out / name)


def show_file(path: Path) -> None:
    """One of them."""
    console.print(f"  {escape(str(path))}  [dim]{path.stat().st_size:,} bytes[/]", highlight=False, soft_wrap=True)
