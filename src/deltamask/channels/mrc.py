"""Minimal random coding: both sides draw the same candidates, the client sends the number of one.

    theta_k, theta_g --divergence--> blocks; for each block:
        x_0 ... x_{M-1} <- Bern(theta_g), from a key that both sides know
        c               <- chosen with probability proportional to P_theta_k(x_c) / P_theta_g(x_c)
    payload = profile of the blocks, log2 M bits for each c
    payload --> x_c of each block; the server draws no other candidate

Havasi et al. (2019) have this for the weights of networks, Isik et al. (2023, arXiv 2306.12625, "KLMS") for federated
updates, with the server's probabilities as what both sides know. A block costs the same bits however long it is, so
it is as long as its divergence KL(theta_k || theta_g) allows. What arrives is nearly a sample of Bern(theta_k).

Nearly: few candidates are as far from theta_g as theta_k is, so a choice by P_theta_k / P_theta_g leans towards
theta_g, the more the closer the divergence of a block comes to log2 M bits. ``straight`` makes up for most of that
at the client, for no bytes: it raises the weights of a block's candidates to the power at which the mean of
log P_theta_k / P_theta_g over the choice is what it is for Bern(theta_k) itself. tests/test_mrc.py measures both.

How candidates are drawn, 35 million weights times 256 candidates at a time:

- Probabilities are rounded to 16 bits (1/65536 to 65535/65536) on both sides, and these are the ones that weights of
  importance are made of. The code therefore stays right for the candidates as they are really drawn, and no
  ratio is infinite. Eight bits would fit twice as many candidates into a vector register, but at the ends of
  [.01, .99] they would move theta by up to a fifth of its distance from the end.
- One hash for each bit would take ten seconds. A table of 16-bit words, one for each of 1,024 columns and each
  candidate, is hashed once for a client and round. Position i takes column i mod 1,024 and adds a word of its own,
  mod 2**16, which is one hash for four positions and *all* candidates. Within 1,024 consecutive positions bits are as
  independent as the hashes are; positions that share a column are so in pairs, over their own words. Bits
  depend on (key, candidate, position) alone: chunks and threads do not matter, and more candidates leave the first
  ones as they were.
- Log odds ratios are 16-bit integers, and so are their sums over a stretch of positions, which a wider sum takes
  over before they can overflow. A comparison and an addition of 16 bits are all that is left for each candidate and
  weight, and weights that did not move are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from deltamask.channels.base import Channel, Limits, Received
from deltamask.channels.blocks import CELL, Blocks, Profile, fixed
from deltamask.codecs.base import Reader
from deltamask.config import ChannelSettings
from deltamask.errors import ConfigError, MalformedError
from deltamask.kernels import mrc as loops
from deltamask.sampling import derive
from deltamask.theta import Votes
from deltamask.threads import over_chunks

__all__ = ["CHANNEL", "MrcChannel", "Sample", "checked", "divergence"]

_MOST_CANDIDATES = 4096
_MOST_POWER = 8.0


@dataclass(frozen=True)
class Sample(Received):
    """A whole mask; no position is named in its payload."""

    bits: NDArray[np.uint8]
    blocks: int
    """How many indices it took."""

    def add_to(self, votes: Votes) -> None:
        """One vote for each position."""
        votes.add_mask(self.bits)


@dataclass(frozen=True)
class MrcChannel(Channel):
    """The number of one of ``candidates`` masks for each block of weights."""

    candidates: int = 256
    layout: Literal["adaptive", "fixed"] = "adaptive"
    block_bits: float = 5.0
    """Bits of divergence in a block, for ``adaptive``; the client alone has to know."""
    block: int = 1024
    """Weights in a block, for ``fixed``."""
    straight: bool = True
    """Whether the choice makes up for the lean; the client alone has to know."""

    frame_kind: ClassVar[str] = "indices"
    knows_server_masks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.candidates not in (1 << b for b in range(1, _MOST_CANDIDATES.bit_length())):
            raise ConfigError(
                f"channel.candidates is {self.candidates}; expected a power of two from 2 to {_MOST_CANDIDATES}"
            )
        if self.layout not in ("adaptive", "fixed"):
            raise ConfigError(f"channel.layout is {self.layout!r}; expected 'adaptive' or 'fixed'")
        if not self.block_bits > 0 or self.block < 1:
            raise ConfigError(
                f"channel.block_bits is {self.block_bits}, channel.block {self.block}; expected more than 0"
            )

    @classmethod
    def of(cls, settings: ChannelSettings) -> Self:
        """The channel of a configuration."""
        if settings.budget_bytes:
            raise ConfigError(
                "channel.budget_bytes is for channel.kind='delta'; with 'mrc' raise channel.block_bits to send less"
            )
        return cls(settings.candidates, settings.layout, settings.block_bits, settings.block, settings.straight)

    def encode(
        self,
        theta_k: NDArray[np.float32],
        theta_g: NDArray[np.float32],
        seed: int,
        client: int,
        round: int,
        rounds: int,
    ) -> bytes:
        """The client's side: the payload of a sample of nearly Bern(theta_k), given what both sides know."""
        theta_k, theta_g = checked(theta_k, theta_g)
        size = theta_g.size
        if self.layout == "fixed":
            head, blocks = b"", fixed(size, self.block)
        else:
            profile = Profile.of(divergence(theta_k, theta_g), size, self.block_bits, self._bits)
            head, blocks = profile.to_bytes(), profile.blocks(size)
        return head + self._choose(theta_k, theta_g, blocks, seed, client, round)

    def _choose(
        self,
        theta_k: NDArray[np.float32],
        theta_g: NDArray[np.float32],
        blocks: Blocks,
        seed: int,
        client: int,
        round: int,
    ) -> bytes:
        """The number of a candidate for each block."""
        columns = np.ascontiguousarray(self._table(seed, client, round).T)
        shift_key = _key(seed, "shift", client, round)
        choice_key = _key(seed, "choice", client, round)  # only this client's: the server has no use for it
        choices = np.empty(blocks.coded.size, np.uint16)
        wrong: list[int] = []

        def work(first: int, last: int) -> None:
            found = loops.choose(
                theta_k,
                theta_g,
                blocks.starts,
                blocks.coded,
                first,
                last,
                columns,
                shift_key,
                choice_key,
                _tables()[0],
                *self._powers,
                choices,
            )
            wrong.append(found)

        _over_blocks(work, blocks)
        _check(sum(wrong), theta_g.size)
        return _pack(choices[blocks.coded], self._bits)

    def decode(self, data: bytes, limits: Limits, seed: int, client: int, round: int) -> Sample:
        """The server's side, for untrusted bytes; ``limits`` are `sampling.thresholds` of theta_g."""
        size = limits.size
        reader = Reader(bytes(data), "indices")
        profile = None
        if self.layout == "fixed":
            count = -(-size // self.block)
        else:
            profile = Profile.read(reader, size, self._bits)
            count = profile.total
        # Taken before blocks are made of the counts: what is not there is not allocated either.
        packed = reader.take(-(-count * self._bits // 8))
        reader.end()
        blocks = profile.blocks(size) if profile else fixed(size, self.block)
        return Sample(0, self._draw(packed, blocks, limits, seed, client, round), count)

    def _draw(
        self, packed: bytes, blocks: Blocks, limits: Limits, seed: int, client: int, round: int
    ) -> NDArray[np.uint8]:
        """The mask that the indices of ``blocks`` stand for."""
        count = int(blocks.coded.sum())
        choices = np.zeros(blocks.coded.size, np.uint16)
        choices[blocks.coded] = _unpack(packed, count, self._bits)
        table = self._table(seed, client, round)
        shift_key = _key(seed, "shift", client, round)
        out = np.empty(limits.size, np.uint8)
        _over_blocks(
            lambda first, last: loops.draw(table, shift_key, limits, blocks.starts, choices, first, last, out), blocks
        )
        return out

    def longest(self, size: int) -> int:
        """All blocks as short as they may be, and a profile of the shortest segments."""
        if self.layout == "fixed":
            return -(-(-(-size // self.block) * self._bits) // 8)
        return size // 4 + 4096

    @property
    def _powers(self) -> tuple[float, float]:
        """The least and the greatest power of the candidates' weights."""
        return (0.0, _MOST_POWER) if self.straight else (1.0, 1.0)

    @property
    def _bits(self) -> int:
        """Bits of an index."""
        return self.candidates.bit_length() - 1

    def _table(self, seed: int, client: int, round: int) -> NDArray[np.uint16]:
        """A row of words for each candidate."""
        out = np.empty(self.candidates * loops.COLUMNS, np.uint16)
        loops.words(_key(seed, "table", client, round), 0, out)
        return out.reshape(self.candidates, loops.COLUMNS)


def _key(seed: int, what: str, client: int, round: int) -> np.uint64:
    return np.uint64(derive(seed, f"mrc {what}", client, round))


@cache
def _tables() -> tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.float32]]:
    """By 16-bit probability: its logit as an integer, its logit, the logarithm of what it lacks to 1; 0 is unused."""
    p = np.arange(65536) / 65536
    p[0] = p[1]
    rest = np.log1p(-p)
    logit = np.log(p) - rest
    return np.rint(logit * loops.UNIT).astype(np.int16), logit.astype(np.float32), rest.astype(np.float32)


def checked(
    theta_k: NDArray[np.float32], theta_g: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both as the loops take them."""
    if theta_k.shape != theta_g.shape:
        raise ConfigError(f"theta_g has {theta_g.size} probabilities, theta_k {theta_k.size}")
    return np.ascontiguousarray(theta_k, np.float32), np.ascontiguousarray(theta_g, np.float32)


def divergence(theta_k: NDArray[np.float32], theta_g: NDArray[np.float32]) -> NDArray[np.float64]:
    """Bits of KL(theta_k || theta_g) in each cell."""
    _, logit, rest = _tables()
    out = np.empty(-(-theta_g.size // CELL), np.float64)
    wrong: list[int] = []

    def work(a: int, b: int) -> None:
        cells = -(-a // CELL), -(-b // CELL)
        wrong.append(loops.divergence(theta_k, theta_g, logit, rest, CELL, *cells, out))

    over_chunks(work, theta_g.size)
    _check(sum(wrong), theta_g.size)
    out /= np.log(2)
    return out


def _check(wrong: int, size: int) -> None:
    if wrong:
        raise ConfigError(f"{wrong} of {2 * size} probabilities are not within 0 to 1; expected 0 to 1")


def _over_blocks(work: Callable[[int, int], object], blocks: Blocks) -> None:
    """Splits the weights among threads; a block belongs to the part in which it starts."""

    def part(a: int, b: int) -> None:
        first, last = np.searchsorted(blocks.starts[:-1], (a, b)).tolist()
        work(first, last)

    over_chunks(part, int(blocks.starts[-1]))


def _pack(indices: NDArray[np.uint16], bits: int) -> bytes:
    """``bits`` of each number, least significant first, and zeros up to a whole byte."""
    places = np.arange(bits, dtype=np.uint16)
    return np.packbits((indices[:, None] >> places & 1).astype(np.uint8), bitorder="little").tobytes()


def _unpack(packed: bytes, count: int, bits: int) -> NDArray[np.uint16]:
    flags = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    if flags[count * bits :].any():
        raise MalformedError("indices: bits behind the last index are set")
    places = np.arange(bits, dtype=np.uint16)
    found: NDArray[np.uint16] = (flags[: count * bits].reshape(count, bits).astype(np.uint16) << places).sum(
        1, dtype=np.uint16
    )
    return found


CHANNEL = MrcChannel
