"""The embedded task: scikit-learn's 1,797 handwritten digits, 8 x 8 pixels.

A fifth of each class, drawn once and for all by a fixed key, is the test set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deltamask.config import DataSettings
from deltamask.datasets.base import Labelled, held_out
from deltamask.errors import DataError

__all__ = ["DATASET", "Digits"]


@dataclass(frozen=True)
class Digits:
    """Nothing is read but scikit-learn's own file."""

    about: str = "scikit-learn's 1,797 handwritten digits, 8 x 8 pixels; the embedded default"

    def available(self) -> str | None:
        """With scikit-learn, always."""
        from importlib.util import find_spec

        return "scikit-learn" if find_spec("sklearn") else None

    def load(self, data: DataSettings) -> tuple[Labelled, Labelled]:
        """1,438 training and 359 test images; the settings change nothing."""
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise DataError("the digits come with scikit-learn: pip install 'deltamask[demo]'") from None
        raw = load_digits()
        images = torch.from_numpy(raw.images.astype(np.float32) / 16)[:, None]
        labels = raw.target.astype(np.int64)
        classes = tuple(str(c) for c in range(10))
        train, test = held_out(labels, "digits split")
        return (
            Labelled(images[train], labels[train], classes, "digits train"),
            Labelled(images[test], labels[test], classes, "digits test"),
        )


DATASET = Digits()
