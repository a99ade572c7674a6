"""DeltaMask: probabilities down, masks through a channel up. The steps are those of `deltamask.round`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from deltamask import round as steps
from deltamask.channels.base import Channel
from deltamask.config import ChannelSettings
from deltamask.methods.base import Method, Receipt, State
from deltamask.registry import member
from deltamask.sampling import derive
from deltamask.task import Task
from deltamask.theta import Aggregation, ThetaState, Votes
from deltamask.training import Images, train_scores
from deltamask.wire import SERVER

__all__ = ["METHOD", "DeltaMask", "MaskMethod"]


class MaskMethod(Method):
    """What all methods share whose state is a vector of mask probabilities."""

    views: ClassVar[tuple[str, ...]] = ("thresholded", "expected", "sampled")
    score_lr: ClassVar[float] = 0.2
    """Adam's learning rate on scores where the configuration has none."""
    knows_server_masks = False
    """Whether each answer is told against an m_g that the server knows: what a control variate needs."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.training = replace(self.training, lr=self.config.train.score_lr or self.score_lr)
        settings = self.config.aggregation
        rule = settings.rule if self.knows_server_masks else "bayes"
        self.rule = Aggregation(
            rule, settings.estimator, settings.adds, settings.prior, settings.clip, settings.reset_every
        )
        self.downlink = member("downlink", "deltamask.downlink", "DOWNLINK", self.config.downlink.kind)

    def init(self) -> State:
        start = self.rule.init(self.task.size, self.config.theta0)
        return State(0, {"theta": start.theta, "alpha": start.alpha, "beta": start.beta})

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            state.arriving = Votes(state.arrays["theta"], self.rule.rule)
            return self.seal("theta", SERVER, state.round, self.downlink.encode(state.arrays["theta"]))

    def train(self, client: int, round: int, data: Images, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        """Local epochs: theta_g -> theta_k."""
        head = self.task.head.on(self.task.device)
        return train_scores(self.task.prefix, head, data, theta, self.training, self.key(client, round))

    def finish(self, state: State) -> State:
        before = ThetaState(state.arrays["theta"], state.arrays["alpha"], state.arrays["beta"], state.round)
        after = steps.aggregate(before, state.arriving, self.rule, self.task.stages, self.config.participation)
        return State(after.round, {"theta": after.theta, "alpha": after.alpha, "beta": after.beta})

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
        super().__init__(task)

    def make_channel(self, settings: ChannelSettings) -> Channel:
        """What masks travel through."""
        channel: Channel = member("channel", "deltamask.channels", "CHANNEL", settings.kind).of(settings)
        return channel

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "theta")
        payload = steps.client_update(
            self.downlink.decode(frame.payload, self.task.size),
            lambda theta: self.train(client, frame.round, data, theta),
            self.channel,
            self.task.stages,
            seed=self.config.seed,
            client=client,
            round=frame.round,
            rounds=self.config.rounds,
        )
        return self.seal(self.channel.frame_kind, client, frame.round, payload)

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        limit = self.channel.longest(self.task.size)
        frame = self.open(payload, self.channel.frame_kind, client, state.round, limit)
        received = steps.receive_update(
            frame.payload,
            state.arriving,
            self.channel,
            self.task.stages,
            seed=self.config.seed,
            client=client,
            round=state.round,
        )
        return Receipt(received.entries, received.wrong_positions)


METHOD = DeltaMask
