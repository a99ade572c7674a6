"""The IDX files of the MNIST family, plain or gzipped: four bytes of magic, the sizes, then one byte a pixel."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader
from deltamask.errors import DataError, WireError

__all__ = ["MARK", "find", "read"]

MARK = "idx"
"""What all names of such files have in them."""

_MOST = 2**31
"""No file may speak of more bytes than this."""


def find(folder: Path, part: str, kind: str) -> Path | None:
    """The file of ``part`` (train, t10k or test) and ``kind`` (images, labels) in a folder, if there is one."""
    found = sorted(p for p in folder.glob(f"*{part}*{kind}*") if MARK in p.name and p.is_file())
    return found[0] if found else None


def read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The bytes of a file as an array of so many dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(_MOST + 1)
        reader = Reader(data, path.name)
        magic = reader.take(4)
        if magic[:3] != b"\0\0\x08" or magic[3] != dimensions:
            raise DataError(
                f"{path}: starts with {magic.hex()}, expected 000008{dimensions:02x}, {dimensions} dimensions"
            )
        shape = [int.from_bytes(reader.take(4), "big") for _ in range(dimensions)]
        body = reader.take(int(np.prod(shape, dtype=object)))
        reader.end()
    except (OSError, EOFError, zlib.error, WireError) as error:
        raise DataError(f"{path} can't be read: {error}") from None
    return np.frombuffer(body, np.uint8).reshape(shape)
