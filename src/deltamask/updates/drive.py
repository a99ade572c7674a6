"""DRIVE (Vargaftik et al. 2021, arXiv 2105.08339): the signs of the rotated vector, and a scale for each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import ConfigError
from deltamask.updates.eden import Eden

__all__ = ["Drive"]


@dataclass(frozen=True)
class Drive(Eden):
    """One bit for each number; the scale is |x|^2 / |y|_1."""

    bits: float = 1.0

    def __post_init__(self) -> None:
        if self.bits != 1:
            raise ConfigError(f"update.bits is {self.bits}; drive has 1, eden any number")

    def levels(self) -> NDArray[np.float32]:
        """Signs."""
        return np.array([-1, 1], np.float32)
