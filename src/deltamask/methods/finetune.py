"""Fine-tuning: the masked layers' weights themselves, trained and averaged in float32 (FedAvg)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deltamask.codecs.base import Reader
from deltamask.errors import MalformedError
from deltamask.methods.base import Method, Receipt, State
from deltamask.precision import mixed
from deltamask.training import Images, fit
from deltamask.wire import SERVER

__all__ = ["METHOD", "FineTune"]


class FineTune(Method):
    """32 bits a weight, up and down."""

    summary = "the same layers' weights trained and averaged in float32"

    def init(self) -> State:
        return State(0, {"weights": self.task.masked.frozen.cpu().numpy().copy()})

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            state.arriving = (np.zeros(self.task.size, np.float64), [0])
            return self.seal("dense", SERVER, state.round, state.arrays["weights"].astype("<f4").tobytes())

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "dense")
        with self.task.stages("train"):
            trained = self.train(client, frame.round, data, self._numbers(frame.payload))
        with self.task.stages("encode"):
            return self.seal("dense", client, frame.round, trained.astype("<f4").tobytes())

    def train(self, client: int, round: int, data: Images, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Local epochs from ``weights`` on."""
        masked, head, how = self.task.masked, self.task.head.on(self.task.device), self.training
        flat = torch.from_numpy(weights).to(self.task.device)
        leaves = {name: t.clone().requires_grad_() for name, t in masked.split(flat).items()}

        def loss(index: Tensor) -> Tensor:
            with masked.using(leaves), mixed(how.precision, self.task.device):
                features = self.task.prefix.features(data, index)
            return F.cross_entropy(head(features.float()), data.labels[index])

        key = self.key(client, round)
        fit(loss, list(leaves.values()), len(data), epochs=how.epochs, batch=how.batch, lr=how.lr, key=key)
        out: NDArray[np.float32] = torch.cat([t.detach().reshape(-1) for t in leaves.values()]).cpu().numpy()
        return out

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        with self.task.stages("decode"):
            frame = self.open(payload, "dense", client, state.round, limit=4 * self.task.size)
            weights = self._numbers(frame.payload)
        with self.task.stages("aggregate"):
            total, arrived = state.arriving
            total += weights
            arrived[0] += 1
        return Receipt()

    def finish(self, state: State) -> State:
        total, arrived = state.arriving
        weights = (total / arrived[0]).astype(np.float32) if arrived[0] else state.arrays["weights"]
        return State(state.round + 1, {"weights": weights})

    @contextmanager
    def showing(self, state: State, view: str) -> Iterator[None]:
        masked = self.task.masked
        with masked.using(masked.split(torch.from_numpy(state.arrays["weights"]).to(masked.frozen.device))):
            yield

    def _numbers(self, data: bytes) -> NDArray[np.float32]:
        reader = Reader(data, "dense")
        out = np.frombuffer(reader.take(4 * self.task.size), "<f4").astype(np.float32)
        reader.end()
        if not np.isfinite(out).all():
            raise MalformedError("dense: numbers that are not finite")
        return out


METHOD = FineTune
