"""What a run says of its memory, and the allocator's setting."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from deltamask import memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def test_the_peak_rises_with_what_is_taken_and_can_be_reset() -> None:
    memory.reset_peak()
    before = memory.peak_mib()
    held = np.ones(96 << 20, np.uint8)
    peak = memory.peak_mib()
    assert before is not None
    assert peak is not None
    assert peak - before > 80
    del held
    assert memory.peak_mib() > peak - 1
    memory.reset_peak()
    assert memory.peak_mib() < peak - 80


def test_free_memory_is_a_sane_number() -> None:
    free = memory.free_bytes()
    assert free is not None
    assert 1e6 < free < 1e15


def test_kept_pages_are_used_again() -> None:
    # In a process of its own: the setting stays. Fresh pages show as faults, reused ones do not.
    code = """
import resource, numpy as np
from deltamask.memory import keep_pages
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        np.ones(64 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back, told, _ = faults(), keep_pages(), faults()
print(told, given_back, faults())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, given_back, kept = done.stdout.split()
    if told == "False":
        pytest.skip("not glibc")
    assert int(kept) * 10 < int(given_back)
