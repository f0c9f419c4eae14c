"""How far the work is: a bar on a terminal, plain lines elsewhere, and the time each stage took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from keyless.cli.app import say
from keyless.cli.stopping import Stop

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Stages", "watched"]

_QUIET = 30.0
"""Seconds between two lines about the same stage."""


class Stages:
    """A callback for the library that shows progress, keeps the time, and passes on a request to stop.

    Attributes:
        timings: seconds per stage so far.
    """

    def __init__(self, stop: Stop, bar: Progress | None) -> None:
        self.timings: dict[str, float] = {}
        self._stop, self._bar = stop, bar
        self._task = None if bar is None else bar.add_task("starting", total=None, objective="")
        self._stage, self._said, self._last = "", 0.0, time.monotonic()

    def __call__(self, stage: str, step: int, total: int, objective: float) -> bool:
        """Show one step; tell whether to stop."""
        # A step is told when it is done: what passed since the last one belongs to it.
        self.spent(stage)
        if self._bar is not None and self._task is not None:
            if stage != self._stage:
                self._bar.reset(self._task, total=total or None)
            self._bar.update(
                self._task, description=stage, completed=step, total=total or None, objective=f"{objective:.3f}"
            )
        elif stage != self._stage or self._last - self._said > _QUIET:
            self._said = self._last
            say(f"{stage}: step {step}{f' of {total}' if total else ''}, objective {objective:.3f}")
        self._stage = stage
        return self._stop.requested

    def spent(self, stage: str) -> None:
        """Book the time since the last step on a stage.

        Args:
            stage: its name.
        """
        now = time.monotonic()
        self.timings[stage] = self.timings.get(stage, 0.0) + now - self._last
        self._last = now


@contextlib.contextmanager
def watched() -> Iterator[tuple[Stages, Stop]]:
    """Show progress on stderr and answer Ctrl-C, while the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    with Stop() as stop:
        if not console.is_terminal:
            yield Stages(stop, None), stop
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("objective {task.fields[objective]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            yield Stages(stop, bar), stop
