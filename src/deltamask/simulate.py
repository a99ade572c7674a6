"""A method over many clients in one process, resumable after every round.

The output folder holds ``rounds.jsonl`` (a line for each round), ``checkpoint.safetensors`` (the state after the
last whole round, replaced in one step) and, at the end, ``mask.dmask`` (the trained mask) and ``result.json``
(everything). A killed run goes on from its checkpoint with bit-identical results.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from deltamask.adapter import Adapter
from deltamask.config import Config
from deltamask.datasets.partition import Holdings
from deltamask.errors import ConfigError, DataError
from deltamask.files import write_atomically
from deltamask.heads.base import HeadKind, check
from deltamask.heads.linear import Head
from deltamask.memory import peak_mib, reset_peak
from deltamask.methods.base import Method, State
from deltamask.provenance import provenance
from deltamask.registry import member
from deltamask.round import RoundBytes, choose_clients, federated_round
from deltamask.task import Task, build

__all__ = ["CHECKPOINT", "Listener", "Result", "holds_run", "is_finished", "load_run", "run"]

CHECKPOINT = "checkpoint.safetensors"
MASK = "mask.dmask"


class Listener:
    """What a run tells while it goes on; the default does not listen."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data are being made ready."""

    def ready(self, task: Task, history: list[dict[str, Any]]) -> None:
        """Data and model are loaded; ``history`` holds round 0 and those of a checkpoint."""

    def starts(self, round: int, cohort: list[int]) -> None:
        """A round begins."""

    def client(self, client: int) -> None:
        """One of the round's clients has answered."""

    def round(self, record: dict[str, Any]) -> None:
        """A round is over and saved."""


@dataclass(frozen=True)
class Result:
    """What a run leaves: ``record`` is the content of ``result.json``."""

    record: dict[str, Any]
    task: Task
    method: Method
    state: State

    @property
    def accuracy(self) -> float:
        """The headline accuracy after the last round."""
        return float(self.record["accuracy"])

    @property
    def has_mask(self) -> bool:
        """Whether the method trains mask probabilities."""
        return "theta" in self.state.arrays

    def adapter(self) -> Adapter:
        """The trained mask, thresholded, with the head."""
        if not self.has_mask:
            raise ConfigError(f"method {self.task.config.method!r} trains no mask; there is nothing to export")
        about = {
            "model": self.task.config.model,
            "dataset": self.task.config.dataset,
            "method": self.task.config.method,
            "accuracy": self.record["history"][-1]["accuracy"],
        }
        theta, cut = self.state.arrays["theta"], self.method.cut
        return Adapter.of(self.task.masked, theta, self.task.head, self.state.round, about, cut)


def run(config: Config, out: Path | None = None, *, resume: bool = False, listener: Listener | None = None) -> Result:
    """Runs all rounds of ``config``; with ``out``, saves after each one.

    A folder that already holds a run is not overwritten: ``resume`` continues it, and refuses another config.
    """
    listener = listener or Listener()
    started = perf_counter()
    reset_peak()
    saved = _restore(config, out, resume) if out is not None else None
    head_kind: HeadKind = member("head kind", "deltamask.heads", "HEAD", config.head.kind)
    task = build(config, listener.preparing)
    method: Method = member("method", "deltamask.methods", "METHOD", config.method)(task)
    history: list[dict[str, Any]]
    if saved is None:
        head_bytes = _make_head(task, head_kind)
        state, before = method.init(), 0.0
        history = [_record(task, method, state, None, head_bytes)]
    else:
        state, history, head_bytes, before = saved.unpack(task)
    if out is not None:
        _write_lines(out / "rounds.jsonl", history)
    listener.ready(task, history)
    task.stages.take()
    for _ in range(state.round, config.rounds):
        cohort = choose_clients(config.seed, state.round, config.clients, config.participation)
        listener.starts(state.round, cohort)
        state, traffic = federated_round(method, state, cohort, task.clients, listener.client)
        with task.stages("evaluate"):
            record = _record(task, method, state, traffic, (0, 0))
        record["stages"] = task.stages.take()
        history.append(record)
        if out is not None:
            seconds = before + perf_counter() - started
            _save_checkpoint(out / CHECKPOINT, config, task, state, history, head_bytes, seconds)
            _write_lines(out / "rounds.jsonl", history)
        listener.round(record)
    result = Result({"history": history}, task, method, state)
    summary = _summary(config, task, method, history, head_bytes, before + perf_counter() - started)
    if out is not None:
        if result.has_mask:
            result.adapter().save(out / MASK)
        # Last of all: where there is a result, there is everything.
        write_atomically(out / "result.json", (json.dumps(summary, indent=1) + "\n").encode())
    return replace(result, record=summary)


