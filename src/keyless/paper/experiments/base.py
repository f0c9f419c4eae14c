"""What all experiments share: finished cells are kept and not repeated, and results go to the same five files.

An experiment is a function of an `ExperimentRun` that returns an `Outcome`. It does its work in cells, small pieces
named by everything that determines them; each finished cell is one JSON file under the out folder, so that a run that
was killed goes on where it stopped.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, delayed
from matplotlib import rc_context
from matplotlib.figure import Figure

import keyless
from keyless.arrays import check_count
from keyless.errors import InputError
from keyless.parallel import one_thread
from keyless.places import replacing
from keyless.progress import Callback

__all__ = ["COLUMNS", "Experiment", "ExperimentRun", "Interrupted", "Outcome", "markdown", "run_experiment", "show"]

COLUMNS = ("setting", "paper", "our M³O", "keyless", "oracle")
"""Of the table that every experiment prints: what the paper reports, what its method gives here, what keyless gives,
and what knowing the unknown would give."""

_PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas", "matplotlib")
_MISSING = "–"

Value = TypeVar("Value")


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop; what is finished is kept."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an experiment found.

    Attributes:
        table: the rows of the printed table; keys are `COLUMNS`, those left out show as a dash.
        rows: everything measured, one record each, for the CSV file; keys may differ between records.
        figure: the picture.
        settings: what determined the numbers.
        notes: what a reader must know to read them: where they are smaller than the paper's, and why they differ.
    """

    table: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    figure: Figure
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One figure or table of the paper, or a question beside it.

    Attributes:
        name: what the command line calls it.
        title: what it shows, in a line.
        run: does it.
        paper: what the paper reports, in words; empty where it reports nothing.
        leaks: where the published protocol lets the answer in or prints what does not hold; empty where it does not.
        columns: headings of the printed table.
    """

    name: str
    title: str
    run: Callable[[ExperimentRun], Outcome] = field(repr=False)
    paper: str = ""
    leaks: str = ""
    columns: Sequence[str] = COLUMNS


class ExperimentRun:
    """Where a run of one experiment keeps its cells, and how large it may be.

    Args:
        out: folder for the results; made when needed.
        name: of the experiment.
        quick: whether to run the small form.
        seeds: how many random starts or data sets to take the place of the experiment's own number; None: its own.
        jobs: how many processes work on cells.
        callback: told how many cells are done; a true answer stops the run.

    Example:
        >>> import tempfile
        >>> run = ExperimentRun(Path(tempfile.mkdtemp()), "square")
        >>> run.cell("2", lambda: 2 * 2), run.cell("2", lambda: 1 / 0)  # the second time it is read
        (4, 4)
    """

    def __init__(
        self,
        out: Path,
        name: str,
        *,
        quick: bool = False,
        seeds: int | None = None,
        jobs: int = 1,
        callback: Callback | None = None,
    ) -> None:
        self.out, self.name, self.quick = Path(out), name, quick
        self.seeds = None if seeds is None else check_count(seeds, name="seeds")
        self.jobs = check_count(jobs, name="jobs")
        self._callback = callback
        self.seconds: dict[str, float] = {}
        self.kept = 0

    @property
    def folder(self) -> Path:
        """Where finished cells are kept."""
        return self.out / "cells" / self.name

    def count(self, full: int, quick: int) -> int:
        """Return how many random starts or data sets to take: `seeds` where given, else by the size of the run."""
        return self.seeds if self.seeds is not None else self.size(full, quick)

    def size(self, full: Value, quick: Value) -> Value:
        """Return the first of the full run, the second of the quick one."""
        return quick if self.quick else full

    def cell(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for this key, now or in an earlier run into the same folder.

        Args:
            key: everything that determines the result, in words; a quick cell is not a full one's.
            make: does the work; returns what JSON can hold (numpy numbers and arrays are converted).
        """
        return self.cells([(key, make)])[key]

    def cells(self, tasks: Iterable[tuple[str, Callable[[], Any]]], *, stage: str = "cells") -> dict[str, Any]:
        """Return the result of every task by its key, `jobs` at a time, each kept as soon as it is finished.

        Args:
            tasks: keys and what makes them, as for `cell`; with several jobs each is sent to another process.
            stage: what progress calls them.
        """
        todo = list(tasks)
        keys = [key for key, _ in todo]
        if len({_file_name(key) for key in keys}) < len(keys):
            raise InputError(f"{self.name}: cells must have different keys; found {keys}.")
        found: dict[str, Any] = {}
        for key in keys:
            kept = self._read(key)
            if kept is not None:
                found[key], self.seconds[key] = kept["value"], kept["seconds"]
                self.kept += 1
        missing = [(key, make) for key, make in todo if key not in found]
        self._tell(stage, len(found), len(keys))
        workers = Parallel(n_jobs=min(self.jobs, max(1, len(missing))), return_as="generator_unordered")
        for key, value, seconds in workers(delayed(_timed)(key, make) for key, make in missing):
            found[key] = self._keep(key, value, seconds)
            self._tell(stage, len(found), len(keys))
        return {key: found[key] for key in keys}

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self._callback is not None and self._callback(f"{self.name}: {stage}", done, total, float("nan")):
            raise Interrupted(f"finished cells are kept in {self.folder}; the same command goes on from there.")

    def _place(self, key: str) -> Path:
        return self.folder / f"{'quick' if self.quick else 'full'} {_file_name(key)}.json"

    def _read(self, key: str) -> dict[str, Any] | None:
        try:
            kept = json.loads(self._place(key).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        is_ours = isinstance(kept, dict) and kept.get("key") == key and kept.get("keyless") == keyless.__version__
        return kept if is_ours else None

    def _keep(self, key: str, value: Any, seconds: float) -> Any:
        kept = {"key": key, "keyless": keyless.__version__, "seconds": round(seconds, 3), "value": value}
        text = json.dumps(kept, default=_plain, ensure_ascii=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self._place(key), text)
        self.seconds[key] = kept["seconds"]
        # What was kept is what is used, so that a resumed run gives the same numbers.
        return json.loads(text)["value"]


def run_experiment(
    experiment: Experiment,
    out: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int = 1,
    callback: Callback | None = None,
) -> str:
    """Run an experiment, write its figure (PNG and SVG), CSV, JSON and Markdown, and return the Markdown.

    Args:
        experiment: what to run.
        out: folder for the results; made when needed. Finished cells in it are not repeated.
        quick: run the small form.
        seeds: how many random starts or data sets to take.
        jobs: how many processes work.
        callback: told how many cells are done; a true answer stops the run.
    """
    run = ExperimentRun(Path(out), experiment.name, quick=quick, seeds=seeds, jobs=jobs, callback=callback)
    run.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    outcome = experiment.run(run)
    text = show(experiment, outcome.table, outcome.notes, quick=quick)
    document = {
        "experiment": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "leaks": experiment.leaks,
        "quick": quick,
        "seeds": seeds,
        "settings": outcome.settings,
        "table": outcome.table,
        "columns": list(experiment.columns),
        "notes": list(outcome.notes),
        "rows": outcome.rows,
        "keyless": keyless.__version__,
        "commit": _commit(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "seconds": {
            "this run": round(time.monotonic() - began, 3),
            "all cells": round(sum(run.seconds.values()), 3),
            "cells": run.seconds,
        },
        "cells": {"all": len(run.seconds), "kept from before": run.kept},
    }
    _write(run.out / f"{experiment.name}.json", json.dumps(document, default=_plain, ensure_ascii=False, indent=1))
    _write(run.out / f"{experiment.name}.csv", _csv(outcome.rows))
    _write(run.out / f"{experiment.name}.md", text)
    with rc_context({"svg.hashsalt": experiment.name}):
        outcome.figure.savefig(run.out / f"{experiment.name}.svg", metadata={"Date": None}, facecolor="white")
        outcome.figure.savefig(run.out / f"{experiment.name}.png", dpi=150, facecolor="white")
    return text


def _commit() -> str | None:
    """Return the commit of a source checkout that this runs from; None for an installed package."""
    source = Path(__file__).parent
    try:
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", __file__], capture_output=True, check=False, cwd=source
        )
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=source
        )
    except OSError:
        return None
    return None if tracked.returncode or head.returncode else head.stdout.strip()


