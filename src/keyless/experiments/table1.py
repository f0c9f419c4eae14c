"""The paper's table of d-correspondence problems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from keyless.experiments.base import Experiment, Outcome, Run
from keyless.experiments.drawing import bars, finish, legend, panels
from keyless.experiments.synthetic import draw, keyless_wrong, m3o_note, m3o_run, oracle_wrong, spread

__all__ = ["EXPERIMENT", "SETTINGS"]

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "(100; 40, 30, 30), 40%": ("33.35±32.85 (0.00)", {"column_counts": (40, 30, 30), "observed": 0.4}),
    "(100; 20, 40, 40), 40%": ("58.90±27.21 (2.00)", {"column_counts": (20, 40, 40), "observed": 0.4}),
    "(100; 45, 25, 25, 25), 50%": ("61.97±15.41 (37.33)", {"column_counts": (45, 25, 25, 25), "observed": 0.5}),
    "(100; 40, 25, 25, 25, 25), 60%": ("59.90±13.64 (38.50)", {"column_counts": (40, 25, 25, 25, 25), "observed": 0.6}),
}
"""What the paper reports, and how the tables are drawn; rank 5, noise 0.1."""


def _run(run: Run) -> Outcome:
    starts, data_sets = run.count(10, 2), run.count(10, 2)
    # One data set from many starts, as in the paper; and many data sets from one start each.
    pairs = sorted({(0, start) for start in range(starts)} | {(data, 0) for data in range(data_sets)})
    tasks: list[tuple[str, Callable[[], Any]]] = []
    for name, (_, settings) in SETTINGS.items():
        for data, start in pairs:
            tasks.append(
                (f"settled M³O {name} data={data} start={start}", partial(_m3o, settings, data, start, run.quick))
            )
            tasks.append((f"keyless {name} data={data} start={start}", partial(_keyless, settings, data, start)))
        tasks += [(f"oracle {name} data={data}", partial(_oracle, settings, data)) for data in range(data_sets)]
    found = run.cells(tasks)
    runs = {key.removeprefix("settled "): value for key, value in found.items() if key.startswith("settled ")}
    found |= {key: value["wrong"] for key, value in runs.items()}

    table: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for name, (paper, _) in SETTINGS.items():
        for data, start in pairs:
            for method in ("M³O", "keyless"):
                wrong = found[f"{method} {name} data={data} start={start}"]
                rows.append({"setting": name, "method": method, "data set": data, "start": start, "wrong rows": wrong})
        best = [found[f"oracle {name} data={data}"] for data in range(data_sets)]
        rows += [
            {"setting": name, "method": "oracle", "data set": data, "wrong rows": wrong}
            for data, wrong in enumerate(best)
        ]
        by_start, by_data = (
            {
                method: [found[f"{method} {name} data={data} start={start}"] for data, start in chosen]
                for method in ("M³O", "keyless")
            }
            for chosen in ([(0, s) for s in range(starts)], [(d, 0) for d in range(data_sets)])
        )
        for what, numbers, reported, possible in (
            (f"{starts} starts", by_start, paper, best[:1]),
            (f"{data_sets} data sets", by_data, None, best),
        ):
            table.append(
                {
                    "setting": f"{name}, {what}",
                    "paper": reported,
                    "our M³O": spread(numbers["M³O"]),
                    "keyless": spread(numbers["keyless"]),
                    "oracle": spread(possible),
                }
            )
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(rows),
        settings={"rank": 5, "noise": 0.1, "starts": starts, "data sets": data_sets},
        notes=(
            "Wrong rows per table of 100: mean±std (min), over random starts on one data set as in the paper, then "
            "over data sets.",
            m3o_note(list(runs.values()), quick=run.quick),
            _gap(rows, starts),
            "The oracle knows the loadings and the noise. The paper's data sets are not published; ours are others of "
            "the same law. The paper prints “ε = 0.1” for this table, which is read as the noise.",
        ),
    )


def _gap(rows: list[dict[str, Any]], starts: int) -> str:
    """Say how our M³O compares with the paper's own figures."""
    worse = 0
    for name, (paper, _) in SETTINGS.items():
        ours = [
            row["wrong rows"]
            for row in rows
            if row["setting"] == name and row["method"] == "M³O" and row["data set"] == 0
        ]
        worse += float(np.mean(ours)) > float(paper.split("±")[0])
    return (
        f"Our M³O has more wrong rows than the paper reports of its own in {worse} of {len(SETTINGS)} settings, over "
        f"{starts} starts. The reason is not known to us: its data sets, starts and choice of λ are not published. "
        "So compare keyless with the paper's column as well as with ours."
    )


def _m3o(settings: dict[str, Any], data: int, start: int, quick: bool) -> dict[str, Any]:
    return m3o_run(draw(data, **settings), start, quick=quick)


def _keyless(settings: dict[str, Any], data: int, start: int) -> float:
    return keyless_wrong(draw(data, **settings), start)


def _oracle(settings: dict[str, Any], data: int) -> float:
    return oracle_wrong(draw(data, **settings))


def _figure(rows: list[dict[str, Any]]) -> Any:
    (ax,) = panels(1, width=7.5, height=4.0)

    def mean(name: str, method: str) -> float:
        return float(np.mean([r["wrong rows"] for r in rows if r["setting"] == name and r["method"] == method]))

    paper = [float(reported.split("±")[0]) for reported, _ in SETTINGS.values()]
    series = [("paper, mean over starts", paper)]
    series += [
        (label, [mean(name, method) for name in SETTINGS])
        for label, method in (("our M³O", "M³O"), ("keyless", "keyless"), ("oracle", "oracle"))
    ]
    bars(ax, list(SETTINGS), series)
    finish(ax, title="Several tables in unknown order", xlabel="wrong rows per table of 100, mean", ylabel="")
    return legend(ax)


EXPERIMENT = Experiment(
    name="table1",
    title="Wrong rows in the d-correspondence settings",
    paper="Mean±std (min) of the wrong rows per table of 100 over 10 random starts of M³O on one data set.",
    leaks=(
        "λ is the best of three per setting; by what is not said, and the objective cannot tell, since λ is part of "
        "it. The released operator is not the printed one."
    ),
    run=_run,
)
