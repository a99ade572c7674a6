"""The loops of minimal random coding: candidates' bits, their log ratios, the choice of one, and its bits again.

Bit i of candidate c is ``(table[c, i % COLUMNS] + shift[i]) mod 2**16 < limit[i]``. Table and shifts are 16-bit words
of two streams, and word i of a stream depends on (key, i) alone. See `deltamask.channels.mrc` for why it is so.
"""

from __future__ import annotations

from math import exp
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from deltamask.kernels.draws import to_thresholds
from deltamask.kernels.mix import mix64

__all__ = ["COLUMNS", "UNIT", "choose", "divergence", "draw", "words"]

COLUMNS = 1024
"""Words of the table for each candidate: 512 KiB for 256 of them, which stays in the second-level cache."""
UNIT = 1024
"""Log ratios are integers in this fraction of a nat. Those of 16-bit probabilities are within 22.2 nats: int16."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFF)
_LANE = np.uint64(16)
_HALF = np.uint64(1 << 14)
_DROP = np.uint64(15)
_LEAST = np.uint64(1)
_MOST = np.uint64(0xFFFF)
_FULL = np.int64(32767)
_NAT = np.float64(1 / UNIT)
_PROBABILITY = np.float64(2.0**-16)
_UNIFORM = np.float64(2.0**-53)
_DROPPED = np.uint64(11)
_NONE = np.int16(0)
_TURNS = 8
_NEAR = np.float64(0.03)

_U16 = NDArray[np.uint16]
_U32 = NDArray[np.uint32]
_F32 = NDArray[np.float32]
_I64 = NDArray[np.int64]


@nb.njit(cache=True, nogil=True)
def words(key: np.uint64, start: int, out: _U16) -> None:
    """Words ``start``, ``start + 1``, ... of the stream ``key``; four to a hash, so ``start`` is a multiple of 4."""
    base = key + np.uint64(start // 4) * _STEP
    fours = out.size // 4
    for j in range(fours):
        h = mix64(base + np.uint64(j) * _STEP)
        out[4 * j] = np.uint16(h & _LOW)
        out[4 * j + 1] = np.uint16(h >> _LANE & _LOW)
        out[4 * j + 2] = np.uint16(h >> (_LANE + _LANE) & _LOW)
        out[4 * j + 3] = np.uint16(h >> (_LANE + _LANE + _LANE))
    if out.size % 4:
        h = mix64(base + np.uint64(fours) * _STEP)
        for i in range(4 * fours, out.size):
            out[i] = np.uint16(h & _LOW)
            h >>= _LANE


@nb.njit(inline="always", cache=True)
def _limit(threshold):  # type: ignore[no-untyped-def]
    """A 31-bit threshold rounded to 16 bits, never 0 or 1: no bit is certain, so no log ratio is infinite."""
    return np.uint16(min(max((np.uint64(threshold) + _HALF) >> _DROP, _LEAST), _MOST))


@nb.njit(cache=True, nogil=True)
def _ratios(
    theta_k: _F32, theta_g: _F32, logits: NDArray[np.int16], room: _U32, limits: _U16, steps: NDArray[np.int16]
) -> int:
    """Limits of theta_k, in ``room``, and of theta_g, and their log odds ratios; how many are no probabilities."""
    wrong = to_thresholds(theta_g, room)
    for i in range(room.size):
        limits[i] = _limit(room[i])
    wrong += to_thresholds(theta_k, room)
    for i in range(room.size):
        k = _limit(room[i])
        room[i] = k
        steps[i] = logits[k] - logits[limits[i]]
    return wrong


@nb.njit(inline="always", cache=True)
def _add(row, shift, limit, step, sums):  # type: ignore[no-untyped-def]
    """``sums += step`` for the candidates whose bit is set; all in 16 bits, so that a vector holds many."""
    for c in range(sums.size):
        sums[c] += step if np.uint16(row[c] + shift) < limit else _NONE


@nb.njit(cache=True, nogil=True)
def _weigh(totals: _I64, goal: float, least: float, most: float, weights: NDArray[np.float64]) -> float:
    """The weights of candidates with these log ratios, and their sum.

    A candidate's weight is its ratio to the power between ``least`` and ``most`` at which the mean log ratio of the
    choice is ``goal``, that of Bern(theta_k), or as near to it as they allow. Newton's steps, within a bracket.
    """
    top = totals.max()
    low = least
    high = most
    power = min(max(1.0, least), most)
    total = 0.0
    for turn in range(_TURNS):
        total = 0.0
        first = 0.0
        second = 0.0
        for c in range(totals.size):
            ratio = np.float64(totals[c] - top) * _NAT
            weight = exp(power * ratio)
            weights[c] = weight
            total += weight
            first += weight * ratio
            second += weight * ratio * ratio
        first /= total
        gap = (goal - np.float64(top)) * _NAT - first
        if abs(gap) < _NEAR or high - low < _NEAR or turn == _TURNS - 1:
            break
        if gap > 0.0:
            low = power
        else:
            high = power
        spread = second / total - first * first
        middle = 0.5 * (low + high)
        power = power + gap / spread if spread > 0.0 else middle
        if not low < power < high:
            power = middle
    return total


@nb.njit(cache=True, nogil=True)
def choose(
    theta_k: _F32,
    theta_g: _F32,
    starts: _I64,
    coded: NDArray[np.bool_],
    first: int,
    last: int,
    columns: _U16,
    shift_key: np.uint64,
    choice_key: np.uint64,
    logits: NDArray[np.int16],
    least: float,
    most: float,
    out: _U16,
) -> int:
    """``out[b]`` is the candidate of block ``b``, for ``first <= b < last``; 0 for blocks that are not ``coded``.

    ``columns`` is the table with a row for each column, the words of all candidates side by side. The factors of
    P_k(x) / P_g(x) that do not depend on x cancel, so a candidate's weight is the exponential of the sum of its
    set bits' log odds ratios, raised to a power between ``least`` and ``most`` (see `_weigh`). Returns how many
    numbers are no probabilities.
    """
    count = columns.shape[1]
    sums = np.empty(count, np.int16)
    totals = np.empty(count, np.int64)
    weights = np.empty(count, np.float64)
    room = np.empty(COLUMNS, np.uint32)
    limits = np.empty(COLUMNS, np.uint16)
    steps = np.empty(COLUMNS, np.int16)
    shifts = np.empty(COLUMNS + 4, np.uint16)
    wrong = 0
    for b in range(first, last):
        out[b] = 0
        if not coded[b]:
            continue
        totals[:] = 0
        sums[:] = 0
        held = np.int64(0)
        goal = 0.0
        at = starts[b]
        while at < starts[b + 1]:
            column = at % COLUMNS
            n = min(COLUMNS - column, starts[b + 1] - at)
            skip = at % 4
            wrong += _ratios(theta_k[at : at + n], theta_g[at : at + n], logits, room[:n], limits, steps)
            words(shift_key, at - skip, shifts[: n + skip])
            for i in range(n):
                step = steps[i]
                if step == _NONE:
                    continue
                size = abs(np.int64(step))
                if held + size > _FULL:
                    for c in range(count):
                        totals[c] += sums[c]
                    sums[:] = 0
                    held = np.int64(0)
                held += size
                goal += np.float64(step) * np.float64(room[i]) * _PROBABILITY
                _add(columns[column + i], shifts[skip + i], limits[i], step, sums)
            at += n
        for c in range(count):
            totals[c] += sums[c]
        total = _weigh(totals, goal, least, most, weights)
        # Gumbel's trick would take a logarithm for each candidate; one uniform gives the same distribution.
        left = np.float64(mix64(choice_key + np.uint64(b) * _STEP) >> _DROPPED) * _UNIFORM * total
        c = 0
        while c < count - 1 and left >= weights[c]:
            left -= weights[c]
            c += 1
        out[b] = c
    return wrong


@nb.njit(cache=True, nogil=True)
def divergence(
    theta_k: _F32, theta_g: _F32, logits: _F32, rests: _F32, cell: int, first: int, last: int, out: NDArray[Any]
) -> int:
    """``out[j]``: nats of KL(theta_k || theta_g) in the ``cell`` positions from ``j * cell`` on, both in 16 bits.

    ``rests`` is log(1 - p), by 16-bit probability. Returns how many numbers are no probabilities.
    """
    room_k = np.empty(cell, np.uint32)
    room_g = np.empty(cell, np.uint32)
    wrong = 0
    for j in range(first, last):
        start = j * cell
        n = min(cell, theta_k.size - start)
        wrong += to_thresholds(theta_k[start : start + n], room_k[:n])
        wrong += to_thresholds(theta_g[start : start + n], room_g[:n])
        total = 0.0
        for i in range(n):
            k = _limit(room_k[i])
            g = _limit(room_g[i])
            gain = np.float64(logits[k]) - np.float64(logits[g])
            total += np.float64(k) * _PROBABILITY * gain + (np.float64(rests[k]) - np.float64(rests[g]))
        out[j] = max(total, 0.0)
    return wrong


@nb.njit(cache=True, nogil=True)
def draw(
    table: _U16,
    shift_key: np.uint64,
    thresholds: _U32,
    starts: _I64,
    choices: _U16,
    first: int,
    last: int,
    out: NDArray[np.uint8],
) -> None:
    """The bits of candidate ``choices[b]`` in each block ``first <= b < last``; ``table`` has a row for each one."""
    shifts = np.empty(COLUMNS + 4, np.uint16)
    for b in range(first, last):
        row = table[choices[b]]
        at = starts[b]
        while at < starts[b + 1]:
            column = at % COLUMNS
            n = min(COLUMNS - column, starts[b + 1] - at)
            skip = at % 4
            words(shift_key, at - skip, shifts[: n + skip])
            for i in range(n):
                out[at + i] = np.uint16(row[column + i] + shifts[skip + i]) < _limit(thresholds[at + i])
            at += n
