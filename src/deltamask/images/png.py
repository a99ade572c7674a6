"""A PNG container written with the standard library: 8-bit grayscale, no row filters, bounded decoding.

Why not Pillow: it chooses a row filter for each row, which turns the runs of zeros that DEFLATE lives on into
noise, and it inflates an image before anyone can say how large it may be. Here every row has filter 0, sizes
are checked before a byte is inflated, and only the one layout that `to_png` writes is accepted. Any viewer
opens the result.

The chunk ``dmSK`` holds the pixel count and the head. The cases of its letters say: ancillary (viewers skip it),
private, and unsafe to copy, because the head describes the pixels: an editor that changes them has to drop it, and
the image is then refused instead of decoded into another set.
"""

from __future__ import annotations

import struct
import zlib
from math import isqrt

from deltamask.codecs.base import MAX_SIZE, Reader, varint
from deltamask.errors import ChecksumError, ConfigError, LimitError, MalformedError, TruncatedError

__all__ = ["SIGNATURE", "from_png", "to_png"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_CHUNK = b"dmSK"
# Bit depth 8, grayscale, DEFLATE, the standard filter set, not interlaced.
_MODE = bytes((8, 0, 0, 0, 0))
_MAX_SIDE = 2**31 - 1


def to_png(head: bytes, pixels: bytes, *, level: int = 9, huffman_only: bool = False) -> bytes:
    """A PNG that shows ``pixels``, one byte each, and carries ``head`` in a private chunk.

    ``huffman_only`` turns the search for repeats off, which is faster and, on fingerprints, no larger.
    """
    if not -1 <= level <= 9:
        raise ConfigError(f"level is {level}; expected 0 (stored) to 9 (smallest), or -1 for the default of zlib")
    width, height = _shape(len(pixels))
    if width > _MAX_SIDE:
        raise ConfigError(f"{len(pixels)} pixels; a PNG row holds at most {_MAX_SIDE}")
    strategy = zlib.Z_HUFFMAN_ONLY if huffman_only else zlib.Z_DEFAULT_STRATEGY
    deflate = zlib.compressobj(level, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL + 1, strategy)
    rows = pixels.ljust(width * height, b"\0")
    raw = b"".join(b"\0" + rows[at : at + width] for at in range(0, len(rows), width))
    image = deflate.compress(raw) + deflate.flush()
    if len(image) > _MAX_SIDE:
        raise ConfigError(f"{len(pixels)} pixels deflate to {len(image)} bytes; a chunk holds at most {_MAX_SIDE}")
    return b"".join(
        (
            SIGNATURE,
            _chunk(b"IHDR", struct.pack(">II", width, height) + _MODE),
            _chunk(_CHUNK, varint(len(pixels)) + head),
            _chunk(b"IDAT", image),
            _chunk(b"IEND", b""),
        )
    )


def from_png(data: bytes, *, limit: int) -> tuple[bytes, bytes]:
    """The head and the pixels of an image that `to_png` wrote; all errors are `WireError`.

    ``limit`` is how many bytes of head and pixels the receiver accepts; memory stays in proportion to it, however
    much the image would inflate to.
    """
    reader = Reader(bytes(data), "png")
    signature = reader.take(len(SIGNATURE))
    if signature != SIGNATURE:
        raise MalformedError(f"png: starts with {signature.hex()}, expected {SIGNATURE.hex()}")
    shape = _read(reader, b"IHDR")
    if len(shape) != 13 or shape[8:] != _MODE:
        raise MalformedError(f"png: IHDR is {shape.hex()}, expected two sizes and {_MODE.hex()} (8-bit grayscale)")
    width, height = struct.unpack(">II", shape[:8])
    private = Reader(_read(reader, _CHUNK), "png: dmSK chunk")
    count = private.varint(MAX_SIZE)
    head = private.rest()
    if len(head) + count > limit:
        raise LimitError(f"png: {len(head)} bytes of head and {count} pixels, at most {limit} accepted")
    if (width, height) != _shape(count):
        expected = "x".join(map(str, _shape(count)))
        raise MalformedError(f"png: {width}x{height} for {count} pixels, expected {expected}")
    rows = _inflate(_read(reader, b"IDAT"), (width + 1) * height)
    if _read(reader, b"IEND"):
        raise MalformedError("png: an IEND chunk that is not empty")
    reader.end()
    if any(rows[:: width + 1]):
        raise MalformedError("png: a row with a filter other than 0")
    flat = b"".join(rows[at : at + width] for at in range(1, len(rows), width + 1))
    if any(flat[count:]):
        raise MalformedError(f"png: pixels behind the last of {count} that are not zero")
    return head, flat[:count]


def _shape(count: int) -> tuple[int, int]:
    """Width and height for ``count`` pixels: about 16 to 1.

    Each row costs its filter byte and, as the rows are chosen first, less than one byte of padding: a square
    of 10,000 pixels would pay 100 bytes for that, this shape 25.
    """
    height = max(1, isqrt(count) // 4)
    return max(1, -(-count // height)), height


def _inflate(data: bytes, length: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        # One byte more than expected lets the end of the stream be seen, and a longer one be told from it.
        out = inflate.decompress(data, length + 1)
    except zlib.error as error:
        raise MalformedError(f"png: the pixels do not inflate: {error}") from None
    if len(out) > length:
        raise MalformedError(f"png: the pixels inflate to more than the {length} bytes of the image")
    if not inflate.eof:
        raise TruncatedError(f"png: the pixels inflate to {len(out)} bytes without an end, expected {length}")
    if len(out) != length or inflate.unused_data:
        extra = len(inflate.unused_data)
        raise MalformedError(f"png: the pixels inflate to {len(out)} bytes and {extra} follow, expected {length}, 0")
    return out


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _read(reader: Reader, name: bytes) -> bytes:
    length = int.from_bytes(reader.take(4), "big")
    found = reader.take(4)
    if found != name:
        raise MalformedError(f"png: chunk {found!r}, expected {name!r}; only the layout of to_png is read")
    body = reader.take(length)
    stored = int.from_bytes(reader.take(4), "big")
    if stored != zlib.crc32(found + body):
        raise ChecksumError(f"png: the {found.decode()} chunk was changed on the way")
    return body
