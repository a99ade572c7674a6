"""KLMS on FedPM (Isik et al. 2023, "Adaptive compression in federated learning via side information").

FedPM's training and its Bayesian aggregation. The server's probabilities are the side information: both sides draw
``channel.candidates`` masks from them for each block of ``channel.block`` weights, and the client sends the number of
one, importance-sampled.

This is the variant of the paper with blocks of fixed length. In its other one the server averages the boundaries that
clients choose, and sends them along once in a while; ``method=deltamask`` with ``channel.kind=mrc`` adapts blocks to
each client and round instead, and makes up for the lean of the sample, which this one leaves in.
"""

from __future__ import annotations

from deltamask.channels.mrc import MrcChannel
from deltamask.config import ChannelSettings
from deltamask.methods.deltamask import DeltaMask

__all__ = ["METHOD", "Klms"]


class Klms(DeltaMask):
    """Masks through minimal random coding, in blocks of one length."""

    summary = "stochastic masks, one of shared candidates for each block (Isik et al. 2023)"

    def make_channel(self, settings: ChannelSettings) -> MrcChannel:
        return MrcChannel(settings.candidates, "fixed", block=settings.block, straight=False)


METHOD = Klms
