"""What a run takes of the machine's memory, and one setting of the allocator that a run is faster with."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

__all__ = ["free_bytes", "keep_pages", "peak_mib", "reset_peak"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # <malloc.h>
_PAD = 256 << 20


def keep_pages() -> bool:
    """Makes the C library reuse the memory of large arrays, for this whole process; whether it could be told.

    By default glibc maps each array of more than 32 MiB anew and gives it back right away, and the system clears
    every page of it every time. A training step has several arrays of one number a masked weight.
    """
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(tell(_MMAP_MAX, 0) and tell(_TRIM_THRESHOLD, 2**31 - 1) and tell(_TOP_PAD, _PAD))


def reset_peak() -> None:
    """From now on `peak_mib` speaks of what comes; what an earlier run of this process held is given back."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_mib() -> float | None:
    """The most resident memory since `reset_peak`; none where the system does not tell."""
    found = _kib("/proc/self/status", "VmHWM")
    return None if found is None else round(found / 1024, 1)


def free_bytes() -> float | None:
    """Bytes that this machine has left; none where it does not tell."""
    found = _kib("/proc/meminfo", "MemAvailable")
    return None if found is None else 1024.0 * found


def _kib(path: str, field: str) -> int | None:
    try:
        for line in Path(path).read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.removesuffix(" kB"))
    except (OSError, ValueError):
        pass
    return None
