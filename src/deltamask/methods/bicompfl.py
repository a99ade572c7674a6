"""BiCompFL with global randomness (Egger et al. 2025, arXiv 2502.00206): minimal random coding up, relaying down.

KLMS on FedPM (`klms`) whose server sends no probabilities: it forwards the numbers that the clients sent, and each
client, which has all their keys, draws the same masks and aggregates them as the server does.

What differs from the paper: a client's candidates come from a key of its own, which all know, instead of one stream
that all share. Blocks have one length only. A round is relayed whole, a client's own numbers included, so that one
message does for all. And clients may miss rounds: they are sent all that they missed or, where it is shorter, the
probabilities.
"""

from __future__ import annotations

from deltamask.methods.klms import Klms

__all__ = ["METHOD", "BiCompFL"]


class BiCompFL(Klms):
    """Numbers of candidates both ways, whatever ``downlink.kind`` says."""

    summary = "stochastic masks, numbers of candidates up, and those of all clients down (Egger et al. 2025)"
    downlink_kind = "relay"


METHOD = BiCompFL
