"""The contract of a downlink: the server's probabilities -> what each client is sent -> what it trains on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from deltamask.theta import Aggregation, ThetaState, Votes

__all__ = ["Arrays", "Code", "Downlink", "Replay", "Sender", "Theta"]

Theta = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]
"""What a server keeps between rounds, by name; a checkpoint holds it."""


@dataclass(frozen=True)
class Replay:
    """What a round does to the probabilities, for everybody who holds its payloads."""

    rule: Aggregation
    size: int
    theta0: float
    vote: Callable[[Votes, int, int, bytes], object]
    """Adds one payload to the votes, given its client and round; all errors are `WireError`."""

    def start(self) -> ThetaState:
        """The state before the first round."""
        return self.rule.init(self.size, self.theta0)

    def play(self, state: ThetaState, payloads: Iterable[tuple[int, bytes]]) -> ThetaState:
        """The state after a round with these payloads, each with its client."""
        votes = Votes(state.theta, self.rule.rule)
        for client, payload in payloads:
            self.vote(votes, client, state.round, payload)
        return self.rule.update(state, votes)

    def lasting(self, state: ThetaState) -> dict[str, Theta]:
        """All that the rounds from ``state`` on depend on."""
        return self.rule.lasting(state)


class Sender:
    """The server's side of one round."""

    def __init__(self, common: bytes) -> None:
        self.common = common
        """What a client of the last round is sent."""

    def message(self, client: int) -> bytes:
        """What this client is sent; the very object `common` where it is the same."""
        return self.common

    def heard(self, client: int, payload: bytes) -> None:
        """The payload of this client has been added to the votes."""

    def forget(self, client: int) -> None:
        """The client could not make use of its `message`: the next one is not to build on anything."""

    def memory(self) -> Arrays:
        """What the sender of the next round has to know."""
        return {}


class Downlink(ABC):
    """Both sides of a method's downlink; the clients' side may remember what it was sent."""

    frame_kind: ClassVar[str] = "theta"
    """What the frame around a message says that it is."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    @abstractmethod
    def sender(self, state: ThetaState, memory: Arrays) -> Sender:
        """Opens a round at the server; ``memory`` is that of the round before, among other arrays."""

    @abstractmethod
    def follow(self, data: bytes, round: int) -> Theta:
        """The client's side: the probabilities of ``round``, from untrusted bytes; all errors are `WireError`."""

    @abstractmethod
    def longest(self) -> int:
        """At least as many bytes as any honest message has."""

    def recall(self, round: int, memory: Arrays) -> None:  # noqa: B027 - codes remember nothing
        """Gives clients that live in the server's process back what they held when a checkpoint was written."""


class Code(Downlink):
    """A downlink without memory: ``theta`` as bytes, the same for everybody."""

    @abstractmethod
    def encode(self, theta: Theta) -> bytes:
        """The bytes of ``theta``."""

    @abstractmethod
    def decode(self, data: bytes, size: int) -> Theta:
        """The ``size`` probabilities in ``data``."""

    def sender(self, state: ThetaState, memory: Arrays) -> Sender:
        """The same bytes for all."""
        return Sender(self.encode(state.theta))

    def follow(self, data: bytes, round: int) -> Theta:
        """What the bytes say."""
        return self.decode(data, self.replay.size)

    def longest(self) -> int:
        """Twice what float32 takes."""
        return 8 * self.replay.size + 4096
