"""The probabilities as they are: 32 bits each, little-endian, behind a byte that says so.

One number alone stands for a vector of equal probabilities, as before the first round.
"""

from __future__ import annotations

import numpy as np

from deltamask.codecs.base import Reader
from deltamask.downlink.base import Code, Theta
from deltamask.errors import MalformedError

__all__ = ["DOWNLINK", "Float32", "from_reader", "to_bytes"]

_ALL, _SAME = 0, 1


def to_bytes(theta: Theta) -> bytes:
    """The bytes of ``theta``."""
    if theta.size and (theta == theta[0]).all():
        return bytes([_SAME]) + theta[:1].astype("<f4").tobytes()
    return bytes([_ALL]) + theta.astype("<f4").tobytes()


def from_reader(reader: Reader, size: int) -> Theta:
    """The ``size`` probabilities that come next, from untrusted bytes."""
    form = reader.uint(1)
    if form not in (_ALL, _SAME):
        raise MalformedError(f"{reader.what}: form {form}; expected {_ALL} or {_SAME}")
    raw = reader.take(4 * (size if form == _ALL else min(size, 1)))
    theta = np.frombuffer(raw, "<f4").astype(np.float32)
    if theta.size and not (float(theta.min()) >= 0 and float(theta.max()) <= 1):
        raise MalformedError(f"{reader.what}: probabilities from {theta.min()} to {theta.max()}; expected 0 to 1")
    return theta if form == _ALL else np.full(size, theta[0], np.float32)


class Float32(Code):
    """Lossless float32."""

    def encode(self, theta: Theta) -> bytes:
        """The bytes of ``theta``."""
        return to_bytes(theta)

    def decode(self, data: bytes, size: int) -> Theta:
        """The ``size`` probabilities in ``data``."""
        reader = Reader(data, "float32 downlink")
        theta = from_reader(reader, size)
        reader.end()
        return theta


DOWNLINK = Float32
