"""The command line as a user types it: output, exit codes and errors that name the remedy."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from deltamask import codecs


def call(*words: str, stdin: str | None = None, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "deltamask", *words], input=stdin, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + (done.stderr if code else "")


SMALL = ["--set", "rounds=1", "--set", "clients=20", "--set", "participation=0.05", "--set", "head.epochs=1"]


def test_help_and_version() -> None:
    assert "compare" in call("--help")
    assert "channel.codec" in call("run", "--help")
    assert "min_images" in call("partition", "--help")
    assert call("--version").strip() == "0.1.0"


@pytest.mark.parametrize(
    "kind", ["codecs", "methods", "models", "datasets", "downlinks", "heads", "presets", "settings"]
)
def test_list(kind) -> None:
    rows = json.loads(call("list", kind, "--json"))
    assert rows
    if kind == "codecs":
        assert sorted(rows) == codecs.names()


@pytest.mark.parametrize("codec", ["rice", "bfuse8", "context"])
@pytest.mark.parametrize("png", [[], ["--png"]])
def test_encode_inspect_decode(codec, png, tmp_path) -> None:
    file, back = tmp_path / "payload", tmp_path / "back.npy"
    text = "\n".join(str(i) for i in range(0, 10_000, 97))
    facts = json.loads(
        call("encode", "-", "--size", "10000", "--codec", codec, *png, "-o", str(file), "--json", stdin=text)
    )
    assert facts["bytes"] == file.stat().st_size
    seen = json.loads(call("inspect", str(file), "--json", "--picture", str(tmp_path / "p.png")))
    assert (seen["codec"], seen["entries"], seen["positions"]) == (codec, 104, 10_000)
    assert seen["image"] == ("png" if png else "none")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    call("decode", str(file), "-o", str(back), "--size", "10000")
    found = np.load(back)
    assert set(range(0, 10_000, 97)) <= set(found.tolist())
    if codecs.get(codec).exact:
        assert found.size == 104
        assert [int(line) for line in call("decode", str(file)).split()] == found.tolist()


def test_run_export_apply(tmp_path) -> None:
    out = tmp_path / "run"
    seldom = ["--set", "rounds=3", "--set", "evaluation.all_views_every=2"]
    record = json.loads(call("run", *SMALL, *seldom, "--out", str(out), "--json"))
    assert record["rounds"] == 3
    assert ["accuracy_expected" in r for r in record["history"]] == [True, False, True, True]
    assert record["peak_memory_mib"] is None or record["peak_memory_mib"] > 100
    assert [sum(row) for row in record["partition"]["class_counts"]] == record["partition"]["sizes"]
    for name in ("result.json", "rounds.jsonl", "mask.dmask", "report.md", "report.html", "checkpoint.safetensors"):
        assert (out / name).stat().st_size > 0
    assert "already holds a run" in call("run", *SMALL, "--out", str(out), code=2)
    call("export", str(out), "-o", str(tmp_path / "m.dmask"))
    assert (tmp_path / "m.dmask").read_bytes() == (out / "mask.dmask").read_bytes()
    facts = json.loads(call("apply", str(tmp_path / "m.dmask"), "-o", str(tmp_path / "w.safetensors"), "--json"))
    assert facts["bytes"] == (tmp_path / "w.safetensors").stat().st_size
    seen = json.loads(call("inspect", str(out / "mask.dmask"), "--json"))
    assert seen["frame"] == "adapter"
    assert seen["masked_weights"] == 983_040


def test_compare_outlives_a_failure_and_adds_to_what_is_there(tmp_path, monkeypatch) -> None:
    """One method's process is killed while it loads its model; the same command with another seed mends that."""
    (tmp_path / "out_of_memory.py").write_text("import os\ndef build():\n    os.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    out = tmp_path / "compare"
    few = ["--set", "data.train_images=200", "--set", "data.test_images=60"]
    words = ["compare", *SMALL, *few, "--out", str(out), "--resume", "--methods"]
    said = call(*words, "linear-probe,fedpm", "--set", "fedpm:model=out_of_memory:build", code=1)
    assert "linear-probe (1 of 2): 983,040 masked weights" in said
    assert "fedpm, seed 0, failed: its process ended with code -9" in said
    assert re.search(r"│ fedpm +│ +failed │", said)
    text, page = (out / "report.md").read_text(), (out / "report.html").read_text()
    for label in ("linear-probe", "fedpm"):
        assert f"| {label} |" in text
    assert page.count("<svg") == 3  # accuracy by bytes, by round, and who has what
    assert "## Who has what" in text
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert "src=" not in page

    first = out / "linear-probe" / "seed-0" / "result.json"
    before = (first.stat().st_mtime_ns, first.read_bytes())
    rows = json.loads(call(*words, "linear-probe,fedpm", "--seeds", "2", "--json"))
    assert (first.stat().st_mtime_ns, first.read_bytes()) == before
    for label, row in rows.items():
        assert [(r["method"], r["seed"]) for r in row["runs"]] == [(label, 0), (label, 1)]
        scores = [100 * r["accuracy"] for r in row["runs"]]
        assert row["accuracy_percent_mean"] == pytest.approx(np.mean(scores))
        assert row["accuracy_percent_std"] == pytest.approx(np.std(scores, ddof=1))
    lines = list(csv.DictReader((out / "comparison.csv").read_text().splitlines()))
    assert [(line["label"], line["seeds"], line["failed"]) for line in lines] == [
        ("linear-probe", "2", ""),
        ("fedpm", "2", ""),
    ]
    lines = list(csv.DictReader((out / "runs.csv").read_text().splitlines()))
    assert [(line["label"], line["seed"], line["round"]) for line in lines] == [
        (label, seed, round) for label in ("linear-probe", "fedpm") for seed in "01" for round in "01"
    ]


def test_bench() -> None:
    rows = json.loads(call("bench", "--size", "200000", "--json"))
    assert sorted(r["codec"] for r in rows) == codecs.names()
    assert all(r["wrong"] == 0 for r in rows if codecs.get(r["codec"]).exact)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--set", "kappa=1"], "did you mean 'channel.kappa'"),
        (["run", "none.toml"], "no file none.toml"),
        (["compare", "--methods", "fedpn"], "did you mean 'fedpm'"),
        (["compare", "--methods", ","], "--methods is empty"),
        (["compare", "--set", "fedpn:train.lr=1"], "did you mean 'fedpm'"),
        (["compare", "--methods", "deltamask:papr"], "did you mean 'paper'"),
        (["list", "codec"], "did you mean 'codecs'"),
        (["decode", "/nowhere"], "cannot read /nowhere"),
        (["inspect", __file__], "rans: "),  # a quotation mark is its format id
        (["inspect", "pyproject.toml"], "unknown format id"),
        (["export", "/nowhere", "-o", "x"], "after its first round"),
        (["apply", __file__, "-o", "x"], "not a DeltaMask frame"),
        (["encode", "-", "--size", "3", "-o", "/dev/null/x"], "expected 0 to 2"),
        (["bench", "--rate", "2"], "rate is"),
    ],
)
def test_errors_are_one_line_with_exit_code_2(words, message) -> None:
    said = call(*words, stdin="5", code=2)
    assert message in said
    assert said.startswith("deltamask: ")
