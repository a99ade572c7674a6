"""Low-rank adapters beside peft's: the same starts, outputs and gradients from the same A and B."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from checks import Check, close, within
from torch.nn import functional as F

from deltamask.config import load
from deltamask.methods.lora import Lora
from deltamask.task import build

__all__ = ["adapters"]

RANK, ALPHA = 4, 16.0


def adapters() -> Iterator[Check]:
    """Adapters on all projections of the embedded model, fused as they are."""
    import peft

    options = {"clients": 2, "lora.rank": RANK, "lora.alpha": ALPHA, "lora.targets": "*.qkv.weight"}
    task = build(load(values=options))
    names = [w.name.removesuffix(".weight") for w in task.masked.layers if w.name.endswith("qkv.weight")]
    config = peft.LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules=names, lora_dropout=0.0)
    module = copy.deepcopy(task.masked.module)
    torch.manual_seed(0)  # peft draws A from the global generator
    theirs = peft.get_peft_model(module, config)
    layers = {name: theirs.base_model.model.get_submodule(name) for name in names}

    method = Lora(task)
    start = method.split(torch.from_numpy(method.start()))
    first = np.concatenate([start[f"A{i}"].numpy().ravel() for i in range(len(names))])
    other = np.concatenate([layer.lora_A["default"].weight.detach().numpy().ravel() for layer in layers.values()])
    reason = f"{first.size:,} uniform numbers: four standard errors of a difference of means"
    largest, mean = ([float(size(np.abs(a))) for a in (first, other)] for size in (np.max, np.mean))
    yield within(0.06, "peft", "lora", "mean size of A at the start", *mean, reason)
    yield within(
        0.01, "peft", "lora", "largest number of A at the start", *largest, "so many come as close to the bound"
    )
    still = max(
        *(float(start[f"B{i}"].abs().max()) for i in range(len(names))),
        *(float(layer.lora_B["default"].weight.detach().abs().max()) for layer in layers.values()),
    )
    yield close(0.0, "peft", "lora", "largest number of B at the start, on either side", still, "zero by definition")

    rng = np.random.default_rng(0)
    numbers = torch.from_numpy((0.05 * rng.standard_normal(method.start().size)).astype(np.float32))
    leaves = {name: t.clone().requires_grad_() for name, t in method.split(numbers).items()}
    for i, layer in enumerate(layers.values()):
        layer.lora_A["default"].weight.data.copy_(leaves[f"A{i}"].detach())
        layer.lora_B["default"].weight.data.copy_(leaves[f"B{i}"].detach())
    images, labels = task.test.images[:64], task.test.labels[:64]
    with task.masked.using(method.weights(leaves)):
        ours = task.masked(images)
        F.cross_entropy(task.head.on(task.device)(ours), labels).backward()
    answer = theirs(images)
    F.cross_entropy(task.head.on(task.device)(answer), labels).backward()
    reason = "float32 products in another order: ours adds B A to the weight, peft to the layer's output"
    yield close(
        1e-4, "peft", "lora", "outputs: largest difference over the largest output", _apart(ours, answer), reason
    )
    for part in ("A", "B"):
        gradients = [
            (leaves[f"{part}{i}"].grad, getattr(layer, f"lora_{part}")["default"].weight.grad)
            for i, layer in enumerate(layers.values())
        ]
        worst = max(_apart(a, b) for a, b in gradients)
        yield close(1e-4, "peft", "lora", f"gradients of {part}: largest difference over the largest", worst, reason)


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).abs().max() / b.abs().max()).detach())
