"""Index relaying: the clients' own payloads of the rounds that a client has not seen, in place of probabilities.

    server: payloads of round t          --log-->      message
    client: theta of round t, message    --replay-->   theta of round t + 1

Whoever holds the probabilities that a round started from can decode its payloads as the server does, and aggregate
them as the server does: the outcome is the same to the last bit, for the payloads' bytes instead of 32 bits a weight
(BiCompFL, Egger et al. 2025, arXiv 2502.00206, where all randomness is shared). A message is a start, which
may be left out, and the rounds since:

    newcomer, few rounds so far       the constant before round 0, and all rounds
    client of round r                 the rounds since r, also those in which it took part: the last one alone is the
                                      same message for all who were there, which a server can broadcast
    client that was away for long     a start and no rounds, as soon as that is shorter

The server takes a client for as far as its last answer says. One that knows more, because an answer got lost, passes
over what it has. A digest of the outcome is in front: a client that ends up elsewhere notices, and refuses, as does
one that has lost its memory. `Log.forget` is the server's answer to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from deltamask.codecs.base import Reader, varint
from deltamask.downlink import float32
from deltamask.downlink.base import Arrays, Downlink, Replay, Sender, Theta
from deltamask.errors import DataError, MalformedError, MismatchError, TruncatedError, WireError
from deltamask.theta import ThetaState
from deltamask.wire import fingerprint

__all__ = ["DOWNLINK", "Log", "Relay", "Replica"]

_MOST = 2**63 - 1
_MOST_COUNTED = 2.0**40
_NOTHING = -1
_HELD = "held."


class Relay(Downlink):
    """The clients' payloads of the last round, which each client decodes and aggregates itself."""

    frame_kind: ClassVar[str] = "relay"

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay)
        self.replica = Replica(replay)
        """All clients of this process: at the same round they hold the same bits, so one of them remembers."""

    def sender(self, state: ThetaState, memory: Arrays) -> Sender:
        """The server's log of recent rounds."""
        return Log(self.replay, state, memory)

    def follow(self, data: bytes, round: int) -> Theta:
        """What the replica has after these bytes; it decodes a round once, whoever is told of it first."""
        return self.replica.follow(data, round)

    def longest(self) -> int:
        """Probabilities and Beta parameters: a server sends rounds only where they are shorter."""
        return 12 * self.replay.size + 4096

    def recall(self, round: int, memory: Arrays) -> None:
        """Puts the replica where the clients of the last round were: a stand-in for their disks."""
        held = {name.removeprefix(_HELD): array for name, array in memory.items() if name.startswith(_HELD)}
        if held and self.replica.round != round - 1:
            self.replica.restore(round - 1, held)


