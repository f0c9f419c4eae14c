"""A live view of a run, driven by the one progress callback (stage, step, total, objective).

    with progress.terminal_view() as callback:
        links = keyless.link(tables, callback=callback)

In a notebook the same with `progress.notebook_view()`: a cell's output that is rewritten, no widgets. The command line
shows what `terminal_view` shows.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from keyless.errors import InputError
from keyless.progress.limits import Callback

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["SCORED", "Stage", "Stages", "in_words", "notebook_view", "terminal_view", "usual_view"]

_STAGES = {
    "reading": "Reading the tables",
    "tables": "Learning from each table",
    "search": "Trying ways to fit the tables",
    "map": "Trying ways to fit a few rows",
    "joins": "Joining the tables",
    "refine": "Improving the best way",
    "candidates": "Listing likely partners",
    "chance": "Measuring what chance reaches",
    "calibration": "Measuring how sure matches are",
    "matched": "Matching the rows",
    "last steps": "Last steps",
}
"""Stages as the library calls them, in at most 30 characters: the view of a terminal has 80 in a line."""

SCORED = ("search", "refine", "calibration", "matched")
"""Stages of a search whose objective says how well the best way so far fits, in nats a row."""

UNSCORED = frozenset(_STAGES) - set(SCORED)
"""Stages of a search whose objective is something else, which is not shown."""

_REFRESH = 0.1
"""Seconds between two drawings."""

_QUIET = 30.0
"""Seconds between two lines about the same stage, where there is nothing to draw on."""

_BAR = 10
"""Characters of a bar: with the words of a stage and its times, a line has 80."""


@dataclass
class Stage:
    """What is known of one stage.

    Attributes:
        name: of the stage.
        seconds: how long it has taken.
        step: how far it is.
        total: how far it goes; 0 where that is not known.
        objective: the last value.
        counting: seconds since its steps were last counted from the beginning.
    """

    name: str
    seconds: float = 0.0
    step: int = 0
    total: int = 0
    objective: float = math.nan
    counting: float = 0.0

    @property
    def left(self) -> float | None:
        """Seconds left at the speed so far; None where that is not known."""
        if not self.total or not self.step or self.step >= self.total:
            return None
        return self.counting / self.step * (self.total - self.step)


class Stages:
    """A progress callback that keeps what it is told, stage by stage.

    Args:
        clock: tells the time in seconds.

    Attributes:
        listed: the stages, the one at work last.
        after: called with the stage after each report.

    Example:
        >>> stages = Stages(clock=iter([0.0, 2.0, 4.0]).__next__)
        >>> stages("search", 1, 4, 2.5)
        >>> stages("search", 2, 4, 3.0)
        >>> stages.listed[0].seconds, stages.listed[0].left
        (4.0, 4.0)
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = self.heard = clock()
        self.listed: list[Stage] = []
        self.after: Callable[[Stage], object] | None = None

    def __call__(self, stage: str, step: int, total: int, objective: float) -> None:
        """Take in one report."""
        before = self.heard
        known = self.spent(stage)
        if step < known.step:
            known.counting = self.heard - before
        known.step, known.total, known.objective = step, total, float(objective)
        if self.after is not None:
            self.after(known)

    def spent(self, stage: str) -> Stage:
        """Book the time since the last report on a stage, which becomes the one at work."""
        # A report comes when its step is done: the time since the last one belongs to its stage.
        before, self.heard = self.heard, self._clock()
        known = next((one for one in self.listed if one.name == stage), None)
        if known is None:
            known = Stage(stage)
            self.listed.append(known)
        elif known is not self.listed[-1]:
            # A stage that comes again is the one at work.
            self.listed.remove(known)
            self.listed.append(known)
        known.seconds += self.heard - before
        known.counting += self.heard - before
        return known

    @property
    def timings(self) -> dict[str, float]:
        """Seconds per stage so far."""
        return {stage.name: stage.seconds for stage in self.listed}

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return self._clock() - self.began


@contextlib.contextmanager
def terminal_view(console: Console | None = None, *, lines: Callable[[str], object] | None = None) -> Iterator[Stages]:
    """Show stages, bars, score and time in a terminal while the block runs.

    Args:
        console: where to draw; standard error unless given.
        lines: where there is no terminal, takes a line when a stage begins and now and then; None: nothing is shown.
    """
    from rich.console import Console as NewConsole  # noqa: PLC0415 - loaded when something is shown
    from rich.live import Live  # noqa: PLC0415

    console = NewConsole(stderr=True) if console is None else console
    stages = Stages()
    if not console.is_terminal:
        stages.after = None if lines is None else _in_lines(stages, lines)
        yield stages
        return
    # Drawn by a thread of its own, so that the clock goes on between reports.
    with Live(
        get_renderable=lambda: _terminal_table(stages), console=console, transient=True,
        refresh_per_second=1 / _REFRESH, redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    ):  # fmt: skip
        yield stages


