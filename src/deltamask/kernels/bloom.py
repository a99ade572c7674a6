"""Bloom filters: set a few bits for each key, ask whether all of them are set (Bloom, 1970).

The bits of a key form an arithmetic progression from two halves of one hash (Kirsch and Mitzenmacher, 2006).
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from deltamask.kernels.filters import Keys
from deltamask.kernels.flags import squeeze
from deltamask.kernels.mix import mix64
from deltamask.kernels.scan import emit_chunk

__all__ = ["insert", "probe", "scan_bits"]

_CHUNK = 1024
_SEED = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_S3 = np.uint64(3)
_S32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_BIT = np.uint64(7)


@nb.njit(inline="always", cache=True)
def _has(key, hashes, bits):  # type: ignore[no-untyped-def]
    span = np.uint64(8 * len(bits))
    h = mix64(key + _SEED)
    at = h >> _S32
    step = (h & _LOW) | _ONE
    for _ in range(hashes):
        place = (at * span) >> _S32
        if not bits[place >> _S3] >> (place & _BIT) & _ONE:
            return np.uint8(0)
        at = (at + step) & _LOW
    return np.uint8(1)


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
    for i in range(len(keys)):
        out[i] = _has(np.uint64(keys[i]), hashes, bits)


@nb.njit(cache=True, nogil=True)
def scan_bits(start: int, stop: int, hashes: int, bits: NDArray[np.uint8], out: Keys) -> int:
    """`deltamask.kernels.scan.scan` for a Bloom filter."""
    flags = np.empty(_CHUNK, np.uint8)
    packed = np.empty(_CHUNK // 8, np.uint8)
    count = 0
    for base in range(start, stop, _CHUNK):
        for j in range(_CHUNK):
            flags[j] = _has(np.uint64(base + j), hashes, bits)
        squeeze(flags.view(np.uint64), packed)
        count = emit_chunk(base, stop, packed.view(np.uint64), out, count)
    return count
