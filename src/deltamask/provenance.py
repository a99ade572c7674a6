"""Where a number comes from: versions, commit and hardware, written into every result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["cores", "provenance"]

_PACKAGES = ("deltamask", "torch", "numpy", "numba", "safetensors", "scikit-learn")


def provenance() -> dict[str, Any]:
    """Versions of what computes, the commit of a source checkout and the machine."""
    import torch

    return {
        "python": sys.version.split()[0],
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _commit(),
        "hardware": {
            "cpu": _cpu(),
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "memory_gib": _memory_gib(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "platform": platform.platform(),
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that this file belongs to, with ``+`` for uncommitted changes; none elsewhere."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603

    try:
        # An installed package may lie inside somebody else's checkout, where this file is not tracked.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None
