"""What each part of keyless is worth: wrong rows with it and without it, all else equal.

Parts are switched off by options that every caller has, or by calling the parts themselves in a shorter order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_breast_cancer

import keyless
from keyless.datasets import ShuffledTables
from keyless.engine import Side, Task, link_pair
from keyless.maps.rotations import anneal, procrustes, settle, signature_starts
from keyless.metrics import hamming, normalised_error
from keyless.model.factor_model import fit_table, information, padded
from keyless.model.latents import Latents
from keyless.model.scales import ScaleName, scale_table
from keyless.pairs.likelihood import couple
from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome
from keyless.paper.experiments.drawing import bars, finish, legend, panels
from keyless.paper.experiments.synthetic import draw, oracle_wrong

__all__ = ["EXPERIMENT", "aligned", "jointly", "tumours"]

Floats = NDArray[np.float64]

_STARTS = 8
"""As many random starts as there are signature starts."""

_ONE_GENERATION = 1
"""A search without a portfolio: one round of first maps."""


def aligned(made: ShuffledTables, *, signatures: bool = True, likelihood: bool = True, seed: int = 0) -> int:
    """Align two tables once by the parts of keyless, and count wrong rows.

    Eight first couplings, each annealed; the best by its own criterion is kept, and rows are assigned by that.

    Args:
        made: two tables and the answer.
        signatures: start from signatures of rows; else from random rotations.
        likelihood: judge and assign by the log-likelihood ratio, which weighs rows by what is observed of them; else
            by distances between whitened factors.
        seed: of the random rotations.
    """
    scored = [_scored(table) for table in made.tables.values()]
    models = [fit_table(*table) for table in scored]
    rank = max(model.rank for model in models)
    left, right = (
        Latents.of(information(padded(model, rank), *table)) for model, table in zip(models, scored, strict=True)
    )
    starts = _signature_couplings(left, right) if signatures else _random_couplings(left, right, seed)
    best: tuple[float, NDArray[np.intp]] | None = None
    for coupling in starts:
        rotation = anneal(left.white, right.white, coupling)
        score, found = _by_likelihood(left, right, rotation) if likelihood else _by_distance(left, right, rotation)
        if best is None or score > best[0]:
            best = score, found
    if best is None:
        raise ValueError("there is no start")
    return hamming(best[1], made.truth["table1"])


def _scored(table: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    mask = ~np.isnan(table)
    return scale_table(np.nan_to_num(table), mask)[0], mask


def _signature_couplings(left: Latents, right: Latents) -> Iterator[Floats]:
    rows = np.arange(len(left)), np.arange(len(right))
    for _, coupling in signature_starts(left, right, left_rows=rows[0], right_rows=rows[1]):
        yield coupling


def _random_couplings(left: Latents, right: Latents, seed: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    rank = left.white.shape[1]
    for _ in range(_STARTS):
        rotation = np.linalg.qr(rng.standard_normal((rank, rank)))[0]
        yield couple(2.0 * left.white @ (right.white @ rotation).T, temperature=3.0, max_iter=50)


def _by_likelihood(left: Latents, right: Latents, rotation: Floats) -> tuple[float, NDArray[np.intp]]:
    found = settle(left, right, rotation)
    return found.score, linear_sum_assignment(-found.log_ratio)[1]


def _by_distance(left: Latents, right: Latents, rotation: Floats) -> tuple[float, NDArray[np.intp]]:
    """Alternate assignment and rotation until nothing moves."""
    order = np.full(len(left), -1)
    for _ in range(50):
        products = left.white @ (right.white @ rotation).T
        before, order = order, linear_sum_assignment(-products)[1]
        if np.array_equal(before, order):
            break
        rotation = procrustes(left.white, right.white, np.eye(len(right))[order])
    residual = float(((left.white - (right.white @ rotation)[order]) ** 2).mean())
    return -residual, order


def jointly(made: ShuffledTables, *, together: bool = True) -> float:
    """Link several tables by one model, and count wrong rows per table.

    Args:
        made: tables and answer.
        together: match each table against all the others; else each with the reference alone.
    """
    tables = list(made.tables.items())
    parts = [dict(tables)] if together else [dict([tables[0], table]) for table in tables[1:]]
    found: dict[str, Any] = {}
    for part in parts:
        found |= keyless.link(part, partners="all", random_state=0).permutations
    return normalised_error(found, made.truth)


def tumours(seed: int, *, portfolio: bool = True, transforms: bool = True, rows: int = 569) -> float:
    """Link the means of ten features of tumours to their worst values, and return wrong rows of 100.

    Args:
        seed: of the row order, of which rows are taken, and of the search.
        portfolio: look for first maps in all rounds; else in one.
        transforms: choose logarithms or roots of columns by the data; else leave columns as they are.
        rows: how many of the 569 tumours to take.
    """
    rng = np.random.default_rng(seed)
    data = load_breast_cancer().data[rng.permutation(569)[:rows]]
    order = rng.permutation(rows)
    scales: ScaleName = "auto" if transforms else "identity"
    found = link_pair(
        Side(data[:, :10], scales=scales),
        Side(data[order, 20:], scales=scales),
        Task(every_row=True, generations=None if portfolio else _ONE_GENERATION, comparisons=0, seed=seed),
    )
    return 100 * hamming(found.permutation, np.argsort(order)) / rows


def _parts(
    run: ExperimentRun,
) -> list[tuple[str, str, Callable[[int], Any], Callable[[int], Any], Callable[[int], Any] | None]]:
    """Return part, setting, wrong rows with it, without it, and of the oracle, each as a function of the seed."""
    found: list[tuple[str, str, Callable[[int], Any], Callable[[int], Any], Callable[[int], Any] | None]] = []
    two: dict[str, dict[str, Any]] = {
        "figure 1": {},
        "figure 1, 30% observed": {"observed": 0.3},
        "figure 1, 20% observed": {"observed": 0.2},
        "figure 1, noise 1": {"noise": 1.0},
    }
    for name, settings in two.items():
        make = partial(_aligned, settings)
        oracle = partial(_oracle, settings)
        found.append(("signatures", name, make, partial(_aligned, settings, signatures=False), oracle))
        found.append(("likelihood", name, make, partial(_aligned, settings, likelihood=False), oracle))
    rows = run.size(569, 200)
    real = partial(tumours, rows=rows)
    name = f"{rows} tumours, 10 + 10 columns"
    found.append(("portfolio", name, real, partial(tumours, rows=rows, portfolio=False), None))
    found.append(("transforms", name, real, partial(tumours, rows=rows, transforms=False), None))
    several: dict[str, dict[str, Any]] = {
        "(100; 20, 40, 40), 40%": {"column_counts": (20, 40, 40), "observed": 0.4},
        "(100; 20, 40, 40), 30%": {"column_counts": (20, 40, 40), "observed": 0.3},
        "(100; 20, 15, 15, 15, 15), 80%, noise 0.5": {"column_counts": (20, 15, 15, 15, 15), "noise": 0.5},
    }
    for name, settings in several.items():
        oracle = partial(_oracle, settings)
        alone = partial(_joint, settings, together=False)
        found.append(("leave-one-out", name, partial(_joint, settings), alone, oracle))
    return found


def _aligned(settings: dict[str, Any], seed: int, **switches: bool) -> int:
    return aligned(draw(seed, **settings), seed=seed, **switches)


def _joint(settings: dict[str, Any], seed: int, **switches: bool) -> float:
    return jointly(draw(seed, **settings), **switches)


def _oracle(settings: dict[str, Any], seed: int) -> float:
    return oracle_wrong(draw(seed, **settings))


def _run(run: ExperimentRun) -> Outcome:
    seeds = range(run.count(10, 2))
    parts = _parts(run)
    # The same setting with everything on serves several parts.
    tasks: dict[str, Callable[[], Any]] = {}
    for part, name, make, without, oracle in parts:
        for seed in seeds:
            tasks[f"{_kind(part)} with, {name}, seed={seed}"] = partial(make, seed)
            tasks[f"without {part}, {name}, seed={seed}"] = partial(without, seed)
            if oracle is not None:
                tasks[f"oracle, {name}, seed={seed}"] = partial(oracle, seed)
    found = run.cells(tasks.items())
    rows: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    for part, name, _, _, oracle in parts:
        entry: dict[str, Any] = {"part": part, "setting": name}
        kinds = {"with it": f"{_kind(part)} with", "without it": f"without {part}"}
        if oracle is not None:
            kinds["oracle"] = "oracle"
        for column, prefix in kinds.items():
            numbers = [found[f"{prefix}, {name}, seed={seed}"] for seed in seeds]
            rows += [
                {"part": part, "setting": name, "kind": column, "seed": seed, "wrong rows": wrong}
                for seed, wrong in zip(seeds, numbers, strict=True)
            ]
            entry[column] = f"{np.mean(numbers):.1f} ({min(numbers):.3g} to {max(numbers):.3g})"
        table.append(entry)
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(rows, parts),
        settings={"data sets": len(seeds), "tumours": run.size(569, 200)},
        notes=(
            "Wrong rows of 100, mean (min to max) over data sets. Each line leaves out one part. Do not compare "
            "lines with each other: each part is tried in a setting in which it can be called alone.",
            "signatures, likelihood: one alignment of two tables, the first stage of keyless alone, from eight starts. "
            "Without signatures the eight starts are random rotations; without the likelihood rows are judged and "
            "assigned by distances of whitened factors.",
            "portfolio, transforms: the search for canonical pairs. Without the portfolio it has one round of "
            "first maps; without transforms columns are standardised as they are.",
            "leave-one-out: tables joined, each matched against all the others. Without it each table is linked with "
            "the reference alone.",
            "The settings at 20% observed and with five narrow tables were added later, because the others "
            "showed no difference with and without the likelihood and leave-one-out.",
            "The oracle knows loadings and noise; there is none for real tables.",
        ),
    )


def _kind(part: str) -> str:
    return {"signatures": "alignment", "likelihood": "alignment", "leave-one-out": "joint"}.get(part, "pairs")


def _figure(rows: list[dict[str, Any]], parts: list[Any]) -> Any:
    (ax,) = panels(1, width=8.0, height=5.2)

    def mean(part: str, name: str, kind: str) -> float:
        chosen = [r["wrong rows"] for r in rows if (r["part"], r["setting"], r["kind"]) == (part, name, kind)]
        return float(np.mean(chosen)) if chosen else float("nan")

    pairs = [(part, name) for part, name, *_ in parts]
    series = [(kind, [mean(part, name, kind) for part, name in pairs]) for kind in ("with it", "without it", "oracle")]
    bars(ax, [f"{part}: {name}" for part, name in pairs], series)
    finish(ax, title="What each part is worth", xlabel="wrong rows of 100, mean", ylabel="")
    return legend(ax)


EXPERIMENT = Experiment(
    name="ablation",
    title="What each part of keyless is worth",
    columns=("part", "setting", "with it", "without it", "oracle"),
    run=_run,
)
