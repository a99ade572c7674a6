"""Several runs, one after the other or in processes that share the cores; finished ones are not run again.

Each run has a folder of its own, ``OUT/LABEL/seed-N``: a later call finds what is there, whatever it adds.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rich.console import Console

from deltamask.config import Config, load, read
from deltamask.errors import ConfigError, DeltaMaskError, unknown_name
from deltamask.live import Live
from deltamask.memory import keep_pages
from deltamask.provenance import cores
from deltamask.registry import members
from deltamask.report import load_result
from deltamask.simulate import holds_run, is_finished, run
from deltamask.summary import Entry

__all__ = ["Planned", "plan", "run_all", "run_one"]

Record = dict[str, Any]

ALL = "all"
_TABLE = "methods"  # in a TOML file: [methods.LABEL]
_FIXED = ("method", "seed")  # what a label and --seeds decide


@dataclass(frozen=True)
class Planned:
    """One run of a comparison."""

    label: str
    name: str
    """The label, with the seed if there are several."""
    config: Config
    out: Path
    which: str
    """Such as ``3 of 40``."""


def plan(config: Path | None, methods: str, sets: Sequence[str], seeds: int, out: Path) -> list[Planned]:
    """The runs of all labels in ``methods``, each with ``seeds`` seeds from the configured one on.

    A label is NAME or NAME:PRESET; `ALL` stands for every method. ``sets`` are ``[LABEL:]KEY=VALUE``. The command
    line wins over the file, and in each of them what is for one label over what is for all.
    """
    labels = _labels(methods)
    in_file = read(config) if config is not None else {}
    own_in_file = _own_in_file(in_file)
    shared_sets, own_sets = _own_sets(sets, labels)
    configs = []
    for label in labels:
        name, _, preset = label.partition(":")
        values = {k: v for k, v in in_file.items() if not k.startswith(f"{_TABLE}.")} | own_in_file.get(label, {})
        chosen = [f"method={name}", *([f"preset={preset}"] if preset else [])]
        overrides = [*shared_sets, *own_sets.get(label, []), *chosen]
        first = load(overrides=overrides, values=values).seed
        configs += [
            (label, load(overrides=[*overrides, f"seed={seed}"], values=values))
            for seed in range(first, first + seeds)
        ]
    # All labels with one seed come before the next seed: a night that is too short leaves a whole comparison.
    configs.sort(key=lambda item: item[1].seed)
    return [
        Planned(
            label,
            label if seeds == 1 else f"{label}, seed {chosen.seed}",
            chosen,
            _folder(out, label, chosen.seed),
            f"{n} of {len(configs)}",
        )
        for n, (label, chosen) in enumerate(configs, 1)
    ]


def run_one(
    config: Config, out: Path, resume: bool, quiet: bool, label: str, *, which: str = "", bar: bool = True
) -> Record:
    """One run with a live view; with ``resume``, a result that is there already is taken as it is."""
    if resume and is_finished(config, out):
        record = load_result(out)
        _say(quiet or not which, f"{label} ({which}): {100 * record['accuracy']:.1f}%, finished before")
        return record
    keep_pages()
    with Live(label, config.rounds, which=which, quiet=quiet, bar=bar) as live:
        return run(config, out, resume=resume, listener=live).record


def run_all(runs: Sequence[Planned], resume: bool, quiet: bool, jobs: int) -> dict[str, Entry]:
    """What each label has come to, ``jobs`` runs at a time with an equal share of the cores each.

    A run that fails does not keep the others from theirs; only where all fail is that an error. Small models leave
    most of a second core idle when it helps with one run, and none of it when it has its own.
    """
    _check_folders(runs, resume)
    if len(runs) == 1:
        outcomes = [_outcome(runs[0], resume, quiet, True)]
    else:
        outcomes = _in_processes(runs, resume, quiet, max(1, min(jobs, len(runs))))
    entries = {planned.label: Entry({}, {}) for planned in runs}
    for planned, found in zip(runs, outcomes, strict=True):
        entry, seed = entries[planned.label], planned.config.seed
        entries[planned.label] = (
            Entry(entry.records, {**entry.failed, seed: found})
            if isinstance(found, str)
            else Entry({**entry.records, seed: found}, entry.failed)
        )
    reasons = [found for found in outcomes if isinstance(found, str)]
    if len(reasons) == len(runs):
        same = len(set(reasons)) == 1
        raise DeltaMaskError(reasons[0] if same else f"all runs failed, the first with: {reasons[0]}")
    return entries


def _in_processes(runs: Sequence[Planned], resume: bool, quiet: bool, jobs: int) -> list[Record | str]:
    """A process for each run, so that its peak of memory is its own and the system can end it alone."""
    processes: list[SpawnProcess] = []
    stopping = Event()
    threads = max(1, cores() // jobs)

    def one(planned: Planned) -> Record | str:
        if stopping.is_set():
            return "interrupted"
        if resume and is_finished(planned.config, planned.out):
            return _outcome(planned, resume, quiet, False)
        # A fresh interpreter: threads of torch and numba do not survive a fork.
        context = get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(sender, planned, resume, quiet, jobs == 1, threads))
        processes.append(process)
        process.start()
        sender.close()
        try:
            found: Record | str = receiver.recv()
        except EOFError:
            process.join()
            found = (
                f"its process ended with code {process.exitcode}, -9 may be for want of memory; go on with --resume"
            )
            _say(quiet or stopping.is_set(), f"{planned.name} ({planned.which}) failed: {found}")
        return found

    pool = ThreadPoolExecutor(jobs)
    try:
        return list(pool.map(one, runs))
    except BaseException:
        stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            if process.is_alive():
                process.terminate()  # what it had finished is saved
        raise
    finally:
        pool.shutdown()


def _child(sender: Connection, planned: Planned, resume: bool, quiet: bool, bar: bool, threads: int) -> None:
    import torch

    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with suppress(KeyboardInterrupt):  # the parent gets it too, and speaks for all
        sender.send(_outcome(planned, resume, quiet, bar))


def _end_with_parent() -> None:
    """Whoever kills the parent and resumes must not meet what it left running, in the same folder."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _outcome(planned: Planned, resume: bool, quiet: bool, bar: bool) -> Record | str:
    """The result of a run, or why there is none."""
    try:
        return run_one(planned.config, planned.out, resume, quiet, planned.name, which=planned.which, bar=bar)
    except DeltaMaskError as error:
        reason = str(error)
    except Exception as error:  # a night of runs must not end with a mistake in one of them
        traceback.print_exc(file=sys.stderr)
        reason = f"{type(error).__name__}: {error}"
    _say(quiet, f"{planned.name} ({planned.which}) failed: {reason}")
    return reason


