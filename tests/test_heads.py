"""FiT from federated statistics beside NumPy on all images, hostile bytes, and the draw of a random head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltamask import heads
from deltamask.codecs.base import varint
from deltamask.config import load
from deltamask.datasets import partition
from deltamask.errors import ConfigError, DataError, MalformedError, WireError
from deltamask.heads import fit, kaiming
from deltamask.heads.discriminant import GRID, Discriminant
from deltamask.heads.statistics import LARGEST, Statistics
from deltamask.simulate import run
from deltamask.training import Images
from deltamask.wire import SERVER, Frame, open_frame, seal

KEPT = "d2dc56bf009078bfad8fd0be18b0a0bf4cfa953f15637dbf"
FUZZ = settings(
    deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def tasks(digits_task):
    """The same images, dealt out in two ways."""
    parts = [[getattr(c, name) for c in digits_task.clients] for name in ("images", "labels", "activations")]
    images, labels, activations = (torch.cat(part) for part in parts)
    owned = partition.split(labels.numpy(), 10, "dirichlet:0.1", seed=0)
    clients = [Images(images[i], labels[i], activations[i]) for i in owned]
    return {"iid": digits_task, "dirichlet:0.1": replace(digits_task, clients=clients)}


@pytest.fixture(scope="module")
def parties(tasks):
    """Clients, a server that has their statistics, the messages so far, all features and all labels."""
    task = tasks["dirichlet:0.1"]
    clients = [fit.Client(task, k, data) for k, data in enumerate(task.clients)]
    server = fit.Server(task)
    ups = [client.statistics() for client in clients]
    for k, up in enumerate(ups):
        server.receive_statistics(k, up)
    x, y = np.concatenate([c.features for c in clients]), np.concatenate([c.labels for c in clients])
    return task, clients, server, ups, x, y


def lda(x: np.ndarray, y: np.ndarray, e1: float, e2: float) -> tuple[np.ndarray, np.ndarray]:
    """The textbook's, in float64: solves with the covariance as it is, and does not centre."""
    x = x.astype(np.float64)
    means = np.stack([x[y == c].mean(0) for c in range(10)])
    covariance = (x - means[y]).T @ (x - means[y]) / len(x)
    sigma = e1 * covariance + e2 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    weight = np.linalg.solve(sigma, means.T).T
    return weight, -0.5 * (weight * means).sum(1)


class TestStatistics:
    def test_those_of_the_clients_add_up(self, parties) -> None:
        _, _, server, _, x, y = parties
        whole = Statistics.of(x, y, 10)
        assert np.array_equal(server.total.counts, whole.counts)
        # Each client's sums were rounded to 24 bits.
        for got, want in ((server.total.sums, whole.sums), (server.total.square, x.T.astype(float) @ x)):
            assert np.abs(got - want).max() < 2**-24 * np.abs(want).max() * 10

    def test_others_are_all_but_one(self, parties) -> None:
        _, clients, _, _, x, y = parties
        one = Statistics.of(clients[3].features, clients[3].labels, 10)
        rest = Statistics.empty(10, x.shape[1])
        for k in (0, 1, 2, 4, 5, 6, 7, 8, 9):
            rest.add(Statistics.of(clients[k].features, clients[k].labels, 10))
        left = Statistics.of(x, y, 10).without(one)
        assert np.array_equal(left.counts, rest.counts)
        assert np.allclose(left.sums, rest.sums, atol=1e-9)
        assert np.allclose(left.moment, rest.moment, atol=1e-9)
        with pytest.raises(MalformedError, match="the server has left it out"):
            one.without(rest)

    def test_length_is_known_beforehand(self, parties) -> None:
        task, clients, _, ups, _, _ = parties
        c, d = task.classes, task.features
        for client, up in zip(clients, ups, strict=True):
            counts = np.bincount(client.labels, minlength=c)
            head = b"".join(varint(int(n)) for n in (c, d, *counts))
            assert len(open_frame(up).payload) == len(head) + 4 * c * d + 2 * d * (d + 1)
            assert len(open_frame(up).payload) <= Statistics.longest(c, d)

    def test_features_that_are_no_numbers(self) -> None:
        for bad in (np.nan, np.inf, 1e20):
            with pytest.raises(DataError, match="check the backbone"):
                Statistics.of(np.array([[1, bad]], np.float32), np.array([0]), 2)


