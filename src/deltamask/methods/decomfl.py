"""DeComFL (Li et al. 2024, arXiv 2405.15861): zeroth-order steps along shared random directions, scalars both ways.

Every step has directions z of -1 and 1 that all sides draw from the shared seed. A client measures how its loss
changes along each, (L(w + mu z) - L(w - mu z)) / 2 mu, goes down by it, and sends these numbers alone. The server
averages them over the clients and takes the same steps with the means. A client that knows all means since the first
round can take them too, so that is what it is sent: clients keep nothing between rounds.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deltamask.codecs.base import Reader
from deltamask.errors import DataError, MalformedError
from deltamask.kernels.draws import add_signs
from deltamask.methods.base import Receipt, State
from deltamask.methods.finetune import FineTune
from deltamask.precision import mixed
from deltamask.sampling import derive, permutation
from deltamask.task import Task
from deltamask.threads import over_chunks
from deltamask.training import Images
from deltamask.wire import SERVER

__all__ = ["METHOD", "DeComFL"]

Vector = NDArray[np.float32]


class DeComFL(FineTune):
    """Four bytes a step and direction; the weights and the view of them are those of fine-tuning."""

    summary = "zeroth-order steps along shared directions, scalars both ways (Li et al. 2024)"
    lr = 1e-3

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        settings = self.config.zeroth
        self.steps, self.directions, self.mu = settings.steps, settings.directions, settings.mu
        self._replayed: tuple[bytes, Vector] = b"", self.start()
        """Means, and the weights that they lead to: what a client would compute anew, kept for the next one."""

    def init(self) -> State:
        return State(0, {"weights": self.start(), "means": np.zeros(0, np.float32)})

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            state.arriving = (np.zeros(self.steps * self.directions), [0])
            return self.seal("scalars", SERVER, state.round, state.arrays["means"].astype("<f4").tobytes())

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "scalars")
        with self.task.stages("train"):
            self._numbers(frame.payload, frame.round)
            weights = self._replay(frame.payload)
            slopes = self._local_steps(client, frame.round, data, weights.copy())
        with self.task.stages("encode"):
            return self.seal("scalars", client, frame.round, slopes.astype("<f4").tobytes())

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        with self.task.stages("decode"):
            limit = 4 * self.steps * self.directions
            frame = self.open(payload, "scalars", client, state.round, limit=limit)
            slopes = self._numbers(frame.payload, 1)
        with self.task.stages("aggregate"):
            total, arrived = state.arriving
            total += slopes
            arrived[0] += 1
        return Receipt()

    def finish(self, state: State) -> State:
        with self.task.stages("aggregate"):
            total, arrived = state.arriving
            means = (total / max(1, arrived[0])).astype(np.float32)
            weights = state.arrays["weights"].copy()
            self._take(weights, state.round, means)
            return State(
                state.round + 1, {"weights": weights, "means": np.concatenate([state.arrays["means"], means])}
            )

    def _local_steps(self, client: int, round: int, data: Images, weights: Vector) -> Vector:
        """The slopes of each step and direction; ``weights`` walk along."""
        head, how = self.task.head.on(self.task.device), self.training
        batches: list[Tensor] = []
        epoch = 0
        while len(batches) < self.steps:
            order = permutation(derive(self.key(client, round), "order", epoch), len(data))
            batches += torch.split(torch.from_numpy(order), how.batch)
            epoch += 1

        def loss(flat: Vector, index: Tensor) -> float:
            masked = self.task.masked
            with torch.no_grad(), masked.using(masked.split(self._tensor(flat))):
                with mixed(how.precision, self.task.device):
                    features = self.task.prefix.features(data, index)
                return float(F.cross_entropy(head(features.float()), data.labels[index]))

        slopes = np.empty((self.steps, self.directions), np.float32)
        moved = np.empty_like(weights)
        for step in range(self.steps):
            for p in range(self.directions):
                sides = []
                for sign in (1, -1):
                    moved[:] = weights
                    self._add(moved, round, step, p, sign * self.mu)
                    sides.append(loss(moved, batches[step]))
                slopes[step, p] = (sides[0] - sides[1]) / (2 * self.mu)
            if not np.isfinite(slopes[step]).all():
                raise DataError(f"the training loss is not finite; lower the learning rate ({how.lr}) or zeroth.mu")
            self._take_step(weights, round, step, slopes[step])
        return slopes.reshape(-1)

    def _replay(self, means: bytes) -> Vector:
        """The weights after all steps with these means; goes on from the ones before where these begin like them."""
        known, weights = self._replayed
        if known != means:
            if not means.startswith(known):
                known, weights = b"", self.start()
            weights = weights.copy()
            size = self.steps * self.directions
            found = np.frombuffer(means, "<f4").astype(np.float32)
            for round in range(len(known) // (4 * size), found.size // size):
                self._take(weights, round, found[round * size : (round + 1) * size])
            self._replayed = means, weights
        return weights

    def _take(self, weights: Vector, round: int, slopes: Vector) -> None:
        for step, row in enumerate(slopes.reshape(self.steps, self.directions)):
            self._take_step(weights, round, step, row)

    def _take_step(self, weights: Vector, round: int, step: int, slopes: Vector) -> None:
        for p, slope in enumerate(slopes.tolist()):
            self._add(weights, round, step, p, -self.training.lr * slope / self.directions)

    def _add(self, weights: Vector, round: int, step: int, direction: int, scale: float) -> None:
        key = np.uint64(derive(self.config.seed, "direction", round, step, direction))
        over_chunks(lambda a, b: add_signs(key, a, np.float32(scale), weights[a:b]), weights.size)

    def _numbers(self, data: bytes, rounds: int) -> Vector:
        reader = Reader(data, "scalars")
        out = np.frombuffer(reader.take(4 * self.steps * self.directions * rounds), "<f4").astype(np.float32)
        reader.end()
        if not np.isfinite(out).all():
            raise MalformedError("scalars: numbers that are not finite")
        return out

    def _tensor(self, flat: Vector) -> Tensor:
        return torch.from_numpy(flat).to(self.task.device)


METHOD = DeComFL
