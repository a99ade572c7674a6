"""A run in the terminal while it goes on: progress, accuracy, bytes so far, time left. A line a round in a log."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamask.simulate import Listener
from deltamask.tables import human
from deltamask.task import Task

__all__ = ["Live"]


class Live(Listener):
    """Shows a run on standard error; ``quiet`` shows nothing, and without ``bar`` there are lines alone.

    ``which`` says where the run stands among others, such as ``3 of 40``.
    """

    def __init__(self, label: str, rounds: int, *, which: str = "", quiet: bool = False, bar: bool = True) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        if not self.console.is_terminal:
            self.console.width = 120
        self.label = label
        self.title = f"{label} ({which})" if which else label
        self.rounds = rounds
        self.sent = 0
        self.answered = 0
        self.cohort = 1
        self.done = 0
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not bar or not self.console.is_terminal,
            transient=True,
        )
        self.bar = self.progress.add_task(self.title, total=rounds, note="loading data and model")

    def __enter__(self) -> Live:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def preparing(self, what: str, done: int, total: int) -> None:
        if done == total or done % 100 == 0:
            self.progress.update(self.bar, note=f"{what}: {done:,} of {total:,}")

    def ready(self, task: Task, history: list[dict[str, Any]]) -> None:
        first, self.done = history[0], len(history) - 1
        self.sent = sum(r["uplink_bytes"] + r["head_uplink_bytes"] for r in history)
        self.console.print(
            f"[bold]{self.title}[/]: {task.size:,} masked weights, {len(task.clients)} clients, "
            f"classifier alone {100 * first['accuracy']:.1f}%"
            + (f", {self.done} rounds done before" if self.done else ""),
            highlight=False,
            soft_wrap=True,
        )
        self.progress.update(self.bar, completed=self.done, note="")

    def starts(self, round: int, cohort: list[int]) -> None:
        self.answered, self.cohort = 0, len(cohort)

    def client(self, client: int) -> None:
        self.answered += 1
        self.progress.update(self.bar, completed=self.done + self.answered / self.cohort)

    def round(self, record: dict[str, Any]) -> None:
        self.done = record["round"]
        self.sent += record["uplink_bytes"]
        views = ("thresholded", "expected", "sampled")
        parts = [f"{v} {100 * record[f'accuracy_{v}']:.1f}%" for v in views if f"accuracy_{v}" in record]
        seconds = sum(record["stages"].values())
        accuracy = "  ".join(parts) or f"{100 * record['accuracy']:.1f}%"
        self.console.print(
            f"  {self.label}  round {self.done:>3}/{self.rounds}  {accuracy}"
            f"  up {record['uplink_bpp']:.4f} bpp  down {record['downlink_bpp']:.3f} bpp"
            f"  wrong {record['wrong_positions']:,}  {seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )
        note = f"{100 * record['accuracy']:.1f}%  {human(self.sent)} up"
        self.progress.update(self.bar, completed=self.done, note=note)
