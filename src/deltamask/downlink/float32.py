"""The probabilities as they are: 32 bits each, little-endian, behind a byte that says so.

One number alone stands for a vector of equal probabilities, as before the first round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader
from deltamask.errors import MalformedError

__all__ = ["DOWNLINK", "Float32"]

_ALL, _SAME = 0, 1


@dataclass(frozen=True)
class Float32:
    """Lossless float32."""

    name = "float32"

    def encode(self, theta: NDArray[np.float32]) -> bytes:
        """The bytes of ``theta``."""
        if theta.size and (theta == theta[0]).all():
            return bytes([_SAME]) + theta[:1].astype("<f4").tobytes()
        return bytes([_ALL]) + theta.astype("<f4").tobytes()

    def decode(self, data: bytes, size: int) -> NDArray[np.float32]:
        """The ``size`` probabilities in ``data``."""
        reader = Reader(data, "float32 downlink")
        form = reader.uint(1)
        if form not in (_ALL, _SAME):
            raise MalformedError(f"float32 downlink: form {form}; expected {_ALL} or {_SAME}")
        raw = reader.take(4 * (size if form == _ALL else min(size, 1)))
        reader.end()
        theta = np.frombuffer(raw, "<f4").astype(np.float32)
        if theta.size and not (float(theta.min()) >= 0 and float(theta.max()) <= 1):
            raise MalformedError(
                f"float32 downlink: probabilities from {theta.min()} to {theta.max()}; expected 0 to 1"
            )
        return theta if form == _ALL else np.full(size, theta[0], np.float32)


DOWNLINK = Float32()
