"""Commands that say what there is, and how fast it is here."""

from __future__ import annotations

from typing import Annotated

import typer

from deltamask.cli.shared import Json, app, print_json, show_table
from deltamask.errors import unknown_name

__all__ = ["bench", "list_"]


_KINDS = ("codecs", "methods", "models", "datasets", "downlinks", "heads", "presets", "settings")


@app.command(name="list")
def list_(
    kind: Annotated[str, typer.Argument(help="One of: " + ", ".join(_KINDS))],
    as_json: Json = False,
) -> None:
    """List what can be chosen: codecs, methods, models, datasets, downlinks, heads, presets or settings."""
    from deltamask import codecs
    from deltamask.config import PRESETS, settings
    from deltamask.registry import members

    if kind == "codecs":
        rows = {
            n: f"id {codecs.get(n).format_id}, {'exact' if codecs.get(n).exact else 'filter'}" for n in codecs.names()
        }
    elif kind == "methods":
        rows = {name: method.summary for name, method in members("deltamask.methods", "METHOD").items()}
    elif kind == "models":
        rows = {name: _first_line(build) for name, build in members("deltamask.backbones", "build").items()}
        rows["MODULE:FUNCTION"] = "a function of yours that returns a torch module: images in, features out"
    elif kind == "datasets":
        rows = {
            name: f"{_where(found.available())}{found.about}"
            for name, found in members("deltamask.datasets", "DATASET").items()
        }
        rows["a folder or hub id"] = "images with classes: parquet, a folder of images for each class, IDX"
    elif kind == "downlinks":
        rows = {name: _first_line(d) for name, d in members("deltamask.downlink", "DOWNLINK").items()}
    elif kind == "heads":
        rows = {name: _first_line(type(h)) for name, h in members("deltamask.heads", "HEAD").items()}
    elif kind == "presets":
        rows = {name: ", ".join(f"{k}={v}" for k, v in preset.items()) for name, preset in PRESETS.items()}
    elif kind == "settings":
        rows = {key: f"{default}: {text}" for key, default, text in settings()}
    else:
        raise unknown_name("list", kind, _KINDS)
    if as_json:
        print_json(rows)
    else:
        show_table(kind, ("name", "what"), list(rows.items()))


@app.command()
def bench(
    size: Annotated[int, typer.Option(help="Number of positions d.")] = 4_000_000,
    rate: Annotated[float, typer.Option(help="Share of changed positions.")] = 0.01,
    as_json: Json = False,
) -> None:
    """Time every codec on this machine: a quick look; `make bench` compares with public peers."""
    from deltamask.quickbench import COLUMNS, measure

    rows = measure(size, rate)
    if as_json:
        print_json(rows)
    else:
        shown = [tuple(f"{v:,.4g}" if isinstance(v, float) else str(v) for v in row.values()) for row in rows]
        show_table(f"{size:,} positions, {rate:.2%} changed, one thread", COLUMNS, shown)


def _where(place: str | None) -> str:
    return f"[here: {place}] " if place else "[on the hub] "


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]
