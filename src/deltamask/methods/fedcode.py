"""FedCode (Khalilian et al. 2023, arXiv 2311.09270): weights as members of a codebook, in most rounds that alone.

Down, all weights (codebook and labels) go every ``codebook.down_every`` rounds; in the rounds between a client takes
the weights that it was sent last and moves each to the nearest number of the new codebook. Up, clients send all of
their clustered weights every ``codebook.up_every`` rounds, which the server averages; in the rounds between their
codebooks alone, and the server moves each of its weights to the nearest number of all of them together.

Two things differ from the public code, which sends float32 weights: what goes over the wire is the codebook and the
entropy of the labels, and a client starts from what the server sent last rather than from its own last model, so
that clients keep nothing but a broadcast. Where not all clients take part in each round, some have not seen the last
broadcast of all weights: it is sent every round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader, varint
from deltamask.methods.base import Receipt, State
from deltamask.methods.finetune import FineTune
from deltamask.task import Task
from deltamask.training import Images
from deltamask.updates.codebook import cluster, labels_from_bytes, labels_to_bytes, nearest, read_codebook
from deltamask.wire import SERVER

__all__ = ["METHOD", "FedCode"]

Vector = NDArray[np.float32]


class FedCode(FineTune):
    """About six bits a weight in some rounds, 256 bytes in the others."""

    lr = 2e-3
    summary = "weights as labels of a small codebook, most rounds the codebook alone (Khalilian et al. 2023)"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.settings = self.config.codebook
        self._held: Vector = np.zeros(0, np.float32)
        """The last broadcast of all weights: what every client has kept of it."""

    def init(self) -> State:
        start = self.start()
        return State(0, {"weights": start, "held": start})

    def broadcast(self, state: State) -> bytes:
        with self.task.stages("broadcast"):
            weights = state.arrays["weights"]
            centres = cluster(weights, self.settings.centres)
            state.arriving = {"total": np.zeros(weights.size), "centres": [], "clients": 0}
            whole = self._whole_down(state.round)
            if whole:
                state.arrays["held"] = centres[nearest(weights, centres)]
            self._held = state.arrays["held"]
            return self.seal("codebook", SERVER, state.round, self._to_bytes(weights, centres, whole))

    def client(self, broadcast: bytes, client: int, data: Images) -> bytes:
        frame = self.open_broadcast(broadcast, "codebook")
        with self.task.stages("train"):
            centres, weights = self._from_bytes(frame.payload, self._whole_down(frame.round))
            if weights is None:
                weights = centres[nearest(self._held, centres)]
            trained = self.train(client, frame.round, data, weights)
        with self.task.stages("encode"):
            own = cluster(trained, self.settings.centres)
            payload = self._to_bytes(trained, own, self._whole_up(frame.round))
            return self.seal("codebook", client, frame.round, payload)

    def receive(self, state: State, client: int, payload: bytes) -> Receipt:
        with self.task.stages("decode"):
            limit = 5 * self.settings.centres + 2 * self.task.size + 4096
            frame = self.open(payload, "codebook", client, state.round, limit=limit)
            centres, weights = self._from_bytes(frame.payload, self._whole_up(state.round))
        with self.task.stages("aggregate"):
            arriving: dict[str, Any] = state.arriving
            arriving["clients"] += 1
            if weights is None:
                arriving["centres"].append(centres)
            else:
                arriving["total"] += weights
        return Receipt()

    def finish(self, state: State) -> State:
        with self.task.stages("aggregate"):
            arriving, weights = state.arriving, state.arrays["weights"]
            if arriving["centres"]:
                centres = np.unique(np.concatenate(arriving["centres"]))
                weights = centres[nearest(weights, centres)]
            elif arriving["clients"]:
                weights = (arriving["total"] / arriving["clients"]).astype(np.float32)
            return State(state.round + 1, {"weights": weights, "held": state.arrays["held"]})

    def _whole_down(self, round: int) -> bool:
        return round % self.settings.down_every == 0 or self.config.participation < 1

    def _whole_up(self, round: int) -> bool:
        return round % self.settings.up_every == 0

    def _to_bytes(self, weights: Vector, centres: Vector, whole: bool) -> bytes:
        """The codebook, and with ``whole`` the label of each weight."""
        labels = b""
        if whole:
            labels = labels_to_bytes(nearest(weights, centres).astype(np.uint8), centres.size)
        return varint(centres.size) + centres.astype("<f4").tobytes() + labels

    def _from_bytes(self, data: bytes, whole: bool) -> tuple[Vector, Vector | None]:
        """The inverse of `_to_bytes` for untrusted bytes: codebook and, with ``whole``, weights."""
        reader = Reader(data, "codebook")
        centres = read_codebook(reader, self.settings.centres)
        if not whole:
            reader.end()
            return centres, None
        labels = labels_from_bytes(reader, self.task.size, centres.size)
        reader.end()
        return centres, centres[labels]


METHOD = FedCode
