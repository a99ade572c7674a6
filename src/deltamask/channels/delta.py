"""The paper's channel: sample both masks, send the positions in which they differ (Algorithm 1, lines 6 to 17).

    theta_k, theta_g, keys --sampling--> flips --delta--> top kappa --codec--> bytes --image--> payload
    payload --image--> bytes --codec--> flips --> m_k = m_g xor flips

Every setting of the paper's own reading is a field; the defaults are what measured best (METHOD).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from deltamask import codecs, images, sampling
from deltamask.channels.base import Channel, Limits, Received
from deltamask.config import ChannelSettings
from deltamask.delta import KappaSchedule, fit_budget, rank, top
from deltamask.errors import ConfigError, MalformedError
from deltamask.kernels.draws import theta_context
from deltamask.sampling import Keys, Mode, derive
from deltamask.theta import Votes

__all__ = ["CHANNEL", "DeltaChannel", "Flips"]


@dataclass(frozen=True)
class Flips(Received):
    """The changes against an m_g that the server can draw."""

    flips: NDArray[np.unsignedinteger[Any]]
    """The positions in which m_k differs from m_g, as far as the payload tells."""
    key: int
    """The key of that m_g."""

    @property
    def wrong_positions(self) -> int:
        """Positions that the codec gave back and nobody sent: a filter's false positives."""
        return int(self.flips.size) - self.entries

    def add_to(self, votes: Votes) -> None:
        """One vote for each position."""
        votes.add_flips(self.key, self.flips)


@dataclass(frozen=True)
class DeltaChannel(Channel):
    """Positions of changed mask bits through a set codec, as bytes or as a grayscale PNG."""

    codec: str = "context"
    image: Literal["none", "png"] = "none"
    deflate_level: int = 9
    huffman_only: bool = False
    sampling: Mode = "coupled"
    selection: Literal["kl", "random"] = "kl"
    kappa: KappaSchedule = field(default_factory=KappaSchedule)
    budget_bytes: int = 0
    """The longest payload to send, 0 for no limit; the frame around it is `wire`'s."""

    frame_kind: ClassVar[str] = "delta"
    knows_server_masks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        codecs.get(self.codec)
        if self.image not in ("none", "png"):
            raise ConfigError(f"channel.image is {self.image!r}; expected 'none' or 'png'")

    @classmethod
    def of(cls, settings: ChannelSettings) -> Self:
        """The channel of a configuration."""
        return cls(
            codec=settings.codec,
            image=settings.image,
            deflate_level=settings.deflate_level,
            huffman_only=settings.huffman_only,
            sampling=settings.sampling,
            selection=settings.selection,
            kappa=KappaSchedule(settings.kappa_schedule, settings.kappa, settings.kappa_end),
            budget_bytes=settings.budget_bytes,
        )

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
        keys = Keys.of(self.sampling, seed, client, round)
        flips = sampling.flips(keys, theta_g, theta_k)
        kappa = self.kappa.at(round, rounds)
        if kappa < 1 or self.budget_bytes:
            order = derive(seed, "selection", client, round)
            flips = rank(flips, theta_k, theta_g, by=self.selection, key=order)
            if kappa < 1:
                kept = top(flips, kappa)
                flips = kept if not self.budget_bytes else flips[: kept.size]
        codec = codecs.get(self.codec)
        size = theta_g.size
        context = self._context(sampling.thresholds(theta_g), keys) if codec.uses_context else None

        def payload(positions: NDArray[np.uint32]) -> bytes:
            data = codec.encode(positions, size, context)
            if self.image == "none":
                return data
            return images.wrap(data, codec, level=self.deflate_level, huffman_only=self.huffman_only)

        return fit_budget(flips, payload, self.budget_bytes) if self.budget_bytes else payload(flips)

    def decode(self, data: bytes, limits: Limits, seed: int, client: int, round: int) -> Flips:
        """The server's side, for untrusted bytes; ``limits`` are `sampling.thresholds` of theta_g."""
        keys = Keys.of(self.sampling, seed, client, round)
        payload = images.unwrap(data, limit=self.longest(limits.size))
        codec = codecs.for_payload(payload)
        if codec.name != codecs.get(self.codec).name:
            raise MalformedError(f"payload of client {client}: codec {codec.name}, agreed on {self.codec}")
        flips = codec.decode(payload, limits.size, self._context(limits, keys))
        return Flips(entries=codec.entries(payload), flips=flips, key=keys.server)

    def server_key(self, seed: int, client: int, round: int) -> int:
        """The key of the m_g that this client's flips refer to."""
        return Keys.of(self.sampling, seed, client, round).server

    def longest(self, size: int) -> int:
        """More bytes than any honest payload for ``size`` weights: a 32-bit filter over all of them."""
        return 8 * size + 4096

    def _context(self, limits: Limits, keys: Keys) -> NDArray[np.uint8] | None:
        """What both sides know of each position: the bin of theta_g and the bit of m_g."""
        if not codecs.get(self.codec).uses_context:
            return None
        out = np.empty(limits.size, np.uint8)
        theta_context(np.uint64(keys.server), limits, out)
        return out


CHANNEL = DeltaChannel
