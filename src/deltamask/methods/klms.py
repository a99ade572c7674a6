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

from deltamask import round as steps
from deltamask.channels.averaged import Average, AveragedChannel, Cuts, Told
from deltamask.channels.mrc import MrcChannel
from deltamask.codecs.base import Reader, varint
from deltamask.config import ChannelSettings
from deltamask.methods.base import Receipt, State
from deltamask.methods.deltamask import DeltaMask
from deltamask.task import Task
from deltamask.theta import Votes
from deltamask.training import Images
from deltamask.wire import SERVER

__all__ = ["METHOD", "Klms"]


@dataclass
class _Arriving:
    """Votes, and what clients say of their blocks."""

    votes: Votes
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
            cuts, theta = state.arrays["cuts"], state.arrays["theta"]
            told = Cuts(cuts).to_bytes() if cuts.size else b""
            state.arriving = _Arriving(
                Votes(theta, self.rule.rule), _agreed(self.asking, told, self.task.size), Average(self.task.size)
            )
            return self.seal("theta", SERVER, state.round, varint(len(told)) + told + self.downlink.encode(theta))

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        if self.asking is None:
            return super().client(broadcast, client, data)
        frame = self.open_broadcast(broadcast, "theta")
        reader = Reader(frame.payload, "theta")
        told = reader.take(reader.varint(len(frame.payload)))
        channel = _agreed(self.asking, told, self.task.size)
        payload = steps.client_update(
            self.downlink.decode(reader.rest(), self.task.size),
            lambda theta: self.train(client, frame.round, data, theta),
            channel,
            self.task.stages,
            seed=self.config.seed,
            client=client,
            round=frame.round,
            rounds=self.config.rounds,
        )
        return self.seal(channel.frame_kind, client, frame.round, payload)

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        if self.asking is None:
            return super().receive(state, client, payload)
        arriving: _Arriving = state.arriving
        channel, votes = arriving.channel, arriving.votes
        with self.task.stages("decode"):
            frame = self.open(payload, channel.frame_kind, client, state.round, channel.longest(self.task.size))
            told = channel.decode(frame.payload, votes.limits, self.config.seed, client, state.round)
        with self.task.stages("aggregate"):
            arriving.add(told)
        return Receipt()

    def finish(self, state: State) -> State:
        if self.asking is None:
            return super().finish(state)
        arriving: _Arriving = state.arriving
        after = super().finish(State(state.round, state.arrays, arriving.votes))
        cuts = state.arrays["cuts"]
        if arriving.cuts.clients:
            cuts = arriving.cuts.mean().starts
        elif arriving.votes.clients:
            off = arriving.held / arriving.votes.clients / self.config.channel.block_bits
            drift = self.config.klms.drift
            cuts = cuts if 1 / drift <= off <= drift else cuts[:0]
        after.arrays["cuts"] = cuts
        return after


def _agreed(channel: AveragedChannel, told: bytes, size: int) -> AveragedChannel:
    """The channel of a round in which the server says this of blocks; nothing asks for them."""
    if not told:
        return channel
    reader = Reader(told, "blocks")
    cuts = Cuts.read(reader, size, channel.candidates.bit_length() - 1)
    reader.end()
    return replace(channel, cuts=cuts)


METHOD = Klms
