"""What a run works on: a masked backbone, the clients' images and the test images, made from a `Config`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deltamask.backbones import base as backbones
from deltamask.config import Config
from deltamask.datasets import arrays, partition, pixels
from deltamask.datasets import base as datasets
from deltamask.datasets.base import Labelled
from deltamask.datasets.partition import Holdings
from deltamask.errors import ConfigError
from deltamask.heads import Head
from deltamask.masking import MaskedModel, mask_model
from deltamask.precision import mixed
from deltamask.sampling import derive, permutation
from deltamask.stages import Stages
from deltamask.training import Images, Prefix
from deltamask.wire import Frame, open_frame, seal, seed_commitment

__all__ = ["Progress", "Task", "build", "choose_device", "holdings"]

Progress = Callable[[str, int, int], object]

_EVAL_BATCH = 256


@dataclass
class Task:
    """The things that every method shares."""

    config: Config
    masked: MaskedModel
    prefix: Prefix
    clients: list[Images]
    test: Images
    classes: int
    features: int
    fingerprint: int
    head: Head
    stages: Stages = field(default_factory=Stages)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.prefix.device

    @property
    def size(self) -> int:
        """d, the number of masked weights."""
        return self.masked.num_masked

    def seal(self, kind: str, client: int, round: int, payload: bytes) -> bytes:
        """A frame of this federation."""
        commitment = seed_commitment(self.config.seed)
        return seal(Frame(kind, self.size, self.fingerprint, client, round, commitment, payload))

    def open(self, data: bytes, kind: str, client: int, round: int | None, limit: int) -> Frame:
        """A checked frame of this federation."""
        return open_frame(
            data,
            kind=kind,
            size=self.size,
            model=self.fingerprint,
            client=client,
            round=round,
            seed=seed_commitment(self.config.seed),
            limit=limit,
        )

    def plain_features(self, data: Images) -> Tensor:
        """The frozen backbone's output for all of ``data``."""
        with self.masked.showing("plain"):
            return torch.cat(
                [self.prefix.features(data, slice(at, at + _EVAL_BATCH)) for at in range(0, len(data), _EVAL_BATCH)]
            )

    def accuracy(self, head: Head) -> float:
        """Share of test images that the model, as it is set now, puts in the right class."""
        classify = head.on(self.device)
        hits = 0
        for at in range(0, len(self.test), _EVAL_BATCH):
            span = slice(at, at + _EVAL_BATCH)
            with torch.no_grad(), mixed(self.config.evaluation.precision, self.device):
                features = self.prefix.features(self.test, span)
            hits += int((classify(features.float()).argmax(1) == self.test.labels[span]).sum())
        return hits / len(self.test)


def build(config: Config, progress: Progress = lambda what, done, total: None) -> Task:
    """The task of ``config``: loads the backbone and the data, splits the data, keeps the frozen activations.

    ``progress`` hears what is being prepared, and how much of it is done.
    """
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    device = choose_device(config.device)
    module = backbones.load(config.model, config.image_size).to(device)
    train, test = datasets.load(config.dataset, config.data)
    rows, parts = _owned(config, train)
    test_rows = _drawn(len(test), config.data.test_images, derive(0, "test images"))
    masked = mask_model(module, config.blocks, ste=config.train.ste)
    prefix = Prefix(masked, enabled=config.train.prefix_cache)
    fingerprint = masked.fingerprint()

    def ready(data: Labelled, chosen: NDArray[np.int64] | None, what: str) -> Images:
        folder = arrays.cache_folder(config.data.cache_dir)
        images = pixels.prepare(data, module.preprocess, chosen, folder, partial(progress, what))
        own = _some(data.labels, chosen)
        # Sets that are small enough to need no pixel file leave nothing on the disk unless they are asked to.
        file = None
        if isinstance(images, pixels.Pixels) or config.data.cache_dir:
            about = (
                fingerprint,
                prefix.first,
                data.origin,
                module.preprocess,
                None if chosen is None else chosen.tobytes(),
            )
            file = folder / "features" / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:32]}.npy"
        progress(f"activations of {what}", 0, len(own))
        return prefix.keep(
            Images(images, torch.from_numpy(own).to(device)), file=file, most=1e9 * config.data.cache_gb
        )

    whole = ready(train, rows, "training images")
    kept_test = ready(test, test_rows, "test images")
    clients = [whole.take(part) for part in parts]
    classes, features = len(train.classes), int(module.feature_size)
    head = Head.init(classes, features, config.seed)
    return Task(config, masked, prefix, clients, kept_test, classes, features, fingerprint, head)


def holdings(config: Config) -> Holdings:
    """Who has what under ``config``, from the labels alone: no backbone is loaded."""
    train, _ = datasets.load(config.dataset, config.data)
    rows, parts = _owned(config, train)
    labels = _some(train.labels, rows)
    return Holdings.of([labels[part] for part in parts], len(train.classes))


def choose_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is an accelerator where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was compiled with CUDA
        raise ConfigError(f"device is {name!r}: {str(error).splitlines()[0]}; expected auto or cpu") from None
    return device


def _owned(config: Config, train: Labelled) -> tuple[NDArray[np.int64] | None, list[NDArray[np.int64]]]:
    """The training images that are drawn (none for all), and for each client the positions of its own among them."""
    rows = _drawn(len(train), config.data.train_images, derive(config.seed, "training images"))
    wanted = config.partition.partition(":")[2]
    # Only the column that is asked for is read; of the others the names are enough.
    columns = {name: _some(read(), rows) if name == wanted else None for name, read in train.columns.items()}
    labels = _some(train.labels, rows)
    return rows, partition.split(labels, config.clients, config.partition, config.seed, config.min_images, columns)


def _some(values: NDArray[Any], rows: NDArray[np.int64] | None) -> NDArray[Any]:
    return values if rows is None else values[rows]


def _drawn(count: int, wanted: int, key: int) -> NDArray[np.int64] | None:
    """Sorted positions of so many images; none for all."""
    if not wanted or wanted == count:
        return None
    if wanted > count:
        raise ConfigError(
            f"{wanted} images asked for, there are {count}; lower data.train_images or data.test_images"
        )
    return np.sort(permutation(key, count)[:wanted])
