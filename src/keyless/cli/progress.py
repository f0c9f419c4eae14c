"""How far the work is, on stderr and in a file. Ctrl-C once: stop soon with the best so far; twice: quit."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from keyless.cli.app import say
from keyless.places import replacing
from keyless.progress import Stage, Stages, answering_signals, terminal_view

__all__ = ["PROGRESS", "Watch", "watched"]

PROGRESS = "KEYLESS_PROGRESS"
"""Environment variable that names a file, which is kept up to date with how far the work is, for another program."""

_RENEWED = 0.5
"""Seconds between two versions of that file, at least."""

_MESSAGE = b"\nkeyless: stopping with the best so far (press Ctrl-C again to quit at once)\n"


class Watch:
    """A callback for the library that shows progress and passes on a request to stop.

    Attributes:
        stages: what was told so far.
        interrupted: whether a signal came.
    """

    def __init__(self, stages: Stages) -> None:
        self.stages, self.interrupted = stages, False

    def __call__(self, stage: str, step: int, total: int, objective: float) -> bool:
        """Show one step; tell whether to stop."""
        self.stages(stage, step, total, objective)
        return self.interrupted

    def stop(self) -> None:
        """Answer a signal."""
        self.interrupted = True
        # Straight to the file: the signal may have come while stderr's buffer was in use.
        os.write(2, _MESSAGE)


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Show progress on stderr, as a view on a terminal and in lines elsewhere, and answer Ctrl-C meanwhile."""
    with terminal_view(lines=say) as stages:
        if os.environ.get(PROGRESS):
            stages.after = _into_file(stages, Path(os.environ[PROGRESS]), also=stages.after)
        watch = Watch(stages)
        with answering_signals(watch.stop, signals=(signal.SIGINT, signal.SIGTERM)):
            yield watch


def _into_file(stages: Stages, path: Path, *, also: Callable[[Stage], object] | None) -> Callable[[Stage], None]:
    """Return what keeps a file of the stages as JSON: name, seconds, step, total, objective, seconds left."""
    last, told = "", -math.inf

    def tell(stage: Stage) -> None:
        nonlocal last, told
        if also is not None:
            also(stage)
        if stage.name == last and stages.heard - told < _RENEWED:
            return
        last, told = stage.name, stages.heard
        listed = [
            {
                "name": one.name,
                "seconds": one.seconds,
                "step": one.step,
                "total": one.total,
                "objective": one.objective if math.isfinite(one.objective) else None,
                "left": one.left,
            }
            for one in stages.listed
        ]
        # The work goes on also where nobody can be told of it.
        with contextlib.suppress(OSError), replacing(path) as fresh:
            fresh.write_text(json.dumps({"seconds": stages.seconds, "stages": listed}), encoding="utf-8")

    return tell
