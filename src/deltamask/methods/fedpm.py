"""FedPM (Isik et al. 2023): the same training and aggregation, but each client uploads all of its mask.

The mask is drawn from a private key and sent as the set of its rarer bit through an entropy coder.
"""

from __future__ import annotations

import numpy as np

from deltamask import codecs, sampling
from deltamask.codecs.base import Reader
from deltamask.errors import MalformedError
from deltamask.methods.base import Receipt
from deltamask.methods.deltamask import MaskMethod
from deltamask.stages import Stages
from deltamask.theta import Votes
from deltamask.training import Images

__all__ = ["METHOD", "FedPM"]

_CODEC = "rans"


class FedPM(MaskMethod):
    """Whole masks, entropy-coded."""

    summary = "stochastic masks, all of each mask uploaded (Isik et al. 2023)"

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        round, theta_g = self.follow(broadcast)
        with self.task.stages("train"):
            theta_k = self.train(client, round, data, theta_g)
        with self.task.stages("encode"):
            key = sampling.derive(self.config.seed, "fedpm", client, round)
            bits = sampling.mask(key, sampling.thresholds(theta_k))
            rarer = int(2 * int(bits.sum()) <= bits.size)
            payload = bytes([rarer]) + codecs.get(_CODEC).encode(np.flatnonzero(bits == rarer), bits.size)
            return self.seal(self.frame_kind, client, round, payload)

    def vote(self, votes: Votes, client: int, round: int, payload: bytes, stages: Stages) -> Receipt:
        with stages("decode"):
            reader = Reader(payload, "mask")
            rarer = reader.uint(1)
            if rarer > 1:
                raise MalformedError(f"mask: bit {rarer}; expected 0 or 1")
            bits = np.full(self.task.size, 1 - rarer, np.uint8)
            bits[codecs.get(_CODEC).decode(reader.rest(), self.task.size)] = rarer
        with stages("aggregate"):
            votes.add_mask(bits)
        return Receipt()


METHOD = FedPM
