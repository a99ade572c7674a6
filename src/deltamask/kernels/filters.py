"""Probabilistic filters: one construction and one query for every layout and every fingerprint width.

A filter gives each key a fingerprint and a few slots, and fills the slots so that those of a key XOR to its
fingerprint. Layouts differ only in where the slots lie, which `locate` says; numba compiles the loops once for each
type of layout and fingerprint:

- `Fuse3`, `Fuse4`: binary fuse filters (Graf and Lemire, 2022). The slots of a key lie in consecutive segments.
- `Xor3`: xor filters (Graf and Lemire, 2020). Three blocks, one slot in each.
- `Block4`: 64 consecutive keys share the start of four windows of 64 slots, so that a query of all positions reads
  whole windows instead of single bytes (see `deltamask.kernels.scan`).

numba does not check bounds: whoever builds a layout from untrusted bytes checks it first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from deltamask.kernels.mix import mix64

__all__ = [
    "Block4",
    "Fingerprints",
    "Fuse3",
    "Fuse4",
    "Keys",
    "Layout",
    "Xor3",
    "contains",
    "gather",
    "locate",
    "peel",
]

Keys = NDArray[np.unsignedinteger[Any]]
Fingerprints = NDArray[np.unsignedinteger[Any]]


class Fuse3(NamedTuple):
    """Three slots in three consecutive segments of ``length`` slots (a power of two)."""

    seed: np.uint64
    span: np.uint64
    """Slots in which the first one can lie: segments to start from, times ``length``."""
    length: np.uint64


class Fuse4(NamedTuple):
    """Four slots in four consecutive segments of ``length`` slots (a power of two)."""

    seed: np.uint64
    span: np.uint64
    length: np.uint64


class Xor3(NamedTuple):
    """One slot in each of three blocks of ``length`` slots."""

    seed: np.uint64
    length: np.uint64


class Block4(NamedTuple):
    """Four windows of 64 slots in consecutive segments of ``length`` slots; ``first`` is the segment of each key."""

    seed: np.uint64
    length: np.uint64
    first: NDArray[np.uint32]


Layout = Fuse3 | Fuse4 | Xor3 | Block4

_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_S6 = np.uint64(6)
_S16 = np.uint64(16)
_S32 = np.uint64(32)
_S48 = np.uint64(48)
_LANE = np.uint64(63)
_LOW = np.uint64(0xFFFFFFFF)
_KEY = np.uint64(1 << 32)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BUCKETS = 512


def locate(layout: Layout, keys: Keys, i: int, prints: Fingerprints) -> tuple[Any, tuple[Any, ...]]:
    """The fingerprint (its low bits count) and the slots of ``keys[i]``; for compiled code only."""
    raise NotImplementedError


def locate_hashed(layout: Layout, keys: Keys, i: int, prints: Fingerprints) -> tuple[Any, tuple[Any, ...]]:
    """`locate` for what `gather` made of the keys: their hashes; `Block4` keeps the keys themselves."""
    raise NotImplementedError


@nb.njit(nb.uint64(nb.uint64, nb.uint64), inline="always", cache=True)
def _reduce(x, span):  # type: ignore[no-untyped-def]
    """The upper half of ``x`` brought into ``range(span)`` by a multiplication; ``span`` is below 2**32."""
    return ((x >> _S32) * span) >> _S32


@nb.njit(inline="always", cache=True)
def _place_fuse3(layout, h):  # type: ignore[no-untyped-def]
    at = _reduce(h, layout.span)
    mask = layout.length - _ONE
    one = (at + layout.length) ^ (h & mask)
    two = (at + _TWO * layout.length) ^ ((h >> _S16) & mask)
    return h ^ (h >> _S32), (at, one, two)


@nb.njit(inline="always", cache=True)
def _place_fuse4(layout, h):  # type: ignore[no-untyped-def]
    at = _reduce(h, layout.span)
    mask = layout.length - _ONE
    one = (at + layout.length) ^ (h & mask)
    two = (at + _TWO * layout.length) ^ ((h >> _S16) & mask)
    three = (at + _THREE * layout.length) ^ ((h >> _S32) & mask)
    return h ^ (h >> _S32), (at, one, two, three)


@nb.njit(inline="always", cache=True)
def _place_xor3(layout, h):  # type: ignore[no-untyped-def]
    length = layout.length
    zero = _reduce(h, length)
    one = length + _reduce((h << np.uint64(21)) | (h >> np.uint64(43)), length)
    two = _TWO * length + _reduce((h << np.uint64(42)) | (h >> np.uint64(22)), length)
    return h ^ (h >> _S32), (zero, one, two)


_PLACES = {Fuse3: _place_fuse3, Fuse4: _place_fuse4, Xor3: _place_xor3}


def _locate_block4(prints_type):  # type: ignore[no-untyped-def]
    bits = np.uint64(prints_type.dtype.bitwidth)
    per_word = np.uint64(64 // prints_type.dtype.bitwidth)

    def block4(layout, keys, i, prints):  # type: ignore[no-untyped-def]
        key = np.uint64(keys[i])
        lane = key & _LANE
        h = mix64((key >> _S6) + layout.seed)
        mask = layout.length - _ONE
        at = np.uint64(layout.first[i]) * layout.length + lane
        # The fingerprints of a block are a row of words, so that a query of the whole block gets them at once.
        word = mix64(h + (lane // per_word + _ONE) * _GOLDEN)
        zero = at + (h & mask)
        one = at + layout.length + ((h >> _S16) & mask)
        two = at + _TWO * layout.length + ((h >> _S32) & mask)
        three = at + _THREE * layout.length + ((h >> _S48) & mask)
        return word >> (bits * (lane % per_word)), (zero, one, two, three)

    return block4


@overload(locate, inline="always")
def _locate(layout, keys, i, prints):  # type: ignore[no-untyped-def]
    if layout.instance_class is Block4:
        return _locate_block4(prints)  # type: ignore[no-untyped-call]
    place = _PLACES[layout.instance_class]
    return lambda layout, keys, i, prints: place(layout, mix64(np.uint64(keys[i]) + layout.seed))


@overload(locate_hashed, inline="always")
def _locate_hashed(layout, keys, i, prints):  # type: ignore[no-untyped-def]
    if layout.instance_class is Block4:
        return _locate_block4(prints)  # type: ignore[no-untyped-call]
    place = _PLACES[layout.instance_class]
    return lambda layout, keys, i, prints: place(layout, keys[i])


@nb.njit(cache=True, nogil=True)
def gather(keys: Keys, layout: Fuse3 | Fuse4 | Xor3, slots: int) -> Keys:
    """The hashes of ``keys``, roughly in the order of their first slots.

    Neighbours then touch memory that is still in the cache. Hashes differ when keys do, so `peel` needs no keys.
    """
    shift = 0
    while slots >> shift >= _BUCKETS:
        shift += 1
    unused = np.empty(0, np.uint8)
    bucket = np.empty(len(keys), np.uint16)
    start = np.zeros(_BUCKETS + 1, np.int64)
    for i in range(len(keys)):
        _, at = locate(layout, keys, i, unused)
        bucket[i] = at[0] >> np.uint64(shift)
        start[bucket[i] + 1] += 1
    for b in range(_BUCKETS):
        start[b + 1] += start[b]
    out = np.empty_like(keys)
    for i in range(len(keys)):
        b = bucket[i]
        out[start[b]] = mix64(keys[i] + layout.seed)
        start[b] += 1
    return out


@nb.njit(cache=True, nogil=True)
def peel(hashes: Keys, layout: Layout, prints: Fingerprints) -> bool:
    """Fills ``prints`` (all zero) so that the slots of each key XOR to its fingerprint; False if it can't be done.

    Takes away, again and again, a key that has a slot to itself. If that takes all keys away, then setting these
    slots in reverse order satisfies one key after the other and breaks none. Slots that are never set stay zero.
    ``hashes`` come from `gather`; for `Block4` they are the keys.
    """
    slots = len(prints)
    # For each slot: the number of its keys in the upper half, the XOR of their ranks in the lower one.
    state = np.zeros(slots, np.uint64)
    for i in range(len(hashes)):
        _, at = locate_hashed(layout, hashes, i, prints)
        for k in range(len(at)):
            state[at[k]] = (state[at[k]] ^ np.uint64(i)) + _KEY
    # Each slot gets down to one key at most once; one more place takes what is written but not kept. First in, first
    # out: the processor then works on several keys at a time, for they seldom wait for each other.
    queue = np.empty(slots + 1, np.uint32)
    tail = 0
    for s in range(slots):
        queue[tail] = s
        tail += state[s] >> _S32 == _ONE
    taken = np.empty(len(hashes), np.uint32)
    alone = np.empty(len(hashes), np.uint32)
    done = 0
    head = 0
    while head < tail:
        slot = queue[head]
        head += 1
        if state[slot] >> _S32 != _ONE:
            continue
        i = state[slot] & _LOW
        taken[done] = i
        alone[done] = slot
        done += 1
        _, at = locate_hashed(layout, hashes, i, prints)
        for k in range(len(at)):
            left = (state[at[k]] ^ i) - _KEY
            state[at[k]] = left
            queue[tail] = at[k]
            tail += left >> _S32 == _ONE
    if done < len(hashes):
        return False
    for j in range(done - 1, -1, -1):
        fingerprint, at = locate_hashed(layout, hashes, taken[j], prints)
        for k in range(len(at)):
            fingerprint ^= np.uint64(prints[at[k]])
        prints[alone[j]] = fingerprint
    return True


@nb.njit(cache=True, nogil=True)
def contains(keys: Keys, layout: Layout, prints: Fingerprints, out: NDArray[np.bool_]) -> None:
    """Whether each key is in the filter: always for those that it was built from, rarely for others."""
    unused = np.uint64(64 - 8 * prints.itemsize)
    for i in range(len(keys)):
        fingerprint, at = locate(layout, keys, i, prints)
        for k in range(len(at)):
            fingerprint ^= np.uint64(prints[at[k]])
        out[i] = fingerprint << unused == 0
