"""Aggregation: the lattice of sums, resets, estimators, the control variate, memory and the error bound."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from deltamask import sampling
from deltamask.errors import ConfigError
from deltamask.theta import Aggregation, Votes

D = 4001


def votes_of(state_theta: np.ndarray, masks: np.ndarray, rule: str = "bayes", seed: int = 0) -> Votes:
    """Votes from given masks, through flips against each client's own m_g."""
    votes = Votes(state_theta, rule)  # type: ignore[arg-type]
    for k, m in enumerate(masks):
        key = sampling.Keys.of("coupled", seed, k, 0).server
        flips = np.flatnonzero(sampling.mask(key, votes.limits) != m).astype(np.uint32)
        votes.add_flips(key, flips)
    return votes


def random_masks(clients: int, theta: np.ndarray, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((clients, theta.size)) < theta).astype(np.uint8)


def test_votes_from_flips_are_the_sum_of_the_masks() -> None:
    theta = np.linspace(0.01, 0.99, D).astype(np.float32)
    masks = random_masks(7, theta)
    by_flips, by_masks = votes_of(theta, masks), Votes(theta)
    for m in masks:
        by_masks.add_mask(m)
    assert np.array_equal(by_flips.total, masks.sum(0))
    assert np.array_equal(by_masks.total, masks.sum(0))
    assert by_flips.clients == 7


@pytest.mark.parametrize(
    ("estimator", "want"),
    [("mode", lambda s, k: s / k), ("mean", lambda s, k: (s + 1) / (k + 2))],
)
def test_estimators_with_a_flat_prior(estimator, want) -> None:
    agg = Aggregation(estimator=estimator)
    state = agg.init(D, 0.8)
    masks = random_masks(10, state.theta)
    new = agg.update(state, votes_of(state.theta, masks))
    assert np.allclose(new.theta, np.clip(want(masks.sum(0), 10), 0.01, 0.99), atol=1e-6)
    assert new.round == 1


def test_prior_gathers_rounds_until_it_is_reset() -> None:
    for period in (1, 2, 5):
        agg = Aggregation(reset_every=period)
        state = agg.init(D, 0.5)
        seen = []
        for _ in range(11):
            state = agg.update(state, votes_of(state.theta, random_masks(3, state.theta)))
            seen.append(int(state.alpha[0] + state.beta[0]))
        assert seen == [2 + 3 * (t % period + 1) for t in range(11)]


def test_adding_the_mean_collapses_the_model_as_printed() -> None:
    """Decision 3: with 30 clients that all vote 1, the printed rule gives at most 2/32."""
    agg = Aggregation(adds="mean", estimator="mean", clip=0.0)
    state = agg.init(D, 0.99)
    new = agg.update(state, votes_of(state.theta, np.ones((30, D), np.uint8)))
    assert np.allclose(new.theta, 2 / 32)


def test_clipping_keeps_every_logit_finite() -> None:
    agg = Aggregation()
    state = agg.init(D, 0.5)
    new = agg.update(state, votes_of(state.theta, np.zeros((5, D), np.uint8)))
    assert (new.theta == np.float32(0.01)).all()


def test_a_round_without_arrivals_changes_nothing() -> None:
    agg = Aggregation()
    state = agg.init(D, 0.5)
    new = agg.update(state, Votes(state.theta))
    assert np.array_equal(new.theta, state.theta)
    assert new.round == 1


def test_what_lasts_of_a_state_is_all_that_the_next_rounds_need() -> None:
    """In rounds without answers as well: a reset that falls into one of them is not put off."""
    for rule, period in (("control", 5), ("bayes", 1), ("bayes", 3)):
        agg = Aggregation(rule, reset_every=period)  # type: ignore[arg-type]
        state = agg.init(D, 0.5)
        for t in range(10):
            lasting = agg.lasting(state)
            resets = t % (1 if rule == "control" else period) == 0
            assert lasting.keys() == ({"theta"} if resets or rule == "control" else {"theta", "alpha", "beta"})
            masks = random_masks(0 if t in (3, 6, 7) else 3, state.theta, seed=t)
            states = [agg.resumed(lasting, t), state]
            other, state = (agg.update(s, votes_of(s.theta, masks, rule)) for s in states)
            for name, array in agg.lasting(state).items():
                assert np.array_equal(getattr(other, name), array)


