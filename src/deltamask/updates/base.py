"""The contract of an update code: a float32 vector <-> bytes, lossy and without bias."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader
from deltamask.errors import MalformedError

__all__ = ["Update", "finite"]

Vector = NDArray[np.float32]


class Update(ABC):
    """A frozen dataclass whose fields are its configuration; both sides have the same."""

    @abstractmethod
    def encode(self, x: Vector, shared: int, private: int) -> bytes:
        """The payload of ``x``. Both sides know the key ``shared``, the sender alone knows ``private``."""

    @abstractmethod
    def decode(self, data: bytes, size: int, shared: int) -> Vector:
        """The estimate of a vector of ``size`` numbers, from untrusted bytes; all errors are `WireError`."""

    @abstractmethod
    def longest(self, size: int) -> int:
        """More bytes than any honest payload for ``size`` numbers."""


def finite(reader: Reader, count: int) -> NDArray[np.float32]:
    """The next ``count`` float32 numbers, all of them finite and not negative: norms and scales."""
    out = np.frombuffer(reader.take(4 * count), "<f4").astype(np.float32)
    if not (np.isfinite(out).all() and (out >= 0).all()):
        raise MalformedError(f"{reader.what}: a scale that is negative or not finite")
    return out
