"""What every set codec must do, over all that are registered."""

import tracemalloc
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamask import codecs, images
from deltamask.codecs.base import varint
from deltamask.errors import ConfigError, DeltaMaskError, LimitError, MismatchError, TruncatedError, WireError

NAMES = codecs.names()
SIZE = 1003
FUZZ = settings(deadline=None, max_examples=60, derandomize=True)


def context_of(codec, size):
    """Something to condition on, for a codec that can: four classes in short runs."""
    return (np.arange(size) // 7 % 4).astype(np.uint8) if codec.uses_context else None


def sample(size=SIZE, step=5, modulus=37):
    return np.flatnonzero(np.arange(size) * np.arange(size) % modulus < step)


def assert_set(codec, found, size):
    """Whatever comes out of ``decode`` is a sorted set of positions, also for damaged bytes."""
    assert found.ndim == 1
    assert found.dtype.kind == "u"
    assert len(found) == 0 or int(found[-1]) < size
    assert bool((found[1:] > found[:-1]).all())


def assert_round_trip(codec, keys, size):
    keys = np.asarray(keys, np.int64)
    context = context_of(codec, size)
    payload = codec.encode(keys, size, context)
    assert payload == codec.encode(keys, size, context), "two payloads of one set"
    assert payload[0] == codec.format_id < 0x80
    assert codecs.for_payload(payload) == codec
    for huffman_only in (False, True):
        image = images.wrap(payload, codec, huffman_only=huffman_only)
        assert images.unwrap(image, limit=len(payload)) == payload
    assert images.unwrap(payload, limit=len(payload)) == payload
    for found in (codec.decode(payload, context=context), codec.decode(payload, size=size, context=context)):
        assert_set(codec, found, size)
        if codec.exact:
            assert np.array_equal(found, keys)
        else:
            assert np.isin(keys, found).all(), "a false negative"
    return payload


def decode_hostile(codec, data, size=SIZE):
    """Either a `WireError`, or a well-formed set."""
    try:
        found = codec.decode(data, size=size, context=context_of(codec, size))
    except WireError as error:
        assert str(error)  # noqa: PT017
    else:
        assert_set(codec, found, size)


@st.composite
def sets(draw):
    """Scattered positions, runs, and complements of both."""
    size = draw(st.integers(1, 2500))
    keys = np.zeros(size, bool)
    keys[draw(st.lists(st.integers(0, size - 1), max_size=60))] = True
    for start, length in draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 300)), max_size=3)):
        keys[start : start + length] = True
    if draw(st.booleans()):
        keys = ~keys
    return np.flatnonzero(keys), size


@pytest.fixture(params=NAMES)
def codec(request):
    return codecs.get(request.param)


def test_registry():
    assert sorted(NAMES) == NAMES
    assert {"bitmap", "rice", "rans", "context"} <= set(NAMES)
    ids = [codecs.get(name).format_id for name in NAMES]
    assert len(set(ids)) == len(ids)
    with pytest.raises(ConfigError, match="did you mean 'rice'"):
        codecs.get("rise")
    with pytest.raises(TruncatedError, match="0 bytes"):
        codecs.for_payload(b"")
    with pytest.raises(WireError, match="unknown format id 127"):
        codecs.for_payload(b"\x7f\x01\x00")


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ([], 0),
        ([], 1),
        ([0], 1),
        ([], 1000),
        ([0], 1000),
        ([999], 1000),
        ([0, 999], 1000),
        ([0], 2),
        ([1], 2),
        (range(1000), 1000),
        (range(999), 1000),
        (range(1, 1000), 1000),
        (range(0, 1000, 2), 1000),
        (range(500), 1000),
        (range(500, 1000), 1000),
        (range(0, 64), 65),
        (range(0, 4096, 64), 4096),
        ([123_456], 200_000),
        (range(0, 200_000, 97), 200_000),
    ],
)
def test_sets(codec, keys, size):
    assert_round_trip(codec, keys, size)


@pytest.mark.parametrize("keys", [[], range(100_000)])
def test_empty_and_full_sets_are_small(codec, keys):
    payload = codec.encode(np.asarray(keys, np.int64), 100_000, context_of(codec, 100_000))
    if codec.exact or not len(keys):
        assert len(payload) <= 20


def test_empty_payload_takes_no_context_either(codec):
    assert len(codec.decode(codec.encode([], 50), size=50)) == 0


@given(case=sets())
@settings(FUZZ, max_examples=100)
def test_round_trips(case):
    keys, size = case
    for name in NAMES:
        assert_round_trip(codecs.get(name), keys, size)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint32, np.uint64])
def test_all_integer_types_give_the_same_bytes(codec, dtype):
    keys = sample(250)
    context = context_of(codec, 250)
    assert codec.encode(keys.astype(dtype), 250, context) == codec.encode(keys.tolist(), 250, context)


@pytest.mark.parametrize(
    "keys",
    [[3, 2], [2, 2], [0, 5, 4, 9], [-1], [-1, 3], [100], [5, 100], [1.0, 2.0], [[1, 2]], [True, False], ["a"], 7],
)
def test_what_is_no_set(codec, keys):
    with pytest.raises(ConfigError):
        codec.encode(keys, 100)


@pytest.mark.parametrize("size", [-1, 2**40 + 1])
def test_sizes_out_of_range(codec, size):
    with pytest.raises(ConfigError):
        codec.encode([], size)


