"""Bloom filters (Bloom, 1970): what everybody knows, and the yardstick for what the others save.

At one wrong position in 256 a Bloom filter needs 11.5 bits a key, a binary fuse filter about 9. It needs no
construction that can fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Indices, Reader, varint
from deltamask.codecs.filter import FilterCodec
from deltamask.errors import ConfigError, MalformedError
from deltamask.kernels.bloom import insert, probe, scan_bits
from deltamask.kernels.filters import Fingerprints, Keys

__all__ = ["CODECS", "Bloom", "BloomShape"]

MIN_BITS_PER_KEY = 8
"""With fewer a receiver could not tell a filter from bytes that claim every position."""

MAX_BITS_PER_KEY = 64


@dataclass(frozen=True)
class BloomShape:
    """``slots`` bytes, in which each key sets ``hashes`` bits."""

    hashes: int
    slots: int

    def header(self) -> bytes:
        """Hashes and bytes."""
        return bytes([self.hashes]) + varint(self.slots)

    def fill(self, keys: Keys, prints: Fingerprints) -> bool:
        """Sets the bits of all ``keys``; they always fit."""
        insert(keys, self.hashes, prints)
        return True

    def contains(self, keys: Keys, prints: Fingerprints, out: NDArray[np.bool_]) -> None:
        """Whether each key is in the filter."""
        probe(keys, self.hashes, prints, out)

    def scan(self, start: int, stop: int, prints: Fingerprints, out: Indices) -> int:
        """The positions of a range that are in the filter, and how many."""
        return scan_bits(start, stop, self.hashes, prints, out)


@dataclass(frozen=True)
class Bloom(FilterCodec):
    """A Bloom filter of ``bits_per_key`` bits for each key; 12 find one wrong position in about 310."""

    name: str
    format_id: int
    bits_per_key: float = 12.0

    bits = 8

    def __post_init__(self) -> None:
        if not MIN_BITS_PER_KEY <= self.bits_per_key <= MAX_BITS_PER_KEY:
            raise ConfigError(
                f"bits_per_key is {self.bits_per_key}; expected {MIN_BITS_PER_KEY} to {MAX_BITS_PER_KEY}"
            )

    def tuned(self, value: str) -> Bloom:
        """With so many bits for each key."""
        try:
            bits = float(value)
        except ValueError:
            raise ConfigError(f"bits_per_key is {value!r}; expected a number, for instance bloom:10") from None
        return replace(self, bits_per_key=bits)

    def shape(self, keys: Keys, attempt: int) -> BloomShape:
        """The number of hashes for which half of the bits come to be set, which is best."""
        slots = math.ceil(len(keys) * self.bits_per_key / 8)
        if slots >= 2**29:
            raise ConfigError(f"{self.name}: {len(keys)} keys need {slots} bytes, at most {2**29 - 1} are written")
        return BloomShape(max(1, round(self.bits_per_key * math.log(2))), slots)

    def read_shape(self, reader: Reader, count: int, size: int) -> BloomShape:
        """Within what an encoder of any ``bits_per_key`` writes."""
        shape = BloomShape(reader.uint(1), reader.varint(2**29))
        if not (1 <= shape.hashes <= MAX_BITS_PER_KEY and count <= shape.slots <= count * MAX_BITS_PER_KEY // 8):
            raise MalformedError(f"{self.name}: {shape.hashes} hashes and {shape.slots} bytes for {count} positions")
        return shape


CODECS = (Bloom("bloom", 12),)
