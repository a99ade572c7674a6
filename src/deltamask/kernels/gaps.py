"""Loops over gaps: bitmaps, Rice codes and the complement of a set.

numba checks no bounds, so every loop over bytes from outside compares each position that it reads, and each
index that it makes, with what is there. It then returns one of the codes below instead of a result.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = [
    "OK",
    "RANGE",
    "SHORT",
    "complement",
    "from_bits",
    "rice_cost",
    "rice_decode",
    "rice_encode",
    "to_bits",
]

OK = 0
SHORT = 1
"""The bits end before the last entry."""
RANGE = 2
"""An entry at or beyond the number of positions."""

_U0 = np.uint64(0)
_U1 = np.uint64(1)
_WORD = np.int64(64)


def _cttz(typing_context: Any, word: Any) -> Any:
    # The one instruction needed here that has no name in NumPy; 64 for the word 0.
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), emit


_trailing_zeros: Any = intrinsic(_cttz)


@nb.njit(inline="always", cache=True)
def _window(words: NDArray[np.uint64], at: Any) -> Any:
    word = at >> 6
    bit = np.uint64(at & 63)
    return words[word] >> bit | words[word + 1] << _U1 << (np.uint64(63) - bit)


@nb.njit(cache=True, nogil=True)
def complement(keys: NDArray[Any], size: Any, out: NDArray[Any]) -> None:
    """Writes the positions below ``size`` that are not in the sorted ``keys``."""
    at = np.int64(0)
    position = np.int64(0)
    for i in range(len(keys)):
        key = np.int64(keys[i])
        while position < key:
            out[at] = position
            at += 1
            position += 1
        position = key + 1
    while position < size:
        out[at] = position
        at += 1
        position += 1


@nb.njit(cache=True, nogil=True)
def to_bits(keys: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Sets the bit of each key in the zeroed ``out``, least significant bit first."""
    for i in range(len(keys)):
        key = np.int64(keys[i])
        out[key >> 3] |= np.uint8(1 << (key & 7))


@nb.njit(cache=True, nogil=True)
def from_bits(words: NDArray[np.uint64], out: NDArray[Any]) -> Any:
    """Writes the positions of the set bits as long as there is room; returns how many bits are set."""
    at = np.int64(0)
    for w in range(len(words)):
        word = words[w]
        base = np.int64(w) * _WORD
        while word != _U0:
            if at < len(out):
                out[at] = base + _trailing_zeros(word)
            at += 1
            word &= word - _U1
    return at


@nb.njit(cache=True, nogil=True)
def rice_cost(keys: NDArray[Any], k: Any) -> Any:
    """The number of bits of the code with parameters ``k``, ``k + 1`` and ``k + 2``."""
    shift = np.int64(k)
    previous = np.int64(-1)
    first = second = third = np.int64(0)
    for i in range(len(keys)):
        key = np.int64(keys[i])
        quotient = (key - previous - 1) >> shift
        first += quotient
        second += quotient >> 1
        third += quotient >> 2
        previous = key
    base = len(keys) * (shift + 1)
    return first + base, second + base + len(keys), third + base + 2 * len(keys)


@nb.njit(cache=True, nogil=True)
def rice_encode(keys: NDArray[Any], k: Any, words: NDArray[np.uint64]) -> None:
    """Writes each gap as that many zeros as its upper part says, a one, and its ``k`` lower bits.

    ``words`` is zeroed and has a word more than `rice_cost` asks for.
    """
    shift = np.int64(k)
    mask = (np.int64(1) << shift) - 1
    previous = np.int64(-1)
    at = np.int64(0)
    for i in range(len(keys)):
        key = np.int64(keys[i])
        gap = key - previous - 1
        previous = key
        at += gap >> shift
        value = np.uint64((gap & mask) << 1 | 1)
        word = at >> 6
        bit = np.uint64(at & 63)
        words[word] |= value << bit
        # Two shifts, because a shift by 64 is undefined.
        words[word + 1] |= value >> _U1 >> (np.uint64(63) - bit)
        at += shift + 1


@nb.njit(cache=True, nogil=True)
def rice_decode(words: NDArray[np.uint64], bits: Any, k: Any, size: Any, out: NDArray[Any]) -> Any:
    """The inverse of `rice_encode`: a code and the number of bits read.

    ``words`` holds ``bits`` bits, then zeros, and at least one word more than they fill.
    """
    shift = np.int64(k)
    mask = (_U1 << np.uint64(shift)) - _U1
    previous = np.int64(-1)
    at = np.int64(0)
    for i in range(len(out)):
        window = _window(words, at)
        quotient = np.int64(0)
        while window == _U0:
            quotient += _WORD
            at += _WORD
            if at >= bits:
                return SHORT, at
            window = _window(words, at)
        zeros = _trailing_zeros(window)
        quotient += zeros
        at += zeros + 1
        if at + shift > bits:
            return SHORT, at
        low = window >> np.uint64(zeros) >> _U1 if zeros + 1 + shift <= _WORD else _window(words, at)
        # Before the shift: a quotient of an endless run of zeros would overflow it.
        if quotient > size >> shift:
            return RANGE, at
        previous += (quotient << shift | np.int64(low & mask)) + 1
        at += shift
        if previous >= size:
            return RANGE, at
        out[i] = previous
    return OK, at
