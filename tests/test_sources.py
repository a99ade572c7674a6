"""Data sets in the layouts that people have, and every way in which they can be broken."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deltamask import hub
from deltamask.backbones.base import Preprocess
from deltamask.config import DataSettings
from deltamask.datasets import base
from deltamask.datasets.pixels import Pixels, prepare
from deltamask.datasets.source import Source
from deltamask.errors import ConfigError, DataError
from deltamask.registry import members

ASSET = Path(__file__).resolve().parents[2] / "shared" / "assets" / "cifar10-15k"
PLAIN = Preprocess(8, (0.5, 0.25, 0.0), (0.5, 0.25, 1.0))


def png(color, size=(8, 8), mode="RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, color).save(out, "PNG")
    return out.getvalue()


def image_folder(root: Path, per_class: int = 10, names=("cat", "dog"), splits=("train", "test")) -> Path:
    for split in splits:
        for c, name in enumerate(names):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                (folder / f"{i}.png").write_bytes(png((20 * i, 100 * c, 7)))
    return root


def parquet(root: Path, columns: dict, splits=("train", "test"), features=None) -> Path:
    import datasets

    root.mkdir(parents=True, exist_ok=True)
    for split in splits:
        datasets.Dataset.from_dict(columns, features=features).to_parquet(root / f"{split}-00000-of-00001.parquet")
    return root


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def idx_folder(root: Path, zipped: bool = False) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 12)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (count, 4, 6))),
            ("labels-idx1", np.arange(count) % 3),
        ):
            data = idx(array)
            name = f"{part}-{kind}-ubyte" + (".gz" if zipped else "")
            (root / name).write_bytes(gzip.compress(data) if zipped else data)
    return root


def columns(labels, **more) -> dict:
    return {"image": [{"bytes": png((9, 9, i)), "path": None} for i in range(len(labels))], "label": labels, **more}


def features(**more):
    import datasets

    return datasets.Features({"image": datasets.Image(), **more})


def ints(n=2):
    import datasets

    return datasets.ClassLabel(names=[f"c{i}" for i in range(n)])


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))


def test_a_folder_of_images_for_each_class(tmp_path) -> None:
    train, test = base.load(str(image_folder(tmp_path)), DataSettings())
    assert (len(train), len(test)) == (20, 20)
    assert train.classes == ("cat", "dog")
    assert np.bincount(train.labels).tolist() == [10, 10]
    assert train.images[0].size == (8, 8)


def test_parquet_with_other_names_and_strings_for_classes(tmp_path) -> None:
    import datasets

    data = columns(["b", "a", "b"], writer=["x", "y", "x"])
    data["species"], data["photo"] = data.pop("label"), data.pop("image")
    shape = datasets.Features(
        {"photo": datasets.Image(), "species": datasets.Value("string"), "writer": datasets.Value("string")}
    )
    folder = str(parquet(tmp_path, data, features=shape))
    with pytest.raises(ConfigError, match=r"no column looks like a class; there are .*species"):
        base.load(folder, DataSettings())
    with pytest.raises(ConfigError, match=r"did you mean 'species'"):
        base.load(folder, DataSettings(label="specie"))
    train, _ = base.load(folder, DataSettings(label="species"))
    assert train.classes == ("a", "b")
    assert train.labels.tolist() == [1, 0, 1]
    assert train.columns["writer"]().tolist() == ["x", "y", "x"]


def test_one_split_alone_is_held_out_by_class(tmp_path) -> None:
    folder = parquet(tmp_path, columns([0, 1] * 10), splits=("train",), features=features(label=ints()))
    train, test = base.load(str(folder), DataSettings())
    assert (len(train), len(test)) == (16, 4)
    assert np.bincount(test.labels).tolist() == [2, 2]
    again, _ = base.load(str(folder), DataSettings())
    assert np.array_equal(again.labels, train.labels)
    assert train.origin != test.origin


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(zipped, tmp_path) -> None:
    folder = idx_folder(tmp_path, zipped)
    train, test = base.load(str(folder), DataSettings())
    assert (len(train), len(test), train.classes) == (30, 12, ("0", "1", "2"))
    raw = np.random.default_rng(0).integers(0, 256, (30, 4, 6))
    assert np.array_equal(train.images, raw)
    sideways, _ = Source("x", transposed=True).load(DataSettings(root=str(folder)))
    assert np.array_equal(sideways.images, raw.transpose(0, 2, 1))


def test_idx_files_of_a_hub_set_come_from_its_cache(tmp_path, monkeypatch) -> None:
    """EMNIST is no table on the hub; its images lie on their sides."""
    from huggingface_hub import constants

    monkeypatch.setattr(hub, "reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    emnist = members("deltamask.datasets", "DATASET")["emnist"]
    with pytest.raises(DataError, match="data set 'Royc30ne/emnist-balanced': the hub can't be reached"):
        emnist.load(DataSettings())
    assert emnist.available() is None
    repository = tmp_path / "datasets--Royc30ne--emnist-balanced"
    (repository / "refs").mkdir(parents=True)
    commit = "0" * 40
    (repository / "refs" / "main").write_text(commit)
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    with pytest.raises(DataError, match=r"has no files like \*idx\*"):
        emnist.load(DataSettings())
    for file in idx_folder(tmp_path / "made", zipped=True).iterdir():
        file.rename(folder / f"emnist-balanced-{file.name.replace('t10k', 'test')}")
    assert emnist.available() == str(repository)
    train, test = emnist.load(DataSettings())
    assert (len(train), len(test), len(train.classes)) == (30, 12, 47)
    raw = np.random.default_rng(0).integers(0, 256, (30, 4, 6))
    assert np.array_equal(train.images, raw.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte", b"", "can't be read"),
        ("train-images-idx3-ubyte", idx(np.zeros((30, 4, 6)))[:-1], "can't be read"),
        ("train-images-idx3-ubyte", idx(np.zeros((30, 4, 6))) + b"x", "can't be read"),
        ("train-images-idx3-ubyte", b"\0\0\x08\3" + b"\xff" * 12, "can't be read"),
        ("train-images-idx3-ubyte", idx(np.zeros(30)), "expected 00000803"),
        ("train-images-idx3-ubyte", idx(np.zeros((29, 4, 6))), "29 images and 30 labels"),
        ("train-labels-idx1-ubyte", None, "no IDX files of images and labels with train"),
        ("t10k-labels-idx1-ubyte.gz", b"\x1f\x8bnot gzip at all", "can't be read"),
    ],
)
def test_broken_idx_files(name, data, message, tmp_path) -> None:
    folder = idx_folder(tmp_path)
    (folder / name.removesuffix(".gz")).unlink()
    if data is not None:
        (folder / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        base.load(str(folder), DataSettings())


def test_labels_that_cannot_be(tmp_path) -> None:
    import datasets

    one = parquet(tmp_path / "one", columns(["only"] * 4), features=features(label=datasets.Value("string")))
    with pytest.raises(DataError, match="1 class in all"):
        base.load(str(one), DataSettings())
    gone = parquet(tmp_path / "gone", columns(["a", None, "b"]), features=features(label=datasets.Value("string")))
    with pytest.raises(DataError, match="rows without a class"):
        base.load(str(gone), DataSettings())
    half = parquet(tmp_path / "half", columns([0.5, 1.5]), features=features(label=datasets.Value("float32")))
    with pytest.raises(ConfigError, match="holds fractions"):
        base.load(str(half), DataSettings())
    outside = parquet(tmp_path / "out", columns([0, 1, -1]), features=features(label=ints()))
    with pytest.raises(DataError, match=r"image 2 has label -1, and 0 more .* expected 0 to 1"):
        base.load(str(outside), DataSettings())
    with pytest.raises(DataError, match="2 classes; a/b has 10"):
        Source("a/b", classes=10).load(DataSettings(root=str(image_folder(tmp_path / "few"))))


def test_classes_of_the_test_set_that_training_has_not(tmp_path) -> None:
    import datasets

    text = features(label=datasets.Value("string"))
    parquet(tmp_path, columns(["a", "b"]), splits=("train",), features=text)
    parquet(tmp_path, columns(["a", "c"]), splits=("test",), features=text)
    with pytest.raises(DataError, match="image 1 has label 2"):
        base.load(str(tmp_path), DataSettings())


def test_splits_and_columns_that_are_not_there(tmp_path) -> None:
    folder = str(image_folder(tmp_path))
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        base.load(folder, DataSettings(train_split="trian"))
    with pytest.raises(ConfigError, match="did you mean 'image'"):
        base.load(folder, DataSettings(image="imge"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="can't be read"):
        base.load(str(tmp_path / "empty"), DataSettings())


def test_names_that_lead_nowhere(monkeypatch) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: False)
    monkeypatch.setattr(base, "reachable", lambda: False)
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        base.load("cifar1", DataSettings())
    with pytest.raises(DataError, match="can't be reached and nothing is in its cache"):
        base.load("nobody/nothing-of-this-name", DataSettings())
    with pytest.raises(DataError, match="expected a folder, a hub id"):
        base.load("./nowhere", DataSettings())


def test_the_eight_sets_of_the_paper_and_the_embedded_one_are_listed() -> None:
    found = members("deltamask.datasets", "DATASET")
    paper = {"cifar10", "cifar100", "svhn", "emnist", "fashion-mnist", "eurosat", "food101", "cars196"}
    assert set(found) == paper | {"digits"}
    assert all(d.about for d in found.values())
    assert {n: d.classes for n, d in found.items() if n != "digits"} == {
        "cifar10": 10, "cifar100": 100, "svhn": 10, "emnist": 47, "fashion-mnist": 10, "eurosat": 10,
        "food101": 101, "cars196": 196,
    }  # fmt: skip


def labelled(*images) -> base.Labelled:
    return base.Labelled(list(images), np.arange(len(images)) % 2, ("a", "b"), f"test {len(images)}")


def test_images_of_every_mode_and_shape(tmp_path) -> None:
    gray, palette = Image.new("L", (8, 8), 100), Image.new("RGB", (8, 8), (255, 0, 0)).convert("P")
    clear, half = Image.new("RGBA", (8, 8), (9, 9, 9, 0)), Image.new("LA", (8, 8), (0, 128))
    deep = Image.fromarray(np.full((8, 8), 65535, np.uint16))
    wide = Image.new("RGB", (40, 8), (1, 2, 3))
    wide.paste((200, 100, 50), (16, 0, 24, 8))
    pixels = prepare(labelled(gray, palette, clear, half, deep, wide), PLAIN, None, tmp_path)
    assert isinstance(pixels, Pixels)
    found = [pixels.array[i, :, 4, 4].tolist() for i in range(6)]
    assert found[0] == [100] * 3
    assert found[1] == [255, 0, 0]
    assert found[2] == [255] * 3, "a transparent image is white"
    assert found[3] == [127] * 3
    assert found[4] == [255] * 3
    assert found[5] == [200, 100, 50], "the middle of a wide image is kept"
    numbers = pixels[slice(0, 1)][0, :, 0, 0].tolist()
    assert numbers == pytest.approx([(100 / 255 - 0.5) / 0.5, (100 / 255 - 0.25) / 0.25, 100 / 255], abs=1e-6)
    one = prepare(labelled(gray, palette), Preprocess(8, (0.0,), (1.0,)), None, tmp_path)
    assert one[slice(0, 2)].shape == (2, 1, 8, 8)


def test_pixels_are_made_once_and_some_of_them_are_views(tmp_path) -> None:
    heard = []
    data = labelled(*[Image.new("RGB", (8, 8), (i, i, i)) for i in range(6)])
    rows = np.array([1, 3, 5])
    for _ in range(2):
        pixels = prepare(data, PLAIN, rows, tmp_path, lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert pixels.array[:, 0, 0, 0].tolist() == [1, 3, 5]
    some = pixels.take(np.array([2, 0])).take(np.array([1]))
    assert len(some) == 1
    assert (some[slice(0, 1)] == pixels[slice(0, 1)]).all()
    made = np.array(pixels.array)
    (kept,) = (tmp_path / "pixels").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])  # a disk that was full
    again = prepare(data, PLAIN, rows, tmp_path, lambda done, total: heard.append((done, total)))
    assert len(heard) == 6
    assert np.array_equal(again.array, made)


def test_an_image_that_cannot_be_read_leaves_nothing_half_done(tmp_path) -> None:
    good = Image.new("RGB", (8, 8))
    for bad in (b"no image", None, Image.new("RGB", (0, 8))):
        with pytest.raises(DataError, match=r"image 1 can't be read .*; remove it"):
            prepare(labelled(good, bad), PLAIN, None, tmp_path)
    assert not list(tmp_path.rglob("*.*"))
    folder = image_folder(tmp_path / "set")
    (folder / "train" / "cat" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    train, _ = base.load(str(folder), DataSettings())
    with pytest.raises(DataError, match=r"/set, train: image 3 can't be read"):
        prepare(train, PLAIN, None, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"data\.cache_dir"):
        prepare(labelled(Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8))), PLAIN, None, tmp_path / "file")


@pytest.mark.skipif(not ASSET.exists(), reason="the evaluation assets are not on this machine")
def test_the_real_cifar10_asset() -> None:
    train, test = base.load(str(ASSET), DataSettings())
    assert (len(train), len(test), len(train.classes)) == (12_000, 3_000, 10)
    assert set(np.bincount(test.labels)) == {300}
    assert train.classes[3] == "cat"
