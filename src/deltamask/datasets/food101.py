"""Food-101: 101,000 photographs of 101 dishes."""

from __future__ import annotations

from deltamask.datasets.source import Source

__all__ = ["DATASET"]

DATASET = Source("ethz/food101", "Food-101: 101,000 photographs of 101 dishes", classes=101)
