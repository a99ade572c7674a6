"""Local epochs: theta_g -> theta_k on one client's images, with the frozen prefix computed only once.

Everything in front of the first masked block gives the same activations in every epoch and round. `Prefix`
keeps them, in memory or in a memory-mapped file, and feeds them to that block in place of its input; the module's
own forward code runs as it is, over blocks that step aside. The first batch is computed both ways: where the
results are not bit for bit the same (a model that reads its early blocks elsewhere), it says so and stands back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from deltamask.errors import DataError
from deltamask.masking import MaskedModel, find_blocks
from deltamask.sampling import derive, permutation

__all__ = ["Images", "LocalTraining", "Prefix", "fit", "train_scores"]


@dataclass(frozen=True)
class Images:
    """Images with their labels, and the activations in front of the first masked block where they are kept.

    ``columns`` holds what else a data set knows of each image, strings or integers by name: `partition` may use it.
    """

    images: Tensor
    labels: Tensor
    activations: Tensor | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


class Prefix:
    """The frozen part of a masked model in front of its first masked block.

    ``usable`` is false where there is none: no repeated blocks, masks in the first one, or masks in front of it.
    """

    def __init__(self, masked: MaskedModel, enabled: bool = True) -> None:
        self.masked = masked
        blocks = find_blocks(masked.module)
        owner = {
            w.name: next((i for i, (p, _) in enumerate(blocks) if w.name.startswith(p + ".")), -1)
            for w in masked.layers
        }
        first = min(owner.values())
        self.usable = enabled and first > 0
        self._skipped = [block for _, block in blocks[:first]] if self.usable else []
        self._entry = blocks[first][1] if self.usable else masked.module

    def keep(self, data: Images, batch: int = 256, file: Path | None = None) -> Images:
        """``data`` with its activations, in memory or in ``file``; as it came where there is no usable prefix."""
        if not self.usable or not len(data):
            return data
        kept: Tensor | None = None
        for at in range(0, len(data), batch):
            images = data.images[at : at + batch]
            seen = self._record(images)
            if seen is None or (at == 0 and not self._agrees(images, seen)):
                warnings.warn(
                    "the model does not run from its first masked block alone; going on without the prefix cache",
                    stacklevel=2,
                )
                self.usable = False
                return data
            if kept is None:
                kept = _room((len(data), *seen.shape[1:]), seen, file)
            kept[at : at + batch] = seen
        return Images(data.images, data.labels, kept)

    def features(self, data: Images, index: Tensor | slice) -> Any:
        """The masked model's output for some of the images, from kept activations where there are any."""
        if data.activations is None:
            return self.masked(data.images[index])
        with self._entering(data.activations[index]):
            return self.masked(data.images[index])

    def _record(self, images: Tensor) -> Tensor | None:
        """What enters the first masked block; none where that is not one tensor, given by position."""
        seen: list[Any] = []
        hook = self._entry.register_forward_pre_hook(lambda _, args: seen.append(args[0] if args else None))
        try:
            with self.masked.showing("plain"):
                self.masked(images)
        finally:
            hook.remove()
        return seen[0] if seen and isinstance(seen[0], Tensor) else None

    def _agrees(self, images: Tensor, seen: Tensor) -> bool:
        with self.masked.showing("sampled", key=1):
            whole = self.masked(images)
            try:
                with self._entering(seen):
                    short = self.masked(images)
            except Exception:  # a model that cannot run this way is what is being asked
                return False
        return isinstance(whole, Tensor) and torch.equal(whole, short)

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


def _room(shape: tuple[int, ...], like: Tensor, file: Path | None) -> Tensor:
    if file is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    flat = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
    return torch.from_numpy(flat)


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
        return F.cross_entropy(head(prefix.features(data, index)), data.labels[index])

    fit(loss, [masked.scores], len(data), epochs=how.epochs, batch=how.batch, lr=how.lr, key=key)
    masked.scores.grad = None
    return masked.theta()
