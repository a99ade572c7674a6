"""Relaying: clients that replay the rounds hold the server's probabilities to the last bit, whatever they missed."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from deltamask import sampling, simulate
from deltamask.channels.delta import DeltaChannel
from deltamask.channels.mrc import MrcChannel
from deltamask.codecs.base import varint
from deltamask.config import load
from deltamask.downlink.base import Replay
from deltamask.downlink.relay import Log, Relay, Replica
from deltamask.errors import DataError, MalformedError, MismatchError, TruncatedError, WireError
from deltamask.theta import Aggregation, ThetaState, Votes

D, SEED, ROUNDS = 3000, 7, 12
CHANNELS = {
    "delta": DeltaChannel(),
    "mrc": MrcChannel(candidates=16, block_bits=2.0),
    "fixed": MrcChannel(candidates=16, layout="fixed", block=200, straight=False),
}
# Participation .2 goes on from the posterior in four rounds of five.
CASES = [
    ("delta", "control", 1.0),
    ("delta", "control", 0.2),
    ("delta", "bayes", 1.0),
    ("delta", "bayes", 0.2),
    ("mrc", "bayes", 1.0),
    ("mrc", "bayes", 0.2),
    ("fixed", "bayes", 0.5),
]


class Federation:
    """A server whose state goes from round to round, and clients that answer with something like training."""

    def __init__(self, channel="mrc", rule="bayes", participation=1.0, move=0.3, size=D):
        self.channel, self.move = CHANNELS[channel], move
        self.replay = Replay(Aggregation(rule, reset_every=round(1 / participation)), size, 0.8, self.vote)
        start = self.replay.start()
        self.state, self.memory, self.sent = start, {}, {}

    def vote(self, votes: Votes, client: int, round: int, payload: bytes) -> None:
        self.channel.decode(payload, votes.limits, SEED, client, round).add_to(votes)

    def answer(self, theta, client: int, round: int) -> bytes:
        u = sampling.uniforms(sampling.derive(0, client, round), theta.size) / np.float32(2**31)
        theta_k = np.clip(theta + self.move * (u - 0.5) * (u > 0.9), 0.01, 0.99).astype(np.float32)
        return self.channel.encode(theta_k, theta, SEED, client, round, ROUNDS)

    def round(self, replicas: dict[int, Replica], lost=()) -> None:
        """``replicas`` take part; those who are ``lost`` answer in vain."""
        log, votes = Log(self.replay, self.state, self.memory), Votes(self.state.theta, self.replay.rule.rule)
        for client, replica in replicas.items():
            self.sent[client] = message = log.message(client)
            theta = replica.follow(message, self.state.round)
            assert theta.tobytes() == self.state.theta.tobytes()
            if client not in lost:
                payload = self.answer(theta, client, self.state.round)
                self.vote(votes, client, self.state.round, payload)
                log.heard(client, payload)
        self.state = self.replay.rule.update(self.state, votes)
        self.memory = log.memory()

    def clients(self, count: int) -> list[Replica]:
        return [Replica(self.replay) for _ in range(count)]


@pytest.mark.parametrize(("channel", "rule", "participation"), CASES)
def test_every_client_holds_the_servers_probabilities_in_every_round(channel, rule, participation) -> None:
    """Each of ten with a memory of its own, whoever takes part; a late joiner; a round that nobody answers."""
    federation = Federation(channel, rule, participation)
    replicas = federation.clients(10)
    count = max(1, round(participation * 9))
    for t in range(ROUNDS):
        cohort = sampling.permutation(t, 9)[:count].tolist() + ([9] if t > 7 else [])
        federation.round({k: replicas[k] for k in cohort}, lost=cohort if t in (4, 5) else ())
        for k in cohort:
            assert replicas[k].round == t
            assert len(federation.sent[k]) <= 12 * D + 20
            # Only what the rounds to come depend on is kept.
            counts = rule == "bayes" and t % round(1 / participation) != 0
            assert sorted(replicas[k].held) == (["alpha", "beta", "theta"] if counts else ["theta"])


def test_a_round_costs_what_its_payloads_do() -> None:
    federation = Federation()
    replicas = dict(enumerate(federation.clients(3)))
    federation.round(replicas)
    # A digest, a flag, the round, and one number for all weights in five bytes.
    assert {len(m) for m in federation.sent.values()} == {8 + 1 + 1 + 5}
    before = federation.state.round, federation.memory["relay.log"].size
    federation.round(replicas)
    payloads = [federation.answer(federation.replay.start().theta, k, 0) for k in range(3)]
    assert before == (1, 1 + sum(len(p) + len(varint(len(p))) + 1 for p in payloads))
    assert {len(m) for m in federation.sent.values()} == {8 + 1 + 1 + before[1]}
    assert len({id(m) for m in federation.sent.values()}) == 1  # one message does for all


def test_whoever_missed_rounds_is_sent_them_or_a_start_whichever_is_shorter() -> None:
    federation = Federation("delta", "control", size=300)
    first, second, newcomer, *others = federation.clients(10)
    steady = {0: first} | dict(enumerate(others, 3))
    federation.round({**steady, 1: second})
    kinds = []
    for t in range(1, 15):
        log = Log(federation.replay, federation.state, federation.memory)
        message = log.message(1)
        kept = sum(log.lengths)
        rounds, start = 8 + 1 + 1 + kept, 8 + 1 + 1 + 1 + 4 * 300
        assert len(message) <= start
        if len(log.lengths) == t:  # nothing has been dropped: all since the start
            assert len(message) == min(rounds, start)
            assert len(log.message(2)) == min(rounds + 5, start)
        else:
            assert len(message) == start
        assert kept <= start  # and so memory is O(d) whatever the number of rounds
        kinds.append(message[8])
        federation.round(steady)
    assert kinds[0] == 0
    assert kinds[-1] == 1
    assert 1 not in federation.memory["relay.holds"][:, 0]  # it would be of no use
    federation.round({**steady, 1: second, 2: newcomer})
    federation.round({**steady, 1: second, 2: newcomer})
    assert federation.sent[0] is federation.sent[1] is federation.sent[2]


def test_a_posterior_that_is_about_to_be_reset_is_not_sent() -> None:
    federation = Federation("delta", "bayes", 0.5, size=300)
    client = federation.clients(1)[0]
    lengths, others = [], []
    for t in range(1, 6):
        federation.round({0: client})
        log = Log(federation.replay, federation.state, federation.memory)
        for other in others:  # what they started from is all that they need
            assert np.array_equal(other.follow(log.message(0), t), federation.state.theta)
        others.append(Replica(federation.replay))
        assert np.array_equal(others[-1].follow(log._whole, t), federation.state.theta)
        lengths.append(len(log._whole))
    assert lengths == [10 + 1 + 12 * 300, 10 + 1 + 4 * 300] * 2 + [10 + 1 + 12 * 300]


def test_rounds_that_are_kept_for_later_are_not_sent_while_a_start_is_shorter() -> None:
    """It is a third as long before a reset: two rounds are longer than that, and three shorter than a whole one."""
    federation = Federation("delta", "bayes", 0.5, size=100)
    replicas = dict(enumerate(federation.clients(20)))
    starts = []
    for _ in range(3):
        federation.round(replicas)
        log = Log(federation.replay, federation.state, federation.memory)
        kept, whole = 10 + 5 + federation.memory["relay.log"].size, len(log._whole)
        starts.append(whole < kept)
        message = log.message(99)
        assert len(message) == min(whole, kept)
        assert np.array_equal(Replica(federation.replay).follow(message, log.state.round), log.state.theta)
    assert starts == [False, True, False]


def test_a_checkpoint_stands_in_only_for_a_memory_that_is_not_there() -> None:
    federation = Federation()
    running, resumed = Relay(federation.replay), Relay(federation.replay)
    federation.round({0: running.replica})
    other = {name: a + 1 if name.startswith("held.") else a for name, a in federation.memory.items()}
    running.recall(1, other)
    resumed.recall(1, federation.memory)
    resumed.recall(0, {})
    message = Log(federation.replay, federation.state, federation.memory).message(0)
    for relay in (running, resumed):
        assert np.array_equal(relay.follow(message, 1), federation.state.theta)


def test_a_lost_answer_repeats_rounds_that_the_client_passes_over() -> None:
    federation = Federation("delta", "bayes", 0.2)
    steady, unlucky = federation.clients(2)
    federation.round({0: steady, 1: unlucky})
    for _ in range(3):
        federation.round({0: steady, 1: unlucky}, lost=(1,))
        assert len(federation.sent[1]) >= len(federation.sent[0])
    assert len(federation.sent[1]) > len(federation.sent[0])
    played = []
    replay = Replay(
        federation.replay.rule, D, 0.8, lambda v, k, t, p: (played.append((k, t)), federation.vote(v, k, t, p))
    )
    unlucky.replay = replay
    federation.round({0: steady, 1: unlucky})
    assert played == [(0, 3)]


def test_a_memory_of_another_run_is_noticed_and_replaced_where_there_is_a_start() -> None:
    one, other = Federation("delta", "control", move=0.2), Federation("delta", "control", move=0.6)
    here, there = one.clients(1)[0], other.clients(1)[0]
    for federation, replica in ((one, here), (other, there)):
        federation.round({0: replica})
        federation.round({0: replica})
    log = Log(one.replay, one.state, one.memory)
    held = there.held["theta"].copy()
    with pytest.raises(WireError):
        there.follow(log.message(0), 2)
    assert there.round == 1
    assert np.array_equal(there.held["theta"], held)
    with pytest.raises(MismatchError, match="holds nothing; it needs a start"):
        Replica(one.replay).follow(log.message(0), 2)
    behind = Replica(one.replay)
    behind.follow(Log(one.replay, one.replay.start(), {}).message(0), 0)
    with pytest.raises(MismatchError, match=r"from round 1 to round 2 .* holds the probabilities of round 0"):
        behind.follow(log.message(0), 2)
    log.forget(0)  # what a server does when it hears of that
    for replica in (there, behind):
        assert np.array_equal(replica.follow(log.message(0), 2), one.state.theta)


def test_a_client_goes_on_from_its_disk() -> None:
    federation = Federation("mrc", "bayes", 0.2)
    client = federation.clients(1)[0]
    for _ in range(7):
        federation.round({0: client})
        client, before = Replica(federation.replay), client
        client.restore(before.round, {name: a.copy() for name, a in before.held.items()})
    for damage in (
        {"theta": np.zeros(D, np.float32)},
        {**before.held, "more": np.zeros(D, np.float32)},
        {**before.held, "alpha": np.zeros(D)},
        {**before.held, "theta": np.zeros(D - 1, np.float32)},
    ):
        with pytest.raises(DataError, match="memory of round 6"):
            client.restore(6, damage)
    assert client.round == before.round


def test_rounds_too_long_to_relay_are_not_kept() -> None:
    federation = Federation("delta", "control", size=300)
    log = Log(federation.replay, federation.state, {})
    for client in range(5000):
        log.heard(client, bytes(100))
    memory = log.memory()
    assert memory["relay.log"].size == memory["relay.lengths"].size == memory["relay.holds"].size == 0
    after = ThetaState(np.linspace(0.1, 0.9, 300, dtype=np.float32), federation.state.alpha, federation.state.beta, 1)
    message = Log(federation.replay, after, memory).message(0)
    assert np.array_equal(Replica(federation.replay).follow(message, 1), after.theta)


def test_damaged_logs_of_a_checkpoint_are_refused() -> None:
    federation = Federation()
    federation.round(dict(enumerate(federation.clients(2))))
    good = federation.memory
    Log(federation.replay, federation.state, good)
    for damage in (
        {"relay.log": good["relay.log"][:-1]},
        {"relay.log": good["relay.log"].astype(np.float32)},
        {"relay.lengths": np.array([2**63 - 1, 2**63 - 1, good["relay.log"].size + 2])},
        {"relay.lengths": np.array([1, good["relay.log"].size - 1])},
        {"relay.holds": good["relay.holds"][:, :1]},
        {"relay.holds": -good["relay.holds"] - 1},
    ):
        with pytest.raises(DataError, match="log before round 1 is damaged"):
            Log(federation.replay, federation.state, {**good, **damage})
    with pytest.raises(DataError, match="damaged"):
        Log(federation.replay, federation.state, {k: v for k, v in good.items() if k != "relay.holds"})


@pytest.fixture(scope="module")
def hostile():
    """How a client at round 1 is made, and sound messages for it at round 3: two rounds, and a start."""
    federation = Federation("delta", "bayes", 0.2, size=300)
    client, *others = federation.clients(4)
    for _ in range(2):
        federation.round(dict(enumerate([client, *others])))
    for _ in range(2):
        federation.round(dict(enumerate(others, 1)))

    def made() -> Replica:
        replica = Replica(federation.replay)
        replica.restore(client.round, client.held)
        return replica

    log = Log(federation.replay, federation.state, federation.memory)
    assert federation.state.round == 4
    return made, [log.message(0), log._whole], federation.state.theta


def check(hostile, data: bytes) -> None:
    """Refused without a trace, or the server's probabilities after all."""
    made, _, theta = hostile
    replica = made()
    before = replica.round, {name: a.tobytes() for name, a in replica.held.items()}
    try:
        found = replica.follow(data, 4)
    except WireError:
        assert before == (replica.round, {name: a.tobytes() for name, a in replica.held.items()})
    else:
        assert np.array_equal(found, theta)


