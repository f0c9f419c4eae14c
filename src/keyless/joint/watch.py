"""Progress, time limit, and the record of what was tried."""

from __future__ import annotations

from dataclasses import dataclass, field

from keyless.progress import Callback, Deadline, is_late

__all__ = ["Start", "Watch"]


@dataclass(frozen=True)
class Start:
    """One start of the search.

    Attributes:
        pair: numbers of the tables on either side.
        name: what kind of start it was.
        score: mean log-likelihood ratio per row it led to, before all tables are refined together.
    """

    pair: tuple[tuple[int, ...], tuple[int, ...]]
    name: str
    score: float


@dataclass
class Watch:
    """Reports progress, keeps the time, and records the starts.

    Attributes:
        callback: called with stage, step, total (0 where not known beforehand) and objective.
        deadline: when to stop; None: never.
        starts: what was tried so far.
        stopped: whether anything was cut short.
    """

    callback: Callback | None = None
    deadline: Deadline | None = None
    starts: list[Start] = field(default_factory=list)
    stopped: bool = False

    def expired(self) -> bool:
        """Tell whether time is up."""
        if is_late(self.deadline):
            self.stopped = True
        return self.stopped

    def report(self, stage: str, step: int, total: int, objective: float) -> None:
        """Tell the callback how far things are."""
        if self.callback is not None:
            self.callback(stage, step, total, objective)

    def record(self, start: Start) -> None:
        """Remember a start and report it."""
        self.starts.append(start)
        self.report("starts", len(self.starts), 0, start.score)
