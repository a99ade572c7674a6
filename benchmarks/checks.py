"""One line of a comparison with a public package: what both sides give, and how far apart they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Check", "close", "rate", "within"]


@dataclass(frozen=True)
class Check:
    """What was compared; ``theory`` is what a paper or a formula gives for both."""

    peer: str
    code: str
    what: str
    ours: float
    theirs: float
    theory: float | None
    tolerance: str
    reason: str
    met: bool


def within(
    share: float,
    peer: str,
    code: str,
    what: str,
    ours: float,
    theirs: float,
    reason: str,
    theory: float | None = None,
) -> Check:
    """Ours is the peer's, and the theory's where there is one, but for a ``share`` of it."""
    goals = [theirs] if theory is None else [theirs, theory]
    met = all(abs(ours - goal) <= share * goal for goal in goals)
    return Check(peer, code, what, ours, theirs, theory, f"{share:.1%}", reason, met)


def close(least: float, peer: str, code: str, what: str, difference: float, reason: str) -> Check:
    """The same numbers on both sides: the largest ``difference`` is at most ``least``."""
    return Check(peer, code, what, difference, 0.0, None, f"at most {least:g}", reason, difference <= least)


def rate(
    peer: str,
    code: str,
    what: str,
    ours: tuple[int, int],
    theirs: tuple[int, int],
    expected: float,
    reason: str,
    more: float = 0,
) -> Check:
    """Two (hits, trials), each within four standard deviations, and a share ``more``, of what is expected."""
    met = True
    for hits, trials in (ours, theirs):
        mean = trials * expected
        met &= abs(hits - mean) <= 4 * math.sqrt(mean) + more * mean
    said = "4 sd" if not more else f"4 sd + {more:.0%}"
    return Check(peer, code, what, ours[0] / ours[1], theirs[0] / theirs[1], expected, said, reason, met)
