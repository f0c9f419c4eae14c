"""How far the work is, on stderr, and the answer to Ctrl-C: once to stop soon with the best so far, twice to quit."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from keyless.cli.app import say
from keyless.progress import Stages, answering_signals, terminal_view

__all__ = ["Watch", "watched"]

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
        watch = Watch(stages)
        with answering_signals(watch.stop, signals=(signal.SIGINT, signal.SIGTERM)):
            yield watch
