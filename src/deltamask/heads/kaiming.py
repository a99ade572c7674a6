"""A random classifier of the right size: what masks can do without one that knows the data."""

from __future__ import annotations

import numpy as np

from deltamask.heads.base import HeadKind, Made
from deltamask.heads.linear import Head
from deltamask.sampling import derive, uniforms
from deltamask.task import Task

__all__ = ["HEAD", "Kaiming", "draw"]


class Kaiming(HeadKind):
    """A random classifier drawn from the shared seed; nothing is sent.

    The clients hold the seed already, since it draws the masks: both sides draw the same numbers, for 0 bytes.
    """

    def make(self, task: Task) -> Made:
        """The drawn classifier."""
        return Made(draw(task.classes, task.features, task.config.seed), 0, 0)


def draw(classes: int, features: int, seed: int) -> Head:
    """Kaiming-uniform weights (He et al. 2015, eq. 10, fan-in): variance 2 / features, no bias.

    Uniform rather than normal: it needs a square root and a product, which IEEE 754 rounds the same everywhere,
    while the logarithm and cosine of a normal draw differ from one mathematical library to the next.
    """
    unit = uniforms(derive(seed, "kaiming"), classes * features).astype(np.float64) / 2.0**30 - 1
    weight = (unit * np.sqrt(6 / features)).astype(np.float32).reshape(classes, features)
    return Head(weight, np.zeros(classes, np.float32))


HEAD = Kaiming()
