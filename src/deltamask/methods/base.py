"""The contract of a method: five functions around two kinds of bytes.

    broadcast(state) -> bytes           server to clients
    client(bytes, k, images) -> bytes   client k to server
    receive(state, k, bytes)            added on arrival: O(d) memory whatever the number of clients
    finish(state) -> state              the next round's state

All that lasts from round to round is in the state; whatever engine carries the bytes, they are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from numpy.typing import NDArray

from deltamask.heads import Head
from deltamask.sampling import derive
from deltamask.task import Task
from deltamask.training import Images, LocalTraining
from deltamask.wire import SERVER, Frame

__all__ = ["Method", "Receipt", "State"]


@dataclass
class State:
    """A method's memory between rounds: named arrays, which is what a checkpoint holds."""

    round: int
    arrays: dict[str, NDArray[Any]]
    arriving: Any = field(default=None, repr=False)
    """What the current round's payloads have added up to; not part of a checkpoint."""


@dataclass(frozen=True)
class Receipt:
    """What a server noticed about one payload."""

    flips: int = 0
    """How many changed positions it told of."""
    wrong_positions: int = 0
    """How many of these the codec made up."""


class Method(ABC):
    """A way to fine-tune; constructed with the task that it works on."""

    summary: ClassVar[str]
    lr: ClassVar[float] = 1e-3
    """Adam's learning rate on weights where the configuration has none."""
    cut: float = 0.5
    """From which probability on a weight is kept, in methods that train a mask."""
    views: ClassVar[tuple[str, ...]] = ("weights",)
    """The ways in which its model can be evaluated; the first is the headline."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.config = task.config
        train = self.config.train
        self.training = LocalTraining(train.epochs, train.batch, train.lr or self.lr, train.precision)

    @abstractmethod
    def init(self) -> State:
        """The state before the first round."""

    @abstractmethod
    def broadcast(self, state: State) -> bytes:
        """What every client of the round is sent; opens the round."""

    @abstractmethod
    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        """The client's part: trains on ``data`` and answers."""

    @abstractmethod
    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        """Adds one client's answer to the round; refuses, with `WireError`, all that does not belong to it."""

    @abstractmethod
    def finish(self, state: State) -> State:
        """Closes the round."""

    @abstractmethod
    @contextmanager
    def showing(self, state: State, view: str) -> Iterator[None]:
        """Sets the task's model to the state, seen through one of `views`."""

    def head(self, state: State) -> Head:
        """The classifier that goes with the state: the frozen one, unless the method trains its own."""
        return self.task.head

    def seal(self, kind: str, client: int, round: int, payload: bytes) -> bytes:
        """A frame of this federation."""
        return self.task.seal(kind, client, round, payload)

    def open(self, data: bytes, kind: str, client: int, round: int | None, limit: int) -> Frame:
        """A checked frame of this federation."""
        return self.task.open(data, kind, client, round, limit)

    def open_broadcast(self, data: bytes, kind: str) -> Frame:
        """A checked frame of the server; its round is the client's round."""
        return self.open(data, kind, SERVER, None, limit=8 * self.task.size + 4096)

    def key(self, client: int, round: int) -> int:
        """The key of a client's local training: the order of its images and the masks of its batches."""
        return derive(self.config.seed, "training", client, round)
