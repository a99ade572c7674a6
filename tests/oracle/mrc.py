"""Minimal random coding bit by bit, in Python integers and plain logarithms: written from ``docs/wire-format.md``."""

from __future__ import annotations

import itertools
from math import exp, floor, log
from typing import Literal

from tests.oracle.filters import GOLDEN, MASK, mix


def word(key: int, i: int) -> int:
    """Word ``i`` of the 16-bit stream of ``key``."""
    return mix((key + i // 4 * GOLDEN) & MASK) >> 16 * (i % 4) & 0xFFFF


def limit(theta: float) -> int:
    """A probability in 1 / 65536."""
    threshold = floor(float(theta) * 2**31 + 0.5)
    return min(max((threshold + 2**14) // 2**15, 1), 65535)


def bit(table_key: int, shift_key: int, candidate: int, i: int, theta: float) -> int:
    return int((word(table_key, 1024 * candidate + i % 1024) + word(shift_key, i)) % 65536 < limit(theta))


def log_ratio(x: list[int], theta_k: list[float], theta_g: list[float]) -> float:
    """log P_k(x) / P_g(x), for the probabilities as they are rounded."""
    total = 0.0
    for b, k, g in zip(x, theta_k, theta_g, strict=True):
        p, q = limit(k) / 65536, limit(g) / 65536
        total += log(p / q) if b else log((1 - p) / (1 - q))
    return total


def choice_probabilities(masks: list[list[int]], theta_k: list[float], theta_g: list[float]) -> list[float]:
    """How often each candidate is to be chosen."""
    weights = [exp(log_ratio(x, theta_k, theta_g)) for x in masks]
    return [w / sum(weights) for w in weights]


def fixed_blocks(size: int, block: int) -> list[tuple[int, int, bool]]:
    """(start, end, has an index) of each block."""
    return [(a, min(a + block, size), True) for a in range(0, size, block)]


def read_bits(data: bytes, at: int, count: int) -> int:
    return sum((data[b // 8] >> b % 8 & 1) << j for j, b in enumerate(range(at, at + count)))


def adaptive_blocks(data: bytes, size: int) -> tuple[list[tuple[int, int, bool]], int]:
    """The blocks of a payload, and where its indices start."""
    length, k = 1 << data[0], data[1]
    at, count, blocks = 16, 0, []
    for start in range(0, size, length):
        zeros = 0
        while not read_bits(data, at, 1):
            zeros, at = zeros + 1, at + 1
        folded = zeros << k | read_bits(data, at + 1, k)
        at += 1 + k
        count += -(folded + 1) // 2 if folded % 2 else folded // 2
        weights = min(length, size - start)
        if count == 0:
            blocks.append((start, start + weights, False))
        for j in range(count):
            a, b = (n * (weights // count) + min(n, weights % count) for n in (j, j + 1))
            blocks.append((start + a, start + b, True))
    return blocks, -(-at // 8)


def told_blocks(data: bytes, size: int) -> tuple[list[tuple[int, int, bool]], int]:
    """The blocks of an averaged layout, and where they end in ``data``."""
    count = at = 0
    while True:
        count |= (data[at] & 0x7F) << 7 * at
        at += 1
        if data[at - 1] < 0x80:
            break
    unit, k = 1 << data[at], data[at + 1]
    at, length, starts = 8 * (at + 2), 0, [0] if size else []
    for _ in range(count - 1):
        zeros = 0
        while not read_bits(data, at, 1):
            zeros, at = zeros + 1, at + 1
        folded = zeros << k | read_bits(data, at + 1, k)
        at += 1 + k
        length += -(folded + 1) // 2 if folded % 2 else folded // 2
        starts.append(starts[-1] + length * unit)
    return [(a, b, True) for a, b in zip(starts, [*starts[1:], size], strict=False)], -(-at // 8)


def decode(
    data: bytes,
    theta_g: list[float],
    table_key: int,
    shift_key: int,
    index_bits: int,
    block: int | list[int] | Literal["own"] | None,
) -> list[int]:
    """The mask in a payload.

    ``block`` is a length for the fixed layout, None for the adaptive one, and for the averaged one "own", or where
    the blocks of the broadcast start, and the end.
    """
    if block is None:
        blocks, head = adaptive_blocks(data, len(theta_g))
    elif block == "own":
        blocks, head = told_blocks(data[2:], len(theta_g))
        head += 2
    elif isinstance(block, list):
        blocks, head = [(a, b, True) for a, b in itertools.pairwise(block)], 2
    else:
        blocks, head = fixed_blocks(len(theta_g), block), 0
    at, mask = 8 * head, []
    for start, end, coded in blocks:
        candidate = 0
        if coded:
            candidate = read_bits(data, at, index_bits)
            at += index_bits
        mask += [bit(table_key, shift_key, candidate, i, theta_g[i]) for i in range(start, end)]
    assert -(-at // 8) == len(data)
    return mask
