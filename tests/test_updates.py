"""Codes for changes of weights: against the theory of their papers, and against hostile bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamask.errors import ConfigError, WireError
from deltamask.updates.base import Update
from deltamask.updates.drive import Drive
from deltamask.updates.eden import Eden, centroids, distortion
from deltamask.updates.plain import Plain
from deltamask.updates.qsgd import Qsgd
from deltamask.updates.topk import TopK

CODES = [Eden(0.25), Eden(0.7), Eden(1), Eden(2), Eden(4), Drive(), Qsgd(128, 1), Qsgd(512, 4), Qsgd(64, 100)]
ALL = [*CODES, Plain(), Plain(half=True), TopK(0.25), TopK(1.0)]
KEYS = 200


def heavy_tailed(size: int, seed: int = 0) -> np.ndarray:
    """Nothing like normal: what a rotation has to make up for."""
    return np.random.default_rng(seed).standard_t(3, size).astype(np.float32)


def errors(code: Update, x: np.ndarray, keys: int = KEYS) -> tuple[float, float]:
    """(mean squared error of one estimate, of the mean of all estimates), over |x|^2."""
    total, squares = np.zeros(x.size), 0.0
    for key in range(keys):
        found = code.decode(code.encode(x, key, 1000 + key), x.size, key).astype(float)
        total += found
        squares += float(((found - x) ** 2).sum())
    norm = float((x.astype(float) ** 2).sum())
    return squares / keys / norm, float(((total / keys - x) ** 2).sum()) / norm


@pytest.mark.parametrize("code", CODES, ids=repr)
@pytest.mark.parametrize("size", [8192, 3000])
def test_estimates_have_no_bias(code, size) -> None:
    """The mean over K keys is K times as close as one estimate, within 10%; a bias would stay."""
    one, mean = errors(code, heavy_tailed(size))
    assert mean * KEYS == pytest.approx(one, rel=0.1)


@pytest.mark.parametrize("bits", [0.25, 0.7, 1, 2, 3, 4])
def test_eden_errs_as_its_paper_says(bits) -> None:
    one, _ = errors(Eden(bits), heavy_tailed(4 * 8192), keys=20)
    assert one == pytest.approx(distortion(bits), rel=0.03)


def test_constants_of_the_papers() -> None:
    assert distortion(1) == pytest.approx(np.pi / 2 - 1, abs=1e-6)  # DRIVE, theorem 2
    assert distortion(2) == pytest.approx(1 / (1 - 0.117482) - 1, abs=1e-4)  # Max 1960, table I
    assert distortion(3) == pytest.approx(1 / (1 - 0.034548) - 1, abs=1e-4)
    assert distortion(0.5) == pytest.approx(np.pi - 1, abs=1e-6)
    assert centroids(2).tolist() == pytest.approx([-1.510, -0.4528, 0.4528, 1.510], abs=1e-3)
    one, _ = errors(Drive(), heavy_tailed(4 * 8192), keys=20)
    assert one == pytest.approx(np.pi / 2 - 1, rel=0.03)


@pytest.mark.parametrize("code", [Qsgd(128, 1), Qsgd(512, 1), Qsgd(512, 4), Qsgd(64, 100)], ids=repr)
def test_qsgd_keeps_its_variance_bound(code) -> None:
    for x in (heavy_tailed(5120), np.ones(5120, np.float32), np.eye(1, 5120, 7, dtype=np.float32)[0]):
        one, _ = errors(code, x, keys=20)
        assert one <= 1.02 * code.bound()


def test_bytes_are_what_the_bits_say() -> None:
    size = 100_000
    x = heavy_tailed(size)
    for bits in (1, 2, 4):
        data = Eden(bits).encode(x, 1, 2)
        # A scale for each of 13 rows, and less than a row of padding.
        assert bits * size / 8 <= len(data) <= bits * (size + 8192) / 8 + 4 * 13
    assert len(Eden(0.7).encode(x, 1, 2)) == pytest.approx(0.7 * len(Eden(1).encode(x, 1, 2)), rel=0.02)
    # QSGD of one level: the entropy of which numbers are not zero, and a sign for each.
    code = Qsgd(512, 1)
    data = code.encode(x, 1, 2)
    share = np.count_nonzero(code.decode(data, size, 1)) / size
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    assert 8 * len(data) == pytest.approx(size * (entropy + share) + 32 * -(-size // 512), rel=0.01)


@pytest.mark.parametrize("code", ALL, ids=repr)
def test_edges(code) -> None:
    for x in (np.zeros(0, np.float32), np.zeros(777, np.float32), np.array([3.0], np.float32)):
        found = code.decode(code.encode(x, 5, 6), x.size, 5)
        assert found.dtype == np.float32
        assert found.shape == x.shape
        assert np.isfinite(found).all()
        if not x.any():
            assert not found.any()
    x = heavy_tailed(500)
    assert code.encode(x, 5, 6) == code.encode(x.copy(), 5, 6)
    assert (code.encode(x, 5, 6) == code.encode(x, 4, 7)) == isinstance(code, Plain | TopK)  # these draw nothing
    tiny, huge = (x * np.float32(scale) for scale in (1e-30, 1e15))
    for scaled in (tiny, huge):
        assert np.isfinite(code.decode(code.encode(scaled, 5, 6), 500, 5)).all()


@pytest.mark.parametrize("code", ALL, ids=repr)
@pytest.mark.parametrize("size", [1, 500, 8192, 20_000])
def test_no_honest_payload_is_longer_than_allowed(code, size) -> None:
    for x in (heavy_tailed(size), np.ones(size, np.float32), np.zeros(size, np.float32)):
        assert len(code.encode(x, 1, 2)) <= code.longest(size)


@pytest.mark.parametrize("code", ALL, ids=repr)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_hostile_bytes(code, data) -> None:
    size = 300
    good = code.encode(heavy_tailed(size), 1, 2)
    kind = data.draw(st.sampled_from(["cut", "longer", "flipped", "random"]))
    if kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "longer":
        bad = good + data.draw(st.binary(min_size=1, max_size=9))
    elif kind == "flipped":
        at = data.draw(st.integers(0, 8 * len(good) - 1))
        bad = good[: at // 8] + bytes([good[at // 8] ^ 1 << at % 8]) + good[at // 8 + 1 :]
    else:
        bad = data.draw(st.binary(max_size=600))
    try:
        found = code.decode(bad, size, 1)
    except WireError:
        return
    assert kind in ("flipped", "random")  # a changed bit can make another honest payload; a changed length cannot
    assert found.shape == (size,)
    assert np.isfinite(found).all()


def test_half_precision_and_the_largest_numbers() -> None:
    x = heavy_tailed(1000)
    half = Plain(half=True)
    assert np.abs(half.decode(half.encode(x, 0, 0), 1000, 0) - x).max() <= np.abs(x).max() * 2**-11
    assert half.decode(half.encode(np.array([1e9], np.float32), 0, 0), 1, 0) == 65504
    kept = TopK(0.1).decode(TopK(0.1).encode(x, 0, 0), 1000, 0)
    assert np.count_nonzero(kept) == 100
    assert np.abs(x[kept == 0]).max() <= np.abs(kept[kept != 0]).min() * (1 + 2**-10)
    assert np.allclose(kept[kept != 0], x[kept != 0], rtol=2**-10)


def test_settings_that_cannot_be() -> None:
    for density in (0, 1.1):
        with pytest.raises(ConfigError, match="the density is"):
            TopK(density)
    for bits in (0, 1.5, 7, -1):
        with pytest.raises(ConfigError, match=r"update\.bits"):
            Eden(bits)
    with pytest.raises(ConfigError, match="drive has 1"):
        Drive(2)
    with pytest.raises(ConfigError, match=r"update\.bucket is 0"):
        Qsgd(0, 1)
