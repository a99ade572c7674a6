"""What all probabilistic filters share: building with retries, asking about keys, reading untrusted bytes.

A filter never misses a position that it was built from and finds some that it was not: one in 256 of the others
with 8-bit fingerprints, one in 65536 with 16 bits. It costs about one fingerprint per key however large the range
is, while an exact code costs log2(size / keys) + 1.44 bits: a filter is the smaller one only for sparse sets.

A payload is: the common header, a few bytes that describe the layout, the fingerprints up to the end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deltamask.codecs.base import Codec, Indices, Reader, index_dtype
from deltamask.errors import ConfigError, ConstructionError, MalformedError
from deltamask.kernels.filters import Fingerprints, Keys

__all__ = [
    "ATTEMPTS",
    "Filter",
    "FilterCodec",
    "Shape",
    "check_slots",
    "growth",
    "read_attempt",
    "read_log_length",
    "seed",
]

ATTEMPTS = 100
"""How often a construction is tried, each time with another seed and a little more room."""

MAX_KEYS = 2**31
"""A filter has fewer than 2**32 slots."""

_STEP = 2**20
_TYPES: dict[int, type[np.uint8 | np.uint16 | np.uint32]] = {8: np.uint8, 16: np.uint16, 32: np.uint32}


class Shape(Protocol):
    """Everything of a filter but its fingerprints; the calls take these as ``prints``, of length ``slots``."""

    @property
    def slots(self) -> int:
        """How many fingerprints there are."""

    def header(self) -> bytes:
        """What a payload says about the shape."""

    def fill(self, keys: Keys, prints: Fingerprints) -> bool:
        """Puts sorted unique ``keys`` into empty fingerprints; False if they don't fit."""

    def contains(self, keys: Keys, prints: Fingerprints, out: NDArray[np.bool_]) -> None:
        """Whether each key is in the filter."""

    def scan(self, start: int, stop: int, prints: Fingerprints, out: Indices) -> int:
        """Writes the positions of ``range(start, stop)`` that are in the filter to ``out``; how many there are.

        ``start`` is a multiple of 64 and ``out`` has two places more than the range has positions.
        """


@dataclass(frozen=True, eq=False)
class Filter:
    """A set of 64-bit keys that answers "certainly not" or "probably"."""

    shape: Shape | None
    """None: no key at all."""
    prints: Fingerprints

    def contains(self, keys: ArrayLike) -> NDArray[np.bool_]:
        """For each key, in any order: True for all that the filter was built from and for a few others."""
        given = _as_keys(keys)
        out = np.zeros(len(given), np.bool_)
        if self.shape is not None:
            self.shape.contains(given, self.prints, out)
        return out

    def positions(self, size: int, most: int | None = None) -> Indices:
        """The sorted positions below ``size`` that the filter contains, or `MalformedError` if more than ``most``.

        Holds little more than these in memory.
        """
        dtype = index_dtype(size)
        if self.shape is None or size == 0:
            return np.empty(0, dtype)
        room = np.empty(min(size, _STEP) + 2, dtype)
        found = []
        total = 0
        for start in range(0, size, _STEP):
            count = self.shape.scan(start, min(start + _STEP, size), self.prints, room)
            total += count
            if most is not None and total > most:
                raise MalformedError(f"filter: more than {most} of {size} positions are in it")
            found.append(room[:count].copy())
        return np.concatenate(found)

    def to_bytes(self) -> bytes:
        """The shape and the fingerprints."""
        return b"" if self.shape is None else self.shape.header() + self.prints.tobytes()


