"""What every method must do, future ones included: honest bytes, determinism, refusals, partial participation."""

from __future__ import annotations

import numpy as np
import pytest

from deltamask import simulate
from deltamask.config import load
from deltamask.errors import MismatchError, WireError
from deltamask.methods.deltamask import MaskMethod
from deltamask.registry import members
from deltamask.round import choose_clients, federated_round
from deltamask.task import build
from deltamask.wire import SERVER, open_frame

METHODS = members("deltamask.methods", "METHOD")
DOWNLINKS = [
    (name, downlink)
    for name, method in METHODS.items()
    for downlink in (members("deltamask.downlink", "DOWNLINK") if issubclass(method, MaskMethod) else ("float32",))
]
SMALL = {
    "rounds": 2,
    "clients": 8,
    "participation": 0.25,
    "head.epochs": 2,
    "blocks": "last:2",
    "data.test_images": 100,
}


@pytest.fixture(scope="module")
def tasks():
    made = {}

    def get(name: str):
        if name not in made:
            config = load(values={**SMALL, "method": name})
            made[name] = build(config)
        return made[name]

    return get


def same(a, b) -> bool:
    return a.round == b.round and all(np.array_equal(a.arrays[k], b.arrays[k]) for k in a.arrays | b.arrays)


@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    def test_bytes_are_those_of_the_frames(self, name, tasks) -> None:
        task = tasks(name)
        method = METHODS[name](task)
        state = method.init()
        down = method.broadcast(state)
        ups = [method.client(down, k, task.clients[k]) for k in (1, 4)]
        for k, up in zip((1, 4), ups, strict=True):
            frame = open_frame(up)
            assert (frame.size, frame.client, frame.round) == (task.size, k, 0)
            method.receive(state, k, up)
        finished = method.finish(state)
        again, traffic = federated_round(method, method.init(), [1, 4], task.clients)
        assert traffic.uplink_bytes == sum(map(len, ups))
        assert traffic.downlink_bytes == 2 * len(down)
        assert same(finished, again)  # and so all of it is deterministic
        assert finished.round == 1
        assert not all(np.array_equal(finished.arrays[k], v) for k, v in method.init().arrays.items())

    def test_what_does_not_belong_is_refused_and_changes_nothing(self, name, tasks) -> None:
        task = tasks(name)
        method = METHODS[name](task)
        state = method.init()
        down = method.broadcast(state)
        good = method.client(down, 2, task.clients[2])
        late = method.init()
        late.round = 1
        method.broadcast(late)
        for where, client, payload in (
            (late, 2, good),  # a stale round
            (state, 3, good),  # in another client's name
            (state, 2, good[:-1]),
            (state, 2, good + b"\0"),
            (state, 2, b""),
            (state, 2, down),  # the server's own broadcast
            (state, 2, good[:40] + bytes([good[40] ^ 1]) + good[41:]),
        ):
            with pytest.raises(WireError):
                method.receive(where, client, payload)
        method.receive(state, 2, good)
        clean, _ = federated_round(method, method.init(), [2], task.clients)
        assert same(method.finish(state), clean)
        with pytest.raises(WireError):
            method.client(good, 2, task.clients[2])

    def test_a_round_without_answers_keeps_the_model(self, name, tasks) -> None:
        method = METHODS[name](tasks(name))
        state = method.init()
        method.broadcast(state)
        after = method.finish(state)
        first = next(iter(state.arrays))
        assert after.round == 1
        assert np.array_equal(after.arrays[first], state.arrays[first])

    def test_whole_runs_repeat_and_report_what_they_promise(self, name) -> None:
        config = load(values={**SMALL, "method": name, "partition": "dirichlet:0.3"})
        a, b = simulate.run(config), simulate.run(config)
        assert same(a.state, b.state)
        assert len(a.record["history"]) == 3
        for record in a.record["history"][1:]:
            assert record["uplink_bpp"] == pytest.approx(8 * record["uplink_bytes"] / (2 * a.task.size))
            assert record["downlink_bpp"] == pytest.approx(8 * record["downlink_bytes"] / (2 * a.task.size))
            assert len(record["clients"]) == 2
            assert set(record["stages"]) >= {"broadcast", "train", "evaluate"}
        total = sum(r["uplink_bytes"] for r in a.record["history"]) + a.record["head_uplink_bytes"]
        assert a.record["uplink_bytes"] == total
        assert a.record["head_uplink_bytes"] > 8 * 4 * 1290
        for view in METHODS[name].views:
            assert 0.2 < a.record["accuracy_by_view"][view] <= 1

    def test_a_run_that_was_cut_off_goes_on_bit_for_bit(self, name, tmp_path) -> None:
        config = load(
            values={**SMALL, "method": name, "rounds": 3, "clients": 3, "participation": 1, "data.train_images": 90}
        )
        whole = simulate.run(config, tmp_path / "whole")
        with pytest.raises(_CutOffError):
            simulate.run(config, tmp_path / "cut", listener=_CutOff())
        again = simulate.run(config, tmp_path / "cut", resume=True)
        assert same(again.state, whole.state)
        for a, b in zip(again.record["history"], whole.record["history"], strict=True):
            assert a | {"stages": {}} == b | {"stages": {}}


