"""The command line: thin, every command a few calls into the package."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from deltamask import __version__
from deltamask.cli import federation, listing, payloads
from deltamask.cli.shared import app, console, escape
from deltamask.errors import DeltaMaskError

__all__ = ["app", "federation", "listing", "main", "payloads"]


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The entry point: exit code 0, 2 for what the user can mend, 130 when interrupted."""
    try:
        app()
    except DeltaMaskError as error:
        console.print(f"[bold red]deltamask:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("interrupted; --resume continues a run from its last whole round")
        sys.exit(130)
