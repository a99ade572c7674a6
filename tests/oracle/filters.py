"""Filters once more, slowly: for one key at a time, in Python integers, straight from the payload's bytes."""

from __future__ import annotations

from bisect import bisect_right

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x &= MASK
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("too long")


def top(h: int, span: int) -> int:
    return (h >> 32) * span >> 32


def turn(h: int, by: int) -> int:
    return (h << by | h >> 64 - by) & MASK


class Payload:
    """The payload of any filter: ``key in Payload(data)``."""

    def __init__(self, data: bytes) -> None:
        self.id = data[0]
        self.size, at = read_varint(data, 1)
        self.count, at = read_varint(data, at)
        self.width = {1: 1, 2: 2, 3: 4, 4: 1, 5: 2, 6: 4, 7: 1, 8: 2, 9: 4, 10: 1, 11: 2, 12: 1}[self.id]
        if self.count:
            self.first = data[at]
            self.numbers = []
            at += 1
            if self.id in (1, 2, 3, 4, 5, 6, 10, 11):
                self.length = 1 << data[at]
                at += 1
            number, at = read_varint(data, at)
            if self.id in (10, 11):
                place = 0
                for _ in range(number):
                    step, at = read_varint(data, at)
                    place += step
                    self.numbers.append(place)
            self.number = number
        self.body = data[at:]

    def print_at(self, slot: int) -> int:
        return int.from_bytes(self.body[slot * self.width : (slot + 1) * self.width], "little")

    def slots(self, key: int) -> tuple[int, list[int]]:
        """The full fingerprint and the slots of a key."""
        seed = (self.first + 1) * GOLDEN
        if self.id in (10, 11):
            h = mix(key // 64 + seed)
            segment = bisect_right(self.numbers, key // 64)
            at = [(segment + k) * self.length + (h >> 16 * k) % self.length + key % 64 for k in range(4)]
            stream = b"".join(mix(h + (w + 1) * GOLDEN).to_bytes(8, "little") for w in range(8 * self.width))
            return int.from_bytes(stream[key % 64 * self.width :][: self.width], "little"), at
        h = mix(key + seed)
        if self.id in (7, 8, 9):
            return h ^ h >> 32, [k * self.number + top(turn(h, 21 * k), self.number) for k in range(3)]
        start = top(h, self.number * self.length)
        at = [start]
        for k in range(1, 4 if self.id < 4 else 3):
            segment = start // self.length + k
            at.append(segment * self.length + (start % self.length ^ (h >> 16 * (k - 1)) % self.length))
        return h ^ h >> 32, at

    def __contains__(self, key: int) -> bool:
        if not self.count:
            return False
        if self.id == 12:
            h = mix(key + GOLDEN)
            places = [((h >> 32) + k * (h % 2**32 | 1)) % 2**32 * 8 * len(self.body) >> 32 for k in range(self.first)]
            return all(self.body[place // 8] >> place % 8 & 1 for place in places)
        fingerprint, at = self.slots(key)
        for slot in at:
            fingerprint ^= self.print_at(slot)
        return fingerprint % 2 ** (8 * self.width) == 0