class TestDiscriminant:
    @pytest.mark.parametrize("e", [(1.0, 0.25), (4.0, 1 / 64), (0.5, 8.0)])
    def test_equals_the_centralised_one(self, parties, e) -> None:
        """Logits up to what all classes share, within 1e-4 of their spread: float32 on the wire and in the head."""
        _, _, server, _, x, y = parties
        head = Discriminant.of(server.total).head(*e)
        weight, bias = lda(x, y, *e)
        got, want = x @ head.weight.T.astype(float) + head.bias, x @ weight.T + bias
        got, want = (z - z.mean(1, keepdims=True) for z in (got, want))
        assert np.abs(got - want).max() < 1e-4 * want.std()
        assert (got.argmax(1) == want.argmax(1)).mean() > 0.999

    def test_losses_are_those_of_the_head(self, parties) -> None:
        _, clients, server, _, _, _ = parties
        x, y = clients[0].features, clients[0].labels
        model = Discriminant.of(server.total)
        losses = model.losses(x, y)
        for n in (0, 44, len(GRID) - 1):
            logits = model.head(*GRID[n]).on(torch.device("cpu"))(torch.from_numpy(x))
            expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y)).item()
            assert losses[n] == pytest.approx(expected, rel=1e-3, abs=1e-6)

    def test_classes_without_images_never_win(self) -> None:
        rng = np.random.default_rng(0)
        y = np.repeat([0, 2], 50)
        x = (rng.normal(size=(100, 5)) + y[:, None]).astype(np.float32)
        head = Discriminant.of(Statistics.of(x, y, 4)).head(1, 0.1)
        assert set((x @ head.weight.T + head.bias).argmax(1)) == {0, 2}
        assert np.isfinite(head.bias).all()

    def test_one_image_a_class_is_the_nearest_mean(self) -> None:
        x = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
        sent = Statistics.of(x, np.arange(6), 6).to_bytes()
        head = Discriminant.of(Statistics.from_bytes(sent, 6, 8)).head(1, 0.1)
        assert (x @ head.weight.T + head.bias).argmax(1).tolist() == [0, 1, 2, 3, 4, 5]

    def test_what_makes_none(self) -> None:
        x, y = np.ones((4, 3), np.float32), np.array([0, 0, 1, 1])
        with pytest.raises(DataError, match="are alike"):
            Discriminant.of(Statistics.of(x, y, 2))
        with pytest.raises(DataError, match="images of 1 of 2 classes; a discriminant needs two"):
            Discriminant.of(Statistics.of(x, 0 * y, 2))

    def test_an_invented_covariance_breaks_nothing(self, parties) -> None:
        _, _, server, _, _, _ = parties
        rng = np.random.default_rng(2)
        false = rng.normal(size=server.total.moment.size) * np.abs(server.total.moment).max()
        model = Discriminant.of(replace(server.total, moment=server.total.moment + np.abs(false)))
        assert (model.values >= 0).all()
        assert np.isfinite(model.head(1, 1).weight).all()