class FilterCodec(Codec):
    """A codec that sends a set as a filter; the receiver asks it about every position."""

    exact: ClassVar[bool] = False
    bits: int
    """Of a fingerprint."""

    @abstractmethod
    def shape(self, keys: Keys, attempt: int) -> Shape:
        """The shape in which to try ``keys`` (at least one) for the ``attempt``-th time."""

    @abstractmethod
    def read_shape(self, reader: Reader, count: int, size: int) -> Shape:
        """The inverse of `Shape.header` for untrusted bytes: no kernel may leave its arrays whatever they say."""

    def build(self, keys: ArrayLike) -> Filter:
        """A filter of sorted unique keys of up to 64 bits; the same keys always give the same filter."""
        given = _as_keys(keys)
        if len(given) > 1 and not bool((given[1:] > given[:-1]).all()):
            raise ConfigError(f"{self.name}: keys must be sorted and unique; np.unique(keys) makes them so")
        if len(given) > MAX_KEYS:
            raise ConfigError(f"{self.name}: {len(given)} keys, at most {MAX_KEYS} fit")
        if not len(given):
            return Filter(None, np.empty(0, _TYPES[self.bits]))
        for attempt in range(ATTEMPTS):
            shape = self.shape(given, attempt)
            prints = np.zeros(shape.slots, _TYPES[self.bits])
            if shape.fill(given, prints):
                return Filter(shape, prints)
        raise ConstructionError(
            f"{self.name}: {len(given)} keys did not fit in {ATTEMPTS} attempts; send them with an exact codec"
        )

    def read(self, reader: Reader, count: int, size: int) -> Filter:
        """The filter in the rest of ``reader``."""
        dtype = np.dtype(_TYPES[self.bits])
        if count == 0:
            reader.end()
            return Filter(None, np.empty(0, dtype))
        shape = self.read_shape(reader, count, size)
        raw = reader.take(shape.slots * dtype.itemsize)
        reader.end()
        return Filter(shape, np.frombuffer(raw, dtype).copy())

    def pack(self, indices: Indices, size: int, context: NDArray[np.uint8] | None) -> bytes:
        """The filter's bytes."""
        return self.build(indices).to_bytes()

    def unpack(self, reader: Reader, count: int, size: int, context: NDArray[np.uint8] | None) -> Indices:
        """Every position that the filter contains.

        A filter whose fingerprints were forged could contain all positions, at four bytes each; none that was built
        finds one in 32 by mistake.
        """
        found = self.read(reader, count, size).positions(size, most=count + size // 32 + 1024)
        if len(found) < count:
            raise MalformedError(f"{self.name}: {len(found)} positions found, but {count} were encoded")
        return found

    def head_length(self, data: bytes) -> int:
        """The offset of the fingerprints."""
        reader = Reader(bytes(data), self.name)
        count, size = self.header(reader)
        if count:
            self.read_shape(reader, count, size)
        return reader.at


def seed(attempt: int) -> np.uint64:
    """The seed of an attempt, which is what a payload says of it."""
    return np.uint64((attempt + 1) * 0x9E3779B97F4A7C15 % 2**64)


def growth(attempt: int) -> float:
    """How much more room an attempt takes than the first one: 1% more at first, six times as much at last."""
    return 1 + attempt / 100 + attempt**2 / 2500


def read_attempt(reader: Reader) -> int:
    """The attempt that succeeded."""
    attempt = reader.uint(1)
    if attempt >= ATTEMPTS:
        raise MalformedError(f"{reader.what}: built in attempt {attempt}; encoders stop at {ATTEMPTS}")
    return attempt


def read_log_length(reader: Reader, most: int) -> int:
    """The binary logarithm of a segment's length."""
    log_length = reader.uint(1)
    if log_length > most:
        raise MalformedError(f"{reader.what}: segments of 2**{log_length} slots, at most 2**{most} are written")
    return log_length


def check_slots(what: str, slots: int, count: int) -> None:
    """`MalformedError` unless an encoder could spend that many slots on ``count`` keys."""
    if not count <= slots <= 16 * count + 128:
        raise MalformedError(
            f"{what}: {slots} fingerprints for {count} positions; an encoder writes 1 to 16 for each"
        )


def _as_keys(keys: ArrayLike) -> Keys:
    given = np.asarray(keys)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ConfigError(f"keys have shape {given.shape} and type {given.dtype}; expected a list of integers")
    if given.dtype.kind == "i" and given.size and int(given.min()) < 0:
        raise ConfigError(f"keys start at {given.min()}; expected 0 to 2**64 - 1")
    out: Keys = np.ascontiguousarray(given, dtype=np.uint64)
    return out
