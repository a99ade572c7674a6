"""What a data set is, and where it comes from.

A data set is two `Labelled`: images for training and images for testing, with one table of classes. It is named by

- one of our own: ``digits``, ``cifar10``, ``fashion-mnist``, ... (`deltamask list datasets`);
- a local folder: parquet, a folder of images for each class, or the IDX files of the MNIST family;
- a hub id: ``uoft-cs/cifar10``.

The folder is the registry: a file of this package with ``DATASET``, an object that has ``about``, ``load(data)`` and
``available()``, is a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from deltamask.config import DataSettings
from deltamask.errors import DataError, unknown_name
from deltamask.hub import reachable
from deltamask.registry import members
from deltamask.sampling import derive, permutation

__all__ = ["Labelled", "held_out", "load"]

_HELD_OUT = 0.2


@dataclass(frozen=True)
class Labelled:
    """Images with their classes."""

    images: Tensor | NDArray[np.uint8] | Sequence[Any]
    """Numbers from 0 to 1, (count, channels, height, width), or one thing for each image that Pillow takes."""
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    origin: str
    """What caches know these images by: changes with the content."""
    columns: Mapping[str, Callable[[], NDArray[Any]]] = field(default_factory=dict)
    """What else is known of each image, by name, read when it is asked for."""
    name: str = ""
    """What messages call these images; none: their origin."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.origin)
        if len(self.images) != len(self.labels):
            raise DataError(f"{self.name}: {len(self.images)} images and {len(self.labels)} labels")
        if len(self.classes) < 2:
            raise DataError(f"{self.name}: {len(self.classes)} class in all; there is nothing to tell apart")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if wrong.size:
            raise DataError(
                f"{self.name}: image {wrong[0]} has label {self.labels[wrong[0]]}, and {wrong.size - 1} more are "
                f"out of range; expected 0 to {len(self.classes) - 1}. Is it the right column (data.label)?"
            )

    def __len__(self) -> int:
        return len(self.labels)


def load(name: str, data: DataSettings) -> tuple[Labelled, Labelled]:
    """The training and test images of the data set of that name; see the top of this module."""
    from deltamask.datasets.source import Source

    own = members("deltamask.datasets", "DATASET")
    if name not in own and "/" not in name and not Path(name).is_dir() and not reachable():
        raise unknown_name("data set", name, [*own, "a folder", "a hub id"])
    found = Source(name) if Path(name).is_dir() or name not in own else own[name]
    out: tuple[Labelled, Labelled] = found.load(data)
    return out


def held_out(labels: NDArray[np.int64], what: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions for training and testing where there is one set only: a fifth of each class, the same every time."""
    order = permutation(derive(0, what), labels.size)
    test = np.concatenate(
        [order[labels[order] == c][: round(_HELD_OUT * int((labels == c).sum()))] for c in np.unique(labels)]
    )
    return np.setdiff1d(np.arange(labels.size), test), np.sort(test)
