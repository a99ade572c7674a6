"""CIFAR-100: 60,000 small photographs of 100 classes."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source(
    "uoft-cs/cifar100", "CIFAR-100: 60,000 small photographs of 100 classes", label="fine_label", classes=100
)
