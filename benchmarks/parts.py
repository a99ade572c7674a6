"""The parts of a round between training and training, by themselves: sampling, a client's encoding, the server."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from provenance import peak_mib, seconds

from deltamask import codecs, images, sampling
from deltamask import round as rounds
from deltamask.channels.delta import DeltaChannel
from deltamask.delta import KappaSchedule, rank, top
from deltamask.kernels.draws import theta_context
from deltamask.sampling import Keys, Mode, derive
from deltamask.stages import Stages
from deltamask.theta import Aggregation, Votes

__all__ = [
    "CHANNELS",
    "CLIENTS",
    "FEW",
    "RATE",
    "SEED",
    "Client",
    "Sampling",
    "Server",
    "measure_client",
    "measure_sampling",
    "measure_server",
    "probabilities",
]

SEED = 20240613
CLIENTS = 30
FEW = 3
"""Memory for this many clients is held against memory for all."""
RATE = 0.01

Theta = NDArray[np.float32]

CHANNELS = {
    "exact": DeltaChannel(codec="context", kappa=KappaSchedule(start=1.0)),
    "paper": DeltaChannel(codec="bfuse8", image="png", sampling="independent", kappa=KappaSchedule(start=0.8)),
}


@dataclass(frozen=True)
class Sampling:
    """Both masks and the positions in which they differ."""

    what: str
    flips: int
    ns_per_weight: float
    """From float32 probabilities, as a client has them."""
    ns_per_weight_min: float
    from_thresholds_ns: float | None
    """The same from ready integer thresholds; None where there are none."""


@dataclass(frozen=True)
class Server:
    """A round's payloads through one codec and one rule."""

    codec: str
    rule: str
    payload_bytes: int
    seconds: float
    seconds_min: float
    clients_per_second: float
    stages: dict[str, float]
    numpy_mib_few: float
    numpy_mib_all: float
    resident_mib_all: float | None


@dataclass(frozen=True)
class Client:
    """One client's encoding, stage by stage and in one call."""

    preset: str
    flips: int
    payload_bytes: int
    stages: dict[str, float]
    whole_s: float


def probabilities(size: int) -> tuple[Theta, Theta]:
    """theta_g as after some rounds, most of it near one, and a theta_k that moves each by `RATE` on average."""
    rng = np.random.default_rng(SEED)
    theta_g = rng.random(size, np.float32)
    np.power(theta_g, np.float32(1 / 12), out=theta_g)
    np.clip(theta_g, 0.01, 0.99, out=theta_g)
    scale = RATE
    for _ in range(3):  # clipping at the ends takes some of it away
        theta_k = np.random.default_rng(SEED + 1).standard_normal(size, np.float32)
        theta_k *= np.float32(scale)
        theta_k += theta_g
        np.clip(theta_k, 0.01, 0.99, out=theta_k)
        scale *= RATE / float(np.abs(theta_k - theta_g).mean(dtype=np.float64))
    return theta_g, theta_k


def measure_sampling(theta_g: Theta, theta_k: Theta, repeats: int) -> list[Sampling]:
    """Ours in both modes, and what one would write in NumPy."""
    size = theta_g.size

    def row(what: str, call: Callable[[], NDArray[Any]], ready: float | None) -> Sampling:
        median, least, found = seconds(call, repeats)
        return Sampling(what, found.size, median / size * 1e9, least / size * 1e9, ready)

    limits_g, limits_k = sampling.thresholds(theta_g), sampling.thresholds(theta_k)
    modes: tuple[Mode, ...] = ("coupled", "independent")
    rows = []
    for mode in modes:
        keys = Keys.of(mode, SEED, 1, 0)
        ready, _, _ = seconds(lambda k=keys: sampling.flips(k, limits_g, limits_k), repeats)
        rows.append(row(mode, lambda k=keys: sampling.flips(k, theta_g, theta_k), ready / size * 1e9))
    rng = np.random.default_rng(SEED)

    def shared() -> NDArray[Any]:
        u = rng.random(size, np.float32)
        return np.flatnonzero((u < theta_g) != (u < theta_k))

    def private() -> NDArray[Any]:
        return np.flatnonzero((rng.random(size, np.float32) < theta_g) != (rng.random(size, np.float32) < theta_k))

    return [*rows, row("NumPy, coupled", shared, None), row("NumPy, independent", private, None)]


def measure_client(preset: str, theta_g: Theta, theta_k: Theta, repeats: int) -> Client:
    """`DeltaChannel.encode` in one call, and the same steps one by one; both must give the same bytes."""
    channel = CHANNELS[preset]
    median, _, whole = seconds(lambda: channel.encode(theta_k, theta_g, SEED, 1, 0, 1), repeats)
    best: dict[str, float] = {}
    codec = codecs.get(channel.codec)
    count = 0
    for _ in range(repeats):
        stages = Stages()
        keys = Keys.of(channel.sampling, SEED, 1, 0)
        with stages("sampling"):
            flips = sampling.flips(keys, theta_g, theta_k)
        count = flips.size
        with stages("ranking"):
            if channel.kappa.start < 1:
                key = derive(SEED, "selection", 1, 0)
                flips = top(rank(flips, theta_k, theta_g, by=channel.selection, key=key), channel.kappa.start)
        with stages("coding"):
            context = None
            if codec.uses_context:
                limits = sampling.thresholds(theta_g)
                context = np.empty(limits.size, np.uint8)
                theta_context(np.uint64(keys.server), limits, context)
            data = codec.encode(flips, theta_g.size, context)
        with stages("image"):
            if channel.image == "png":
                data = images.wrap(data, codec, level=channel.deflate_level)
        if data != whole:
            raise RuntimeError(f"preset {preset}: the stages give other bytes than the channel")
        best = {k: min(v, best.get(k, v)) for k, v in stages.take().items()}
    return Client(preset, count, len(whole), best, median)


def measure_server(name: str, theta_g: Theta, theta_k: Theta, repeats: int) -> list[Server]:
    """All payloads of a round as they arrive, decoded and aggregated, by each rule."""
    channel = DeltaChannel(codec=name, kappa=KappaSchedule(start=1.0))
    payloads = [channel.encode(theta_k, theta_g, SEED, k, 0, 1) for k in range(CLIENTS)]
    out = []
    for kind in ("bayes", "control"):
        rule = Aggregation(kind)
        state = rule.init(theta_g.size, 0.5)
        np.copyto(state.theta, theta_g)
        stages = Stages()

        def serve(count: int, rule: Any = rule, state: Any = state, stages: Any = stages) -> None:
            votes = Votes(state.theta, rule.rule)
            for k, payload in enumerate(payloads[:count]):
                rounds.receive_update(payload, votes, channel, stages, seed=SEED, client=k, round=0)
            rounds.aggregate(state, votes, rule, stages)

        serve(FEW)  # compiles
        stages.take()
        median, least, _ = seconds(lambda serve=serve: serve(CLIENTS), repeats)
        spent = {stage: taken / (repeats + 1) for stage, taken in stages.take().items()}
        out.append(
            Server(
                name,
                kind,
                sum(map(len, payloads)),
                median,
                least,
                CLIENTS / median,
                spent,
                numpy_mib(lambda serve=serve: serve(FEW)),
                numpy_mib(lambda serve=serve: serve(CLIENTS)),
                peak_mib(lambda serve=serve: serve(CLIENTS)),
            )
        )
    return out


def numpy_mib(call: Callable[[], object]) -> float:
    """MiB that NumPy arrays and Python objects take at their peak during one call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
