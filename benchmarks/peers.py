"""Other people's ways to send a set of positions, measured beside the codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Peer", "peers"]

SAMPLE = 200_000
"""Positions that pyfusefilter is asked about one by one; its time for all of them is extrapolated."""


@dataclass(frozen=True)
class Peer:
    """One way; ``decode`` gives back the set, or the part of it in ``sample`` if asking about all takes too long."""

    name: str
    exact: bool
    encode: Callable[[], Any]
    payload_bytes: Callable[[Any], int]
    decode: Callable[[Any], Any] | None
    sample: NDArray[np.int64] | None = None
    note: str = ""


def peers(keys: NDArray[np.uint32], size: int) -> Iterator[Peer]:
    """All that are installed."""
    for family in (_pyfusefilter, _zstandard, _constriction):
        try:
            yield from family(keys, size)
        except ImportError as error:
            print(f"left out: {error}")


def _pyfusefilter(keys: NDArray[np.uint32], size: int) -> Iterator[Peer]:
    from pyfusefilter import Fuse8
    from pyfusefilter._xorfilter import ffi, lib

    listed = keys.tolist()
    step = max(1, size // SAMPLE)
    sample = np.arange(0, size, step)
    asked = sample.tolist()
    yield Peer(
        "pyfusefilter Fuse8",
        exact=False,
        encode=lambda: Fuse8(listed),
        payload_bytes=lambda made: len(made.serialize()),
        decode=lambda made: [position for position in asked if made.contains(position)],
        sample=sample,
        note=f"3-wise, public API; query timed on {len(sample)} positions",
    )
    wide = keys.astype(np.uint64)

    def populate() -> Any:
        made = ffi.gc(ffi.new("binary_fuse8_t *"), lib.binary_fuse8_free)
        # populate may reorder its input, so every call gets a copy, as a caller who keeps the keys would make
        copy = wide.copy()
        if not (
            lib.binary_fuse8_allocate(len(copy), made)
            and lib.binary_fuse8_populate(ffi.from_buffer("uint64_t[]", copy), len(copy), made)
        ):
            raise RuntimeError("binary_fuse8_populate failed")
        return made

    yield Peer(
        "C: binary_fuse8_populate",
        exact=False,
        encode=populate,
        payload_bytes=lambda made: int(lib.binary_fuse8_serialization_bytes(made)),
        decode=None,
        note="3-wise, the C library inside pyfusefilter on a NumPy buffer",
    )


def _zstandard(keys: NDArray[np.uint32], size: int) -> Iterator[Peer]:
    import zstandard

    def bitmap() -> bytes:
        marks = np.zeros(size, np.uint8)
        marks[keys] = 1
        return np.packbits(marks).tobytes()

    def from_bitmap(data: bytes) -> NDArray[np.int64]:
        return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), count=size))

    def gaps() -> bytes:
        return np.diff(keys, prepend=np.uint32(0)).tobytes()

    def from_gaps(data: bytes) -> NDArray[np.uint32]:
        return np.cumsum(np.frombuffer(data, np.uint32), dtype=np.uint32)

    for what, to_bytes, from_bytes in (("bitmap", bitmap, from_bitmap), ("uint32 gaps", gaps, from_gaps)):
        for level in (3, 19):
            yield Peer(
                f"zstd -{level}, {what}",
                exact=True,
                encode=lambda to=to_bytes, level=level: zstandard.ZstdCompressor(level=level).compress(to()),
                payload_bytes=len,
                decode=lambda data, of=from_bytes: of(zstandard.ZstdDecompressor().decompress(data)),
            )


def _constriction(keys: NDArray[np.uint32], size: int) -> Iterator[Peer]:
    import constriction

    stream = constriction.stream
    gaps = np.diff(keys.astype(np.int64), prepend=-1) - 1
    symbols = int(gaps.max()) + 1
    if symbols > 60_000:
        return

    def model() -> Any:
        rate = len(keys) / size
        return stream.model.Categorical(rate * (1 - rate) ** np.arange(symbols), perfect=False)

    def encode(coder: Callable[[], Any], reverse: bool) -> Any:
        here = (np.diff(keys.astype(np.int32), prepend=np.int32(-1)) - 1).astype(np.int32)
        made = coder()
        (made.encode_reverse if reverse else made.encode)(here, model())
        return made.get_compressed()

    def decode(coder: Callable[[Any], Any], words: Any) -> NDArray[np.int64]:
        return np.cumsum(coder(words).decode(model(), len(keys)) + 1) - 1

    for name, into, out_of, reverse in (
        ("range coder", stream.queue.RangeEncoder, stream.queue.RangeDecoder, False),
        ("ANS", stream.stack.AnsCoder, stream.stack.AnsCoder, True),
    ):
        yield Peer(
            f"constriction {name}, gaps",
            exact=True,
            encode=lambda into=into, reverse=reverse: encode(into, reverse),
            payload_bytes=lambda words: 4 * len(words),
            decode=lambda words, out_of=out_of: decode(out_of, words),
            note="geometric distribution of gaps; no header counted",
        )
