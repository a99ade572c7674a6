"""DeepReduce (Kostopoulou et al. 2021, arXiv 2102.03112) as the paper uses it: changed positions in a Bloom filter.

Masks are trained and drawn as in FedPM, m_g from a public key and m_k from a private one. Policy P0 takes every
position that the filter claims. In DeepReduce values follow, and a false positive costs a value of zero; here it is a
wrong bit of the mask.
"""

from __future__ import annotations

from dataclasses import replace

from deltamask.channels.delta import DeltaChannel
from deltamask.config import AggregationSettings, ChannelSettings
from deltamask.delta import KappaSchedule
from deltamask.methods.deltamask import DeltaMask
from deltamask.theta import Aggregation

__all__ = ["METHOD", "DeepReduce"]


class DeepReduce(DeltaMask):
    """Every change, twelve bits each."""

    summary = "stochastic masks, all changed positions through a Bloom filter (Kostopoulou et al. 2021)"

    def make_rule(self, settings: AggregationSettings) -> Aggregation:
        return replace(super().make_rule(settings), rule="bayes")

    def make_channel(self, settings: ChannelSettings) -> DeltaChannel:
        return DeltaChannel(codec="bloom", sampling="independent", kappa=KappaSchedule(start=1.0))


METHOD = DeepReduce
