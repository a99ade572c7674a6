"""A linear classifier: its numbers, its bytes, its local training and its average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deltamask.codecs.base import Reader
from deltamask.errors import MalformedError
from deltamask.sampling import derive, uniforms
from deltamask.training import fit

__all__ = ["Average", "Head", "from_bytes", "to_bytes", "train_head"]


@dataclass(frozen=True)
class Head:
    """A linear classifier: ``features @ weight.T + bias``."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    @classmethod
    def init(cls, classes: int, features: int, seed: int) -> Head:
        """Uniform weights within 1/sqrt(features), the same on every machine; no bias."""
        unit = uniforms(derive(seed, "head"), classes * features).astype(np.float64) / 2.0**30 - 1
        weight = (unit / np.sqrt(features)).astype(np.float32).reshape(classes, features)
        return cls(weight, np.zeros(classes, np.float32))

    def on(self, device: torch.device) -> _Linear:
        """The head as a function of feature tensors."""
        return _Linear(torch.from_numpy(self.weight).to(device), torch.from_numpy(self.bias).to(device))


@dataclass(frozen=True)
class _Linear:
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


def to_bytes(head: Head) -> bytes:
    """float32, little-endian, weights then biases."""
    return head.weight.astype("<f4").tobytes() + head.bias.astype("<f4").tobytes()


def from_bytes(data: bytes, classes: int, features: int) -> Head:
    """The inverse of `to_bytes` for untrusted bytes."""
    reader = Reader(data, "head")
    weight = np.frombuffer(reader.take(4 * classes * features), "<f4").astype(np.float32).reshape(classes, features)
    bias = np.frombuffer(reader.take(4 * classes), "<f4").astype(np.float32)
    reader.end()
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise MalformedError("head: numbers that are not finite")
    return Head(weight, bias)


def train_head(head: Head, features: Tensor, labels: Tensor, *, epochs: int, batch: int, lr: float, key: int) -> Head:
    """One client's local probing: Adam on the head over fixed features."""
    weight = torch.from_numpy(head.weight.copy()).to(features.device).requires_grad_()
    bias = torch.from_numpy(head.bias.copy()).to(features.device).requires_grad_()

    def loss(index: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(features[index], weight, bias), labels[index])

    fit(loss, [weight, bias], len(labels), epochs=epochs, batch=batch, lr=lr, key=key)
    return Head(weight.detach().cpu().numpy(), bias.detach().cpu().numpy())


class Average:
    """The plain mean of heads, added up as they arrive."""

    def __init__(self, classes: int, features: int) -> None:
        self.weight = np.zeros((classes, features))
        self.bias = np.zeros(classes)
        self.count = 0

    def add(self, head: Head) -> None:
        """One client's head."""
        self.weight += head.weight
        self.bias += head.bias
        self.count += 1

    def mean(self, otherwise: Head) -> Head:
        """The mean so far; ``otherwise`` where nothing has arrived."""
        if not self.count:
            return otherwise
        return Head((self.weight / self.count).astype(np.float32), (self.bias / self.count).astype(np.float32))
