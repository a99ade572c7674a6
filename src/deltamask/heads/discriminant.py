"""The linear discriminant of FiT (Shysheya et al. 2022, arXiv 2206.08671), from sums over images.

Every class is a Gaussian around its mean, all with the covariance e1 S + e2 s I: S is the covariance within classes,
s the mean of its eigenvalues, so that e1 and e2 have no unit. The logits, up to what all classes share, are linear:

    weight_c = (mu_c - m) Sigma^-1        bias_c = -1/2 (mu_c - m) Sigma^-1 (mu_c - m) - weight_c m

with m the mean of all images: without it the shared part can be large enough to drown the rest in float32. S in its
own eigenvectors makes every (e1, e2) a matter of dividing, so a grid costs one decomposition.

- Classes are equally likely, as in FiT's own code. In a federation the counts say which clients take part, and a
  client that judges the others' classifier would measure how its labels differ from theirs, not the classifier.
- FiT's code takes the covariance of all images for S. That within classes is the textbook's, and did better on the
  embedded task under both partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import DataError
from deltamask.heads.linear import Head
from deltamask.heads.statistics import LARGEST, Statistics

__all__ = ["GRID", "Discriminant"]

GRID: tuple[tuple[float, float], ...] = tuple((2.0**i, 2.0**j) for i in range(-2, 7) for j in range(-12, 7, 2))
"""The (e1, e2) among which a federation chooses; powers of two, so that nothing is rounded on the wire."""

_NEVER = -1e9
"""The logarithm of no probability: the bias of a class without images, far below any logit and still a number."""

_NOISE = 1e-6
"""A spread below this share of the mean square is rounding: the numbers came as float32."""


@dataclass(frozen=True)
class Discriminant:
    """Class means and the covariance within classes, in the eigenvectors of the latter."""

    seen: NDArray[np.bool_]
    """Which classes have images."""
    centre: NDArray[np.float64]
    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    means: NDArray[np.float64]
    """mu_c - m in the eigenvectors; zero for a class without images."""
    scale: float
    """s, the mean eigenvalue."""

    @classmethod
    def of(cls, statistics: Statistics) -> Discriminant:
        """The discriminant of some images; `DataError` where they do not make one."""
        counts, sums = statistics.counts, statistics.sums
        cls.check_classes(statistics)
        seen = counts > 0
        images, features = statistics.images, sums.shape[1]
        square = statistics.square
        centre = sums.sum(0) / images
        shifted = np.where(seen[:, None], sums / np.maximum(counts, 1)[:, None], centre) - centre
        total = square / images - np.outer(centre, centre)
        within = total - (shifted * (counts / images)[:, None]).T @ shifted
        floor = _NOISE * float(np.trace(square)) / images
        if float(np.trace(within)) <= floor:  # no class has two different images
            within = np.zeros_like(within)
        scale = (float(np.trace(within)) or float(np.trace(total))) / features
        if not scale * features > floor:
            raise DataError(
                "the features of all images are alike, or their mean hides their spread in float32; "
                "check the backbone, or set head.kind=probe"
            )
        try:
            values, vectors = np.linalg.eigh(within)
        except np.linalg.LinAlgError as error:
            raise DataError(
                f"the covariance of the features has no eigenvalues ({error}); set head.kind=probe"
            ) from None
        # A true covariance has none below zero; a client's invention may.
        return cls(seen, centre, np.maximum(values, 0), vectors, shifted @ vectors, scale)

    @staticmethod
    def check_classes(statistics: Statistics) -> None:
        """`DataError` where there are no two classes to tell apart."""
        seen = int((statistics.counts > 0).sum())
        if seen < 2:
            raise DataError(
                f"images of {seen} of {statistics.counts.size} classes; a discriminant needs two: "
                "let more clients take part, or choose another `dataset`"
            )

    def head(self, e1: float, e2: float) -> Head:
        """The classifier for two positive values."""
        scaled = self._scaled(e1, e2)
        weight = scaled @ self.vectors.T
        bias = np.where(self.seen, self._offsets(scaled) - weight @ self.centre, _NEVER)
        most = max(float(np.abs(weight).max()), float(np.abs(bias).max()))
        if not most <= LARGEST:
            raise DataError(f"a classifier with numbers of {most:g}; scale the features, or set head.kind=probe")
        return Head(weight.astype(np.float32), bias.astype(np.float32))

    def losses(self, features: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """The mean cross-entropy of images for each point of `GRID`, over the classes that have a mean."""
        at = np.cumsum(self.seen) - 1
        own = at[labels]
        x = (features - self.centre) @ self.vectors
        out = np.empty(len(GRID))
        for n, (e1, e2) in enumerate(GRID):
            scaled = self._scaled(e1, e2)
            logits = (x @ scaled.T + self._offsets(scaled))[:, self.seen]
            logits -= logits.max(1, keepdims=True)
            out[n] = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(own)), own])
        return np.minimum(out, LARGEST).astype(np.float32)

    def _scaled(self, e1: float, e2: float) -> NDArray[np.float64]:
        """(mu_c - m) Sigma^-1, in the eigenvectors."""
        return self.means / (e1 * self.values + e2 * self.scale)

    def _offsets(self, scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        offsets: NDArray[np.float64] = -0.5 * (scaled * self.means).sum(1)
        return offsets
