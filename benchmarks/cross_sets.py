"""Sets of positions: filters beside pyfusefilter and rbloom, exact codes beside constriction's range coder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from checks import Check, rate, within
from numpy.typing import NDArray

from deltamask import codecs
from deltamask.updates.qsgd import Qsgd

__all__ = ["blooms", "coders", "filters"]

COUNTS = (10_000, 100_000, 1_000_000)
ASKED = {8: 1_000_000, 16: 4_000_000}
"""Positions outside the set that a peer is asked about, one by one, by the width of its fingerprints."""


def keys_of(count: int, size: int, seed: int = 0) -> NDArray[np.uint32]:
    """A uniform set."""
    return np.sort(np.random.default_rng(seed).choice(size, count, replace=False)).astype(np.uint32)


def filters() -> Iterator[Check]:
    """Bits and wrong positions of filters with three slots a key, which are those that pyfusefilter has."""
    import pyfusefilter

    pairs = (
        ("bfuse8x3", pyfusefilter.Fuse8, 8),
        ("xor8", pyfusefilter.Xor8, 8),
        ("bfuse16x3", pyfusefilter.Fuse16, 16),
        ("xor16", pyfusefilter.Xor16, 16),
    )
    for name, kind, width in pairs:
        for count in COUNTS:
            keys = keys_of(count, 100 * count)
            yield within(
                0.01,
                f"pyfusefilter {kind.__name__}",
                name,
                f"bits a key, {count:,} keys",
                8 * len(codecs.get(name).encode(keys, 100 * count)) / count,
                8 * len(kind(keys.tolist()).serialize()) / count,
                "the same number of slots but for whole segments and the header",
            )
        count, size = 100_000, 10_000_000
        keys = keys_of(count, size)
        yield rate(
            f"pyfusefilter {kind.__name__}",
            name,
            "false positives",
            _wrong(name, keys, size),
            _hits(kind(keys.tolist()).contains, keys, size, ASKED[width]),
            2.0**-width,
            "hits are independent: their number is Poisson",
        )


def blooms() -> Iterator[Check]:
    """Bloom filters of as many bits a key as rbloom takes for the same goal."""
    import rbloom

    count, size = 100_000, 10_000_000
    keys = keys_of(count, size)
    for goal in (1 / 64, 1 / 256, 1 / 1024):
        peer = rbloom.Bloom(count, goal)
        peer.update(keys.tolist())
        bits = peer.size_in_bits / count
        hashes = round(bits * math.log(2))
        yield rate(
            "rbloom",
            f"bloom:{bits:.2f}",
            "false positives",
            _wrong(f"bloom:{bits}", keys, size),
            _hits(peer.__contains__, keys, size, 1_000_000),
            (1 - math.exp(-hashes / bits)) ** hashes,
            "hits are Poisson; 3% more for the share of set bits of one filter, and hashes that are derived from two",
            more=0.03,
        )


def coders() -> Iterator[Check]:
    """Gaps, masks and levels, each against a range coder with the model that made them."""
    reason = "both within some bytes of the entropy under the same model; a header of ours is 10 to 20 bytes"
    size = 2_000_000
    for share in (0.001, 0.01, 0.1):
        keys = keys_of(round(share * size), size)
        gaps = np.diff(keys.astype(np.int64), prepend=-1) - 1
        top = int(gaps.max()) + 1
        theirs = _range_coded(gaps, share * (1 - share) ** np.arange(top))
        for name, tolerance in (("rans", 0.003), ("rice", 0.035)):
            yield within(
                tolerance,
                "constriction",
                name,
                f"bytes, {share:.1%} of {size:,} positions",
                len(codecs.get(name).encode(keys, size)),
                theirs,
                reason if name == "rans" else "Rice's code has whole bits a gap: up to 3% over the entropy",
            )
    rng = np.random.default_rng(0)
    theta = rng.choice([0.05, 0.2, 0.8], size)
    mask = rng.random(size) < theta
    share = mask.mean()
    yield within(
        0.003,
        "constriction",
        "fedpm",
        f"bytes of a mask, {size:,} weights of which {share:.0%} are set",
        1 + len(codecs.get("rans").encode(np.flatnonzero(mask), size)),
        _range_coded(mask.astype(np.int64), [1 - share, share]),
        reason,
    )
    known = np.unique(theta, return_inverse=True)[1].astype(np.uint8)
    classes = [mask[known == c].astype(np.int64) for c in range(3)]
    yield within(
        0.003,
        "constriction",
        "context",
        f"bytes of a mask, {size:,} weights of three known rates",
        len(codecs.get("context").encode(np.flatnonzero(mask), size, known)),
        sum(_range_coded(c, [1 - c.mean(), c.mean()]) for c in classes),
        reason,
    )
    x = rng.standard_t(3, size).astype(np.float32)
    code = Qsgd(512, 2)
    data = code.encode(x, 0, 1)
    norms = 4 * -(-size // 512)
    found = code.decode(data, size, 0)
    scale = np.repeat(np.frombuffer(data[:norms], "<f4"), 512)[:size] / 2
    levels = np.rint(found / scale).astype(np.int64) + 2
    shares = np.bincount(levels, minlength=5) / size
    yield within(
        0.003,
        "constriction",
        "qsgd:2",
        f"bytes of levels and signs, {size:,} numbers",
        len(data) - norms,
        _range_coded(levels, shares),
        reason,
    )


def _wrong(name: str, keys: NDArray[np.uint32], size: int) -> tuple[int, int]:
    """False positives of a codec among all positions that are not in the set."""
    codec = codecs.get(name)
    found = codec.decode(codec.encode(keys, size), size)
    if len(np.intersect1d(found, keys)) != len(keys):
        raise RuntimeError(f"{name}: positions are missing")
    return len(found) - len(keys), size - len(keys)


def _hits(contains: Callable[[int], bool], keys: NDArray[np.uint32], size: int, asked: int) -> tuple[int, int]:
    outside = np.setdiff1d(np.arange(size)[:: max(1, size // asked)], keys).tolist()
    if not all(contains(key) for key in keys.tolist()):
        raise RuntimeError("the peer's filter misses a key")
    return sum(map(contains, outside)), len(outside)


def _range_coded(symbols: NDArray[np.int64], shares: Sequence[float] | NDArray[np.float64]) -> int:
    """Bytes of constriction's range coder."""
    import constriction

    coder: Any = constriction.stream.queue.RangeEncoder()
    model = constriction.stream.model.Categorical(np.asarray(shares, np.float64), perfect=False)
    coder.encode(symbols.astype(np.int32), model)
    return 4 * len(coder.get_compressed())
