"""Where does M³O end from random starts on the paper's figure-1 setting?

    python benchmarks/bench_m3o_starts.py --out benchmarks/results/m3o_starts.json

One data set (n = m = 100, rank 5, noise 0.1, 80% observed, 60 + 40 columns, scaled by 2/100), 20 Gaussian starts, soft
and hard operator, Sinkhorn warm-started and not. Then the setting that does reach the answer now and then: descending
steps, the rank operator and a slow decay of ε from the median cost, on ten data sets. The objective needs no truth;
wrong rows are counted afterwards.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from common import one_thread, report
from keyless.datasets import make_shuffled_tables
from keyless.metrics import hamming
from keyless.solvers import M3O, DecayingEntropy
from keyless.tables import to_problem

STARTS = 20
DATA_SETS = 10
PAPER: dict[str, Any] = {"penalty": 0.5, "entropy": DecayingEntropy(initial=0.1), "max_iter": 1000, "tolerance": 1e-5}
VARIANTS = {
    "soft, as printed": M3O(prox="soft", prox_weight="printed", step_rule="printed", **PAPER),
    "soft, proximal weight": M3O(prox="soft", step_rule="printed", **PAPER),
    "soft, descending": M3O(prox="soft", **PAPER),
    "hard, printed step": M3O(prox="hard", step_rule="printed", **PAPER),
    "hard, released step": M3O(prox="hard", step_rule="released", **PAPER),
}
SLOW: dict[str, Any] = {
    "prox": "rank",
    "entropy": DecayingEntropy(factor=0.7, decays=22),
    "patience": 10,
    "tolerance": 1e-5,
}


def figure_one(seed: int) -> tuple[Any, Any]:
    tables, truth = make_shuffled_tables(100, (60, 40), rank=5, noise=0.1, observed=0.8, scale=True, random_state=seed)
    return to_problem(tables), truth["table1"]


def run(solver: M3O, problem: Any, truth: Any, seeds: range) -> dict[str, Any]:
    wrong, objectives, times = [], [], []
    for seed in seeds:
        began = time.process_time()
        solution = solver.solve(problem, random_state=seed)
        times.append(time.process_time() - began)
        wrong.append(int(hamming(solution.permutations[0], truth)))
        objectives.append(solution.objective)
    return {
        "wrong rows, min": min(wrong),
        "median": float(np.median(wrong)),
        "mean": float(np.mean(wrong)),
        "max": max(wrong),
        "objective, min": min(objectives),
        "objective, max": max(objectives),
        "seconds, mean": float(np.mean(times)),
        "all wrong rows": wrong,
    }


def main() -> None:
    one_thread()
    rows = []
    problem, truth = figure_one(0)
    for name, variant in VARIANTS.items():
        for warm in (True, False):
            solver = replace(variant, warm_start=warm)
            row = {"setting": name, "Sinkhorn": "warm" if warm else "cold"}
            rows.append(row | run(solver, problem, truth, range(STARTS)))
            print(rows[-1], flush=True)
    for rank in (4, 5, 6):
        row = {"setting": f"rank {rank}, slow decay, {DATA_SETS} data sets", "Sinkhorn": "warm"}
        found = [run(M3O(rank=rank, **SLOW), *figure_one(100 + i), range(1)) for i in range(DATA_SETS)]
        wrong = [entry["all wrong rows"][0] for entry in found]
        rows.append(
            row
            | {
                "wrong rows, min": min(wrong),
                "median": float(np.median(wrong)),
                "mean": float(np.mean(wrong)),
                "max": max(wrong),
                "objective, min": min(entry["objective, min"] for entry in found),
                "objective, max": max(entry["objective, max"] for entry in found),
                "seconds, mean": float(np.mean([entry["seconds, mean"] for entry in found])),
                "all wrong rows": wrong,
            }
        )
        print(rows[-1], flush=True)
    report("Where does M³O end from random starts?", rows, settings={"starts": STARTS, "data sets": DATA_SETS})


if __name__ == "__main__":
    main()
