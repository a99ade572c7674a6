"""Block fuse filters: made for asking about every position, which a receiver of a mask does.

As in a 4-wise binary fuse filter the slots of a key lie in four consecutive segments. But 64 neighbouring positions
form a block that shares where its four windows of 64 slots start, so a receiver loads four times 64 bytes in a row
instead of 256 single ones, an order of magnitude faster. Two keys of one block never meet in a slot.

Blocks come to their first segment in order, split at ranks of the keys: every segment gets the same number of keys
however the keys cluster, and construction and query walk through memory instead of jumping. The splits cost two
bytes a segment and save more than that, because random loads would differ from segment to segment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Indices, Reader, varint
from deltamask.codecs.filter import FilterCodec, check_slots, growth, read_attempt, read_log_length, seed
from deltamask.errors import MalformedError
from deltamask.kernels import filters
from deltamask.kernels.filters import Block4, Fingerprints, Keys
from deltamask.kernels.scan import scan_blocks

__all__ = ["CODECS", "BlockFuse", "BlockShape"]

MAX_LOG_LENGTH = 16
"""A hash of 64 bits gives each of the four windows that many."""

_BLOCK = 64
_SHIFT = np.uint64(6)


@dataclass(frozen=True, eq=False)
class BlockShape:
    """Segments, and the first block behind each split of the blocks among those to start from."""

    attempt: int
    log_length: int
    edges: NDArray[np.uint64] = field(repr=False)

    @property
    def slots(self) -> int:
        """How many fingerprints there are: the last window may start in the last slot of the last segment."""
        return ((len(self.edges) + 4) << self.log_length) + _BLOCK - 1

    def layout(self, first: NDArray[np.uint32]) -> Block4:
        """What the kernels take for keys whose windows start in the segments ``first``."""
        return Block4(seed(self.attempt), np.uint64(1 << self.log_length), first)

    def header(self) -> bytes:
        """Attempt, length, number of splits, distances between splits."""
        steps = np.diff(self.edges, prepend=np.uint64(0)).tolist()
        return bytes([self.attempt, self.log_length]) + varint(len(steps)) + b"".join(map(varint, steps))

    def fill(self, keys: Keys, prints: Fingerprints) -> bool:
        """Puts ``keys`` into empty fingerprints; False if they don't fit."""
        splits = np.searchsorted(keys >> _SHIFT, self.edges)
        runs = np.diff(splits, prepend=0, append=len(keys))
        first = np.repeat(np.arange(len(runs), dtype=np.uint32), runs)
        return filters.peel(keys, self.layout(first), prints)

    def contains(self, keys: Keys, prints: Fingerprints, out: NDArray[np.bool_]) -> None:
        """Whether each key is in the filter."""
        first = np.searchsorted(self.edges, keys >> _SHIFT, side="right").astype(np.uint32)
        filters.contains(keys, self.layout(first), prints, out)

    def scan(self, start: int, stop: int, prints: Fingerprints, out: Indices) -> int:
        """The positions of a range that are in the filter, and how many."""
        return scan_blocks(start, stop, seed(self.attempt), np.uint64(1 << self.log_length), self.edges, prints, out)


@dataclass(frozen=True)
class BlockFuse(FilterCodec):
    """A block fuse filter."""

    name: str
    format_id: int
    bits: int

    def shape(self, keys: Keys, attempt: int) -> BlockShape:
        """Room for about even odds; full blocks overlap in stretches, not slot by slot, and need more of it."""
        count = len(keys)
        log = math.log(count)
        log_length = min(max(2, int(log / math.log(2.91) - 0.5)), MAX_LOG_LENGTH)
        blocks = keys >> _SHIFT
        crowding = count / (1 + np.count_nonzero(blocks[1:] != blocks[:-1]))
        room = (max(1.05, 0.83 + 3 / max(2.3, log)) + 0.0012 * (crowding - 1)) * growth(attempt)
        windows = max(1, math.ceil(count * room / (1 << log_length)) - 3)
        ranks = -(-np.arange(1, windows, dtype=np.int64) * count // windows)
        return BlockShape(attempt, log_length, blocks[ranks - 1] + np.uint64(1))

    def read_shape(self, reader: Reader, count: int, size: int) -> BlockShape:
        """Splits in order and within the range; no room is made for more of them than there are bytes left."""
        attempt, log_length = read_attempt(reader), read_log_length(reader, MAX_LOG_LENGTH)
        splits = reader.varint(2**32)
        slots = ((splits + 4) << log_length) + _BLOCK - 1
        check_slots(self.name, slots, count)
        blocks = -(-size // _BLOCK)
        edges = np.empty(min(splits, len(reader.data) - reader.at), np.uint64)
        edge = 0
        for i in range(splits):
            edge += reader.varint(blocks)
            if edge > blocks:
                raise MalformedError(f"{self.name}: split {i} is at block {edge} of {blocks}")
            edges[i] = edge
        return BlockShape(attempt, log_length, edges)


CODECS = (BlockFuse("blockfuse8", 10, 8), BlockFuse("blockfuse16", 11, 16))
