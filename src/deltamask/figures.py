"""Drawings for reports: each a matplotlib figure of its own, on white, that asks for nothing from outside.

matplotlib is optional (extra ``demo``): `available` says whether it is there.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from deltamask.datasets.partition import Holdings
from deltamask.errors import ConfigError
from deltamask.summary import SHARES, Curve, Point
from deltamask.tables import human

__all__ = ["FORMATS", "available", "by_round", "comparison", "render", "svg", "who_has_what"]

FORMATS = ("svg", "png")

_WIDTH = 11.0  # inches of every figure
_TICKS = 30  # clients or classes that are named one by one
_TEXT = (5.5, 9.0)  # points of the numbers in the cells, at least and at most
_DARK = 0.55  # share of the colour scale above which numbers are white
_LEAST_TICKS = 3  # on an axis of bytes
_DASHES = ("-", "--", ":")
_MARKERS = "os^vDPX<>*pdh"  # thirteen: with ten colours, 130 lines before two look alike


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
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "deltamask"}):  # else the names of its parts are drawn anew each time
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def comparison(found: Sequence[Curve], goal: float | None = None) -> Any:
    """Accuracy against all bytes and against those of the uplink, on logarithmic axes with the same accuracy.

    A thick line is the mean over a label's seeds, thin ones are the seeds. ``goal`` is the reference's accuracy:
    `summary.SHARES` of it are drawn across.
    """
    figure = _blank(_WIDTH, max(4.2, 1.0 + 0.19 * len(found)))
    panels = figure.subplots(1, 2, sharey=True)
    marks = [] if goal is None else [(f"{100 * share:.0f}%", 100 * share * goal) for share in SHARES]
    for axes, name, way, what in (
        (panels[0], "total", _both_ways, "bytes so far, both ways"),
        (panels[1], "uplink", _uplink, "uplink bytes so far"),
    ):
        axes.set_xscale("log")
        for n, curve in enumerate(found):
            _draw(axes, n, curve, way, name)
        _scale_bytes(axes, [way(p) for curve in found for p in curve.mean])
        axes.set(xlabel=f"{what} (all clients, with the classifier)")
        axes.grid(alpha=0.3)
        for _, height in marks:
            axes.axhline(height, color="black", linewidth=0.8, linestyle=":", zorder=1)
    panels[0].set(ylabel="test accuracy, %")
    for name, height in marks:
        panels[1].annotate(
            name,
            (1, height),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    _legend(figure, panels[0])
    return figure


def by_round(found: Sequence[Curve], first: str, history: Sequence[dict[str, Any]]) -> Any:
    """Accuracy by round: of all labels, and the ways to use the mask of ``first``, whose rounds are ``history``."""
    from matplotlib.ticker import MaxNLocator

    views = {}
    for view in ("thresholded", "expected", "sampled"):
        seen = [(r["round"], 100 * r[f"accuracy_{view}"]) for r in history if f"accuracy_{view}" in r]
        if seen:  # not every round looks at every view, and not every method has masks
            views[view] = seen
    everyone = len(found) > 1 or not views
    figure = _blank(_WIDTH, max(3.6, 1.0 + 0.19 * len(found)))
    panels = list(figure.subplots(1, everyone + bool(views), sharey=True, squeeze=False)[0])
    for axes in panels:
        axes.set(xlabel="round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="test accuracy, %")
    if views:
        panels[-1].set(title=f"{first}: ways to use the mask")
        for view, seen in views.items():
            panels[-1].plot(*zip(*seen, strict=True), marker=".", label=view)
        panels[-1].legend(fontsize=8)
    if everyone:
        for n, curve in enumerate(found):
            _draw(panels[0], n, curve, lambda p: p.round, "round")
        _legend(figure, panels[0])
    return figure


def _draw(axes: Any, n: int, curve: Curve, x: Callable[[Point], float], name: str) -> None:
    """The ``n``-th line of a figure: ten colours, and another dash and marker for the next ten."""
    colour = f"C{n % 10}"

    def line(points: Sequence[Point], **look: Any) -> None:
        shown = [p for p in points if x(p) > 0 or axes.get_xscale() != "log"]
        axes.plot([x(p) for p in shown], [100 * p.accuracy for p in shown], color=colour, **look)

    for points in curve.seeds if len(curve.seeds) > 1 else ():
        line(points, linewidth=0.6, alpha=0.45)
    line(
        curve.mean,
        linewidth=1.6,
        linestyle=_DASHES[n // 10 % len(_DASHES)],
        marker=_MARKERS[n % len(_MARKERS)],
        markersize=4.5,
        markevery=0.06,  # of the picture's diagonal: on a logarithmic axis late rounds lie close together
        label=curve.label,
        gid=f"{name}-{curve.label}",
    )


def _scale_bytes(axes: Any, sizes: Sequence[float]) -> None:
    """Ticks such as 100 kB, the closer together the less there is between the least and the most."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    some = [size for size in sizes if size > 0] or [1.0]
    for steps in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)):
        ticks = [step * 10.0**power for power in range(16) for step in steps]
        if sum(min(some) <= tick <= max(some) for tick in ticks) >= _LEAST_TICKS:
            break
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: human(size)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)


def _both_ways(point: Point) -> float:
    return point.total_bytes


def _uplink(point: Point) -> float:
    return point.uplink_bytes


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
