"""Where does M³O end from random starts on the paper's figure-1 setting, and which difference to the text matters?

    python benchmarks/bench_m3o_starts.py --out benchmarks/results/m3o_starts.json --starts 3

n = m = 100, rank 5, noise 0.1, 80% observed, 60 + 40 columns, drawn by the law of the released generator. M³O as
released and as printed, then as released with one choice of the text or of our defaults put in its place. Starts and
data sets are run in parallel processes. Wrong rows are counted afterwards.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from common import one_thread, report
from keyless.datasets import make_shuffled_tables
from keyless.metrics import hamming
from keyless.paper import M3O, FixedEntropy, Printed
from keyless.paper.problem import to_problem

RELEASED = M3O.released()
VARIANTS = {
    "released": RELEASED,
    "printed": M3O.printed(),
    "released, reference misfit in the objective": replace(RELEASED, objective="transport"),
    "released, progress by the objective alone": replace(RELEASED, diffuseness_tolerance=None),
    "released, Gaussian start everywhere": replace(RELEASED, first_estimate="gaussian"),
    "released, Sinkhorn warm, tolerance with 1/√n": replace(RELEASED, warm_start=True, sinkhorn_residual="mean"),
    "released, assignment instead of row maxima": replace(RELEASED, reading="assignment"),
    "released, printed step rule": replace(RELEASED, step_rule=Printed()),
    "released, soft threshold": replace(RELEASED, prox="soft", prox_weight="printed"),
    "released, ε fixed at 0.0005": replace(RELEASED, entropy=FixedEntropy(0.0005)),
}


def run(solver: M3O, data: int, start: int) -> dict[str, float]:
    one_thread()
    tables, truth = make_shuffled_tables(
        100, (60, 40), rank=5, noise=0.1, observed=0.8, missing="per_table", scale=True, random_state=data
    )
    began = time.process_time()
    solution = solver.solve(to_problem(tables), random_state=start)
    return {
        "wrong": hamming(solution.permutations[0], truth["table1"]),
        "steps": len(solution.history),
        "seconds": time.process_time() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=10, help="random starts on each data set")
    parser.add_argument("--data-sets", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments, _ = parser.parse_known_args()
    pairs = [(data, start) for data in range(arguments.data_sets) for start in range(arguments.starts)]
    rows: list[dict[str, Any]] = []
    for name, solver in VARIANTS.items():
        found = Parallel(n_jobs=arguments.jobs)(delayed(run)(solver, *pair) for pair in pairs)
        wrong = [entry["wrong"] for entry in found]
        rows.append(
            {
                "setting": name,
                "wrong rows, mean": float(np.mean(wrong)),
                "least": min(wrong),
                "exact": f"{sum(count == 0 for count in wrong)} of {len(wrong)}",
                "steps, mean": float(np.mean([entry["steps"] for entry in found])),
                "seconds, mean": float(np.mean([entry["seconds"] for entry in found])),
                "all wrong rows": wrong,
            }
        )
        print(rows[-1], flush=True)
    report(
        "Where does M³O end from random starts?",
        rows,
        settings={"data sets": arguments.data_sets, "starts on each": arguments.starts, "threads": 1},
    )


if __name__ == "__main__":
    main()
