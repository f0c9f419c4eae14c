"""Short examples of uses beyond the paper's experiments: records, ratings, sensors, tracks.

Tumours are real and open; ratings, sensors and tracks are made up, and say nothing about how often real ones link.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from keyless.completion import SoftImpute
from keyless.linker import link
from keyless.metrics import hamming, rmse
from keyless.model.factor_model import fit_table, information
from keyless.model.scales import scale_table
from keyless.paper import M3O
from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome
from keyless.paper.experiments.drawing import bars, finish, legend, panels
from keyless.paper.experiments.synthetic import match_informed
from keyless.paper.problem import to_problem

__all__ = ["EXPERIMENT", "filled", "ratings", "records", "sensors", "tracks"]

Floats = NDArray[np.float64]
Made = tuple[Floats, Floats, NDArray[np.intp]]


def _shuffled(first: Floats, second: Floats, rng: np.random.Generator) -> Made:
    """Return both tables, the second shuffled, and which of its rows belongs to each row of the first."""
    order = rng.permutation(len(second))
    return first, second[order], np.argsort(order)


def records(seed: int, rows: int = 569) -> Made:
    """Return records of the same tumours from two places: means and errors here, worst values there. Real data.

    Args:
        seed: of the order, and of which tumours are taken.
        rows: at most 569.
    """
    rng = np.random.default_rng(seed)
    data = load_breast_cancer().data[rng.permutation(569)[:rows]]
    return _shuffled(data[:, :20], data[:, 20:], rng)


def ratings(seed: int, rows: int = 200) -> Made:
    """Return ratings from 1 to 5 of the same users on two platforms with different films, 60% missing. Made up.

    Args:
        seed: of everything.
        rows: users.
    """
    rng = np.random.default_rng(seed)
    taste, films = rng.standard_normal((rows, 4)), rng.standard_normal((4, 120))
    liking = 3.3 + 0.5 * rng.standard_normal((rows, 1)) + 0.6 * taste @ films + 0.3 * rng.standard_normal((rows, 120))
    given = np.clip(np.rint(liking), 1, 5)
    given[rng.random(given.shape) < 0.6] = np.nan
    return _shuffled(given[:, :60], given[:, 60:], rng)


def sensors(seed: int, rows: int = 120) -> Made:
    """Return readings of the same sensors on two days, the second without ids. Made up.

    A field moves over a square: six smooth bumps whose strengths change from hour to hour. A tenth of the readings is
    lost.

    Args:
        seed: of everything.
        rows: sensors.
    """
    rng = np.random.default_rng(seed)
    places, bumps = rng.random((rows, 1, 2)), rng.random((1, 6, 2))
    shape = np.exp(-((places - bumps) ** 2).sum(axis=2) / 0.1)
    strength = rng.standard_normal((6, 48)).cumsum(axis=1)
    seen = 15 + shape @ strength + 0.1 * rng.standard_normal((rows, 48))
    seen[rng.random(seen.shape) < 0.1] = np.nan
    return _shuffled(seen[:, :24], seen[:, 24:], rng)


def tracks(seed: int, rows: int = 60) -> Made:
    """Return image tracks of markers on a turning body before and after they were lost from sight. Made up.

    Seen from afar by one camera, the coordinates of points of a rigid body over any frames have rank 4, so tracks of
    the same marker before and after the gap share their factors: its place on the body.

    Args:
        seed: of everything.
        rows: markers.
    """
    rng = np.random.default_rng(seed)
    body = rng.standard_normal((rows, 3)) * (1.0, 0.6, 0.3)
    frames = []
    for angle in np.linspace(0, 2.5, 20):
        turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0.3 * np.sin(angle), 1, 0.3 * np.cos(angle)]])
        frames.append(body @ turn.T + rng.standard_normal((1, 2)) + 0.02 * rng.standard_normal((rows, 2)))
    return _shuffled(np.hstack(frames[:10]), np.hstack(frames[10:]), rng)


_USES: dict[str, tuple[str, Callable[[int, int], Made], int]] = {
    "record linkage": ("tumours, real", records, 569),
    "federated recommendation": ("users, made up", ratings, 200),
    "sensors without ids": ("sensors, made up", sensors, 120),
    "pose tracks without labels": ("markers, made up", tracks, 60),
}


def _keyless(use: str, seed: int, rows: int) -> dict[str, Any]:
    first, second, truth = _USES[use][1](seed, rows)
    links = link({"here": first, "there": second}, random_state=seed)
    found = links.permutations["there"]
    result: dict[str, Any] = {"wrong": hamming(found, truth), "rows": len(truth), "verdict": links.evidence.verdict}
    sure = links.found["there"].probability >= 0.9
    return result | {"sure": int(sure.sum()), "sure and wrong": int((sure & (found != truth)).sum())}


def _m3o(use: str, seed: int, rows: int, patience: int) -> dict[str, Any]:
    first, second, truth = _USES[use][1](seed, rows)
    tables = {name: (t - np.nanmean(t, axis=0)) / np.nanstd(t, axis=0) for name, t in (("a", first), ("b", second))}
    found = M3O(patience=patience, tolerance=1e-4).solve(to_problem(tables), random_state=seed)
    return {"wrong": hamming(found.permutations[0], truth), "converged": found.status.converged}


def _oracle(use: str, seed: int, rows: int) -> int:
    """Match by a factor model that was fitted to the rows in their true order."""
    first, second, truth = _USES[use][1](seed, rows)
    scored = []
    for table in (first, second):
        mask = ~np.isnan(table)
        scored.append((scale_table(np.nan_to_num(table), mask)[0], mask))
    together = [np.hstack([scored[0][k], scored[1][k][truth]]) for k in range(2)]
    model = fit_table(*together)
    width = first.shape[1]
    parts = [
        information(model.columns(columns), *table)
        for columns, table in zip((slice(0, width), slice(width, None)), scored, strict=True)
    ]
    return hamming(match_informed(parts, ["there"])["there"], truth)


def filled(seed: int) -> dict[str, float]:
    """Return the error of held-out ratings when each platform fills its own, when linked, and in the true order.

    Args:
        seed: of the ratings and of what is held out.
    """
    first, second, truth = ratings(seed)
    rng = np.random.default_rng(seed + 1)
    hidden = [~np.isnan(table) & (rng.random(table.shape) < 0.1) for table in (first, second)]
    kept = [np.where(out, np.nan, table) for out, table in zip(hidden, (first, second), strict=True)]
    found = link({"here": kept[0], "there": kept[1]}, random_state=seed).permutations["there"]

    def error(orders: NDArray[np.intp] | None) -> float:
        if orders is None:
            guesses = [_completed(table) for table in kept]
        else:
            whole = _completed(np.hstack([kept[0], kept[1][orders]]))
            back = np.argsort(orders)
            guesses = [whole[:, : first.shape[1]], whole[back][:, first.shape[1] :]]
        return rmse(
            np.concatenate([g.ravel() for g in guesses]),
            np.concatenate([first.ravel(), second.ravel()]),
            np.concatenate([h.ravel() for h in hidden]),
        )

    return {"alone": error(None), "linked": error(found), "true order": error(truth)}


def _completed(table: Floats) -> Floats:
    return np.asarray(SoftImpute(scale=False, random_state=0).fit_transform(table), dtype=np.float64)


def _run(run: ExperimentRun) -> Outcome:
    seeds = range(run.count(5, 1))
    patience = run.size(100, 20)
    sizes = {use: run.size(rows, min(rows, 200)) for use, (_, _, rows) in _USES.items()}
    tasks: list[tuple[str, Callable[[], Any]]] = []
    for use in _USES:
        for seed in seeds:
            key, size = f"{use} rows={sizes[use]} seed={seed}", sizes[use]
            tasks.append((f"keyless {key}", partial(_keyless, use, seed, size)))
            tasks.append((f"M³O {key} patience={patience}", partial(_m3o, use, seed, size, patience)))
            tasks.append((f"oracle {key}", partial(_oracle, use, seed, size)))
    tasks += [(f"filled seed={seed}", partial(filled, seed)) for seed in seeds]
    found = run.cells(tasks)
    rows: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    settled: list[bool] = []
    for use, (data, _, _) in _USES.items():
        size = sizes[use]
        keys = [f"{use} rows={size} seed={seed}" for seed in seeds]
        own = [found[f"keyless {key}"] for key in keys]
        theirs = [found[f"M³O {key} patience={patience}"]["wrong"] for key in keys]
        settled += [found[f"M³O {key} patience={patience}"]["converged"] for key in keys]
        best = [found[f"oracle {key}"] for key in keys]
        for seed, entry, other, limit in zip(seeds, own, theirs, best, strict=True):
            rows.append({"use": use, "seed": seed, **entry, "M³O wrong": other, "oracle wrong": limit})
        verdicts = ", ".join(sorted({entry["verdict"] for entry in own}))
        table.append(
            {
                "setting": f"{use} ({size} {data})",
                "our M³O": f"{np.mean(theirs):.1f} of {size}",
                "keyless": f"{np.mean([entry['wrong'] for entry in own]):.1f} of {size}; {verdicts}",
                "oracle": f"{np.mean(best):.1f} of {size}",
            }
        )
    errors = [found[f"filled seed={seed}"] for seed in seeds]
    rows += [{"use": "held-out ratings", "seed": seed, **entry} for seed, entry in zip(seeds, errors, strict=True)]
    means = {kind: float(np.mean([entry[kind] for entry in errors])) for kind in errors[0]}
    sure = [sum(r[key] for r in rows if "sure" in r) for key in ("sure", "sure and wrong")]
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(rows),
        settings={"seeds": len(seeds), "M³O patience": patience},
        notes=(
            "Wrong rows, mean over data sets. The paper names these uses and has no experiment on them; genome "
            "assembly, which it names too, is not about rows of tables.",
            "Ratings, sensors and tracks are made up with few factors and little noise; nothing here says that real "
            "ones link as well. The tumours are scikit-learn's breast-cancer table, cut in two.",
            "The oracle matches by a factor model fitted to the rows in their true order. It knows the order "
            "while it fits, but it is a linear model, so keyless can be better or worse than it.",
            f"Of {sure[0]} matches that keyless is 90% sure of, {sure[1]} are wrong.",
            f"Held-out ratings, root mean squared error: {means['alone']:.3f} when each platform fills its own, "
            f"{means['linked']:.3f} when linked, {means['true order']:.3f} in the true order.",
            f"M³O runs with its default operator, steps and λ on standardised columns from one Gaussian start; "
            f"{sum(settled)} of {len(settled)} runs went through all values of ε and settled.",
        ),
    )


def _figure(rows: list[dict[str, Any]]) -> Any:
    (ax,) = panels(1, width=7.5, height=3.8)

    def mean(use: str, key: str) -> float:
        return float(np.mean([100 * r[key] / r["rows"] for r in rows if r["use"] == use and key in r]))

    series = [
        (label, [mean(use, key) for use in _USES])
        for label, key in (("our M³O", "M³O wrong"), ("keyless", "wrong"), ("oracle", "oracle wrong"))
    ]
    bars(ax, list(_USES), series)
    finish(ax, title="Uses beyond the paper's experiments", xlabel="wrong rows, %, mean", ylabel="")
    return legend(ax)


EXPERIMENT = Experiment(
    name="applications",
    title="Uses beyond the paper's experiments: records, ratings, sensors, tracks",
    paper="The paper names record linkage, federated recommendation, sensor networks and pose tracking as uses, "
    "without an experiment.",
    run=_run,
)
