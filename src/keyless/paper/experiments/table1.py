"""The paper's table of d-correspondence problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from keyless.paper.experiments.base import Experiment, Outcome, Run
from keyless.paper.experiments.drawing import bars, finish, legend, panels
from keyless.paper.experiments.synthetic import (
    PENALTIES,
    RELEASED_PENALTY,
    PresetName,
    draw_released,
    keyless_wrong,
    m3o_note,
    m3o_run,
    oracle_wrong,
    summary,
)

__all__ = ["EXPERIMENT", "SETTINGS", "cell_key", "m3o_methods"]

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "(100; 40, 30, 30), 40%": ("33.35±32.85 (0.00)", {"column_counts": (40, 30, 30), "observed": 0.4}),
    "(100; 20, 40, 40), 40%": ("58.90±27.21 (2.00)", {"column_counts": (20, 40, 40), "observed": 0.4}),
    "(100; 45, 25, 25, 25), 50%": ("61.97±15.41 (37.33)", {"column_counts": (45, 25, 25, 25), "observed": 0.5}),
    "(100; 40, 25, 25, 25, 25), 60%": ("59.90±13.64 (38.50)", {"column_counts": (40, 25, 25, 25, 25), "observed": 0.6}),
}
"""What the paper reports, and how the tables are drawn; rank 5, noise 0.1."""

_RELEASED = f"released, λ = {RELEASED_PENALTY}"

Wrong = dict[tuple[int, int], float]
"""Wrong rows per table by data set and start."""


def cell_key(method: str, name: str, data: int, start: int) -> str:
    """Return the key under which a finished run is kept.

    Args:
        method: as in `m3o_methods`, or `"keyless"` or `"oracle"`.
        name: of the setting.
        data: seed of the data set.
        start: seed of the start.
    """
    return f"{method}, {name}, data={data} start={start}"


def m3o_methods(name: str) -> dict[str, tuple[PresetName, float | None]]:
    """Return the forms of M³O that are run in a setting: preset and λ by name. The first one is run from all starts.

    Args:
        name: of the setting.
    """
    found: dict[str, tuple[PresetName, float | None]] = {_RELEASED: ("released", RELEASED_PENALTY)}
    # The script has the first setting alone, so that the other λ are shown there.
    if name == next(iter(SETTINGS)):
        found |= {f"released, λ = {other}": ("released", other) for other in PENALTIES if other != RELEASED_PENALTY}
    return found | {"printed": ("printed", None)}


def _run(run: Run) -> Outcome:
    counts = run.count(10, 2)
    every = [(data, start) for data in range(counts) for start in range(counts)]
    once = [(data, 0) for data in range(counts)]
    names = list(SETTINGS)
    plan: list[tuple[str, str, list[tuple[int, int]], Callable[..., Any]]] = []
    for name in names:
        for method, (preset, penalty) in m3o_methods(name).items():
            pairs = every if method == _RELEASED else once
            plan.append((name, method, pairs, partial(_m3o, preset=preset, penalty=penalty, quick=run.quick)))
        plan.append((name, "keyless", once, _keyless))
        plan.append((name, "oracle", once, _oracle))
    tasks: list[tuple[str, Callable[[], Any]]] = [
        (cell_key(method, name, data, start), partial(make, SETTINGS[name][1], data, start))
        for name, method, pairs, make in plan
        for data, start in pairs
    ]
    found = run.cells(tasks)
    table: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    wrong: dict[tuple[str, str], Wrong] = {}
    for name, method, pairs, _ in plan:
        cells = {pair: found[cell_key(method, name, *pair)] for pair in pairs}
        wrong[name, method] = {pair: cell["wrong"] for pair, cell in cells.items()}
        rows += [
            {"setting": name, "method": method, "data set": data, "start": start, **cell}
            for (data, start), cell in cells.items()
        ]
        reported = SETTINGS[name][0] if method == _RELEASED else None
        table.append({"setting": name, "method": method, "paper": reported, **summary(wrong[name, method])})
        if name == names[0] and method == _RELEASED:
            # The same runs as those of the other λ, to compare with.
            first = {pair: value for pair, value in wrong[name, method].items() if pair in once}
            table.append({"setting": name, "method": f"{_RELEASED}, first starts", **summary(first)})
    released = [row for row in rows if row["method"] == _RELEASED]
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(wrong),
        settings={"rank": 5, "noise": 0.1, "data sets": counts, "starts on each": counts},
        notes=(
            "Wrong rows per table of 100: mean±std (min) over all runs; “exact” counts runs without a wrong row, and "
            "“means of data sets” is the range of the data sets' means. The paper's figure is over 10 starts on one "
            "data set.",
            m3o_note(released),
            _gap(wrong),
            "The first setting is in the released script, with generator, seed and λ = 0.55; only Matlab's "
            "random numbers are not available, so that our data sets are others of the same kind. The other settings "
            "take the same script with other widths. The paper prints “ε = 0.1” for this table, which is read as the "
            "noise.",
            "The oracle knows the loadings and the noise.",
        ),
    )


def _gap(wrong: Mapping[tuple[str, str], Wrong]) -> str:
    """Say in numbers what of the paper's table comes out and what does not."""
    said = []
    for name, (paper, _) in SETTINGS.items():
        runs = wrong[name, _RELEASED]
        mean, least = float(paper.split("±")[0]), float(paper.split("(")[1].rstrip(")"))
        by_data: dict[int, list[float]] = {}
        for (data, _), value in runs.items():
            by_data.setdefault(data, []).append(value)
        reached = sum(float(np.mean(values)) <= mean for values in by_data.values())
        said.append(
            f"{name}: {np.mean(list(runs.values())):.1f} on average where the paper has {mean:.1f}, at least "
            f"{min(runs.values()):.1f} where it has {least:.1f}, and its mean or better on {reached} of {len(by_data)} "
            "data sets"
        )
    first = next(iter(SETTINGS))
    lines = {method: values for (name, method), values in wrong.items() if name == first and "released" in method}
    means = ", ".join(
        f"{method.split('= ')[1]}: {np.mean([value for (_, start), value in values.items() if start == 0]):.1f}"
        for method, values in sorted(lines.items())
    )
    return (
        "This is the authors' own rule on other data sets of the same kind. "
        + "; ".join(said)
        + f". Mean wrong rows by λ in the first setting, from one start on each data set: {means}. In the first "
        "setting rule, generator, scale and λ are those of the script; what differs is which data sets and starts were "
        "drawn, and that the size of the start is read off the observed entries instead of all. That the data sets "
        "explain the gap is our inference: figure 1 shows how much depends on them. λ of the other settings is not "
        "known."
    )


