"""Minimal random coding: both sides agree, choices have their exact law, masks tend to samples of Bern(theta_k)."""

from __future__ import annotations

import tracemalloc
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamask import simulate
from deltamask.channels.blocks import CELL, Profile, fixed
from deltamask.channels.mrc import MrcChannel
from deltamask.codecs.base import Reader
from deltamask.config import load
from deltamask.delta import relative_entropy
from deltamask.errors import ConfigError, MalformedError, TruncatedError, WireError
from deltamask.kernels import mrc as loops
from deltamask.registry import members
from deltamask.sampling import derive, thresholds
from tests.oracle import mrc as oracle

FUZZ = settings(deadline=None, max_examples=80, derandomize=True)
LAYOUTS = {
    "fixed": MrcChannel(layout="fixed", block=700),
    "adaptive": MrcChannel(block_bits=5.0),
    "few": MrcChannel(candidates=8, block_bits=2.0),
    "fixed-12": MrcChannel(candidates=4096, layout="fixed", block=900),
}


def pair(size, seed=0, scale=0.25, stretch=500):
    """theta_g as after some rounds and a theta_k near it, which moves more in some stretches than in others."""
    rng = np.random.default_rng(seed)
    theta_g = rng.choice([0.01, 0.2, 0.5, 0.8, 0.9, 0.99], size).astype(np.float32)
    scores = (
        np.log(theta_g / (1 - theta_g))
        + rng.normal(0, scale, size) * np.repeat(rng.exponential(1, -(-size // stretch)), stretch)[:size]
    )
    return (1 / (1 + np.exp(-scores))).astype(np.float32), theta_g


def keys(seed=0, client=3, round=2):
    return derive(seed, "mrc table", client, round), derive(seed, "mrc shift", client, round)


def sent(channel, theta_k, theta_g, client=3, seed=0):
    payload = channel.encode(theta_k, theta_g, seed, client, 2, 10)
    return payload, channel.decode(payload, thresholds(theta_g), seed, client, 2)


def logit(p):
    return np.log(p) - np.log1p(-p)


# --- both sides ---


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 255, 257, 1023, 1025, 3001])
def test_the_mask_is_what_the_wire_format_says(name, size) -> None:
    channel = LAYOUTS[name]
    theta_k, theta_g = pair(size, seed=size)
    payload, received = sent(channel, theta_k, theta_g)
    block = channel.block if channel.layout == "fixed" else None
    bits = channel.candidates.bit_length() - 1
    assert oracle.decode(payload, theta_g.tolist(), *keys(), bits, block) == received.bits.tolist()
    assert len(payload) <= channel.longest(size)
    assert (received.entries, received.wrong_positions) == (0, 0)


def test_the_client_knows_the_mask_that_the_server_gets() -> None:
    """Each block's mask is the best or a good one of the candidates, by their exact weights."""
    theta_k, theta_g = pair(60, scale=1.0)
    channel = MrcChannel(16, "fixed", block=20)
    for client in range(5):
        bits = sent(channel, theta_k, theta_g, client)[1].bits.tolist()
        for start in (0, 20, 40):
            part = slice(start, start + 20)
            masks = [
                [oracle.bit(*keys(client=client), c, i, theta_g[i]) for i in range(start, start + 20)]
                for c in range(16)
            ]
            assert bits[part] in masks
            found = oracle.choice_probabilities(masks, theta_k[part], theta_g[part])[masks.index(bits[part])]
            assert found > 1e-3


@pytest.mark.parametrize("name", LAYOUTS)
def test_threads_and_chunks_do_not_matter(name, monkeypatch) -> None:
    theta_k, theta_g = pair(40_000)
    whole, received = sent(LAYOUTS[name], theta_k, theta_g)
    monkeypatch.setattr("deltamask.threads._SMALLEST", 3000)
    monkeypatch.setattr("deltamask.threads.torch.get_num_threads", lambda: 7)
    parts, again = sent(LAYOUTS[name], theta_k, theta_g)
    assert whole == parts
    assert np.array_equal(received.bits, again.bits)


def test_bits_depend_on_key_candidate_and_position_alone() -> None:
    _, theta_g = pair(5000)
    limits = thresholds(theta_g)

    def drawn(channel, indices):
        return channel.decode(bytes(indices), limits, 0, 3, 2).bits

    short, long = MrcChannel(layout="fixed", block=1), MrcChannel(layout="fixed", block=5000)
    for c in (0, 5, 255):
        assert np.array_equal(drawn(short, [c] * 5000), drawn(long, [c]))
    # The first candidates of many are those of few.
    more = MrcChannel(4096, "fixed", block=2500)
    assert np.array_equal(drawn(more, [7, 0x70, 0]), drawn(long, [7]))
    assert not np.array_equal(drawn(long, [7]), drawn(long, [8]))


def test_the_streams_follow_their_definition() -> None:
    key = derive(1, "x")
    for start, size in ((0, 9), (4, 4), (2**33, 7)):
        out = np.empty(size, np.uint16)
        loops.words(np.uint64(key), start, out)
        assert out.tolist() == [oracle.word(key, start + i) for i in range(size)]


def test_same_keys_same_bytes_other_keys_other_bytes() -> None:
    theta_k, theta_g = pair(20_000)
    channel = MrcChannel()
    first = channel.encode(theta_k, theta_g, 0, 3, 2, 10)
    assert first == channel.encode(theta_k, theta_g, 0, 3, 2, 10)
    others = {channel.encode(theta_k, theta_g, *where, 10) for where in ((1, 3, 2), (0, 4, 2), (0, 3, 3))}
    assert len(others | {first}) == 4


# --- the law of the sample ---


def test_candidates_are_samples_of_the_rounded_theta_g() -> None:
    theta_g = np.array([0.0, 1e-6, 0.01, 0.3, 0.8, 0.99, 1.0], np.float32)
    size, channel = 40_000, MrcChannel(2, "fixed", block=1 << 20)
    for p in theta_g:
        limits = thresholds(np.full(size, p, np.float32))
        for c in (0, 1):
            mean = channel.decode(bytes([c]), limits, 0, 3, 2).bits.mean()
            q = oracle.limit(p) / 65536
            assert abs(mean - q) <= 5 * np.sqrt(q * (1 - q) / size) + 1 / size


def test_candidates_are_independent_of_each_other_and_of_their_neighbours() -> None:
    clients, size = 200, loops.COLUMNS
    limits = thresholds(np.full(size, 0.5, np.float32))
    channel = MrcChannel(layout="fixed", block=size)
    first, second, last = (
        np.array([channel.decode(bytes([c]), limits, 0, k, 2).bits for k in range(clients)]) - 0.5
        for c in (0, 1, 255)
    )
    bound = 5 / 4 / np.sqrt(clients * size)
    for a, b in ((first, second), (first, last), (first[1:], first[:-1]), (first[1:], last[:-1])):
        assert abs((a * b).mean()) < bound
    for lag in (1, 2, 4, 64):
        assert abs((first[:, lag:] * first[:, :-lag]).mean()) < bound * 1.05


def test_positions_that_share_a_column_are_independent_in_pairs() -> None:
    """But two candidates go together in all positions of a column, by as much as its two words are close."""
    size = 200_000
    limits = thresholds(np.full(size, 0.5, np.float32))
    channel = MrcChannel(layout="fixed", block=size)
    a, b = (channel.decode(bytes([c]), limits, 0, 3, 2).bits - 0.5 for c in (0, 1))
    for lag in (loops.COLUMNS, 4 * loops.COLUMNS):
        assert abs((a[lag:] * a[:-lag]).mean()) < 5 / 4 / np.sqrt(size - lag)
    # The covariance of a column is uniform within 1/4.
    assert abs((a * b).mean()) < 5 / 4 / np.sqrt(3 * loops.COLUMNS)


def test_the_choice_has_exactly_the_law_of_the_weights() -> None:
    """One set of candidates, thousands of private choices: chi-square against the oracle's probabilities."""
    theta_k, theta_g = pair(12, seed=5, scale=1.0)
    m, draws = 16, 40_000
    table = np.empty(m * loops.COLUMNS, np.uint16)
    table_key, shift_key = keys()
    loops.words(np.uint64(table_key), 0, table)
    masks = [[oracle.bit(table_key, shift_key, c, i, theta_g[i]) for i in range(12)] for c in range(m)]
    expected = np.array(oracle.choice_probabilities(masks, theta_k.tolist(), theta_g.tolist()))
    found = np.zeros(m)
    out = np.empty(1, np.uint16)
    columns = np.ascontiguousarray(table.reshape(m, -1).T)
    p = np.maximum(np.arange(65536), 1) / 65536
    logits = np.rint(logit(np.minimum(p, 65535 / 65536)) * loops.UNIT).astype(np.int16)
    blocks = fixed(12, 12)
    for n in range(draws):
        choice_key = np.uint64(derive(n, "private"))
        where = (blocks.starts, blocks.coded, 0, 1, columns, np.uint64(shift_key), choice_key)
        loops.choose(theta_k, theta_g, *where, logits, 1.0, 1.0, out)
        found[out[0]] += 1
    seen = expected * draws >= 5
    assert seen.sum() > 8
    chi2 = ((found - expected * draws)[seen] ** 2 / (expected * draws)[seen]).sum()
    assert chi2 < seen.sum() + 5 * np.sqrt(2 * seen.sum())
    assert expected.max() < 0.5  # a law worth testing
    assert abs(found / draws - 1 / m).max() > 0.05  # and not the uniform one


def leaning(candidates, straight, clients=100, size=1440, block=24):
    """How much of the way from theta_g to theta_k the mean mask goes, and its standard error."""
    theta_g = np.full(size, 0.8, np.float32)
    theta_k = np.where(np.arange(size) % 2, 0.9, 0.6).astype(np.float32)
    channel = MrcChannel(candidates, "fixed", block=block, straight=straight)
    mean = np.mean([sent(channel, theta_k, theta_g, client)[1].bits for client in range(clients)], axis=0)
    move = (theta_k - theta_g).astype(np.float64)
    # The best linear estimate of one factor for all positions.
    factor = float(((mean - theta_g) * move).sum() / (move**2).sum())
    error = float(np.sqrt((theta_k * (1 - theta_k) * move**2).sum() / clients) / (move**2).sum())
    return factor, error


def test_with_more_candidates_the_mean_mask_tends_to_theta_k() -> None:
    """2.5 bits of divergence in a block. With one candidate the factor would be 0, without bias 1."""
    found = {m: leaning(m, straight=False)[0] for m in (2, 8, 32, 128, 1024, 4096)}
    error = leaning(2, straight=False)[1]
    assert error < 0.008
    assert list(found.values()) == sorted(found.values())
    expected = {2: 0.23, 8: 0.57, 32: 0.77, 128: 0.90, 1024: 0.98, 4096: 0.995}
    for m, factor in expected.items():
        assert abs(found[m] - factor) < 4 * error, m


def test_a_straight_choice_does_not_lean() -> None:
    """It goes all the way as soon as candidates go that far at all, and no further."""
    found = {m: leaning(m, straight=True)[0] for m in (32, 128, 1024)}
    error = leaning(32, straight=True)[1]
    assert 0.9 < found[32] < 1
    assert abs(found[128] - 1) < 4 * error
    assert abs(found[1024] - 1) < 4 * error


def test_a_straight_choice_has_the_mean_log_ratio_of_the_client() -> None:
    rng = np.random.default_rng(0)
    totals = np.rint(rng.normal(0, 2, 256) * loops.UNIT).astype(np.int64)
    weights = np.empty(256)
    for goal in (-3.0, -1.0, 0.5, 2.0, 4.0):
        total = loops._weigh(totals, goal * loops.UNIT, 0.0, 8.0, weights)
        assert total == pytest.approx(weights.sum())
        mean = (weights * totals).sum() / total / loops.UNIT
        # A power of 0 is the mean of all candidates, which is the least that there is.
        assert abs(mean - max(goal, totals.mean() / loops.UNIT)) < 0.04
    loops._weigh(totals, 100.0 * loops.UNIT, 0.0, 8.0, weights)
    assert weights.argmax() == totals.argmax()
    loops._weigh(totals, 0.5 * loops.UNIT, 1.0, 1.0, weights)
    assert np.allclose(weights, np.exp((totals - totals.max()) / loops.UNIT))
    loops._weigh(np.zeros(4, np.int64), 0.0, 0.0, 8.0, weights[:4])
    assert weights[:4].tolist() == [1.0] * 4


def test_the_mask_is_a_sample_not_a_mean() -> None:
    """Its variance is that of Bern(theta_k), and the mean over clients errs by what that makes of 200 of them."""
    theta_k, theta_g = pair(4000, scale=0.2)
    for channel, most in ((MrcChannel(block_bits=3), 1.15), (MrcChannel(4096, block_bits=3), 1.06)):
        masks = np.array([sent(channel, theta_k, theta_g, client)[1].bits for client in range(200)], np.float64)
        variance = (theta_k * (1 - theta_k)).astype(np.float64)
        assert abs(masks.var(0, ddof=1).mean() / variance.mean() - 1) < 0.02
        z = (masks.mean(0) - theta_k) / np.sqrt(variance / 200)
        assert abs(z.mean()) < 0.08  # 5 standard errors
        assert 0.9 < (z**2).mean() < most


# --- what it costs ---


def test_nothing_learned_costs_nothing_and_decodes_to_theta_g() -> None:
    _, theta_g = pair(300_000)
    payload, received = sent(MrcChannel(), theta_g, theta_g)
    assert len(payload) <= 4
    assert received.blocks == 0
    for p in np.unique(theta_g):
        there = theta_g == p
        assert abs(received.bits[there].mean() - p) < 5 * np.sqrt(p * (1 - p) / there.sum())


@pytest.mark.parametrize("target", [3.0, 5.0, 7.0])
def test_the_rate_is_the_divergence_times_a_known_factor(target) -> None:
    theta_k, theta_g = pair(400_000, scale=0.08)
    divergence = relative_entropy(theta_k, theta_g).sum() / log(2)
    payload, received = sent(MrcChannel(block_bits=target), theta_k, theta_g)
    assert 0.95 < received.blocks * target / divergence < 1.2
    assert 8 * len(payload) <= 1.25 * divergence * 8 / target
    assert len(payload) - received.blocks <= 0.12 * len(payload)  # what the profile costs


def test_an_adaptive_layout_evens_out_what_blocks_hold() -> None:
    theta_k, theta_g = pair(200_000, scale=0.4, stretch=20_000)
    bits = relative_entropy(theta_k, theta_g) / log(2)
    profile = Profile.of(np.add.reduceat(bits, np.arange(0, bits.size, CELL)), bits.size, 5.0, 8)
    blocks = profile.blocks(bits.size)
    held = np.add.reduceat(bits, blocks.starts[:-1])
    even = fixed(bits.size, bits.size // profile.total)
    assert held.max() < 0.6 * np.add.reduceat(bits, even.starts[:-1]).max()
    assert blocks.starts[0] == 0
    assert blocks.starts[-1] == bits.size
    assert (np.diff(blocks.starts) > 0).all()


# --- numbers at the ends ---


@pytest.mark.parametrize("name", LAYOUTS)
def test_extreme_probabilities_stay_finite(name) -> None:
    values = np.array([0, 1e-30, 2**-17, 0.01, 0.5, 0.99, 1 - 2**-17, 1], np.float32)
    theta_k, theta_g = (x.reshape(-1).astype(np.float32) for x in np.meshgrid(values, values))
    theta_k, theta_g = np.tile(theta_k, 40), np.tile(theta_g, 40)
    payload, received = sent(LAYOUTS[name], theta_k, theta_g)
    assert len(payload) <= LAYOUTS[name].longest(theta_g.size)
    assert set(received.bits.tolist()) <= {0, 1}
    # What is certain at both sides stays so, but for one bit in 65,536.
    assert received.bits[(theta_k == 0) & (theta_g == 0)].sum() <= 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_no_probability_is_refused(name) -> None:
    good = np.full(3000, 0.5, np.float32)
    for bad in (np.nan, -0.1, 1.5, np.inf):
        wrong = good.copy()
        wrong[17] = bad
        for thetas in ((wrong, good), (good, wrong)):
            with pytest.raises(ConfigError, match="of 6000 probabilities"):
                LAYOUTS[name].encode(*thetas, 0, 3, 2, 10)
    with pytest.raises(ConfigError, match="theta_g has 3000"):
        LAYOUTS[name].encode(good[:-1], good, 0, 3, 2, 10)


def test_settings_without_a_meaning_are_refused() -> None:
    for values, said in (
        ({"candidates": 100}, "power of two from 2 to 4096"),
        ({"candidates": 8192}, "power of two"),
        ({"layout": "even"}, "expected 'adaptive' or 'fixed'"),
        ({"block": 0}, "more than 0"),
        ({"block_bits": 0.0}, "more than 0"),
        ({"block_bits": float("nan")}, "more than 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            MrcChannel(**values)
    with pytest.raises(ConfigError, match=r"raise channel\.block_bits"):
        MrcChannel.of(load(overrides=["channel.kind=mrc", "channel.budget_bytes=100"]).channel)


# --- hostile bytes ---

SIZE = 20_000
THETA_K, THETA_G = pair(SIZE)
LIMITS = thresholds(THETA_G)


def hostile(channel, data) -> None:
    """Either a mask of the right size, or a `WireError`."""
    try:
        received = channel.decode(data, LIMITS, 0, 3, 2)
    except WireError as error:
        assert str(error)  # noqa: PT017
    else:
        assert received.bits.shape == (SIZE,)
        assert received.bits.max() <= 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_truncation_and_extension_is_refused(name) -> None:
    payload, _ = sent(LAYOUTS[name], THETA_K, THETA_G)
    for length in range(len(payload)):
        with pytest.raises(WireError):
            LAYOUTS[name].decode(payload[:length], LIMITS, 0, 3, 2)
    with pytest.raises(MalformedError, match="1 bytes too many"):
        LAYOUTS[name].decode(payload + b"\0", LIMITS, 0, 3, 2)


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.binary(max_size=400))
@FUZZ
def test_random_bytes(name, data) -> None:
    hostile(LAYOUTS[name], data)
    hostile(LAYOUTS[name], bytes([8 + len(data) % 33, len(data) % 5]) + data)


@pytest.mark.parametrize("name", LAYOUTS)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
@FUZZ
def test_damaged_bytes(name, at, byte) -> None:
    payload = bytearray(sent(LAYOUTS[name], THETA_K, THETA_G)[0])
    payload[int(at * min(len(payload), 60))] ^= byte
    hostile(LAYOUTS[name], bytes(payload))


def test_padding_is_zero() -> None:
    channel = LAYOUTS["fixed-12"]
    limits = LIMITS[:2700]
    with pytest.raises(MalformedError, match="behind the last index"):
        channel.decode(bytes(4) + b"\x10", limits, 0, 3, 2)
    with pytest.raises(MalformedError, match="behind the last count"):
        MrcChannel().decode(bytes([14, 0, 0b111]), LIMITS, 0, 3, 2)
    assert MrcChannel().decode(bytes([14, 0, 0b11]), LIMITS, 0, 3, 2).blocks == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes([7, 0, 255]), "segments of 2\\*\\*7"),
        (bytes([41, 0, 255]), "segments of 2\\*\\*41"),
        (bytes([20, 41, 255]), "parameter 41"),
        (bytes([8, 0]) + b"\xff", "counts of 79 segments"),
        (Profile(15, np.array([-1])).to_bytes(), "less than none"),
        (Profile(14, np.array([2048, -1])).to_bytes(), "less than none"),
        (Profile(14, np.array([2049, 0])).to_bytes(), "too many blocks"),
        (Profile(14, np.array([2048, 453])).to_bytes(), "too many blocks"),  # of 3,616 weights
        (bytes([40, 40]) + ((2**40 - 1) << 1 | 1).to_bytes(6, "little"), "beyond the last"),
        (bytes([8, 0]) + bytes(100), "before the last entry"),
    ],
)
def test_counts_that_cannot_be(data, said) -> None:
    with pytest.raises(WireError, match=said):
        MrcChannel().decode(data, LIMITS, 0, 3, 2)


