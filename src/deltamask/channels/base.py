"""The contract of a channel: a client's probabilities -> bytes -> what the server adds to its votes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from deltamask.config import ChannelSettings
from deltamask.theta import Votes

__all__ = ["Channel", "Limits", "Received"]

Limits = NDArray[np.uint32]
"""`sampling.thresholds` of theta_g."""


@dataclass(frozen=True)
class Received(ABC):
    """What a server got out of one payload."""

    entries: int
    """How many changed positions the client encoded."""

    @property
    def wrong_positions(self) -> int:
        """Positions that the code gave back and nobody sent."""
        return 0

    @abstractmethod
    def add_to(self, votes: Votes) -> None:
        """One vote for each position."""


class Channel(ABC):
    """Frozen dataclasses whose fields are their configuration; both sides have the same."""

    frame_kind: ClassVar[str]
    """What the frame around a payload says that it is."""
    knows_server_masks: ClassVar[bool]
    """Whether a payload is told against an m_g that the server knows: what a control variate needs."""

    @classmethod
    @abstractmethod
    def of(cls, settings: ChannelSettings) -> Self:
        """The channel of a configuration."""

    @abstractmethod
    def encode(
        self,
        theta_k: NDArray[np.float32],
        theta_g: NDArray[np.float32],
        seed: int,
        client: int,
        round: int,
        rounds: int,
    ) -> bytes:
        """The client's side: the payload of a sample of Bern(theta_k), given what both sides know."""

    @abstractmethod
    def decode(self, data: bytes, limits: Limits, seed: int, client: int, round: int) -> Received:
        """The server's side, for untrusted bytes; all errors are `WireError`."""

    @abstractmethod
    def longest(self, size: int) -> int:
        """At least as many bytes as any honest payload for ``size`` weights has."""
