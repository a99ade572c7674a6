"""A round's votes -> the next probabilities, in one pass over each array and without any in between."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

__all__ = ["beta_posterior", "moved_by_votes"]

_F32 = NDArray[np.float32]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def moved_by_votes(
    theta: _F32, votes: NDArray[np.int32], clients: np.float32, least: np.float32, most: np.float32, out: _F32
) -> None:
    """``out = theta + votes / clients``, within ``least`` and ``most``."""
    for i in range(out.size):
        out[i] = min(max(theta[i] + np.float32(votes[i]) / clients, least), most)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def beta_posterior(
    votes: NDArray[np.int32],
    clients: np.float32,
    counted: np.float32,
    less: np.float32,
    least: np.float32,
    most: np.float32,
    alpha: _F32,
    beta: _F32,
    out: _F32,
) -> None:
    """Adds ``votes / counted`` to ``alpha`` and the rest of ``clients`` to ``beta``, in place.

    ``out`` is (alpha - less) / (alpha + beta - 2 less), within ``least`` and ``most``.
    """
    twice = less + less
    for i in range(out.size):
        added = np.float32(votes[i]) / counted
        a = alpha[i] + added
        b = beta[i] + (clients - added)
        alpha[i] = a
        beta[i] = b
        out[i] = min(max((a - less) / (a + b - twice), least), most)
