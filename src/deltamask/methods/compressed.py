"""Fine-tuning whose clients send a compressed change of the weights: what such methods share."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from deltamask.methods.base import Receipt, State
from deltamask.methods.finetune import FineTune
from deltamask.sampling import derive
from deltamask.task import Task
from deltamask.training import Images
from deltamask.updates.base import Update

__all__ = ["Compressed"]


class Compressed(FineTune):
    """float32 down; up, the change of the weights through an `Update`."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.update = self.code()

    @abstractmethod
    def code(self) -> Update:
        """How changes become bytes, by the task's settings."""

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "dense")
        with self.task.stages("train"):
            weights = self._numbers(frame.payload)
            change = self.train(client, frame.round, data, weights) - weights
        with self.task.stages("encode"):
            private = derive(self.key(client, frame.round), "rounding")
            payload = self.update.encode(change, self._shared(client, frame.round), private)
            return self.seal("update", client, frame.round, payload)

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        with self.task.stages("decode"):
            limit = self.update.longest(self.task.size)
            frame = self.open(payload, "update", client, state.round, limit=limit)
            change = self.update.decode(frame.payload, self.task.size, self._shared(client, state.round))
        with self.task.stages("aggregate"):
            total, arrived = state.arriving
            total += change
            arrived[0] += 1
        return Receipt()

    def finish(self, state: State) -> State:
        total, arrived = state.arriving
        weights = state.arrays["weights"]
        if arrived[0]:
            weights = (weights + total / arrived[0]).astype(np.float32)
        return State(state.round + 1, {"weights": weights})

    def _shared(self, client: int, round: int) -> int:
        return derive(self.config.seed, "update", client, round)