class TestFederation:
    def test_the_least_loss_is_chosen_and_bytes_are_those_of_the_frames(self, parties) -> None:
        task, clients, _, ups, _, y = parties
        server = fit.Server(task)
        for k, up in enumerate(ups):
            server.receive_statistics(k, up)
        pooled = server.pooled()
        losses = [client.losses(pooled) for client in clients]
        for k, up in enumerate(losses):
            server.receive_losses(k, up)
        final = server.shrinkage()
        made = fit.HEAD.make(task)
        assert made.uplink_bytes == sum(map(len, ups)) + sum(map(len, losses))
        assert made.downlink_bytes == 10 * (len(pooled) + len(final))
        assert len(open_frame(final).payload) == 8 < len(heads.to_bytes(made.head))
        assert heads.to_bytes(clients[4].head(pooled, final)) == heads.to_bytes(made.head)
        values = np.frombuffer(open_frame(final).payload, "<f4")
        assert tuple(values) == GRID[int(server.losses.argmin())]
        # Images of a class that one client alone has are not judged.
        owners = np.array([sum((c.labels == k).any() for c in clients) for k in range(10)])
        assert server.judged == (owners[y] > 1).sum()

    def test_nobody_is_judged_by_a_classifier_that_has_seen_it(self, parties) -> None:
        """A client's losses equal those on the other clients' images alone, computed without any subtraction."""
        task, clients, server, _, _, _ = parties
        rest = Statistics.empty(10, task.features)
        for k in (0, 1, 2, 3, 5, 6, 7, 8, 9):
            rest.add(Statistics.of(clients[k].features, clients[k].labels, 10))
        known = (rest.counts > 0)[clients[4].labels]
        expected = Discriminant.of(rest).losses(clients[4].features[known], clients[4].labels[known])
        got = np.frombuffer(open_frame(clients[4].losses(server.pooled())).payload[-4 * len(GRID) :], "<f4")
        assert np.allclose(got, expected, rtol=1e-2)  # the rounding of large sums, seen from few images

    def test_one_client_alone_has_a_fixed_rule(self, tasks) -> None:
        task = tasks["iid"]
        data = task.clients[0]
        alone = replace(task, clients=[data])
        made = fit.HEAD.make(alone)
        n, d = len(data), task.features
        own = Statistics.from_bytes(open_frame(fit.Client(alone, 0, data).statistics()).payload, 10, d)
        values = np.array([n / (n + d), d / (n + d)], np.float32)
        expected = Discriminant.of(own).head(float(values[0]), float(values[1]))
        assert heads.to_bytes(made.head) == heads.to_bytes(expected)
        one = data.labels == 3
        threes = Images(data.images[one], data.labels[one], data.activations[one])
        with pytest.raises(DataError, match="a discriminant needs two"):
            fit.HEAD.make(replace(task, clients=[threes]))

    @pytest.mark.parametrize("how", ["iid", "dirichlet:0.1"])
    def test_fit_beats_a_random_head(self, tasks, how) -> None:
        task = tasks[how]
        with task.masked.showing("plain"):
            known, random = (task.accuracy(kind.HEAD.make(task).head) for kind in (fit, kaiming))
        assert known > random + 0.5
        assert known > 0.85


@pytest.fixture(scope="module")
def messages(parties):
    """Each message with the call that opens it."""
    task, clients, server, ups, _, _ = parties
    pooled = server.pooled()
    answer = clients[2].losses(pooled)
    other = fit.Server(task)
    other.receive_statistics(2, ups[2])
    final = task.seal("shrinkage", SERVER, 0, np.array([1, 2], "<f4").tobytes())
    fresh = fit.Server(task)
    return {
        "statistics": (ups[2], lambda data: fresh.receive_statistics(2, data), fresh),
        "pooled": (pooled, clients[2].losses, fresh),
        "losses": (answer, lambda data: other.receive_losses(2, data), other),
        "shrinkage": (final, lambda data: clients[2].head(pooled, data), fresh),
    }