class _CutOffError(Exception):
    pass


class _CutOff(simulate.Listener):
    def round(self, record) -> None:
        if record["round"] == 2:
            raise _CutOffError


@pytest.mark.parametrize(("name", "downlink"), DOWNLINKS)
def test_clients_in_processes_of_their_own_that_miss_rounds(name, downlink) -> None:
    """What each is sent is enough for it, is what is counted, and has the outcome of a simulation."""
    task = build(load(values={**SMALL, "method": name, "downlink.kind": downlink, "data.train_images": 240}))
    server, engine, *rest = (METHODS[name](task) for _ in range(4))
    clients = dict(zip((1, 4), rest, strict=True))
    state, simulated = server.init(), engine.init()
    for cohort in ([1], [4], [1, 4], [1], [4]):
        broadcast, sent = server.broadcast(state), 0
        for k in cohort:
            down = server.addressed(state, k, broadcast)
            assert (open_frame(down).client, open_frame(down).round) == (SERVER, state.round)
            server.receive(state, k, clients[k].client(down, k, task.clients[k]))
            sent += len(down)
        state = server.finish(state)
        simulated, traffic = federated_round(engine, simulated, cohort, task.clients)
        assert traffic.downlink_bytes == sent
        assert same(state, simulated)
    # A client whose memory is gone says so, and is told everything.
    broadcast = server.broadcast(state)
    before = clients[4].client(server.addressed(state, 4, broadcast), 4, task.clients[4])
    server.forget(state, 4)
    assert METHODS[name](task).client(server.addressed(state, 4, broadcast), 4, task.clients[4]) == before
    # An engine that goes on from a checkpoint has a method that has seen nothing yet.
    going_on, resumed = (federated_round(m, simulated, [1, 4], task.clients) for m in (engine, METHODS[name](task)))
    assert same(going_on[0], resumed[0])
    assert going_on[1] == resumed[1]


def test_another_model_or_seed_is_refused(tasks) -> None:
    task = tasks("deltamask")
    method = METHODS["deltamask"](task)
    other = METHODS["deltamask"](build(load(values={**SMALL, "seed": 1})))
    state = other.init()
    other.broadcast(state)
    up = method.client(method.broadcast(method.init()), 0, task.clients[0])
    with pytest.raises(MismatchError, match="seed is"):
        other.receive(state, 0, up)


def test_participants() -> None:
    cohorts = [choose_clients(0, t, 30, 0.2) for t in range(200)]
    assert all(len(set(c)) == 6 and c == sorted(c) for c in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=30)
    assert counts.min() > 15  # 40 on average, a standard deviation of 5.7
    assert counts.max() < 65
    assert choose_clients(0, 0, 5, 1.0) == [0, 1, 2, 3, 4]
    assert len(choose_clients(0, 0, 5, 0.01)) == 1
