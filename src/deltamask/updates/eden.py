"""EDEN (Vargaftik et al. 2022, arXiv 2108.08842): rotate at random, round each coordinate, correct the length.

    x --rotation--> y, close to normal --nearest centroid--> q,   scale = |x|^2 / <y, q>

With that scale the estimate has no bias. DRIVE is the case of one bit with centroids -1 and 1. Two differences from
the public code: rows of 8,192 numbers are rotated by themselves, each with a scale of its own, so that padding costs
a part of a row at most instead of up to half of all bits; and below one bit it is rotated coordinates that are left
out, those that the key says.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader
from deltamask.errors import ConfigError, MalformedError
from deltamask.kernels.rotation import rotate, rotate_back
from deltamask.sampling import derive, uniforms
from deltamask.updates.base import Update, Vector, finite

__all__ = ["Eden", "centroids", "distortion"]

_ROW = 1 << 13
_MOST_BITS = 6
_ROUNDS = 20_000


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) if math.isfinite(x) else 0.0


def _below(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


@cache
def centroids(bits: int) -> NDArray[np.float32]:
    """The best 2**bits numbers to round a standard normal one to (Lloyd 1982, Max 1960), in ascending order."""
    count = 1 << bits
    found = [2.5 * (2 * i + 1 - count) / count for i in range(count)]
    for _ in range(_ROUNDS):
        edges = [-math.inf, *((a + b) / 2 for a, b in itertools.pairwise(found)), math.inf]
        better = [(_density(a) - _density(b)) / (_below(b) - _below(a)) for a, b in itertools.pairwise(edges)]
        moved = max(abs(a - b) for a, b in zip(found, better, strict=True))
        found = better
        if moved < 1e-9:
            break
    return np.array(found, np.float32)


def distortion(bits: float) -> float:
    """E |estimate - x|^2 / |x|^2 that the theory gives for many dimensions: (1 / E[q^2] - 1), more below one bit."""
    levels = centroids(max(1, int(bits))).astype(float)
    edges = [-math.inf, *((levels[1:] + levels[:-1]) / 2).tolist(), math.inf]
    square = sum(
        q * q * (_below(b) - _below(a)) for q, a, b in zip(levels.tolist(), edges[:-1], edges[1:], strict=True)
    )
    return float(1 / (square * min(1.0, bits)) - 1)


@dataclass(frozen=True)
class Eden(Update):
    """``bits`` for each number: 1 to 6, or a share of one; and four bytes for each row of 8,192."""

    bits: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.bits < 1 or self.bits in range(1, _MOST_BITS + 1)):
            raise ConfigError(f"update.bits is {self.bits}; expected 1 to {_MOST_BITS}, or a share of 1 above 0")

    def levels(self) -> NDArray[np.float32]:
        """What a rotated coordinate is rounded to, before the scale."""
        return centroids(self._width)

    @property
    def _width(self) -> int:
        return max(1, int(self.bits))

    def encode(self, x: Vector, shared: int, private: int) -> bytes:
        """Scales of all rows, then the numbers of the centroids, least significant bit first."""
        levels = self.levels()
        edges = (levels[1:] + levels[:-1]) / 2
        scales, codes = [np.zeros(0)], [np.zeros(0, np.uint8)]
        at = 0
        for rows in _rows(x.size):
            y = _padded(x, at, rows)
            square = np.einsum("ij,ij->i", y, y, dtype=np.float64)
            rotate(np.uint64(shared), at, y)
            spread = np.sqrt(square / y.shape[1])
            code = np.searchsorted(edges, y / np.where(spread > 0, spread, 1)[:, None].astype(np.float32))
            product = np.einsum("ij,ij->i", y, levels[code], dtype=np.float64)
            scales.append(np.where(square > 0, square / np.where(product > 0, product, 1), 0))
            codes.append(code.astype(np.uint8).reshape(-1))
            at += y.size
        kept = np.concatenate(codes)[self._kept(shared, at)]
        bits = np.unpackbits(kept[:, None], axis=1, count=self._width, bitorder="little")
        return np.concatenate(scales).astype("<f4").tobytes() + np.packbits(bits, bitorder="little").tobytes()

    def decode(self, data: bytes, size: int, shared: int) -> Vector:
        """The estimate, without bias over the keys."""
        reader = Reader(data, type(self).__name__)
        shapes = _rows(size)
        total = sum(rows * width for rows, width in shapes)
        scales = finite(reader, sum(rows for rows, _ in shapes))
        keep = self._kept(shared, total)
        count = total if isinstance(keep, slice) else int(keep.sum())
        packed = np.frombuffer(reader.take(-(-count * self._width // 8)), np.uint8)
        reader.end()
        bits = np.unpackbits(packed, bitorder="little")
        if bits[count * self._width :].any():
            raise MalformedError(f"{reader.what}: bits behind the last number are set")
        codes = np.packbits(bits[: count * self._width].reshape(count, self._width), axis=1, bitorder="little")
        y = np.zeros(total, np.float32)
        y[keep] = self.levels()[codes.reshape(-1)]
        y /= np.float32(min(1.0, self.bits))
        out = np.empty(size, np.float32)
        at = row = 0
        for rows, width in shapes:
            part = y[at : at + rows * width].reshape(rows, width)
            part *= scales[row : row + rows, None]
            rotate_back(np.uint64(shared), at, part)
            out[at : at + rows * width] = part.reshape(-1)[: size - at]
            at, row = at + rows * width, row + rows
        if not np.isfinite(out).all():
            raise MalformedError(f"{reader.what}: numbers that are not finite")
        return out

    def longest(self, size: int) -> int:
        """Padded rows with all their bits."""
        shapes = _rows(size)
        return sum(4 * rows + rows * width * self._width // 8 for rows, width in shapes) + 8

    def _kept(self, shared: int, total: int) -> NDArray[np.bool_] | slice:
        """Which rotated coordinates are sent."""
        if self.bits >= 1:
            return slice(None)
        limit = np.uint32(self.bits * 2.0**31)
        kept: NDArray[np.bool_] = uniforms(derive(shared, "kept"), total) < limit
        return kept


def _rows(size: int) -> list[tuple[int, int]]:
    """(rows, their width) for a vector of ``size``: rows of 8,192, and a shorter one for what is left."""
    full, left = divmod(size, _ROW)
    tail = [(1, 1 << (left - 1).bit_length())] if left else []
    return ([(full, _ROW)] if full else []) + tail


def _padded(x: Vector, at: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    out = np.zeros(shape[0] * shape[1], np.float32)
    part = x[at : at + out.size]
    out[: part.size] = part
    return out.reshape(shape)
