"""FiT-LDA from federated statistics, with its two values learned by leave-one-client-out cross-validation.

Shysheya et al. 2022 (arXiv 2206.08671), which DeltaMask's appendix uses "with 2 learnable float values". Each
client has four messages, all of them frames of round 0:

    statistics  up    counts, class sums and second moment of its frozen features
    statistics  down  those of all clients
    losses      up    number of judged images, and their mean loss for each (e1, e2) of the grid
    shrinkage   down  the (e1, e2) with the least loss over all judged images

A client takes its own statistics away from those of all, and judges its images with the discriminant of the others;
images of classes that the others lack are not judged. Nobody is judged by a classifier that has seen it.

The last message is the two values, 8 bytes, and not the classifier, 4 classes (features + 1) bytes: a client has all
that it needs to compute it. On machines with different linear algebra the results may differ in the last bits, which
masks do not notice: no bit of a mask or a payload is drawn from the classifier.

Where nobody could judge (a single client, or no class that two clients have), e1 = n / (n + D) and e2 = D / (n + D)
for n images of D features: as if D further images had been spread evenly in all directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader, varint
from deltamask.errors import MalformedError
from deltamask.heads.base import HeadKind, Made, check_labels
from deltamask.heads.discriminant import GRID, Discriminant
from deltamask.heads.linear import Head
from deltamask.heads.statistics import LARGEST, Statistics
from deltamask.task import Task
from deltamask.training import Images
from deltamask.wire import SERVER

__all__ = ["HEAD", "Client", "Fit", "Server"]

_ROUND = 0


class Fit(HeadKind):
    """A linear discriminant from federated statistics, shrunk by cross-validation (FiT-LDA)."""

    def make(self, task: Task) -> Made:
        """The discriminant, as the clients compute it."""
        server = Server(task)
        clients = [Client(task, k, data) for k, data in enumerate(task.clients)]
        up = 0
        for client in clients:
            frame = client.statistics()
            server.receive_statistics(client.number, frame)
            up += len(frame)
        pooled = server.pooled()
        for client in clients:
            frame = client.losses(pooled)
            server.receive_losses(client.number, frame)
            up += len(frame)
        final = server.shrinkage()
        # From the same frames all clients compute the same: once is enough.
        return Made(clients[0].head(pooled, final), up, (len(pooled) + len(final)) * len(clients))


class Client:
    """One client's side; it keeps its features from one message to the next."""

    def __init__(self, task: Task, number: int, data: Images) -> None:
        check_labels(number, data.labels, task.classes)
        self.task = task
        self.number = number
        self.features: NDArray[np.float32] = task.plain_features(data).detach().float().cpu().numpy()
        self.labels: NDArray[np.int64] = data.labels.cpu().numpy()

    def statistics(self) -> bytes:
        """The first message up."""
        return self.task.seal("statistics", self.number, _ROUND, self._own())

    def losses(self, pooled: bytes) -> bytes:
        """The second message up: how well the others' images classify this client's."""
        own = Statistics.from_bytes(self._own(), self.task.classes, self.task.features)  # rounded, as it was sent
        others = _open_statistics(self.task, SERVER, pooled).without(own)
        known = others.counts > 0
        judged = known[self.labels]
        count, losses = 0, np.zeros(len(GRID), np.float32)
        if judged.any() and known.sum() > 1:
            count = int(judged.sum())
            losses = Discriminant.of(others).losses(self.features[judged], self.labels[judged])
        return self.task.seal("losses", self.number, _ROUND, varint(count) + losses.astype("<f4").tobytes())

    def head(self, pooled: bytes, shrinkage: bytes) -> Head:
        """The classifier, from the two messages down."""
        frame = self.task.open(shrinkage, "shrinkage", SERVER, _ROUND, limit=8)
        reader = Reader(frame.payload, "shrinkage")
        e1, e2 = np.frombuffer(reader.take(8), "<f4").astype(float).tolist()
        reader.end()
        if not (0 < e1 <= LARGEST and 0 < e2 <= LARGEST):
            raise MalformedError(f"shrinkage: values {e1} and {e2}; expected two positive numbers up to {LARGEST:g}")
        return Discriminant.of(_open_statistics(self.task, SERVER, pooled)).head(e1, e2)

    def _own(self) -> bytes:
        return Statistics.of(self.features, self.labels, self.task.classes).to_bytes()


class Server:
    """The server's side: what arrives is added and forgotten, in float64, whatever the number of clients."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.total = Statistics.empty(task.classes, task.features)
        self.losses = np.zeros(len(GRID))
        self.judged = 0

    def receive_statistics(self, client: int, data: bytes) -> None:
        """One client's first message; what is no such thing raises `WireError` and changes nothing."""
        self.total.add(_open_statistics(self.task, client, data))

    def pooled(self) -> bytes:
        """The first message down; `DataError` where there are not two classes."""
        Discriminant.check_classes(self.total)
        return self.task.seal("statistics", SERVER, _ROUND, self.total.to_bytes())

    def receive_losses(self, client: int, data: bytes) -> None:
        """One client's second message; what is no such thing raises `WireError` and changes nothing."""
        frame = self.task.open(data, "losses", client, _ROUND, limit=6 + 4 * len(GRID))
        reader = Reader(frame.payload, "losses")
        # Nobody outvotes the others by more images than there are.
        count = reader.varint(self.total.images)
        losses = np.frombuffer(reader.take(4 * len(GRID)), "<f4").astype(np.float64)
        reader.end()
        if not (losses >= 0).all() or not (losses <= LARGEST).all():
            raise MalformedError(f"losses: numbers outside 0 to {LARGEST:g}")
        self.losses += count * losses
        self.judged += count

    def shrinkage(self) -> bytes:
        """The last message down: the two values."""
        values: Sequence[float] = GRID[int(np.argmin(self.losses))]
        if not self.judged:
            images, features = self.total.images, self.task.features
            values = images / (images + features), features / (images + features)
        return self.task.seal("shrinkage", SERVER, _ROUND, np.array(values, "<f4").tobytes())


def _open_statistics(task: Task, sender: int, data: bytes) -> Statistics:
    limit = Statistics.longest(task.classes, task.features)
    frame = task.open(data, "statistics", sender, _ROUND, limit)
    return Statistics.from_bytes(frame.payload, task.classes, task.features)


HEAD = Fit()
