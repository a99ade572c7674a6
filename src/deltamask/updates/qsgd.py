"""QSGD (Alistarh et al. 2017, arXiv 1610.02132): stochastic rounding to s levels of each bucket's norm.

A number x of a bucket with norm n becomes sign(x) l n / s, where l is s |x| / n rounded up or down at random so that
nothing is lost on average. What is sent of the levels is, layer by layer, the set of numbers that reach it among
those that reach the one below, each through an exact set codec: the entropy, where Elias' codes of the paper are
an upper bound for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask import codecs
from deltamask.codecs.base import Reader, varint
from deltamask.errors import ConfigError, MalformedError
from deltamask.sampling import uniforms
from deltamask.updates.base import Update, Vector, finite

__all__ = ["Qsgd"]

_CODEC = "rans"
_MOST_LEVELS = 1 << 15


@dataclass(frozen=True)
class Qsgd(Update):
    """Buckets of ``bucket`` numbers, ``levels`` levels beside zero."""

    bucket: int = 512
    levels: int = 1

    def __post_init__(self) -> None:
        if self.bucket < 1 or not 1 <= self.levels <= _MOST_LEVELS:
            raise ConfigError(
                f"update.bucket is {self.bucket}, update.levels {self.levels}; expected at least 1, and 1 to "
                f"{_MOST_LEVELS}"
            )

    def bound(self) -> float:
        """What E |estimate - x|^2 / |x|^2 never exceeds (lemma 3.1)."""
        return min(self.bucket / self.levels**2, math.sqrt(self.bucket) / self.levels)

    def encode(self, x: Vector, shared: int, private: int) -> bytes:
        """Norms, the layers, and the signs of all numbers that are not zero."""
        rows = np.zeros((-(-x.size // self.bucket), self.bucket), np.float64)
        rows.reshape(-1)[: x.size] = x
        # Rounded first, as the receiver has it: rounding to it is without bias then.
        norms = np.sqrt((rows**2).sum(1)).astype("<f4")
        safe = np.where(norms > 0, norms, 1).astype(np.float64)
        share = np.minimum(np.abs(rows) / safe[:, None], 1).reshape(-1)[: x.size] * self.levels
        level = np.floor(share + uniforms(private, x.size) / 2.0**31).astype(np.int64)
        reached, parts = np.arange(x.size), []
        for height in range(1, self.levels + 1):
            among = np.flatnonzero(level[reached] >= height)
            layer = codecs.get(_CODEC).encode(among, reached.size)
            parts.append(varint(len(layer)) + layer)
            reached = reached[among]
            if not reached.size:
                break
        signs = np.packbits(x[level > 0] < 0, bitorder="little")
        return b"".join((norms.tobytes(), *parts, signs.tobytes()))

    def decode(self, data: bytes, size: int, shared: int) -> Vector:
        """The estimate, without bias over the sender's key."""
        reader = Reader(data, "qsgd")
        norms = finite(reader, -(-size // self.bucket))
        level = np.zeros(size, np.int64)
        reached: NDArray[np.integer] = np.arange(size)
        for height in range(1, self.levels + 1):
            layer = reader.take(reader.varint(len(data)))
            reached = reached[codecs.get(_CODEC).decode(layer, reached.size)]
            level[reached] = height
            if not reached.size:
                break
        moved = np.flatnonzero(level)
        packed = np.frombuffer(reader.take(-(-moved.size // 8)), np.uint8)
        reader.end()
        bits = np.unpackbits(packed, bitorder="little")
        if bits[moved.size :].any():
            raise MalformedError("qsgd: bits behind the last sign are set")
        out = np.zeros(size, np.float32)
        sign = 1 - 2 * bits[: moved.size].astype(np.float32)
        out[moved] = sign * level[moved] * norms[moved // self.bucket] / np.float32(self.levels)
        return out

    def longest(self, size: int) -> int:
        """Norms, all layers full and all signs."""
        return 4 * (-(-size // self.bucket)) + self.levels * (size // 7 + 64) + size // 8 + 64
