"""One frame around every payload: uplinks, downlinks and trained-mask files.

A frame says what it is (kind), what it fits (number of weights, base model, round, client, seed) and ends in
a checksum, so a receiver refuses a payload of another round or model instead of decoding it into noise.

The checksum is 8 bytes of BLAKE2b rather than a CRC-32C: it is in the standard library, it misses one changed
frame in 2**64 rather than in 2**32, and four more bytes do not show in a payload of a hundred kilobytes. It
has no key: it finds accidents, not forgers. The layout is drawn in ``docs/wire-format.md``.

>>> frame = Frame(kind="delta", size=1000, model=7, client=3, round=12, seed=seed_commitment(42), payload=b"...")
>>> open_frame(seal(frame), kind="delta", round=12) == frame
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import MAX_SIZE, Reader, varint
from deltamask.errors import (
    ChecksumError,
    ConfigError,
    LimitError,
    MalformedError,
    MismatchError,
    TruncatedError,
    unknown_name,
)

__all__ = ["KINDS", "SERVER", "VERSION", "Frame", "fingerprint", "open_frame", "seal", "seed_commitment"]

KINDS = {
    "delta": 1,
    "mask": 2,
    "dense": 3,
    "head": 4,
    "theta": 5,
    "adapter": 6,
    "statistics": 7,
    "losses": 8,
    "shrinkage": 9,
    "update": 10,
    "indices": 11,
    "scalars": 12,
    "codebook": 13,
    "relay": 14,
}
"""Name and id of every kind of payload; an id is never given to another kind."""

SERVER = -1
"""The ``client`` of what the server sends; clients are numbered from 0."""

VERSION = 1
"""The layout of the frame; a change of the bytes is a new version."""

# The third byte is not ASCII, so that no text file passes for a frame.
_MAGIC = b"DM\xb5"
_SUM = 8
_WORD = 2**64 - 1
_MAX_ROUND = 2**32 - 1
_MAX_PAYLOAD = 2**48


@dataclass(frozen=True)
class Frame:
    """A payload and what it belongs to."""

    kind: str
    """A name in `KINDS`."""
    size: int
    """The number of masked weights."""
    model: int
    """The `fingerprint` of the base model."""
    client: int
    """Who sends it: a number from 0, or `SERVER`."""
    round: int
    """The round, from 0; 0 for a file that belongs to none."""
    seed: int
    """The `seed_commitment` of the sampling seed, or 0 for none."""
    payload: bytes
    """What the frame carries, for instance the bytes of a set codec."""


def seal(frame: Frame) -> bytes:
    """The bytes of ``frame``; `ConfigError` for a field that has no place in them."""
    if frame.kind not in KINDS:
        raise unknown_name("frame kind", frame.kind, KINDS)
    bounds = {
        "size": (0, MAX_SIZE),
        "model": (0, _WORD),
        "client": (SERVER, _WORD - 1),
        "round": (0, _MAX_ROUND),
        "seed": (0, _WORD),
    }
    for name, (least, most) in bounds.items():
        value = getattr(frame, name)
        if not least <= value <= most:
            raise ConfigError(f"frame: {name} is {value}; expected {least} to {most}")
    if len(frame.payload) > _MAX_PAYLOAD:
        raise ConfigError(f"frame: a payload of {len(frame.payload)} bytes; expected at most {_MAX_PAYLOAD}")
    head = b"".join(
        (
            _MAGIC,
            bytes((VERSION, KINDS[frame.kind])),
            varint(int(frame.size)),
            # One is added so that the server, the most frequent sender of all, is the single byte 0.
            varint(int(frame.client) + 1),
            varint(int(frame.round)),
            int(frame.model).to_bytes(8, "little"),
            int(frame.seed).to_bytes(8, "little"),
            varint(len(frame.payload)),
        )
    )
    return b"".join((head, frame.payload, _checksum(head, frame.payload)))


def open_frame(
    data: bytes,
    *,
    kind: str | None = None,
    size: int | None = None,
    model: int | None = None,
    client: int | None = None,
    round: int | None = None,
    seed: int | None = None,
    limit: int | None = None,
) -> Frame:
    """The inverse of `seal` for untrusted bytes; all errors are `WireError`.

    Each expectation that is given is checked, and a frame that is sound but for something else raises
    `MismatchError`. ``limit`` is the number of payload bytes that the receiver accepts.
    """
    if kind is not None and kind not in KINDS:
        raise unknown_name("frame kind", kind, KINDS)
    reader = Reader(bytes(data), "frame")
    magic = reader.take(len(_MAGIC))
    if magic != _MAGIC:
        raise MalformedError(f"frame: starts with {magic.hex()}, expected {_MAGIC.hex()}; not a DeltaMask frame")
    version = reader.uint(1)
    if version != VERSION:
        raise MismatchError(f"frame: version {version}, this release reads version {VERSION}")
    kind_id = reader.uint(1)
    found_size = reader.varint(MAX_SIZE)
    found_client = reader.varint(_WORD) - 1
    found_round = reader.varint(_MAX_ROUND)
    found_model = reader.uint(8)
    found_seed = reader.uint(8)
    length = reader.varint(_MAX_PAYLOAD)
    if limit is not None and length > limit:
        raise LimitError(f"frame: a payload of {length} bytes, at most {limit} accepted")
    start = reader.at
    left = len(reader.data) - start
    if left < length + _SUM:
        raise TruncatedError(f"frame: {length} bytes of payload and {_SUM} of checksum announced, {left} left")
    payload = reader.take(length)
    stored = reader.take(_SUM)
    reader.end()
    computed = _checksum(reader.data[:start], payload)
    if stored != computed:
        raise ChecksumError(f"frame: checksum {computed.hex()}, the sender wrote {stored.hex()}; changed on the way")
    # Only now: before the checksum a wrong kind could as well be a damaged one.
    by_id = {number: name for name, number in KINDS.items()}
    if kind_id not in by_id:
        raise MalformedError(f"frame: unknown kind {kind_id}; this release knows {KINDS}")
    frame = Frame(by_id[kind_id], found_size, found_model, found_client, found_round, found_seed, payload)
    expected = {"kind": kind, "size": size, "model": model, "client": client, "round": round, "seed": seed}
    for name, want in expected.items():
        got = getattr(frame, name)
        if want is not None and got != want:
            raise MismatchError(f"frame: {name} is {_show(name, got)}, expected {_show(name, want)}")
    return frame


def seed_commitment(seed: int) -> int:
    """64 bits that say which sampling seed a payload belongs to; never 0, which stands for no seed.

    It lets a receiver notice a wrong seed. It hides a seed only as far as the seed is hard to guess.
    """
    if not 0 <= seed < 2**128:
        raise ConfigError(f"seed is {seed}; expected 0 to 2**128 - 1")
    digest = blake2b(int(seed).to_bytes(16, "little"), digest_size=8, person=b"deltamask seed").digest()
    return int.from_bytes(digest, "little") or 1


def fingerprint(arrays: Mapping[str, NDArray[Any]]) -> int:
    """64 bits of BLAKE2b over the names, types, shapes and bytes of ``arrays``, in sorted order of the names.

    Bytes are taken little-endian and in C order, so that it is the same on every platform and for every layout
    in memory.

    >>> fingerprint({"w": np.zeros(3)}) == fingerprint({"w": np.zeros(4)})
    False
    """
    state = blake2b(digest_size=8, person=b"deltamask model")
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.kind not in "biufc":
            raise ConfigError(f"fingerprint: {name!r} has type {array.dtype}; expected numbers")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # Lengths go first: without them ("ab", "c") and ("a", "bc") would hash alike.
        encoded, kind = name.encode(), array.dtype.str.encode()
        shape = b"".join(varint(n) for n in (array.ndim, *array.shape))
        state.update(varint(len(encoded)) + encoded + varint(len(kind)) + kind + shape)
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return int.from_bytes(state.digest(), "little")


def _checksum(head: bytes, payload: bytes) -> bytes:
    state = blake2b(head, digest_size=_SUM, person=b"deltamask frame")
    state.update(payload)
    return state.digest()


def _show(name: str, value: Any) -> str:
    if name == "client" and value == SERVER:
        return "the server"
    return f"{value:016x}" if name in ("model", "seed") else repr(value)
