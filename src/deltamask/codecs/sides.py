"""What the exact codes share: the smaller of a set and its complement, bits as words, errors of the loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Indices, index_dtype
from deltamask.errors import MalformedError, TruncatedError
from deltamask.kernels import gaps

__all__ = ["check", "restore", "smaller_side", "to_words"]


def smaller_side(indices: Indices, size: int) -> Indices:
    """The set, or its complement when that has fewer entries; a full set is as small as an empty one."""
    if 2 * len(indices) <= size:
        return indices
    return _complement(indices, size)


def restore(side: Indices, count: int, size: int) -> Indices:
    """The inverse of `smaller_side` for a set of ``count`` entries."""
    return side if 2 * count <= size else _complement(side, size)


def to_words(data: bytes) -> NDArray[np.uint64]:
    """``data`` as 64-bit words, least significant first, with at least one word of zeros behind the last bit."""
    padded = data.ljust((len(data) // 8 + 2) * 8, b"\0")
    return np.frombuffer(padded, "<u8").astype(np.uint64)


def check(code: int, what: str, size: int) -> None:
    """The error that belongs to the code of a decoding loop; none for ``OK``."""
    if code == gaps.SHORT:
        raise TruncatedError(f"{what}: the bits end before the last entry")
    if code == gaps.RANGE:
        raise MalformedError(f"{what}: an entry beyond the last of {size} positions")


def _complement(indices: Indices, size: int) -> Indices:
    out = np.empty(size - len(indices), index_dtype(size))
    gaps.complement(indices, size, out)
    return out
