"""Tables and figures of docs/methods.md and docs/paper-claims.md: all methods, and what the paper says of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import methods
from tablekit import ROOT, percent, records, table

from deltamask import figures, summary, tables
from deltamask.summary import Entry

__all__ = ["FIGURES", "TABLES", "draw"]

# What a federation is called, where its results lie, and in which task.
FEDERATIONS = {
    "IID, all clients": "embedded/methods-iid-1.0",
    "IID, a fifth": "embedded/methods-iid-0.2",
    "Dir(.1), all clients": "embedded/methods-dirichlet-1.0",
    "Dir(.1), a fifth": "embedded/methods-dirichlet-0.2",
    "real, IID, all clients": "real/methods",
    "real, Dir(.1), a fifth": "real/methods-dirichlet-0.2",
}
FIGURES = {"methods-embedded": "embedded/methods-iid-1.0", "methods-real": "real/methods"}


def _entries(folder: str) -> dict[str, Entry]:
    """Results by label, in the order in which methods are listed."""
    found = records(folder)
    order = [*methods.LABELS, *sorted(set(found) - set(methods.LABELS))]
    return {label: Entry({r["seed"]: r for r in found[label]}) for label in order if label in found}


def compared(folder: str) -> Callable[[], str]:
    """One federation: what `deltamask compare` tells of it, in one table."""

    def make() -> str:
        rows = summary.rows(_entries(folder))
        wide = ["method", *tables.COMPARISON[1:-1], *tables.PRICE[1:4], "seeds"]
        lines = []
        for row, first, price in zip(rows, tables.comparison_rows(rows), tables.price_rows(rows), strict=True):
            lines.append([*first[:-1], *price[1:4], str(row.entry.seeds)])
        return table(wide, lines)

    return make


def short(folder: str, labels: tuple[str, ...]) -> Callable[[], str]:
    """Some methods of a federation, and the fewest columns that say what they cost."""

    def make() -> str:
        entries = _entries(folder)
        rows = summary.rows(entries)
        cells = {
            row.label: [first[0], first[1], *first[5:8], *price[2:4], str(row.entry.seeds)]
            for row, first, price in zip(rows, tables.comparison_rows(rows), tables.price_rows(rows), strict=True)
        }
        head = [tables.COMPARISON[0], tables.COMPARISON[1], *tables.COMPARISON[5:8], *tables.PRICE[2:4], "seeds"]
        return table(head, [cells[label] for label in labels if label in cells])

    return make


def cost(folder: str) -> Callable[[], str]:
    """What a method asks of a machine."""

    def make() -> str:
        rows = summary.rows(_entries(folder))
        return table([tables.PRICE[0], *tables.PRICE[-3:]], [[r[0], *r[-3:]] for r in tables.price_rows(rows)])

    return make


def rates(task: str) -> Callable[[], str]:
    """What was tried for each label; the best is taken."""

    def make() -> str:
        best, tried = methods.best_rates(task), methods.swept(task)
        rows = []
        for label in (x for x in methods.LABELS if x in tried):
            cells = []
            for rate, runs in sorted(tried[label].items(), key=lambda item: float(item[0])):
                accuracy = percent(runs, "accuracy")
                cells.append(f"{rate}: **{accuracy}**" if rate == best[label] else f"{rate}: {accuracy}")
            rows.append([label, ", ".join(cells)])
        return table(["method", "rate: accuracy"], rows)

    return make


def thresholds() -> str:
    rows = [[*name.split(", "), percent(runs, "accuracy")] for name, runs in records("embedded/tune-fedmask").items()]
    return table(["split", "tau", "accuracy"], rows)


def against(one: str, other: str) -> Callable[[], str]:
    """Two labels in every federation: the difference of accuracies, seed by seed, and the ratio of their bits."""

    def make() -> str:
        rows = []
        for name, folder in FEDERATIONS.items():
            found = records(folder)
            if one not in found or other not in found:
                continue
            a, b = ({r["seed"]: r for r in found[label]} for label in (one, other))
            seeds = sorted(set(a) & set(b))
            bpp = [statistics.mean(x[seed]["uplink_bpp"] for seed in seeds) for x in (a, b)]
            rows.append(
                [
                    name,
                    percent([a[seed] for seed in seeds], "accuracy"),
                    percent([b[seed] for seed in seeds], "accuracy"),
                    _difference([100 * (a[seed]["accuracy"] - b[seed]["accuracy"]) for seed in seeds]),
                    f"{bpp[0]:.3g}",
                    f"{bpp[1]:.3g}",
                    f"{bpp[1] / bpp[0]:.2f}",
                    _wrong([a[seed] for seed in seeds]),
                    str(len(seeds)),
                ]
            )
        head = ["federation", one, other, "difference", f"{one} bpp", f"{other} bpp", "ratio"]
        return table([*head, f"wrong positions of {one}", "seeds"], rows)

    return make


def _difference(points: list[float]) -> str:
    mean = f"{statistics.mean(points):+.1f}"
    return f"{mean} ± {statistics.stdev(points):.1f}" if len(points) > 1 else mean


def _wrong(runs: list[dict]) -> str:
    """The share of all positions in which a server's copy of a mask is not what was sent."""
    answers = sum(len(x["clients"]) for r in runs for x in r["history"])
    return f"{100 * sum(r['wrong_positions'] for r in runs) / answers / runs[0]['masked_weights']:.2f}%"


