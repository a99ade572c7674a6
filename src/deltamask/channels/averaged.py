"""Minimal random coding in blocks that the clients of a round agree on (KLMS, Isik et al. 2023, arXiv 2306.12625).

    asked:      theta_k, theta_g --divergence--> own blocks;   payload = divergence of a block, blocks, indices
    otherwise:  blocks of the broadcast;                       payload = divergence of a block, indices

    server: average of the blocks --broadcast--> all clients, until blocks hold too much or too little on average

`channels/blocks.py` has blocks that each payload tells of anew, which costs more bytes but fits its client and round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from deltamask.channels.base import Limits
from deltamask.channels.blocks import CELL, Blocks, differences_to_bytes, read_differences
from deltamask.channels.mrc import MrcChannel, Sample, checked, divergence
from deltamask.codecs.base import Reader, varint
from deltamask.errors import MalformedError

__all__ = ["Average", "AveragedChannel", "Cuts", "Told"]

_Ints = NDArray[np.int64]

_MOST_BITS = 40
_UNITS = 16
"""Positions are told in units, the largest power of two of which a mean block has at least so many.

What a block holds is off by 2% or so for that, and its position takes about half the bits of that of a weight.
"""
_PARTS = 256
"""The mean divergence of a block is told in parts of a bit, two bytes of them."""


@dataclass(frozen=True)
class Cuts:
    """Where each block starts, and the end of the last one."""

    starts: _Ints

    @classmethod
    def of(cls, bits: NDArray[np.float64], size: int, block_bits: float, index_bits: int) -> Cuts:
        """Blocks of equal divergence, ``block_bits`` if that comes out even, from the bits of each `CELL`."""
        total = float(bits.sum())
        count = int(np.clip(np.rint(total / block_bits), 1, max(size // index_bits, 1)))
        reached = np.concatenate(([0.0], np.cumsum(bits)))
        ends = np.minimum(np.arange(reached.size) * CELL, size)
        return cls.at(np.interp(reached[-1] * np.arange(1, count) / count, reached, ends), size)

    @classmethod
    def at(cls, inner: NDArray[np.float64], size: int) -> Cuts:
        """Cuts close to ascending positions: in units, all different."""
        shift = max((size // (_UNITS * (inner.size + 1))).bit_length() - 1, 0)
        found = np.unique(np.rint(inner / (1 << shift)).astype(np.int64)) << shift
        found = found[(found > 0) & (found < size)]
        ends = np.array([0, size] if size else [0], np.int64)
        return cls(np.concatenate((ends[:1], found, ends[1:])))

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return self.starts.size - 1

    def blocks(self) -> Blocks:
        """All of them, each with an index."""
        return Blocks(self.starts, np.ones(self.count, np.bool_))

    def to_bytes(self) -> bytes:
        """Blocks, log2 of the unit, and the Rice-coded differences of the lengths of all blocks but the last."""
        every = int(np.bitwise_or.reduce(self.starts[1:-1]))
        shift = max((every & -every).bit_length() - 1, 0)
        return varint(self.count) + bytes([shift]) + differences_to_bytes(np.diff(self.starts[:-1]) >> shift)

    @classmethod
    def read(cls, reader: Reader, size: int, index_bits: int) -> Cuts:
        """The inverse of `to_bytes` for untrusted bytes, of which it takes those that belong to it."""
        count, shift = reader.varint(max(size // index_bits, 1)), reader.uint(1)
        if bool(count) != bool(size) or shift > _MOST_BITS:
            raise MalformedError(f"{reader.what}: {count} blocks in units of 2**{shift} for {size} weights")
        inner = max(count - 1, 0)
        # No two neighbours among lengths that add up to less than the size have larger differences.
        lengths = read_differences(reader, inner, 4 * (size >> shift) + count + 1, "lengths of {} blocks")
        reached = np.cumsum(lengths)
        if inner and (int(lengths.min()) < 1 or int(reached[-1]) > (size - 1) >> shift):
            raise MalformedError(f"{reader.what}: a block without weights, or beyond the last of {size}")
        starts = reached << shift
        ends = np.array([0, size] if size else [0], np.int64)
        return cls(np.concatenate((ends[:1], starts, ends[1:])))


class Average:
    """The mean of the first, of the second, ... cut, over the clients that have one, added up as they arrive.

    The paper says no more of clients with different numbers of blocks, and its public code does this. What is out of
    order then is left out.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.clients = 0
        self.sums = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)

    def add(self, cuts: Cuts) -> None:
        """One client's."""
        inner = cuts.starts[1:-1]
        missing = (0, max(inner.size - self.sums.size, 0))
        self.sums, self.counts = np.pad(self.sums, missing), np.pad(self.counts, missing)
        self.sums[: inner.size] += inner
        self.counts[: inner.size] += 1
        self.clients += 1

    def mean(self) -> Cuts:
        """The blocks for all."""
        means = self.sums / np.maximum(self.counts, 1)
        return Cuts.at(means[means >= np.maximum.accumulate(means)], self.size)


@dataclass(frozen=True)
class Told(Sample):
    """A mask, and what its client says of blocks."""

    held: float
    """Bits of divergence in a block, on average."""
    cuts: Cuts
    """The blocks of this payload."""


@dataclass(frozen=True)
class AveragedChannel(MrcChannel):
    """The number of a candidate for each block of ``cuts``, or of the client's own blocks."""

    cuts: Cuts | None = field(default=None, compare=False)
    """The blocks that the server sent; none: the client chooses, and tells."""

    def encode(
        self,
        theta_k: NDArray[np.float32],
        theta_g: NDArray[np.float32],
        seed: int,
        client: int,
        round: int,
        rounds: int,
    ) -> bytes:
        """The mean divergence of a block, the blocks if they are the client's own, and the indices."""
        theta_k, theta_g = checked(theta_k, theta_g)
        bits = divergence(theta_k, theta_g)
        own = self.cuts or Cuts.of(bits, theta_g.size, self.block_bits, self._bits)
        held = min(int(float(bits.sum()) / max(own.count, 1) * _PARTS + 0.5), 2**16 - 1)
        told = b"" if self.cuts else own.to_bytes()
        return held.to_bytes(2, "little") + told + self._choose(theta_k, theta_g, own.blocks(), seed, client, round)

    def decode(self, data: bytes, limits: Limits, seed: int, client: int, round: int) -> Told:
        """The server's side, for untrusted bytes; ``limits`` are `sampling.thresholds` of theta_g."""
        reader = Reader(bytes(data), "indices")
        held = reader.uint(2) / _PARTS
        cuts = self.cuts or Cuts.read(reader, limits.size, self._bits)
        packed = reader.take(-(-cuts.count * self._bits // 8))
        reader.end()
        mask = self._draw(packed, cuts.blocks(), limits, seed, client, round)
        return Told(0, mask, cuts.count, held, cuts)

    def longest(self, size: int) -> int:
        """All blocks as short as they may be, and where they are."""
        return size // 2 + 4096
