"""EMNIST balanced: 131,600 handwritten letters and digits of 47 classes."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source(
    "Royc30ne/emnist-balanced",
    "EMNIST balanced: 131,600 handwritten letters and digits of 47 classes",
    classes=47,
    idx=True,
    transposed=True,
)
