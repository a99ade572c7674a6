"""From one byte per position (1: a match) to the sorted list of matching positions, nearly without branches."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

__all__ = ["count_ones", "emit", "squeeze", "trailing_zeros"]

_ONE = np.uint64(1)
_EIGHT = np.uint64(0x0102040810204080)
_TOP = np.uint64(56)


def _trailing_zeros(_: Any, x: Any) -> Any:

    def emit_code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return nb.uint64(nb.uint64), emit_code


def _count_ones(_: Any, x: Any) -> Any:

    def emit_code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return nb.uint64(nb.uint64), emit_code


trailing_zeros: Any = intrinsic(_trailing_zeros)
"""The index of the lowest set bit of a uint64; 64 for zero."""

count_ones: Any = intrinsic(_count_ones)
"""How many bits of a uint64 are set."""


@nb.njit(inline="always", cache=True)
def squeeze(flags, bits):  # type: ignore[no-untyped-def]
    """Eight flags (bytes 0 or 1, seen as one uint64) to each byte of ``bits``, the first one lowest."""
    for w in range(len(bits)):
        # The multiplication moves the lowest bit of byte j to bit 56 + j; no two of them meet on the way.
        bits[w] = (flags[w] * _EIGHT) >> _TOP


@nb.njit(inline="always", cache=True)
def emit(bits, base, out, count):  # type: ignore[no-untyped-def]
    """Writes ``base`` plus the index of each set bit of ``bits`` to ``out`` from ``count`` on; the new count.

    Two places are written whatever the bits are, for few words have more and branching on each bit would cost more.
    """
    last = count + np.int64(count_ones(bits))
    out[count] = base + trailing_zeros(bits)
    bits &= bits - _ONE
    out[count + 1] = base + trailing_zeros(bits)
    bits &= bits - _ONE
    at = count + 2
    while bits:
        out[at] = base + trailing_zeros(bits)
        bits &= bits - _ONE
        at += 1
    return last
