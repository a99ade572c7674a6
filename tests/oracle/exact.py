"""Exact set codes bit by bit, in plain Python: written from ``docs/wire-format.md``, not from the fast loops.

Rational numbers and strings of bits instead of fixed point and words, so that a mistake in one is not in the other.
"""

from fractions import Fraction
from itertools import pairwise

from tests.oracle.filters import mix


def varint(value):
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def to_bytes(bits):
    """A string of 0 and 1, the first of which is the least significant bit of the first byte."""
    padded = bits + "0" * (-len(bits) % 8)
    return bytes(int(padded[at : at + 8][::-1], 2) for at in range(0, len(padded), 8))


def to_bits(data):
    return "".join(f"{byte:08b}"[::-1] for byte in data)


def lower_bits(value, k):
    return "".join(str(value >> i & 1) for i in range(k))


def gaps(keys):
    return [int(key) - int(before) - 1 for before, key in zip([-1, *keys[:-1]], keys, strict=True)]


def smaller_side(keys, size):
    if 2 * len(keys) <= size:
        return [int(key) for key in keys]
    members = {int(key) for key in keys}
    return [position for position in range(size) if position not in members]


def header(format_id, keys, size):
    return bytes([format_id]) + varint(size) + varint(len(keys))


def bitmap(keys, size):
    if len(keys) in (0, size):
        return header(32, keys, size)
    members = {int(key) for key in keys}
    return header(32, keys, size) + to_bytes("".join("01"[position in members] for position in range(size)))


def rice_bits(keys, k):
    return "".join("0" * (gap >> k) + "1" + lower_bits(gap, k) for gap in gaps(keys))


def rice(keys, size):
    """All parameters are tried."""
    side = smaller_side(keys, size)
    if not side:
        return header(33, keys, size)
    length, k = min((sum((gap >> k) + 1 + k for gap in gaps(side)), k) for k in range(41))
    bits = rice_bits(side, k)
    assert len(bits) == length
    return header(33, keys, size) + bytes([k]) + to_bytes(bits)


def rans_table(count, size):
    """k, the number of bits of a frequency, and the frequencies with the escape as the last one."""
    k = 0
    while Fraction(count, size) * 2 ** (k + 1) <= Fraction(1, 8):
        k += 1
    bits = min(12, max(8, len(f"{count:b}")))
    # 128 bits behind the point, cut off after each step.
    ratio = Fraction(2**128 * (size - count) // size, 2**128)
    for _ in range(k):
        ratio = Fraction(int(ratio * ratio * 2**128), 2**128)
    edges, tail = [0], Fraction(1)
    while len(edges) < 127:
        tail = Fraction(int(tail * ratio * 2**128), 2**128)
        edge = 2**bits - int(tail * 2**bits + Fraction(1, 2))
        if edge in (edges[-1], 2**bits):
            break
        edges.append(edge)
    edges.append(2**bits)
    return k, bits, [b - a for a, b in pairwise(edges)]


def rans_stream(lists):
    """The stream of several lists of (keys, size)."""
    lists = [(keys, rans_table(len(keys), size)) for keys, size in lists if len(keys)]
    if not lists:
        return b""
    lower = "".join(lower_bits(gap, k) for keys, (k, _, _) in lists for gap in gaps(keys))
    state, words = max(frequencies[0] for _, (_, _, frequencies) in lists), []
    for keys, (k, bits, frequencies) in reversed(lists):
        escape = len(frequencies) - 1
        for gap in reversed(gaps(keys)):
            upper = gap >> k
            for symbol in [upper % escape] + [escape] * (upper // escape):
                frequency = frequencies[symbol]
                if state >= frequency << 63 - bits:
                    words.append(state % 2**32)
                    state //= 2**32
                state = state // frequency * 2**bits + sum(frequencies[:symbol]) + state % frequency
    length = max((state.bit_length() + 7) // 8, 5 if words else 0)
    return b"".join(
        [to_bytes(lower), state.to_bytes(length, "little"), *(w.to_bytes(4, "little") for w in words[::-1])]
    )


def rans(keys, size):
    return header(34, keys, size) + rans_stream([(smaller_side(keys, size), size)])


def rans_decode(payload, count, size, head):
    """The smaller side of a plain payload, one symbol at a time."""
    k, bits, frequencies = rans_table(count, size)
    split = head + (count * k + 7) // 8
    lower, upper = to_bits(payload[head:split]), payload[split:]
    length = len(upper) if len(upper) <= 8 else 5 + (len(upper) - 5) % 4
    state = int.from_bytes(upper[:length], "little")
    words = [int.from_bytes(upper[at : at + 4], "little") for at in range(length, len(upper), 4)]
    keys, position = [], -1
    for i in range(count):
        quotient, symbol = 0, len(frequencies) - 1
        while symbol == len(frequencies) - 1:
            slot, symbol = state % 2**bits, 0
            while slot >= frequencies[symbol]:
                slot -= frequencies[symbol]
                symbol += 1
            state = state // 2**bits * frequencies[symbol] + slot
            if state < 2**31 and words:
                state = state * 2**32 + words.pop(0)
            quotient += symbol
        position += quotient * 2**k + int(lower[i * k : i * k + k][::-1] or "0", 2) + 1
        keys.append(position)
    assert (state, words) == (frequencies[0], [])
    return keys


def class_lists(keys, size, context):
    """For each class that occurs: its number of members, the coded ranks and the number of positions."""
    members = {int(key) for key in keys}
    lists = []
    for c in sorted(set(context)):
        positions = [position for position in range(size) if context[position] == c]
        ranks = [rank for rank, position in enumerate(positions) if position in members]
        lists.append((len(ranks), smaller_side(ranks, len(positions)), len(positions)))
    return lists


def checksum(given):
    """Four lanes of words, then what is left, one after the other."""
    step, wrap = 0x9E3779B97F4A7C15, 2**64
    words = [int.from_bytes(given[at : at + 8], "little") for at in range(0, len(given) - 7, 8)]
    lanes = [(len(given) + 1) * step % wrap] * 4
    whole = len(words) // 4 * 4
    for at, word in enumerate(words[:whole]):
        lanes[at % 4] = (lanes[at % 4] ^ word) * step % wrap
    rest = int.from_bytes(given[8 * len(words) :], "little")
    state = 0
    for value in (*lanes, *words[whole:], rest):
        state = mix(state ^ value)
    return state.to_bytes(8, "little")[:4]


def context(keys, size, given):
    if len(keys) in (0, size):
        return header(36, keys, size)
    checked = checksum(bytes(given)) if any(given) else bytes(4)
    lists = class_lists(keys, size, [int(c) for c in given])
    counts = b"".join(varint(count) for count, _, _ in lists[:-1])
    return header(36, keys, size) + checked + counts + rans_stream([(ranks, total) for _, ranks, total in lists])
