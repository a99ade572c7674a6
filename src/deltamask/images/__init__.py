"""Codec payloads as grayscale PNG images: the body of the payload is the pixels, its header a private chunk.

DEFLATE gains a few percent on a filter, whose unused slots are zero, and loses a little on a code that is
already at the entropy. A receiver takes either: a payload starts with its format id, which is below 0x80, and
a PNG with 0x89.

>>> from deltamask import codecs
>>> rice = codecs.get("rice")
>>> payload = rice.encode([3, 14, 15, 92], size=1000)
>>> image = wrap(payload, rice)
>>> image[1:4], unwrap(image, limit=100) == payload == unwrap(payload, limit=100)
(b'PNG', True)
"""

from __future__ import annotations

from deltamask.codecs.base import Codec
from deltamask.errors import LimitError
from deltamask.images.png import SIGNATURE, from_png, to_png

__all__ = ["from_png", "to_png", "unwrap", "wrap"]


def wrap(payload: bytes, codec: Codec, *, level: int = 9, huffman_only: bool = False) -> bytes:
    """The PNG of a payload that ``codec`` wrote; the options are those of `to_png`."""
    split = codec.head_length(payload)
    return to_png(payload[:split], payload[split:], level=level, huffman_only=huffman_only)


def unwrap(data: bytes, limit: int) -> bytes:
    """The codec payload in ``data``, be it wrapped in a PNG or not; more than ``limit`` bytes are refused."""
    if data[:1] == SIGNATURE[:1]:
        head, pixels = from_png(data, limit=limit)
        return head + pixels
    if len(data) > limit:
        raise LimitError(f"payload: {len(data)} bytes, at most {limit} accepted")
    return bytes(data)
