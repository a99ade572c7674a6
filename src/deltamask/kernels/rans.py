"""The loops of the rANS code of gaps (Duda, 2013).

The state is a 64-bit word of which 32 bits at a time are written out. It starts from a number that the table
determines, and ends there again, which checks the whole stream; it is let below the usual lower bound as long as no
word has been written, which saves four bytes over starting from that bound. See `deltamask.codecs.rans` for
the tables.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from deltamask.kernels.gaps import OK, RANGE

__all__ = ["STATE_BITS", "decode_gaps", "encode_symbols", "split_gaps"]

STATE_BITS = 63
"""The state stays below two to this power."""

_LOW = np.uint64(1 << 31)
_HALF = np.uint64(32)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_U1 = np.uint64(1)


def _mulhi(typing_context: Any, a: Any, b: Any) -> Any:
    # The upper half of a product of two words, one instruction that has no name in NumPy.
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(a, wide) for a in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), emit


_multiply_high: Any = intrinsic(_mulhi)


@nb.njit(cache=True, nogil=True)
def split_gaps(
    keys: NDArray[Any], k: Any, escape: Any, out: NDArray[np.uint8], raw: NDArray[np.uint64], raw_at: Any
) -> Any:
    """Splits the gaps of sorted keys into symbols and ``k`` lower bits; returns the number of symbols.

    The lower bits follow one another in the zeroed ``raw`` from bit ``raw_at`` on. The escape adds the number of
    the plain ones and says that another symbol follows. A pass of its own, as `encode_symbols` waits for the
    state of the symbol before and this one does not.
    """
    shift = np.int64(k)
    mask = (np.int64(1) << shift) - 1
    plain = np.int64(escape)
    previous = np.int64(-1)
    at = np.int64(0)
    word = np.int64(raw_at) >> 6
    filled = np.int64(raw_at) & 63
    buffer = raw[word]
    for i in range(len(keys)):
        key = np.int64(keys[i])
        gap = key - previous - 1
        previous = key
        low = np.uint64(gap & mask)
        buffer |= low << np.uint64(filled)
        filled += shift
        if filled >= 64:
            raw[word] = buffer
            word += 1
            filled -= 64
            buffer = low >> np.uint64(shift - filled)
        symbol = gap >> shift
        while symbol >= plain:
            out[at] = plain
            at += 1
            symbol -= plain
        out[at] = symbol
        at += 1
    raw[word] = buffer
    return at


@nb.njit(cache=True, nogil=True)
def encode_symbols(
    symbols: NDArray[np.uint8],
    bits: Any,
    rows: NDArray[np.uint64],
    state: Any,
    words: NDArray[np.uint32],
    at: Any,
) -> Any:
    """Codes the symbols, last to first: the new state and the number of words so far.

    The row of a symbol has its frequency out of ``2**bits``, the number of slots before it and, for the division
    by the frequency, a reciprocal and a shift (see `deltamask.codecs.rans.Table.rows`).
    """
    precision = np.uint64(bits)
    total = _U1 << precision
    spare = np.uint64(STATE_BITS) - precision
    x = np.uint64(state)
    out = np.int64(at)
    for i in range(len(symbols) - 1, -1, -1):
        symbol = symbols[i]
        frequency = rows[symbol, 0]
        if x >= frequency << spare:
            words[out] = np.uint32(x & _LOW_WORD)
            out += 1
            x >>= _HALF
        # x // frequency, and then (quotient << bits) + the slots before the symbol + x % frequency.
        quotient = _multiply_high(x, rows[symbol, 2]) >> rows[symbol, 3]
        x += rows[symbol, 1] + quotient * (total - frequency)
    return x, out


@nb.njit(cache=True, nogil=True)
def decode_gaps(
    out: NDArray[Any],
    size: Any,
    k: Any,
    bits: Any,
    slots: NDArray[np.uint32],
    escape: Any,
    state: Any,
    words: NDArray[np.uint32],
    at: Any,
    raw: NDArray[np.uint64],
    raw_at: Any,
) -> Any:
    """The inverse of `split_gaps` and `encode_symbols`: a code, the state and the number of words read.

    ``slots`` has for each slot the symbol (7 bits), the frequency (13) and the offset within the symbol (12). The
    caller has checked that ``raw`` holds ``k`` bits for each entry.
    """
    shift = np.int64(k)
    mask = (_U1 << np.uint64(shift)) - _U1
    precision = np.uint64(bits)
    slot_mask = np.int64((1 << bits) - 1)
    plain = np.int64(escape)
    limit = np.int64(size)
    x = np.uint64(state)
    read = np.int64(at)
    previous = np.int64(-1)
    bit = np.int64(raw_at)
    for i in range(len(out)):
        upper = np.int64(0)
        while True:
            entry = slots[np.int64(x) & slot_mask]
            symbol = np.int64(entry & np.uint32(0x7F))
            x = np.uint64(entry >> np.uint32(7) & np.uint32(0x1FFF)) * (x >> precision) + np.uint64(
                entry >> np.uint32(20)
            )
            if x < _LOW and read < len(words):
                x = x << _HALF | np.uint64(words[read])
                read += 1
            upper += symbol
            if symbol < plain:
                break
            # Every escape moves on by at least one position, so this ends at the last one at the latest.
            if upper > limit >> shift:
                return RANGE, x, read
        offset = np.uint64(bit & 63)
        low = raw[bit >> 6] >> offset | raw[(bit >> 6) + 1] << _U1 << (np.uint64(63) - offset)
        bit += shift
        previous += (upper << shift | np.int64(low & mask)) + 1
        if previous >= limit:
            return RANGE, x, read
        out[i] = previous
    return OK, x, read
