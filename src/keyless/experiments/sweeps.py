"""The paper's sweeps: wrong rows against observed fraction, noise, rank and the width of the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from keyless.experiments.base import Experiment, Outcome, Run
from keyless.experiments.drawing import finish, legend, panels, ranged
from keyless.experiments.synthetic import draw, keyless_wrong, m3o_note, m3o_run, oracle_wrong

__all__ = ["EXPERIMENT"]

_SWEEPS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "observed": ((0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0), (0.3, 0.8)),
    "noise": ((0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5), (0.5, 1.25)),
    "rank": ((5, 10, 15, 20, 25), (10,)),
    "m_A/n": ((0.1, 0.2, 0.4, 0.6, 0.8, 0.9), (0.2,)),
}
"""Values of the full and of the quick run; the paper's are in a figure only."""

_LABELS = {"observed": "observed fraction", "noise": "noise η", "rank": "rank r", "m_A/n": "m_A/n"}


def _run(run: Run) -> Outcome:
    starts = run.count(10, 2)
    points = [(axis, value) for axis, values in _SWEEPS.items() for value in run.size(*values)]
    tasks: list[tuple[str, Callable[[], Any]]] = []
    for axis, value in points:
        name = f"{axis.replace('/', ' by ')}={value}"
        tasks += [(f"settled M³O {name} start={s}", partial(_m3o, axis, value, s, run.quick)) for s in range(starts)]
        tasks += [(f"keyless {name} start={s}", partial(_keyless, axis, value, s)) for s in range(starts)]
        tasks.append((f"oracle {name}", partial(_oracle, axis, value)))
    found = run.cells(tasks)
    runs = {key.removeprefix("settled "): value for key, value in found.items() if key.startswith("settled ")}
    found |= {key: value["wrong"] for key, value in runs.items()}

    rows: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    for axis, value in points:
        name = f"{axis.replace('/', ' by ')}={value}"
        by_method = {
            method: [found[f"{method} {name} start={start}"] for start in range(starts)]
            for method in ("M³O", "keyless")
        }
        rows += [
            {"axis": axis, "value": value, "method": method, "start": start, "wrong rows": wrong}
            for method, numbers in by_method.items()
            for start, wrong in enumerate(numbers)
        ]
        rows.append({"axis": axis, "value": value, "method": "oracle", "wrong rows": found[f"oracle {name}"]})
        table.append(
            {
                "setting": f"{_LABELS[axis]} {value:g}",
                "our M³O": _range(by_method["M³O"]),
                "keyless": _range(by_method["keyless"]),
                "oracle": found[f"oracle {name}"],
            }
        )
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(rows),
        settings={"n": 100, "m": 100, "rank": 5, "noise": 0.1, "observed": 0.8, "m_A": 60, "starts": starts},
        notes=(
            "Wrong rows of 100: mean (min to max) over random starts on one data set per point. What is not named is "
            "as in figure 1: n = m = 100, rank 5, noise 0.1, 80% observed, 60 + 40 columns.",
            "The paper gives a figure without numbers, so its column is empty.",
            m3o_note(list(runs.values()), quick=run.quick),
        ),
    )


def _drawn(axis: str, value: float) -> Any:
    match axis:
        case "m_A/n":
            columns = round(100 * value)
            return draw(0, column_counts=(columns, 100 - columns))
        case "rank":
            return draw(0, rank=int(value))
        case _:
            return draw(0, **{axis: value})


def _m3o(axis: str, value: float, start: int, quick: bool) -> dict[str, Any]:
    return m3o_run(_drawn(axis, value), start, quick=quick)


def _keyless(axis: str, value: float, start: int) -> float:
    return keyless_wrong(_drawn(axis, value), start)


def _oracle(axis: str, value: float) -> float:
    return oracle_wrong(_drawn(axis, value))


def _range(numbers: list[float]) -> str:
    return f"{np.mean(numbers):.1f} ({min(numbers):g} to {max(numbers):g})"


def _figure(rows: list[dict[str, Any]]) -> Any:
    axes = panels(len(_SWEEPS), columns=2)
    for ax, axis in zip(axes, _SWEEPS, strict=True):
        for number, (method, label) in enumerate((("M³O", "our M³O"), ("keyless", "keyless"), ("oracle", "oracle"))):
            chosen = [row for row in rows if row["axis"] == axis and row["method"] == method]
            places = sorted({row["value"] for row in chosen})
            values = [[row["wrong rows"] for row in chosen if row["value"] == place] for place in places]
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
    run=_run,
)
