"""The contract of a kind of head: from the clients' images to a classifier, and to what it cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltamask.errors import DataError
from deltamask.heads.linear import Head

if TYPE_CHECKING:
    from torch import Tensor

    from deltamask.task import Task

__all__ = ["HeadKind", "Made", "check", "check_labels"]


@dataclass(frozen=True)
class Made:
    """A classifier, and the bytes of all frames that made it, over all clients."""

    head: Head
    uplink_bytes: int
    downlink_bytes: int


class HeadKind(ABC):
    """A way to get the classifier; the first line of its docstring is what `deltamask list heads` says."""

    @abstractmethod
    def make(self, task: Task) -> Made:
        """The classifier of ``task``, from all of its clients; changes nothing in ``task``."""


def check(task: Task) -> None:
    """`DataError` where no kind of head could work: an empty client, a label out of range, a single class."""
    seen: set[int] = set()
    for client, data in enumerate(task.clients):
        check_labels(client, data.labels, task.classes)
        seen.update(data.labels.tolist())
    if len(seen) < 2:
        raise DataError(
            f"all images of all {len(task.clients)} clients are of class {min(seen, default=0)}; "
            "a classifier needs at least two classes: choose another `dataset`"
        )


def check_labels(client: int, labels: Tensor, classes: int) -> None:
    """`DataError` unless one client has images, with labels that the classifier has room for."""
    if not len(labels):
        raise DataError(
            f"client {client} has no training images; use fewer clients or a partition with a minimum size"
        )
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= classes:
        raise DataError(
            f"client {client} has labels {least} to {most}, the classifier has classes 0 to {classes - 1}; "
            "number the labels from 0, the same way for all clients"
        )
