"""Masks over the weights of any `nn.Module`, whose own forward code stays as it is.

`mask_model` chooses linear and convolution weights by block, freezes everything and puts one flat vector of
scores beside the module. A forward pass swaps ``mask * weight`` in for the chosen weights
(`torch.func.functional_call`) and leaves the module untouched.

>>> import torch
>>> from torch import nn
>>> blocks = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(6)])
>>> masked = mask_model(blocks, blocks="last:5")
>>> masked.num_masked
320
>>> with masked.showing("thresholded"):
...     masked(torch.ones(2, 8)).shape
torch.Size([2, 8])
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from deltamask.errors import ConfigError
from deltamask.kernels import draws
from deltamask.threads import over_chunks
from deltamask.wire import fingerprint

__all__ = ["STE", "MaskedModel", "MaskedWeight", "View", "choose_weights", "find_blocks", "mask_model"]

View = Literal["sampled", "expected", "thresholded", "plain"]
STE = Literal["identity", "expected"]

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WORD = 2**64 - 1


@dataclass(frozen=True)
class MaskedWeight:
    """One masked parameter: its name in the module and its place in the flat vector of scores."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    block: int
    """The number of its block; -1 where weights were not chosen by block."""


def _maskable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and tensors of the linear and convolution weights of ``module``, each tensor once."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            linear = isinstance(owner, (nn.Linear, *_CONV)) and name == "weight"
            attention = isinstance(owner, nn.MultiheadAttention) and name.endswith("_proj_weight")
            transposed = type(owner).__name__ == "Conv1D" and name == "weight"  # GPT-2's linear layer
            if (linear or attention or transposed) and id(parameter) not in seen:
                seen.add(id(parameter))
                yield (f"{prefix}.{name}" if prefix else name), parameter


