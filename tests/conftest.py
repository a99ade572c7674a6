"""One thread for each test process: `make test` runs one process a core."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits_task():
    """The embedded task among ten clients, masks in the last block alone; not to be changed."""
    from deltamask.config import load
    from deltamask.task import build

    return build(load(values={"clients": 10, "blocks": "last:1"}))
