"""Who has what: a split of the training images among clients, and its statistics.

``iid`` deals them out evenly at random. ``dirichlet:A`` draws, for each class, the clients' shares of it from
Dir(A): a small A gives each client few classes. ``column:NAME`` keeps together what has the same value in a column
of the data set, such as a writer, a hospital or the ``label``. Every client gets at least ``least`` images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import ConfigError, DataError, unknown_name
from deltamask.sampling import derive, permutation

__all__ = ["Holdings", "effective_classes", "split"]

_TRIES = 100
_MOST_CELLS = 20_000  # clients x classes that a result lists one by one


def split(
    labels: NDArray[np.int64],
    clients: int,
    how: str,
    seed: int,
    least: int = 1,
    columns: Mapping[str, Any] | None = None,
) -> list[NDArray[np.int64]]:
    """For each client the sorted positions of its images; every image belongs to one client.

    ``columns`` holds, by name, a string or an integer for each image; ``label`` is always there.
    """
    if clients * least > labels.size:
        raise DataError(
            f"{labels.size} images for {clients} clients with at least {least} each: lower `clients` or `min_images`"
        )
    name, _, parameter = how.partition(":")
    if name == "iid" and not parameter:
        order = permutation(derive(seed, "iid"), labels.size)
        return [np.sort(part) for part in np.array_split(order, clients)]
    if name == "dirichlet":
        return _dirichlet(labels, clients, how, seed, least)
    if name == "column":
        have = {**(columns or {}), "label": labels}
        if not parameter:
            raise ConfigError(f"partition is {how!r}; expected a name after 'column:', one of {', '.join(have)}")
        if parameter not in have:
            raise unknown_name("partition: column", parameter, have)
        return _column(_values(have[parameter], parameter, labels.size), clients, how, seed, least)
    raise ConfigError(f"partition is {how!r}; expected 'iid', 'dirichlet:A' with A > 0, or 'column:NAME'")


def _dirichlet(labels: NDArray[np.int64], clients: int, how: str, seed: int, least: int) -> list[NDArray[np.int64]]:
    try:
        concentration = float(how.partition(":")[2])
    except ValueError:
        concentration = 0.0
    if not 0 < concentration < float("inf"):
        raise ConfigError(
            f"partition is {how!r}; expected a number above 0 after 'dirichlet:', for instance dirichlet:0.1"
        )
    for attempt in range(_TRIES):
        rng = np.random.Generator(np.random.Philox(derive(seed, "dirichlet", attempt)))
        owner = np.empty(labels.size, np.int64)
        for c in np.unique(labels):
            members = np.flatnonzero(labels == c)
            cuts = np.cumsum(rng.dirichlet(np.full(clients, concentration)))[:-1] * members.size
            owner[rng.permutation(members)] = np.searchsorted(cuts, np.arange(members.size), side="right")
        parts = _of_owners(owner, clients)
        if min(p.size for p in parts) >= least:
            return parts
    raise DataError(
        f"partition {how!r}: no split of {labels.size} images among {clients} clients gave each at least {least} "
        f"in {_TRIES} attempts; use fewer clients, a larger concentration or a lower `min_images`"
    )


def _column(values: NDArray[Any], clients: int, how: str, seed: int, least: int) -> list[NDArray[np.int64]]:
    """Each distinct value a natural client, or several values to a client where there are more of them."""
    distinct, which = np.unique(values, return_inverse=True)
    if distinct.size < clients:
        raise DataError(
            f"partition {how!r}: {distinct.size} distinct values for {clients} clients; set `clients` to at most "
            f"{distinct.size}, or use another partition, for instance dirichlet:0.1"
        )
    # Where each value is a client, client k is the k-th of them, whatever the seed.
    one_each = distinct.size == clients
    owner = np.arange(clients) if one_each else _deal(np.bincount(which), clients, derive(seed, how))
    parts = _of_owners(owner[which], clients)
    smallest = min(range(clients), key=lambda k: parts[k].size)
    if parts[smallest].size < least:
        raise DataError(
            f"partition {how!r}: client {smallest} of {clients} has {parts[smallest].size} images, fewer than "
            f"`min_images` = {least}; lower `min_images`, or `clients` so that more values come together"
        )
    return parts


def _deal(sizes: NDArray[np.int64], clients: int, key: int) -> NDArray[np.int64]:
    """The owner of each value: the largest first, each to whoever has the fewest images; ``key`` breaks ties."""
    order = permutation(key, sizes.size)
    order = order[np.argsort(-sizes[order], kind="stable")]
    owner = np.empty(sizes.size, np.int64)
    waiting = [(0, k) for k in range(clients)]
    for value in order.tolist():
        has, k = heappop(waiting)
        owner[value] = k
        heappush(waiting, (has + int(sizes[value]), k))
    return owner


def _values(column: Any, name: str, images: int) -> NDArray[Any]:
    """A column as an array of strings or integers."""
    values = np.asarray(column)
    if values.shape != (images,):
        raise DataError(
            f"column {name!r} has shape {values.shape}; expected one value for each of {images} images; "
            "mend the data set's `columns`"
        )
    if values.dtype.kind in "OT" and all(isinstance(v, str) for v in values.tolist()):
        values = values.astype(np.str_)  # tables hand strings over as objects
    if values.dtype.kind not in "iubUS":
        raise DataError(
            f"column {name!r} holds {values.dtype}; expected only strings or only integers; convert it where the "
            "data set is loaded"
        )
    return values


def _of_owners(owner: NDArray[np.int64], clients: int) -> list[NDArray[np.int64]]:
    """The sorted positions of each client."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


