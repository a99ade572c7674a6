"""Asking a filter about every position of a range, in order: what a receiver does with a payload.

Both loops fill 1024 flags and then turn them into positions. ``out`` needs two places more than the range has
positions (see `emit`); ranges start at a multiple of 64. numba does not check bounds: whoever builds a layout from
untrusted bytes checks it first.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from deltamask.kernels.filters import Fingerprints, Fuse3, Fuse4, Keys, Xor3, locate
from deltamask.kernels.flags import emit, squeeze
from deltamask.kernels.mix import mix64

__all__ = ["scan", "scan_blocks"]

_CHUNK = 1024
_GROUP = 16
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_S6 = np.uint64(6)
_S16 = np.uint64(16)
_S32 = np.uint64(32)
_S48 = np.uint64(48)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@nb.njit(inline="always", cache=True)
def _emit_chunk(base, stop, bits, out, count):  # type: ignore[no-untyped-def]
    """All positions below ``stop`` that are flagged in one chunk from ``base`` on."""
    for t in range(min(_CHUNK, stop - base + 63) // 64):
        word = bits[t]
        left = stop - base - 64 * t
        if left < 64:
            word &= (_ONE << np.uint64(left)) - _ONE
        count = emit(word, np.uint64(base + 64 * t), out, count)
    return count


@nb.njit(cache=True, nogil=True)
def scan(start: int, stop: int, layout: Fuse3 | Fuse4 | Xor3, prints: Fingerprints, out: Keys) -> int:
    """Writes the positions of ``range(start, stop)`` that are in the filter to ``out``; how many there are.

    Hashing runs ahead of the loads by one group, small enough for the processor to overlap the two: then the time
    is that of the loads alone.
    """
    keys = np.empty(_GROUP, np.uint64)
    zero = np.empty(_GROUP, np.uint32)
    one = np.empty(_GROUP, np.uint32)
    two = np.empty(_GROUP, np.uint32)
    three = np.empty(_GROUP, np.uint32)
    want = np.empty(_CHUNK, prints.dtype)
    got = np.empty(_CHUNK, prints.dtype)
    flags = np.empty(_CHUNK, np.uint8)
    bits = np.empty(_CHUNK // 8, np.uint8)
    count = 0
    for base in range(start, stop, _CHUNK):
        for group in range(0, _CHUNK, _GROUP):
            for j in range(_GROUP):
                keys[j] = np.uint64(base + group + j)
                fingerprint, at = locate(layout, keys, j, prints)
                want[group + j] = fingerprint
                zero[j] = at[0]
                one[j] = at[1]
                two[j] = at[2]
                three[j] = at[len(at) - 1]
            for j in range(_GROUP):
                found = prints[zero[j]] ^ prints[one[j]] ^ prints[two[j]]
                if len(at) == 4:
                    found ^= prints[three[j]]
                got[group + j] = found
        for j in range(_CHUNK):
            flags[j] = got[j] == want[j]
        squeeze(flags.view(np.uint64), bits)
        count = _emit_chunk(base, stop, bits.view(np.uint64), out, count)
    return count


@nb.njit(cache=True, nogil=True)
def scan_blocks(
    start: int,
    stop: int,
    seed: np.uint64,
    length: np.uint64,
    edges: NDArray[np.uint64],
    prints: Fingerprints,
    out: Keys,
) -> int:
    """`scan` for a `Block4` layout: four contiguous loads and eight hashes (16 with 16 bits) for 64 positions.

    ``edges[s]`` is the first block of 64 positions whose windows start in segment ``s + 1`` or later.
    """
    words = np.empty(8 * prints.itemsize, np.uint64)
    want = words.view(prints.dtype)
    flags = np.empty(_CHUNK, np.uint8)
    bits = np.empty(_CHUNK // 8, np.uint8)
    mask = length - _ONE
    segment = np.searchsorted(edges, np.uint64(start) >> _S6, side="right")
    count = 0
    for base in range(start, stop, _CHUNK):
        for t in range(min(_CHUNK, stop - base + 63) // 64):
            block = np.uint64(base + 64 * t) >> _S6
            while segment < len(edges) and edges[segment] <= block:
                segment += 1
            h = mix64(block + seed)
            for w in range(len(words)):
                words[w] = mix64(h + (np.uint64(w) + _ONE) * _GOLDEN)
            at = np.uint64(segment) * length
            zero = prints[at + (h & mask) :]
            one = prints[at + length + ((h >> _S16) & mask) :]
            two = prints[at + _TWO * length + ((h >> _S32) & mask) :]
            three = prints[at + _THREE * length + ((h >> _S48) & mask) :]
            here = flags[64 * t : 64 * t + 64]
            for j in range(64):
                here[j] = (zero[j] ^ one[j] ^ two[j] ^ three[j]) == want[j]
        squeeze(flags.view(np.uint64), bits)
        count = _emit_chunk(base, stop, bits.view(np.uint64), out, count)
    return count
