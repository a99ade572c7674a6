"""SVHN: 99,289 house numbers, cropped to one digit each."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source(
    "ufldl-stanford/svhn",
    "SVHN: 99,289 house numbers, cropped to one digit each",
    config="cropped_digits",
    classes=10,
)