def test_control_variate_is_unbiased_with_the_smaller_variance() -> None:
    """E = mean of theta_k; variance |delta| (1 - |delta|) / K, against theta (1 - theta) / K of plain means."""
    d, clients, trials = 20_000, 10, 20
    theta_g = np.full(d, 0.5, np.float32)
    theta_k = np.full(d, 0.56, np.float32)
    limits = sampling.thresholds(theta_k)
    agg = Aggregation(rule="control", clip=0.0)
    state = agg.init(d, 0.5)
    errors = []
    for trial in range(trials):
        votes = Votes(theta_g, "control")
        for k in range(clients):
            keys = sampling.Keys.of("coupled", trial, k, 0)
            votes.add_flips(keys.server, sampling.flips(keys, votes.limits, limits))
        errors.append(agg.update(state, votes).theta - theta_k)
    error = np.stack(errors)
    variance = 0.06 * 0.94 / clients
    assert abs(error.mean()) < 5 * np.sqrt(variance / error.size)
    assert abs(error.var() / variance - 1) < 0.05
    assert variance < 0.25 / clients / 4


def test_error_bound_with_independent_bit_flips() -> None:
    """METHOD, decision 10: E|theta_bar - estimate|^2 <= d/4K + d e^2 (K-1)/K for symmetric flips e <= 1/4.

    One client contributes theta (1 - theta) (1 - 4e) + e, at most max(1/4, e): beyond e = 1/4 the first term
    has to be d e / K. On simulated theta, the exact expectation is met within 2% and both bounds hold.
    """
    d, clients = 50_000, 20
    rng = np.random.default_rng(3)
    for e in (0.0, 2.0**-8, 0.05, 0.2, 0.3):
        bound = d * max(0.25, e) / clients + d * e**2 * (clients - 1) / clients
        for theta_k in (rng.random((clients, d)), np.full((clients, d), 0.5), np.zeros((clients, d))):
            masks = rng.random((clients, d)) < theta_k
            masks ^= rng.random((clients, d)) < e
            error = ((masks.mean(0) - theta_k.mean(0)) ** 2).sum()
            p = theta_k + e * (1 - 2 * theta_k)
            bias = (e * (1 - 2 * theta_k)).mean(0)
            expected = (p * (1 - p)).sum() / clients**2 + (bias**2).sum()
            assert error == pytest.approx(expected, rel=0.02)
            assert error <= bound * 1.02
            if e == 0.3 and not theta_k.any():  # neither holds there as printed
                assert error > d / (4 * clients) + d * e**2 * (clients - 1) / clients > d / (4 * clients)


@pytest.mark.parametrize("rule", ["bayes", "control"])
def test_server_memory_does_not_grow_with_clients(rule: str) -> None:
    d = 2_000_000
    theta = np.full(d, 0.8, np.float32)
    flips = np.arange(0, d, 100, dtype=np.uint32)

    def peak(clients: int) -> int:
        tracemalloc.start()
        votes = Votes(theta, rule)  # type: ignore[arg-type]
        for k in range(clients):
            votes.add_flips(k, flips)
        Aggregation(rule=rule).update(Aggregation(rule=rule).init(d, 0.8), votes)  # type: ignore[arg-type]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few, many = peak(2), peak(40)
    assert many < few + d  # not one byte a weight more, let alone a mask for each client


def test_misuse_is_refused() -> None:
    theta = np.full(10, 0.5, np.float32)
    with pytest.raises(ConfigError, match="position 10"):
        Votes(theta).add_flips(0, np.array([10], np.uint32))
    with pytest.raises(ConfigError, match="needs flips"):
        Votes(theta, "control").add_mask(np.zeros(10, np.uint8))
    with pytest.raises(ConfigError, match="collected for"):
        Aggregation().update(Aggregation().init(10, 0.5), Votes(theta, "control"))
