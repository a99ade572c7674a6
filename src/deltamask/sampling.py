"""(seed, client, round) -> keys -> uniforms -> masks, bit for bit the same on every platform.

A probability becomes an integer threshold in one way only, ``floor(theta * 2**31 + 1/2)``, and a mask bit is
``word < threshold`` for a 31-bit word that depends on (key, position) alone. Server and client therefore
agree on every bit whatever their machines, thread counts and chunk sizes.

Three modes say which keys draw the server's mask m_g and the client's mask m_k (METHOD, decision 6):

- ``coupled``: one key for both, another for each client and round. A position differs with probability
  ``|theta_k - theta_g|`` only, and clients stay independent of each other.
- ``independent``: the paper's Algorithm 1 read literally. m_g from a key all clients share, m_k from a private one.
- ``shared``: one key for both and for all clients. As few flips as ``coupled``, but the errors of all clients
  add up instead of averaging out; for studies only.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import ConfigError
from deltamask.kernels import draws
from deltamask.threads import over_chunks

__all__ = [
    "MODES",
    "Keys",
    "Mode",
    "derive",
    "flips",
    "mask",
    "permutation",
    "thresholds",
    "uniforms",
]

Mode = Literal["coupled", "independent", "shared"]
MODES: tuple[Mode, ...] = ("coupled", "independent", "shared")


def derive(seed: int, *labels: str | int) -> int:
    """A 64-bit key for one purpose: a hash of ``seed`` and ``labels``.

    >>> derive(0, "mask", 3, 7) == derive(0, "mask", 3, 7) != derive(0, "mask", 7, 3)
    True
    """
    text = "\x1f".join([str(seed), *(f"{type(label).__name__}:{label}" for label in labels)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8, person=b"deltamask").digest(), "little")


@dataclass(frozen=True)
class Keys:
    """The keys of one client in one round: ``server`` draws m_g, ``client`` draws m_k.

    Only ``server`` is known to both sides in every mode.
    """

    server: int
    client: int

    @classmethod
    def of(cls, mode: Mode, seed: int, client: int, round: int) -> Keys:
        """The keys of ``mode`` from the seed that the federation shares."""
        if mode == "coupled":
            key = derive(seed, "coupled", client, round)
            return cls(key, key)
        if mode == "shared":
            key = derive(seed, "shared", round)
            return cls(key, key)
        if mode == "independent":
            return cls(derive(seed, "public", round), derive(seed, "private", client, round))
        raise ConfigError(f"sampling mode is {mode!r}; expected one of {', '.join(MODES)}")


def thresholds(theta: NDArray[np.float32]) -> NDArray[np.uint32]:
    """``floor(theta * 2**31 + 1/2)``: 0 is never, 2**31 always."""
    theta = np.ascontiguousarray(theta, np.float32)
    out = np.empty(theta.size, np.uint32)
    wrong: list[int] = []
    over_chunks(lambda a, b: wrong.append(draws.to_thresholds(theta[a:b], out[a:b])), theta.size)
    if any(wrong):
        raise ConfigError(f"{sum(wrong)} of {theta.size} probabilities are not within 0 to 1; expected 0 to 1")
    return out


def uniforms(key: int, size: int, start: int = 0) -> NDArray[np.uint32]:
    """Words ``start`` to ``start + size`` of a stream: uniform integers below 2**31."""
    skip = start % 2
    out = np.empty(size + skip, np.uint32)
    draws.draw_words(np.uint64(key), start - skip, out)
    return out[skip:]


def mask(key: int, limits: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """The mask of 0 and 1 that ``key`` draws from integer thresholds."""
    out = np.empty(limits.size, np.uint8)
    over_chunks(lambda a, b: draws.draw_mask(np.uint64(key), a, limits[a:b], out[a:b]), limits.size)
    return out


def flips(keys: Keys, server: NDArray[Any], client: NDArray[Any]) -> NDArray[np.uint32]:
    """The sorted positions at which m_g and m_k differ, for theta_g and theta_k (float32) or their thresholds."""
    if server.shape != client.shape:
        raise ConfigError(f"theta_g has {server.size} probabilities, theta_k {client.size}")
    if {server.dtype, client.dtype} - {np.dtype(np.float32), np.dtype(np.uint32)}:
        raise ConfigError(
            f"theta_g is {server.dtype}, theta_k {client.dtype}; expected float32, or uint32 thresholds"
        )
    room = server.size // 16 + 1024
    while True:
        out = np.empty(room, np.uint32)
        found, wrong = draws.draw_flips(np.uint64(keys.server), server, np.uint64(keys.client), client, out)
        if wrong:
            raise ConfigError(f"{wrong} of {2 * server.size} probabilities are not within 0 to 1; expected 0 to 1")
        if found <= room:
            return out[:found].copy()
        room = found


def permutation(key: int, size: int) -> NDArray[np.int64]:
    """A random order of ``range(size)`` that depends on ``key`` alone."""
    return np.argsort(uniforms(key, size), kind="stable")
