"""The exact codes against slow versions of themselves, and their length against the entropy."""

from math import lgamma, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamask import codecs
from deltamask.codecs.base import varint
from deltamask.codecs.rans import table
from deltamask.errors import ConfigError, MalformedError, MismatchError, TruncatedError, WireError
from tests.oracle import exact

bitmap, rice, rans, context = (codecs.get(name) for name in ("bitmap", "rice", "rans", "context"))
FUZZ = settings(deadline=None, max_examples=100, derandomize=True)


def entropy_bytes(count, size):
    """log2 of the number of sets, in bytes."""
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2) / 8


def uniform(count, size, seed=0):
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, size, 2 * count))
    while len(keys) < count:
        keys = np.unique(np.concatenate((keys, rng.integers(0, size, count))))
    return np.sort(rng.permutation(keys)[:count])


def body(codec, payload):
    return len(payload) - codec.head_length(payload)


@st.composite
def sets(draw):
    size = draw(st.integers(1, 3000))
    density = draw(st.sampled_from([0.002, 0.02, 0.2, 0.5, 0.9, 1.0]))
    keys = np.random.default_rng(draw(st.integers(0, 2**32))).random(size) < density
    for start, length in draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 300)), max_size=2)):
        keys[start : start + length] = draw(st.booleans())
    return np.flatnonzero(keys), size


@given(case=sets())
@FUZZ
def test_bytes_are_those_of_the_slow_versions(case):
    keys, size = case
    assert bitmap.encode(keys, size) == exact.bitmap(keys, size)
    assert rice.encode(keys, size) == exact.rice(keys, size)
    assert rans.encode(keys, size) == exact.rans(keys, size)


@given(case=sets(), classes=st.integers(1, 6), first=st.integers(0, 250), seed=st.integers(0, 100))
@FUZZ
def test_context_bytes_are_those_of_the_slow_version(case, classes, first, seed):
    keys, size = case
    given_context = (np.random.default_rng(seed).integers(0, classes, size) + first).astype(np.uint8)
    payload = context.encode(keys, size, given_context)
    assert payload == exact.context(keys, size, given_context)
    assert np.array_equal(context.decode(payload, context=given_context), keys)


