"""The paper's propositions and its theorem against simulation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome
from keyless.paper.experiments.drawing import finish, panels
from keyless.paper.theory import (
    assumption_constants,
    counterexamples,
    cycle_number,
    displacement,
    generic_rank,
    minimise_nuclear_norm,
    polar_norm,
    printed_lemma_bound,
    printed_theorem_bound,
    rank_bound,
)
from keyless.plots import COLOURS, INK

__all__ = ["EXPERIMENT", "is_broken", "ranks", "theorem"]

_NOISE = 1e-6
"""On the small tables, so that no two orders tie."""


def ranks(seed: int, *, n_rows: int = 50, columns: tuple[int, int] = (12, 9), rank: int = 4) -> dict[str, int]:
    """Compare the rank of [A, P·B] with Proposition 1's bound and Proposition 2's value, for one draw.

    Args:
        seed: of tables and permutation.
        n_rows: rows.
        columns: of A and B.
        rank: of [A, B]; at most √(n/2).
    """
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((n_rows, rank)) @ rng.standard_normal((rank, sum(columns)))
    first, second = np.split(matrix, [columns[0]], axis=1)
    # Few rows moved, so that the bound is not always 2r.
    order = np.arange(n_rows)
    chosen = rng.choice(n_rows, int(rng.integers(0, 3 * rank + 1)), replace=False)
    order[chosen] = rng.permutation(chosen)
    return {
        "H": displacement(order),
        "C": cycle_number(order),
        "rank": int(np.linalg.matrix_rank(np.hstack([first, second[order]]), tol=1e-9 * np.linalg.norm(matrix))),
        "bound": rank_bound(rank, [order], block_ranks=[rank, rank], columns=list(columns)),
        "predicted": generic_rank(rank, order, columns=columns),
    }


def theorem(seed: int, *, gap: float = 1e-3, noise: float = _NOISE, n_rows: int = 6) -> dict[str, Any]:
    """Compare Theorem 1's printed bound with the truth, on small tables for which all orders can be tried.

    A is a vector whose column is random, B the same up to `gap`; both are observed with noise, and the order of least
    nuclear norm is found exactly. Wrong rows are those of the order nearest to the truth among all that attain it.

    Args:
        seed: of the tables.
        gap: how far B is from A, relative to its entries.
        noise: σ.
        n_rows: at most 8.
    """
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((n_rows, 1))
    second = first * (1 + gap * rng.standard_normal((n_rows, 1)))
    return _compared(first, second, noise, rng)


def _compared(first: Any, second: Any, noise: float, rng: np.random.Generator) -> dict[str, Any]:
    claim = printed_theorem_bound(assumption_constants(first, second), noise=noise)
    seen = [matrix + noise * rng.standard_normal(matrix.shape) for matrix in (first, second)]
    best = minimise_nuclear_norm(*seen).permutations
    wrong = (best != np.arange(len(first))).sum(axis=1)
    return {
        "conditions met": claim.conditions_met,
        "bound": min(float(claim.bound), 1e6),
        "probability": float(claim.probability),
        "least wrong": int(wrong.min()),
        "most wrong": int(wrong.max()),
    }


def is_broken(compared: dict[str, Any]) -> bool:
    """Tell whether even the order nearest to the truth has more wrong rows than the printed bound allows.

    Args:
        compared: what `theorem` returns.
    """
    return bool(compared["conditions met"] and compared["least wrong"] > compared["bound"] + 1e-9)


def _counterexample(number: int, draws: int) -> dict[str, Any]:
    example = counterexamples()[number]
    constants = assumption_constants(example.reference, example.table)
    order = example.permutation
    noisy = [_compared(example.reference, example.table, _NOISE, np.random.default_rng(seed)) for seed in range(draws)]
    return noisy[0] | {
        "least wrong": float(np.mean([entry["least wrong"] for entry in noisy])),
        "most wrong": max(entry["most wrong"] for entry in noisy),
        "broken": sum(is_broken(entry) for entry in noisy),
        "draws": draws,
        "reason": example.reason,
        "lemma": printed_lemma_bound(constants, displacement(order)),
        "exact": polar_norm(example.reference, example.table, order),
        "displaced": displacement(order),
    }


def _run(run: ExperimentRun) -> Outcome:
    draws, trials = run.count(500, 60), run.count(200, 30)
    found = run.cells([(f"ranks seed={seed}", partial(ranks, seed)) for seed in range(draws)], stage="ranks")
    small = run.cells([(f"theorem seed={seed}", partial(theorem, seed)) for seed in range(trials)], stage="theorem")
    against = run.cells(
        [
            (f"counterexample {k + 1} draws={trials}", partial(_counterexample, k, trials))
            for k in range(len(counterexamples()))
        ],
        stage="counterexamples",
    )
    drawn, tried, examples = list(found.values()), list(small.values()), list(against.values())
    met = [t for t in tried if t["conditions met"]]
    telling = sum(t["bound"] < 6 for t in met)
    table: list[dict[str, Any]] = [
        {
            "claim": "Proposition 1: rank ≤ min{n, m, r_A + r_B, r + H − C}",
            "paper": "always",
            "simulation": f"{sum(d['rank'] <= d['bound'] for d in drawn)} of {draws}",
        },
        {
            "claim": "Proposition 2: rank = min{2r, r + H − C}",
            "paper": "with probability 1",
            "simulation": f"{sum(d['rank'] == d['predicted'] for d in drawn)} of {draws}",
        },
        {
            "claim": "Theorem 1 on random one-column tables that meet its conditions",
            "paper": "wrong rows ≤ bound",
            "simulation": f"broken in {sum(is_broken(t) for t in met)} of {len(met)} ({len(tried)} drawn)",
        },
    ]
    for number, example in enumerate(examples, start=1):
        table.append(
            {
                "claim": f"Theorem 1, counterexample {number}",
                "paper": f"wrong rows ≤ {example['bound']:.3g} with probability {example['probability']:.3g}",
                "simulation": f"broken in {example['broken']} of {example['draws']}, "
                f"{example['least wrong']:.3g} wrong rows on average",
            }
        )
        table.append(
            {
                "claim": f"its second lemma, counterexample {number}, {example['displaced']} rows displaced",
                "paper": f"norm ≤ {example['lemma']:.4f}",
                "simulation": f"norm = {example['exact']:.4f}",
            }
        )
    rows = [{"what": "ranks", **d} for d in drawn]
    rows += [{"what": "theorem", **t} for t in tried] + [{"what": "counterexample", **e} for e in examples]
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(drawn, tried, examples),
        settings={"ranks": "n = 50, 12 + 9 columns, r = 4", "theorem": f"n = 6, σ = {_NOISE:g}", "draws": draws},
        notes=(
            "Theorem 1 is not true as printed: its second lemma drops the cross terms ⟨u_i, P u_j⟩ and the sign of "
            "⟨u_i, P u_i⟩. Each counterexample meets every printed condition.",
            *(f"Counterexample {k}: {example['reason']}" for k, example in enumerate(examples, start=1)),
            f"Noise of {_NOISE:g} is added to the small tables, and all orders of their rows are tried.",
            f"On the random tables of 6 rows the bound is below 6, so that it excludes something, in {telling} of "
            f"{len(met)} draws; its median is {np.median([t['bound'] for t in met]):.3g}.",
        ),
    )


def _figure(drawn: list[Any], tried: list[Any], examples: list[Any]) -> Any:
    first, second = panels(2)
    jitter = np.random.default_rng(0).uniform(-0.15, 0.15, len(drawn))
    excess = np.array([d["H"] - d["C"] for d in drawn])
    first.plot(excess + jitter, np.array([d["rank"] for d in drawn]), "o", color=COLOURS[0], alpha=0.5, markersize=4)
    line = np.arange(excess.max() + 1)
    first.plot(line, np.minimum(8, 4 + line), color=INK, linewidth=1.4, linestyle="--")
    finish(
        first,
        title="Rank after a shuffle: as Proposition 2 says",
        xlabel="H(π) − C(π)",
        ylabel="rank of [A, PB], r = 4",
    )
    for label, chosen, colour, marker in (
        ("random", [t for t in tried if t["conditions met"]], COLOURS[0], "o"),
        ("counterexamples", examples, COLOURS[1], "X"),
    ):
        bounds = [max(abs(t["bound"]), 1e-9) for t in chosen]
        second.plot(bounds, [t["least wrong"] for t in chosen], marker, color=colour, label=label, alpha=0.7)
    limits = np.geomspace(1e-3, 10, 50)
    second.plot(limits, limits, color=INK, linestyle="--", linewidth=1.4, label="wrong rows = bound")
    second.set_xscale("log")
    second.set_ylim(-0.5, 8)
    second.legend(frameon=False, fontsize=9, loc="upper left")
    finish(
        second, title="Theorem 1: what lies above the line breaks it", xlabel="printed bound", ylabel="wrong rows, mean"
    )
    return first.get_figure(root=True)


EXPERIMENT = Experiment(
    name="theory",
    title="The paper's propositions and its theorem against simulation",
    paper="Propositions 1 and 2 on the rank of a shuffle; Theorem 1 bounds the wrong rows at the least nuclear norm.",
    leaks="Theorem 1 is not true as printed; its conditions also write M, a matrix, where D = ‖A‖* + ‖B‖* is meant.",
    columns=("claim", "paper", "simulation"),
    run=_run,
)
