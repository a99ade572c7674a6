"""Random rotations: signs from a key, then Walsh and Hadamard's transform, in place and in rows of a power of two.

A rotated vector's coordinates are close to normal whatever the vector was, so that one quantiser fits all.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from deltamask.kernels.mix import mix64

__all__ = ["rotate", "rotate_back"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_S6 = np.uint64(6)
_LANE = np.uint64(63)


@nb.njit(inline="always", cache=True)
def _transform(row):  # type: ignore[no-untyped-def]
    """The orthonormal transform of one row, which is its own inverse."""
    n = row.size
    h = 1
    while h < n:
        for start in range(0, n, 2 * h):
            upper = row[start : start + h]
            lower = row[start + h : start + 2 * h]
            for j in range(h):
                a = upper[j]
                b = lower[j]
                upper[j] = a + b
                lower[j] = a - b
        h *= 2
    scale = np.float32(1 / np.sqrt(np.float64(n)))
    for j in range(n):
        row[j] *= scale


@nb.njit(inline="always", cache=True)
def _signs(key, start, row):  # type: ignore[no-untyped-def]
    """Flips the sign of each number whose bit of the stream ``key`` is set; the row starts at position ``start``."""
    word = np.uint64(0)
    for j in range(row.size):
        i = np.uint64(start + j)
        if j == 0 or i & _LANE == 0:
            word = mix64(key + (i >> _S6) * _STEP)
        if word >> (i & _LANE) & _ONE:
            row[j] = -row[j]


@nb.njit(cache=True, nogil=True)
def rotate(key: np.uint64, start: int, rows: NDArray[np.float32]) -> None:
    """Rotates each row; ``start`` is the position of the first number among all that ``key`` rotates."""
    for r in range(rows.shape[0]):
        _signs(key, start + r * rows.shape[1], rows[r])
        _transform(rows[r])


@nb.njit(cache=True, nogil=True)
def rotate_back(key: np.uint64, start: int, rows: NDArray[np.float32]) -> None:
    """The inverse of `rotate`."""
    for r in range(rows.shape[0]):
        _transform(rows[r])
        _signs(key, start + r * rows.shape[1], rows[r])
