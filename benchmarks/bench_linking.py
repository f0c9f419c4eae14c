"""How many rows does keyless put in the wrong place, beside its rivals and what is possible, and is its verdict right?

    python benchmarks/bench_linking.py --out benchmarks/results/linking.json            # everything, hours
    python benchmarks/bench_linking.py --cases paper --data-sets 5                       # some of it

Nothing is set by hand and the rank is not given. The oracle matches with the true loadings and noise known. M³O,
Baseline, unlabeled sensing, entropic Gromov–Wasserstein (POT) and scipy's quadratic assignment run on a few data sets
each. Wrong rows are counted per table of 100. With `--out` the cases that ran replace those of the file.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

import keyless
import linking_pairs
from common import one_thread, report_sections
from keyless.datasets import make_shuffled_tables
from keyless.metrics import expected_calibration_error, link_scores
from linking_rivals import RIVALS, m3o, oracle, wrong

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


def synthetic(
    cases: dict[str, dict[str, Any]], data_sets: int, rival_sets: int, first_seed: int
) -> list[dict[str, Any]]:
    rows = []
    for name, settings in cases.items():
        own, best, times, verdicts = [], [], [], []
        for i in range(data_sets):
            made = draw(settings, first_seed + i)
            began = time.process_time()
            links = keyless.link(made.tables, random_state=0)
            times.append(time.process_time() - began)
            own.append(wrong(links.permutations, made.truth))
            best.append(wrong(oracle(made), made.truth))
            verdicts.append(links.evidence.verdict)
        row: dict[str, Any] = {
            "case": name,
            "data sets": data_sets,
            "keyless, wrong rows": float(np.mean(own)),
            "worst": max(own),
            "oracle": float(np.mean(best)),
            "linked": verdicts.count("linked"),
            "seconds": float(np.mean(times)),
        }
        sets = [draw(settings, first_seed + i) for i in range(rival_sets)]
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


def large(data_sets: int, first_seed: int) -> list[dict[str, Any]]:
    settings = {"n_rows": 1000, "column_counts": (60, 40), "rank": 20}
    rows = []
    for i in range(min(data_sets, 3)):
        made = draw(settings, first_seed + i)
        began, spent = time.monotonic(), time.process_time()
        links = keyless.link(made.tables, random_state=0)
        rows.append(
            {
                "case": "n=1000, rank 20, 80% observed, 60+40 columns",
                "wrong rows": wrong(links.permutations, made.truth),
                "verdict": links.evidence.verdict,
                "seconds on the clock, 2 jobs": time.monotonic() - began,
                "processor seconds": time.process_time() - spent,
            }
        )
        print(rows[-1], flush=True)
    return rows


def breast_cancer(data_sets: int, first_seed: int) -> list[dict[str, Any]]:
    data = load_breast_cancer().data
    rows = []
    for name, first, second in (("20/10", slice(0, 20), slice(20, 30)), ("mean/worst", slice(0, 10), slice(20, 30))):
        for i in range(min(data_sets, 3)):
            order = np.random.default_rng(first_seed + i).permutation(len(data))
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


def overlap(data_sets: int, first_seed: int) -> list[dict[str, Any]]:
    rows = []
    for share in (0.95, 0.8, 0.6):
        for i in range(min(data_sets, 2)):
            made = make_shuffled_tables(2000, (30, 20), rank=8, noise=0.05, overlap=share, random_state=first_seed + i)
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


def growth(data_sets: int, first_seed: int) -> list[dict[str, Any]]:
    """Time of one process against the number of rows, equal rows and 80% of them in both tables."""
    rows = []
    for share in (1.0, 0.8):
        for n_rows in (100, 300, 1_000, 2_000, 4_000, 6_000, 20_000, 100_000)[: 4 if data_sets < 2 else None]:
            made = make_shuffled_tables(n_rows, (20, 15), rank=8, noise=0.05, overlap=share, random_state=first_seed)
            began = time.process_time()
            links = keyless.link(made.tables, random_state=0)
            seconds = time.process_time() - began
            scores = link_scores(links.permutations["table1"], made.truth["table1"])
            rows.append(
                {
                    "rows": n_rows,
                    "in both": f"{share:.0%}",
                    "precision": scores.precision,
                    "recall": scores.recall,
                    "verdict": links.evidence.verdict,
                    "seconds": seconds,
                }
            )
            print(rows[-1], flush=True)
    return rows


def unrelated(pairs: int, first_seed: int) -> list[dict[str, Any]]:
    verdicts: dict[str, Counter[str]] = {}
    began = time.process_time()
    for kind, tables in linking_pairs.unrelated(pairs, first_seed):
        found = keyless.link(tables, random_state=0).evidence.verdict
        verdicts.setdefault(kind, Counter())[found] += 1
        print(kind, {name: table.shape for name, table in tables.items()}, found, flush=True)
    rows = [
        {"pairs": kind, "count": count.total()} | {v: count[v] for v in ("unlinkable", "uncertain", "linked")}
        for kind, count in sorted(verdicts.items())
    ]
    return [*rows, {"pairs": f"all; {(time.process_time() - began) / pairs:.0f} s each", "count": pairs}]


def linkable(pairs: int, first_seed: int) -> list[dict[str, Any]]:
    verdicts: Counter[str] = Counter()
    stated, right = [], []
    for made, nats in linking_pairs.linkable(pairs, first_seed):
        links = keyless.link(made.tables, random_state=0)
        link = links.found["table1"]
        verdicts[link.evidence.verdict] += 1
        stated.append(link.probability)
        right.append(link.permutation == made.truth["table1"])
        rows, needed = len(link.permutation), np.log(len(link.permutation))
        print(f"{nats / needed:.2f} log n, n={rows}: {link.evidence.verdict}, {right[-1].mean():.3f}", flush=True)
    shares = [float(np.mean(r)) for r in right]
    return [
        {
            "pairs": "2 to 3 log n nats a row",
            "count": pairs,
            **{verdict: verdicts[verdict] for verdict in ("unlinkable", "uncertain", "linked")},
            "right, mean": float(np.mean(shares)),
            "right, worst": min(shares),
            "calibration error": expected_calibration_error(np.concatenate(stated), np.concatenate(right)),
        }
    ]


def calibration(data_sets: int, first_seed: int) -> list[dict[str, Any]]:
    """Compare stated probabilities with how often they are right, where many rows are in doubt."""
    settings = {
        "noise 1.25": {"noise": 1.25},
        "noise 1.5": {"noise": 1.5},
        "noise 1, complete": {"noise": 1.0, "observed": 1.0, "column_counts": (30, 25)},
        "noise 0.5, 40% observed": {"noise": 0.5, "observed": 0.4},
    }
    rows = []
    for name, case in settings.items():
        stated, right = [], []
        for i in range(min(data_sets, 5)):
            made = draw(case, first_seed + i)
            link = keyless.link(made.tables, random_state=0).found["table1"]
            if link.evidence.verdict == "linked":
                stated.append(link.probability)
                right.append(link.permutation == made.truth["table1"])
        rows.append(_calibrated(name, stated, right))
    data = load_breast_cancer().data
    stated, right = [], []
    for i in range(min(data_sets, 5)):
        rng = np.random.default_rng(first_seed + i)
        columns, order = rng.permutation(data.shape[1]), rng.permutation(len(data))
        link = keyless.link({"a": data[:, columns[:15]], "b": data[order][:, columns[15:]]}, random_state=0).found["b"]
        if link.evidence.verdict == "linked":
            stated.append(link.probability)
            right.append(link.permutation == np.argsort(order))
    return [*rows, _calibrated("breast cancer, random halves of the columns", stated, right)]


def _calibrated(name: str, stated: list[Any], right: list[Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"case": name, "linked": len(stated)}
    if stated:
        said, was = np.concatenate(stated), np.concatenate(right)
        row |= {
            "right": float(was.mean()),
            "stated": float(said.mean()),
            "calibration error": expected_calibration_error(said, was),
        }
    print(row, flush=True)
    return row


def known_pairs(data_sets: int, first_seed: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(min(data_sets, 5)):
        tables, truth = linking_pairs.mirrored(first_seed + i)
        chosen = np.random.default_rng(first_seed + i).choice(len(truth), 5, replace=False)
        pairs = [(int(row), int(truth[row])) for row in chosen]
        shares = [
            float((keyless.link(tables, known_pairs=known, random_state=0).permutations["b"] == truth).mean())
            for known in (None, pairs)
        ]
        rows.append({"case": f"mirror images, {i + 1}", "right without": shares[0], "right with 5 pairs": shares[1]})
        print(rows[-1], flush=True)
    return rows


CASES = {
    "paper": ("The paper's d-correspondence settings: wrong rows per table of 100", PAPER),
    "sweeps": ("The paper's sweeps: wrong rows of 100 (60+40 columns, rank 5, noise 0.1, 80% observed)", SWEEPS),
    "large": ("A thousand rows", large),
    "breast-cancer": ("Breast-cancer measurements, raw values", breast_cancer),
    "overlap": ("Tables that share only some entities (rank 8, noise 5%)", overlap),
    "growth": ("Processor time against the number of rows", growth),
    "unrelated": ("Unrelated tables: how often is each verdict given?", unrelated),
    "linkable": ("Linkable tables: how often is each verdict given?", linkable),
    "calibration": ("Are stated probabilities right?", calibration),
    "known-pairs": ("A problem that cannot be solved without known pairs", known_pairs),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="How many rows does keyless put in the wrong place?")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--rival-sets", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=30, help="unrelated and linkable pairs")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="for trying things out, take another")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    one_thread()
    sections = {}
    for name in arguments.cases:
        title, case = CASES[name]
        if isinstance(case, dict):
            rivals = arguments.rival_sets if name == "paper" else 0
            rows = synthetic(case, arguments.data_sets, rivals, arguments.first_seed)
        else:
            count = arguments.pairs if name in ("unrelated", "linkable") else arguments.data_sets
            rows = case(count, arguments.first_seed)
        sections[title] = rows
    report_sections(
        "How many rows does keyless put in the wrong place, and is its verdict right?",
        sections,
        settings={"first seed": arguments.first_seed, "threads": 1, "M³O": "stops after 2 s a start"},
        out=arguments.out,
        order=[title for title, _ in CASES.values()],
    )


if __name__ == "__main__":
    main()
