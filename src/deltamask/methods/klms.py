"""KLMS on FedPM (Isik et al. 2023, "Adaptive compression in federated learning via side information").

FedPM's training and its Bayesian aggregation. The server's probabilities are the side information: both sides draw
``channel.candidates`` masks from them for each block of weights, and the client sends the number of one,
importance-sampled. ``klms.layout`` says what the blocks are:

- ``averaged``: of equal divergence, ``channel.block_bits``. When asked, which is in the first round, each client cuts
  blocks of its own and sends them along; the server averages them, and all use these until their mean divergence,
  which every payload tells, is more than ``klms.drift`` times what it should be, or less than that part of it. The
  averaged blocks are in each broadcast, since clients keep nothing and others come each time.
- ``fixed``: of ``channel.block`` weights.

``method=deltamask`` with ``channel.kind=mrc`` adapts blocks to each client and round instead, and makes up for the
lean of the sample, which this one leaves in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deltamask.channels.averaged import Average, AveragedChannel, Cuts, Told
from deltamask.channels.mrc import MrcChannel
from deltamask.codecs.base import Reader, varint
from deltamask.config import ChannelSettings
from deltamask.downlink.base import Code
from deltamask.errors import ConfigError
from deltamask.methods.base import Receipt, State
from deltamask.methods.deltamask import Arriving, DeltaMask, theta_state
from deltamask.task import Task
from deltamask.theta import Votes
from deltamask.training import Images
from deltamask.wire import SERVER

__all__ = ["METHOD", "Klms"]


@dataclass
class _Asking(Arriving):
    """With what clients say of their blocks."""

    channel: AveragedChannel
    cuts: Average
    held: float = 0.0
    """The sum over clients."""

    def add(self, told: Told) -> None:
        told.add_to(self.votes)
        self.held += told.held
        if self.channel.cuts is None:
            self.cuts.add(told.cuts)


class Klms(DeltaMask):
    """Masks through minimal random coding, in blocks that all clients share."""

    summary = "stochastic masks, one of shared candidates for each block (Isik et al. 2023)"

    def __init__(self, task: Task) -> None:
        self.layout = task.config.klms.layout
        super().__init__(task)
        self.asking = self.channel if isinstance(self.channel, AveragedChannel) else None
        if self.asking is not None and not isinstance(self.downlink, Code):
            raise ConfigError(
                "klms.layout='averaged': blocks travel with the probabilities, which a relay does not send; "
                "choose klms.layout='fixed', or downlink.kind='float32' (method klms)"
            )

    def make_channel(self, settings: ChannelSettings) -> MrcChannel:
        if self.layout == "averaged":
            return AveragedChannel(settings.candidates, block_bits=settings.block_bits, straight=False)
        return MrcChannel(settings.candidates, "fixed", block=settings.block, straight=False)

    def init(self) -> State:
        state = super().init()
        if self.asking is not None:
            state.arrays["cuts"] = np.zeros(0, np.int64)  # none: clients are asked for theirs
        return state

    def broadcast(self, state: State) -> bytes:
        if self.asking is None:
            return super().broadcast(state)
        with self.task.stages("broadcast"):
            cuts = state.arrays["cuts"]
            told = Cuts(cuts).to_bytes() if cuts.size else b""
            sender = self.downlink.sender(theta_state(state), state.arrays)
            votes = Votes(state.arrays["theta"], self.rule.rule)
            channel = _agreed(self.asking, told, self.task.size)
            state.arriving = _Asking(votes, sender, channel, Average(self.task.size))
            payload = varint(len(told)) + told + sender.common
            return self.seal(self.downlink.frame_kind, SERVER, state.round, payload)

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        if self.asking is None:
            return super().client(broadcast, client, data)
        frame = self.open_broadcast(broadcast, self.downlink.frame_kind)
        reader = Reader(frame.payload, "theta")
        told = reader.take(reader.varint(len(frame.payload)))
        channel = _agreed(self.asking, told, self.task.size)
        return self.answer(channel, self.downlink.follow(reader.rest(), frame.round), client, frame.round, data)

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        if self.asking is None:
            return super().receive(state, client, payload)
        arriving: _Asking = state.arriving
        channel, limits = arriving.channel, arriving.votes.limits
        with self.task.stages("decode"):
            frame = self.open(payload, channel.frame_kind, client, state.round, channel.longest(self.task.size))
            told = channel.decode(frame.payload, limits, self.config.seed, client, state.round)
        with self.task.stages("aggregate"):
            arriving.add(told)
        return Receipt()

    def finish(self, state: State) -> State:
        after = super().finish(state)
        if self.asking is not None:
            after.arrays["cuts"] = self._next(state.arrays["cuts"], state.arriving)
        return after

    def _next(self, cuts: NDArray[np.int64], arriving: _Asking) -> NDArray[np.int64]:
        """The blocks of the next round; none where clients are to be asked for theirs."""
        if arriving.cuts.clients:
            return arriving.cuts.mean().starts
        if not arriving.votes.clients:
            return cuts
        off = arriving.held / arriving.votes.clients / self.config.channel.block_bits
        drift = self.config.klms.drift
        return cuts if 1 / drift <= off <= drift else cuts[:0]


def _agreed(channel: AveragedChannel, told: bytes, size: int) -> AveragedChannel:
    """The channel of a round in which the server says this of blocks; nothing asks for them."""
    if not told:
        return channel
    reader = Reader(told, "blocks")
    cuts = Cuts.read(reader, size, channel.candidates.bit_length() - 1)
    reader.end()
    return replace(channel, cuts=cuts)


METHOD = Klms
