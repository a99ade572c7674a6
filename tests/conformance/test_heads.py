"""What every kind of head must do, future ones included: honest bytes, determinism, resumption, clear refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from deltamask import heads, simulate
from deltamask.config import load
from deltamask.errors import DataError
from deltamask.heads.base import check
from deltamask.registry import members
from deltamask.simulate import CHECKPOINT, Listener
from deltamask.stages import Stages
from deltamask.task import Task
from deltamask.training import Images
from deltamask.wire import SERVER, open_frame

HEADS = members("deltamask.heads", "HEAD")
SMALL = {"clients": 3, "head.epochs": 2, "blocks": "last:1"}


@pytest.fixture(scope="module")
def task(digits_task):
    """Three clients of the embedded task with forty images each, and forty test images."""

    def few(data: Images) -> Images:
        return Images(data.images[:40], data.labels[:40], data.activations[:40])

    clients = [few(data) for data in digits_task.clients[:3]]
    return replace(digits_task, config=load(values=SMALL), clients=clients, test=few(digits_task.test))


@pytest.mark.parametrize("name", HEADS)
class TestEveryHead:
    def test_bytes_are_those_of_the_frames_and_the_head_repeats(self, name, task, monkeypatch) -> None:
        sent = []
        seal = Task.seal
        monkeypatch.setattr(Task, "seal", lambda *a: sent.append(seal(*a)) or sent[-1])
        before = heads.to_bytes(task.head)
        made = HEADS[name].make(task)
        up = [data for data in sent if open_frame(data).client != SERVER]
        down = [data for data in sent if open_frame(data).client == SERVER]
        assert made.uplink_bytes == sum(map(len, up))
        assert made.downlink_bytes == len(task.clients) * sum(map(len, down))
        assert all(open_frame(data).round == 0 for data in sent)
        assert heads.to_bytes(HEADS[name].make(task).head) == heads.to_bytes(made.head)
        assert heads.to_bytes(task.head) == before
        assert made.head.weight.shape == (task.classes, task.features)
        assert (made.head.weight.dtype, made.head.bias.dtype) == (np.float32, np.float32)

    @pytest.mark.parametrize("method", ["deltamask", "linear-probe"])
    def test_an_interrupted_run_goes_on_bit_identically(self, name, method, task, monkeypatch, tmp_path) -> None:
        class Stop(Listener):
            def round(self, record) -> None:
                raise InterruptedError

        few = {"rounds": 2, "participation": 0.3, "head.kind": name, "method": method}
        config = load(values={**SMALL, **few})
        monkeypatch.setattr(simulate, "build", lambda config, progress: replace(task, config=config, stages=Stages()))
        with pytest.raises(InterruptedError):
            simulate.run(config, tmp_path / "cut", listener=Stop())
        cut = simulate.run(config, tmp_path / "cut", resume=True)
        whole = simulate.run(config, tmp_path / "whole")
        with (
            safe_open(tmp_path / "cut" / CHECKPOINT, "np") as a,
            safe_open(tmp_path / "whole" / CHECKPOINT, "np") as b,
        ):
            assert set(a.keys()) == set(b.keys()) >= {"head.weight", "head.bias"}
            for key in a.keys():  # noqa: SIM118
                assert a.get_tensor(key).tobytes() == b.get_tensor(key).tobytes(), key
        for key in ("head_uplink_bytes", "head_downlink_bytes", "uplink_bytes", "accuracy", "linear_head_accuracy"):
            assert cut.record[key] == whole.record[key]
        rounds = whole.record["history"][1:]
        assert (
            whole.record["uplink_bytes"] == sum(r["uplink_bytes"] for r in rounds) + whole.record["head_uplink_bytes"]
        )


def test_what_no_head_can_be_made_of_is_refused(task) -> None:
    first = task.clients[0]
    empty = Images(first.images[:0], first.labels[:0])
    beyond = Images(first.images[:2], torch.tensor([0, task.classes]))
    alike = Images(first.images[:2], torch.tensor([7, 7]))
    for clients, said in (
        ([first, empty], "client 1 has no training images; use fewer clients"),
        ([first, beyond], "client 1 has labels 0 to 10, the classifier has classes 0 to 9; number the labels"),
        ([alike, alike], "of class 7; a classifier needs at least two classes: choose another `dataset`"),
    ):
        with pytest.raises(DataError, match=said):
            check(replace(task, clients=clients))
    check(task)
