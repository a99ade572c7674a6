"""A quick timing of every codec on one thread; the benchmark beside public peers is ``benchmarks/``."""

from __future__ import annotations

from math import lgamma, log
from time import perf_counter

import numpy as np

from deltamask import codecs, sampling
from deltamask.codecs.base import DEFAULT_LIMIT
from deltamask.errors import ConfigError

__all__ = ["COLUMNS", "measure"]

COLUMNS = ("codec", "bytes", "bits/key", "bpp", "x entropy", "in ns/key", "out ns/position", "wrong")


def measure(size: int, rate: float, repeats: int = 3) -> list[dict[str, str | int | float]]:
    """For every codec the best of ``repeats`` round trips of one random set."""
    if not 0 < size <= DEFAULT_LIMIT:
        raise ConfigError(f"size is {size}; expected 1 to {DEFAULT_LIMIT}")
    if not 0 < rate < 1:
        raise ConfigError(f"rate is {rate}; expected a number between 0 and 1")
    limits = np.full(size, round(rate * 2**31), np.uint32)
    keys = np.flatnonzero(sampling.mask(1, limits)).astype(np.uint32)
    if not keys.size:
        raise ConfigError(f"{size} positions at rate {rate} hold no key; raise one of them")
    entropy = (lgamma(size + 1) - lgamma(keys.size + 1) - lgamma(size - keys.size + 1)) / log(2)
    rows: list[dict[str, str | int | float]] = []
    for name in codecs.names():
        codec = codecs.get(name)
        payload = codec.encode(keys, size)  # the first calls compile
        found = codec.decode(payload, size)
        into, out = [], []
        for _ in range(repeats):
            started = perf_counter()
            codec.encode(keys, size)
            between = perf_counter()
            codec.decode(payload, size)
            into.append(between - started)
            out.append(perf_counter() - between)
        values = (
            name,
            len(payload),
            8 * len(payload) / keys.size,
            8 * len(payload) / size,
            8 * len(payload) / entropy,
            1e9 * min(into) / keys.size,
            1e9 * min(out) / size,
            int(found.size - keys.size),
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows
