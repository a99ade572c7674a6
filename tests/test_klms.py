"""Blocks that the clients of a federation share: told and read, averaged, agreed on, asked for anew."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from deltamask import simulate
from deltamask.channels.averaged import Average, AveragedChannel, Cuts
from deltamask.channels.blocks import CELL
from deltamask.codecs.base import Reader, varint
from deltamask.config import load
from deltamask.delta import relative_entropy
from deltamask.errors import ConfigError, WireError
from deltamask.methods.klms import Klms
from deltamask.registry import members
from deltamask.sampling import derive, thresholds
from deltamask.simulate import CHECKPOINT, Listener
from deltamask.task import build
from deltamask.wire import SERVER, open_frame
from tests.conformance.test_methods import TestEveryMethod as Contract
from tests.oracle import mrc as oracle
from tests.test_mrc import pair

FUZZ = settings(deadline=None, max_examples=80, derandomize=True)
SIZE = 20_000
THETA_K, THETA_G = pair(SIZE)
LIMITS = thresholds(THETA_G)
GIVEN = Cuts.at(np.arange(1.0, 90) * 220, SIZE)
OWN = AveragedChannel(block_bits=4.0)
CHANNELS = {"own": OWN, "given": replace(OWN, cuts=GIVEN)}


def encoded(channel, theta_k=THETA_K, theta_g=THETA_G):
    return channel.encode(theta_k, theta_g, 0, 3, 2, 10)


def decoded(channel, data, limits=LIMITS):
    return channel.decode(data, limits, 0, 3, 2)


# --- where blocks start ---


@given(
    inner=st.lists(st.integers(1, 5000), max_size=200, unique=True),
    size=st.integers(5001, 9000),
    tail=st.binary(max_size=5),
)
@FUZZ
def test_cuts_round_trip(inner, size, tail) -> None:
    cuts = Cuts.at(np.sort(np.array(inner, float)), size)
    assert (np.diff(cuts.starts) > 0).all()
    assert cuts.starts[[0, -1]].tolist() == [0, size]
    reader = Reader(cuts.to_bytes() + tail, "x")
    assert Cuts.read(reader, size, 1).starts.tolist() == cuts.starts.tolist()
    assert reader.rest() == tail


@pytest.mark.parametrize("size", [0, 1, 7])
def test_the_smallest_have_one_block_at_most(size) -> None:
    cuts = Cuts.of(np.full(min(size, 1), 1e3), size, 5.0, 8)
    assert cuts.starts.tolist() == [0, size][: 1 + bool(size)]
    assert Cuts.read(Reader(cuts.to_bytes()), size, 8).starts.tolist() == cuts.starts.tolist()


def test_blocks_hold_the_same_divergence() -> None:
    theta_k, theta_g = pair(200_000, scale=0.1, stretch=20_000)
    bits = relative_entropy(theta_k, theta_g) / np.log(2)
    cells = np.add.reduceat(bits, np.arange(0, bits.size, CELL))
    cuts = Cuts.of(cells, bits.size, 5.0, 8)
    assert cuts.count == pytest.approx(bits.sum() / 5, rel=0.02)
    held = np.add.reduceat(bits, cuts.starts[:-1])
    even = np.add.reduceat(bits, np.arange(0, bits.size, -(-bits.size // cuts.count)))
    assert held.std() < 0.25 * held.mean()
    assert held.std() < 0.3 * even.std()
    # Even where lengths differ a hundredfold, less than the index of a block.
    assert 8 * len(cuts.to_bytes()) / cuts.count < 8


def test_a_mean_of_cuts() -> None:
    def mean(*all_inner, size=100):
        made = Average(size)
        for inner in all_inner:
            made.add(Cuts(np.array([0, *inner, size])))
        return made.mean().starts.tolist()

    assert mean([10, 20, 60]) == [0, 10, 20, 60, 100]
    assert mean([10, 20, 60], [20, 40, 80]) == [0, 15, 30, 70, 100]
    # The third cut of the second client alone lies before the mean of the second cuts: it is left out.
    assert mean([60, 80], [20, 40, 50, 90]) == [0, 40, 60, 90, 100]
    assert mean([], []) == [0, 100]
    assert mean([50], []) == [0, 50, 100]


# --- both sides ---


@pytest.mark.parametrize("size", [0, 1, 2, 9, 255, 257, 3001])
def test_the_mask_is_what_the_wire_format_says(size) -> None:
    theta_k, theta_g = pair(size, seed=size)
    keys = [derive(0, f"mrc {what}", 3, 2) for what in ("table", "shift")]
    own = AveragedChannel(block_bits=1.0)
    payload = encoded(own, theta_k, theta_g)
    received = decoded(own, payload, thresholds(theta_g))
    assert oracle.decode(payload, theta_g.tolist(), *keys, 8, "own") == received.bits.tolist()
    assert len(payload) <= own.longest(size)
    shared = replace(own, cuts=received.cuts)
    shorter = encoded(shared, theta_k, theta_g)
    told = decoded(shared, shorter, thresholds(theta_g))
    starts = received.cuts.starts.tolist()
    assert oracle.decode(shorter, theta_g.tolist(), *keys, 8, starts) == told.bits.tolist()
    # The same blocks, keys and choices: only where the blocks lie is not said again.
    assert told.bits.tolist() == received.bits.tolist()
    assert len(payload) - len(shorter) == len(received.cuts.to_bytes())


def test_what_blocks_hold_is_told() -> None:
    divergence = relative_entropy(THETA_K, THETA_G).sum() / np.log(2)
    for channel in CHANNELS.values():
        told = decoded(channel, encoded(channel))
        assert told.held == pytest.approx(divergence / told.blocks, abs=0.02 * divergence / told.blocks)
    assert decoded(OWN, encoded(OWN, THETA_G)).held == 0
    far = np.full(SIZE, 0.99, np.float32)
    one = replace(OWN, cuts=Cuts(np.array([0, SIZE])))
    assert decoded(one, encoded(one, far)).held == (2**16 - 1) / 256  # no more fits in


# --- hostile bytes ---


def hostile(channel, data) -> None:
    try:
        told = decoded(channel, data)
    except WireError as error:
        assert str(error)  # noqa: PT017
    else:
        assert told.bits.shape == (SIZE,)
        assert told.cuts.starts[-1] == SIZE
        assert (np.diff(told.cuts.starts) > 0).all()


@pytest.mark.parametrize("name", CHANNELS)
def test_every_truncation_and_extension_is_refused(name) -> None:
    payload = encoded(CHANNELS[name])
    for length in range(len(payload)):
        with pytest.raises(WireError):
            decoded(CHANNELS[name], payload[:length])
    with pytest.raises(WireError, match="1 bytes too many"):
        decoded(CHANNELS[name], payload + b"\0")


@pytest.mark.parametrize("name", CHANNELS)
@given(data=st.binary(max_size=300), count=st.integers(0, 3000), shift=st.integers(0, 50), k=st.integers(0, 45))
@FUZZ
def test_random_bytes(name, data, count, shift, k) -> None:
    hostile(CHANNELS[name], data)
    hostile(CHANNELS[name], b"\0\0" + varint(count) + bytes([shift, k]) + data)


@pytest.mark.parametrize("name", CHANNELS)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
@FUZZ
def test_damaged_bytes(name, at, byte) -> None:
    payload = bytearray(encoded(CHANNELS[name]))
    payload[int(at * len(payload))] ^= byte
    hostile(CHANNELS[name], bytes(payload))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (varint(0) + bytes([0, 0]), "0 blocks"),
        (varint(2501) + bytes([0, 0]), "at most 2500 allowed"),
        (varint(2) + bytes([41, 0]), r"units of 2\*\*41"),
        (varint(2) + bytes([0, 41]), "parameter 41"),
        (varint(2000) + bytes([0, 0]) + b"\xff" * 9, "lengths of 1999 blocks"),
        (varint(2) + bytes([0, 0, 1]), "without weights"),  # of length 0
        (varint(2) + bytes([15, 0, 4]), "beyond the last of 20000"),
        (varint(2) + bytes([0, 0, 0b10010]), "behind the last count"),
    ],
)
def test_blocks_that_cannot_be(data, said) -> None:
    with pytest.raises(WireError, match=said):
        Cuts.read(Reader(data, "x"), SIZE, 8)


def test_memory_follows_the_bytes() -> None:
    size = 2**33
    data = varint(size // 8) + bytes([0, 0]) + b"\xff" * 1000
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            Cuts.read(Reader(data), size, 8)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


# --- in the method ---

SMALL = {
    "method": "klms",
    "klms.layout": "averaged",
    "rounds": 4,
    "clients": 8,
    "participation": 0.25,
    "klms.drift": 2,
    "head.epochs": 2,
    "blocks": "last:1",
    "train.score_lr": 0.2,
}


@pytest.fixture(scope="module")
def task():
    return build(load(values=SMALL))


@pytest.mark.parametrize(
    "promise",
    [
        "test_bytes_are_those_of_the_frames",
        "test_what_does_not_belong_is_refused_and_changes_nothing",
        "test_a_round_without_answers_keeps_the_model",
    ],
)
def test_the_contract_of_methods(promise, task) -> None:
    """tests/conformance has `klms` as it is by default, with blocks of one length."""
    getattr(Contract(), promise)("klms", lambda name: task)


def one_round(method, state, clients=(0, 2)):
    down = method.broadcast(state)
    ups = [method.client(down, k, method.task.clients[k]) for k in clients]
    for k, up in zip(clients, ups, strict=True):
        method.receive(state, k, up)
    return down, ups, method.finish(state)


def test_asked_once_then_shared(task) -> None:
    method = Klms(replace(task, config=load(values={**SMALL, "klms.drift": 100})))
    first = method.init()
    down, ups, second = one_round(method, first)
    assert open_frame(down).payload[0] == 0  # nothing is said of blocks: the clients are asked
    limits = thresholds(first.arrays["theta"])
    sent = [
        method.asking.decode(open_frame(up).payload, limits, 0, k, 0).cuts for k, up in zip((0, 2), ups, strict=True)
    ]
    mean = Average(task.size)
    for cuts in sent:
        mean.add(cuts)
    assert second.arrays["cuts"].tolist() == mean.mean().starts.tolist()
    assert second.arrays["cuts"].dtype == np.int64

    down, ups, third = one_round(method, second)
    told = Cuts(second.arrays["cuts"]).to_bytes()
    assert open_frame(down).payload.startswith(varint(len(told)) + told)
    blocks = second.arrays["cuts"].size - 1
    assert all(len(open_frame(up).payload) == 2 + blocks for up in ups)  # a byte for each index of 256 candidates
    assert third.arrays["cuts"].tolist() == second.arrays["cuts"].tolist()


@pytest.mark.parametrize(
    ("stretch", "asks"), [(1.0, False), (1.9, False), (2.1, True), (1 / 1.9, False), (0.45, True)]
)
def test_clients_are_asked_anew_when_blocks_hold_too_much_or_too_little(stretch, asks, task) -> None:
    method = Klms(task)
    state = method.init()
    state.arrays["cuts"] = np.array([0, task.size // 2, task.size])
    down = method.broadcast(state)
    for k in (0, 1):
        frame = open_frame(method.client(down, k, task.clients[k]))
        held = round(256 * 5.0 * stretch * (1.02 - 0.04 * k))  # the mean over both is what counts
        method.receive(state, k, method.seal("indices", k, 0, held.to_bytes(2, "little") + frame.payload[2:]))
    assert (method.finish(state).arrays["cuts"].size == 0) == asks


def test_a_broadcast_with_damaged_blocks_is_refused(task) -> None:
    method = Klms(task)
    state = method.init()
    state.arrays["cuts"] = np.arange(0, task.size + 1, 512)
    payload = open_frame(method.broadcast(state)).payload
    length = payload[0]
    assert length < 128
    for bad in (
        b"",
        payload[:1],
        payload[:5],
        varint(length + 1) + payload[1:],
        varint(length - 1) + payload[1:],
        payload[:1] + b"\0" + payload[2:],
        varint(2**30) + payload[1:],
    ):
        with pytest.raises(WireError):
            method.client(method.seal("theta", SERVER, 0, bad), 0, task.clients[0])


def test_an_interrupted_run_goes_on_bit_identically(tmp_path) -> None:
    class Stop(Listener):
        def round(self, record) -> None:
            if record["round"] == 2:
                raise InterruptedError

    config = load(values={**SMALL, "klms.drift": 1.1})
    with pytest.raises(InterruptedError):
        simulate.run(config, tmp_path / "cut", listener=Stop())
    cut = simulate.run(config, tmp_path / "cut", resume=True)
    whole = simulate.run(config, tmp_path / "whole")
    with safe_open(tmp_path / "cut" / CHECKPOINT, "np") as a, safe_open(tmp_path / "whole" / CHECKPOINT, "np") as b:
        assert a.get_tensor("state.cuts").dtype == np.int64
        for key in b.keys():  # noqa: SIM118
            assert a.get_tensor(key).tobytes() == b.get_tensor(key).tobytes(), key
    for key in ("uplink_bytes", "downlink_bytes", "accuracy"):
        assert cut.record[key] == whole.record[key]


def test_settings_without_a_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"klms\.drift"):
        load(overrides=["klms.drift=1"])
    with pytest.raises(ConfigError, match=r"klms\.layout"):
        load(overrides=["klms.layout=adaptive"])


def test_averaged_blocks_and_relaying_do_not_go_together(task) -> None:
    for other in ({"downlink.kind": "relay"}, {"method": "bicompfl"}):
        config = load(values={**SMALL, **other})
        with pytest.raises(ConfigError, match=r"choose klms\.layout='fixed'"):
            members("deltamask.methods", "METHOD")[config.method](replace(task, config=config))