def _in_lines(stages: Stages, lines: Callable[[str], object]) -> Callable[[Stage], None]:
    last, told = "", -math.inf

    def tell(stage: Stage) -> None:
        nonlocal last, told
        if stage.name != last or stages.heard - told > _QUIET:
            last, told = stage.name, stages.heard
            known = f" of {stage.total}" if stage.total else ""
            score = (
                f", best so far {_value(stage)} nats a row" if stage.name in SCORED else f", objective {_value(stage)}"
            )
            lines(f"{in_words(stage.name).lower()}, step {stage.step}{known}{'' if stage.name in UNSCORED else score}")

    return tell


def _terminal_table(stages: Stages) -> Table:
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.spinner import Spinner  # noqa: PLC0415
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Grid.grid(padding=(0, 1))
    for column in range(7):
        grid.add_column(no_wrap=True, justify="right" if column in (3, 4, 5) else "left")
    grid.add_row("", *(Text(name, style="dim") for name in ("stage", "", "step", "score", "time", "")))
    styles = ("dim", "", "dim", "cyan")
    # Copied: the work goes on while this draws.
    listed = list(stages.listed)
    for stage in listed:
        current = stage is listed[-1]
        bar: ProgressBar | str = ""
        if stage.total or current:
            known = stage.total or None
            bar = ProgressBar(total=known, completed=min(stage.step, known or 0), width=_BAR, pulse=known is None)
        grid.add_row(
            Spinner("dots") if current else Text("✓", style="green"),
            Text(in_words(stage.name), style="bold" if current else "dim"),
            bar,
            *(Text(cell, style=style) for cell, style in zip(_cells(stage, current=current), styles, strict=True)),
        )
    grid.add_row("", Text("in all", style="dim"), "", "", "", Text(_clock(stages.seconds), style="dim"), "")
    return grid


@contextlib.contextmanager
def usual_view(callback: Callback | None = None) -> Iterator[Callback | None]:
    """Show what suits the place: the notebook's view in a notebook, the terminal's in a terminal, else nothing.

    Args:
        callback: what the caller has for this; it is then all there is.
    """
    if callback is not None:
        yield callback
    elif _in_notebook():
        with notebook_view() as stages:
            yield stages
    elif sys.stderr is not None and sys.stderr.isatty():
        with terminal_view() as stages:
            yield stages
    else:
        yield None


def _in_notebook() -> bool:
    """Tell whether a kernel of Jupyter runs this, without importing anything."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


@contextlib.contextmanager
def notebook_view() -> Iterator[Stages]:
    """Show stages, bars, score and time in the output of a notebook's cell while the block runs."""
    try:
        # By name: its types are not known everywhere.
        shown: Any = importlib.import_module("IPython.display")
    except ImportError as error:
        raise InputError(
            "notebook_view: must run in a notebook; IPython is not installed. Use terminal_view."
        ) from error
    stages, drawn = Stages(), -math.inf
    handle = shown.display(shown.HTML(_html(stages, done=False)), display_id=True)

    def draw(_stage: Stage) -> None:
        nonlocal drawn
        if handle is not None and stages.heard - drawn >= _REFRESH:
            drawn = stages.heard
            handle.update(shown.HTML(_html(stages, done=False)))

    stages.after = draw
    try:
        yield stages
    finally:
        if handle is not None:
            handle.update(shown.HTML(_html(stages, done=True)))


def _html(stages: Stages, *, done: bool) -> str:
    lines = []
    for stage in stages.listed:
        current, words = stage is stages.listed[-1] and not done, escape(in_words(stage.name))
        bar = ""
        if stage.total or current:
            known = f' max="{stage.total}" value="{min(stage.step, stage.total)}"' if stage.total else ""
            bar = f'<progress aria-label="{words}"{known}></progress>'
        cells = _cells(stage, current=current)
        name = f"<strong>{words}</strong>" if current else f"✓ {words}"
        lines.append(
            f'<tr><td style="text-align:left">{name}</td><td>{bar}</td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    head = "".join(f"<th>{name}</th>" for name in ("stage", "", "step", "score", "time", "left"))
    told = f"Done in {_clock(stages.seconds)}." if done else f"Running for {_clock(stages.seconds)}."
    return f"<div><p>{told}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def _cells(stage: Stage, *, current: bool) -> tuple[str, str, str, str]:
    """Return how far a stage is, how well the best way fits, how long it has taken, and how long it will take."""
    steps = f"{stage.step:,}/{stage.total:,}" if stage.total else f"{stage.step:,}" if stage.step else ""
    left = "" if stage.left is None or not current else f"about {_clock(stage.left)} left"
    return steps, _value(stage), _clock(stage.seconds), left


def _value(stage: Stage) -> str:
    return f"{stage.objective:,.2f}" if math.isfinite(stage.objective) and stage.name not in UNSCORED else "–"


def _clock(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02d} h"


def in_words(stage: str) -> str:
    """Return what a stage does; a stage of another kind of work keeps its name.

    Args:
        stage: its name, as the callback is told it.

    Example:
        >>> in_words("chance"), in_words("factor 3")
        ('Measuring what chance reaches', 'factor 3')
    """
    return _STAGES.get(stage, stage)
