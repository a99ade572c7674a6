"""DeltaMask: probabilities down, masks through a channel up. The steps are those of `deltamask.round`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from deltamask import round as steps
from deltamask.channels.base import Channel
from deltamask.config import AggregationSettings, ChannelSettings
from deltamask.downlink.base import Downlink, Replay, Sender
from deltamask.methods.base import Method, Receipt, State
from deltamask.registry import member
from deltamask.sampling import derive
from deltamask.stages import Stages
from deltamask.task import Task
from deltamask.theta import Aggregation, ThetaState, Votes
from deltamask.training import Images, train_scores
from deltamask.wire import SERVER

__all__ = ["METHOD", "Arriving", "DeltaMask", "MaskMethod", "theta_state"]


class MaskMethod(Method):
    """What all methods share whose state is a vector of mask probabilities."""

    views: ClassVar[tuple[str, ...]] = ("thresholded", "expected", "sampled")
    score_lr: ClassVar[float] = 0.2
    """Adam's learning rate on scores where the configuration has none."""
    knows_server_masks = False
    """Whether each answer is told against an m_g that the server knows: what a control variate needs."""
    frame_kind = "mask"
    """What the frame around an answer says that it is."""
    downlink_kind: str | None = None
    """The downlink of methods that have one of their own; none: that of the configuration."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.training = replace(self.training, lr=self.config.train.score_lr or self.score_lr)
        self.rule = self.make_rule(self.config.aggregation)
        replay = Replay(
            self.rule,
            self.task.size,
            self.config.theta0,
            # What clients do again is their time, not the server's.
            lambda votes, client, round, payload: self.vote(votes, client, round, payload, Stages()),
        )
        kind = member("downlink", "deltamask.downlink", "DOWNLINK", self.downlink_kind or self.config.downlink.kind)
        self.downlink: Downlink = kind(replay)

    def make_rule(self, settings: AggregationSettings) -> Aggregation:
        """How votes become probabilities."""
        rule: Literal["bayes", "control"] = "bayes"
        # Few clients that differ pull probabilities to and fro; a prior that gathers several rounds does not follow.
        if self.knows_server_masks and settings.rule != "bayes":
            everybody = self.config.participation == 1
            rule = "control" if everybody or settings.rule == "control" else "bayes"
        reset_every = settings.reset_every or max(1, round(1 / self.config.participation))
        return Aggregation(rule, settings.estimator, settings.adds, settings.prior, settings.clip, reset_every)

    @abstractmethod
    def vote(self, votes: Votes, client: int, round: int, payload: bytes, stages: Stages) -> Receipt:
        """Adds a client's payload to the votes of a round: at the server, and at clients that are relayed it."""

    def init(self) -> State:
        start = self.rule.init(self.task.size, self.config.theta0)
        return State(0, {"theta": start.theta, "alpha": start.alpha, "beta": start.beta})

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            sender = self.downlink.sender(theta_state(state), state.arrays)
            state.arriving = Arriving(Votes(state.arrays["theta"], self.rule.rule), sender)
            return self.seal(self.downlink.frame_kind, SERVER, state.round, sender.common)

    def addressed(self, state: State, client: int, broadcast: bytes) -> bytes:
        with self.task.stages("broadcast"):
            sender: Sender = state.arriving.sender
            message = sender.message(client)
            if message is sender.common:
                return broadcast
            return self.seal(self.downlink.frame_kind, SERVER, state.round, message)

    def forget(self, state: State, client: int) -> None:
        state.arriving.sender.forget(client)

    def recall(self, state: State) -> None:
        self.downlink.recall(state.round, state.arrays)

    def follow(self, broadcast: bytes) -> tuple[int, NDArray[np.float32]]:
        """The client's side of the downlink: its round, and theta_g."""
        frame = self.open_broadcast(broadcast, self.downlink.frame_kind, self.downlink.longest())
        with self.task.stages("broadcast"):
            return frame.round, self.downlink.follow(frame.payload, frame.round)

    def train(self, client: int, round: int, data: Images, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        """Local epochs: theta_g -> theta_k."""
        head = self.task.head.on(self.task.device)
        return train_scores(self.task.prefix, head, data, theta, self.training, self.key(client, round))

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        frame = self.open(payload, self.frame_kind, client, state.round, self.longest())
        receipt = self.vote(state.arriving.votes, client, state.round, frame.payload, self.task.stages)
        state.arriving.sender.heard(client, frame.payload)
        return receipt

    def finish(self, state: State) -> State:
        votes, sender = state.arriving.votes, state.arriving.sender
        after = steps.aggregate(theta_state(state), votes, self.rule, self.task.stages)
        arrays = {"theta": after.theta, "alpha": after.alpha, "beta": after.beta}
        return State(after.round, arrays | sender.memory())

    def longest(self) -> int:
        """At least as many bytes as any honest answer has."""
        return self.task.size + 4096

    @contextmanager
    def showing(self, state: State, view: Any) -> Iterator[None]:
        key = derive(self.config.seed, "evaluation", state.round)
        with self.task.masked.showing(view, state.arrays["theta"], key):
            yield


class DeltaMask(MaskMethod):
    """The paper's method and its improvements: the channel and its settings decide which."""

    summary = "stochastic masks through a channel: changed positions (delta) or numbers of candidates (mrc)"

    def __init__(self, task: Task) -> None:
        self.channel = self.make_channel(task.config.channel)
        self.knows_server_masks = self.channel.knows_server_masks
        self.frame_kind = self.channel.frame_kind
        super().__init__(task)

    def make_channel(self, settings: ChannelSettings) -> Channel:
        """What masks travel through."""
        channel: Channel = member("channel", "deltamask.channels", "CHANNEL", settings.kind).of(settings)
        return channel

    def longest(self) -> int:
        return self.channel.longest(self.task.size)

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        round, theta_g = self.follow(broadcast)
        return self.answer(self.channel, theta_g, client, round, data)

    def answer(self, channel: Channel, theta_g: NDArray[np.float32], client: int, round: int, data: Images) -> bytes:
        """A client's frame: theta_g -> theta_k -> bytes."""
        payload = steps.client_update(
            theta_g,
            lambda theta: self.train(client, round, data, theta),
            channel,
            self.task.stages,
            seed=self.config.seed,
            client=client,
            round=round,
            rounds=self.config.rounds,
        )
        return self.seal(self.frame_kind, client, round, payload)

    def vote(self, votes: Votes, client: int, round: int, payload: bytes, stages: Stages) -> Receipt:
        received = steps.receive_update(
            payload, votes, self.channel, stages, seed=self.config.seed, client=client, round=round
        )
        return Receipt(received.entries, received.wrong_positions)


@dataclass
class Arriving:
    """What a mask method's server holds while a round's answers arrive."""

    votes: Votes
    sender: Sender


def theta_state(state: State) -> ThetaState:
    """What of a mask method's state aggregation works on."""
    return ThetaState(state.arrays["theta"], state.arrays["alpha"], state.arrays["beta"], state.round)


METHOD = DeltaMask
