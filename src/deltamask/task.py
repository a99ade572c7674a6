"""What a run works on: a masked backbone, the clients' images and the test images, made from a `Config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deltamask.config import Config
from deltamask.datasets import partition
from deltamask.datasets.partition import Holdings
from deltamask.errors import ConfigError
from deltamask.heads import Head
from deltamask.masking import MaskedModel, mask_model
from deltamask.registry import member
from deltamask.stages import Stages
from deltamask.training import Images, Prefix

__all__ = ["Task", "build", "holdings", "owned"]

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
    def size(self) -> int:
        """d, the number of masked weights."""
        return self.masked.num_masked

    def plain_features(self, data: Images) -> Tensor:
        """The frozen backbone's output for all of ``data``."""
        with self.masked.showing("plain"):
            return torch.cat(
                [self.prefix.features(data, slice(at, at + _EVAL_BATCH)) for at in range(0, len(data), _EVAL_BATCH)]
            )

    def accuracy(self, head: Head) -> float:
        """Share of test images that the model, as it is set now, puts in the right class."""
        classify = head.on(self.test.images.device)
        hits = 0
        with torch.no_grad():
            for at in range(0, len(self.test), _EVAL_BATCH):
                span = slice(at, at + _EVAL_BATCH)
                out = classify(self.prefix.features(self.test, span)).argmax(1)
                hits += int((out == self.test.labels[span]).sum())
        return hits / len(self.test)


def build(config: Config) -> Task:
    """The task of ``config``: loads the backbone and the data, splits the data, keeps the frozen activations."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    module = member("model", "deltamask.backbones", "build", config.model)()
    train, test = member("data set", "deltamask.datasets", "load", config.dataset)()
    masked = mask_model(module, config.blocks, ste=config.train.ste)
    prefix = Prefix(masked, enabled=config.train.prefix_cache)
    indices = [torch.from_numpy(p) for p in owned(config, train)]
    clients = [
        prefix.keep(Images(train.images[i], train.labels[i]), file=_cache_file(config, f"client-{k}"))
        for k, i in enumerate(indices)
    ]
    classes = _classes(train)
    features = int(module.feature_size)
    kept_test = prefix.keep(test, file=_cache_file(config, "test"))
    head = Head.init(classes, features, config.seed)
    return Task(config, masked, prefix, clients, kept_test, classes, features, masked.fingerprint(), head)


def owned(config: Config, train: Images) -> list[NDArray[np.int64]]:
    """For each client the positions of its images in ``train``."""
    return partition.split(
        train.labels.numpy(), config.clients, config.partition, config.seed, config.min_images, train.columns
    )


def holdings(config: Config) -> Holdings:
    """Who has what under ``config``, from the labels alone: no backbone is loaded."""
    train, _ = member("data set", "deltamask.datasets", "load", config.dataset)()
    labels = train.labels.numpy()
    return Holdings.of([labels[p] for p in owned(config, train)], _classes(train))


def _classes(train: Images) -> int:
    return int(np.max(train.labels.numpy())) + 1


def _cache_file(config: Config, name: str) -> Path | None:
    """Where the activations of one set of images are kept, if not in memory."""
    if config.train.cache_dir is None:
        return None
    folder = Path(config.train.cache_dir) / config.digest()  # other runs may be reading theirs
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"train.cache_dir is {folder}: {error.strerror}") from None
    return folder / f"{name}.npy"
