"""Is SoftImpute fast, and does it fill well?

Two questions, each with its rival in the same run, in CPU seconds on one BLAS thread:

(a) 5000 × 1000, rank 10, 20% observed, a given penalty. How much faster than plain Soft-Impute (a full SVD per
    iteration) is `soft_impute` in reaching the same objective?
(b) 1000 × 100, rank 8 plus noise, 30% missing, default settings. Does `SoftImpute` fill held-out entries better than
    scikit-learn's `IterativeImputer`, and in what part of its time?

    python benchmarks/bench_soft_impute.py --out benchmarks/results/soft_impute.json

Question (a) takes a few minutes, nearly all in the rival.
"""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

from common import one_thread, report, seconds
from keyless.completion import SoftImpute
from keyless.paper.soft_impute import soft_impute

SEEDS = (0, 1, 2)


def low_rank(rows: int, columns: int, *, rank: int, noise: float, observed: float, seed: int) -> tuple[Any, Any, Any]:
    """Draw signal, signal + noise, and a mask of observed entries."""
    generator = np.random.default_rng(seed)
    signal = generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))
    values = signal + noise * generator.standard_normal(signal.shape)
    return signal, values, generator.random(signal.shape) < observed


def true_objective(values: Any, mask: Any, estimate: Any, penalty: float, nuclear: float) -> float:
    return float(0.5 * np.sum((values - estimate)[mask] ** 2) + penalty * nuclear)


def plain_soft_impute(values: Any, mask: Any, penalty: float, goal: float, max_iter: int) -> tuple[Any, float, int]:
    """M ← prox(P_Ω(X) + P_Ω⊥(M)) with a full SVD each time, until the objective is at most `goal`."""
    estimate = np.zeros_like(values)
    reached, iteration = float("inf"), 0
    while reached > goal and iteration < max_iter:
        iteration += 1
        left, singular, right = np.linalg.svd(np.where(mask, values, estimate), full_matrices=False)
        singular = np.maximum(singular - penalty, 0)
        estimate = (left * singular) @ right
        reached = true_objective(values, mask, estimate, penalty, float(singular.sum()))
    return estimate, reached, iteration


def peak_megabytes(job: Any) -> float:
    tracemalloc.start()
    job()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def root_mean_square(gaps: Any) -> float:
    return float(np.sqrt(np.mean(gaps**2)))


def question_a() -> list[dict[str, Any]]:
    shape, penalty = (5000, 1000), 30.0
    signal, values, mask = low_rank(*shape, rank=10, noise=0.5, observed=0.2, seed=SEEDS[0])
    our_time, ours = seconds(lambda: soft_impute(values, mask, penalty), repeats=1)
    estimate = ours.estimate()
    reached = true_objective(values, mask, estimate, penalty, ours.nuclear_norm)
    goal = reached * (1 + 1e-6)
    rival_time, (rival, rival_reached, iterations) = seconds(
        lambda: plain_soft_impute(values, mask, penalty, goal, 300), repeats=1
    )
    common = {"question": "a", "shape": shape, "penalty": penalty, "seed": SEEDS[0]}
    return [
        common
        | {
            "method": "keyless.soft_impute",
            "seconds": our_time,
            "iterations": len(ours.objective) - 1,
            "objective": reached,
            "rmse": root_mean_square((estimate - signal)[~mask]),
            "peak MB": peak_megabytes(lambda: soft_impute(values, mask, penalty)),
            "rank": ours.rank,
            "times faster": rival_time / our_time,
        },
        common
        | {
            "method": "plain full-SVD Soft-Impute",
            "seconds": rival_time,
            "iterations": iterations,
            "objective": rival_reached,
            "rmse": root_mean_square((rival - signal)[~mask]),
            "peak MB": peak_megabytes(lambda: plain_soft_impute(values, mask, penalty, 0.0, 1)),
        },
    ]


def question_b() -> list[dict[str, Any]]:
    results = []
    for seed in SEEDS:
        _, values, mask = low_rank(1000, 100, rank=8, noise=0.5, observed=0.7, seed=seed)
        table = np.where(mask, values, np.nan)
        common = {"question": "b", "shape": table.shape, "seed": seed}
        ours = SoftImpute()
        our_time, filled = seconds(lambda ours=ours, table=table: ours.fit_transform(table), repeats=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # IterativeImputer says that it has not converged
            rival = IterativeImputer(random_state=0)
            rival_time, rival_filled = seconds(lambda rival=rival, table=table: rival.fit_transform(table), repeats=1)
        results += [
            common
            | {
                "method": "keyless.SoftImpute()",
                "seconds": our_time,
                "iterations": ours.n_iter_,
                "rmse": root_mean_square((filled - values)[~mask]),
                "peak MB": peak_megabytes(lambda table=table: SoftImpute().fit_transform(table)),
                "rank": ours.rank_,
                "penalty": ours.penalty_,
                "times faster": rival_time / our_time,
            },
            common
            | {
                "method": "sklearn IterativeImputer()",
                "seconds": rival_time,
                "iterations": rival.n_iter_,
                "rmse": root_mean_square((rival_filled - values)[~mask]),
            },
        ]
    return results


def main() -> None:
    one_thread()
    soft_impute(np.ones((50, 40)), np.ones((50, 40), dtype=bool), 1.0)  # load what is loaded late
    results = question_a() + question_b()
    report(
        "Is Soft-Impute fast, and does it fill well?",
        results,
        settings={"a": "5000 × 1000, rank 10, 20% observed", "b": "1000 × 100, rank 8, 30% missing", "threads": 1},
    )


if __name__ == "__main__":
    main()
