"""Linear probing: the head alone, round after round, on frozen features (FedAvg)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltamask import heads
from deltamask.heads import Average, Head
from deltamask.methods.base import Method, Receipt, State
from deltamask.training import Images
from deltamask.wire import SERVER

__all__ = ["METHOD", "LinearProbe"]


class LinearProbe(Method):
    """Only the classifier is trained and sent."""

    summary = "the classifier alone, on frozen features"
    lr = 0.03

    def init(self) -> State:
        return State(0, {"weight": self.task.head.weight, "bias": self.task.head.bias})

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            state.arriving = Average(self.task.classes, self.task.features)
            return self.seal("head", SERVER, state.round, heads.to_bytes(self.head(state)))

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "head")
        how = self.training
        with self.task.stages("train"):
            head = heads.train_head(
                heads.from_bytes(frame.payload, self.task.classes, self.task.features),
                self.task.plain_features(data),
                data.labels,
                epochs=how.epochs,
                batch=how.batch,
                lr=how.lr,
                key=self.key(client, frame.round),
            )
        return self.seal("head", client, frame.round, heads.to_bytes(head))

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        limit = 4 * self.task.classes * (self.task.features + 1)
        frame = self.open(payload, "head", client, state.round, limit=limit)
        state.arriving.add(heads.from_bytes(frame.payload, self.task.classes, self.task.features))
        return Receipt()

    def finish(self, state: State) -> State:
        head = state.arriving.mean(otherwise=self.head(state))
        return State(state.round + 1, {"weight": head.weight, "bias": head.bias})

    @contextmanager
    def showing(self, state: State, view: str) -> Iterator[None]:
        with self.task.masked.showing("plain"):
            yield

    def head(self, state: State) -> Head:
        return Head(state.arrays["weight"], state.arrays["bias"])


METHOD = LinearProbe
