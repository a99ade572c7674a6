"""Minimal random coding at full size, beside the loop that one would write first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numba as nb
import numpy as np
from numpy.typing import NDArray
from provenance import peak_mib, seconds

from deltamask.channels.mrc import MrcChannel
from deltamask.delta import relative_entropy
from deltamask.kernels.mix import mix64
from deltamask.sampling import derive, thresholds
from deltamask.theta import Votes

__all__ = ["CHANNELS", "Coding", "Plain", "measure_coding", "measure_plain"]

Theta = NDArray[np.float32]

CHANNELS = {
    "adaptive, 5 bits": MrcChannel(),
    "adaptive, 3 bits": MrcChannel(block_bits=3.0),
    "fixed, 1,024 weights": MrcChannel(layout="fixed"),
}
PART = 1 << 19
"""The plain loop gets so many weights; its time for each candidate and weight does not depend on their number."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_DROP = np.uint64(40)


@dataclass(frozen=True)
class Coding:
    """One payload, there and back."""

    what: str
    candidates: int
    payload_bytes: int
    divergence_bytes: float
    """KL(theta_k || theta_g)."""
    encode_s: float
    encode_min_s: float
    encode_ns: float
    """For each candidate and weight."""
    decode_s: float
    decode_min_s: float
    vote_s: float
    encode_mib: float | None
    decode_mib: float | None


@dataclass(frozen=True)
class Plain:
    """The candidates of fixed blocks, a hash for each bit, logarithms in floating point."""

    what: str
    weights: int
    encode_ns: float
    whole_s: float
    """What that comes to for all weights."""


def measure_coding(what: str, theta_g: Theta, theta_k: Theta, seed: int, repeats: int) -> Coding:
    """Encoding, decoding and voting of one channel."""
    channel = CHANNELS[what]
    limits = thresholds(theta_g)
    votes = Votes(theta_g)

    def encode() -> bytes:
        return channel.encode(theta_k, theta_g, seed, 1, 0, 1)

    median, least, payload = seconds(encode, repeats)
    decode, decode_min, received = seconds(lambda: channel.decode(payload, limits, seed, 1, 0), repeats)
    vote, _, _ = seconds(lambda: received.add_to(votes), repeats)
    return Coding(
        what,
        channel.candidates,
        len(payload),
        _divergence(theta_k, theta_g) / log(2) / 8,
        median,
        least,
        median / theta_g.size / channel.candidates * 1e9,
        decode,
        decode_min,
        vote,
        peak_mib(encode),
        peak_mib(lambda: channel.decode(payload, limits, seed, 1, 0)),
    )


def measure_plain(theta_g: Theta, theta_k: Theta, seed: int, repeats: int, candidates: int = 256) -> list[Plain]:
    """The same in numba and in NumPy, as one would write it."""
    rng = np.random.default_rng(seed)

    def in_numpy(part_g: Theta, part_k: Theta) -> NDArray[np.int64]:
        out = []
        for start in range(0, part_g.size, 1024):
            g, k = part_g[start : start + 1024], part_k[start : start + 1024]
            x = rng.random((candidates, g.size), np.float32) < g
            ratios = np.where(x, np.log(k / g), np.log((1 - k) / (1 - g))).sum(1)
            out.append(int((ratios + rng.gumbel(size=candidates)).argmax()))
        return np.array(out)

    def in_numba(part_g: Theta, part_k: Theta) -> NDArray[np.int64]:
        out = np.empty(-(-part_g.size // 1024), np.int64)
        _plain(np.uint64(derive(seed, "plain")), part_g, part_k, candidates, out)
        return out

    ways: dict[str, Callable[[Theta, Theta], NDArray[np.int64]]] = {"numba": in_numba, "NumPy": in_numpy}
    rows = []
    for what, way in ways.items():
        part = min(theta_g.size, PART if what == "numba" else PART // 4)
        median, _, _ = seconds(lambda way=way, part=part: way(theta_g[:part], theta_k[:part]), repeats)
        ns = median / part / candidates * 1e9
        rows.append(Plain(f"plain loop in {what}", part, ns, ns * theta_g.size * candidates / 1e9))
    return rows


def _divergence(theta_k: Theta, theta_g: Theta) -> float:
    """Nats, a part at a time: `relative_entropy` has eight bytes for each weight, several times over."""
    return sum(
        float(relative_entropy(theta_k[at : at + PART], theta_g[at : at + PART]).sum())
        for at in range(0, theta_g.size, PART)
    )


@nb.njit(cache=True, fastmath={"reassoc", "contract"})  # else the sum, in order, keeps it from vectors
def _plain(key: np.uint64, theta_g: Theta, theta_k: Theta, candidates: int, out: NDArray[np.int64]) -> None:
    ones = np.empty(1024, np.float32)
    zeros = np.empty(1024, np.float32)
    for b in range(out.size):
        start = 1024 * b
        n = min(1024, theta_g.size - start)
        for i in range(n):
            ones[i] = np.log(theta_k[start + i] / theta_g[start + i])
            zeros[i] = np.log((np.float32(1) - theta_k[start + i]) / (np.float32(1) - theta_g[start + i]))
        best = np.float32(-np.inf)
        for c in range(candidates):
            ratio = np.float32(0)
            base = key + np.uint64((b * candidates + c) * 1024) * _STEP
            for i in range(n):
                u = np.float32(mix64(base + np.uint64(i) * _STEP) >> _DROP) * np.float32(2.0**-24)
                ratio += ones[i] if u < theta_g[start + i] else zeros[i]
            ratio += -np.log(-np.log(np.float32(np.random.random())))
            if ratio > best:
                best = ratio
                out[b] = c
