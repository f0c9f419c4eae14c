"""The exponent ω of M³O's step rule, found by trying, as the paper's Remark 4 advises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from keyless.arrays import Array
from keyless.errors import InputError
from keyless.paper.m3o import M3O
from keyless.paper.problem import CorrespondenceProblem
from keyless.paper.schedules import Printed, Released, step_rule_named
from keyless.paper.solver import Solution, starting_estimate

__all__ = ["OmegaSearch", "search_omega"]


@dataclass(frozen=True, eq=False)
class OmegaSearch:
    """Result of `search_omega`: the best solution, its ω, and the objective each ω reached."""

    solution: Solution
    omega: float
    objectives: dict[float, float]


def search_omega(
    solver: M3O,
    problem: CorrespondenceProblem,
    *,
    omegas: Sequence[float] = (0.5, 1.0, 1.5, 2.0, 3.0),
    start: Array | None = None,
    random_state: Any = 0,
) -> OmegaSearch:
    """Raise ω until the final objective stops improving, as Remark 4 advises.

    Args:
        solver: an M³O whose step rule has an ω (`Printed` or `Released`).
        problem: the problem to solve.
        omegas: values to try, in rising order.
        start: the first estimate of every run; None for the same Gaussian one.
        random_state: seed of the Gaussian start.
    """
    rule = step_rule_named(solver.step_rule)
    if not isinstance(rule, (Printed, Released)):
        raise InputError(f"step_rule: must be 'printed' or 'released', which have an omega to choose; found {rule!r}.")
    if not omegas or sorted(omegas) != list(omegas):
        raise InputError(f"omegas: must be at least one value, in rising order; found {omegas!r}.")
    estimate = starting_estimate(problem, start, random_state)
    best: tuple[float, Solution] | None = None
    objectives: dict[float, float] = {}
    for omega in omegas:
        solution = replace(solver, step_rule=replace(rule, omega=omega)).solve(problem, start=estimate)
        objectives[omega] = solution.objective
        if best is not None and solution.objective >= best[1].objective:
            break
        best = (omega, solution)
    assert best is not None
    return OmegaSearch(best[1], best[0], objectives)