@dataclass(frozen=True, eq=False)
class Holdings:
    """How many images of each class each client has: ``counts[client, class]``."""

    counts: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Sequence[NDArray[np.int64]], classes: int) -> Holdings:
        """From the labels of each client's images."""
        rows = [np.bincount(own, minlength=classes) for own in labels]
        widest = max((row.size for row in rows), default=classes)
        if widest > classes:
            raise DataError(f"a client has label {widest - 1}; expected 0 to {classes - 1} for {classes} classes")
        return cls(np.array(rows, np.int64).reshape(len(rows), classes))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Images of each client."""
        sizes: NDArray[np.int64] = self.counts.sum(1)
        return sizes

    @property
    def present(self) -> NDArray[np.int64]:
        """Number of classes of which a client has at least one image."""
        present: NDArray[np.int64] = (self.counts > 0).sum(1)
        return present

    @property
    def effective(self) -> NDArray[np.float64]:
        """Each client's effective classes as a share of all: inverse Simpson / C; 0 for a client without images."""
        shares: NDArray[np.float64] = self._inverse_simpson() / self.counts.shape[1]
        return shares

    @property
    def effective_classes(self) -> float:
        """The mean of `effective` over the clients that have images."""
        return float(np.mean(self._inverse_simpson()[self.sizes > 0]) / self.counts.shape[1])

    def record(self) -> dict[str, Any]:
        """What ``result.json`` says of the partition; the counts only where they are not too many."""
        found: dict[str, Any] = {
            "sizes": self.sizes.tolist(),
            "effective_classes": self.effective_classes,
            "effective_classes_by_client": [round(x, 4) for x in self.effective.tolist()],
            "classes_present": self.present.tolist(),
        }
        if self.counts.size <= _MOST_CELLS:
            found["class_counts"] = self.counts.tolist()
        return found

    def _inverse_simpson(self) -> NDArray[np.float64]:
        sizes = self.sizes
        shares = self.counts / np.maximum(sizes, 1)[:, None]
        return np.where(sizes > 0, 1 / np.where(sizes > 0, (shares**2).sum(1), 1), 0.0)


def effective_classes(labels: Sequence[NDArray[np.int64]], classes: int) -> float:
    """The mean over clients of the inverse Simpson index of their labels, as a share of all classes."""
    return Holdings.of(labels, classes).effective_classes
