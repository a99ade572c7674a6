"""Whole runs on the embedded default: what they leave, and that a kill at any moment loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors import safe_open
from torch.nn import functional as F

import deltamask
from deltamask.adapter import Adapter
from deltamask.errors import ConfigError, DataError
from deltamask.simulate import CHECKPOINT, load_run

SMALL = {"rounds": 3, "clients": 10, "participation": 0.2, "head.epochs": 2, "blocks": "last:2", "seed": 5}
RELAYED = {**SMALL, "downlink.kind": "relay", "channel.kind": "mrc"}


def arrays(path) -> dict[str, np.ndarray]:
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def without_times(history: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "stages"} for record in history]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, deltamask.run(SMALL, out=out)


def test_what_a_run_leaves(finished) -> None:
    out, result = finished
    record = json.loads((out / "result.json").read_text())
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in lines] == [0, 1, 2, 3]
    assert lines == record["history"] == result.record["history"]
    for key in ("config", "seed", "versions", "commit", "hardware", "uplink_bytes", "downlink_bytes", "accuracy"):
        assert key in record
    for key in ("accuracy_thresholded", "accuracy_expected", "accuracy_sampled", "uplink_bytes", "downlink_bytes"):
        assert key in lines[1]
    assert lines[1]["wrong_positions"] == 0
    assert lines[1]["flips"] > 0
    assert set(lines[1]["stages"]) == {"broadcast", "train", "encode", "decode", "aggregate", "evaluate"}
    assert 31 < lines[2]["downlink_bpp"] < 33  # nobody has hidden the floats
    assert lines[1]["downlink_bpp"] < 0.01  # before the first round all probabilities are one number


def test_a_filter_reports_its_wrong_positions() -> None:
    result = deltamask.run({**SMALL, "rounds": 1, "channel.codec": "bfuse8"})
    d, record = result.task.size, result.record["history"][1]
    expected = 2 * (d - record["flips"] / 2) / 256
    assert abs(record["wrong_positions"] - expected) < 5 * np.sqrt(expected)


@pytest.fixture(scope="module")
def relayed(tmp_path_factory):
    out = tmp_path_factory.mktemp("relayed") / "out"
    return out, deltamask.run(RELAYED, out=out)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_kill_and_resume_is_bit_identical(after, finished, tmp_path) -> None:
    kill_and_resume(SMALL, after, finished, tmp_path)


def test_clients_that_remember_rounds_survive_a_kill(relayed, tmp_path) -> None:
    """What they are sent afterwards is what they would have been sent."""
    kill_and_resume(RELAYED, 2, relayed, tmp_path)


def kill_and_resume(settings, after, uncut, tmp_path) -> None:
    """SIGKILL as soon as round ``after`` is on disk, then --resume."""
    out = tmp_path / "killed"
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "deltamask", "run", *sets, "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    lines = out / "rounds.jsonl"
    give_up = time.monotonic() + 120
    while not lines.exists() or len(lines.read_text().splitlines()) <= after:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < give_up
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "result.json").exists()
    subprocess.run([*command, "--resume", "--json"], env=env, check=True, capture_output=True, timeout=300)
    reference, result = uncut
    after_kill, uninterrupted = arrays(out / CHECKPOINT), arrays(reference / CHECKPOINT)
    assert after_kill.keys() == uninterrupted.keys()
    for name, array in uninterrupted.items():
        assert array.tobytes() == after_kill[name].tobytes(), name
    record = json.loads((out / "result.json").read_text())
    assert without_times(record["history"]) == without_times(result.record["history"])
    assert (out / "mask.dmask").read_bytes() == result.adapter().to_bytes()


def test_a_finished_run_is_neither_overwritten_nor_continued_with_other_settings(finished) -> None:
    out, result = finished
    with pytest.raises(ConfigError, match="already holds a run"):
        deltamask.run(SMALL, out=out)
    with pytest.raises(ConfigError, match="other settings"):
        deltamask.run({**SMALL, "seed": 6}, out=out, resume=True)
    again = deltamask.run(SMALL, out=out, resume=True)
    assert without_times(again.record["history"]) == without_times(result.record["history"])


def test_damaged_checkpoints(finished, tmp_path) -> None:
    out, _ = finished
    whole = (out / CHECKPOINT).read_bytes()
    for name, data in {"cut": whole[:1000], "empty": b"", "noise": bytes(range(256)) * 9}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / CHECKPOINT).write_bytes(data)
        with pytest.raises(DataError, match="no checkpoint"):
            deltamask.run(SMALL, out=tmp_path / name, resume=True)
    with pytest.raises(DataError, match="after its first round"):
        load_run(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        deltamask.run(SMALL, out=file)


def test_the_exported_mask_is_the_evaluated_model(finished, tmp_path) -> None:
    """The file, applied to the base checkpoint, classifies exactly as the run reported."""
    out, result = finished
    adapter = load_run(out).adapter()
    assert adapter.to_bytes() == result.adapter().to_bytes()
    adapter.save(tmp_path / "m.dmask")
    from deltamask.backbones import embedded
    from deltamask.config import DataSettings
    from deltamask.datasets import base

    model = embedded.build()
    model.load_state_dict(Adapter.load(tmp_path / "m.dmask").apply(model))
    _, test = base.load("digits", DataSettings())
    images = F.interpolate(test.images, size=(28, 28), mode="bilinear", align_corners=False)
    head = adapter.head.on(images.device)
    hits = (head(model(images)).argmax(1).numpy() == test.labels).sum()
    assert float(hits) / len(test) == result.record["accuracy_by_view"]["thresholded"]


def test_activations_on_disk_change_nothing(finished, tmp_path) -> None:
    _, result = finished
    again = deltamask.run({**SMALL, "data.cache_dir": str(tmp_path / "cache")})
    assert np.array_equal(again.state.arrays["theta"], result.state.arrays["theta"])
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 2


def test_no_rounds_is_the_probed_classifier() -> None:
    result = deltamask.run({**SMALL, "rounds": 0})
    assert result.record["accuracy"] == result.record["linear_head_accuracy"]
    assert result.record["uplink_bpp"] == 0


def test_unknown_names_offer_the_nearest() -> None:
    for key, value, near in (
        ("method", "deltamsk", "deltamask"),
        ("model", "embeded", "embedded"),
        ("dataset", "digit", "digits"),
        ("downlink.kind", "float", "float32"),
    ):
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            deltamask.run({**SMALL, key: value})


@pytest.mark.slow
def test_masks_beat_a_converged_linear_probe() -> None:
    """The embedded default against thirty rounds of linear probing on the same features."""
    masks = deltamask.run()
    probe = deltamask.run({"method": "linear-probe", "rounds": 30, "train.epochs": 5})
    assert masks.accuracy > probe.record["best_accuracy"] + 0.03
