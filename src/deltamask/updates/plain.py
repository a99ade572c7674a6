"""Every number as it is, in float32 or float16."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltamask.codecs.base import Reader
from deltamask.errors import MalformedError
from deltamask.updates.base import Update, Vector

__all__ = ["Plain", "halves"]

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Plain(Update):
    """Four bytes a number; two with ``half``, which rounds to nearest."""

    half: bool = False

    def encode(self, x: Vector, shared: int, private: int) -> bytes:
        """The numbers, little-endian."""
        return halves(x) if self.half else x.astype("<f4").tobytes()

    def decode(self, data: bytes, size: int, shared: int) -> Vector:
        """The inverse of `encode`."""
        reader = Reader(data, "dense")
        width = 2 if self.half else 4
        out = np.frombuffer(reader.take(width * size), f"<f{width}").astype(np.float32)
        reader.end()
        if not np.isfinite(out).all():
            raise MalformedError("dense: numbers that are not finite")
        return out

    def longest(self, size: int) -> int:
        """Exactly this many."""
        return (2 if self.half else 4) * size


def halves(x: Vector) -> bytes:
    """float16, little-endian; what is beyond its range becomes its largest number."""
    return np.clip(x, -_LARGEST, _LARGEST).astype("<f2").tobytes()