def _m3o(
    settings: dict[str, Any], data: int, start: int, *, preset: PresetName, penalty: float | None, quick: bool
) -> dict[str, Any]:
    return m3o_run(draw_released(data, **settings), start, preset=preset, penalty=penalty, quick=quick)


def _keyless(settings: dict[str, Any], data: int, start: int) -> dict[str, float]:
    return {"wrong": keyless_wrong(draw_released(data, **settings), start)}


def _oracle(settings: dict[str, Any], data: int, start: int) -> dict[str, float]:  # noqa: ARG001
    return {"wrong": oracle_wrong(draw_released(data, **settings))}


def _figure(wrong: Mapping[tuple[str, str], Wrong]) -> Any:
    (ax,) = panels(1, width=7.5, height=4.4)
    series = [("paper, mean over starts", [float(reported.split("±")[0]) for reported, _ in SETTINGS.values()])]
    series += [
        (label, [float(np.mean(list(wrong[name, method].values()))) for name in SETTINGS])
        for label, method in (
            ("M³O as released", _RELEASED),
            ("M³O as printed", "printed"),
            ("keyless", "keyless"),
            ("oracle", "oracle"),
        )
    ]
    bars(ax, list(SETTINGS), series)
    finish(ax, title="Several tables in unknown order", xlabel="wrong rows per table of 100, mean", ylabel="")
    return legend(ax)


EXPERIMENT = Experiment(
    name="table1",
    title="Wrong rows in the d-correspondence settings",
    paper="Mean±std (min) of the wrong rows per table of 100 over 10 random starts of M³O on one data set.",
    leaks=(
        "In each setting λ is the best of three. The paper does not say by which criterion; it cannot be the "
        "objective, since λ is a part of it. The released script has one λ, 0.55, which is none of the three. The "
        "released operator is not the printed one."
    ),
    columns=("setting", "method", "paper", "wrong rows", "exact", "means of data sets", "data sets × starts"),
    run=_run,
)
