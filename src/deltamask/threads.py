"""Splitting one pass over a long array among threads; the numba loops release the interpreter lock.

numba's own parallel back ends share a pool that must not be entered from two threads at once, which a
federated client inside somebody's server cannot promise; plain threads have no such rule.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

__all__ = ["over_chunks"]

_SMALLEST = 1 << 20


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="deltamask")


def over_chunks(work: Callable[[int, int], object], size: int, workers: int | None = None) -> None:
    """Calls ``work(start, stop)`` for even-sized parts of ``range(size)``, on as many threads as torch uses."""
    workers = torch.get_num_threads() if workers is None else workers
    parts = min(workers, -(-size // _SMALLEST))
    if parts <= 1:
        work(0, size)
        return
    step = -(-size // parts) + 1 & ~1  # even: two draws share a hash
    spans = [(start, min(start + step, size)) for start in range(0, size, step)]
    for done in [_pool(parts).submit(work, *span) for span in spans]:
        done.result()
