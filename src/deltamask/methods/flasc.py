"""FLASC (Kuo et al. 2024, arXiv 2406.05233): LoRA with the largest numbers alone on the wire, both ways.

Down go the largest of the server's numbers, a client trains all of them from there, and up go the largest of its
changes: the two sets have nothing to do with one another.
"""

from __future__ import annotations

from deltamask.methods.lowrank import LowRank
from deltamask.updates.topk import TopK

__all__ = ["METHOD", "Flasc"]


class Flasc(LowRank):
    """A share ``lora.density_up`` of all numbers up, ``lora.density_down`` down, each in float16."""

    summary = "low-rank adapters, the largest numbers and changes alone (Kuo et al. 2024)"

    lr = 0.02

    def code(self) -> TopK:
        return TopK(self.config.lora.density_up)

    def down(self) -> TopK:
        return TopK(self.config.lora.density_down)


METHOD = Flasc
