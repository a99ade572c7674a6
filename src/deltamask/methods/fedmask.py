"""FedMask (Li et al. 2021) without pruning: deterministic masks, thresholded in training and on the wire.

A weight is kept where its score's sigmoid is at least ``fedmask.tau``. Clients upload all of their mask, a bit a
weight; the server's next probabilities are the share of clients that kept it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from deltamask import codecs
from deltamask.config import AggregationSettings
from deltamask.methods.base import Receipt, State
from deltamask.methods.deltamask import MaskMethod
from deltamask.stages import Stages
from deltamask.task import Task
from deltamask.theta import Aggregation, Votes
from deltamask.training import Images

__all__ = ["METHOD", "FedMask"]

_CODEC = "bitmap"


class FedMask(MaskMethod):
    """One bit a weight."""

    summary = "thresholded masks, all of each mask uploaded, a bit a weight (Li et al. 2021)"
    views: ClassVar[tuple[str, ...]] = ("thresholded", "expected")
    score_lr: ClassVar[float] = 0.8  # scores start from clipped averages of masks, and have to cross the threshold

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.cut = self.config.fedmask.tau

    def make_rule(self, settings: AggregationSettings) -> Aggregation:
        # The mean of a round's masks whatever the participation: there is no posterior here.
        return Aggregation("bayes", "mode", "sum", 1.0, settings.clip, reset_every=1)

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        round, theta_g = self.follow(broadcast)
        with self.task.stages("train"), self.task.masked.cutting(self.cut):
            theta_k = self.train(client, round, data, theta_g)
        with self.task.stages("encode"):
            kept = np.flatnonzero(theta_k >= np.float32(self.cut))
            return self.seal(self.frame_kind, client, round, codecs.get(_CODEC).encode(kept, theta_k.size))

    def vote(self, votes: Votes, client: int, round: int, payload: bytes, stages: Stages) -> Receipt:
        with stages("decode"):
            bits = np.zeros(self.task.size, np.uint8)
            bits[codecs.get(_CODEC).decode(payload, self.task.size)] = 1
        with stages("aggregate"):
            votes.add_mask(bits)
        return Receipt()

    @contextmanager
    def showing(self, state: State, view: Any) -> Iterator[None]:
        theta = state.arrays["theta"]
        if view == "thresholded":
            theta = (theta >= np.float32(self.cut)).astype(np.float32)
        with self.task.masked.showing(view, theta):
            yield


METHOD = FedMask
