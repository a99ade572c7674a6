"""Local epochs: theta_g -> theta_k on one client's images, with the frozen prefix computed only once.

Everything in front of the first masked block gives the same activations in every epoch and round. `Prefix`
keeps them, in memory or in a memory-mapped file, and feeds them to that block in place of its input; the module's
own forward code runs as it is, over blocks that step aside. The first batch is computed both ways: where the
results are not bit for bit the same (a model that reads its early blocks elsewhere), it says so and stands back.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from deltamask import memory
from deltamask.config import Precision
from deltamask.datasets import arrays
from deltamask.datasets.pixels import Pixels
from deltamask.errors import DataError
from deltamask.masking import MaskedModel, find_blocks
from deltamask.precision import mixed
from deltamask.sampling import derive, permutation

__all__ = ["Images", "LocalTraining", "Prefix", "fit", "train_scores"]

_CHECKED = 32
"""How many images are run both ways."""


@dataclass(frozen=True)
class Images:
    """Images with their labels, and the activations in front of the first masked block where they are kept."""

    images: Tensor | Pixels
    labels: Tensor
    activations: Tensor | None = None
    stand_in: Tensor | None = None
    """One image that takes the place of all of them where activations are kept: what becomes of it is discarded."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> Images:
        """Some of the images."""
        index = torch.from_numpy(rows)
        images = self.images.take(rows) if isinstance(self.images, Pixels) else self.images[index]
        kept = None if self.activations is None else self.activations[index]
        return Images(images, self.labels[index], kept, self.stand_in)


