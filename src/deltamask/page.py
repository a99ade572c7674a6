"""A page as a list of parts, and its two forms: Markdown, and HTML in one file that asks for nothing from outside."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Code", "Drawing", "Fold", "Grid", "Heading", "Part", "Text", "as_html", "as_markdown"]


@dataclass(frozen=True)
class Heading:
    """Begins a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; what stands between backticks is code."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table; its first column is text, all others are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Code:
    """Lines as they are."""

    text: str


@dataclass(frozen=True)
class Drawing:
    """An SVG element; Markdown leaves it out."""

    svg: str


@dataclass(frozen=True)
class Fold:
    """A part that opens on a click; Markdown has it open."""

    title: str
    part: Grid | Code


Part = Heading | Text | Grid | Code | Drawing | Fold


def as_markdown(title: str, parts: Sequence[Part]) -> str:
    """The page as Markdown."""
    return "\n\n".join([f"# {title}", *(text for part in parts if (text := _markdown(part)))]) + "\n"


def as_html(title: str, parts: Sequence[Part]) -> str:
    """The page as one HTML file."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>DeltaMask report</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{''.join(map(_html, parts))}</html>"
    )


def _markdown(part: Part) -> str:
    match part:
        case Heading(text):
            return f"## {text}"
        case Text(text):
            return text
        case Grid(head, rows):
            lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
            return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        case Code(text):
            return f"```json\n{text}\n```"
        case Fold(_, inner):
            return _markdown(inner)
        case Drawing():
            return ""


def _html(part: Part) -> str:
    match part:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Text(text):
            return "<p>" + re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)) + "</p>"
        case Grid(head, rows):
            body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
            top = f"<thead><tr>{_cells('th', head)}</tr></thead>"
            return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'
        case Code(text):
            return f"<pre>{html.escape(text)}</pre>"
        case Fold(title, inner):
            return f"<details><summary>{html.escape(title)}</summary>{_html(inner)}</details>"
        case Drawing(svg):
            return f"<figure>{svg}</figure>"


def _cells(tag: str, row: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)


_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; } td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } figure { margin: 1rem 0; background: #fff; border-radius: .5rem; padding: .5rem; }
figure svg { width: 100%; height: auto; } pre { overflow-x: auto; font-size: .8rem; } summary { cursor: pointer; }
"""
