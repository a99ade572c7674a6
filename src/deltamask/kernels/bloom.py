"""Bloom filters: set a few bits for each key, ask whether all of them are set (Bloom, 1970).

The bits of a key form an arithmetic progression from two halves of one hash (Kirsch and Mitzenmacher, 2006).
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from deltamask.kernels.filters import Keys
from deltamask.kernels.mix import mix64

__all__ = ["insert", "probe", "scan_bits"]

_CHUNK = 1024
_SEED = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_S3 = np.uint64(3)
_S32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_BIT = np.uint64(7)


@nb.njit(cache=True, nogil=True)
def insert(keys: Keys, hashes: int, bits: NDArray[np.uint8]) -> None:
    """Sets ``hashes`` of the bits (8 a byte, fewer than 2**32) for each key."""
    span = np.uint64(8 * len(bits))
    for i in range(len(keys)):
        h = mix64(np.uint64(keys[i]) + _SEED)
        at = h >> _S32
        step = (h & _LOW) | _ONE
        for _ in range(hashes):
            place = (at * span) >> _S32
            bits[place >> _S3] |= _ONE << (place & _BIT)
            at = (at + step) & _LOW


@nb.njit(cache=True, nogil=True)
def probe(keys: Keys, hashes: int, bits: NDArray[np.uint8], out: NDArray[np.bool_]) -> None:
    """Whether all bits of each key are set."""
    span = np.uint64(8 * len(bits))
    for i in range(len(keys)):
        h = mix64(np.uint64(keys[i]) + _SEED)
        at = h >> _S32
        step = (h & _LOW) | _ONE
        found = _ONE
        for _ in range(hashes):
            place = (at * span) >> _S32
            found &= np.uint64(bits[place >> _S3]) >> (place & _BIT)
            at = (at + step) & _LOW
        out[i] = found == _ONE


@nb.njit(cache=True, nogil=True)
def scan_bits(start: int, stop: int, hashes: int, bits: NDArray[np.uint8], out: Keys) -> int:
    """Writes the positions of ``range(start, stop)`` that are in the filter to ``out``; how many there are.

    Looks at the first bit of a chunk of positions, at the second bit of those left, and so on: whether a bit is set
    can't be predicted, so branching on it would cost more than the look.
    """
    span = np.uint64(8 * len(bits))
    at = np.empty(_CHUNK, np.uint64)
    step = np.empty(_CHUNK, np.uint64)
    left = np.empty(_CHUNK, np.uint16)
    count = 0
    for base in range(start, stop, _CHUNK):
        size = min(_CHUNK, stop - base)
        for j in range(size):
            h = mix64(np.uint64(base + j) + _SEED)
            at[j] = h >> _S32
            step[j] = (h & _LOW) | _ONE
            left[j] = j
        for _ in range(hashes):
            kept = 0
            for t in range(size):
                j = left[t]
                place = (at[j] * span) >> _S32
                at[j] = (at[j] + step[j]) & _LOW
                left[kept] = j
                kept += (np.uint64(bits[place >> _S3]) >> (place & _BIT)) & _ONE == _ONE
            size = kept
        for t in range(size):
            out[count + t] = base + left[t]
        count += size
    return count
