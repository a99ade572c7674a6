"""What a mask adds to a training step: masked and plain steps of one model, taken in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from provenance import seconds
from torch import Tensor, nn
from torch.nn import functional as F
from vit import VIT_B32, VisionTransformer

from deltamask import mask_model
from deltamask.masking import MaskedModel, _StraightThrough
from deltamask.training import Images, Prefix

__all__ = ["BATCH", "Step", "build", "measure_parts", "measure_steps"]

BATCH = 64
CLASSES = 10
MASKED = 35_389_440


@dataclass(frozen=True)
class Step:
    """Seconds of a step with the frozen prefix computed each time or kept."""

    prefix_cache: bool
    plain_s: float
    masked_s: float
    plain_min_s: float
    masked_min_s: float
    ratio: float
    """The median over neighbouring pairs of steps, so that a drift of the machine cancels."""


def measure_steps(masked: MaskedModel, batch: int, pairs: int, prefix_cache: bool) -> Step:
    """Adam on scores against Adam on the same blocks' weights: one plain step, one masked step, and so on."""
    data = Images(torch.randn(batch, 3, VIT_B32.side, VIT_B32.side), torch.randint(CLASSES, (batch,)))
    prefix = Prefix(masked, enabled=prefix_cache)
    data = prefix.keep(data, batch)
    if prefix_cache and data.activations is None:
        raise RuntimeError("the prefix cache does not work on this model")
    head = nn.Linear(VIT_B32.width, CLASSES).requires_grad_(False)
    leaves = {name: t.clone().requires_grad_() for name, t in masked.split(masked.frozen).items()}

    def loss() -> Tensor:
        return F.cross_entropy(head(prefix.features(data, slice(0, batch))), data.labels)

    def plain_loss() -> Tensor:
        with masked.using(leaves):
            return loss()

    masked.train().load_theta(torch.full((masked.num_masked,), 0.8).numpy())
    plain = _stepper(plain_loss, list(leaves.values()), 1e-5)
    scored = _stepper(loss, [masked.scores], 0.1)
    plain(), scored()
    taken = [(_time(plain), _time(scored)) for _ in range(pairs)]
    masked.scores.grad = None
    plains, maskeds = zip(*taken, strict=True)
    return Step(
        prefix_cache,
        statistics.median(plains),
        statistics.median(maskeds),
        min(plains),
        min(maskeds),
        statistics.median(m / p for p, m in taken),
    )


def measure_parts(masked: MaskedModel, repeats: int) -> dict[str, float]:
    """Seconds of what a masked step does beyond a plain one, each by itself."""
    theta = torch.sigmoid(masked.scores.detach())
    grads = tuple(torch.randn(w.shape) for w in masked.layers)

    def through() -> tuple[Tensor, ...]:
        out: tuple[Tensor, ...] = _StraightThrough.apply(masked.scores, masked, 7)
        return out

    out = through()
    parts = {
        "sigmoid": lambda: torch.sigmoid(masked.scores.detach()),
        "draw": lambda: masked._draw(theta, 7),
        "forward, all of it": through,
        "backward": lambda: torch.autograd.grad(out, masked.scores, grads, retain_graph=True),
    }
    return {name: seconds(call, repeats)[0] for name, call in parts.items()}


def build() -> MaskedModel:
    """ViT-B/32 with random weights and masks over its last five blocks."""
    torch.manual_seed(0)
    masked = mask_model(VisionTransformer(), "last:5")
    if masked.num_masked != MASKED:
        raise RuntimeError(f"{masked.num_masked} masked weights, expected {MASKED}")
    return masked


def _stepper(loss: Callable[[], Tensor], parameters: list[Tensor], lr: float) -> Callable[[], None]:
    optimizer = torch.optim.Adam(parameters, lr=lr, fused=True)  # as in `deltamask.training.fit`

    def step() -> None:
        value = loss()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()

    return step


def _time(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
