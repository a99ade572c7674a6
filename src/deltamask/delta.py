"""Which of the changed positions are sent: ranked by relative entropy, the top kappa of them (eq. 4).

METHOD, decision 1: kappa is a share of the changes, not of the client's data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import BudgetError, ConfigError
from deltamask.sampling import uniforms

__all__ = ["KappaSchedule", "fit_budget", "rank", "relative_entropy", "top"]

Positions = NDArray[np.uint32]


def relative_entropy(theta_k: NDArray[np.float32], theta_g: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL(Bern(theta_k) || Bern(theta_g)) in nats, position by position."""
    p, q = theta_k.astype(np.float64), theta_g.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ones = np.where(p > 0, p * np.log(p / q), 0.0)
        zeros = np.where(p < 1, (1 - p) * np.log((1 - p) / (1 - q)), 0.0)
    out: NDArray[np.float64] = np.maximum(ones + zeros, 0.0)
    return out


def rank(
    flips: Positions,
    theta_k: NDArray[np.float32],
    theta_g: NDArray[np.float32],
    *,
    by: Literal["kl", "random"] = "kl",
    key: int = 0,
) -> Positions:
    """The changed positions, the most informative first; equal ones keep their order.

    ``by="random"`` is the ablation of the paper's Fig. 6a; its order comes from ``key``.
    """
    if by == "random":
        return flips[np.argsort(uniforms(key, flips.size), kind="stable")]
    if by == "kl":
        return flips[np.argsort(-relative_entropy(theta_k[flips], theta_g[flips]), kind="stable")]
    raise ConfigError(f"selection is {by!r}; expected 'kl' or 'random'")


def top(ranked: Positions, kappa: float) -> Positions:
    """The first ``kappa`` of ``ranked`` (rounded up), as sorted positions."""
    return np.sort(ranked[: int(np.ceil(kappa * ranked.size - 1e-9))])


@dataclass(frozen=True)
class KappaSchedule:
    """kappa in each round: constant, or half a cosine from ``start`` in the first to ``end`` in the last."""

    kind: Literal["constant", "cosine"] = "constant"
    start: float = 0.8
    end: float = 0.2

    def at(self, round: int, rounds: int) -> float:
        """The share of ``round`` (from 0) of ``rounds``."""
        if self.kind == "constant" or rounds <= 1:
            return self.start
        done = min(round / (rounds - 1), 1.0)
        return self.end + (self.start - self.end) * (1 + cos(pi * done)) / 2


def fit_budget(ranked: Positions, encode: Callable[[Positions], bytes], budget_bytes: int) -> bytes:
    """The payload of the longest head of ``ranked`` that takes at most ``budget_bytes``.

    Searches with real payloads, so that what is promised is what is sent. A code's length need not grow
    strictly with its set; the search keeps to payloads that it has seen to fit.
    """
    best = encode(np.sort(ranked))
    if len(best) <= budget_bytes:
        return best
    best = encode(ranked[:0])
    if len(best) > budget_bytes:
        raise BudgetError(f"the budget is {budget_bytes} bytes, an empty payload takes {len(best)}: raise the budget")
    low, high = 0, ranked.size
    while high - low > max(1, ranked.size // 4096):
        middle = (low + high) // 2
        payload = encode(np.sort(ranked[:middle]))
        if len(payload) <= budget_bytes:
            low, best = middle, payload
        else:
            high = middle
    return best