def holds_run(out: Path) -> bool:
    """Whether ``out`` holds a run, finished or not."""
    return (out / CHECKPOINT).exists() or (out / "result.json").exists()


def is_finished(config: Config, out: Path) -> bool:
    """Whether ``out`` holds a result of just this ``config``."""
    try:
        record = json.loads((out / "result.json").read_text(encoding="utf-8"))
        return bool(record["config_digest"] == config.digest())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_run(out: Path) -> Result:
    """A run as its folder has it after the last whole round, ready to be evaluated or exported."""
    saved = _read_checkpoint(out / CHECKPOINT)
    config = Config.model_validate(saved.meta["settings"])
    task = build(config)
    state, history, _, _ = saved.unpack(task)
    method: Method = member("method", "deltamask.methods", "METHOD", config.method)(task)
    return Result({"history": history, "accuracy": history[-1]["accuracy"]}, task, method, state)


def _make_head(task: Task, kind: HeadKind) -> tuple[int, int]:
    """Leaves a classifier of ``kind`` in ``task``; (up, down) bytes."""
    check(task)
    made = kind.make(task)
    task.head = made.head
    return made.uplink_bytes, made.downlink_bytes


def _record(
    task: Task,
    method: Method,
    state: State,
    traffic: RoundBytes | None,
    head_bytes: tuple[int, int],
) -> dict[str, Any]:
    """One line of ``rounds.jsonl``; round 0 is the untouched model with its classifier."""
    record: dict[str, Any] = {"round": state.round}
    head = method.head(state)
    last = state.round >= task.config.rounds
    every = last or state.round % task.config.evaluation.all_views_every == 0
    for view in method.views if every else method.views[:1]:
        with method.showing(state, view):
            record[f"accuracy_{view}"] = task.accuracy(head)
    record["accuracy"] = record[f"accuracy_{method.views[0]}"]
    clients = len(traffic.clients) if traffic else 0
    up, down = (traffic.uplink_bytes, traffic.downlink_bytes) if traffic else (0, 0)
    record |= {
        "clients": list(traffic.clients) if traffic else [],
        "uplink_bytes": up,
        "downlink_bytes": down,
        "uplink_bpp": 8 * up / (clients * task.size) if clients else 0.0,
        "downlink_bpp": 8 * down / (clients * task.size) if clients else 0.0,
        "flips": sum(r.flips for r in traffic.receipts) if traffic else 0,
        "wrong_positions": sum(r.wrong_positions for r in traffic.receipts) if traffic else 0,
        "head_uplink_bytes": head_bytes[0],
        "head_downlink_bytes": head_bytes[1],
        "stages": {},
    }
    return record


