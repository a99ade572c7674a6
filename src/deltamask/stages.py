"""How long each stage of a round takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

__all__ = ["Stages"]


class Stages:
    """Seconds by stage, added up until they are taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to ``name``."""
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - started

    def take(self) -> dict[str, float]:
        """The seconds so far, rounded to microseconds; starts anew."""
        out = {name: round(seconds, 6) for name, seconds in self.seconds.items()}
        self.seconds = {}
        return out
