"""LoRA whose changes go up through EDEN, ``update.bits`` a number: the rival of masks in bytes."""

from __future__ import annotations

from deltamask.methods.lowrank import LowRank
from deltamask.updates.eden import Eden

__all__ = ["METHOD", "LoraEden"]


class LoraEden(LowRank):
    """One bit a number up, float16 down."""

    summary = "low-rank adapters, changes through EDEN up, float16 down"

    def code(self) -> Eden:
        return Eden(self.config.update.bits)


METHOD = LoraEden