def test_announced_blocks_take_no_memory_before_their_indices_are_there() -> None:
    size = 1 << 24
    counts = np.full(size >> 8, 32)  # half a million blocks
    head = Profile(8, counts).to_bytes()
    limits = np.zeros(size, np.uint32)
    tracemalloc.start()
    try:
        with pytest.raises(TruncatedError):
            MrcChannel().decode(head, limits, 0, 3, 2)
        assert tracemalloc.get_traced_memory()[1] < 8e6  # the counts of all segments, some times over
    finally:
        tracemalloc.stop()


@given(
    counts=st.lists(st.integers(0, 32), min_size=1, max_size=40),
    last=st.integers(1, 256),
    tail=st.binary(max_size=5),
)
@FUZZ
def test_profiles_round_trip(counts, last, tail) -> None:
    size = 256 * (len(counts) - 1) + last
    counts[-1] = min(counts[-1], max(last // 8, 1))
    profile = Profile(8, np.array(counts))
    reader = Reader(profile.to_bytes() + tail, "x")
    found = Profile.read(reader, size, 8)
    assert (found.shift, found.counts.tolist()) == (8, counts)
    assert reader.rest() == tail
    blocks = found.blocks(size)
    assert blocks.starts[0] == 0
    assert blocks.starts[-1] == size
    assert (np.diff(blocks.starts) > 0).all()
    assert blocks.coded.sum() == found.total


def test_memory_does_not_grow_with_the_candidates() -> None:
    theta_k, theta_g = pair(1 << 20, scale=0.05)
    limits = thresholds(theta_g)
    peaks = []
    for candidates in (256, 1024):
        channel = MrcChannel(candidates)
        payload = channel.encode(theta_k, theta_g, 0, 3, 2, 10)
        tracemalloc.start()
        channel.encode(theta_k, theta_g, 0, 3, 2, 10)
        encoding = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        channel.decode(payload, limits, 0, 3, 2)
        peaks.append((encoding, tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
        table = candidates * loops.COLUMNS * 2
        assert encoding < 3 * table + 1e6
        assert peaks[-1][1] < theta_g.size + 2 * table + 1e6


# --- in a method ---

SMALL = {"rounds": 2, "clients": 4, "participation": 0.5, "head.epochs": 2, "blocks": "last:1"}


def test_channels_are_found_by_their_names() -> None:
    assert set(members("deltamask.channels", "CHANNEL")) == {"delta", "mrc"}


@pytest.mark.parametrize("layout", ["adaptive", "fixed"])
def test_deltamask_runs_through_it_and_repeats(layout) -> None:
    config = load(values={**SMALL, "channel.kind": "mrc", "channel.layout": layout})
    a, b = simulate.run(config), simulate.run(config)
    assert np.array_equal(a.state.arrays["theta"], b.state.arrays["theta"])
    for record in a.record["history"][1:]:
        assert 0 < record["uplink_bpp"] < 0.5
        assert (record["flips"], record["wrong_positions"]) == (0, 0)
    # Two rounds of two masks: control variates, the default with `delta`, need a mask that the server knows.
    assert set(np.unique(a.state.arrays["theta"])) == set(np.float32([0.01, 0.25, 0.5, 0.75, 0.99]))


def test_klms_is_the_fixed_layout_with_its_own_settings() -> None:
    values = {**SMALL, "channel.block": 512, "channel.candidates": 16}
    klms = simulate.run(load(values={**values, "method": "klms"}))
    same = simulate.run(
        load(values={**values, "channel.kind": "mrc", "channel.layout": "fixed", "channel.straight": False})
    )
    assert np.array_equal(klms.state.arrays["theta"], same.state.arrays["theta"])
    blocks = -(-klms.task.size // 512)
    for record in klms.record["history"][1:]:
        assert 0 <= record["uplink_bytes"] / 2 - blocks / 2 < 45  # half a byte for each block, and the frame
