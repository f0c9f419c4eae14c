"""How far the work is, on stderr, and the answer to Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keyless.cli.app import say
from keyless.cli.stopping import Stop
from keyless.live import Stages, terminal_view

__all__ = ["Watch", "watched"]


class Watch:
    """A callback for the library that shows progress and passes on a request to stop.

    Attributes:
        stages: what was told so far.
    """

    def __init__(self, stages: Stages, stop: Stop) -> None:
        self.stages, self._stop = stages, stop

    def __call__(self, stage: str, step: int, total: int, objective: float) -> bool:
        """Show one step; tell whether to stop."""
        self.stages(stage, step, total, objective)
        return self.interrupted

    @property
    def interrupted(self) -> bool:
        """Whether a signal came."""
        return self._stop.requested


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Show progress on stderr, as a view on a terminal and in lines elsewhere, and answer Ctrl-C meanwhile."""
    with Stop() as stop, terminal_view(lines=say) as stages:
        yield Watch(stages, stop)
