"""Codebooks: k-means of one dimension, labels at their entropy, and FedCode's two kinds of rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from deltamask.codecs.base import Reader
from deltamask.config import load
from deltamask.errors import WireError
from deltamask.methods.fedcode import FedCode
from deltamask.task import build
from deltamask.updates.codebook import cluster, labels_from_bytes, labels_to_bytes, nearest, read_codebook


def weights(size: int, seed: int = 0) -> np.ndarray:
    return (0.05 * np.random.default_rng(seed).standard_t(4, size)).astype(np.float32)


def test_clusters_are_as_tight_as_those_of_scikit_learn() -> None:
    w = weights(4000)
    centres = cluster(w, 16)
    ours = float(((w - centres[nearest(w, centres)]) ** 2).sum())
    theirs = KMeans(16, n_init=3, random_state=0).fit(w[:, None].astype(float)).inertia_
    assert ours < 1.1 * theirs
    assert (np.diff(centres) > 0).all()


def test_fewer_distinct_numbers_than_centres() -> None:
    w = np.array([1, 1, 2, 2, 2, 5], np.float32)
    centres = cluster(w, 64)
    assert np.array_equal(centres[nearest(w, centres)], w)
    assert cluster(np.zeros(9, np.float32), 64).tolist() == [0]


@pytest.mark.parametrize("count", [1, 2, 3, 64, 256])
def test_labels_come_back_at_their_entropy(count) -> None:
    rng = np.random.default_rng(count)
    labels = np.minimum(rng.geometric(min(0.9, 3 / count), 50_000) - 1, count - 1).astype(np.uint8)
    data = labels_to_bytes(labels, count)
    reader = Reader(data, "labels")
    assert np.array_equal(labels_from_bytes(reader, labels.size, count), labels)
    reader.end()
    shares = np.bincount(labels) / labels.size
    shares = shares[shares > 0]
    entropy = -(shares * np.log2(shares)).sum() * labels.size / 8
    # Headers: a plane has up to 128 classes, each with a count and a state.
    assert len(data) < 1.01 * entropy + 12 * count + 100


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_hostile_labels_and_codebooks(data) -> None:
    good = labels_to_bytes(np.arange(300, dtype=np.uint16).astype(np.uint8) % 50, 50)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(
        st.sampled_from([good[:at], good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :], b"\xff" * at])
    )
    try:
        reader = Reader(bad, "labels")
        found = labels_from_bytes(reader, 300, 50)
    except WireError:
        return
    assert found.shape == (300,)
    assert found.max() < 50


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\2" + np.array([1, 1], "<f4").tobytes(), b"\1" + np.array([np.nan], "<f4").tobytes(), b"\x7f"],
)
def test_codebooks_that_no_client_writes(body) -> None:
    with pytest.raises(WireError):
        read_codebook(Reader(body, "codebook"), 64)


def test_rounds_of_all_weights_and_rounds_of_codebooks() -> None:
    task = build(load(values={"clients": 4, "head.epochs": 2, "blocks": "last:2", "rounds": 6}))
    method = FedCode(task)
    state = method.init()
    ups, downs = [], []
    for _ in range(6):
        down = method.broadcast(state)
        up = method.client(down, 1, task.clients[1])
        method.receive(state, 1, up)
        state = method.finish(state)
        ups.append(len(up))
        downs.append(len(down))
    whole = 3 * task.size / 8  # an entropy of some bits a weight
    assert [n > whole for n in ups] == [True, False, True, False, True, False]
    assert [n > whole for n in downs] == [True, False, False, False, False, True]
    assert max(n for n in ups + downs if n <= whole) < 64 * 4 + 60
    assert np.unique(state.arrays["weights"]).size <= 64  # the last round was one of codebooks
