"""The embedded task: scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, enlarged for the embedded backbone.

A fifth of each class, drawn once and for all by a fixed key, is the test set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from deltamask.errors import DataError
from deltamask.sampling import derive, permutation
from deltamask.training import Images

__all__ = ["load"]


def load(root: Path | None = None) -> tuple[Images, Images]:
    """1,437 training and 360 test images of 28 x 28; nothing is read from ``root``."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("the digits come with scikit-learn: pip install 'deltamask[demo]'") from None
    raw = load_digits()
    small = torch.from_numpy(raw.images.astype(np.float32) / 16)[:, None]
    images = F.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(raw.target.astype(np.int64))
    order = permutation(derive(0, "digits split"), len(labels))
    test = np.concatenate([order[raw.target[order] == c][: round(0.2 * (raw.target == c).sum())] for c in range(10)])
    train = np.setdiff1d(np.arange(len(labels)), test)
    a, b = torch.from_numpy(train), torch.from_numpy(np.sort(test))
    return Images(images[a], labels[a]), Images(images[b], labels[b])
