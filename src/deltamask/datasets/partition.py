"""Who has what: a split of the training images among clients.

``iid`` deals them out evenly at random. ``dirichlet:A`` draws, for each class, the clients' shares of it from
Dir(A): a small A gives each client few classes. Seeded, and every client gets at least ``least`` images.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import ConfigError, DataError
from deltamask.sampling import derive, permutation

__all__ = ["effective_classes", "split"]

_TRIES = 100


def split(labels: NDArray[np.int64], clients: int, how: str, seed: int, least: int = 1) -> list[NDArray[np.int64]]:
    """For each client the sorted positions of its images; every image belongs to one client."""
    if clients * least > labels.size:
        raise DataError(f"{labels.size} images for {clients} clients with at least {least} each: lower `clients`")
    name, _, parameter = how.partition(":")
    if name == "iid" and not parameter:
        order = permutation(derive(seed, "iid"), labels.size)
        return [np.sort(part) for part in np.array_split(order, clients)]
    if name != "dirichlet":
        raise ConfigError(f"partition is {how!r}; expected 'iid' or 'dirichlet:A' with A > 0")
    try:
        concentration = float(parameter)
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
        parts = [np.flatnonzero(owner == k) for k in range(clients)]
        if min(p.size for p in parts) >= least:
            return parts
    raise DataError(
        f"partition {how!r}: no split of {labels.size} images among {clients} clients gave each at least {least} "
        f"in {_TRIES} attempts; use fewer clients or a larger concentration"
    )


def effective_classes(labels: list[NDArray[np.int64]], classes: int) -> float:
    """The mean over clients of the inverse Simpson index of their labels, as a share of all classes."""
    shares = [np.bincount(own, minlength=classes) / own.size for own in labels if own.size]
    return float(np.mean([1 / (s**2).sum() for s in shares]) / classes)
