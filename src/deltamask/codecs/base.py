"""What every set codec shares: the contract, the common header and the checks on what comes in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deltamask.errors import ConfigError, LimitError, MalformedError, MismatchError, TruncatedError

__all__ = ["DEFAULT_LIMIT", "MAX_SIZE", "Codec", "Indices", "Reader", "varint"]

Indices = NDArray[np.unsignedinteger[Any]]

MAX_SIZE = 2**40
"""No payload may speak of more positions than this."""

DEFAULT_LIMIT = 2**28
"""What ``decode`` accepts when the caller does not say which size it expects."""


def varint(value: int) -> bytes:
    """``value`` in groups of seven bits, least significant first (LEB128)."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass
class Reader:
    """A cursor over untrusted bytes: nothing is read, or allocated, beyond what is really there."""

    data: bytes
    what: str = "payload"
    at: int = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, or `TruncatedError`."""
        left = len(self.data) - self.at
        if count > left:
            raise TruncatedError(f"{self.what}: {count} bytes expected at offset {self.at}, {left} left")
        self.at += count
        return self.data[self.at - count : self.at]

    def uint(self, width: int) -> int:
        """A little-endian unsigned integer of ``width`` bytes."""
        return int.from_bytes(self.take(width), "little")

    def varint(self, most: int = MAX_SIZE) -> int:
        """A `varint` of at most ``most``, in its only shortest form."""
        value = shift = 0
        while True:
            byte = self.uint(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise MalformedError(f"{self.what}: a number of more than 63 bits at offset {self.at}")
        if byte == 0 and shift > 7:
            raise MalformedError(f"{self.what}: a number with needless zero groups at offset {self.at}")
        if value > most:
            raise LimitError(f"{self.what}: {value} at offset {self.at}, at most {most} allowed")
        return value

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self.data) - self.at)

    def end(self) -> None:
        """`MalformedError` unless everything has been read."""
        if self.at != len(self.data):
            raise MalformedError(f"{self.what}: {len(self.data) - self.at} bytes too many after offset {self.at}")


class Codec(ABC):
    """A set of positions in ``range(size)`` <-> bytes.

    A codec is a frozen dataclass whose fields are its configuration. A payload is: format id (one byte), size
    and count (varints), then what `pack` writes. The number of entries stands in the header, so a receiver
    knows how many of the positions that a lossy codec gives back are wrong.
    """

    name: str
    format_id: int
    exact: ClassVar[bool] = True
    """Whether ``decode`` gives exactly the encoded set; a filter gives a superset."""

    uses_context: ClassVar[bool] = False
    """Whether ``context`` (what both sides already know of each position) makes the payload smaller."""

    @abstractmethod
    def pack(self, indices: Indices, size: int, context: NDArray[np.uint8] | None) -> bytes:
        """The bytes behind the header of a checked set."""

    @abstractmethod
    def unpack(self, reader: Reader, count: int, size: int, context: NDArray[np.uint8] | None) -> Indices:
        """The inverse of `pack` for untrusted bytes; must read all of ``reader``."""

    def tuned(self, value: str) -> Codec:
        """The codec with its one parameter set, as written behind a colon in its name."""
        raise ConfigError(f"codec {self.name!r} has no parameter; got {value!r} behind the colon")

    def encode(self, indices: ArrayLike, size: int, context: NDArray[np.uint8] | None = None) -> bytes:
        """The payload of a set of sorted unique positions below ``size``."""
        keys = check_indices(indices, size)
        check_context(context, size)
        head = bytes([self.format_id]) + varint(size) + varint(len(keys))
        return head + self.pack(keys, size, context if self.uses_context else None)

    def decode(self, data: bytes, size: int | None = None, context: NDArray[np.uint8] | None = None) -> Indices:
        """The sorted positions in ``data``; all errors are `WireError`.

        Pass the ``size`` that you expect when the bytes come from elsewhere: it bounds the memory and time
        that a payload can cost. Without it anything up to 2**28 positions is taken.
        """
        reader = Reader(bytes(data), self.name)
        count, found = self.header(reader)
        if size is None and found > DEFAULT_LIMIT:
            raise LimitError(f"{self.name}: {found} positions; pass size= to decode more than {DEFAULT_LIMIT}")
        if size is not None and found != size:
            raise MismatchError(f"{self.name}: the payload has {found} positions, expected {size}")
        if context is not None and len(context) != found:
            raise MismatchError(f"{self.name}: the payload has {found} positions, the context {len(context)}")
        out = self.unpack(reader, count, found, context if self.uses_context else None)
        reader.end()
        return out

    def entries(self, data: bytes) -> int:
        """The number of encoded positions that the header of a payload announces."""
        return self.announced(data)[0]

    def announced(self, data: bytes) -> tuple[int, int]:
        """The (count, size) that the header of a payload announces."""
        return self.header(Reader(bytes(data), self.name))

    def head_length(self, data: bytes) -> int:
        """How many bytes of a payload describe it; the rest is what an image shows as pixels."""
        reader = Reader(bytes(data), self.name)
        self.header(reader)
        return reader.at

    def header(self, reader: Reader) -> tuple[int, int]:
        """Reads the common header: (count, size). What it announces is still to be checked."""
        got = reader.uint(1)
        if got != self.format_id:
            raise MismatchError(f"{self.name}: format id {got}, expected {self.format_id}")
        size = reader.varint(MAX_SIZE)
        return reader.varint(size), size


def index_dtype(size: int) -> type[np.uint32] | type[np.uint64]:
    """The type of positions below ``size``."""
    return np.uint32 if size <= 2**32 else np.uint64


def check_indices(indices: ArrayLike, size: int) -> Indices:
    """``indices`` as an array of the type that fits ``size``, sorted, unique and in range, or `ConfigError`."""
    if not 0 <= size <= MAX_SIZE:
        raise ConfigError(f"size is {size}; expected 0 to 2**40")
    given = np.asarray(indices)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ConfigError(f"indices have shape {given.shape} and type {given.dtype}; expected a list of integers")
    if given.size and (int(given[0]) < 0 or int(given[-1]) >= size):
        raise ConfigError(f"indices run from {given[0]} to {given[-1]}; expected 0 to {size - 1}")
    if given.size > 1 and not bool((given[1:] > given[:-1]).all()):
        raise ConfigError("indices must be sorted and unique; np.unique(indices) makes them so")
    keys: Indices = np.ascontiguousarray(given, dtype=index_dtype(size))
    return keys


def check_context(context: NDArray[np.uint8] | None, size: int) -> None:
    """`ConfigError` unless ``context`` is absent or one byte for each position."""
    if context is not None and (context.dtype != np.uint8 or context.shape != (size,)):
        raise ConfigError(f"context is {context.dtype}{context.shape}; expected uint8({size},)")
