"""Who has what: splits by a column, their statistics, the picture and the command."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from deltamask import cli, figures, tables
from deltamask.config import load
from deltamask.datasets import partition
from deltamask.datasets.partition import Holdings, split
from deltamask.errors import ConfigError, DataError

LABELS = np.repeat(np.arange(10), 100)


def users(sizes, prefix="user ") -> np.ndarray:
    """As many images of each user as ``sizes`` says, in a fixed disorder."""
    column = np.repeat(np.array([f"{prefix}{k:03d}" for k in range(len(sizes))]), sizes)
    return column[np.random.Generator(np.random.Philox(5)).permutation(column.size)]


def by(column, clients, seed=0, least=1):
    return split(np.zeros(len(column), np.int64), clients, "column:user", seed, least, {"user": column})


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["text", "objects", "bytes", "integers"])
def test_each_value_is_a_client(kind) -> None:
    column = users([30, 5, 1, 64])
    given = {
        "text": column,
        "objects": column.astype(object),
        "bytes": column.astype("S"),
        "integers": np.unique(column, return_inverse=True)[1] - 2,
    }[kind]
    parts = by(given, 4)
    assert [p.size for p in parts] == [30, 5, 1, 64]
    for k, own in enumerate(parts):
        assert set(column[own]) == {f"user {k:03d}"}
        assert (np.diff(own) > 0).all()
    assert same(parts, by(given, 4, seed=9))  # natural clients depend on no seed


def test_many_values_are_dealt_evenly() -> None:
    sizes = np.random.Generator(np.random.Philox(1)).integers(1, 60, 200)
    column = users(sizes)
    parts = by(column, 7)
    assert sorted(np.concatenate(parts).tolist()) == list(range(column.size))
    owners = [set(column[p]) for p in parts]
    assert sum(map(len, owners)) == 200  # nobody's images are torn apart
    # Values of one image come last, so greedy dealing ends level to about that.
    assert np.ptp([p.size for p in parts]) <= 2
    assert same(parts, by(column, 7))
    assert not same(parts, by(column, 7, seed=1))  # values of a size change places


def test_dealing_starts_with_the_largest() -> None:
    """50 | 26 + 25 | 30 + 20: in any other order of dealing the loads would be less even."""
    column = users([20, 25, 50, 26, 30])
    assert sorted(p.size for p in by(column, 3)) == [50, 50, 51]


def test_the_label_is_always_a_column() -> None:
    parts = split(LABELS, 10, "column:label", 0)
    assert [set(LABELS[p].tolist()) for p in parts] == [{c} for c in range(10)]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("column:uzer", r"column 'uzer' not found; did you mean 'user'\? have: label, user"),
        ("column:", "expected a name after 'column:', one of user, label"),
        ("column", "expected a name after 'column:'"),
        ("columns:user", "or 'column:NAME'"),
    ],
)
def test_wrong_columns(how, message) -> None:
    with pytest.raises(ConfigError, match=message):
        split(LABELS, 2, how, 0, columns={"user": LABELS})


def test_errors_of_columns_name_the_remedy() -> None:
    with pytest.raises(DataError, match="3 distinct values for 4 clients; set `clients` to at most 3"):
        by(users([4, 4, 4]), 4)
    with pytest.raises(DataError, match=r"client 1 of 2 has 4 images, fewer than `min_images` = 5; lower"):
        by(users([20, 4]), 2, least=5)
    with pytest.raises(DataError, match=r"shape \(3,\); expected one value for each of 1000 images"):
        split(LABELS, 2, "column:user", 0, columns={"user": [1, 2, 3]})
    for column in (LABELS / 2, np.array(["a", 1] * 500, object), np.array([None, "a"] * 500)):
        with pytest.raises(DataError, match="only strings or only integers"):
            split(LABELS, 2, "column:user", 0, columns={"user": column})


def test_statistics_by_hand() -> None:
    held = Holdings.of([np.array([0, 0, 1, 1]), np.array([2, 2, 2]), np.array([0, 0, 0, 1])], 4)
    assert held.counts.tolist() == [[2, 2, 0, 0], [0, 0, 3, 0], [3, 1, 0, 0]]
    assert held.sizes.tolist() == [4, 3, 4]
    assert held.present.tolist() == [2, 1, 2]
    # 1 / (1/4 + 1/4) = 2, 1 / 1 = 1, 1 / (9/16 + 1/16) = 1.6; over 4 classes
    assert held.effective == pytest.approx([0.5, 0.25, 0.4])
    assert held.effective_classes == pytest.approx((2 + 1 + 1.6) / 3 / 4)
    assert held.record() == {
        "sizes": [4, 3, 4],
        "effective_classes": pytest.approx(4.6 / 12),
        "effective_classes_by_client": [0.5, 0.25, 0.4],
        "classes_present": [2, 1, 2],
        "class_counts": [[2, 2, 0, 0], [0, 0, 3, 0], [3, 1, 0, 0]],
    }


def test_statistics_at_the_edges() -> None:
    with_idle = Holdings.of([np.array([0, 1]), np.array([], np.int64)], 2)
    assert with_idle.effective.tolist() == [1, 0]
    assert with_idle.effective_classes == 1  # the mean is over clients that have images
    with pytest.raises(DataError, match="label 7; expected 0 to 3"):
        Holdings.of([np.array([7])], 4)
    assert "class_counts" in Holdings(np.ones((200, 100), np.int64)).record()
    assert "class_counts" not in Holdings(np.ones((201, 100), np.int64)).record()


def test_effective_classes_of_thirty_clients() -> None:
    means = []
    for seed in range(20):
        parts = split(LABELS, 30, "dirichlet:0.1", seed)
        means.append(partition.effective_classes([LABELS[p] for p in parts], 10))
    assert 0.17 < np.mean(means) < 0.26


def test_min_images_reaches_the_split() -> None:
    from deltamask.task import holdings

    config = load(overrides=["partition=dirichlet:0.1"])
    more = load(overrides=["partition=dirichlet:0.1", "min_images=30"])
    assert holdings(config).sizes.min() < 30 <= holdings(more).sizes.min()
    assert config.digest() != more.digest()
    with pytest.raises(DataError, match="lower `clients` or `min_images`"):
        holdings(load(overrides=["min_images=1000"]))


def ids(text: str, start: str) -> list[str]:
    return sorted(e.get("id", "") for e in ElementTree.fromstring(text).iter() if e.get("id", "").startswith(start))


def test_picture_has_one_number_for_each_cell_that_is_not_empty() -> None:
    counts = np.array([[3, 0, 1], [0, 12, 0]])
    figure = figures.who_has_what(counts, "by hand")
    cells = figure.axes[1]
    assert ids(figures.svg(figure), "cell-") == ["cell-0-0", "cell-0-2", "cell-1-1"]
    assert {(t.get_position(), t.get_text()) for t in cells.texts} == {((0, 0), "3"), ((0, 2), "1"), ((1, 1), "12")}
    shown = cells.images[0].get_array()
    assert shown.T.filled(0).tolist() == counts.tolist()
    assert shown.mask.T.tolist() == (counts == 0).tolist()
    assert figure.axes[0].patches[0].get_data().values.tolist() == [4, 12]


@pytest.mark.parametrize("shape", [(1, 1), (100, 100), (1000, 3), (2, 400)])
def test_picture_of_any_shape(shape) -> None:
    counts = np.random.Generator(np.random.Philox(2)).integers(0, 3, shape)
    counts[0] = 10**6
    text = figures.svg(figures.who_has_what(counts, "many"))
    assert len(text) < 300_000
    ElementTree.fromstring(text)
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org/", "")


def test_a_cell_of_one_image_is_seen_beside_the_largest() -> None:
    pixels = figures.who_has_what([[1, 0], [10_000, 0]], "pale").axes[1].images[0]
    one, none = pixels.cmap(pixels.norm(1))[:3], (1.0, 1.0, 1.0)
    assert max(abs(a - b) for a, b in zip(one, none, strict=True)) > 0.1


def test_picture_formats() -> None:
    assert figures.render(figures.who_has_what([[1]], "one"), "png")[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match="expected svg or png"):
        figures.render(None, "gif")


def test_rows_of_few_and_of_many_clients() -> None:
    few = Holdings(np.array([[2, 2], [1, 0]])).record()
    assert tables.client_rows(few) == [("0", "4", "2", "1.00"), ("1", "1", "1", "0.50")]
    many = Holdings(np.array([[k + 1, 0] for k in range(101)])).record()
    assert tables.client_rows(many) == [
        ("least of 101", "1", "1", "0.50"),
        ("median of 101", "51", "1", "0.50"),
        ("most of 101", "101", "1", "0.50"),
    ]
    assert tables.client_rows({"sizes": [7], "effective_classes": 1.0}) == [("0", "7", "", "")]  # an older result


def command(monkeypatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["deltamask", "partition", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code, end.value.code


def test_command_shows_and_draws_without_a_model(monkeypatch, tmp_path, capsys) -> None:
    def refuse(*_args, **_kwargs):
        raise AssertionError("a backbone was built")

    monkeypatch.setattr("torch.nn.Module.__init__", refuse)
    monkeypatch.chdir(tmp_path)
    command(monkeypatch, "--set", "partition=dirichlet:0.1", "--set", "clients=12", "--json", "--out", "who.svg")
    found = json.loads(capsys.readouterr().out)
    assert (found["partition"], len(found["sizes"]), sum(found["sizes"])) == ("dirichlet:0.1", 12, 1438)
    counts = np.array(found["class_counts"])
    assert counts.sum(1).tolist() == found["sizes"]
    text = (tmp_path / "who.svg").read_text()
    assert len(ids(text[text.index("<svg") :], "cell-")) == np.count_nonzero(counts)
    (tmp_path / "c.toml").write_text('partition = "column:label"\nclients = 5\n')
    command(monkeypatch, "c.toml")
    assert "0.200 effective classes" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "runs" / "partition.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a.gif"], "expected a name that ends in .svg or .png"),
        (["--set", "partition=column:labl"], "did you mean 'label'"),
        (["--set", "min_images=0"], "min_images is 0"),
        (["--set", "clients=20", "--set", "partition=column:label"], "set `clients` to at most 10"),
    ],
)
def test_command_errors(words, message, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["deltamask", "partition", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