def study(folder: str, column: str) -> Callable[[], str]:
    """Accuracy and bits of each label of a study."""

    def make() -> str:
        rows = [
            [
                label,
                percent(group, "accuracy"),
                percent(group, "best_accuracy"),
                f"{statistics.mean(r['uplink_bpp'] for r in group):.4g}",
                _wrong(group),
                str(len(group)),
            ]
            for label, group in records(folder).items()
        ]
        return table([column, "accuracy", "best", "uplink bpp", "wrong positions", "seeds"], rows)

    return make


TABLES: dict[str, Callable[[], str]] = {
    "methods-rates": rates("embedded"),
    "methods-rates-real": rates("real"),
    "methods-tau": thresholds,
    "methods-iid": compared(FEDERATIONS["IID, all clients"]),
    "methods-iid-fifth": compared(FEDERATIONS["IID, a fifth"]),
    "methods-dirichlet": compared(FEDERATIONS["Dir(.1), all clients"]),
    "methods-dirichlet-fifth": compared(FEDERATIONS["Dir(.1), a fifth"]),
    "methods-real": compared(FEDERATIONS["real, IID, all clients"]),
    "methods-real-dirichlet": compared(FEDERATIONS["real, Dir(.1), a fifth"]),
    "readme-real": short(
        FEDERATIONS["real, IID, all clients"],
        (
            "deltamask",
            "mrc",
            "bicompfl",
            "deltamask:paper",
            "fedpm",
            "eden",
            "lora",
            "lora-eden",
            "flasc",
            "finetune",
            "linear-probe",
        ),
    ),
    "methods-cost": cost(FEDERATIONS["real, IID, all clients"]),
    "claim-fedpm": against("deltamask:paper", "fedpm"),
    "claim-exact": against("deltamask", "fedpm"),
    "claim-deepreduce": against("deepreduce", "fedpm"),
    "claim-fedmask": against("fedmask", "fedpm"),
    "claim-bayes": study("embedded/claim-bayes", "prior reset"),
    "claim-kappa": study("embedded/claim-kappa", "which changes"),
    "claim-filters": study("embedded/claim-filters", "filter"),
}


def draw() -> list[str]:
    """Writes the figures; the names of those that changed."""
    changed = []
    for name, folder in FIGURES.items():
        entries = _entries(folder)
        if not entries:
            continue
        path = ROOT / "docs" / f"{name}.svg"
        made = figures.render(figures.comparison(summary.curves(entries), summary.target(entries)), "svg")
        if not path.exists() or path.read_bytes() != made:
            path.write_bytes(made)
            changed.append(path.name)
    return changed