class Prefix:
    """The frozen part of a masked model in front of its first masked block.

    ``first`` is that block's number; ``usable`` is false where there is none: no repeated blocks, masks in the first
    one, or masks in front of it.
    """

    def __init__(self, masked: MaskedModel, enabled: bool = True) -> None:
        self.masked = masked
        blocks = find_blocks(masked.module)
        owner = {
            w.name: next((i for i, (p, _) in enumerate(blocks) if w.name.startswith(p + ".")), -1)
            for w in masked.layers
        }
        self.first = min(owner.values())
        self.usable = enabled and self.first > 0
        self._skipped = [block for _, block in blocks[: self.first]] if self.usable else []
        self._entry = blocks[self.first][1] if self.usable else masked.module
        self._checked = False

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.masked.frozen.device

    def keep(self, data: Images, batch: int = 256, file: Path | None = None, most: float = math.inf) -> Images:
        """``data`` with its activations; as it came where there is no usable prefix, or they take too much room.

        They are kept in memory, or in ``file`` if it takes ``most`` bytes or fewer. A file that is there already is
        taken as it is: its name must change with the model and with the images.
        """
        if not self.usable or not len(data):
            return data
        few = data.images[:_CHECKED].to(self.device)
        seen = self._record(few)
        if seen is None or not self._agrees(few, seen):
            return self._without(data, "the model does not run from its first masked block alone")
        shape = (len(data), *seen.shape[1:])
        kept = None if file is None else arrays.reopened(file, shape, np.float32)
        if kept is None:
            needed, free = 4 * math.prod(shape), most if file is not None else (memory.free_bytes() or math.inf) / 2
            if needed > free or seen.dtype != torch.float32:
                why = (
                    f"activations of {len(data)} images take {needed / 1e9:.1f} GB, the limit is {free / 1e9:.1f} GB"
                )
                return self._without(data, f"{why} (data.cache_dir, data.cache_gb)")
            with arrays.made(file, shape, np.float32) as out:
                for at in range(0, len(data), batch):
                    found = self._record(data.images[at : at + batch].to(self.device))
                    out[at : at + batch] = found.cpu().numpy() if found is not None else np.nan
            kept = out if file is None else arrays.reopened(file, shape, np.float32)
        return replace(data, activations=torch.from_numpy(kept), stand_in=few[:1].clone())

    def _without(self, data: Images, why: str) -> Images:
        warnings.warn(f"{why}; going on without the prefix cache", stacklevel=3)
        self.usable = False
        return data

    def features(self, data: Images, index: Tensor | slice) -> Any:
        """The masked model's output for some of the images, from kept activations where there are any."""
        if data.activations is None or data.stand_in is None:
            return self.masked(data.images[index].to(self.device))
        kept = data.activations[index].to(self.device)
        with self._entering(kept):
            return self.masked(data.stand_in.expand(len(kept), -1, -1, -1))

    def _record(self, images: Tensor) -> Tensor | None:
        """What enters the first masked block; none where that is not one tensor, given by position."""
        seen: list[Any] = []

        def stop(_: nn.Module, args: tuple[Any, ...]) -> None:
            seen.append(args[0] if args else None)
            raise _ReachedError  # what comes behind is not asked for

        hook = self._entry.register_forward_pre_hook(stop)
        try:
            with self.masked.showing("plain"), suppress(_ReachedError):
                self.masked(images)
        finally:
            hook.remove()
        return seen[0] if seen and isinstance(seen[0], Tensor) else None

    def _agrees(self, images: Tensor, seen: Tensor) -> bool:
        """Whether the model, entered at its first masked block, gives what it gives as a whole; asked once."""
        if not self._checked:
            with self.masked.showing("sampled", key=1):
                whole = self.masked(images)
                try:
                    with self._entering(seen):
                        short = self.masked(images[:1].expand_as(images))
                except Exception:  # a model that cannot run this way is what is being asked
                    return False
            self._checked = isinstance(whole, Tensor) and torch.equal(whole, short)
        return self._checked

    @contextmanager
    def _entering(self, activations: Tensor) -> Iterator[None]:
        def replace(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (activations, *args[1:])

        with ExitStack() as stack:
            for block in self._skipped:
                stack.enter_context(_standing_aside(block))
            hook = self._entry.register_forward_pre_hook(replace)
            stack.callback(hook.remove)
            yield


class _ReachedError(Exception):
    """The forward pass has come as far as it was asked to."""


@contextmanager
def _standing_aside(block: nn.Module) -> Iterator[None]:
    """Makes ``block`` hand its input on; an instance attribute shadows its forward method meanwhile."""
    block.__dict__["forward"] = lambda x, *_args, **_kwargs: x
    try:
        yield
    finally:
        del block.__dict__["forward"]


def fit(
    loss: Callable[[Tensor], Tensor],
    parameters: list[Tensor],
    size: int,
    *,
    epochs: int,
    batch: int,
    lr: float,
    key: int,
) -> float:
    """Adam, fresh, over ``epochs`` random orders of ``range(size)``; the mean loss of the last epoch.

    ``loss`` maps the positions of a batch to a scalar. The order of the images depends on ``key`` alone.
    """
    if size == 0:
        raise DataError("a client has no training images; use a partition with a minimum size")
    optimizer = torch.optim.Adam(parameters, lr=lr, fused=True)
    mean = 0.0
    for epoch in range(epochs):
        order = torch.from_numpy(permutation(derive(key, "order", epoch), size))
        mean = 0.0
        for index in torch.split(order, batch):
            value = loss(index)
            if not torch.isfinite(value):
                raise DataError(
                    f"the training loss is {value.item()} in epoch {epoch + 1}; lower the learning rate ({lr})"
                )
            optimizer.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            mean += value.item() * len(index) / size
    return mean


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: METHOD, decisions 11 and 17."""

    epochs: int = 1
    batch: int = 64
    lr: float = 0.1
    precision: Precision = "float32"


def train_scores(
    prefix: Prefix,
    head: Callable[[Tensor], Tensor],
    data: Images,
    theta_g: NDArray[np.float32],
    how: LocalTraining,
    key: int,
) -> NDArray[np.float32]:
    """ClientUpdate of Algorithm 1: a mask drawn for each batch, Adam on scores, back to probabilities."""
    masked = prefix.masked
    masked.load_theta(theta_g)
    masked.reseed(derive(key, "masks"))

    def loss(index: Tensor) -> Tensor:
        with mixed(how.precision, prefix.device):
            features = prefix.features(data, index)
        return F.cross_entropy(head(features.float()), data.labels[index])

    fit(loss, [masked.scores], len(data), epochs=how.epochs, batch=how.batch, lr=how.lr, key=key)
    masked.scores.grad = None
    return masked.theta()