def _say(quiet: bool, text: str) -> None:
    Console(stderr=True, quiet=quiet).print(text, highlight=False, markup=False, soft_wrap=True)


def _labels(methods: str) -> list[str]:
    known = members("deltamask.methods", "METHOD")
    labels: dict[str, None] = {}
    for label in (part.strip() for part in methods.split(",")):
        if label == ALL:
            labels |= dict.fromkeys(["deltamask", "deltamask:paper", *known])
        elif label:
            name = label.partition(":")[0]
            if name not in known:
                raise unknown_name("method", name, (*known, ALL))
            labels[label] = None
    if not labels:
        raise ConfigError("--methods is empty; name at least one, see `deltamask list methods`")
    return list(labels)


def _own_in_file(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of each table [methods.LABEL]; one whose label is not compared is left alone."""
    known = members("deltamask.methods", "METHOD")
    own: dict[str, dict[str, Any]] = {}
    for whole, value in given.items():
        table, _, rest = whole.partition(".")
        if table != _TABLE or not rest:
            continue
        label, _, key = rest.partition(".")
        if label.partition(":")[0] not in known:
            raise unknown_name("method", label, known)
        if not key:
            raise ConfigError(f"{whole} is {value!r}: expected a table [{_TABLE}.{label}] of settings")
        _check_own(f"[{_TABLE}.{label}] {key}", key)
        own.setdefault(label, {})[key] = value
    return own


def _own_sets(sets: Sequence[str], labels: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """What --set says to all labels, and what to one."""
    shared: list[str] = []
    own: dict[str, list[str]] = {}
    for item in sets:
        where, equals, value = item.partition("=")
        label, _, key = (part.strip() for part in where.rpartition(":"))
        if not label:
            shared.append(item)
        elif label not in labels:
            raise unknown_name("--set for method", label, labels)
        else:
            _check_own(f"--set {item}", key)
            own.setdefault(label, []).append(f"{key}{equals}{value}")
    return shared, own


def _check_own(said: str, key: str) -> None:
    if key in _FIXED:
        raise ConfigError(f"{said}: a method cannot have its own {key}; use --methods, --seed and --seeds")


def _folder(out: Path, label: str, seed: int) -> Path:
    return out / label.replace(":", "-") / f"seed-{seed}"


def _check_folders(runs: Sequence[Planned], resume: bool) -> None:
    """Refuses, before anything is run, folders that hold what would not be continued."""
    for planned in runs:
        if not resume and holds_run(planned.out):
            raise ConfigError(f"{planned.out} already holds a run; continue it with --resume or choose another --out")
        if (planned.out / "result.json").exists() and not is_finished(planned.config, planned.out):
            raise ConfigError(
                f"{planned.out} holds a run with other settings; use the same ones with --resume, choose another "
                "--out, or remove that folder"
            )
