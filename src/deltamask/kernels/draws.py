"""Counter-based draws: word i of a stream depends on (key, i) alone, never on chunks or threads.

Word i is one half of ``mix64(key + (i // 2) * STEP)``, low half first, without its lowest bit: 31 uniform
bits. Position i of a mask is set when its word is below the integer threshold of its probability.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from deltamask.kernels.mix import mix64

__all__ = [
    "add_signs",
    "count_votes",
    "draw_flips",
    "draw_mask",
    "draw_words",
    "masked_weights",
    "move_votes",
    "theta_context",
    "to_thresholds",
]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_LOW = np.uint64(0x7FFFFFFF)
_HIGH_SHIFT = np.uint64(33)
_SCALE = np.float64(2.0**31)
_HALF = np.float64(0.5)
_CHUNK = 4096
_BIN_SHIFT = np.uint32(27)
_LAST_BIN = np.uint32(15)

_U32 = NDArray[np.uint32]
_U8 = NDArray[np.uint8]


@nb.njit(cache=True, nogil=True)
def to_thresholds(theta: NDArray[np.float32], out: _U32) -> int:
    """``out = floor(theta * 2**31 + 1/2)``; how many of ``theta`` are no probabilities, which leaves theirs at 0."""
    wrong = 0
    for i in range(out.size):
        p = np.float64(theta[i])
        good = (p >= 0.0) & (p <= 1.0)  # false for a NaN
        # Through int64, whose conversion is one vector instruction; in range, so that nothing is undefined.
        out[i] = np.uint32(np.int64((p if good else 0.0) * _SCALE + _HALF))
        wrong += not good
    return wrong


@nb.njit(cache=True, nogil=True)
def draw_words(key: np.uint64, start: int, out: _U32) -> None:
    """Words ``start``, ``start + 1``, ... of the stream ``key``; ``start`` is even."""
    base = key + np.uint64(start // 2) * _STEP
    pairs = out.size // 2
    for j in range(pairs):
        h = mix64(base + np.uint64(j) * _STEP)
        out[2 * j] = np.uint32((h >> _ONE) & _LOW)
        out[2 * j + 1] = np.uint32(h >> _HIGH_SHIFT)
    if out.size % 2:
        h = mix64(base + np.uint64(pairs) * _STEP)
        out[out.size - 1] = np.uint32((h >> _ONE) & _LOW)


@nb.njit(cache=True, nogil=True)
def draw_mask(key: np.uint64, start: int, thresholds: _U32, out: _U8) -> None:
    """``out[i] = word[start + i] < thresholds[i]``."""
    base = key + np.uint64(start // 2) * _STEP
    n = out.size
    for j in range(n // 2):
        h = mix64(base + np.uint64(j) * _STEP)
        out[2 * j] = np.uint32((h >> _ONE) & _LOW) < thresholds[2 * j]
        out[2 * j + 1] = np.uint32(h >> _HIGH_SHIFT) < thresholds[2 * j + 1]
    if n % 2:
        h = mix64(base + np.uint64(n // 2) * _STEP)
        out[n - 1] = np.uint32((h >> _ONE) & _LOW) < thresholds[n - 1]


@nb.njit(cache=True, nogil=True)
def count_votes(key: np.uint64, start: int, thresholds: _U32, votes: NDArray[np.int32]) -> None:
    """Adds the mask of `draw_mask` to ``votes`` without storing it."""
    base = key + np.uint64(start // 2) * _STEP
    n = votes.size
    for j in range(n // 2):
        h = mix64(base + np.uint64(j) * _STEP)
        votes[2 * j] += np.uint32((h >> _ONE) & _LOW) < thresholds[2 * j]
        votes[2 * j + 1] += np.uint32(h >> _HIGH_SHIFT) < thresholds[2 * j + 1]
    if n % 2:
        h = mix64(base + np.uint64(n // 2) * _STEP)
        votes[n - 1] += np.uint32((h >> _ONE) & _LOW) < thresholds[n - 1]


@nb.njit(cache=True, nogil=True)
def move_votes(
    key: np.uint64, indices: NDArray[np.unsignedinteger], thresholds: _U32, votes: NDArray[np.int32]
) -> None:
    """Flips the drawn bit at each of ``indices``: +1 where it was 0, -1 where it was 1."""
    for j in range(indices.size):
        i = np.uint64(indices[j])
        h = mix64(key + (i >> _ONE) * _STEP)
        word = np.uint32(h >> _HIGH_SHIFT) if i & _ONE else np.uint32((h >> _ONE) & _LOW)
        votes[i] += -1 if word < thresholds[i] else 1


def _limits(part: Any, room: Any) -> Any:
    """Thresholds of a chunk: themselves, or made from probabilities in ``room``. (thresholds, wrong ones)"""


@overload(_limits)
def _limits_by_type(part: Any, room: Any) -> Any:
    if part.dtype is types.float32:

        def from_probabilities(part: Any, room: Any) -> Any:
            wrong = to_thresholds(part, room[: part.size])
            return room[: part.size], wrong

        return from_probabilities

    def as_they_are(part: Any, room: Any) -> Any:
        return part, 0

    return as_they_are


@nb.njit(cache=True, nogil=True)
def draw_flips(key_a: np.uint64, a: NDArray[Any], key_b: np.uint64, b: NDArray[Any], out: _U32) -> tuple[int, int]:
    """The positions at which the masks (key_a, a) and (key_b, b) differ, as many as ``out`` holds.

    ``a`` and ``b`` are thresholds or float32 probabilities, which become thresholds chunk by chunk, in the cache.
    Returns how many there are, and how many probabilities are none. One key for both masks is the coupled case,
    which needs each word once.
    """
    flags = np.empty(_CHUNK, np.uint8)
    words = flags.view(np.uint64)
    room_a = np.empty(_CHUNK, np.uint32)
    room_b = np.empty(_CHUNK, np.uint32)
    found = 0
    wrong = 0
    for start in range(0, a.size, _CHUNK):
        n = min(_CHUNK, a.size - start)
        flags[n:] = 0
        base_a = key_a + np.uint64(start // 2) * _STEP
        base_b = key_b + np.uint64(start // 2) * _STEP
        ta, wrong_a = _limits(a[start : start + n], room_a)
        tb, wrong_b = _limits(b[start : start + n], room_b)
        wrong += wrong_a + wrong_b
        if key_a == key_b:
            for j in range(n // 2):
                h = mix64(base_a + np.uint64(j) * _STEP)
                even = np.uint32((h >> _ONE) & _LOW)
                odd = np.uint32(h >> _HIGH_SHIFT)
                flags[2 * j] = (even < ta[2 * j]) != (even < tb[2 * j])
                flags[2 * j + 1] = (odd < ta[2 * j + 1]) != (odd < tb[2 * j + 1])
        else:
            for j in range(n // 2):
                h = mix64(base_a + np.uint64(j) * _STEP)
                g = mix64(base_b + np.uint64(j) * _STEP)
                even_a = np.uint32((h >> _ONE) & _LOW) < ta[2 * j]
                even_b = np.uint32((g >> _ONE) & _LOW) < tb[2 * j]
                flags[2 * j] = even_a != even_b
                odd_a = np.uint32(h >> _HIGH_SHIFT) < ta[2 * j + 1]
                odd_b = np.uint32(g >> _HIGH_SHIFT) < tb[2 * j + 1]
                flags[2 * j + 1] = odd_a != odd_b
        if n % 2:
            h = mix64(base_a + np.uint64(n // 2) * _STEP)
            g = mix64(base_b + np.uint64(n // 2) * _STEP)
            last_a = np.uint32((h >> _ONE) & _LOW) < ta[n - 1]
            last_b = np.uint32((g >> _ONE) & _LOW) < tb[n - 1]
            flags[n - 1] = last_a != last_b
        for w in range((n + 7) // 8):
            if words[w]:
                for i in range(8 * w, 8 * w + 8):
                    if flags[i]:
                        if found < out.size:
                            out[found] = start + i
                        found += 1
    return found, wrong


@nb.njit(cache=True, nogil=True)
def theta_context(key: np.uint64, thresholds: _U32, out: _U8) -> None:
    """``2 * bin + m_g``: sixteen equal bins of theta_g and the bit that ``key`` draws from it."""
    n = out.size
    for j in range(n // 2):
        h = mix64(key + np.uint64(j) * _STEP)
        even, odd = thresholds[2 * j], thresholds[2 * j + 1]
        bit = np.uint8(np.uint32((h >> _ONE) & _LOW) < even)
        out[2 * j] = np.uint8(min(even >> _BIN_SHIFT, _LAST_BIN) << np.uint32(1)) | bit
        bit = np.uint8(np.uint32(h >> _HIGH_SHIFT) < odd)
        out[2 * j + 1] = np.uint8(min(odd >> _BIN_SHIFT, _LAST_BIN) << np.uint32(1)) | bit
    if n % 2:
        h = mix64(key + np.uint64(n // 2) * _STEP)
        last = thresholds[n - 1]
        bit = np.uint8(np.uint32((h >> _ONE) & _LOW) < last)
        out[n - 1] = np.uint8(min(last >> _BIN_SHIFT, _LAST_BIN) << np.uint32(1)) | bit


@nb.njit(cache=True, nogil=True)
def masked_weights(
    key: np.uint64, start: int, theta: NDArray[np.float32], weights: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """``out = mask * weights`` for a mask drawn from the probabilities ``theta``, in one pass.

    ``word + 1/2 <= theta * 2**31`` is, exactly, ``word < floor(theta * 2**31 + 1/2)``: the same threshold as
    everywhere else, without an array for it.
    """
    base = key + np.uint64(start // 2) * _STEP
    n = out.size
    zero = np.float32(0)
    for j in range(n // 2):
        h = mix64(base + np.uint64(j) * _STEP)
        even = np.float64(np.int64((h >> _ONE) & _LOW)) + _HALF
        odd = np.float64(np.int64(h >> _HIGH_SHIFT)) + _HALF
        out[2 * j] = weights[2 * j] if even <= theta[2 * j] * _SCALE else zero
        out[2 * j + 1] = weights[2 * j + 1] if odd <= theta[2 * j + 1] * _SCALE else zero
    if n % 2:
        h = mix64(base + np.uint64(n // 2) * _STEP)
        last = np.float64(np.int64((h >> _ONE) & _LOW)) + _HALF
        out[n - 1] = weights[n - 1] if last <= theta[n - 1] * _SCALE else zero


@nb.njit(cache=True, nogil=True)
def add_signs(key: np.uint64, start: int, scale: np.float32, out: NDArray[np.float32]) -> None:
    """``out[i] += scale`` or ``-= scale``, by bit ``start + i`` of the stream: 64 to a word, the lowest first."""
    i = 0
    while i < out.size:
        at = start + i
        h = mix64(key + np.uint64(at >> 6) * _STEP) >> np.uint64(at & 63)
        n = min(64 - (at & 63), out.size - i)
        for j in range(n):
            up = np.float32(np.int64((h >> np.uint64(j)) & _ONE))
            out[i + j] += scale * (np.float32(2) * up - np.float32(1))
        i += n
