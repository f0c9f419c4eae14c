"""The paper's table of d-correspondence problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome
from keyless.paper.experiments.drawing import bars, finish, legend, panels
from keyless.paper.experiments.released_data import SCRIPT_SEED, script_starts, script_tables
from keyless.paper.experiments.synthetic import (
    PENALTIES,
    RELEASED_PENALTY,
    PresetName,
    draw_released,
    keyless_wrong,
    m3o_note,
    m3o_run,
    oracle_wrong,
    spread,
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

_SCRIPT = "the script's data set"
"""What lines about it are called; the script has the first setting alone."""

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


def _run(run: ExperimentRun) -> Outcome:
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
        if name == names[0]:
            starts = [(SCRIPT_SEED, start) for start in range(counts)]
            plan.append((name, f"{_RELEASED}, {_SCRIPT}", starts, partial(_script_m3o, quick=run.quick)))
            plan.append((name, f"keyless, {_SCRIPT}", starts[:1], _script_keyless))
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
        reported = SETTINGS[name][0] if method in (_RELEASED, f"{_RELEASED}, {_SCRIPT}") else None
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
            *_where(rows),
            _script_note(wrong[names[0], f"{_RELEASED}, {_SCRIPT}"]),
            _gap(wrong),
            "The other settings are not in the script: seeds and λ of theirs are not published. The script's own seed, "
            "with their widths and shares of missing entries and with eight λ from 0.3 to 0.65, does not give the "
            "printed figures (`benchmarks/bench_m3o_script.py`, results in docs/benchmarks.md). The paper prints "
            "“ε = 0.1” for this table, which is read as the noise.",
            "The oracle knows the loadings and the noise.",
        ),
    )


def _script_note(wrong: Wrong) -> str:
    """Say what the script's own data set gives."""
    name, (paper, _) = next(iter(SETTINGS.items()))
    found = spread(wrong)
    return (
        f"The released script draws its data set and starts of {name} with seed {SCRIPT_SEED}. Drawn again with "
        f"Matlab's random numbers, they leave M³O as released with {found} wrong rows, from {len(wrong)} starts; the "
        f"paper prints {paper}, over 10 starts. "
        + (
            "So rule, data set, starts and λ are those of the printed figure."
            if found == paper
            else "These figures differ."
        )
    )


def _gap(wrong: Mapping[tuple[str, str], Wrong]) -> str:
    """Say in numbers what of the paper's table comes out on other data sets and what does not."""
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
    lines = {
        method: values
        for (name, method), values in wrong.items()
        if name == first and method in m3o_methods(first) and method != "printed"
    }
    means = ", ".join(
        f"{method.split('= ')[1]}: {np.mean([value for (_, start), value in values.items() if start == 0]):.1f}"
        for method, values in sorted(lines.items())
    )
    return (
        "On other data sets of the same kind, the authors' own rule gives: "
        + "; ".join(said)
        + f". Mean wrong rows by λ in the first setting, from one start on each data set: {means}. There rule, "
        "generator, scale and λ are those of the script; what differs is which data sets and starts were drawn, and "
        "that the size of the start is read off the observed entries instead of all. So what the paper prints for that "
        "setting belongs to its data set."
    )


def _where(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which runs of M³O were taken on a graphics card, if any were."""
    runs = [row for row in rows if "steps" in row]
    cards = sorted({row["device"] for row in runs if "device" in row})
    if not cards:
        return []
    count = sum("device" in row for row in runs)
    return [
        f"{count} of the {len(runs)} runs of M³O were taken at once on a graphics card ({', '.join(cards)}), by "
        "`benchmarks/m3o_on_card.py`: the tables and starts are those of `keyless reproduce`, wrong rows are counted "
        "by keyless, and the time on the card is not in the processor seconds below. keyless took the other "
        f"{len(runs) - count} on the processor. docs/benchmarks.md compares runs on the card with the same runs on the "
        "processor."
    ]


def _m3o(
    settings: dict[str, Any], data: int, start: int, *, preset: PresetName, penalty: float | None, quick: bool
) -> dict[str, Any]:
    return m3o_run(draw_released(data, **settings), start, preset=preset, penalty=penalty, quick=quick)


def _script_m3o(settings: dict[str, Any], data: int, start: int, *, quick: bool) -> dict[str, Any]:  # noqa: ARG001
    made = script_tables(**settings)
    return m3o_run(made, script_starts(made, count=start + 1)[start], penalty=RELEASED_PENALTY, quick=quick)


def _script_keyless(settings: dict[str, Any], data: int, start: int) -> dict[str, float]:  # noqa: ARG001
    return {"wrong": keyless_wrong(script_tables(**settings), start)}


def _keyless(settings: dict[str, Any], data: int, start: int) -> dict[str, float]:
    return {"wrong": keyless_wrong(draw_released(data, **settings), start)}


def _oracle(settings: dict[str, Any], data: int, start: int) -> dict[str, float]:  # noqa: ARG001
    return {"wrong": oracle_wrong(draw_released(data, **settings))}


def _mean(wrong: Wrong) -> float:
    """Return the mean over runs; NaN where there are none."""
    return float(np.mean(list(wrong.values()))) if wrong else float("nan")


def _figure(wrong: Mapping[tuple[str, str], Wrong]) -> Any:
    (ax,) = panels(1, width=7.5, height=4.4)
    series = [("paper", [float(reported.split("±")[0]) for reported, _ in SETTINGS.values()])]
    series += [
        (label, [_mean(wrong.get((name, method), {})) for name in SETTINGS])
        for label, method in (
            ("M³O, the script's data set", f"{_RELEASED}, {_SCRIPT}"),
            ("M³O, other data sets", _RELEASED),
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
        "The text says that in each setting λ is the best of three, 0.4, 0.5 and 0.6, and not by which criterion; it "
        "cannot be the objective, since λ is a part of it. The figure of the first row is that of the released script, "
        "whose λ is 0.55. The released operator is not the printed one. The paper does not say how the data sets were "
        "chosen."
    ),
    columns=("setting", "method", "paper", "wrong rows", "exact", "means of data sets", "data sets × starts"),
    run=_run,
)
