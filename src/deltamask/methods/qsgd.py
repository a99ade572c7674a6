"""QSGD (Alistarh et al. 2017): fine-tuning with changes rounded at random to levels of their bucket's norm."""

from __future__ import annotations

from deltamask.methods.compressed import Compressed
from deltamask.updates.qsgd import Qsgd

__all__ = ["METHOD", "QsgdFineTune"]


class QsgdFineTune(Compressed):
    """``update.levels`` levels, buckets of ``update.bucket`` numbers."""

    summary = "changes of weights rounded at random to a few levels, entropy-coded (Alistarh et al. 2017)"

    def code(self) -> Qsgd:
        return Qsgd(self.config.update.bucket, self.config.update.levels)


METHOD = QsgdFineTune
