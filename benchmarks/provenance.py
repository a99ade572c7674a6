"""Where and with what a benchmark ran, how it takes time and memory, and how it writes what it found."""

from __future__ import annotations

import ctypes
import gc
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import deltamask
from deltamask import memory

__all__ = ["Target", "markdown_table", "peak_mib", "provenance", "seconds", "single_thread", "write_json"]

ROOT = Path(__file__).resolve().parent.parent
PEAK = "growth of the resident memory's peak (VmHWM) over one call"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Target:
    """One line of the list of what must be reached; ``measured`` is None where this run could not tell."""

    what: str
    target: str
    measured: str | None
    met: bool | None

    @property
    def verdict(self) -> str:
        return {True: "yes", False: "no", None: "not measured"}[self.met]


def single_thread() -> None:
    """Everything after this call runs on one thread."""
    import numba
    import torch

    numba.set_num_threads(1)
    torch.set_num_threads(1)


def provenance(seed: int, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Versions, commit, processor and seed; ``packages`` are those beyond the usual ones that took part."""
    return {
        "deltamask": deltamask.__version__,
        "commit": _commit(),
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "cpu": _cpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": 1,
        **{name: _version(name) for name in ("numpy", "numba", "llvmlite", *packages)},
    }


def seconds(call: Callable[[], Result], repeats: int) -> tuple[float, float, Result]:
    """Median and minimum over ``repeats`` calls after one to warm up, and what the last one returned."""
    result = call()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken), min(taken), result


def peak_mib(call: Callable[[], object]) -> float | None:
    """MiB by which one call raises the peak of resident memory; None where Linux does not tell.

    tracemalloc would miss what compiled code allocates.
    """
    gc.collect()
    if memory.peak_mib() is None:
        return None
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed but kept would hide what the call takes
    memory.reset_peak()  # the peak is now what is resident
    before = memory.peak_mib()
    call()
    return memory.peak_mib() - before


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Indented JSON; dataclasses are written as objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, default=asdict) + "\n")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _commit() -> str:
    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    try:
        fields = dict(
            line.split(":", 1)
            for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
            if ":" in line
        )
    except OSError:
        return platform.processor() or platform.machine()
    found = {key.strip(): value.strip() for key, value in fields.items()}
    name = found.get("model name", platform.machine())
    return f"{name}, family {found['cpu family']} model {found['model']}" if "cpu family" in found else name


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
