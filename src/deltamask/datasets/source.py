"""Data sets in the layouts that people have: a hub id or a local folder (parquet, folders of images, IDX files)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deltamask import hub
from deltamask.config import DataSettings
from deltamask.datasets import idx
from deltamask.datasets.base import Labelled, held_out
from deltamask.errors import ConfigError, DataError, unknown_name

__all__ = ["Source"]

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "t10k", "validation", "valid", "val", "dev")
_LABELS = ("label", "labels", "fine_label", "class", "target", "y", "category")


@dataclass(frozen=True)
class Source:
    """Where a data set lies, and what is not plain from its columns."""

    name: str
    """A folder or a hub id."""
    about: str = ""
    config: str | None = None
    """The hub's name of a variant."""
    label: str = ""
    classes: int = 0
    """How many classes there must be; 0: as many as there are."""
    local: tuple[str, ...] = ()
    """Folders in which a system package puts it."""
    idx: bool = False
    """Whether the hub has it as IDX files rather than as tables."""
    transposed: bool = False
    """Whether its IDX images lie on their sides."""

    def available(self) -> str | None:
        """The folder in which it is on this machine, be it a system's, or the hub's cache; none where it is not."""
        for folder in self.local:
            if Path(folder).is_dir():
                return folder
        try:
            from huggingface_hub.constants import HF_HUB_CACHE
        except ImportError:
            return None
        cached = Path(HF_HUB_CACHE) / ("datasets--" + self.name.replace("/", "--"))
        return str(cached) if cached.is_dir() else None

    def load(self, data: DataSettings) -> tuple[Labelled, Labelled]:
        """The training and test images, from here or from the folder that the settings name."""
        place = data.root or next((f for f in self.local if Path(f).is_dir()), self.name)
        folder = Path(place).expanduser()
        if self.idx and place == self.name and not folder.is_dir():
            folder = hub.data_files(place, [f"*{idx.MARK}*"])
        if folder.is_dir() and (idx.find(folder, "train", "images") or idx.find(folder, "t10k", "images")):
            train, test = _from_idx(folder, self)
        else:
            train, test = _from_tables(place, self, data)
        found = len(train.classes)
        if self.classes and found != self.classes:
            raise DataError(f"{place}: {found} classes; {self.name} has {self.classes}")
        return train, test


class _Column(Sequence[Any]):
    """The images of a table, each decoded when it is asked for."""

    def __init__(self, table: Any, name: str) -> None:
        self.table, self.name = table, name

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: Any) -> Any:
        return self.table[int(i)][self.name]


def _from_idx(folder: Path, source: Source) -> tuple[Labelled, Labelled]:
    parts = []
    for names in (("train",), ("t10k", "test")):
        files = [next((f for n in names if (f := idx.find(folder, n, kind))), None) for kind in ("images", "labels")]
        if files[0] is None or files[1] is None:
            raise DataError(f"{folder}: no IDX files of images and labels with {' or '.join(names)} in their names")
        images = idx.read(files[0], 3)
        labels = idx.read(files[1], 1).astype(np.int64)
        parts.append((images.transpose(0, 2, 1) if source.transposed else images, labels, files[0]))
    count = max(source.classes, 1 + max(int(labels.max(initial=0)) for _, labels, _ in parts))
    classes = tuple(str(c) for c in range(count))
    train, test = (Labelled(images, labels, classes, f"{f}:{_stamp(f)}", name=str(f)) for images, labels, f in parts)
    return train, test


def _from_tables(place: str, source: Source, data: DataSettings) -> tuple[Labelled, Labelled]:
    tables = _tables(place, source)
    train_name = _split(place, tables, data.train_split, _TRAIN) or next(iter(tables))
    test_name = _split(place, tables, data.test_split, _TEST)
    train = tables[train_name]
    if not len(train):
        raise DataError(f"{place}: the split {train_name!r} is empty")
    image, label = _columns(place, train, data, source)
    classes, labels = _classes(place, train, label)
    columns = {
        n: (lambda n=n: np.asarray(train.with_format("arrow")[:][n])) for n in train.column_names if n != image
    }
    first = Labelled(_Column(train, image), labels, classes, _origin(train, image), columns, f"{place}, {train_name}")
    if test_name is None or test_name == train_name:
        kept, test_rows = held_out(labels, "held out")
        return _rows(first, train, image, kept, "kept"), _rows(first, train, image, test_rows, "held out")
    test = tables[test_name]
    missing = {image, label} - set(test.column_names)
    if missing:
        raise DataError(f"{place}: the split {test_name!r} has no column {missing.pop()!r}")
    _, test_labels = _classes(place, test, label, classes)
    name = f"{place}, {test_name}"
    return first, Labelled(_Column(test, image), test_labels, classes, _origin(test, image), name=name)


