"""Fine-tuning whose clients send a compressed change of what they train: what such methods share."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from deltamask.methods.base import Receipt, State
from deltamask.methods.finetune import FineTune
from deltamask.sampling import derive
from deltamask.task import Task
from deltamask.training import Images
from deltamask.updates.base import Update
from deltamask.updates.plain import Plain
from deltamask.wire import SERVER

__all__ = ["Compressed"]


class Compressed(FineTune):
    """Down, the numbers through `down`; up, their change through `code`: two kinds of `Update`."""

    lr = 2e-3

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.size = self.start().size
        self.update = self.code()
        self.downlink = self.down()

    @abstractmethod
    def code(self) -> Update:
        """How changes become bytes, by the task's settings."""

    def down(self) -> Update:
        """How the server's numbers become bytes: float32 unless a method says otherwise."""
        return Plain()

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            numbers = state.arrays["weights"]
            state.arriving = (np.zeros(self.size, np.float64), [0])
            shared, private = self._shared(SERVER, state.round), self.key(SERVER, state.round)
            return self.seal("dense", SERVER, state.round, self.downlink.encode(numbers, shared, private))

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "dense")
        with self.task.stages("train"):
            numbers = self.downlink.decode(frame.payload, self.size, self._shared(SERVER, frame.round))
            change = self.train(client, frame.round, data, numbers) - numbers
        with self.task.stages("encode"):
            private = derive(self.key(client, frame.round), "rounding")
            payload = self.update.encode(change, self._shared(client, frame.round), private)
            return self.seal("update", client, frame.round, payload)

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        with self.task.stages("decode"):
            frame = self.open(payload, "update", client, state.round, limit=self.update.longest(self.size))
            change = self.update.decode(frame.payload, self.size, self._shared(client, state.round))
        with self.task.stages("aggregate"):
            total, arrived = state.arriving
            total += change
            arrived[0] += 1
        return Receipt()

    def finish(self, state: State) -> State:
        total, arrived = state.arriving
        numbers = state.arrays["weights"]
        if arrived[0]:
            numbers = (numbers + total / arrived[0]).astype(np.float32)
        return State(state.round + 1, {"weights": numbers})

    def _shared(self, sender: int, round: int) -> int:
        return derive(self.config.seed, "update", sender, round)
