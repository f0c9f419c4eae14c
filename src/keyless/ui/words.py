"""What the page says of the work: stages and times in words."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from keyless.progress import SCORED, in_words
from keyless.ui.jobs import Job

__all__ = ["STATES", "clock", "job_view"]

STATES = {
    "waiting": "Waiting",
    "running": "Running",
    "done": "Done",
    "stopped": "Stopped",
    "failed": "Failed",
    "cut off": "Cut off",
}


_LIMIT = re.compile(r"--max-time=(\d{1,9}(?:\.\d*)?)")


def clock(seconds: float) -> str:
    """Return a time in words.

    Example:
        >>> [clock(seconds) for seconds in (3.2, 75, 4000)]
        ['3 s', '1 min 15 s', '1 h 6 min']
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole // 60 % 60} min"


def job_view(job: Job, progress: Mapping[str, Any], *, ahead: int) -> dict[str, Any]:
    """Return how far a job is, as the page shows it.

    Args:
        job: the job.
        progress: what the work told last.
        ahead: how many jobs come before it.
    """
    stages: Sequence[Mapping[str, Any]] = progress.get("stages", ())
    until = job.ended or time.time()
    # What the work told last is some time ago: the clock of the stage at work goes on.
    since = max(0.0, until - job.started - float(progress.get("seconds", 0.0))) if job.started else 0.0
    lines = []
    for number, stage in enumerate(stages):
        current = number == len(stages) - 1 and job.state == "running"
        left = None if stage.get("left") is None else stage["left"] - since
        lines.append(
            {
                "name": in_words(str(stage["name"])),
                "current": current,
                "step": stage["step"],
                "total": stage["total"],
                "seconds": clock(float(stage["seconds"]) + (since if current else 0.0)),
                "left": f"about {clock(left)} left" if current and left is not None and left >= 1 else "",
            }
        )
    scored = [one["objective"] for one in stages if one["name"] in SCORED and one["objective"] is not None]
    limits = [float(found[1]) for word in job.words if (found := _LIMIT.fullmatch(word))]
    rest = clock(max(0.0, limits[0] - (until - job.started))) if limits and job.state == "running" else ""
    return {
        "number": job.number,
        "state": job.state,
        "title": STATES[job.state],
        "run": job.run,
        "message": job.message,
        "ahead": ahead,
        "seconds": clock(until - job.started) if job.started else "",
        "rest": rest,
        "best": f"{scored[-1]:.1f}" if scored else "",
        "stages": lines,
        "can_go_on": job.can_go_on,
    }
