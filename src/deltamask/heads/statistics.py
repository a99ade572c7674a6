"""What a linear discriminant needs to know of labelled features: counts, class sums and the second moment.

They are plain sums over images, so those of a federation are the sums of its clients', and those of all other
clients are the federation's less one's own. The bytes are float32, the memory float64. The second moment is not
centred: features whose mean is a thousand times their spread would lose the spread to float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader, varint
from deltamask.errors import DataError, MalformedError, MismatchError

__all__ = ["LARGEST", "Statistics"]

LARGEST = 1e30
"""No number on the wire is larger: the sum over any number of clients then fits float32 too."""

_MOST_IMAGES = 2**40
_MOST_CLASSES = 2**32


@dataclass(frozen=True)
class Statistics:
    """Sums over images with labels; `add` changes the arrays in place."""

    counts: NDArray[np.int64]
    """Images of each class."""
    sums: NDArray[np.float64]
    """The sum of the features of each class, (classes, features)."""
    moment: NDArray[np.float64]
    """The sum of all x xᵀ: its upper triangle, row by row."""

    @classmethod
    def empty(cls, classes: int, features: int) -> Statistics:
        """Those of no images."""
        triangle = features * (features + 1) // 2
        return cls(np.zeros(classes, np.int64), np.zeros((classes, features)), np.zeros(triangle))

    @classmethod
    def of(cls, features: NDArray[np.float32], labels: NDArray[np.int64], classes: int) -> Statistics:
        """Those of one image a row."""
        x = features.astype(np.float64)
        if not (np.abs(x) < np.sqrt(LARGEST / max(1, len(x)))).all():
            raise DataError(
                f"features that are not finite, or whose squares add up to more than {LARGEST:g}; "
                "check the backbone and the images"
            )
        sums = np.zeros((classes, x.shape[1]))
        np.add.at(sums, labels, x)
        return cls(np.bincount(labels, minlength=classes), sums, (x.T @ x)[np.triu_indices(x.shape[1])])

    @property
    def images(self) -> int:
        """How many images there are."""
        return int(self.counts.sum())

    @property
    def square(self) -> NDArray[np.float64]:
        """The second moment as the symmetric matrix that it is."""
        features = self.sums.shape[1]
        rows, columns = np.triu_indices(features)
        out = np.empty((features, features))
        out[rows, columns] = out[columns, rows] = self.moment
        return out

    def add(self, other: Statistics) -> None:
        """The images of ``other`` as well."""
        self.counts[:] += other.counts
        self.sums[:] += other.sums
        self.moment[:] += other.moment

    def without(self, part: Statistics) -> Statistics:
        """Those of the images that are not in ``part``; `MalformedError` if it has images that are not here."""
        counts = self.counts - part.counts
        if (counts < 0).any():
            wrong = int(np.argmin(counts))
            raise MalformedError(
                f"statistics: {self.counts[wrong]} images of class {wrong}, fewer than this client's own "
                f"{part.counts[wrong]}; the server has left it out"
            )
        sums = np.where(counts[:, None] > 0, self.sums - part.sums, 0.0)  # what is left of none is rounding
        return Statistics(counts, sums, self.moment - part.moment)

    def to_bytes(self) -> bytes:
        """Classes, features and counts as varints; sums and triangle in float32, little-endian."""
        head = b"".join(varint(int(n)) for n in (*self.sums.shape, *self.counts))
        return head + self.sums.astype("<f4").tobytes() + self.moment.astype("<f4").tobytes()

    @staticmethod
    def longest(classes: int, features: int) -> int:
        """The most bytes that `to_bytes` can take."""
        return 6 * (classes + 2) + 4 * classes * features + 2 * features * (features + 1)

    @classmethod
    def from_bytes(cls, data: bytes, classes: int, features: int) -> Statistics:
        """The inverse of `to_bytes` for untrusted bytes; all errors are `WireError`."""
        reader = Reader(data, "statistics")
        found = reader.varint(_MOST_CLASSES), reader.varint(_MOST_CLASSES)
        if found != (classes, features):
            raise MismatchError(
                f"statistics: {found[0]} classes of {found[1]} features, expected {classes} of {features}; "
                "all clients need the same backbone and the same list of classes"
            )
        counts = np.array([reader.varint(_MOST_IMAGES) for _ in range(classes)], np.int64)
        sums = _numbers(reader, classes * features).reshape(classes, features)
        moment = _numbers(reader, features * (features + 1) // 2)
        reader.end()
        if sums[counts == 0].any():
            raise MalformedError("statistics: a sum of features for a class without images")
        steps = np.arange(features, 1, -1)
        if (moment[np.concatenate(([0], np.cumsum(steps)))] < 0).any():
            raise MalformedError("statistics: a negative sum of squares")
        return cls(counts, sums, moment)


def _numbers(reader: Reader, count: int) -> NDArray[np.float64]:
    out = np.frombuffer(reader.take(4 * count), "<f4").astype(np.float64)
    if not (np.abs(out) <= LARGEST).all():
        raise MalformedError(f"{reader.what}: numbers that are not finite, or beyond {LARGEST:g}")
    return out
