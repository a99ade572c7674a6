"""The server's state: probabilities with a Beta prior, and how votes become the next probabilities.

Masks are added to integer votes as each payload arrives, so the server holds O(d) numbers whatever the number
of clients. Two rules (METHOD, decisions 3 to 5):

- ``bayes`` (the paper's Algorithm 2, eq. 3): Beta(alpha, beta) gets the masks as observations and is reset to
  ``prior`` every ``reset_every`` rounds, ``1 / participation`` in the paper. ``adds="sum"`` adds S and K - S; the
  paper as printed adds the *mean* mask, which drives all probabilities towards zero: ``adds="mean"`` keeps that
  reading runnable.
- ``control``: the server knows theta_g and each client's m_g exactly, so theta_g + mean(m_k - m_g) estimates the
  mean of theta_k without bias, with variance |delta| (1 - |delta|) / K in place of theta (1 - theta) / K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import ConfigError
from deltamask.kernels import draws, posterior
from deltamask.sampling import thresholds
from deltamask.threads import over_chunks

__all__ = ["Aggregation", "ThetaState", "Votes"]


@dataclass(frozen=True)
class ThetaState:
    """Probabilities of all masked weights after ``round`` rounds, with their Beta parameters."""

    theta: NDArray[np.float32]
    alpha: NDArray[np.float32]
    beta: NDArray[np.float32]
    round: int = 0


class Votes:
    """What one round's payloads add up to; each is added on arrival and then forgotten."""

    def __init__(self, theta: NDArray[np.float32], rule: Literal["bayes", "control"] = "bayes") -> None:
        self.limits = thresholds(theta)
        self.rule = rule
        self.clients = 0
        self.total = np.zeros(theta.size, np.int32)
        """Sum of the masks (``bayes``) or of their differences from m_g (``control``)."""

    def add_flips(self, server_key: int, flips: NDArray[np.unsignedinteger[Any]]) -> None:
        """A client's mask, given as the positions in which it differs from the m_g of ``server_key``."""
        if flips.size and int(flips[-1]) >= self.total.size:
            raise ConfigError(f"position {flips[-1]} in a mask of {self.total.size} weights")
        key = np.uint64(server_key)
        if self.rule == "bayes":
            over_chunks(
                lambda a, b: draws.count_votes(key, a, self.limits[a:b], self.total[a:b]),
                self.total.size,
            )
        draws.move_votes(key, flips, self.limits, self.total)
        self.clients += 1

    def add_mask(self, bits: NDArray[np.uint8]) -> None:
        """A client's mask as it is, for methods that upload all of it."""
        if self.rule != "bayes":
            raise ConfigError("control-variate aggregation needs flips against a known m_g, not whole masks")
        self.total += bits
        self.clients += 1


@dataclass(frozen=True)
class Aggregation:
    """How the server's probabilities follow from a round's votes."""

    rule: Literal["bayes", "control"] = "bayes"
    estimator: Literal["mode", "mean"] = "mode"
    adds: Literal["sum", "mean"] = "sum"
    prior: float = 1.0
    clip: float = 0.01
    reset_every: int = 1
    """Rounds from one reset of the prior to the next."""

    def __post_init__(self) -> None:
        if self.estimator == "mode" and self.prior < 1:
            raise ConfigError(
                f"aggregation.prior is {self.prior}, and a Beta distribution below 1 has no mode: "
                "expected 1 or more, or aggregation.estimator='mean'"
            )

    def init(self, size: int, theta0: float) -> ThetaState:
        """The state before the first round."""
        theta = np.full(size, np.clip(theta0, self.clip, 1 - self.clip), np.float32)
        flat = np.full(size, self.prior, np.float32)
        return ThetaState(theta, flat, flat.copy())

    def resets(self, at: int) -> bool:
        """Whether round ``at`` starts from the prior, whatever was counted before it."""
        return at % self.reset_every == 0

    def counts(self) -> bool:
        """Whether there are rounds that go on from the Beta parameters of the one before."""
        return self.rule == "bayes" and self.reset_every > 1

    def lasting(self, state: ThetaState) -> dict[str, NDArray[np.float32]]:
        """All that the next rounds follow from: the Beta parameters only where they are not about to be reset."""
        if not self.counts() or self.resets(state.round):
            return {"theta": state.theta}
        return {"theta": state.theta, "alpha": state.alpha, "beta": state.beta}

    def resumed(self, lasting: Mapping[str, NDArray[np.float32]], at: int) -> ThetaState:
        """The state before round ``at``, from all that lasts of it."""
        theta = lasting["theta"]
        # No memory of its own: where Beta parameters do not last, only their being there matters.
        prior = np.broadcast_to(np.float32(self.prior), theta.shape)
        return ThetaState(theta, lasting.get("alpha", prior), lasting.get("beta", prior), at)

    def update(self, state: ThetaState, votes: Votes) -> ThetaState:
        """The state after a round; one in which nothing arrived leaves the probabilities as they were."""
        if votes.rule != self.rule:
            raise ConfigError(f"votes were collected for {votes.rule!r}, the aggregation is {self.rule!r}")
        fresh = self.rule == "bayes" and self.resets(state.round)
        if votes.clients == 0:
            # The prior is reset all the same: what was counted before such a round must not matter after it.
            prior = np.full(votes.total.size, self.prior, np.float32)
            alpha, beta = (prior, prior.copy()) if fresh else (state.alpha, state.beta)
            return ThetaState(state.theta, alpha, beta, state.round + 1)
        arrived, size = np.float32(votes.clients), votes.total.size
        bounds = np.float32(self.clip), np.float32(1 - self.clip)
        theta = np.empty(size, np.float32)
        if self.rule == "control":
            over_chunks(
                lambda a, b: posterior.moved_by_votes(
                    state.theta[a:b], votes.total[a:b], arrived, *bounds, theta[a:b]
                ),
                size,
            )
            return ThetaState(theta, state.alpha, state.beta, state.round + 1)
        alpha, beta = (
            np.full(size, self.prior, np.float32) if fresh else x.copy() for x in (state.alpha, state.beta)
        )
        counted = np.float32(1) if self.adds == "sum" else arrived
        less = np.float32(1 if self.estimator == "mode" else 0)
        over_chunks(
            lambda a, b: posterior.beta_posterior(
                votes.total[a:b], arrived, counted, less, *bounds, alpha[a:b], beta[a:b], theta[a:b]
            ),
            size,
        )
        return ThetaState(theta, alpha, beta, state.round + 1)