def _summary(
    config: Config,
    task: Task,
    method: Method,
    history: list[dict[str, Any]],
    head_bytes: tuple[int, int],
    seconds: float,
) -> dict[str, Any]:
    rounds = history[1:]

    def total(key: str) -> int:
        return sum(r[key] for r in rounds)

    def mean(key: str) -> float:
        return float(np.mean([r[key] for r in rounds])) if rounds else 0.0

    labels = [c.labels.cpu().numpy() for c in task.clients]
    stages: dict[str, float] = {}
    for r in rounds:
        for name, spent in r["stages"].items():
            stages[name] = round(stages.get(name, 0.0) + spent, 6)
    last = history[-1]
    return {
        "config": config.model_dump(),
        "config_digest": config.digest(),
        "seed": config.seed,
        "method": config.method,
        "rounds": len(rounds),
        "masked_weights": task.size,
        "model_fingerprint": f"{task.fingerprint:016x}",
        "accuracy": last["accuracy"],
        "accuracy_by_view": {view: last[f"accuracy_{view}"] for view in method.views},
        "best_accuracy": max(r["accuracy"] for r in history),
        "linear_head_accuracy": history[0]["accuracy"],
        "uplink_bytes": total("uplink_bytes") + head_bytes[0],
        "downlink_bytes": total("downlink_bytes") + head_bytes[1],
        "head_uplink_bytes": head_bytes[0],
        "head_downlink_bytes": head_bytes[1],
        "uplink_bpp": mean("uplink_bpp"),
        "downlink_bpp": mean("downlink_bpp"),
        "wrong_positions": total("wrong_positions"),
        "seconds": round(seconds, 3),
        "stages": stages,
        "peak_memory_mib": peak_mib(),
        "partition": Holdings.of(labels, task.classes).record(),
        "history": history,
        **provenance(),
    }


def _write_lines(path: Path, history: list[dict[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(r) + "\n" for r in history).encode())


def _save_checkpoint(
    path: Path,
    config: Config,
    task: Task,
    state: State,
    history: list[dict[str, Any]],
    head_bytes: tuple[int, int],
    seconds: float,
) -> None:
    arrays: dict[str, NDArray[Any]] = {f"state.{name}": array for name, array in state.arrays.items()}
    arrays |= {"head.weight": task.head.weight, "head.bias": task.head.bias}
    meta = {
        "config": config.digest(),
        "settings": config.model_dump(),
        "model": task.fingerprint,
        "round": state.round,
        "history": history,
        "head_bytes": head_bytes,
        "seconds": seconds,
    }
    write_atomically(path, save(arrays, {"deltamask": json.dumps(meta)}))


@dataclass(frozen=True)
class _Saved:
    path: Path
    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any]

    def unpack(self, task: Task) -> tuple[State, list[dict[str, Any]], tuple[int, int], float]:
        if self.meta["model"] != task.fingerprint:
            raise DataError(f"{self.path} belongs to another base model; choose another --out")
        task.head = Head(self.arrays["head.weight"], self.arrays["head.bias"])
        arrays = {name.removeprefix("state."): a for name, a in self.arrays.items() if name.startswith("state.")}
        up, down = self.meta["head_bytes"]
        return State(self.meta["round"], arrays), self.meta["history"], (up, down), self.meta["seconds"]


def _restore(config: Config, out: Path, resume: bool) -> _Saved | None:
    """The saved state of the run in ``out``, if it is to be continued."""
    path = out / CHECKPOINT
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; --out takes a folder")
    if not resume:
        if holds_run(out):
            raise ConfigError(f"{out} already holds a run; continue it with --resume or choose another --out")
        return None
    if not path.exists():
        return None
    saved = _read_checkpoint(path)
    if saved.meta["config"] != config.digest():
        raise ConfigError(
            f"{out} holds a run with other settings; use the same ones with --resume or choose another --out"
        )
    return saved


def _read_checkpoint(path: Path) -> _Saved:
    try:
        with safe_open(path, "np") as file:
            meta = json.loads(file.metadata()["deltamask"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise DataError(f"no {path}; a run writes it after its first round") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise DataError(f"{path} is no checkpoint ({error}); remove it or choose another --out") from None
    return _Saved(path, arrays, meta)