class Log(Sender):
    """The server's side of one round: what it can send to whom, and what arrives.

    Between rounds it keeps the payloads of recent rounds as they are on the wire, up to the length of the longest
    start, and by client the last answered round that is among them. The start of the last round is kept as well, for
    `Relay.recall`.
    """

    def __init__(self, replay: Replay, state: ThetaState, memory: Arrays) -> None:
        self.replay, self.state = replay, state
        self.log, self.lengths, self.holds = _kept(memory, state.round)
        self._lasting = replay.lasting(state)
        self._digest = fingerprint(self._lasting)
        theta = state.theta
        constant = bool(theta.size and (theta == theta[0]).all())
        self._start_length = 1 + 4 * (1 if constant else theta.size) + 4 * theta.size * (len(self._lasting) - 1)
        self._most = 1 + 4 * replay.size * (3 if replay.rule.counts() else 1)
        self._heard: list[int] = []
        self._arrived: bytearray | None = bytearray()
        super().__init__(self._since(state.round - 1))

    def message(self, client: int) -> bytes:
        """The shortest of what brings ``client`` up to date."""
        held = self.holds.get(client, _NOTHING)
        return self.common if held == self.state.round - 1 else self._since(held)

    def heard(self, client: int, payload: bytes) -> None:
        """Keeps a payload, unless those of this round are too long to ever be worth relaying."""
        self._heard.append(client)
        if self._arrived is not None:
            self._arrived += varint(client) + varint(len(payload)) + payload
            if len(self._arrived) > self._most:
                self._arrived = None

    def forget(self, client: int) -> None:
        """Takes ``client`` for a newcomer, whose message has a start."""
        self.holds.pop(client, None)

    def memory(self) -> Arrays:
        """The log with this round, without what has become longer than any start."""
        log, lengths = b"", []
        if self._arrived is not None:
            record = varint(len(self._heard)) + bytes(self._arrived)
            log, lengths = self.log + record, [*self.lengths, len(record)]
            while len(log) > self._most:
                log = log[lengths.pop(0) :]
        first = self.state.round + 1 - len(lengths)
        holds = self.holds | dict.fromkeys(self._heard, self.state.round)
        rows = sorted((client, held) for client, held in holds.items() if held >= first)
        return {
            "relay.log": np.frombuffer(log, np.uint8).copy(),
            "relay.lengths": np.array(lengths, np.int64),
            "relay.holds": np.array(rows, np.int64).reshape(-1, 2),
            **{_HELD + name: array for name, array in self._lasting.items()},
        }

    def _since(self, held: int) -> bytes:
        """For a client at round ``held``."""
        first = self.state.round - len(self.lengths)
        if first <= held < self.state.round:
            rounds = self._head(False, held) + self.log[sum(self.lengths[: held - first]) :]
        elif first == 0:
            rounds = self._all
        else:
            return self._whole
        return rounds if len(rounds) <= len(self._head(True, self.state.round)) + self._start_length else self._whole

    # Either is made once in a round, and only if somebody needs it.

    @cached_property
    def _all(self) -> bytes:
        """All rounds that there were."""
        return self._head(True, 0) + _start(self.replay.lasting(self.replay.start())) + self.log

    @cached_property
    def _whole(self) -> bytes:
        """A start and no rounds."""
        return self._head(True, self.state.round) + _start(self._lasting)

    def _head(self, starts: bool, first: int) -> bytes:
        return self._digest.to_bytes(8, "little") + bytes([starts]) + varint(first)


class Replica:
    """A client's memory: what lasts of the newest round that it was sent. Its own, or one for all of a process.

    `round` and `held` are what a client writes to its disk, for `restore` after the next start.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.round: int | None = None
        self.held: dict[str, Theta] = {}
        self._digest = 0

    def restore(self, round: int, held: Arrays) -> None:
        """Takes what was held in ``round``; `DataError` for what no client can have held then."""
        state = self.replay.rule.resumed({"theta": np.zeros(self.replay.size, np.float32)}, round)
        names = sorted(self.replay.lasting(state))
        found = {name: (a.dtype, a.shape) for name, a in sorted(held.items())}
        if found != dict.fromkeys(names, (np.dtype(np.float32), (self.replay.size,))):
            raise DataError(
                f"memory of round {round}: {found}; expected {', '.join(names)}, each {self.replay.size} x float32; "
                "start the run anew"
            )
        self._hold(round, {name: held[name] for name in names})

    def follow(self, data: bytes, round: int) -> Theta:
        """The probabilities of ``round``; all errors are `WireError`, and then nothing has changed."""
        message = _Message.read(data, round, self.replay)
        if self.round == round and self._digest == message.digest:
            return self.held["theta"]
        failure: WireError | None = None
        for known in self._ways(message):
            try:
                reached = self.replay.lasting(message.replay(known, self.replay))
            except WireError as error:
                failure = error
                continue
            if fingerprint(reached) == message.digest:
                self._hold(round, reached)
                return reached["theta"]
        if failure is not None:
            raise failure
        holds = "nothing" if self.round is None else f"the probabilities of round {self.round}"
        raise MismatchError(
            f"relay: the message leads from round {message.first} to round {round} of a server, "
            f"this client holds {holds}{' of another' if self._fits(message) else ''}; it needs a start (forget)"
        )

    def _ways(self, message: _Message) -> Iterator[ThetaState]:
        """What the message can be added to: a memory saves rounds, but may be that of another run."""
        if self.round is not None and self._fits(message):
            yield self.replay.rule.resumed(self.held, self.round)
        if message.start is not None:
            yield message.start

    def _fits(self, message: _Message) -> bool:
        return self.round is not None and message.first <= self.round <= message.round

    def _hold(self, round: int, held: dict[str, Theta]) -> None:
        self.round, self.held, self._digest = round, held, fingerprint(held)


@dataclass(frozen=True)
class _Message:
    """Checked but for the payloads themselves, which only their own code can read."""

    digest: int
    """The `fingerprint` of what lasts of ``round``."""
    first: int
    """The round that the message builds on, of its own start or of the client's memory."""
    round: int
    start: ThetaState | None
    rounds: bytes
    """A record for each round from ``first`` to ``round``."""

    @classmethod
    def read(cls, data: bytes, round: int, replay: Replay) -> _Message:
        reader = Reader(bytes(data), "relay")
        digest, starts, first = reader.uint(8), reader.uint(1), reader.varint(_MOST)
        if starts > 1 or first > round:
            raise MalformedError(f"relay: start {starts} at round {first}; expected 0 or 1, up to round {round}")
        start = _read_start(reader, first, replay) if starts else None
        rounds = reader.rest()
        if round - first > len(rounds):
            raise TruncatedError(f"relay: {len(rounds)} bytes for {round - first} rounds")
        reader = Reader(rounds, "relay")
        for _ in range(first, round):
            # Nothing is kept of this pass: many short payloads would take more memory than their bytes.
            for _ in _payloads(reader):
                pass
        reader.end()
        return cls(digest, first, round, start, rounds)

    def replay(self, known: ThetaState, replay: Replay) -> ThetaState:
        """The state of ``round``, from one in between."""
        reader = Reader(self.rounds, "relay")
        for at in range(self.first, self.round):
            payloads = _payloads(reader)
            if at < known.round:
                for _ in payloads:
                    pass
            else:
                known = replay.play(known, payloads)
        return known


