"""EuroSAT: 27,000 satellite images of 10 kinds of land use."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source("blanchon/EuroSAT_RGB", "EuroSAT: 27,000 satellite images of 10 kinds of land use", classes=10)