def _tables(place: str, source: Source) -> dict[str, Any]:
    try:
        import datasets
    except ImportError:
        raise hub.needs("datasets", f"data set {place!r}") from None
    local = Path(place).expanduser().exists()
    if not local and (place.startswith((".", "/", "~")) or place.count("/") > 1):
        raise DataError(f"no data set {place!r}: expected a folder, a hub id or a name of `deltamask list datasets`")
    offline = not local and not hub.reachable()
    with _quiet(datasets), hub.explained("data set", place, offline):
        try:
            if offline and source.available() is None:
                raise ConnectionError
            where = str(Path(place).expanduser()) if local else place
            found = datasets.load_dataset(where, None if local else source.config)
        except (ConnectionError, DataError):
            raise
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"data set {place!r} can't be read: {said}") from None
    return dict(found)


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bars()


def _split(place: str, tables: dict[str, Any], asked: str, known: tuple[str, ...]) -> str | None:
    if asked:
        if asked not in tables:
            raise unknown_name(f"{place}: split", asked, tables)
        return asked
    return next((name for name in known if name in tables), None)


def _columns(place: str, table: Any, data: DataSettings, source: Source) -> tuple[str, str]:
    """The names of the image and the label column: those asked for, else by type, else by name."""
    from datasets import ClassLabel, Image

    features = table.features
    for key, asked in (("image", data.image), ("label", data.label)):
        if asked and asked not in features:
            raise unknown_name(f"{place}: column (data.{key})", asked, features)
    images = [n for n, f in features.items() if isinstance(f, Image)]
    image = data.image or (images[0] if images else "")
    if not image:
        raise ConfigError(
            f"{place}: no column holds images; there are {', '.join(features)}. Name one: data.image=..."
        )
    wanted = source.label if source.label in features else ""
    by_type = [n for n, f in features.items() if isinstance(f, ClassLabel)]
    by_name = [n for n in _LABELS if n in features]
    label = data.label or wanted or (by_type[0] if len(by_type) == 1 else next(iter(by_name), ""))
    if not label or label == image:
        raise ConfigError(
            f"{place}: no column looks like a class; there are {', '.join(features)}. Name one: data.label=..."
        )
    return image, label


def _classes(
    place: str, table: Any, label: str, known: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes and the number of each image's own."""
    column = np.asarray(table.with_format("arrow")[:][label])
    names = getattr(table.features[label], "names", None)
    if column.dtype == object and any(value is None for value in column):
        raise DataError(
            f"{place}: column {label!r} has rows without a class; drop them, or choose another data.label"
        )
    if names and column.dtype.kind in "iu":
        return tuple(names), column.astype(np.int64)
    if column.dtype.kind == "f":
        raise ConfigError(f"{place}: column {label!r} holds fractions, not classes; choose another: data.label=...")
    if known is None:
        known = tuple(str(value) for value in np.unique(column).tolist())
    number = {name: i for i, name in enumerate(known)}
    # A class that training has not seen gets a number out of range, and `Labelled` says so.
    return known, np.array([number.get(str(value), len(known)) for value in column.tolist()], np.int64)


def _rows(data: Labelled, table: Any, image: str, rows: NDArray[np.int64], part: str) -> Labelled:
    columns = {name: (lambda read=read: read()[rows]) for name, read in data.columns.items()}
    digest = hashlib.sha256(rows.tobytes()).hexdigest()[:16]
    origin = f"{data.origin}:{digest}"
    name = f"{data.name}, {part}"
    return Labelled(_Column(table.select(rows), image), data.labels[rows], data.classes, origin, columns, name)


def _origin(table: Any, image: str) -> str:
    return f"{table._fingerprint}:{image}"


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}"