def test_sound_messages_are_followed_and_shorter_or_longer_ones_refused(hostile) -> None:
    made, sound, theta = hostile
    assert [m[8] for m in sound] == [0, 1]
    for message in sound:
        assert np.array_equal(made().follow(message, 4), theta)
        for cut in [*range(30), *range(30, len(message), 41)]:
            with pytest.raises(WireError):
                made().follow(message[:cut], 4)
        with pytest.raises(WireError):
            made().follow(message + b"\0", 4)
        for round in (0, 3, 5, 2**32 - 1):
            with pytest.raises(WireError):
                made().follow(message, round)


def test_lengths_are_checked_before_anything_is_decoded(hostile) -> None:
    made, (rounds, start), _ = hostile
    head, records = rounds[:10], rounds[10:]
    for data, error in (
        (head[:8] + b"\2" + head[9:] + records, MalformedError),  # neither a start nor none
        (head[:9] + b"\5" + records, MalformedError),  # from the future
        (head + varint(2**40), TruncatedError),  # payloads of a round
        (head + b"\1\0" + varint(2**40) + records, TruncatedError),  # bytes of a payload
        (head + b"\0" * 4, MalformedError),  # rounds
        (start[:-4] + np.array([np.nan], "<f4").tobytes(), MalformedError),
        (start[:-4] + np.array([np.inf], "<f4").tobytes(), MalformedError),
        (start[:-4] + np.array([0.5], "<f4").tobytes(), MalformedError),  # less than the prior
    ):
        with pytest.raises(error):
            made().follow(data, 4)
    with pytest.raises(TruncatedError, match="for 4294967294 rounds"):
        made().follow(rounds, 2**32 - 1 + 0)


