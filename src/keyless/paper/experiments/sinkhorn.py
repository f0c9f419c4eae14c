"""How many Sinkhorn iterations the Max-Oracle needs, against ε."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome
from keyless.paper.experiments.drawing import finish, legend, panels, ranged
from keyless.paper.experiments.synthetic import draw
from keyless.paper.problem import to_problem
from keyless.paper.solver import starting_estimate
from keyless.transport import sinkhorn

__all__ = ["EXPERIMENT", "iterations_needed"]

_LIMIT = 10_000


def iterations_needed(epsilons: list[float], seed: int, **settings: Any) -> dict[str, list[int]]:
    """Count iterations until row sums are right to 0.01, on the cost of M³O's Gaussian start.

    Args:
        epsilons: ε, falling.
        seed: of tables and start.
        settings: changes to the tables, as for `synthetic.draw`.

    Returns:
        `cold`: from zero potentials at each ε. `warm`: from the potentials at the ε before (the first one is cold).
    """
    problem = to_problem(draw(seed, **settings).tables)
    cost = problem.costs(starting_estimate(problem, None, seed))[0]
    found: dict[str, list[int]] = {"cold": [], "warm": []}
    before = None
    for epsilon in epsilons:
        options: dict[str, Any] = {"epsilon": epsilon, "tolerance": 0.01, "max_iter": _LIMIT, "check_every": 1}
        found["cold"].append(sinkhorn(cost, **options).iterations)
        warm = sinkhorn(cost, potentials=before, **options)
        found["warm"].append(warm.iterations)
        before = warm.potentials
    return found


def _run(run: ExperimentRun) -> Outcome:
    trials = run.count(20, 5)
    epsilons = [0.1 * 0.5**k for k in range(run.size(11, 8))]
    found = run.cells(
        [(f"decays={len(epsilons)} seed={seed}", partial(iterations_needed, epsilons, seed)) for seed in range(trials)]
    )
    counts = list(found.values())
    by_kind = {kind: [[trial[kind][k] for trial in counts] for k in range(len(epsilons))] for kind in ("cold", "warm")}
    rows = [
        {"epsilon": epsilon, "trial": trial, "start": kind, "iterations": by_kind[kind][k][trial]}
        for k, epsilon in enumerate(epsilons)
        for trial in range(trials)
        for kind in ("cold", "warm")
    ]
    table = [
        {"ε": f"{epsilon:.3g}", **{kind: _range(by_kind[kind][k]) for kind in ("cold", "warm")}}
        for k, epsilon in enumerate(epsilons)
    ]
    (ax,) = panels(1, width=6.0, height=3.8)
    for number, kind in enumerate(("cold", "warm")):
        label = "from nothing" if kind == "cold" else "from the potentials at twice the ε"
        ranged(ax, epsilons, by_kind[kind], number=number, label=label)
    ax.set_xscale("log")
    ax.set_yscale("log")
    finish(ax, title="Small ε takes many iterations", xlabel="ε", ylabel="Sinkhorn iterations")
    return Outcome(
        table=table,
        rows=rows,
        figure=legend(ax, columns=2),
        settings={"tolerance": 0.01, "max_iter": _LIMIT, "trials": trials, "tables": "as in figure 1"},
        notes=(
            "Mean (min to max) over trials, each with its own tables and Gaussian start; a row residual "
            "(1/√n)·‖P·1 − 1‖₂ of at most 0.01 ends the iteration, at the latest after 10,000 iterations.",
            "The warm start takes the potentials found at twice the ε on the same cost, as when M³O halves ε; its "
            "first line is cold.",
            "The paper gives a figure without numbers.",
        ),
    )


def _range(numbers: list[int]) -> str:
    return f"{np.mean(numbers):.1f} ({min(numbers)} to {max(numbers)})"


EXPERIMENT = Experiment(
    name="sinkhorn",
    title="Sinkhorn iterations against ε",
    paper="A figure, mean and range over 20 trials; the text says that the number mainly depends on ε.",
    leaks="The printed stopping rule looks at column sums, which are exact after each update; row sums are used here.",
    columns=("ε", "cold", "warm"),
    run=_run,
)