def find_blocks(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The repeated blocks of a model, found by structure: the container of like children that holds most weights.

    Names differ between libraries and versions (``blocks``, ``encoder.layer``, ``layers``); that a backbone is a
    list of blocks of one type does not. The outermost list wins a tie.
    """
    best: list[tuple[str, nn.Module]] = []
    most = 0
    for prefix, container in module.named_modules():
        if not isinstance(container, nn.ModuleList | nn.Sequential):
            continue
        by_type: dict[type[nn.Module], list[tuple[str, nn.Module]]] = {}
        for name, child in container.named_children():
            if any(True for _ in _maskable(child)):
                by_type.setdefault(type(child), []).append((f"{prefix}.{name}" if prefix else name, child))
        for blocks in by_type.values():
            weight = sum(p.numel() for _, block in blocks for _, p in _maskable(block))
            if len(blocks) > 1 and weight > most:
                best, most = blocks, weight
    return best


def choose_weights(module: nn.Module, blocks: str = "last:5") -> list[MaskedWeight]:
    """The weights that ``blocks`` names, in the order of the module.

    ``last:N`` and ``first:N`` take the linear and convolution weights of N repeated blocks, ``all`` those of the
    whole module, and anything else is a pattern for parameter names in which ``*`` stands for anything
    (several with commas): ``"*.fc1.weight,*.fc2.weight"``.
    """
    if isinstance(module, MaskedModel):
        raise ConfigError("the model carries a mask already; mask the module inside, .module")
    candidates = list(_maskable(module))
    if not candidates:
        raise ConfigError(f"{type(module).__name__} has no linear or convolution weights to mask")
    for name, parameter in candidates:
        if isinstance(parameter, nn.UninitializedParameter):
            raise ConfigError(f"weight {name} has no shape yet; run the module once before masking it")
    number = {}
    found = re.fullmatch(r"(first|last):(\d+)", blocks)
    if found:
        have, wanted = find_blocks(module), int(found[2])
        if not have:
            raise ConfigError(
                f"blocks={blocks!r}: {type(module).__name__} has no list of repeated blocks; "
                f"use blocks='all' or a pattern, for instance {candidates[-1][0]!r}"
            )
        if not 1 <= wanted <= len(have):
            raise ConfigError(
                f"blocks={blocks!r}: {type(module).__name__} has {len(have)} blocks; take 1 to {len(have)}"
            )
        first = len(have) - wanted if found[1] == "last" else 0
        for i, (prefix, _) in enumerate(have[first : first + wanted], start=first):
            number.update({name: i for name, _ in candidates if name.startswith(prefix + ".")})
    elif blocks == "all":
        number = {name: -1 for name, _ in candidates}
    else:
        patterns = [p.strip() for p in blocks.split(",")]
        number = {name: -1 for name, _ in candidates if any(fnmatchcase(name, p) for p in patterns)}
        if not number:
            names = ", ".join(name for name, _ in candidates[:4])
            raise ConfigError(
                f"blocks={blocks!r} matches no maskable weight; there are {len(candidates)}: {names}, ..."
            )
    chosen: list[MaskedWeight] = []
    start = 0
    for name, parameter in candidates:
        if name in number:
            stop = start + parameter.numel()
            chosen.append(MaskedWeight(name, tuple(parameter.shape), start, stop, number[name]))
            start = stop
    return chosen


class MaskedModel(nn.Module):
    """A frozen module with one score for each chosen weight; made by `mask_model`.

    In training mode each forward pass draws a mask anew, from ``Bern(sigmoid(scores))`` and the key that `reseed`
    set, and gradients reach ``scores`` through the straight-through estimator. In evaluation mode the mask is
    thresholded; inside `showing` it is what was asked for. The frozen module itself always stays in evaluation
    mode: statistics of batch norms would be trained state that no mask carries.
    """

    def __init__(self, module: nn.Module, weights: Sequence[MaskedWeight], ste: STE = "identity") -> None:
        super().__init__()
        if ste not in ("identity", "expected"):
            raise ConfigError(f"ste is {ste!r}; expected 'identity' or 'expected'")
        self.module = module.requires_grad_(False).eval()
        self.layers = tuple(weights)
        self.ste: STE = ste
        self.num_masked = weights[-1].stop
        """d: the number of masked weights."""
        for w in weights:
            parameter = module.get_parameter(w.name)
            if parameter.dtype != torch.float32:
                raise ConfigError(f"weight {w.name} is {parameter.dtype}; masks need float32: module.float()")
        flat = torch.cat([module.get_parameter(w.name).detach().reshape(-1) for w in weights])
        self.register_buffer("frozen", flat, persistent=False)
        self.frozen: Tensor
        self.scores = nn.Parameter(torch.full_like(flat, 3.0))
        self._key = 0
        self._cut: float | None = None
        self._shown: dict[str, Tensor] | None = None

    def train(self, mode: bool = True) -> MaskedModel:
        """Switches between drawn and thresholded masks."""
        super().train(mode)
        self.module.eval()
        return self

    def fingerprint(self) -> int:
        """64 bits that identify the base model: every parameter and buffer of the frozen module."""
        return module_fingerprint(self.module)

    def reseed(self, key: int) -> None:
        """Sets the key of the next drawn mask; each forward pass moves on to the next key."""
        self._key = key & _WORD

    def load_theta(self, theta: NDArray[np.float32]) -> None:
        """Sets the scores to ``logit(theta)``."""
        with torch.no_grad():
            self.scores.copy_(torch.logit(self._checked(theta)))

    def theta(self) -> NDArray[np.float32]:
        """The probabilities ``sigmoid(scores)``."""
        out: NDArray[np.float32] = torch.sigmoid(self.scores.detach()).cpu().numpy()
        return out

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector of d numbers as tensors of the masked weights' names and shapes (views)."""
        return {w.name: flat[w.start : w.stop].view(w.shape) for w in self.layers}

    @contextmanager
    def showing(self, view: View, theta: NDArray[np.float32] | None = None, key: int = 0) -> Iterator[MaskedModel]:
        """Forward passes inside use fixed weights of ``theta`` (default: of the scores), without gradients.

        ``thresholded`` keeps the weights with theta >= 1/2 (what is exported), ``expected`` scales each by theta,
        ``sampled`` draws one mask from ``key``, ``plain`` is the base model.
        """
        p = self._checked(self.theta() if theta is None else theta).to(self.frozen.device)
        if view == "thresholded":
            flat = self.frozen * (p >= 0.5)
        elif view == "expected":
            flat = self.frozen * p
        elif view == "sampled":
            flat = self._draw(p, key)
        elif view == "plain":
            flat = self.frozen
        else:
            raise ConfigError(f"view is {view!r}; expected sampled, expected, thresholded or plain")
        with self.using(self.split(flat)), torch.no_grad():
            yield self

    @contextmanager
    def using(self, weights: dict[str, Tensor]) -> Iterator[MaskedModel]:
        """Forward passes inside use these tensors for the masked weights, with whatever gradients they carry."""
        before, self._shown = self._shown, weights
        try:
            yield self
        finally:
            self._shown = before

    @contextmanager
    def cutting(self, at: float) -> Iterator[MaskedModel]:
        """Masks of training inside are not drawn: they keep the weights with theta >= ``at``."""
        before, self._cut = self._cut, at
        try:
            yield self
        finally:
            self._cut = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass, over masked weights."""
        if self._shown is not None:
            return functional_call(self.module, self._shown, args, kwargs)
        if not self.training:
            with self.showing("thresholded"):
                return self(*args, **kwargs)
        tensors = _StraightThrough.apply(  # type: ignore[no-untyped-call]  # torch leaves apply untyped
            self.scores, self, self._key
        )
        self._key = (self._key + 1) & _WORD
        return functional_call(
            self.module, dict(zip((w.name for w in self.layers), tensors, strict=True)), args, kwargs
        )

    def _checked(self, theta: NDArray[np.float32]) -> Tensor:
        if theta.shape != (self.num_masked,):
            raise ConfigError(f"theta has shape {theta.shape}; the model has {self.num_masked} masked weights")
        # Written so that NaN fails too.
        if theta.size and not (float(theta.min()) >= 0 and float(theta.max()) <= 1):
            raise ConfigError(f"probabilities run from {theta.min()} to {theta.max()}; expected 0 to 1")
        return torch.from_numpy(np.require(theta, np.float32, ["C", "W"]))

    def _draw(self, theta: Tensor, key: int) -> Tensor:
        if self._cut is not None:
            return self.frozen * (theta >= self._cut)
        if theta.device.type != "cpu":
            # Which mask a batch trains on is nobody else's business, so a device may use its own generator.
            rng = torch.Generator(theta.device).manual_seed(key & (2**63 - 1))
            return self.frozen * (torch.rand(theta.shape, generator=rng, device=theta.device) < theta)
        out = torch.empty_like(self.frozen)
        p, w, o = theta.numpy(), self.frozen.numpy(), out.numpy()
        over_chunks(lambda a, b: draws.masked_weights(np.uint64(key), a, p[a:b], w[a:b], o[a:b]), p.size)
        return out


class _StraightThrough(torch.autograd.Function):
    """scores -> masked weights, as one tensor for each layer; the gradient passes the drawn bit straight through.

    ``identity`` takes dm/dtheta = 1; ``expected`` multiplies by theta, as FedPM's public code does.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, model: MaskedModel, key: int) -> tuple[Tensor, ...]:
        theta = torch.sigmoid(scores)
        ctx.save_for_backward(theta)
        ctx.model = model
        flat = model._draw(theta.detach(), key)
        return tuple(model.split(flat).values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (theta,) = ctx.saved_tensors
        model: MaskedModel = ctx.model
        out = torch.empty_like(theta)
        for weight, grad in zip(model.layers, grads, strict=True):
            span = slice(weight.start, weight.stop)
            torch.mul(grad.reshape(-1), model.frozen[span], out=out[span])
        if model.ste == "expected":
            out.mul_(theta)
        # In place: another array of this size costs more in fresh pages than in arithmetic.
        return torch.ops.aten.sigmoid_backward.grad_input(out, theta, grad_input=out), None, None


def module_fingerprint(module: nn.Module) -> int:
    """64 bits that identify a model: the names, shapes and values of its parameters and buffers."""
    state = {name: t.detach().cpu() for name, t in module.state_dict().items()}
    return fingerprint({n: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for n, t in state.items()})


def mask_model(module: nn.Module, blocks: str = "last:5", *, ste: STE = "identity") -> MaskedModel:
    """A `MaskedModel` over ``module``: its weights frozen, those of ``blocks`` under a trainable mask.

    ``blocks`` is ``last:N``, ``first:N``, ``all`` or a pattern of parameter names (`choose_weights`).
    """
    return MaskedModel(module, choose_weights(module, blocks), ste)
