"""How much faster than POT's log-domain Sinkhorn is ours, stopped at the same row residual?

    python benchmarks/bench_sinkhorn.py --out benchmarks/results/sinkhorn.json

POT updates columns first, so it is given the transposed cost: then both make the same iterations and look at the row
residual every ten of them, POT one iteration later. To compare the plans at convergence, which Sinkhorn alone
approaches very slowly at small ε, Newton's method on the dual finds the potentials; both are started there and run on
until each by its own rule has converged.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import ot

from common import one_thread, report, seconds
from keyless.transport import sinkhorn

TOLERANCE = 0.01
CONVERGED = 1e-11
SEED = 0


def clouds(n: int) -> Any:
    generator = np.random.default_rng(SEED)
    left, right = generator.normal(size=(2, n, 5))
    return np.asarray(ot.dist(left, right))


def pot_until(cost: Any, epsilon: float, residual: float, *, start: Any = None) -> tuple[Any, int]:
    """Run POT on the transposed cost to a row residual."""
    ones = np.ones(cost.shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, log = ot.bregman.sinkhorn_log(
            ones,
            ones,
            np.ascontiguousarray(cost.T),
            epsilon,
            numItermax=10_000,
            stopThr=residual * np.sqrt(cost.shape[0]),
            log=True,
            warmstart=start,
        )
    return plan.T, log["niter"]


def settled(cost: Any, epsilon: float) -> tuple[Any, Any]:
    """Return potentials at which all marginals are one to rounding: Sinkhorn, then Newton steps on the dual."""
    rows, columns = sinkhorn(cost, epsilon=epsilon, tolerance=1e-4, max_iter=20_000).potentials
    n = len(rows)
    for _ in range(50):
        plan = np.exp((rows[:, None] + columns - cost) / epsilon)
        gaps = np.concatenate([1 - plan.sum(axis=1), 1 - plan.sum(axis=0)])
        if np.linalg.norm(gaps) < 1e-12 * n:
            break
        system = np.block([[np.diag(plan.sum(axis=1)), plan], [plan.T, np.diag(plan.sum(axis=0))]])
        # The potentials are determined up to a constant: the last one stays.
        step = epsilon * np.append(np.linalg.solve(system[:-1, :-1], gaps[:-1]), 0.0)
        # A step of more than ε changes the plan by more than a factor e; beyond that the quadratic model means little.
        step *= min(1.0, epsilon / np.abs(step).max())
        rows, columns = rows + step[:n], columns + step[n:]
    return rows, columns


def main() -> None:
    one_thread()
    rows = []
    for n in (1000, 2000):
        cost = clouds(n)
        median = float(np.median(cost))
        for share in (0.05, 0.005):
            epsilon = share * median
            own, result = seconds(lambda c=cost, e=epsilon: sinkhorn(c, epsilon=e, tolerance=TOLERANCE), repeats=5)
            rival, (_, iterations) = seconds(lambda c=cost, e=epsilon: pot_until(c, e, TOLERANCE), repeats=1)
            # POT counts from zero.
            iterations += 1
            row = {
                "n": n,
                "ε / median cost": share,
                "iterations": result.iterations,
                "POT iterations": iterations,
                "seconds": own,
                "POT seconds": rival,
                "times faster": rival / own,
            }
            if (n, share) != (2000, 0.005):  # there Newton's method takes a quarter of an hour
                potentials = settled(cost, epsilon)
                ours = sinkhorn(cost, epsilon=epsilon, potentials=potentials, tolerance=CONVERGED)
                theirs, _ = pot_until(cost, epsilon, CONVERGED, start=[p / epsilon for p in potentials[::-1]])
                row["largest difference when converged"] = float(np.abs(ours.coupling - theirs).max())
                row["row residual when converged"] = ours.residual
            rows.append(row)
            print(rows[-1], flush=True)
    report(
        "How much faster than POT's sinkhorn_log, to the same row residual?",
        rows,
        settings={"tolerance": TOLERANCE, "seed": SEED, "threads": 1},
    )


if __name__ == "__main__":
    main()
