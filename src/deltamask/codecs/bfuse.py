"""Binary fuse filters (Graf and Lemire, 2022, https://arxiv.org/abs/2201.01174): the smallest filters here.

The slots of a key lie in neighbouring segments, so construction starts at both ends and works its way in, which
lets it succeed with less room than if they lay anywhere. Four slots a key need 5-10% more slots than keys, three
need 12-20% but one load less per query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Indices, Reader, varint
from deltamask.codecs.filter import FilterCodec, check_slots, growth, read_attempt, read_log_length, seed
from deltamask.errors import MalformedError
from deltamask.kernels import filters
from deltamask.kernels.filters import Fingerprints, Fuse3, Fuse4, Keys
from deltamask.kernels.scan import scan

__all__ = ["CODECS", "BinaryFuse", "FuseShape"]

MAX_LOG_LENGTH = 16
"""A hash of 64 bits gives each slot that many of its own."""


@dataclass(frozen=True)
class FuseShape:
    """``windows`` segments to start from, and behind them those that the last window reaches into."""

    arity: int
    attempt: int
    log_length: int
    windows: int

    @property
    def slots(self) -> int:
        """How many fingerprints there are."""
        return (self.windows + self.arity - 1) << self.log_length

    @property
    def layout(self) -> Fuse3 | Fuse4:
        """What the kernels take."""
        kind = Fuse4 if self.arity == 4 else Fuse3
        return kind(seed(self.attempt), np.uint64(self.windows << self.log_length), np.uint64(1 << self.log_length))

    def header(self) -> bytes:
        """Attempt, length, windows."""
        return bytes([self.attempt, self.log_length]) + varint(self.windows)

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
class BinaryFuse(FilterCodec):
    """A binary fuse filter with ``arity`` slots a key."""

    name: str
    format_id: int
    bits: int
    arity: int

    def shape(self, keys: Keys, attempt: int) -> FuseShape:
        """Segments as long as the paper has them, windows as few as succeed about half of the time."""
        log = math.log(len(keys))
        if self.arity == 4:
            log_length = int(log / math.log(2.91) - 0.5)
            room = max(1.05, 0.845 + 3 / max(2.3, log))
        else:
            log_length = int(log / math.log(3.33) + 1.1)
            room = max(1.12, 0.905 + 3.04 / max(2.3, log))
        log_length = min(max(0, log_length), MAX_LOG_LENGTH)
        segments = math.ceil(len(keys) * room * growth(attempt) / (1 << log_length))
        return FuseShape(self.arity, attempt, log_length, max(1, segments - self.arity + 1))

    def read_shape(self, reader: Reader, count: int, size: int) -> FuseShape:
        """Any number of windows is sound; more than an encoder writes are refused."""
        shape = FuseShape(
            self.arity, read_attempt(reader), read_log_length(reader, MAX_LOG_LENGTH), reader.varint(2**32)
        )
        if shape.windows == 0:
            raise MalformedError(f"{self.name}: no segment to start from")
        check_slots(self.name, shape.slots, count)
        return shape


CODECS = (
    BinaryFuse("bfuse8", 1, 8, 4),
    BinaryFuse("bfuse16", 2, 16, 4),
    BinaryFuse("bfuse32", 3, 32, 4),
    BinaryFuse("bfuse8x3", 4, 8, 3),
    BinaryFuse("bfuse16x3", 5, 16, 3),
    BinaryFuse("bfuse32x3", 6, 32, 3),
)
