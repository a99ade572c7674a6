"""rANS codes of the gaps between positions (Duda, 2013): the entropy, to a few bytes, at every density.

The gaps of a uniform set are geometric. The upper part of a gap is coded with the frequencies of that distribution,
which both sides compute from the two numbers in the header, so no table is sent; its lower bits are close to
uniform and written as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Codec, Indices, Reader, index_dtype
from deltamask.codecs.sides import check, restore, smaller_side, to_words
from deltamask.errors import MalformedError, TruncatedError
from deltamask.kernels import rans as loops

__all__ = ["CODECS", "Rans", "Table", "pack_lists", "table", "unpack_lists"]

_FIXED = 128
"""Bits behind the point of the fixed-point numbers that frequencies are computed with."""

_MAX_PLAIN = 126


@dataclass(frozen=True)
class Table:
    """How the gaps of one list are coded."""

    k: int
    """How many lower bits of a gap are written as they are."""
    bits: int
    """The frequencies sum to two to this power."""
    edges: NDArray[np.uint64]
    """Symbol ``s`` owns the slots from ``edges[s]`` to ``edges[s + 1]``; the last symbol is the escape."""

    @property
    def escape(self) -> int:
        """The escape symbol, which is also the number of the plain ones."""
        return len(self.edges) - 2

    @property
    def start(self) -> int:
        """The frequency of the first and most frequent symbol: from this state on every symbol adds to it."""
        return int(self.edges[1])

    def rows(self) -> NDArray[np.uint64]:
        """For each symbol: frequency, slots before it, and a reciprocal and a shift that divide by the frequency.

        With s = ceil(log2 f) and r = ceil(2**(63 + s) / f), floor(x r / 2**(63 + s)) is floor(x / f) for every x
        below 2**63 (Granlund and Montgomery, 1994), at a third of the time of a division. For f = 1 that r is
        a bit too long for a word; 2**64 - 1 gives x - 1, and the second column makes up for it.
        """
        rows = []
        for before, edge in zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), strict=True):
            f = edge - before
            s = (f - 1).bit_length()
            if f == 1:
                rows.append((f, before + (1 << self.bits) - 1, 2**64 - 1, 0))
            else:
                rows.append((f, before, -(-(1 << 63 + s) // f), s - 1))
        return np.array(rows, np.uint64)

    def slots(self) -> NDArray[np.uint32]:
        """For each slot: symbol, frequency and offset, packed as `kernels.rans.decode_gaps` reads them."""
        frequencies = np.diff(self.edges).astype(np.uint32)
        symbols = np.repeat(np.arange(len(frequencies), dtype=np.uint32), frequencies)
        offsets = np.arange(1 << self.bits, dtype=np.uint32) - self.edges.astype(np.uint32)[symbols]
        packed: NDArray[np.uint32] = symbols | frequencies[symbols] << np.uint32(7) | offsets << np.uint32(20)
        return packed


def table(count: int, size: int) -> Table:
    """The table for ``count`` entries among ``size`` positions, of which they are half at most.

    Integers only, as ``pow`` and ``exp`` differ in the last bit between platforms, and a single different
    frequency would make noise of a payload. With p = count / size, ``k`` is the largest number with p * 2**k up to
    1/8, where taking the lower bits as uniform costs a thousandth of a bit per entry; the upper part then is
    geometric with ratio (1 - p)**(2**k). What lies beyond the last plain symbol has the same distribution again,
    so the escape loses nothing. Small sets get coarser frequencies, as the state costs about as many bits.
    """
    k = max(0, (size // (8 * count)).bit_length() - 1)
    bits = min(12, max(8, count.bit_length()))
    ratio = ((size - count) << _FIXED) // size
    for _ in range(k):
        ratio = ratio * ratio >> _FIXED
    total = 1 << bits
    edges = [0]
    tail = 1 << _FIXED
    while len(edges) <= _MAX_PLAIN:
        tail = tail * ratio >> _FIXED
        edge = total - ((tail << bits) + (1 << _FIXED - 1) >> _FIXED)
        if edge in (edges[-1], total):
            break
        edges.append(edge)
    return Table(k, bits, np.array([*edges, total], np.uint64))


def pack_lists(lists: Sequence[tuple[Indices, int]]) -> bytes:
    """One stream for several lists of sorted positions, each below its own size and of half as many at most."""
    tables = [(keys, size, table(len(keys), size)) for keys, size in lists if len(keys)]
    if not tables:
        return b""
    raw_bits = sum(len(keys) * t.k for keys, _, t in tables)
    raw, raw_at = np.zeros(raw_bits // 64 + 2, np.uint64), 0
    coded = []
    for keys, size, t in tables:
        # One symbol for each entry, and an escape for every so many positions at most.
        symbols = np.empty(len(keys) + (size >> t.k) // t.escape, np.uint8)
        coded.append(symbols[: loops.split_gaps(keys, t.k, t.escape, symbols, raw, raw_at)])
        raw_at += len(keys) * t.k
    # No symbol takes more than t.bits bits.
    most = sum(len(symbols) * t.bits for symbols, (_, _, t) in zip(coded, tables, strict=True))
    words = np.empty(most // 32 + 2, np.uint32)
    state, at = max(t.start for _, _, t in tables), 0
    for symbols, (_, _, t) in zip(reversed(coded), reversed(tables), strict=True):
        state, at = loops.encode_symbols(symbols, t.bits, t.rows(), np.uint64(state), words, at)
    state = int(state)
    length = (state.bit_length() + 7) // 8
    lower = raw.astype("<u8", copy=False).tobytes()[: -(-raw_bits // 8)]
    # Behind words a state has five bytes at least, so that the length of the body tells where they start.
    upper = state.to_bytes(max(length, 5) if at else length, "little")
    return lower + upper + words[:at][::-1].astype("<u4", copy=False).tobytes()


def unpack_lists(reader: Reader, shapes: Sequence[tuple[int, int]], dtype: type[np.unsignedinteger]) -> list[Indices]:
    """The lists of (count, size) that `pack_lists` wrote; reads all of ``reader``."""
    tables = [(count, size, table(count, size) if count else None) for count, size in shapes]
    raw_bits = sum(count * t.k for count, _, t in tables if t)
    entries = sum(count for count, _ in shapes)
    if entries == 0:
        return [np.empty(0, dtype) for _ in shapes]
    lower = reader.take(-(-raw_bits // 8))
    upper = reader.rest()
    # Before anything is allocated: no symbol has a frequency of much more than a half, so each has almost a bit.
    if entries > 9 * len(upper):
        raise TruncatedError(f"{reader.what}: {len(upper)} bytes for {entries} entries of almost a bit or more")
    if raw_bits % 8 and lower[-1] >> raw_bits % 8:
        raise MalformedError(f"{reader.what}: bits behind the last lower bit are set")
    length = len(upper) if len(upper) <= 8 else 5 + (len(upper) - 5) % 4
    state = int.from_bytes(upper[:length], "little")
    words = np.frombuffer(upper, "<u4", offset=length).astype(np.uint32)
    least = 1 << 31 if len(words) else 1 << 8 * (length - 1)
    if not least <= state < 1 << loops.STATE_BITS or (len(words) and length > 5 and not upper[length - 1]):
        raise MalformedError(f"{reader.what}: state {state}, which no encoder leaves in {length} bytes")
    raw, raw_at, at = to_words(lower), 0, 0
    lists: list[Indices] = []
    for count, size, t in tables:
        out = np.empty(count, dtype)
        if t is not None:
            code, state, at = loops.decode_gaps(
                out, size, t.k, t.bits, t.slots(), t.escape, np.uint64(state), words, at, raw, raw_at
            )
            check(code, reader.what, size)
            raw_at += count * t.k
        lists.append(out)
    start = max(t.start for _, _, t in tables if t)
    if at != len(words) or int(state) != start:
        raise MalformedError(
            f"{reader.what}: ends in state {int(state)} after {at} of {len(words)} words, expected {start} after all"
        )
    return lists


@dataclass(frozen=True)
class Rans(Codec):
    """The smallest exact code when nothing is known of the set but its density.

    The body is the lower bits of all gaps, zero bits up to a byte, the final rANS state and the words in the
    order in which they are read. A set of more than half of all positions is stored as its complement. Use
    ``context`` instead if both sides know something that makes some positions likelier than others.
    """

    name: str = "rans"
    format_id: int = 34

    def pack(self, indices: Indices, size: int, context: NDArray[np.uint8] | None) -> bytes:
        """The code of the set or of its complement, whichever has fewer entries."""
        return pack_lists([(smaller_side(indices, size), size)])

    def unpack(self, reader: Reader, count: int, size: int, context: NDArray[np.uint8] | None) -> Indices:
        """The positions; the state must come back to where the encoder started."""
        (keys,) = unpack_lists(reader, [(min(count, size - count), size)], index_dtype(size))
        return restore(keys, count, size)


CODECS = (Rans(),)
