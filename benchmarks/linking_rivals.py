"""What keyless is compared with when it links: the paper's solvers, two general matchers, and what is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ot
from scipy.optimize import linear_sum_assignment, quadratic_assignment

import keyless
from keyless.pairs.likelihood import expected_log_ratio
from keyless.paper import M3O, Baseline, DecayingEntropy, UnlabeledSensing
from keyless.paper.experiments.synthetic import match_informed, true_information
from keyless.paper.problem import to_problem


def wrong(permutations: Any, truth: Any) -> float:
    """Wrong rows per table."""
    return float(np.mean([(np.asarray(permutations[name]) != truth[name]).sum() for name in permutations]))


def nats_per_row(made: Any) -> float:
    """Return the information a true match of the first two tables carries, in nats."""
    first, second = true_information(made)[:2]
    truth = next(iter(made.truth.values()))
    paired = np.flatnonzero(truth >= 0)
    return float(expected_log_ratio(first[paired], second[truth[paired]]).mean())


def oracle(made: Any) -> dict[str, Any]:
    """Match with true loadings and noise: each table to the reference, then each to all the others until stable."""
    return match_informed(true_information(made), list(made.truth))


def m3o(made: Any, starts: int = 10) -> list[float]:
    problem = to_problem({name: table * 0.02 for name, table in made.tables.items()})
    solver = M3O(
        penalty=0.55,
        prox="hard",
        step_rule="released",
        entropy=DecayingEntropy(initial=0.1),
        patience=30,
        tolerance=1e-4,
        max_time=2,
    )
    names = list(made.tables)[1:]
    results = []
    for seed in range(starts):
        found = solver.solve(problem, random_state=seed).permutations
        results.append(wrong(dict(zip(names, found, strict=True)), made.truth))
    return results


def by_solver(solver: Any) -> Callable[[Any], float]:
    def run(made: Any) -> float:
        found = solver.solve(
            to_problem(made.tables), **({} if isinstance(solver, UnlabeledSensing) else {"random_state": 0})
        )
        return wrong(dict(zip(list(made.tables)[1:], found.permutations, strict=True)), made.truth)

    return run


def filled_gram(table: Any) -> Any:
    complete = keyless.SoftImpute(random_state=0).fit_transform(table) if np.isnan(table).any() else table
    complete = (complete - complete.mean(axis=0)) / complete.std(axis=0)
    left, strengths, _ = np.linalg.svd(complete, full_matrices=False)
    kept = left[:, strengths > 0.1 * strengths[0]] * np.sqrt(len(left))
    return kept @ kept.T


def gromov_wasserstein(made: Any) -> float:
    grams = {name: filled_gram(table) for name, table in made.tables.items()}
    found = {}
    for name in list(grams)[1:]:
        first, second = grams["reference"], grams[name]
        plan = ot.gromov.entropic_gromov_wasserstein(first, second, epsilon=0.05 * np.var(first), max_iter=200)
        found[name] = linear_sum_assignment(-plan)[1]
    return wrong(found, made.truth)


def graph_matching(made: Any) -> float:
    grams = {name: filled_gram(table) for name, table in made.tables.items()}
    found = {
        name: quadratic_assignment(grams["reference"], grams[name], options={"maximize": True, "rng": 0}).col_ind
        for name in list(grams)[1:]
    }
    return wrong(found, made.truth)


RIVALS: dict[str, Callable[[Any], float]] = {
    "Baseline": by_solver(Baseline()),
    "unlabeled sensing": by_solver(UnlabeledSensing()),
    "Gromov–Wasserstein": gromov_wasserstein,
    "quadratic assignment": graph_matching,
}
