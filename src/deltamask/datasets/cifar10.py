"""CIFAR-10: 60,000 small photographs of 10 classes."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source("uoft-cs/cifar10", "CIFAR-10: 60,000 small photographs of 10 classes", classes=10)
