"""Several runs, one after the other or in processes that share the cores; finished ones are not run again."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from deltamask.config import Config
from deltamask.live import Live
from deltamask.memory import keep_pages
from deltamask.provenance import cores
from deltamask.report import load_result
from deltamask.simulate import is_finished, run

__all__ = ["run_all", "run_one"]

Record = dict[str, Any]


def run_one(config: Config, out: Path, resume: bool, quiet: bool, label: str, bar: bool = True) -> Record:
    """One run with a live view; with ``resume``, a result that is there already is taken as it is."""
    if resume and is_finished(config, out):
        return load_result(out)
    keep_pages()
    with Live(label, config.rounds, quiet=quiet, bar=bar) as live:
        return run(config, out, resume=resume, listener=live).record


def run_all(runs: dict[str, tuple[Config, Path]], resume: bool, quiet: bool, jobs: int) -> dict[str, Record]:
    """The result of each labelled run, ``jobs`` of them at a time with an equal share of the cores each.

    Small models leave most of a second core idle when it helps with one run, and none of it when it has its own.
    """
    if jobs <= 1 or len(runs) <= 1:
        return {label: run_one(config, out, resume, quiet, label) for label, (config, out) in runs.items()}
    threads = max(1, cores() // jobs)
    # A fresh interpreter each: threads of torch and numba do not survive a fork.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_share, initargs=(threads,))
    try:
        asked = {
            pool.submit(run_one, config, out, resume, quiet, label, False): label
            for label, (config, out) in runs.items()
        }
        found = {asked[done]: done.result() for done in as_completed(asked)}
    except BaseException:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.terminate()  # what it had finished is saved
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return {label: found[label] for label in runs}


def _share(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
