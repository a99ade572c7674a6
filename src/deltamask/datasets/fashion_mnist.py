"""Fashion-MNIST: 70,000 pictures of 10 kinds of clothes; found by itself where Debian has put it."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source(
    "zalando-datasets/fashion_mnist",
    "Fashion-MNIST: 70,000 pictures of 10 kinds of clothes; found by itself where Debian has put it",
    classes=10,
    local=("/usr/share/datasets/fashion-mnist",),
)
