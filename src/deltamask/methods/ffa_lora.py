"""FFA-LoRA (Sun et al. 2024, arXiv 2403.12313): A stays as the seed makes it, B alone is trained and sent.

The mean of products B A is then the product of the mean, which it is not where both are averaged, and half of the
numbers need not be sent.
"""

from __future__ import annotations

from deltamask.methods.lowrank import LowRank

__all__ = ["METHOD", "FfaLora"]


class FfaLora(LowRank):
    """Half of LoRA's bytes."""

    summary = "low-rank adapters of which only B is trained and sent, float16 both ways (Sun et al. 2024)"
    lr = 0.08
    both = False


METHOD = FfaLora
