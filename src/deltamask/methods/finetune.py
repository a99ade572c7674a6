"""Fine-tuning: the masked layers' weights themselves, trained and averaged in float32 (FedAvg)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deltamask.methods.base import Method, Receipt, State
from deltamask.precision import mixed
from deltamask.training import Images, fit
from deltamask.updates.plain import Plain
from deltamask.wire import SERVER

__all__ = ["METHOD", "FineTune"]

Vector = NDArray[np.float32]


class FineTune(Method):
    """32 bits a weight, up and down.

    Methods that train other numbers say so in `start`, `split` and `weights`.
    """

    summary = "the same layers' weights trained and averaged in float32"
    lr = 4e-3

    def start(self) -> Vector:
        """The trained numbers before the first round."""
        out: Vector = self.task.masked.frozen.cpu().numpy().copy()
        return out

    def split(self, numbers: Tensor) -> dict[str, Tensor]:
        """All numbers as the tensors that are trained (views)."""
        return self.task.masked.split(numbers)

    def weights(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """The model's weights that follow from the trained tensors, with their gradients."""
        return parts

    def init(self) -> State:
        return State(0, {"weights": self.start()})

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            numbers = state.arrays["weights"]
            state.arriving = (np.zeros(numbers.size, np.float64), [0])
            return self.seal("dense", SERVER, state.round, Plain().encode(numbers, 0, 0))

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "dense")
        with self.task.stages("train"):
            trained = self.train(client, frame.round, data, Plain().decode(frame.payload, self.task.size, 0))
        with self.task.stages("encode"):
            return self.seal("dense", client, frame.round, Plain().encode(trained, 0, 0))

    def train(self, client: int, round: int, data: Images, numbers: Vector) -> Vector:
        """Local epochs from ``numbers`` on."""
        masked, head, how = self.task.masked, self.task.head.on(self.task.device), self.training
        flat = torch.from_numpy(numbers).to(self.task.device)
        leaves = {name: t.clone().requires_grad_() for name, t in self.split(flat).items()}

        def loss(index: Tensor) -> Tensor:
            with masked.using(self.weights(leaves)), mixed(how.precision, self.task.device):
                features = self.task.prefix.features(data, index)
            return F.cross_entropy(head(features.float()), data.labels[index])

        key = self.key(client, round)
        fit(loss, list(leaves.values()), len(data), epochs=how.epochs, batch=how.batch, lr=how.lr, key=key)
        out: Vector = torch.cat([t.detach().reshape(-1) for t in leaves.values()]).cpu().numpy()
        return out

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        with self.task.stages("decode"):
            frame = self.open(payload, "dense", client, state.round, limit=4 * self.task.size)
            numbers = Plain().decode(frame.payload, self.task.size, 0)
        with self.task.stages("aggregate"):
            total, arrived = state.arriving
            total += numbers
            arrived[0] += 1
        return Receipt()

    def finish(self, state: State) -> State:
        total, arrived = state.arriving
        numbers = (total / arrived[0]).astype(np.float32) if arrived[0] else state.arrays["weights"]
        return State(state.round + 1, {"weights": numbers})

    @contextmanager
    def showing(self, state: State, view: str) -> Iterator[None]:
        masked = self.task.masked
        numbers = torch.from_numpy(state.arrays["weights"]).to(masked.frozen.device)
        with torch.no_grad(), masked.using(self.weights(self.split(numbers))):
            yield


METHOD = FineTune
