"""What a run works on: a masked backbone, the clients' images and the test images, made from a `Config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deltamask.config import Config
from deltamask.datasets import partition
from deltamask.errors import ConfigError
from deltamask.heads import Head
from deltamask.masking import MaskedModel, mask_model
from deltamask.registry import member
from deltamask.stages import Stages
from deltamask.training import Images, Prefix
from deltamask.wire import Frame, open_frame, seal, seed_commitment

__all__ = ["Task", "build"]

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
    parts = partition.split(train.labels.numpy(), config.clients, config.partition, config.seed)
    indices = [torch.from_numpy(p) for p in parts]
    clients = [
        prefix.keep(Images(train.images[i], train.labels[i]), file=_cache_file(config, f"client-{k}"))
        for k, i in enumerate(indices)
    ]
    classes = int(np.max(train.labels.numpy())) + 1
    features = int(module.feature_size)
    kept_test = prefix.keep(test, file=_cache_file(config, "test"))
    head = Head.init(classes, features, config.seed)
    return Task(config, masked, prefix, clients, kept_test, classes, features, masked.fingerprint(), head)


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
