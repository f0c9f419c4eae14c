"""The paper's sweeps: wrong rows against observed fraction, noise, rank and the width of the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome
from keyless.paper.experiments.drawing import finish, legend, panels, ranged
from keyless.paper.experiments.synthetic import (
    PresetName,
    draw_released,
    keyless_wrong,
    m3o_note,
    m3o_run,
    oracle_wrong,
)

__all__ = ["EXPERIMENT"]

_SWEEPS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "observed": ((0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0), (0.3, 0.8)),
    "noise": ((0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5), (0.5, 1.25)),
    "rank": ((5, 10, 15, 20, 25), (10,)),
    "m_A/n": ((0.1, 0.2, 0.4, 0.6, 0.8, 0.9), (0.2,)),
}
"""Values of the full and of the quick run; the paper's are in a figure only."""

_LABELS = {"observed": "observed fraction", "noise": "noise η", "rank": "rank r", "m_A/n": "m_A/n"}


_METHODS = {"released": "M³O as released", "printed": "M³O as printed", "keyless": "keyless", "oracle": "oracle"}
"""Columns of the table, and what the figure calls them."""


def _run(run: ExperimentRun) -> Outcome:
    starts = run.count(10, 2)
    points = [(axis, value) for axis, values in _SWEEPS.items() for value in run.size(*values)]
    tasks: list[tuple[str, Callable[[], Any]]] = []
    for axis, value in points:
        name = _named(axis, value)
        tasks += [
            (f"released {name} start={s}", partial(_m3o, "released", axis, value, s, run.quick)) for s in range(starts)
        ]
        tasks.append((f"printed {name} start=0", partial(_m3o, "printed", axis, value, 0, run.quick)))
        tasks += [(f"keyless {name} start={s}", partial(_keyless, axis, value, s)) for s in range(min(starts, 2))]
        tasks.append((f"oracle {name} start=0", partial(_oracle, axis, value)))
    found = run.cells(tasks)

    rows: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    for axis, value in points:
        entry: dict[str, Any] = {"setting": f"{_LABELS[axis]} {value:g}"}
        for method in _METHODS:
            prefix = f"{method} {_named(axis, value)} start="
            cells = {key.removeprefix(prefix): cell for key, cell in found.items() if key.startswith(prefix)}
            rows += [
                {"axis": axis, "value": value, "method": method, "start": int(start), **cell}
                for start, cell in cells.items()
            ]
            entry[method] = _range([cell["wrong"] for cell in cells.values()])
        table.append(entry)
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(rows),
        settings={"n": 100, "m": 100, "rank": 5, "noise": 0.1, "observed": 0.8, "m_A": 60, "starts": starts},
        notes=(
            "Wrong rows of 100 on one data set per point; where there are several starts, mean (min to max). Random "
            f"starts of the released rule: {starts}; of the printed one: 1; of keyless: {min(starts, 2)}. What is not "
            "named is as in figure 1: n = m = 100, rank 5, noise 0.1, 80% observed, 60 + 40 columns.",
            "The paper gives a figure without numbers, so its column is empty.",
            m3o_note([row for row in rows if row["method"] == "released"]),
        ),
    )


def _named(axis: str, value: float) -> str:
    return f"{axis.replace('/', ' by ')}={value}"


def _drawn(axis: str, value: float) -> Any:
    match axis:
        case "m_A/n":
            columns = round(100 * value)
            return draw_released(0, column_counts=(columns, 100 - columns))
        case "rank":
            return draw_released(0, rank=int(value))
        case _:
            return draw_released(0, **{axis: value})


def _m3o(preset: PresetName, axis: str, value: float, start: int, quick: bool) -> dict[str, Any]:
    return m3o_run(_drawn(axis, value), start, preset=preset, quick=quick)


def _keyless(axis: str, value: float, start: int) -> dict[str, float]:
    return {"wrong": keyless_wrong(_drawn(axis, value), start)}


def _oracle(axis: str, value: float) -> dict[str, float]:
    return {"wrong": oracle_wrong(_drawn(axis, value))}


def _range(numbers: list[float]) -> str:
    if len(numbers) == 1:
        return f"{numbers[0]:g}"
    return f"{np.mean(numbers):.1f} ({min(numbers):g} to {max(numbers):g})"


def _figure(rows: list[dict[str, Any]]) -> Any:
    axes = panels(len(_SWEEPS), columns=2)
    for ax, axis in zip(axes, _SWEEPS, strict=True):
        for number, (method, label) in enumerate(_METHODS.items()):
            chosen = [row for row in rows if row["axis"] == axis and row["method"] == method]
            places = sorted({row["value"] for row in chosen})
            values = [[row["wrong"] for row in chosen if row["value"] == place] for place in places]
            ranged(ax, places, values, number=number, label=label)
        ax.set_ylim(-3, 103)
        finish(ax, title=f"Against {_LABELS[axis]}", xlabel=_LABELS[axis], ylabel="wrong rows of 100")
    return legend(axes[0])


EXPERIMENT = Experiment(
    name="sweeps",
    title="Wrong rows against observed fraction, noise, rank and m_A/n",
    paper=(
        "A figure, mean with minimum and maximum over 10 random starts; the text says that the results are well "
        "aligned with Remarks 1 and 2."
    ),
    leaks="As for table1: λ is the best of three per setting, by a criterion that is not named.",
    columns=("setting", "paper", *_METHODS),
    run=_run,
)
