"""The frame: round trips, and one refusal for each way in which bytes can be wrong."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamask import wire
from deltamask.codecs.base import varint
from deltamask.errors import (
    ChecksumError,
    ConfigError,
    LimitError,
    MalformedError,
    MismatchError,
    TruncatedError,
    WireError,
)
from deltamask.wire import SERVER, Frame, fingerprint, open_frame, seal, seed_commitment

WORD = 2**64 - 1
FRAME = Frame("delta", 35_400_000, 0x0123456789ABCDEF, 29, 100, seed_commitment(7), b"a payload of 24 bytes ...")
# What the first release computes; frames and files carry these numbers.
SEED_0 = 0x98039E76AD13AE5F
MODEL = 0xAA11457832D7A78F
FUZZ = settings(deadline=None, max_examples=200, derandomize=True)

frames = st.builds(
    Frame,
    kind=st.sampled_from(sorted(wire.KINDS)),
    size=st.integers(0, 2**40),
    model=st.integers(0, WORD),
    client=st.integers(SERVER, WORD - 1),
    round=st.integers(0, 2**32 - 1),
    seed=st.integers(0, WORD),
    payload=st.binary(max_size=300),
)


@given(frame=frames)
@FUZZ
def test_round_trips(frame):
    data = seal(frame)
    assert open_frame(data) == frame
    expected = {name: getattr(frame, name) for name in ("kind", "size", "model", "client", "round", "seed")}
    assert open_frame(data, **expected, limit=len(frame.payload)) == frame


def test_overhead_is_small():
    for payload in (b"", bytes(1000), bytes(2_000_000)):
        frame = replace(FRAME, payload=payload)
        assert len(seal(frame)) - len(payload) <= 40


def test_layout():
    frame = Frame("theta", 300, 2, SERVER, 5, 9, b"xyz")
    head = b"DM\xb5" + bytes([1, 5, 0xAC, 0x02, 0, 5]) + b"\2" + bytes(7) + b"\x09" + bytes(7) + b"\3"
    assert seal(frame)[:-8] == head + b"xyz"


def test_kind_ids_are_kept():
    known = {"delta": 1, "mask": 2, "dense": 3, "head": 4, "theta": 5, "adapter": 6}
    known |= {"statistics": 7, "losses": 8, "shrinkage": 9}
    assert known.items() <= wire.KINDS.items()
    assert len(set(wire.KINDS.values())) == len(wire.KINDS)


@pytest.mark.parametrize(
    ("field", "other", "said"),
    [
        ("kind", "mask", "kind is 'delta', expected 'mask'"),
        ("size", 3, "size is 35400000, expected 3"),
        ("model", 0xAB, "model is 0123456789abcdef, expected 00000000000000ab"),
        ("client", 28, "client is 29, expected 28"),
        ("client", SERVER, "client is 29, expected the server"),
        ("round", 99, "round is 100, expected 99"),
        ("seed", 1, "seed is [0-9a-f]{16}, expected 0000000000000001"),
        ("seed", 0, "expected 0000000000000000"),
    ],
)
def test_what_belongs_elsewhere(field, other, said):
    with pytest.raises(MismatchError, match=said):
        open_frame(seal(FRAME), **{field: other})


def test_every_flipped_bit_is_noticed():
    data = seal(FRAME)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            open_frame(bytes(damaged))


def test_every_truncation_is_noticed():
    data = seal(FRAME)
    for length in range(len(data)):
        with pytest.raises(TruncatedError):
            open_frame(data[:length])


def test_trailing_bytes_are_refused():
    with pytest.raises(MalformedError, match="1 bytes too many"):
        open_frame(seal(FRAME) + b"\0")


def test_changed_payload():
    data = bytearray(seal(FRAME))
    data[-12] ^= 1
    with pytest.raises(ChecksumError, match="changed on the way"):
        open_frame(bytes(data))


def test_other_magic():
    with pytest.raises(MalformedError, match="not a DeltaMask frame"):
        open_frame(b"PK\x03\x04" + seal(FRAME))


def test_other_version():
    data = bytearray(seal(FRAME))
    data[3] = 2
    with pytest.raises(MismatchError, match="version 2, this release reads version 1"):
        open_frame(bytes(data))


def test_unknown_kind_with_a_right_checksum(monkeypatch):
    monkeypatch.setitem(wire.KINDS, "of the future", 200)
    data = seal(replace(FRAME, kind="of the future"))
    monkeypatch.delitem(wire.KINDS, "of the future")
    with pytest.raises(MalformedError, match="unknown kind 200"):
        open_frame(data)


def test_limit():
    size = len(FRAME.payload)
    assert open_frame(seal(FRAME), limit=size) == FRAME
    with pytest.raises(LimitError, match=f"{size} bytes, at most {size - 1} accepted"):
        open_frame(seal(FRAME), limit=size - 1)


@pytest.mark.parametrize("length", [26, 2**20, 2**31, 2**48, 2**62, 2**80])
def test_lengths_beyond_the_bytes(length):
    data = seal(FRAME)
    at = data.index(bytes([len(FRAME.payload)]) + FRAME.payload)
    with pytest.raises(WireError):
        open_frame(data[:at] + varint(length) + data[at + 1 :])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "dleta"),
        ("size", -1),
        ("size", 2**40 + 1),
        ("model", -1),
        ("model", 2**64),
        ("client", -2),
        ("client", 2**64 - 1),
        ("round", -1),
        ("round", 2**32),
        ("seed", 2**64),
    ],
)
def test_fields_without_a_place(field, value):
    with pytest.raises(ConfigError):
        seal(replace(FRAME, **{field: value}))


def test_unknown_kind_as_an_expectation():
    with pytest.raises(ConfigError, match="did you mean 'delta'"):
        open_frame(seal(FRAME), kind="detla")


@given(data=st.binary(max_size=100))
@FUZZ
def test_random_bytes(data):
    for prefix in (b"", seal(FRAME)[:3], seal(FRAME)[:5]):
        with pytest.raises(WireError):
            open_frame(prefix + data)


@given(frame=frames, at=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
@FUZZ
def test_damaged_frames(frame, at, byte):
    data = bytearray(seal(frame))
    data[int(at * len(data))] ^= byte
    with pytest.raises(WireError):
        open_frame(bytes(data))


def test_seed_commitment():
    values = {seed_commitment(seed) for seed in range(1000)}
    assert len(values) == 1000
    assert all(0 < value <= WORD for value in values)
    assert seed_commitment(0) == SEED_0
    for seed in (-1, 2**128):
        with pytest.raises(ConfigError):
            seed_commitment(seed)


def test_fingerprint():
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3)}
    mine = fingerprint(arrays)
    assert mine == MODEL
    assert mine == fingerprint(dict(reversed(arrays.items())))
    assert mine == fingerprint(arrays | {"w": np.asfortranarray(arrays["w"])})
    assert mine == fingerprint(arrays | {"w": arrays["w"].astype(">f4")})
    changed = arrays["w"].copy()
    changed[0, 0] = 1
    others = [
        arrays | {"w": changed},
        arrays | {"w": arrays["w"].reshape(3, 2)},
        arrays | {"w": arrays["w"].view(np.int32)},
        arrays | {"b": np.zeros(4)},
        {"w": arrays["w"]},
        {"w": arrays["b"], "b": arrays["w"]},
        arrays | {"empty": np.zeros((0, 3))},
        arrays | {"empty": np.zeros((3, 0))},
        {},
    ]
    assert len({fingerprint(other) for other in others} | {mine}) == len(others) + 1
    with pytest.raises(ConfigError, match="type object"):
        fingerprint({"w": np.array([None])})