def show(
    experiment: Experiment, table: Sequence[Mapping[str, Any]], notes: Sequence[str], *, quick: bool = False
) -> str:
    """Return an experiment's result as Markdown: heading, table, notes.

    Args:
        experiment: whose result.
        table: as in `Outcome`.
        notes: as in `Outcome`.
        quick: whether this is the small form.
    """
    lines = [f"## {experiment.title}", ""]
    if quick:
        lines += ["This is the quick form: fewer or smaller cases than the full one.", ""]
    lines += [markdown(table, experiment.columns), *(f"* {note}" for note in notes)]
    return "\n".join(lines).rstrip() + "\n"


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Return rows as a Markdown table; a missing entry is a dash.

    Args:
        rows: one mapping from column to text or number each.
        columns: which, in order.

    Example:
        >>> print(markdown([{"setting": "rank 5", "keyless": 0.0}], ["setting", "paper", "keyless"]))
        | setting | paper | keyless |
        |---|---|---|
        | rank 5 | – | 0 |
        <BLANKLINE>
    """
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(_shown(row.get(column)) for column in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|")


def _timed(key: str, make: Callable[[], Value]) -> tuple[str, Value, float]:
    began = time.process_time()
    with one_thread():
        value = make()
    return key, value, time.process_time() - began


def _file_name(key: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_.,=+ " else "_" for letter in key)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")
