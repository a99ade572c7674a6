"""Draws: golden words, chunk and thread independence, flip probabilities, unbiased means, independent clients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from deltamask import sampling
from deltamask.errors import ConfigError
from deltamask.kernels import draws

D = 200_000
MASK64 = 2**64 - 1


def word(key: int, i: int) -> int:
    """The stream in Python integers, from its definition."""
    x = (key + (i // 2) * 0x9E3779B97F4A7C15) & MASK64
    for m in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x ^= x >> 33
        x = x * m & MASK64
    x ^= x >> 33
    return x >> 33 if i % 2 else (x >> 1) & 0x7FFFFFFF


def test_golden_draws() -> None:
    assert sampling.derive(0, "coupled", 1, 2) == 14909991533968504477
    assert sampling.uniforms(7, 4).tolist() == [word(7, i) for i in range(4)]
    assert sampling.uniforms(7, 5).tolist() == [1916037358, 973313253, 461120426, 156939536, 204183816]


def test_the_stream_follows_its_definition() -> None:
    key = sampling.derive(3, "x")
    far = 2**33 + 1
    assert sampling.uniforms(key, 101).tolist() == [word(key, i) for i in range(101)]
    assert sampling.uniforms(key, 9, far).tolist() == [word(key, far + i) for i in range(9)]


def test_chunks_and_threads_do_not_matter() -> None:
    limits = sampling.uniforms(1, D + 1)
    whole = sampling.mask(5, limits)
    assert np.array_equal(whole, (sampling.uniforms(5, D + 1) < limits).astype(np.uint8))
    for chunk in (2, 1000, 4098, 65536):
        out = np.empty_like(whole)
        with ThreadPoolExecutor(4) as pool:
            list(
                pool.map(
                    lambda a, chunk=chunk, out=out: draws.draw_mask(
                        np.uint64(5), a, limits[a : a + chunk], out[a : a + chunk]
                    ),
                    range(0, D + 1, chunk),
                )
            )
        assert np.array_equal(out, whole)


def test_threshold_is_one_defined_rounding() -> None:
    theta = np.array([0, 2**-33, 2**-32, 0.25, 0.5, 1 - 2**-24, 1], np.float32)
    assert sampling.thresholds(theta).tolist() == [0, 0, 1, 2**29, 2**30, 2**31 - 128, 2**31]
    for bad in (-0.1, 1.1, np.nan):
        with pytest.raises(ConfigError, match="expected 0 to 1"):
            sampling.thresholds(np.array([0.5, bad], np.float32))


def test_masked_weights_use_the_same_threshold() -> None:
    theta = np.concatenate([sampling.uniforms(2, D) / 2**31, [0, 1, 0.5]]).astype(np.float32)
    weights = np.ones(theta.size, np.float32)
    out = np.empty_like(weights)
    draws.masked_weights(np.uint64(9), 0, theta, weights, out)
    assert np.array_equal(out, sampling.mask(9, sampling.thresholds(theta)).astype(np.float32))


@pytest.mark.parametrize("mode", ["coupled", "shared"])
def test_a_coupled_position_flips_with_the_difference_of_probabilities(mode: sampling.Mode) -> None:
    for a, b in ((0.5, 0.53), (0.95, 0.9), (0.2, 0.2), (0.0, 1.0)):
        g = sampling.thresholds(np.full(D, a, np.float32))
        k = sampling.thresholds(np.full(D, b, np.float32))
        got = sampling.flips(sampling.Keys.of(mode, 0, 1, 2), g, k).size / D
        p = abs(a - b)
        assert abs(got - p) <= 5 * np.sqrt(p * (1 - p) / D) + 1e-7


def test_independent_masks_flip_with_the_sum_of_the_two_ways() -> None:
    g = sampling.thresholds(np.full(D, 0.9, np.float32))
    k = sampling.thresholds(np.full(D, 0.7, np.float32))
    p = 0.9 * 0.3 + 0.1 * 0.7
    got = sampling.flips(sampling.Keys.of("independent", 0, 1, 2), g, k).size / D
    assert abs(got - p) <= 5 * np.sqrt(p * (1 - p) / D)


@pytest.mark.parametrize("mode", sampling.MODES)
def test_flips_are_the_xor_of_the_two_masks(mode: sampling.Mode) -> None:
    g, k = sampling.uniforms(11, 10_001), sampling.uniforms(12, 10_001)
    keys = sampling.Keys.of(mode, 4, 5, 6)
    want = np.flatnonzero(sampling.mask(keys.server, g) != sampling.mask(keys.client, k))
    assert np.array_equal(sampling.flips(keys, g, k), want)
    theta_g, theta_k = (x.astype(np.float32) / np.float32(2**31) for x in (g, k))
    limits = sampling.thresholds(theta_g), sampling.thresholds(theta_k)
    assert np.array_equal(sampling.flips(keys, theta_g, theta_k), sampling.flips(keys, *limits))


@pytest.mark.parametrize("mode", ["coupled", "independent"])
def test_the_mean_over_clients_is_unbiased_with_the_variance_of_independent_draws(mode: sampling.Mode) -> None:
    clients, d = 200, 20_000
    theta = np.linspace(0.02, 0.98, d, dtype=np.float32)
    limits = sampling.thresholds(theta)
    mean = np.zeros(d)
    for k in range(clients):
        mean += sampling.mask(sampling.Keys.of(mode, 0, k, 1).client, limits)
    mean /= clients
    variance = theta * (1 - theta) / clients
    z = (mean - theta) / np.sqrt(variance)
    assert abs(z.mean()) < 5 / np.sqrt(d)
    assert abs((z**2).mean() - 1) < 0.05  # correlated clients would give about 200


def test_a_shared_key_correlates_all_clients() -> None:
    """Why `shared` is for studies: its mean over clients has the variance of a single client."""
    limits = sampling.thresholds(np.full(D, 0.5, np.float32))
    a, b = (sampling.mask(sampling.Keys.of("shared", 0, k, 1).client, limits) for k in (1, 2))
    assert np.array_equal(a, b)


def test_streams_of_clients_rounds_and_neighbouring_positions_are_uncorrelated() -> None:
    def centred(key: int) -> np.ndarray:
        return sampling.uniforms(key, D) / 2**31 - 0.5

    base = centred(sampling.derive(0, "coupled", 1, 1))
    bound = 5 / 12 / np.sqrt(D)
    for other in (centred(sampling.derive(0, "coupled", 2, 1)), centred(sampling.derive(0, "coupled", 1, 2))):
        assert abs((base * other).mean()) < bound
    for lag in (1, 2, 3, 64):
        assert abs((base[lag:] * base[:-lag]).mean()) < bound


def test_words_are_uniform() -> None:
    counts = np.bincount(sampling.uniforms(99, D) >> 23, minlength=256)
    chi2 = ((counts - D / 256) ** 2 / (D / 256)).sum()
    assert 150 < chi2 < 370  # 255 degrees of freedom, about 5 sigma


def test_permutation_is_one() -> None:
    order = sampling.permutation(5, 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert not np.array_equal(order, sampling.permutation(6, 1000))


def test_lengths_must_agree() -> None:
    keys, half = sampling.Keys(1, 1), np.full(3, 0.5, np.float32)
    with pytest.raises(ConfigError, match="1 of 6 probabilities"):
        sampling.flips(keys, half, np.array([0.5, np.nan, 1], np.float32))
    with pytest.raises(ConfigError, match="theta_k float64"):
        sampling.flips(keys, half, np.full(3, 0.5))
    with pytest.raises(ConfigError, match="theta_g has 3"):
        sampling.flips(sampling.Keys(1, 1), np.zeros(3, np.uint32), np.zeros(4, np.uint32))