@pytest.mark.parametrize(("count", "size"), [(1, 2**40), (2, 2**36), (30, 2**33)])
def test_huge_sizes(count, size):
    keys = np.unique([0, size // 3, size - 1] + [size // 2 + i * i for i in range(count)]).astype(np.uint64)
    for codec, slow in ((rice, exact.rice), (rans, exact.rans)):
        payload = codec.encode(keys, size)
        assert payload == slow(keys, size)
        assert len(payload) < 20 + 8 * len(keys)
        found = codec.decode(payload, size=size)
        assert found.dtype == np.uint64
        assert np.array_equal(found, keys)


def test_slow_rans_decoder_reads_the_fast_ones_bytes():
    for count, size in ((1, 5), (40, 100), (300, 5000), (2000, 4000)):
        keys = uniform(count, size)
        payload = rans.encode(keys, size)
        assert exact.rans_decode(payload, count, size, rans.head_length(payload)) == keys.tolist()


@given(size=st.integers(2, 2**40), share=st.floats(0, 0.5))
@FUZZ
def test_tables(size, share):
    count = max(1, min(int(size * share), size // 2))
    mine = table(count, size)
    k, bits, frequencies = exact.rans_table(count, size)
    assert (mine.k, mine.bits) == (k, bits)
    assert np.diff(mine.edges).tolist() == frequencies
    assert min(frequencies) > 0
    assert sum(frequencies) == 1 << bits
    assert max(frequencies) == frequencies[0] == mine.start
    # What bounds the entries that a number of bytes can hold.
    assert frequencies[0] <= (1 << bits - 1) + 1
    packed = mine.slots().astype(np.int64)
    symbols = np.repeat(np.arange(len(frequencies)), frequencies)
    assert np.array_equal(packed & 0x7F, symbols)
    assert np.array_equal(packed >> 7 & 0x1FFF, np.array(frequencies)[symbols])
    assert np.array_equal((packed >> 20) + mine.edges.astype(np.int64)[symbols], np.arange(1 << bits))


def test_tables_divide_exactly():
    rng = np.random.default_rng(0)
    for count, size in ((1, 2), (500, 1000), (4000, 9000), (4000, 60_000), (10**6, 10**8)):
        mine = table(count, size)
        frequencies = np.diff(mine.edges).tolist()
        for f, before, (_, bias, reciprocal, shift) in zip(
            frequencies, mine.edges[:-1].tolist(), mine.rows().tolist(), strict=True
        ):
            for state in [
                f,
                f + 1,
                2**31 - 1,
                2**31,
                (f << 63 - mine.bits) - 1,
                *rng.integers(f, 2**50, 20).tolist(),
            ]:
                quotient = state * reciprocal >> 64 + shift
                coded = state + bias + quotient * ((1 << mine.bits) - f)
                assert coded == (state // f << mine.bits) + before + state % f


@pytest.mark.parametrize("density", [0.0005, 0.002, 0.01, 0.03, 0.0625, 0.1, 0.2, 0.35, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("count", [1000, 10_000, 200_000])
def test_rans_is_at_the_entropy(count, density):
    """Half a percent, and two bytes: one for the final state, one for what a thousand entries do not average out."""
    size = round(count / density)
    keys = uniform(count, size)
    assert body(rans, rans.encode(keys, size)) <= 1.005 * entropy_bytes(count, size) + 2


@pytest.mark.parametrize("density", [0.0005, 0.01, 0.1, 0.3, 0.5])
def test_large_uniform_sets(density):
    count = 1_000_000
    size = round(count / density)
    keys = uniform(count, size)
    assert body(rans, rans.encode(keys, size)) <= 1.0003 * entropy_bytes(count, size)
    assert body(rice, rice.encode(keys, size)) <= 1.04 * entropy_bytes(count, size)


def test_complements_are_as_small():
    keys = uniform(300, 10_000)
    others = np.setdiff1d(np.arange(10_000), keys)
    for codec in (rice, rans):
        assert body(codec, codec.encode(others, 10_000)) == body(codec, codec.encode(keys, 10_000))


def two_densities(size=400_000, low=0.001, high=0.08, seed=1):
    rng = np.random.default_rng(seed)
    classes = (rng.random(size) < 0.15).astype(np.uint8) * 9
    return np.flatnonzero(rng.random(size) < np.where(classes, high, low)), classes


def test_context_reaches_the_conditional_entropy():
    keys, classes = two_densities()
    size = len(classes)
    payload = context.encode(keys, size, classes)
    conditional = sum(
        entropy_bytes(int((classes[keys] == c).sum()), int((classes == c).sum())) for c in np.unique(classes)
    )
    assert body(context, payload) <= 1.002 * conditional + 8
    assert len(payload) < 0.8 * len(rans.encode(keys, size))


def test_context_of_mostly_set_classes():
    """A class that is coded as its complement among others that are not."""
    keys, classes = two_densities(low=0.01, high=0.97)
    size = len(classes)
    payload = context.encode(keys, size, classes)
    conditional = sum(
        entropy_bytes(int((classes[keys] == c).sum()), int((classes == c).sum())) for c in np.unique(classes)
    )
    assert np.array_equal(context.decode(payload, context=classes), keys)
    assert body(context, payload) <= 1.002 * conditional + 8


def test_context_that_says_nothing_costs_little():
    size = 500_000
    keys = uniform(5000, size)
    classes = (np.arange(size) % 16).astype(np.uint8)
    plain = len(rans.encode(keys, size))
    # The checksum, 15 counts of two bytes, and what 16 counts tell of the set beyond the one.
    assert len(context.encode(keys, size, classes)) <= plain + 4 + 30 + 16
    assert len(context.encode(keys, size)) == plain + 4


def test_no_context_is_a_context_of_zeros():
    keys = uniform(100, 5000)
    payload = context.encode(keys, 5000)
    assert payload == context.encode(keys, 5000, np.zeros(5000, np.uint8))
    assert np.array_equal(context.decode(payload, context=np.zeros(5000, np.uint8)), keys)
    plain, head = rans.encode(keys, 5000), context.head_length(payload)
    assert payload[head:] == bytes(4) + plain[head:]


def test_another_context_is_noticed():
    keys, classes = two_densities(size=20_000)
    payload = context.encode(keys, len(classes), classes)
    swapped = classes.copy()
    swapped[[0, 1]] = [9, 0] if classes[0] == 0 else [0, 9]
    for other in (None, swapped, np.zeros_like(classes), classes + np.uint8(1)):
        with pytest.raises(MismatchError, match="checksum"):
            context.decode(payload, context=other)
    with pytest.raises(ConfigError, match="int64"):
        context.decode(payload, context=classes.astype(np.int64))


def test_strided_arrays():
    keys, classes = two_densities(size=20_000)
    wide = np.repeat(classes, 2)[::2]
    payload = context.encode(np.repeat(keys, 3)[::3], len(classes), wide)
    assert payload == context.encode(keys, len(classes), classes)
    assert np.array_equal(context.decode(payload, context=wide), keys)


def refused(codec, count, size, data, error, said, **options):
    with pytest.raises(error, match=said):
        codec.decode(bytes([codec.format_id]) + varint(size) + varint(count) + data, size=size, **options)


def test_bitmaps_that_no_encoder_writes():
    refused(bitmap, 2, 12, b"\x03\x10", MalformedError, "behind the last of 12")
    refused(bitmap, 2, 12, b"\x07\x00", MalformedError, "3 bits are set, the header says 2")
    refused(bitmap, 4, 12, b"\x07\x00", MalformedError, "3 bits are set, the header says 4")
    refused(bitmap, 2, 12, b"\x03", TruncatedError, "2 bytes expected")
    refused(bitmap, 0, 12, b"\x00\x00", MalformedError, "too many")


def test_rice_codes_that_no_encoder_writes():
    size = 1000
    refused(rice, 1, size, b"\x29\xff", MalformedError, "parameter 41")
    refused(rice, 1, size, b"", TruncatedError, "1 bytes expected")
    refused(rice, 1, size, b"\x03\x00", TruncatedError, "end before the last entry")
    refused(rice, 1, size, b"\x03" + bytes(50), TruncatedError, "end before the last entry")
    refused(rice, 1, size, b"\x00" + bytes(125) + b"\x01", MalformedError, "beyond the last of 1000")
    refused(rice, 1, size, b"\x09" + b"\x00\x04", TruncatedError, "end before")
    refused(rice, 1, size, b"\x09" + b"\xfe\x07", MalformedError, "beyond the last of 1000")
    refused(rice, 1, size, b"\x00\x03", MalformedError, "follows the last entry")
    refused(rice, 1, size, b"\x00\x01\x00", MalformedError, "follows the last entry")
    refused(rice, 9, size, b"\x00\xff", TruncatedError, "1 bytes for 9 entries")
    assert rice.decode(bytes([33]) + varint(size) + varint(1) + b"\x00\x01").tolist() == [0]


def test_rans_codes_that_no_encoder_writes():
    keys = uniform(300, 5000)
    payload = rans.encode(keys, 5000)
    head = rans.head_length(payload)
    data = payload[head:]
    lower = -(-300 * table(300, 5000).k // 8)
    refused(rans, 300, 5000, data[: lower - 1], TruncatedError, "bytes expected")
    refused(rans, 300, 5000, data[:lower], TruncatedError, "0 bytes for 300 entries")
    refused(rans, 300, 5000, data[:-4], MalformedError, None)
    refused(rans, 300, 5000, data + bytes(4), MalformedError, "words")
    refused(rans, 300, 5000, data[:lower] + bytes(len(data) - lower), MalformedError, "no encoder leaves")
    refused(rans, 300, 5000, data[:lower] + b"\xff" * (lower + 40), MalformedError, None)
    refused(rans, 1, 10, b"\xff" * 8, MalformedError, "no encoder leaves")
    refused(rans, 1, 10, b"\x07\x00", MalformedError, "no encoder leaves")
    refused(rans, 1, 1000, b"\x80\x07", MalformedError, "lower bit")


def test_contexts_counts_that_no_encoder_writes():
    keys, classes = two_densities(size=20_000)
    size = len(classes)
    payload = context.encode(keys, size, classes)
    head = context.head_length(payload)
    data = payload[head + 4 :]
    checksum = payload[head : head + 4]
    first = int((classes[keys] == 0).sum())
    assert data[:1] == varint(first)
    refused(context, len(keys), size, checksum, TruncatedError, "1 bytes expected", context=classes)
    refused(context, len(keys), size, checksum[:3], TruncatedError, "4 bytes expected", context=classes)
    for other in (first - 1, first + 1):
        refused(context, len(keys), size, checksum + varint(other) + data[1:], WireError, None, context=classes)
    more = checksum + varint(len(keys) + 1) + data[1:]
    refused(context, len(keys), size, more, MalformedError, "-1 are left for the last class", context=classes)
    more = checksum + varint(size) + data[1:]
    refused(context, len(keys), size, more, WireError, "at most", context=classes)


def test_damage_to_a_large_payload_is_refused_quickly():
    """The final state checks the whole stream, so damage is not decoded into another set."""
    size = 2_000_000
    payload = rans.encode(uniform(20_000, size), size)
    head = rans.head_length(payload)
    lower = -(-20_000 * table(20_000, size).k // 8)
    for at in range(head + lower, len(payload), 397):
        damaged = bytearray(payload)
        damaged[at] ^= 0x10
        with pytest.raises(WireError):
            rans.decode(bytes(damaged), size=size)
