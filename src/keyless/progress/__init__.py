"""How far a run is, how that is shown, and when it stops."""

from keyless.progress.limits import (
    Callback,
    Deadline,
    answering_signals,
    check_time,
    cut_short,
    in_time,
    is_late,
    stopped_by_interrupt,
    time_left,
)
from keyless.progress.shown import SCORED, Stage, Stages, in_words, notebook_view, terminal_view, usual_view

__all__ = [
    "SCORED",
    "Callback",
    "Deadline",
    "Stage",
    "Stages",
    "answering_signals",
    "check_time",
    "cut_short",
    "in_time",
    "in_words",
    "is_late",
    "notebook_view",
    "stopped_by_interrupt",
    "terminal_view",
    "time_left",
    "usual_view",
]
