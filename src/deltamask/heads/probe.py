"""One federated round of linear probing over all clients."""

from __future__ import annotations

from deltamask.heads import linear
from deltamask.heads.base import HeadKind, Made
from deltamask.methods.linear_probe import LinearProbe
from deltamask.round import federated_round
from deltamask.task import Task
from deltamask.training import LocalTraining
from deltamask.wire import SERVER

__all__ = ["HEAD", "Probe"]


class Probe(HeadKind):
    """One federated round of linear probing: the average of what all clients train.

    Up: each client's classifier. Down: the one to start from, and the average.
    """

    def make(self, task: Task) -> Made:
        """The probed classifier."""
        method = LinearProbe(task)
        settings = task.config.head
        method.training = LocalTraining(settings.epochs, settings.batch, settings.lr)
        state, traffic = federated_round(method, method.init(), range(len(task.clients)), task.clients)
        head = method.head(state)
        final = task.seal("head", SERVER, 0, linear.to_bytes(head))
        return Made(head, traffic.uplink_bytes, traffic.downlink_bytes + len(final) * len(task.clients))


HEAD = Probe()
