"""One federated round: the map of this package. Algorithm 1 of the paper, in the order of its arrows.

theta_g --downlink--> client                                                           downlink/
        float32: theta_g
        relay:   the payloads of the rounds since the client's last one; it votes and aggregates itself
    theta_k  <- local epochs over masks drawn from sigmoid(scores)     (lines 19-27)   training.py masking.py
    bytes    <- theta_k, given theta_g, by one of two                                  channels/
        delta:  m_g, m_k <- Bern(theta_g), Bern(theta_k)               (lines 6, 8)    sampling.py
                flips    <- top kappa of { i : m_k != m_g } by KL      (line 9)        delta.py
                bytes    <- set codec, image                           (lines 10-11)   codecs/ images/
        mrc:    x_0, ... <- Bern(theta_g), the same at the server                      channels/blocks.py
                bytes    <- c, in proportion to P_k(x_c) / P_g(x_c)
bytes --uplink--> server                                                               wire.py
        delta:  flips    <- membership of every position               (lines 14-15)   codecs/
                votes    += m_g xor flips                              (line 16)       theta.py
        mrc:    votes    += x_c                                                        theta.py
theta_g  <- BayesAgg(votes)                                            (line 18)       theta.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltamask.channels.base import Channel, Received
from deltamask.methods.base import Method, Receipt, State
from deltamask.sampling import derive, permutation
from deltamask.stages import Stages
from deltamask.theta import Aggregation, ThetaState, Votes
from deltamask.training import Images

__all__ = ["RoundBytes", "aggregate", "choose_clients", "client_update", "federated_round", "receive_update"]

Theta = NDArray[np.float32]


def client_update(
    theta_g: Theta,
    train: Callable[[Theta], Theta],
    channel: Channel,
    stages: Stages,
    *,
    seed: int,
    client: int,
    round: int,
    rounds: int,
) -> bytes:
    """A client's part of DeltaMask: theta_g -> theta_k -> bytes."""
    with stages("train"):
        theta_k = train(theta_g)
    with stages("encode"):
        return channel.encode(theta_k, theta_g, seed, client, round, rounds)


def receive_update(
    payload: bytes, votes: Votes, channel: Channel, stages: Stages, *, seed: int, client: int, round: int
) -> Received:
    """The server's part for one payload: bytes -> one vote for each position."""
    with stages("decode"):
        received = channel.decode(payload, votes.limits, seed, client, round)
    with stages("aggregate"):
        received.add_to(votes)
    return received


def aggregate(state: ThetaState, votes: Votes, rule: Aggregation, stages: Stages) -> ThetaState:
    """The server's part at the end of a round: votes -> theta_g."""
    with stages("aggregate"):
        return rule.update(state, votes)


@dataclass(frozen=True)
class RoundBytes:
    """What went over the wire in a round, and what the server made of it."""

    clients: tuple[int, ...]
    uplink_bytes: int
    downlink_bytes: int
    receipts: tuple[Receipt, ...]


def federated_round(
    method: Method,
    state: State,
    cohort: Sequence[int],
    data: Sequence[Images],
    arrived: Callable[[int], object] = lambda _: None,
) -> tuple[State, RoundBytes]:
    """One round of any method, every arrow a real byte string; ``arrived`` hears of each client that is done."""
    method.recall(state)
    broadcast = method.broadcast(state)
    down_bytes = up_bytes = 0
    receipts = []
    for k in cohort:
        down = method.addressed(state, k, broadcast)
        down_bytes += len(down)
        up = method.client(down, k, data[k])
        up_bytes += len(up)
        receipts.append(method.receive(state, k, up))
        arrived(k)
    traffic = RoundBytes(tuple(cohort), up_bytes, down_bytes, tuple(receipts))
    return method.finish(state), traffic


def choose_clients(seed: int, round: int, clients: int, participation: float) -> list[int]:
    """The round's participants: a random ``participation`` of all clients, at least one, in ascending order."""
    count = max(1, round_half_up(participation * clients))
    order: Iterable[int] = permutation(derive(seed, "participants", round), clients)[:count].tolist()
    return sorted(order)


def round_half_up(x: float) -> int:
    """The nearest integer; halves go up, unlike in Python's own rounding."""
    return int(x + 0.5)
