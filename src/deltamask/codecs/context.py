"""The rANS code split by what both sides already know of each position.

In federated masking the server knows the probabilities that a client starts from, so it knows which weights are
close to flipping. A context byte for each position (say, a bin of its probability, or its layer) splits the set into
classes of different densities, and each is coded at its own: the conditional entropy instead of the entropy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Codec, Indices, Reader, check_context, index_dtype, varint
from deltamask.codecs.rans import pack_lists, unpack_lists
from deltamask.codecs.sides import restore, smaller_side
from deltamask.errors import MalformedError, MismatchError
from deltamask.kernels import context as loops

__all__ = ["CODECS", "Context"]

_SUM = 4


@dataclass(frozen=True)
class Context(Codec):
    """The positions of each class are numbered from 0 in order, and the members coded as `Rans` codes a set.

    The body is a checksum of the context (four bytes, 0 for none), the number of members of each
    class that occurs but the last as varints, and one stream for all classes. A class of which more than half
    are members is stored as its complement. ``None`` is a context of zeros. Use it whenever both sides hold
    the same bytes; where the densities of the classes are equal it loses only the varints and the checksum.
    """

    name: str = "context"
    format_id: int = 36
    uses_context = True

    def pack(self, indices: Indices, size: int, context: NDArray[np.uint8] | None) -> bytes:
        """The counts of the classes and the code of their members' ranks."""
        if len(indices) in (0, size):
            return b""
        quarters = None if context is None else _census(context)
        if context is None or quarters is None:
            return bytes(_SUM) + pack_lists([(smaller_side(indices, size), size)])
        sizes = quarters.sum(0)
        members = np.bincount(context[indices], minlength=256)
        split = _Split(sizes, members)
        ranks = np.empty(split.starts[-1], index_dtype(size))
        loops.rank(split.toggled(indices, context, len(ranks)), context, split.starts, ranks)
        counts = b"".join(varint(int(n)) for n in members[np.flatnonzero(sizes)[:-1]])
        lists = [(ranks[at : at + n], d) for at, (n, d) in zip(split.starts[:-1], split.shapes(), strict=True)]
        return _checksum(context) + counts + pack_lists(lists)

    def unpack(self, reader: Reader, count: int, size: int, context: NDArray[np.uint8] | None) -> Indices:
        """The positions; another context than the sender's raises `MismatchError`."""
        # The loops index tables of 256 entries with it.
        check_context(context, size)
        dtype = index_dtype(size)
        if count in (0, size):
            return np.arange(count, dtype=dtype)
        quarters = None if context is None else _census(context)
        expected = bytes(_SUM) if context is None or quarters is None else _checksum(context)
        found = reader.take(_SUM)
        if found != expected:
            raise MismatchError(
                f"{self.name}: the sender's context has checksum {found.hex()}, the one given here {expected.hex()}"
            )
        if context is None or quarters is None:
            (keys,) = unpack_lists(reader, [(min(count, size - count), size)], dtype)
            return restore(keys, count, size)
        sizes = quarters.sum(0)
        members = np.zeros(256, np.int64)
        occurring = np.flatnonzero(sizes)
        left = count
        for c in occurring[:-1].tolist():
            members[c] = reader.varint(int(sizes[c]))
            left -= int(members[c])
        members[occurring[-1]] = left
        if not 0 <= left <= sizes[occurring[-1]]:
            raise MalformedError(f"{self.name}: {count} members, of which {left} are left for the last class")
        split = _Split(sizes, members)
        ranks = np.concatenate(unpack_lists(reader, split.shapes(), dtype))
        keys = np.empty(len(ranks), dtype)
        loops.place(ranks, context, split.starts, quarters, keys)
        return split.toggled(keys, context, count)


class _Split:
    """Which entries of a set are coded, given the positions and the members of each of the 256 classes."""

    def __init__(self, sizes: NDArray[np.int64], members: NDArray[np.int64]):
        self.sizes = sizes
        self.inverted = 2 * members > sizes
        coded = np.where(self.inverted, sizes - members, members)
        self.starts = np.concatenate(([0], np.cumsum(coded)))

    def shapes(self) -> list[tuple[int, int]]:
        """The number of coded entries and of positions of each class."""
        return list(zip(np.diff(self.starts).tolist(), self.sizes.tolist(), strict=True))

    def toggled(self, keys: Indices, context: NDArray[np.uint8], count: int) -> Indices:
        """From the members to the ``count`` coded positions, or back; they differ in inverted classes only."""
        if not self.inverted.any():
            return keys
        out = np.empty(count, keys.dtype)
        loops.toggle(keys, context, self.inverted, out)
        return out


def _census(context: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """How many positions each class has in each quarter; None if all are of class 0, which is no context at all."""
    quarters = np.empty((4, 256), np.int64)
    loops.census(context, quarters)
    return None if quarters[:, 0].sum() == len(context) else quarters


def _checksum(context: NDArray[np.uint8]) -> bytes:
    return int(loops.checksum(np.ascontiguousarray(context))).to_bytes(8, "little")[:_SUM]


CODECS = (Context(),)
