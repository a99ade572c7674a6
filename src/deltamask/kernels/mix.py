"""The one 64-bit mixing function that filters and sampling share.

numba promotes a uint64 combined with a Python integer to float64, so every constant is a typed global.
"""

from __future__ import annotations

import numba as nb
import numpy as np

__all__ = ["mix64"]

_S33 = np.uint64(33)
_M1 = np.uint64(0xFF51AFD7ED558CCD)
_M2 = np.uint64(0xC4CEB9FE1A85EC53)


@nb.njit(nb.uint64(nb.uint64), inline="always", cache=True)
def mix64(x):  # type: ignore[no-untyped-def]
    """MurmurHash3's 64-bit finaliser: a bijection of uint64 in which every bit depends on every bit."""
    x ^= x >> _S33
    x *= _M1
    x ^= x >> _S33
    x *= _M2
    x ^= x >> _S33
    return x
