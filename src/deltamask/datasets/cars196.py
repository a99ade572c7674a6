"""Stanford Cars: 16,185 photographs of 196 models."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source("tanganke/stanford_cars", "Stanford Cars: 16,185 photographs of 196 models", classes=196)