@given(st.integers(0, 1), st.integers(0, 2**20), st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_flipped_bits(hostile, which, at, bit) -> None:
    data = bytearray(hostile[1][which])
    data[at % len(data)] ^= 1 << bit
    check(hostile, bytes(data))


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_random_bytes(hostile, data) -> None:
    check(hostile, data)
    check(hostile, hostile[1][0][:10] + data)


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=40)), max_size=3), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_random_payloads_in_sound_records(hostile, rounds) -> None:
    records = [varint(len(r)) + b"".join(varint(k) + varint(len(p)) + p for k, p in r) for r in rounds]
    check(hostile, hostile[1][0][:10] + b"".join(records))


def test_nothing_depends_on_which_client_a_process_asks_first() -> None:
    """One replica for all clients of a process gives what each would have."""
    federation = Federation("mrc", "bayes", 0.2)
    shared, own = Relay(federation.replay), federation.clients(4)
    for t in range(9):
        log = Log(federation.replay, federation.state, federation.memory)
        for k in ([0, 1], [1], [2, 0], [3, 1])[t % 4]:
            theta = shared.follow(log.message(k), t)
            assert theta.tobytes() == own[k].follow(log.message(k), t).tobytes()
        federation.round({k: own[k] for k in ([0, 1], [1], [2, 0], [3, 1])[t % 4]})


