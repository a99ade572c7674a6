"""Xor filters (Graf and Lemire, 2020, https://arxiv.org/abs/1912.08258): one slot in each of three blocks.

They need 23% more slots than keys at any number of keys; a binary fuse filter is smaller from a few hundred keys on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Indices, Reader, varint
from deltamask.codecs.filter import FilterCodec, check_slots, growth, read_attempt, seed
from deltamask.errors import MalformedError
from deltamask.kernels import filters
from deltamask.kernels.filters import Fingerprints, Keys, Xor3
from deltamask.kernels.scan import scan

__all__ = ["CODECS", "Xor", "XorShape"]


@dataclass(frozen=True)
class XorShape:
    """Three blocks of ``length`` slots."""

    attempt: int
    length: int

    @property
    def slots(self) -> int:
        """How many fingerprints there are."""
        return 3 * self.length

    @property
    def layout(self) -> Xor3:
        """What the kernels take."""
        return Xor3(seed(self.attempt), np.uint64(self.length))

    def header(self) -> bytes:
        """Attempt and length."""
        return bytes([self.attempt]) + varint(self.length)

    def fill(self, keys: Keys, prints: Fingerprints) -> bool:
        """Puts ``keys`` into empty fingerprints; False if they don't fit."""
        return filters.peel(filters.gather(keys, self.layout, self.slots), self.layout, prints)

    def contains(self, keys: Keys, prints: Fingerprints, out: NDArray[np.bool_]) -> None:
        """Whether each key is in the filter."""
        filters.contains(keys, self.layout, prints, out)

    def scan(self, start: int, stop: int, prints: Fingerprints, out: Indices) -> int:
        """The positions of a range that are in the filter, and how many."""
        return scan(start, stop, self.layout, prints, out)


@dataclass(frozen=True)
class Xor(FilterCodec):
    """A xor filter."""

    name: str
    format_id: int
    bits: int

    def shape(self, keys: Keys, attempt: int) -> XorShape:
        """A little above the 22.2% that random hypergraphs of any size need."""
        return XorShape(attempt, math.ceil((1.23 * len(keys) + 2) * growth(attempt) / 3))

    def read_shape(self, reader: Reader, count: int, size: int) -> XorShape:
        """Any length but zero is sound; more than an encoder writes is refused."""
        shape = XorShape(read_attempt(reader), reader.varint(2**32))
        if shape.length == 0:
            raise MalformedError(f"{self.name}: blocks without slots")
        check_slots(self.name, shape.slots, count)
        return shape


CODECS = (Xor("xor8", 7, 8), Xor("xor16", 8, 16), Xor("xor32", 9, 32))
