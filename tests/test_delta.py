"""Ranking, kappa schedules and byte budgets."""

from __future__ import annotations

import numpy as np
import pytest

from deltamask import delta
from deltamask.errors import BudgetError, ConfigError

RNG = np.random.default_rng(0)


def test_relative_entropy_against_its_definition() -> None:
    p = np.array([0.2, 0.5, 0.9, 0.0, 1.0, 0.3], np.float32)
    q = np.array([0.4, 0.5, 0.1, 0.5, 0.5, 0.3], np.float32)
    got = delta.relative_entropy(p, q)
    want = [
        0.2 * np.log(0.5) + 0.8 * np.log(0.8 / 0.6),
        0,
        0.9 * np.log(9) + 0.1 * np.log(0.1 / 0.9),
        np.log(2),
        np.log(2),
        0,
    ]
    assert np.allclose(got, want, atol=1e-6)


def test_top_kappa_keeps_the_largest_divergences_sorted_by_position() -> None:
    d = 1000
    theta_g, theta_k = (RNG.uniform(0.05, 0.95, d).astype(np.float32) for _ in range(2))
    flips = np.sort(RNG.choice(d, 300, replace=False)).astype(np.uint32)
    kept = delta.top(delta.rank(flips, theta_k, theta_g), 0.8)
    assert kept.size == 240
    assert (np.diff(kept.astype(int)) > 0).all()
    kl = delta.relative_entropy(theta_k, theta_g)
    dropped = np.setdiff1d(flips, kept)
    assert kl[dropped].max() <= kl[kept].min()


def test_random_selection_depends_on_its_key_alone_and_on_no_divergence() -> None:
    flips = np.arange(1000, dtype=np.uint32)
    theta_g = np.full(1000, 0.5, np.float32)
    theta_k = np.linspace(0.5, 0.95, 1000).astype(np.float32)
    a, b, other = (delta.top(delta.rank(flips, theta_k, theta_g, by="random", key=k), 0.5) for k in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, other)
    assert abs(a.mean() - 499.5) < 5 * 1000 / np.sqrt(12 * 500)
    with pytest.raises(ConfigError, match="'kl' or 'random'"):
        delta.rank(flips, theta_k, theta_g, by="best")  # type: ignore[arg-type]


def test_kappa_rounds_up_and_has_no_float_surprise() -> None:
    ranked = np.arange(10, dtype=np.uint32)
    assert [delta.top(ranked, k).size for k in (0, 0.01, 0.3, 0.7, 1)] == [0, 1, 3, 7, 10]


def test_schedules() -> None:
    assert delta.KappaSchedule("constant", 0.8).at(50, 100) == 0.8
    cosine = delta.KappaSchedule("cosine", 0.8, 0.2)
    got = [cosine.at(t, 5) for t in range(5)]
    assert np.allclose(got, [0.8, 0.2 + 0.6 * (1 + np.sqrt(0.5)) / 2, 0.5, 0.2 + 0.6 * (1 - np.sqrt(0.5)) / 2, 0.2])
    assert cosine.at(0, 1) == 0.8


@pytest.mark.parametrize("budget", [10, 11, 100, 1003, 3999, 4010, 10_000])
def test_budget_is_never_exceeded_and_nearly_used(budget: int) -> None:
    def encode(positions: np.ndarray) -> bytes:
        return bytes(10 + 4 * positions.size)

    payload = delta.fit_budget(np.arange(1000, dtype=np.uint32), encode, budget)
    assert len(payload) <= budget
    assert len(payload) >= min(budget - 7, 4010)


def test_a_budget_below_the_empty_payload_says_so() -> None:
    with pytest.raises(BudgetError, match="budget is 9 bytes, an empty payload takes 10"):
        delta.fit_budget(np.arange(5, dtype=np.uint32), lambda p: bytes(10 + p.size), 9)
