"""Frozen bytes: what an earlier release wrote, this one writes and reads.

A golden is ``<name>.bin`` in this folder and an entry of ``manifest.json``. Changed bytes need a new format id (or
frame version) and a new golden; ``python -m tests.golden NAME...`` writes the ones that are named, and nothing
else ever writes here.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from deltamask import codecs, images
from deltamask.channels.averaged import AveragedChannel
from deltamask.channels.mrc import MrcChannel
from deltamask.downlink.base import Replay
from deltamask.downlink.relay import Log, Replica
from deltamask.sampling import derive, thresholds
from deltamask.theta import Aggregation
from deltamask.wire import Frame, open_frame, seal
from tests.oracle import mrc as oracle

HERE = Path(__file__).parent
MANIFEST = HERE / "manifest.json"
SIZE = 5000
LIMIT = 1 << 20


def numbers(count, seed):
    """A recurrence with nothing of NumPy in it, whose generators may change."""
    state, out = seed, []
    for _ in range(count):
        state = (1103515245 * state + 12345) % 2**31
        out.append(state >> 16)
    return out


def keys():
    """About 200 of the 5,000 positions, denser in the first fifth."""
    limits = [4000 if i < SIZE // 5 else 700 for i in range(SIZE)]
    return np.array([i for i, (x, most) in enumerate(zip(numbers(SIZE, 1), limits, strict=True)) if x < most])


def context():
    """Four classes: the first fifth, and three that are mixed."""
    return np.array([0 if i < SIZE // 5 else 1 + x % 3 for i, x in enumerate(numbers(SIZE, 2))], np.uint8)


@dataclass(frozen=True)
class Golden:
    """How some bytes are made and read back."""

    description: str
    encode: Callable[[], bytes]
    check: Callable[[bytes], None]
    reproducible: bool = True
    """Whether the bytes depend on nothing but this package; DEFLATE depends on the version of zlib."""


def of_codec(name):
    codec = codecs.get(name)
    given = context() if codec.uses_context else None

    def check(data):
        found = codec.decode(data, size=SIZE, context=given)
        if codec.exact:
            assert np.array_equal(found, keys())
        else:
            assert np.isin(keys(), found).all()
            assert codec.decode(codec.encode(keys(), SIZE), size=SIZE).tolist() == found.tolist()

    what = "keys() of range(5000)" + (", context()" if codec.uses_context else "")
    return Golden(what, lambda: codec.encode(keys(), SIZE, given), check)


def frame():
    payload = bytes(x & 0xFF for x in numbers(64, 3))
    return Frame("delta", 35_400_000, 0x0123456789ABCDEF, 29, 300, 0xFEDCBA9876543210, payload)


def check_frame(data):
    assert open_frame(data) == frame()


def picture():
    return b"head", bytes(x & 0xFF if x < 8000 else 0 for x in numbers(2000, 4))


def check_picture(data):
    assert images.from_png(data, limit=LIMIT) == picture()


def thetas():
    """theta_k and theta_g; the first fifth moves more than the rest."""
    theta_g = np.array([x % 99 + 1 for x in numbers(SIZE, 5)])
    moves = [x % 41 - 20 if i < SIZE // 5 else x % 9 - 4 for i, x in enumerate(numbers(SIZE, 6))]
    return tuple((x / 100).astype(np.float32) for x in (np.clip(theta_g + moves, 1, 99), theta_g))


def of_channel(channel, block):
    seed, client, round = 7, 3, 2
    table_key, shift_key = (derive(seed, f"mrc {what}", client, round) for what in ("table", "shift"))
    theta_k, theta_g = thetas()

    def check(data):
        found = channel.decode(data, thresholds(theta_g), seed, client, round)
        assert found.bits.tolist() == oracle.decode(data, theta_g.tolist(), table_key, shift_key, 8, block)

    return Golden(
        f"thetas(), seed {seed}, client {client}, round {round}",
        lambda: channel.encode(theta_k, theta_g, seed, client, round, 10),
        check,
    )


WEIGHTS = 40


def relayed():
    """Clients 3 and 200 have sent a mask each in round 0, a bit a weight; round 1 goes on from the posterior."""
    masks = {k: bytes(x & 0xFF for x in numbers(WEIGHTS // 8, k)) for k in (3, 200)}

    def bits(payload):
        return np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little")

    replay = Replay(
        Aggregation(reset_every=2), WEIGHTS, 0.8, lambda votes, k, t, payload: votes.add_mask(bits(payload))
    )
    before = Log(replay, replay.start(), {})
    for k, payload in masks.items():
        before.heard(k, payload)
    after = replay.play(replay.start(), masks.items())
    expected = np.clip(sum(bits(m).astype(np.float32) for m in masks.values()) / 2, 0.01, 0.99).astype(np.float32)
    return replay, before, Log(replay, after, before.memory()), expected


def of_relay(description, message):
    def check(data):
        replay, before, _, expected = relayed()
        client = Replica(replay)
        client.follow(before.message(3), 0)
        assert client.follow(data, 1).tolist() == expected.tolist()

    return Golden(description, lambda: message(relayed()[2]), check)


def goldens():
    """All of them by name, with every codec that is registered."""
    return {name: of_codec(name) for name in codecs.names()} | {
        "indices": of_channel(MrcChannel(block_bits=1.0, straight=False), None),
        "indices-fixed": of_channel(MrcChannel(layout="fixed", block=200, straight=False), 200),
        "indices-averaged": of_channel(AveragedChannel(block_bits=1.0, straight=False), "own"),
        "relay": of_relay("relayed(), for client 3", lambda log: log.message(3)),
        "relay-newcomer": of_relay("relayed(), for client 4", lambda log: log.message(4)),
        "relay-start": of_relay("relayed(), probabilities and Beta parameters", lambda log: log._whole),
        "frame": Golden("frame()", lambda: seal(frame()), check_frame),
        "png-stored": Golden("picture(), level=0", partial(images.to_png, *picture(), level=0), check_picture),
        "png": Golden("picture()", partial(images.to_png, *picture()), check_picture, reproducible=False),
        "png-huffman": Golden(
            "picture(), huffman_only=True",
            partial(images.to_png, *picture(), huffman_only=True),
            check_picture,
            reproducible=False,
        ),
    }


def manifest():
    return json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}


def path_of(name):
    return HERE / f"{name}.bin"


def entry(golden, data):
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "input": golden.description}