def _payloads(reader: Reader) -> Iterator[tuple[int, bytes]]:
    """The record of one round, payload by payload, each with its client."""
    for _ in range(reader.varint()):
        client = reader.varint(_MOST)
        yield client, reader.take(reader.varint())


def _start(lasting: dict[str, Theta]) -> bytes:
    counts = b"".join(lasting[name].astype("<f4").tobytes() for name in ("alpha", "beta") if name in lasting)
    return float32.to_bytes(lasting["theta"]) + counts


def _read_start(reader: Reader, at: int, replay: Replay) -> ThetaState:
    theta = float32.from_reader(reader, replay.size)
    state = replay.rule.resumed({"theta": theta}, at)
    counts = {}
    for name in sorted(replay.lasting(state).keys() - {"theta"}):
        count = np.frombuffer(reader.take(4 * replay.size), "<f4").astype(np.float32)
        # A posterior has seen what its prior has, and more: sums with anything less need not be probabilities.
        if not bool(((count >= np.float32(replay.rule.prior)) & (count < _MOST_COUNTED)).all()):
            raise MalformedError(
                f"relay: {name} from {count.min()} to {count.max()}; the prior is {replay.rule.prior}"
            )
        counts[name] = count
    return replay.rule.resumed({"theta": theta, **counts}, at)


def _kept(memory: Arrays, round: int) -> tuple[bytes, list[int], dict[int, int]]:
    """Log, lengths and holds from a state; none before the first round, `DataError` for what no server keeps."""
    names = ("relay.log", "relay.lengths", "relay.holds")
    if not any(name in memory for name in names):
        return b"", [], {}
    empty: NDArray[Any] = np.zeros(0)
    log, lengths, holds = (memory.get(name, empty) for name in names)
    types = log.dtype == np.uint8 and lengths.dtype == holds.dtype == np.int64
    if (
        not types
        or (log.ndim, lengths.ndim, holds.shape[1:]) != (1, 1, (2,))
        or lengths.size > round
        or bool((lengths < 1).any())
        or bool((holds < 0).any())
        or int(lengths.astype(object).sum()) != log.size
    ):
        raise DataError(f"the relay's log before round {round} is damaged; start the run anew")
    return log.tobytes(), lengths.tolist(), {int(client): int(held) for client, held in holds.tolist()}


DOWNLINK = Relay
