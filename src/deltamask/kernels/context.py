"""The loops over positions in classes: counting them, ranking them within their class and back, a checksum."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from deltamask.kernels.mix import mix64

__all__ = ["census", "checksum", "place", "rank", "toggle"]

_FAR = np.int64(1 << 62)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_EIGHT = np.uint64(8)


@nb.njit(cache=True, nogil=True)
def checksum(context: NDArray[np.uint8]) -> Any:
    """A hash of all bytes and their number: four lanes of little-endian words, each xored in and multiplied.

    It tells contexts apart that differ by mistake; against contexts made to collide it does nothing.
    """
    n = context.size
    words = context[: n // 8 * 8].view(np.uint64)
    a = b = c = d = np.uint64(n) * _STEP + _STEP
    quads = words.size // 4
    for i in range(quads):
        a = (a ^ words[4 * i]) * _STEP
        b = (b ^ words[4 * i + 1]) * _STEP
        c = (c ^ words[4 * i + 2]) * _STEP
        d = (d ^ words[4 * i + 3]) * _STEP
    h = mix64(a)
    h = mix64(h ^ b)
    h = mix64(h ^ c)
    h = mix64(h ^ d)
    for i in range(4 * quads, words.size):
        h = mix64(h ^ words[i])
    rest = np.uint64(0)
    for i in range(n - 1, 8 * words.size - 1, -1):
        rest = rest << _EIGHT | np.uint64(context[i])
    return mix64(h ^ rest)


@nb.njit(cache=True, nogil=True)
def census(context: NDArray[np.uint8], out: NDArray[np.int64]) -> None:
    """Counts the positions of each of the 256 classes in each quarter of the positions, the rest in the last one.

    Four at a time, as equal neighbours would otherwise wait for one another.
    """
    out[:] = 0
    step = len(context) // 4
    for i in range(step):
        out[0, context[i]] += 1
        out[1, context[step + i]] += 1
        out[2, context[2 * step + i]] += 1
        out[3, context[3 * step + i]] += 1
    for i in range(4 * step, len(context)):
        out[3, context[i]] += 1


@nb.njit(cache=True, nogil=True)
def rank(keys: NDArray[Any], context: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Writes the number of each key among the positions of its class, to ``out[starts[c] :]`` for class ``c``."""
    fill = starts.copy()
    seen = np.zeros((4, 256), np.int64)
    position = np.int64(0)
    for i in range(len(keys)):
        key = np.int64(keys[i])
        whole = position + (key - position & ~3)
        while position < whole:
            seen[0, context[position]] += 1
            seen[1, context[position + 1]] += 1
            seen[2, context[position + 2]] += 1
            seen[3, context[position + 3]] += 1
            position += 4
        while position < key:
            seen[0, context[position]] += 1
            position += 1
        c = context[key]
        out[fill[c]] = seen[0, c] + seen[1, c] + seen[2, c] + seen[3, c]
        fill[c] += 1


@nb.njit(cache=True, nogil=True)
def place(
    ranks: NDArray[Any],
    context: NDArray[np.uint8],
    starts: NDArray[np.int64],
    quarters: NDArray[np.int64],
    out: NDArray[Any],
) -> None:
    """The inverse of `rank`: writes sorted positions. Ranks are below the number of positions of their class.

    ``quarters`` is the `census`. With it each quarter of the positions knows where it starts, and the four are
    passed side by side: one alone would mostly wait for its own counters.
    """
    # A row for each class of each quarter. What is left to pass before the next listed position goes below zero
    # at that position; where none is listed any more, it never does.
    fill = np.empty(1024, np.int64)
    left = np.full(1024, _FAR)
    at = np.zeros(4, np.int64)
    for member in range(256):
        here = starts[member]
        before = np.int64(0)
        for lane in range(4):
            while here < starts[member + 1] and np.int64(ranks[here]) < before:
                here += 1
            fill[256 * lane + member] = here
            if here < starts[member + 1]:
                left[256 * lane + member] = np.int64(ranks[here]) - before
            at[lane] += here - starts[member]
            before += quarters[lane, member]
    step = len(context) // 4
    second, third, fourth = context[step:], context[2 * step :], context[3 * step :]
    for i in range(step + len(context) % 4):
        d = 768 + np.int64(fourth[i])
        left[d] -= 1
        found = left[d]
        if i < step:  # what four does not divide belongs to the last quarter
            a, b, c = np.int64(context[i]), 256 + np.int64(second[i]), 512 + np.int64(third[i])
            left[a] -= 1
            left[b] -= 1
            left[c] -= 1
            found |= left[a] | left[b] | left[c]
        if found < 0:
            for lane in range(4 if i < step else 1):
                quarter = lane if i < step else 3
                position = quarter * step + i
                row = 256 * quarter + np.int64(context[position])
                if left[row] < 0:
                    # As many as there are ranks below the sizes of their classes; checked for a caller's mistake.
                    if at[quarter] < len(out):
                        out[at[quarter]] = position
                    at[quarter] += 1
                    here = fill[row] + 1
                    fill[row] = here
                    if here < starts[row - 256 * quarter + 1]:
                        left[row] = np.int64(ranks[here]) - np.int64(ranks[here - 1]) - 1
                    else:
                        left[row] = _FAR


@nb.njit(cache=True, nogil=True)
def toggle(keys: NDArray[Any], context: NDArray[np.uint8], inverted: NDArray[np.bool_], out: NDArray[Any]) -> None:
    """Replaces the keys in the classes marked as inverted by the other positions there; its own inverse."""
    at = np.int64(0)
    taken = np.int64(0)
    for position in range(len(context)):
        member = taken < len(keys) and np.int64(keys[taken]) == position
        taken += np.int64(member)
        if member != (inverted[context[position]]):
            if at < len(out):
                out[at] = position
            at += 1
