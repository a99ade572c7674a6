"""What single baselines promise beside the common contract."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltamask import simulate
from deltamask.config import load
from deltamask.errors import DataError
from deltamask.methods.decomfl import DeComFL
from deltamask.methods.deepreduce import DeepReduce
from deltamask.methods.deltamask import DeltaMask
from deltamask.methods.fedmask import FedMask
from deltamask.methods.fedpm import FedPM
from deltamask.task import build
from deltamask.wire import open_frame

SMALL = {"clients": 8, "head.epochs": 2, "blocks": "last:2", "rounds": 1}


@pytest.fixture(scope="module")
def task():
    return build(load(values=SMALL))


def test_fedmask_trains_and_sends_thresholded_masks(task) -> None:
    method = FedMask(task)
    state = method.init()
    up = method.client(method.broadcast(state), 0, task.clients[0])
    # One bit a weight, and the codec's header.
    assert task.size <= 8 * len(open_frame(up).payload) <= task.size + 8 * 16
    method.receive(state, 0, up)
    after = method.finish(state).arrays["theta"]
    assert set(np.unique(after)) == {np.float32(0.01), np.float32(0.99)}
    masked = task.masked
    masked.load_theta(np.linspace(0.01, 0.99, task.size, dtype=np.float32))
    with masked.cutting(0.3):
        cut = masked._draw(torch.sigmoid(masked.scores.detach()), 1)
        assert torch.equal(cut, masked._draw(torch.sigmoid(masked.scores.detach()), 2))
    assert torch.equal(cut, masked.frozen * (torch.sigmoid(masked.scores.detach()) >= 0.3))
    drawn = masked._draw(torch.sigmoid(masked.scores.detach()), 1)
    assert not torch.equal(cut, drawn)


def test_fedmask_averages_this_rounds_masks_alone_whatever_the_participation() -> None:
    task = build(load(values={**SMALL, "participation": 0.25}))
    method = FedMask(task)
    state = method.init()
    for _ in range(2):
        down = method.broadcast(state)
        for k in (0, 1):
            method.receive(state, k, method.client(down, k, task.clients[k]))
        state = method.finish(state)
        assert set(np.unique(state.arrays["theta"])) <= {np.float32(x) for x in (0.01, 0.5, 0.99)}


def test_the_prior_gathers_until_every_client_has_had_a_turn_unless_it_is_said() -> None:
    for method, participation, said, rounds in (
        (FedPM, 1.0, 0, 1),
        (FedPM, 0.25, 0, 4),
        (FedPM, 0.25, 1, 1),
        (FedMask, 0.25, 3, 1),
    ):
        values = {**SMALL, "participation": participation, "aggregation.reset_every": said}
        assert method(build(load(values=values))).rule.reset_every == rounds


def test_control_variates_are_for_rounds_with_all_clients_unless_they_are_asked_for() -> None:
    for said, participation, channel, rule in (
        ("auto", 1.0, "delta", "control"),
        ("auto", 0.25, "delta", "bayes"),
        ("control", 0.25, "delta", "control"),
        ("bayes", 1.0, "delta", "bayes"),
        ("auto", 1.0, "mrc", "bayes"),
    ):
        values = {"participation": participation, "aggregation.rule": said, "channel.kind": channel}
        assert DeltaMask(build(load(values={**SMALL, **values}))).rule.rule == rule


def test_fedmask_exports_what_it_shows() -> None:
    """A threshold other than one half is in the mask that is exported."""
    config = load(values={**SMALL, "method": "fedmask", "fedmask.tau": 0.7, "theta0": 0.75})
    result = simulate.run(config)
    theta = result.state.arrays["theta"]
    assert np.array_equal(result.adapter().mask, theta >= np.float32(0.7))


def test_fedpm_codes_its_mask_within_a_hundredth_of_its_entropy(task) -> None:
    method = FedPM(task)
    state = method.init()
    up = method.client(method.broadcast(state), 0, task.clients[0])
    method.receive(state, 0, up)
    share = state.arriving.votes.total.mean()  # of ones in this one mask
    assert 0.5 < share < 0.9
    entropy = -task.size * (share * np.log2(share) + (1 - share) * np.log2(1 - share)) / 8
    assert entropy < len(up) < 1.01 * entropy  # with its frame


def test_deepreduce_reports_what_its_filter_makes_up(task) -> None:
    method = DeepReduce(task)
    state = method.init()
    up = method.client(method.broadcast(state), 0, task.clients[0])
    receipt = method.receive(state, 0, up)
    missed = task.size - receipt.flips
    # Twelve bits a key make one in about 310 others a member.
    assert receipt.wrong_positions == pytest.approx(missed / 310, rel=0.15)
    assert 8 * len(open_frame(up).payload) == pytest.approx(12 * receipt.flips, rel=0.01)


def test_decomfl_walks_the_same_way_on_both_sides(task) -> None:
    method = DeComFL(task)
    state = method.init()
    for _ in range(2):
        down = method.broadcast(state)
        for k in (0, 3):
            method.receive(state, k, method.client(down, k, task.clients[k]))
        state = method.finish(state)
    means = method.broadcast(state)
    fresh = DeComFL(task)  # a client that has seen nothing yet
    assert np.array_equal(fresh._replay(open_frame(means).payload), state.arrays["weights"])
    assert np.array_equal(method._replay(open_frame(means).payload), state.arrays["weights"])
    assert len(open_frame(means).payload) == 4 * 10 * 2


def test_decomfl_measures_slopes(task) -> None:
    """The first slope is the gradient's component along the first direction."""
    method = DeComFL(task)
    data = task.clients[0]
    slopes = method._local_steps(0, 0, data, method.start())
    direction = np.zeros(task.size, np.float32)
    method._add(direction, 0, 0, 0, 1.0)
    assert set(np.unique(direction)) == {-1, 1}
    assert abs(direction.mean()) < 5 / np.sqrt(task.size)
    from torch.nn import functional as F

    from deltamask.sampling import derive, permutation

    order = permutation(derive(method.key(0, 0), "order", 0), len(data))[: method.training.batch]
    index = torch.from_numpy(order)
    flat = task.masked.frozen.clone().requires_grad_()
    with task.masked.using(task.masked.split(flat)):
        features = task.prefix.features(data, index)
    F.cross_entropy(task.head.on(task.device)(features), data.labels[index]).backward()
    assert slopes[0] == pytest.approx(float(flat.grad @ torch.from_numpy(direction)), rel=0.05, abs=0.02)


def test_decomfl_says_what_to_do_about_a_loss_that_is_not_finite(task) -> None:
    method = DeComFL(task)
    with pytest.raises(DataError, match="lower the learning rate"):
        method._local_steps(0, 0, task.clients[0], np.full(task.size, np.inf, np.float32))
