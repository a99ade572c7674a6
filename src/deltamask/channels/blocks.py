"""How minimal random coding cuts the weights into blocks, and what the receiver must be told of it.

``fixed`` blocks have the same length everywhere and cost nothing to tell. Divergence does not lie evenly, though: a
block with much of it is coded badly, one with little wastes most of its index. A `Profile` says how many blocks of
equal length each segment of weights is cut into, so that all hold about the same number of bits of divergence; it
travels in the payload.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader
from deltamask.codecs.sides import check, to_words
from deltamask.errors import MalformedError, TruncatedError
from deltamask.kernels import gaps

__all__ = ["CELL", "Blocks", "Profile", "differences_to_bytes", "fixed", "read_differences"]

CELL = 256
"""The client measures divergence in cells of so many weights; no segment is shorter."""

_CELL_BITS = 8
_MOST_BITS = 40
_MOST_K = 40
_PER_SEGMENT = 32
"""Blocks in a segment on average: with fewer the profile costs more, with more it follows the divergence less.

On the embedded task divergence differs by half between layers and hardly within them, but by six from round to
round: with 32 the profile takes 2% of the payload, with 8 it would take 5% and gain nothing.
"""
_SLACK = 0.125
"""By this share of a block's divergence a segment may overfill its blocks before it gets another one."""

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks; those that are not ``coded`` have no index, and are drawn as candidate 0."""

    starts: _Ints
    """Where each block starts, and the end of the last one."""
    coded: NDArray[np.bool_]


def fixed(size: int, block: int) -> Blocks:
    """Blocks of ``block`` weights; the last one is what is left."""
    starts = np.append(np.arange(0, size, block, dtype=np.int64), size)
    return Blocks(starts, np.ones(starts.size - 1, np.bool_))


@dataclass(frozen=True)
class Profile:
    """The number of blocks of each segment of ``2**shift`` weights; a segment without any is not coded."""

    shift: int
    counts: _Ints

    @classmethod
    def of(cls, bits: NDArray[np.float64], size: int, block_bits: float, index_bits: int) -> Profile:
        """Blocks of about ``block_bits`` each, from the bits of divergence of each `CELL`."""
        blocks = max(float(bits.sum()) / block_bits, 1.0)
        longest = max(_CELL_BITS, (size - 1).bit_length())
        shift = min(max(int(np.log2(max(size, 1) * _PER_SEGMENT / blocks)), _CELL_BITS), longest)
        step = 1 << shift - _CELL_BITS
        held = np.add.reduceat(bits, np.arange(0, bits.size, step)) if bits.size else bits
        counts = np.ceil(held / block_bits - _SLACK).astype(np.int64)
        return cls(shift, np.clip(counts, 0, _most(_lengths(size, shift), index_bits)))

    @property
    def total(self) -> int:
        """How many blocks have an index."""
        return int(self.counts.sum())

    def blocks(self, size: int) -> Blocks:
        """The segments, cut into parts whose lengths differ by one at most, the longer ones first."""
        lengths = _lengths(size, self.shift)
        parts = np.maximum(self.counts, 1)
        first = np.cumsum(parts) - parts
        which = np.repeat(np.arange(parts.size), parts)
        number = np.arange(which.size) - first[which]
        each, rest = np.divmod(lengths, parts)
        starts = (which << self.shift) + number * each[which] + np.minimum(number, rest[which])
        return Blocks(np.append(starts, size), np.repeat(self.counts > 0, parts))

    def to_bytes(self) -> bytes:
        """``shift``, the Rice parameter, and the Rice-coded differences of neighbouring counts, signs last."""
        return bytes([self.shift]) + differences_to_bytes(self.counts)

    @classmethod
    def read(cls, reader: Reader, size: int, index_bits: int) -> Profile:
        """The inverse of `to_bytes` for untrusted bytes, of which it takes those that belong to it."""
        shift = reader.uint(1)
        if not _CELL_BITS <= shift <= _MOST_BITS:
            raise MalformedError(
                f"{reader.what}: segments of 2**{shift} weights; expected 2**{_CELL_BITS} to 2**{_MOST_BITS}"
            )
        most = _most(_lengths(size, shift), index_bits)
        # No sequence of counts in range has larger differences.
        bound = int(2 * most.size * (most.max(initial=0) + 1)) + 1
        counts = read_differences(reader, most.size, bound, "counts of {} segments")
        if (counts < 0).any() or (counts > most).any():
            raise MalformedError(f"{reader.what}: a segment with less than none or too many blocks")
        return cls(shift, counts)


def differences_to_bytes(values: _Ints) -> bytes:
    """The Rice parameter and the code of what each number, none of them negative, is more than the one before."""
    change = np.diff(values, prepend=0)
    folded = np.where(change < 0, -2 * change - 1, 2 * change)
    costs = [int((folded >> k).sum()) + (k + 1) * folded.size for k in range(_MOST_K)]
    k = int(np.argmin(costs))
    words = np.zeros(costs[k] // 64 + 2, np.uint64)
    gaps.rice_encode(np.cumsum(folded + 1) - 1, k, words)
    return bytes([k]) + words.astype("<u8", copy=False).tobytes()[: -(-costs[k] // 8)]


def read_differences(reader: Reader, count: int, bound: int, what: str) -> _Ints:
    """The inverse of `differences_to_bytes` for untrusted bytes, of which it takes those that belong to it.

    The folded differences of honest numbers and their count add up to less than ``bound``.
    """
    k = reader.uint(1)
    if k > _MOST_K:
        raise MalformedError(f"{reader.what}: parameter {k}; expected at most {_MOST_K}")
    left = reader.data[reader.at :]
    # Before anything is allocated: a number has at least one bit and its k lower ones.
    if count * (k + 1) > 8 * len(left):
        raise TruncatedError(f"{reader.what}: {len(left)} bytes for the {what.format(count)}")
    keys = np.empty(count, np.int64)
    state, bits = gaps.rice_decode(to_words(left), 8 * len(left), k, bound, keys)
    check(state, reader.what, bound)
    code = reader.take(-(-bits // 8))
    if bits % 8 and code[-1] >> bits % 8:
        raise MalformedError(f"{reader.what}: bits behind the last count are set")
    folded = np.diff(keys, prepend=-1) - 1
    out: _Ints = np.cumsum((folded >> 1) ^ -(folded & 1))
    return out


def _lengths(size: int, shift: int) -> _Ints:
    """The weights of each segment; only the last may have fewer than the others."""
    starts = np.arange(0, size, 1 << shift, dtype=np.int64)
    return np.minimum(size - starts, 1 << shift)


def _most(lengths: _Ints, index_bits: int) -> _Ints:
    """The most blocks of each segment: an index of more bits than its block has weights says nothing more."""
    return np.maximum(lengths // index_bits, 1)
