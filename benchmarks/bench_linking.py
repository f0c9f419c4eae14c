"""How many rows does keyless put in the wrong place, beside its rivals and what is possible?

    python benchmarks/bench_linking.py --out benchmarks/results/linking.json            # everything, hours
    python benchmarks/bench_linking.py --cases paper --data-sets 5                       # some of it

Nothing is set by hand and the rank is not given. The oracle matches with the true loadings and noise known. M³O,
Baseline, unlabeled sensing, entropic Gromov–Wasserstein (POT) and scipy's quadratic assignment run on a few data sets
each. Wrong rows are counted per table of 100.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
from scipy.optimize import linear_sum_assignment, quadratic_assignment
from sklearn.datasets import load_breast_cancer

import keyless
from common import one_thread, report
from keyless.datasets import make_shuffled_tables
from keyless.embedding.factor_model import Information
from keyless.likelihood.pairs import pair_log_ratio
from keyless.metrics import expected_calibration_error, link_scores
from keyless.solvers import M3O, Baseline, DecayingEntropy, UnlabeledSensing
from keyless.tables import to_problem

FIRST_SEED = 5000
"""Seeds from here on are used for nothing but this report."""

PAPER = {
    "(100; 40, 30, 30) 40%": {"column_counts": (40, 30, 30), "observed": 0.4},
    "(100; 20, 40, 40) 40%": {"column_counts": (20, 40, 40), "observed": 0.4},
    "(100; 45, 25, 25, 25) 50%": {"column_counts": (45, 25, 25, 25), "observed": 0.5},
    "(100; 40, 25, 25, 25, 25) 60%": {"column_counts": (40, 25, 25, 25, 25), "observed": 0.6},
    "(100; 20, 40, 40) 30%": {"column_counts": (20, 40, 40), "observed": 0.3},
    "(100; 40, 25, 25, 25, 25) 30%": {"column_counts": (40, 25, 25, 25, 25), "observed": 0.3},
}
SWEEPS: dict[str, dict[str, Any]] = {
    **{f"observed {share:.0%}": {"observed": share} for share in (0.2, 0.3, 0.4, 0.6, 0.8, 1.0)},
    **{f"noise {noise}": {"noise": noise} for noise in (0.5, 1.0, 1.25, 1.5)},
    **{f"rank {rank}": {"rank": rank} for rank in (10, 15, 20, 25)},
    **{f"reference columns {m}": {"column_counts": (m, 100 - m)} for m in (10, 20, 40, 80, 90)},
}


def draw(settings: dict[str, Any], seed: int) -> Any:
    defaults = {"n_rows": 100, "column_counts": (60, 40), "rank": 5, "noise": 0.1, "observed": 0.8}
    return make_shuffled_tables(**{**defaults, **settings}, random_state=seed)


def wrong(permutations: Any, truth: Any) -> float:
    """Wrong rows per table."""
    return float(np.mean([(np.asarray(permutations[name]) != truth[name]).sum() for name in permutations]))


def oracle(made: Any) -> dict[str, Any]:
    """Match with true loadings and noise: each table to the reference, then each to all the others until stable."""
    names = list(made.tables)
    edges = np.cumsum([0, *(table.shape[1] for table in made.tables.values())])
    infos = []
    for k, table in enumerate(made.tables.values()):
        loadings = made.loadings[:, edges[k] : edges[k + 1]].T
        seen = ~np.isnan(table)
        precision = np.einsum("nk,ka,kb->nab", seen / made.noise**2, loadings, loadings)
        infos.append(Information(precision, np.nan_to_num(table) @ loadings / made.noise**2))
    rows = [np.arange(len(infos[0].shift))]
    rows += [linear_sum_assignment(-pair_log_ratio(infos[0], info))[1] for info in infos[1:]]
    for _ in range(10 if len(names) > 2 else 0):
        before = [index.copy() for index in rows]
        for k in range(len(names)):
            others = [infos[t][rows[t]] for t in range(len(names)) if t != k]
            joined = Information(sum(o.precision for o in others), sum(o.shift for o in others))
            rows[k] = linear_sum_assignment(-pair_log_ratio(joined, infos[k]))[1]
        if all(np.array_equal(a, b) for a, b in zip(before, rows, strict=True)):
            break
    back = np.argsort(rows[0])
    return {name: index[back] for name, index in zip(names[1:], rows[1:], strict=True)}


def m3o(made: Any, starts: int = 10) -> list[float]:
    problem = to_problem({name: table * 0.02 for name, table in made.tables.items()})
    solver = M3O(
        penalty=0.55,
        prox="hard",
        step_rule="released",
        entropy=DecayingEntropy(initial=0.1),
        patience=30,
        tolerance=1e-4,
        max_time=60,
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


def synthetic(cases: dict[str, dict[str, Any]], data_sets: int, rival_sets: int) -> list[dict[str, Any]]:
    rows = []
    for name, settings in cases.items():
        own, best, times, verdicts = [], [], [], []
        for i in range(data_sets):
            made = draw(settings, FIRST_SEED + i)
            began = time.process_time()
            links = keyless.link(made.tables, random_state=0)
            times.append(time.process_time() - began)
            own.append(wrong(links.permutations, made.truth))
            best.append(wrong(oracle(made), made.truth))
            verdicts.append(links.evidence.verdict)
        row = {
            "case": name,
            "data sets": data_sets,
            "keyless, wrong rows": float(np.mean(own)),
            "worst": max(own),
            "oracle": float(np.mean(best)),
            "linked": verdicts.count("linked"),
            "seconds": float(np.mean(times)),
        }
        sets = [draw(settings, FIRST_SEED + i) for i in range(rival_sets)]
        if sets:
            results = [m3o(made) for made in sets]
            row["M³O, best of 10"] = float(np.mean([min(r) for r in results]))
            row["M³O, mean of 10"] = float(np.mean(results))
            for rival, run in RIVALS.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    row[rival] = float(np.mean([run(made) for made in sets]))
        rows.append(row)
        print(row, flush=True)
    return rows


def large(data_sets: int) -> list[dict[str, Any]]:
    settings = {"n_rows": 1000, "column_counts": (60, 40), "rank": 20}
    return synthetic({"n=1000, rank 20, 80%": settings}, min(data_sets, 3), 0)


def breast_cancer(data_sets: int) -> list[dict[str, Any]]:
    data = load_breast_cancer().data
    rows = []
    for name, first, second in (("20/10", slice(0, 20), slice(20, 30)), ("mean/worst", slice(0, 10), slice(20, 30))):
        for i in range(min(data_sets, 3)):
            order = np.random.default_rng(FIRST_SEED + i).permutation(len(data))
            began = time.process_time()
            links = keyless.link({"a": data[:, first], "b": data[order, second]}, random_state=i)
            right = links.permutations["b"] == np.argsort(order)
            rows.append(
                {
                    "case": f"breast cancer {name}",
                    "right": float(right.mean()),
                    "verdict": links.evidence.verdict,
                    "calibration error": expected_calibration_error(links.found["b"].probability, right),
                    "seconds": time.process_time() - began,
                }
            )
            print(rows[-1], flush=True)
    return rows


def overlap(data_sets: int) -> list[dict[str, Any]]:
    rows = []
    for share in (0.95, 0.8, 0.6):
        for i in range(min(data_sets, 2)):
            made = make_shuffled_tables(2000, (30, 20), rank=8, noise=0.05, overlap=share, random_state=FIRST_SEED + i)
            began = time.process_time()
            links = keyless.link(made.tables, random_state=0)
            found, truth = links.permutations["table1"], made.truth["table1"]
            scores = link_scores(found, truth)
            rows.append(
                {
                    "case": f"overlap {share:.0%}, n=2000",
                    "precision": scores.precision,
                    "recall": scores.recall,
                    "left alone": float((found[truth < 0] < 0).mean()),
                    "verdict": links.evidence.verdict,
                    "seconds": time.process_time() - began,
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cases", nargs="*", default=["paper", "sweeps", "large", "breast-cancer", "overlap"])
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--rival-sets", type=int, default=3)
    arguments, _ = parser.parse_known_args()
    one_thread()
    runs = {
        "paper": lambda: synthetic(PAPER, arguments.data_sets, arguments.rival_sets),
        "sweeps": lambda: synthetic(SWEEPS, arguments.data_sets, 0),
        "large": lambda: large(arguments.data_sets),
        "breast-cancer": lambda: breast_cancer(arguments.data_sets),
        "overlap": lambda: overlap(arguments.data_sets),
    }
    rows = [row for case in arguments.cases for row in runs[case]()]
    report(
        "How many rows does keyless put in the wrong place?", rows, settings={"first seed": FIRST_SEED, "threads": 1}
    )


if __name__ == "__main__":
    main()
