"""The delta channel: what the server gets is a sample of Bern(theta_k), in every mode and through every codec."""

from __future__ import annotations

import numpy as np
import pytest

from deltamask import codecs, sampling
from deltamask.channels.delta import DeltaChannel
from deltamask.delta import KappaSchedule, relative_entropy
from deltamask.errors import BudgetError, ConfigError, MismatchError, WireError

D = 60_000
ALL = KappaSchedule("constant", 1.0)


@pytest.fixture(scope="module")
def thetas() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    theta_g = rng.choice([0.01, 0.2, 0.5, 0.8, 0.99], D).astype(np.float32)
    moved = theta_g + np.where(rng.random(D) < 0.2, rng.normal(0, 0.1, D), 0)
    return np.clip(moved, 0.005, 0.995).astype(np.float32), theta_g


def masks(channel: DeltaChannel, thetas, client=3, round=2):
    theta_k, theta_g = thetas
    keys = sampling.Keys.of(channel.sampling, 0, client, round)
    return (
        sampling.mask(keys.client, sampling.thresholds(theta_k)),
        sampling.mask(keys.server, sampling.thresholds(theta_g)),
    )


@pytest.mark.parametrize("codec", codecs.names())
@pytest.mark.parametrize("image", ["none", "png"])
def test_the_server_recovers_the_mask_through_every_codec(codec, image, thetas) -> None:
    channel = DeltaChannel(codec=codec, image=image, kappa=ALL)
    m_k, m_g = masks(channel, thetas)
    payload = channel.encode(*thetas, 0, 3, 2, 10)
    received = channel.decode(payload, sampling.thresholds(thetas[1]), 0, 3, 2)
    true = np.flatnonzero(m_k != m_g)
    assert received.entries == true.size
    assert np.isin(true, received.flips).all()
    assert received.wrong_positions == received.flips.size - true.size
    if codecs.get(codec).exact:
        m = m_g.copy()
        m[received.flips] ^= 1
        assert np.array_equal(m, m_k)


@pytest.mark.parametrize("mode", sampling.MODES)
def test_every_sampling_mode_round_trips(mode, thetas) -> None:
    channel = DeltaChannel(codec="rans", sampling=mode, kappa=ALL)
    m_k, m_g = masks(channel, thetas)
    received = channel.decode(channel.encode(*thetas, 0, 3, 2, 10), sampling.thresholds(thetas[1]), 0, 3, 2)
    assert np.array_equal(received.flips, np.flatnonzero(m_k != m_g))


def test_coupling_flips_far_fewer_positions_than_independent_masks(thetas) -> None:
    sizes = {m: len(DeltaChannel("rans", sampling=m, kappa=ALL).encode(*thetas, 0, 3, 2, 10)) for m in sampling.MODES}
    assert sizes["coupled"] < sizes["independent"] / 4


def test_context_saves_bytes_where_probabilities_differ(thetas) -> None:
    plain, context = (len(DeltaChannel(c, kappa=ALL).encode(*thetas, 0, 3, 2, 10)) for c in ("rans", "context"))
    assert context < plain


def test_top_kappa_sends_the_most_informative_flips(thetas) -> None:
    channel = DeltaChannel("rice", kappa=KappaSchedule("constant", 0.5))
    m_k, m_g = masks(channel, thetas)
    flips = np.flatnonzero(m_k != m_g)
    sent = channel.decode(channel.encode(*thetas, 0, 3, 2, 10), sampling.thresholds(thetas[1]), 0, 3, 2).flips
    assert sent.size == -(-flips.size // 2)
    kl = relative_entropy(*thetas)
    assert kl[np.setdiff1d(flips, sent)].max() <= kl[sent].min()


@pytest.mark.parametrize("codec", ["rans", "bfuse8", "context"])
@pytest.mark.parametrize("budget", [200, 300, 600, 5000])
def test_a_byte_budget_holds_and_is_used(codec, budget, thetas) -> None:
    image = "png" if codec == "bfuse8" else "none"
    channel = DeltaChannel(codec, image=image, kappa=ALL, budget_bytes=budget)
    payload = channel.encode(*thetas, 0, 3, 2, 10)
    whole = DeltaChannel(codec, image=image, kappa=ALL).encode(*thetas, 0, 3, 2, 10)
    assert min(0.85 * budget, len(whole)) <= len(payload) <= budget
    channel.decode(payload, sampling.thresholds(thetas[1]), 0, 3, 2)


def test_an_impossible_budget_is_refused(thetas) -> None:
    with pytest.raises(BudgetError, match="raise the budget"):
        DeltaChannel("rans", budget_bytes=3).encode(*thetas, 0, 3, 2, 10)


def test_payloads_of_another_codec_size_or_client_are_refused(thetas) -> None:
    limits = sampling.thresholds(thetas[1])
    payload = DeltaChannel("rans").encode(*thetas, 0, 3, 2, 10)
    with pytest.raises(WireError, match="agreed on rice"):
        DeltaChannel("rice").decode(payload, limits, 0, 3, 2)
    with pytest.raises(MismatchError, match="expected 59999"):
        DeltaChannel("rans").decode(payload, limits[:-1], 0, 3, 2)
    context = DeltaChannel("context").encode(*thetas, 0, 3, 2, 10)
    with pytest.raises(WireError):  # another client's m_g is another context
        DeltaChannel("context").decode(context, limits, 0, 4, 2)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rice'"):
        DeltaChannel("ricee")
    with pytest.raises(ConfigError, match=r"channel\.image"):
        DeltaChannel(image="jpeg")  # type: ignore[arg-type]