class TestWithRealMethods:
    SMALL: ClassVar = {
        "rounds": 4,
        "clients": 8,
        "participation": 0.25,
        "head.epochs": 1,
        "blocks": "last:1",
        "data.train_images": 200,
        "data.test_images": 50,
    }

    @pytest.mark.parametrize("values", [{"method": "deltamask", "channel.kind": "mrc"}, {"method": "fedpm"}], ids=str)
    def test_a_killed_run_goes_on_with_the_same_bytes(self, values, tmp_path, monkeypatch) -> None:
        config = load(values={**self.SMALL, **values, "downlink.kind": "relay"})
        whole = simulate.run(config, tmp_path / "whole")

        class Killed(simulate.Listener):
            def round(self, record) -> None:
                if record["round"] == 2:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            simulate.run(config, tmp_path / "killed", listener=Killed())
        resumed = simulate.run(config, tmp_path / "killed", resume=True)
        for name, array in whole.state.arrays.items():
            assert array.tobytes() == resumed.state.arrays[name].tobytes(), name
        times = {"stages"}
        histories = [
            [{k: v for k, v in r.items() if k not in times} for r in x.record["history"]] for x in (whole, resumed)
        ]
        assert histories[0] == histories[1]

    def test_it_changes_bytes_and_nothing_else(self) -> None:
        plain, relayed = (
            simulate.run(load(values={**self.SMALL, "channel.kind": "mrc", "downlink.kind": kind}))
            for kind in ("float32", "relay")
        )
        for name, array in plain.state.arrays.items():
            assert array.tobytes() == relayed.state.arrays[name].tobytes()
        assert plain.record["accuracy"] == relayed.record["accuracy"]
        for a, b in zip(plain.record["history"][2:], relayed.record["history"][2:], strict=True):
            assert a["uplink_bytes"] == b["uplink_bytes"]
            assert b["downlink_bytes"] < a["downlink_bytes"] / 100

    def test_damaged_arrays_of_a_checkpoint_are_refused(self, tmp_path) -> None:
        config = load(values={**self.SMALL, "rounds": 1, "channel.kind": "mrc", "downlink.kind": "relay"})
        simulate.run(config, tmp_path)
        path = tmp_path / simulate.CHECKPOINT
        with safe_open(path, "np") as file:
            meta, arrays = file.metadata(), {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        again = load(values={**self.SMALL, "rounds": 2, "channel.kind": "mrc", "downlink.kind": "relay"})
        meta = {"deltamask": meta["deltamask"].replace(config.digest(), again.digest())}
        for name, array, message in (
            ("state.relay.log", arrays["state.relay.log"][:-1], "log before round 1 is damaged"),
            ("state.held.theta", arrays["state.held.theta"][:-1], "memory of round 0"),
            ("state.relay.lengths", arrays["state.relay.lengths"].astype(np.float64), "no checkpoint"),
        ):
            path.write_bytes(save({**arrays, name: array}, meta))
            with pytest.raises(DataError, match=message):
                simulate.run(again, tmp_path, resume=True)
