"""LoRA averaged by FedAvg (FedIT, Zhang et al. 2023, arXiv 2305.05644): A and B each on its own, in float16."""

from __future__ import annotations

from deltamask.methods.lowrank import LowRank

__all__ = ["METHOD", "Lora"]


class Lora(LowRank):
    """What most people would do first."""

    summary = "low-rank adapters of query and value, float16 both ways (Hu et al. 2021)"


METHOD = Lora
