"""How much faster is one outer step of M³O than a loop and a vectorised log-domain transcription?

python benchmarks/bench_m3o_step.py --out benchmarks/results/m3o_step.json
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from common import one_thread, report, seconds
from keyless.datasets import make_shuffled_tables
from keyless.paper import M3O, Fixed, FixedEntropy
from keyless.paper.problem import to_problem
from rivals import loop_step, vectorised_step

INNER_ITERATIONS = 100
SETTINGS = ((100, (40, 30, 30)), (1000, (200, 200, 200)))
SEED = 0


def main() -> None:
    one_thread()
    rows: list[dict[str, Any]] = []
    for n, columns in SETTINGS:
        tables, _ = make_shuffled_tables(n, columns, rank=5, noise=0.1, observed=0.4, scale=True, random_state=SEED)
        problem = to_problem(tables)
        start = np.random.default_rng(SEED).normal(size=problem.shape) * 2 / n
        epsilon = 0.005 * float(np.median(problem.costs(start)[0]))
        solver = M3O(
            penalty=0.1,
            prox_weight="printed",
            step_rule=Fixed(0.3),
            entropy=FixedEntropy(epsilon),
            # The residual is never small enough, so that exactly this many iterations are made.
            sinkhorn_tolerance=1e-300,
            sinkhorn_max_iter=INNER_ITERATIONS,
        )
        state = solver.init(problem, start=start)
        cold = replace(state, potentials=())
        reference, parts = problem.split(start)
        blocks = (problem.reference, *problem.blocks)
        given = {
            "parts": (reference, *parts),
            "values": [block.values for block in blocks],
            "masks": [block.mask for block in blocks],
            "epsilon": epsilon,
            "penalty": 0.1,
            "step_size": 0.3,
            "inner_iterations": INNER_ITERATIONS,
        }
        own, new = seconds(lambda s=solver, p=problem, c=cold: s.step(p, c), repeats=20)
        vectorised, second = seconds(lambda g=given: vectorised_step(**g), repeats=20 if n < 500 else 2)
        loops, third = seconds(lambda g=given: loop_step(**g), repeats=1)
        rows.append(
            {
                "tables": f"({n}; {', '.join(map(str, columns))})",
                "inner iterations": str(new.record.inner_iterations) if new.record else "",
                "seconds": own,
                "vectorised seconds": vectorised,
                "loop seconds": loops,
                "times faster than vectorised": vectorised / own,
                "times faster than loops": loops / own,
                "largest difference to vectorised": float(np.abs(new.estimate - second).max()),
                "largest difference to loops": float(np.abs(new.estimate - third).max()),
            }
        )
        print(rows[-1], flush=True)
    report(
        "How much faster is one outer step of M³O than plain transcriptions of Algorithm 2?",
        rows,
        settings={"inner iterations": INNER_ITERATIONS, "observed": 0.4, "rank": 5, "seed": SEED, "threads": 1},
    )


if __name__ == "__main__":
    main()