def test_contexts_that_do_not_fit(codec):
    for context in (np.zeros(99, np.uint8), np.zeros(100, np.int64), np.zeros((10, 10), np.uint8)):
        with pytest.raises(ConfigError):
            codec.encode([1], 100, context)
    payload = codec.encode([1, 5], 100, context_of(codec, 100))
    with pytest.raises(MismatchError, match="99"):
        codec.decode(payload, context=np.zeros(99, np.uint8))


def test_wrong_size(codec):
    payload = codec.encode(sample(), SIZE, context_of(codec, SIZE))
    for size in (SIZE - 1, SIZE + 1, 0, 2**39):
        with pytest.raises(MismatchError, match=str(SIZE)):
            codec.decode(payload, size=size)


def test_payloads_of_the_others(codec):
    for name in NAMES:
        other = codecs.get(name)
        if other != codec:
            with pytest.raises(MismatchError, match=f"format id {other.format_id}, expected {codec.format_id}"):
                codec.decode(other.encode(sample(), SIZE), size=SIZE)


def test_equality_and_repr(codec):
    assert codec == replace(codec)
    assert hash(codec) == hash(replace(codec))
    for field in fields(codec):
        assert f"{field.name}={getattr(codec, field.name)!r}" in repr(codec)
    assert [name for name in NAMES if codecs.get(name) == codec] == [codec.name]


def test_header_is_common(codec):
    keys = sample()
    payload = codec.encode(keys, SIZE, context_of(codec, SIZE))
    head = bytes([codec.format_id]) + varint(SIZE) + varint(len(keys))
    assert payload.startswith(head)
    assert len(head) <= codec.head_length(payload) <= len(payload)


def test_every_truncation_is_refused(codec):
    context = context_of(codec, SIZE)
    for keys in ([500], sample(), sample(step=30)):
        payload = codec.encode(keys, SIZE, context)
        for length in range(len(payload)):
            with pytest.raises(WireError):
                codec.decode(payload[:length], size=SIZE, context=context)


def test_trailing_bytes_are_refused(codec):
    for keys in ([], [500], sample(), range(SIZE)):
        payload = codec.encode(np.asarray(keys, np.int64), SIZE, context_of(codec, SIZE))
        for tail in (b"\0", b"\xff", bytes(4), bytes(64)):
            with pytest.raises(WireError):
                codec.decode(payload + tail, size=SIZE, context=context_of(codec, SIZE))


def test_every_flipped_bit(codec):
    context = context_of(codec, SIZE)
    payload = codec.encode(sample(), SIZE, context)
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        decode_hostile(codec, bytes(damaged))


@given(body=st.binary(max_size=200), count=st.integers(0, SIZE))
@FUZZ
def test_random_bodies(body, count):
    for name in NAMES:
        codec = codecs.get(name)
        decode_hostile(codec, bytes([codec.format_id]) + varint(SIZE) + varint(count) + body)


@given(rest=st.binary(max_size=60))
@FUZZ
def test_random_bytes_behind_the_format_id(rest):
    for name in NAMES:
        codec = codecs.get(name)
        decode_hostile(codec, bytes([codec.format_id]) + rest)


@given(case=sets(), at=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255), cut=st.integers(0, 3))
@FUZZ
def test_damaged_payloads(case, at, byte, cut):
    keys, size = case
    for name in NAMES:
        codec = codecs.get(name)
        payload = bytearray(codec.encode(keys, size, context_of(codec, size)))
        payload[int(at * len(payload))] ^= byte
        decode_hostile(codec, bytes(payload[: len(payload) - cut]), size)


def test_counts_beyond_the_size(codec):
    for count in (SIZE + 1, 2**31, 2**63 - 1):
        with pytest.raises(LimitError):
            codec.decode(bytes([codec.format_id]) + varint(SIZE) + varint(count) + bytes(40), size=SIZE)


def test_sizes_beyond_the_limits(codec):
    for size in (2**32 + 1, 2**40, 2**40 + 1, 2**62):
        with pytest.raises(LimitError):
            codec.decode(bytes([codec.format_id]) + varint(size) + varint(1) + bytes(40))


def test_headers_in_a_longer_form_are_refused(codec):
    longer = bytes([codec.format_id, 0x80 | SIZE & 0x7F, 0x80 | SIZE >> 7, 0x00]) + varint(0)
    with pytest.raises(WireError, match="needless"):
        codec.decode(longer, size=SIZE)
    with pytest.raises(WireError, match="more than 63 bits"):
        codec.decode(bytes([codec.format_id]) + b"\xff" * 30)


@pytest.mark.parametrize("count", [2**16, 2**26, 2**31, 2**32 - 2**16])
@pytest.mark.parametrize("fill", [0x00, 0x01, 0x80, 0xFF])
def test_memory_follows_the_bytes_and_not_what_they_announce(codec, count, fill):
    data = bytes([codec.format_id]) + varint(2**32) + varint(count) + bytes([fill]) * 500
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            codec.decode(data, size=2**32)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_all_errors_are_deltamasks_own():
    assert issubclass(WireError, DeltaMaskError)
    assert issubclass(ConfigError, DeltaMaskError)


def test_the_document_lists_every_codec(codec):
    document = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
    exact = "yes" if codec.exact else "no"
    assert f"\n| {codec.format_id} | `{codec.name}` | {exact} | " in document
