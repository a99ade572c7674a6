"""The largest numbers of a vector: their positions through an exact set codec, their values in float16."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deltamask import codecs
from deltamask.codecs.base import Reader, varint
from deltamask.errors import ConfigError, MalformedError
from deltamask.updates.base import Update, Vector
from deltamask.updates.plain import halves

__all__ = ["TopK"]

_CODEC = "rans"


@dataclass(frozen=True)
class TopK(Update):
    """``density`` of all numbers, those of the largest magnitude; the others become zero."""

    density: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"the density is {self.density}; expected a share above 0, 1 at most")

    def encode(self, x: Vector, shared: int, private: int) -> bytes:
        """Positions, then values; of equal magnitudes the first ones."""
        kept = np.sort(np.argsort(-np.abs(x), kind="stable")[: math.ceil(self.density * x.size)])
        positions = codecs.get(_CODEC).encode(kept, x.size)
        return varint(len(positions)) + positions + halves(x[kept])

    def decode(self, data: bytes, size: int, shared: int) -> Vector:
        """The vector with zeros where nothing was sent."""
        reader = Reader(data, "topk")
        kept = codecs.get(_CODEC).decode(reader.take(reader.varint(len(data))), size)
        values = np.frombuffer(reader.take(2 * kept.size), "<f2").astype(np.float32)
        reader.end()
        if not np.isfinite(values).all():
            raise MalformedError("topk: numbers that are not finite")
        out = np.zeros(size, np.float32)
        out[kept] = values
        return out

    def longest(self, size: int) -> int:
        """All positions and all values."""
        return size // 6 + 2 * size + 4096
