"""The embedded data set and the partitions."""

from __future__ import annotations

import numpy as np
import pytest

from deltamask.config import DataSettings
from deltamask.datasets import base, partition
from deltamask.errors import ConfigError, DataError

LABELS = np.repeat(np.arange(10), 100)


def test_digits_split_is_fixed_disjoint_and_balanced() -> None:
    train, test = base.load("digits", DataSettings())
    assert (len(train), len(test)) == (1438, 359)
    again, _ = base.load("digits", DataSettings())
    assert np.array_equal(train.images, again.images)
    counts = np.bincount(test.labels)
    assert counts.min() >= 34
    assert train.images.shape[1:] == (1, 8, 8)
    assert 0 <= float(train.images.min()) < float(train.images.max()) <= 1


@pytest.mark.parametrize("how", ["iid", "dirichlet:0.1", "dirichlet:10"])
def test_every_image_has_one_owner(how) -> None:
    parts = partition.split(LABELS, 10, how, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert all((np.diff(p) > 0).all() for p in parts)
    assert all(np.array_equal(a, b) for a, b in zip(parts, partition.split(LABELS, 10, how, seed=3), strict=True))
    other = partition.split(LABELS, 10, how, seed=4)
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def effective(how: str, seeds: int = 20) -> float:
    values = []
    for seed in range(seeds):
        parts = partition.split(LABELS, 10, how, seed)
        values.append(partition.effective_classes([LABELS[p] for p in parts], 10))
    return float(np.mean(values))


def test_concentration_sets_the_effective_classes() -> None:
    """METHOD, decision 22: .21 to .22 for Dir(0.1)."""
    assert 0.17 < effective("dirichlet:0.1") < 0.27
    assert effective("dirichlet:10") > 0.85
    assert effective("iid", 3) > 0.85


def test_minimum_size_is_kept() -> None:
    for seed in range(10):
        assert min(p.size for p in partition.split(LABELS, 10, "dirichlet:0.1", seed, least=5)) >= 5


@pytest.mark.parametrize("how", ["", "iid:3", "dirichlet", "dirichlet:0", "dirichlet:-1", "dirichlet:inf", "dir:1"])
def test_unknown_partitions(how) -> None:
    with pytest.raises(ConfigError, match="expected"):
        partition.split(LABELS, 10, how, 0)


def test_too_many_clients() -> None:
    with pytest.raises(DataError, match="lower `clients`"):
        partition.split(LABELS, 1001, "iid", 0)
    with pytest.raises(DataError, match="100 attempts"):
        partition.split(LABELS, 200, "dirichlet:0.01", 0, least=4)