class TestHostileBytes:
    @pytest.mark.parametrize("name", ["statistics", "pooled", "losses", "shrinkage"])
    @given(data=st.data())
    @FUZZ
    def test_damaged_frames(self, name, data, messages) -> None:
        good, receive, server = messages[name]
        how = data.draw(st.sampled_from(["cut", "flip", "random", "longer"]))
        if how == "cut":
            bad = good[: data.draw(st.integers(0, len(good) - 1))]
        elif how == "flip":
            at = data.draw(st.integers(0, 8 * len(good) - 1))
            bad = good[: at // 8] + bytes([good[at // 8] ^ 1 << at % 8]) + good[at // 8 + 1 :]
        else:
            noise = data.draw(st.binary(min_size=1, max_size=200))
            bad = noise if how == "random" else good + noise
        before = server.total.moment.sum(), server.judged, server.losses.sum()
        with pytest.raises(WireError):
            receive(bad)
        assert before == (server.total.moment.sum(), server.judged, server.losses.sum())

    @pytest.mark.parametrize("name", ["statistics", "pooled", "losses", "shrinkage"])
    @given(data=st.data())
    @FUZZ
    def test_sound_frames_around_something_else(self, name, data, messages) -> None:
        good, receive, _ = messages[name]
        frame = open_frame(good)
        change = data.draw(
            st.sampled_from(
                [
                    {"round": 1},
                    {"model": frame.model ^ 1},
                    {"seed": frame.seed ^ 1},
                    {"size": frame.size + 1},
                    {"client": 7},
                    {"kind": "head"},
                    {"payload": frame.payload + b"\0"},
                    {"payload": bytes(10**6)},
                ]
            )
        )
        change = data.draw(st.sampled_from([change, {"payload": data.draw(st.binary(max_size=600))}]))
        if name == "shrinkage" and len(change.get("payload", b"")) == 8:
            return  # eight bytes may well be two numbers
        with pytest.raises(WireError):
            receive(seal(Frame(**{**vars(frame), **change})))

    @given(values=st.lists(st.floats(width=32), min_size=2, max_size=2))
    @FUZZ
    def test_any_two_numbers_give_a_head_or_a_clear_error(self, values, parties, messages) -> None:
        task, clients, _, _, _, _ = parties
        pooled = messages["pooled"][0]
        data = task.seal("shrinkage", SERVER, 0, np.array(values, "<f4").tobytes())
        try:
            head = clients[0].head(pooled, data)
        except (WireError, DataError):
            assert not all(1e-20 < v < 1e20 for v in values)
        else:
            assert np.isfinite(head.weight).all()

    @pytest.mark.parametrize(
        ("at", "number", "said"),
        [
            (0, np.nan, "not finite"),
            (1, np.inf, "not finite"),
            (2, 2 * LARGEST, "beyond"),
            (4, 1, "without images"),
            (6, -1, "negative"),
            (8, -1, "negative"),
        ],
    )
    def test_numbers_that_no_client_has(self, at, number, said) -> None:
        """Three classes, the last one empty, of two features: six sums, three numbers of the triangle."""
        numbers = np.array([1, 2, 3, 4, 0, 0, 5, -6, 7], "<f4")
        head = bytes([3, 2, 4, 1, 0])
        assert Statistics.from_bytes(head + numbers.tobytes(), 3, 2).to_bytes() == head + numbers.tobytes()
        numbers[at] = number
        with pytest.raises(MalformedError, match=said):
            Statistics.from_bytes(head + numbers.tobytes(), 3, 2)
        with pytest.raises(WireError, match="3 classes of 2 features, expected 4 of 2; all clients need the same"):
            Statistics.from_bytes(head + numbers.tobytes(), 4, 2)

    def test_votes_of_more_images_than_there_are(self, parties) -> None:
        task, _, server, _, _, _ = parties
        payload = varint(server.total.images + 1) + bytes(4 * len(GRID))
        with pytest.raises(WireError, match="at most"):
            server.receive_losses(1, task.seal("losses", 1, 0, payload))


class TestKaiming:
    def test_same_on_every_call_and_of_the_right_variance(self) -> None:
        head = kaiming.draw(100, 512, seed=3)
        assert heads.to_bytes(head) == heads.to_bytes(kaiming.draw(100, 512, seed=3))
        assert heads.to_bytes(head) != heads.to_bytes(kaiming.draw(100, 512, seed=4))
        bound = np.sqrt(6 / 512)
        assert 0.999 * bound < np.abs(head.weight).max() <= np.float32(bound)
        # 51,200 draws: the standard error of the variance of a uniform is sqrt(0.8 / n), 0.4%.
        assert head.weight.var() == pytest.approx(2 / 512, rel=0.016)
        assert abs(head.weight.mean()) < 4 * np.sqrt(2 / 512 / head.weight.size)
        assert not head.bias.any()

    def test_its_numbers_are_kept(self) -> None:
        """What the first release draws: both sides of a federation must."""
        assert kaiming.draw(2, 3, seed=0).weight.astype("<f4").tobytes().hex() == KEPT

    def test_nothing_is_sent(self, digits_task) -> None:
        made = kaiming.HEAD.make(digits_task)
        assert (made.uplink_bytes, made.downlink_bytes) == (0, 0)


def test_an_unknown_kind_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="head kind 'kaimng' not found; did you mean 'kaiming'"):
        run(load(values={"head.kind": "kaimng"}))
