"""EDEN (Vargaftik et al. 2022): fine-tuning with randomly rotated and quantised changes, ``update.bits`` a number."""

from __future__ import annotations

from deltamask.methods.compressed import Compressed
from deltamask.updates.eden import Eden

__all__ = ["METHOD", "EdenFineTune"]


class EdenFineTune(Compressed):
    """One bit a number by default."""

    summary = "changes of weights rotated and quantised without bias (Vargaftik et al. 2022)"

    def code(self) -> Eden:
        return Eden(self.config.update.bits)


METHOD = EdenFineTune
