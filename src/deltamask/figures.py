"""Drawings for reports: each a matplotlib figure of its own, on white, that asks for nothing from outside.

matplotlib is optional (extra ``demo``): `available` says whether it is there.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from deltamask.datasets.partition import Holdings
from deltamask.errors import ConfigError

__all__ = ["FORMATS", "accuracy", "available", "render", "svg", "who_has_what"]

FORMATS = ("svg", "png")

_WIDTH = 11.0  # inches of every figure
_TICKS = 30  # clients or classes that are named one by one
_TEXT = (5.5, 9.0)  # points of the numbers in the cells, at least and at most
_DARK = 0.55  # share of the colour scale above which numbers are white


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def svg(figure: Any) -> str:
    """A figure as an SVG element to stand in a page."""
    text = render(figure, "svg").decode()
    return text[text.index("<svg") :]


def render(figure: Any, kind: str) -> bytes:
    """A figure as the bytes of a file of ``kind``: svg or png."""
    if kind not in FORMATS:
        raise ConfigError(f"a figure cannot be written as {kind!r}; expected {' or '.join(FORMATS)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def accuracy(results: dict[str, dict[str, Any]], first: str) -> Any:
    """Accuracy against bytes for all runs, and the three views of the first."""
    figure = _blank(_WIDTH, 4.2)
    by_bytes, by_round = figure.subplots(1, 2)
    for label, r in results.items():
        sent = r["head_uplink_bytes"]
        xs, ys = [], []
        for x in r["history"]:
            sent += x["uplink_bytes"]
            xs.append(sent / 1e6)
            ys.append(100 * x["accuracy"])
        by_bytes.plot(xs, ys, marker=".", label=label)
    by_bytes.set(
        xscale="log", xlabel="uplink so far, MB (all clients, classifier included)", ylabel="test accuracy, %"
    )
    by_bytes.legend(fontsize=8)
    history = results[first]["history"]
    for view in ("thresholded", "expected", "sampled"):
        seen = [(x["round"], 100 * x[f"accuracy_{view}"]) for x in history if f"accuracy_{view}" in x]
        if seen:  # not every round looks at every view
            by_round.plot(*zip(*seen, strict=True), marker=".", label=view)
    by_round.set(xlabel="round", ylabel="test accuracy, %", title=f"{first}: three ways to use the mask")
    by_round.legend(fontsize=8)
    for axes in (by_bytes, by_round):
        axes.grid(alpha=0.3)
    return figure


def who_has_what(counts: Sequence[Sequence[int]] | np.ndarray[Any, Any], how: str) -> Any:
    """Clients from left to right, classes from bottom to top, a cell the darker the more images.

    An empty cell stays white. Bars above show each client's images. ``how`` names the split.
    """
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.ticker import FixedLocator, MaxNLocator

    table = np.asarray(counts, np.int64)
    clients, classes = table.shape
    held = Holdings(table)
    figure = _blank(_WIDTH, 2.6 + min(5.0, 0.33 * max(classes, 5)))
    bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=(1, 4))
    mean = f"{held.effective_classes:.2f} effective classes (mean inverse Simpson / {classes})"
    figure.suptitle(f"{how}, clients: {clients}; {mean}", fontsize=11)
    bars.stairs(held.sizes, np.arange(clients + 1) - 0.5, fill=True, color="#6b7f99")
    bars.set(ylabel="images", ylim=(0, None))
    bars.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    bars.spines[["top", "right"]].set_visible(False)
    bars.tick_params(axis="x", length=0, labelbottom=False)

    # One image must not look like none: the scale starts well above white, and its root spreads the small counts.
    colours = LinearSegmentedColormap.from_list("images", ("#d3e3f3", "#6aaed6", "#2171b5", "#08306b"))
    most = max(2, int(table.max(initial=0)))
    norm = PowerNorm(0.5, vmin=1, vmax=most)
    drawn = cells.imshow(
        np.ma.masked_equal(table.T, 0),
        cmap=colours,
        norm=norm,
        aspect="auto",
        origin="lower",
        interpolation="none",  # one pixel a cell, enlarged with sharp edges
    )
    cells.set(xlabel="client", ylabel="class")
    for axis, size in ((cells.xaxis, clients), (cells.yaxis, classes)):
        if size <= _TICKS:
            axis.set_major_locator(FixedLocator(range(size)))
        else:
            axis.set_major_locator(MaxNLocator(10, integer=True))
    if max(clients, classes) <= _TICKS:
        for edge in range(1, clients):
            bars.axvline(edge - 0.5, color="white", linewidth=1)
            cells.axvline(edge - 0.5, color="white", linewidth=1)
        for edge in range(1, classes):
            cells.axhline(edge - 0.5, color="white", linewidth=1)
        _number_cells(cells, table, norm)
    ticks = [1, *(int(x) for x in MaxNLocator(5, integer=True).tick_values(1, most) if 1 < x <= most)]
    figure.colorbar(drawn, ax=[bars, cells], label="images of a class", aspect=30, pad=0.01, ticks=ticks)
    return figure


def _number_cells(axes: Any, table: np.ndarray[Any, Any], norm: Any) -> None:
    """The count in each cell that is not empty, where the widest one fits."""
    digits = len(str(table.max(initial=0)))
    room = 0.8 * _WIDTH * 72 / table.shape[0] / (0.75 * digits)  # points of text whose digits fill a cell
    if room < _TEXT[0]:
        return
    for client, label in np.argwhere(table):
        count = int(table[client, label])
        axes.text(
            client,
            label,
            str(count),
            ha="center",
            va="center",
            fontsize=min(room, _TEXT[1]),
            color="white" if norm(count) > _DARK else "black",
            gid=f"cell-{client}-{label}",
        )


def _blank(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figures need matplotlib: pip install 'deltamask[demo]'") from None
    return Figure(figsize=(width, height), layout="constrained")
