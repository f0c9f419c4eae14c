"""The paper's MovieLens table, as published and honestly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from keyless.downloads import MOVIELENS_100K, fetch
from keyless.experiments.base import Experiment, Outcome, Run
from keyless.experiments.drawing import bars, finish, legend, panels
from keyless.experiments.platforms import (
    Platforms,
    fill_alone,
    fill_joined,
    link_by_shared_films,
    shuffled_platforms,
)
from keyless.experiments.ratings import GENRES, Ratings, read_ratings, split_pairs
from keyless.linker import link
from keyless.lowrank import project_rank
from keyless.metrics import foscttm
from keyless.problem import Block, Problem
from keyless.solvers import M3O, Baseline, FixedEntropy, PenaltyPath, Released, UnlabeledSensing

__all__ = ["EXPERIMENT", "PAPER", "as_published", "honest", "honest_rival", "unaided"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]

PAPER = {
    "SIR": (1.0202, 1.0158, 0.9808, 0.9803, 0.9811, 0.9944),
    "SIC": (0.9694, 0.9695, 0.9317, 0.9175, 0.9253, 0.9418),
    "MUS": (0.9659, 0.9842, 0.9423, 0.9305, 0.9306, 0.9485),
    "Baseline": (0.9728, 0.9562, 0.9379, 0.9105, 0.9145, 0.9395),
    "M³O": (0.9389, 0.8787, 0.9139, 0.8556, 0.8567, 0.8948),
    "Oracle": (0.9444, 0.7825, 0.9058, 0.8176, 0.8098, 0.8667),
}
"""RMSE by genre in the order of `GENRES`, then over all test ratings."""

_SHARED, _ALONE, _RATED = "keyless, shared films", "keyless, no shared films", "keyless, which films were rated"
_LEAKS = (
    "As published: users are never shuffled and every table starts from its own completion in true order; the split is "
    "drawn per table, so that half of the test ratings stand in another table's training part; λ and the iterate are "
    "those of lowest test error."
)


def _scores(errors: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return RMSE by genre and over all test ratings, from squared errors."""
    found = {genre: float(np.sqrt(errors[genre].mean())) for genre in GENRES}
    return found | {"Total": float(np.sqrt(np.concatenate([errors[genre] for genre in GENRES]).mean()))}


def honest(ratings: Ratings, seed: int) -> dict[str, Any]:
    """Return the scores of SIC, SIR, Oracle and keyless with shared films; rows shuffled, one split per (user, film).

    Args:
        ratings: all ratings.
        seed: of split, orders and validation.
    """
    train, test = split_pairs(ratings.values > 0, share=0.2, random_state=seed)
    platforms, users = shuffled_platforms(ratings, train, random_state=1000 + seed)
    others = list(platforms.values)[1:]
    truth = {genre: np.argsort(users[genre]) for genre in others}
    rng = np.random.default_rng(2000 + seed)
    at_random = {genre: rng.permutation(len(train)) for genre in others}
    linked = link_by_shared_films(platforms)
    estimates = {
        "SIC": fill_alone(platforms, random_state=seed),
        "SIR": fill_joined(platforms, at_random, random_state=seed),
        "Oracle": fill_joined(platforms, truth, random_state=seed),
        _SHARED: fill_joined(platforms, linked.permutations, random_state=seed),
    }
    found: dict[str, Any] = {
        name: _scores({genre: _errors(ratings, test, users, genre, filled[genre]) for genre in users})
        for name, filled in estimates.items()
    }
    sure = linked.sure()
    found[_SHARED] |= {
        "links right": {genre: float((linked.permutations[genre] == truth[genre]).mean()) for genre in others},
        "with a margin": {genre: float((sure[genre] >= 0).mean()) for genre in others},
        "with a margin, right": {
            genre: float((sure[genre] == truth[genre]).sum() / max(int((sure[genre] >= 0).sum()), 1))
            for genre in others
        },
        "FOSCTTM": linked.nearness(truth),
    }
    return found


def honest_rival(ratings: Ratings, seed: int, method: str, *, steps: int) -> dict[str, Any]:
    """Return the scores of MUS, Baseline or M³O under the honest protocol, tables filled by the links they find.

    Args:
        ratings: all ratings.
        seed: of split, orders and validation.
        method: `"MUS"`, `"Baseline"` or `"M³O"`.
        steps: of the solver, at most.
    """
    train, test = split_pairs(ratings.values > 0, share=0.2, random_state=seed)
    platforms, users = shuffled_platforms(ratings, train, random_state=1000 + seed)
    others = list(platforms.values)[1:]
    alone = fill_alone(platforms, random_state=seed)
    problem = _problem(platforms)
    start = np.concatenate(list(alone.values()), axis=1)
    if method == "MUS":
        found = UnlabeledSensing(penalty=12.0).solve(problem).permutations
    elif method == "Baseline":
        found = Baseline(penalty=40.0, max_iter=steps).solve(problem, start=start).permutations
    else:
        found = _m3o(steps).solve(problem, start=start).permutations
    permutations = {genre: np.asarray(p, dtype=np.intp) for genre, p in zip(others, found, strict=True)}
    filled = fill_joined(platforms, permutations, random_state=seed)
    right = {genre: float((permutations[genre] == np.argsort(users[genre])).mean()) for genre in others}
    scores = _scores({genre: _errors(ratings, test, users, genre, filled[genre]) for genre in users})
    return scores | {"links right": right}


def unaided(ratings: Ratings, seed: int, *, missingness: bool, max_time: float | None) -> dict[str, Any]:
    """Return what `keyless.link` says of the tables when films they share are not named as such.

    Args:
        ratings: all ratings.
        seed: of split, orders and search.
        missingness: let which films were rated count.
        max_time: seconds, at most.
    """
    train, test = split_pairs(ratings.values > 0, share=0.2, random_state=seed)
    platforms, users = shuffled_platforms(ratings, train, random_state=1000 + seed)
    tables = {
        genre: pd.DataFrame(
            np.where(platforms.masks[genre], values, np.nan),
            columns=[f"{genre} {film}" for film in platforms.films[genre]],
        )
        for genre, values in platforms.values.items()
    }
    links = link(tables, shared=None, strangers=False, missingness=missingness, random_state=seed, max_time=max_time)
    truth = {genre: np.argsort(users[genre]) for genre in links.permutations}
    # What is not linked is not joined: then every table is filled alone.
    if links.evidence.verdict == "linked":
        filled = fill_joined(platforms, links.permutations, random_state=seed)
    else:
        filled = fill_alone(platforms, random_state=seed)
    scores = _scores({genre: _errors(ratings, test, users, genre, filled[genre]) for genre in users})
    return scores | {
        "verdict": links.evidence.verdict,
        "links right": {genre: float((links.permutations[genre] == right).mean()) for genre, right in truth.items()},
        "FOSCTTM": {genre: foscttm(-links.coupling(genre), right) for genre, right in truth.items()},
    }


def _errors(
    ratings: Ratings, test: BoolArray, users: Mapping[str, IntArray], genre: str, estimate: FloatArray
) -> FloatArray:
    cells = np.ix_(users[genre], ratings.films[genre])
    return np.asarray((estimate - ratings.values[cells])[test[cells]] ** 2)


def _problem(platforms: Platforms) -> Problem:
    blocks = [Block(values, platforms.masks[genre], name=genre) for genre, values in platforms.values.items()]
    return Problem(blocks[0], tuple(blocks[1:]))


def _m3o(steps: int) -> M3O:
    return M3O(
        penalty=PenaltyPath(300, stop=10, step=10),
        prox_weight="printed",
        step_rule=Released(omega=0.5, cap=0.15),
        entropy=FixedEntropy(0.05),
        patience=10,
        sinkhorn_max_iter=200,
        max_iter=steps,
    )


def _projections(values: FloatArray, mask: BoolArray, ranks: Sequence[int]) -> Iterator[FloatArray]:
    """Yield the iterates of filling by projection to each rank in turn, from the films' means."""
    level = float(values[mask].mean())
    means = (values.sum(axis=0) + 3 * level) / (mask.sum(axis=0) + 3)
    for rank in ranks:
        estimate = np.broadcast_to(means, values.shape)
        for _ in range(12):
            estimate = np.asarray(project_rank(np.where(mask, values, estimate), min(rank, *values.shape)))
            yield estimate


def as_published(ratings: Ratings, seed: int, method: str, *, steps: int) -> dict[str, float]:
    """Return the scores of a method under the published protocol, leaks included; see `_LEAKS`.

    Args:
        ratings: all ratings.
        seed: of the splits.
        method: a key of `PAPER`.
        steps: of M³O and Baseline, at most.
    """
    rng = np.random.default_rng(seed)
    values, train, test = {}, {}, {}
    for genre in GENRES:  # a split per table: the first leak
        table = ratings.values[:, ratings.films[genre]]
        train[genre], test[genre] = split_pairs(table > 0, share=0.2, random_state=int(rng.integers(1 << 30)))
        values[genre] = np.where(train[genre], table, 0.0)
    edges = np.cumsum([0, *(values[genre].shape[1] for genre in GENRES)])
    whole = {genre: ratings.values[:, ratings.films[genre]] for genre in GENRES}

    def scores(estimate: FloatArray) -> dict[str, float]:
        parts = {genre: estimate[:, edges[k] : edges[k + 1]] for k, genre in enumerate(GENRES)}
        return _scores({genre: (parts[genre] - whole[genre])[test[genre]] ** 2 for genre in GENRES})

    def best_of_path(orders: Sequence[IntArray]) -> dict[str, float]:
        """Complete the tables side by side, and take rank and iterate of lowest test error: the second leak."""
        stacked = np.concatenate([values[g][o] for g, o in zip(GENRES, orders, strict=True)], axis=1)
        mask = np.concatenate([train[g][o] for g, o in zip(GENRES, orders, strict=True)], axis=1)
        back = [np.argsort(order) for order in orders]
        best: dict[str, float] = {}
        for estimate in _projections(stacked, mask, (6, 24)):
            pieces = [estimate[back[k], edges[k] : edges[k + 1]] for k in range(len(GENRES))]
            found = scores(np.concatenate(pieces, axis=1))
            best = min(best or found, found, key=lambda row: row["Total"])
        return best

    def alone() -> FloatArray:
        pieces = []
        for genre in GENRES:
            errors: list[tuple[float, int, FloatArray]] = []
            for estimate in _projections(values[genre], train[genre], (2, 6)):
                errors.append((float(((estimate - whole[genre])[test[genre]] ** 2).mean()), len(errors), estimate))
            pieces.append(min(errors, key=lambda entry: entry[:2])[2])
        return np.concatenate(pieces, axis=1)

    rows = np.arange(len(ratings.values))
    if method == "SIR":
        return best_of_path([rows, *(rng.permutation(rows) for _ in GENRES[1:])])
    if method == "Oracle":
        return best_of_path([rows] * len(GENRES))
    if method == "SIC":
        return scores(alone())
    problem = _problem(Platforms(values, train, ratings.films))  # not shuffled: the third leak
    if method == "MUS":
        found = UnlabeledSensing(penalty=20.0).solve(problem).permutations
        return best_of_path([rows, *(np.asarray(permutation, dtype=np.intp) for permutation in found)])
    track: list[dict[str, float]] = []
    solver: Any = _m3o(steps) if method == "M³O" else Baseline(penalty=60.0, max_iter=max(2, steps // 10))
    solver.solve(problem, start=alone(), callback=lambda state: track.append(scores(np.asarray(state.estimate))))
    return min(track, key=lambda row: row["Total"])


def _load() -> Ratings:
    return read_ratings(fetch(MOVIELENS_100K))


def _published_cell(seed: int, method: str, steps: int) -> dict[str, float]:
    return as_published(_load(), seed, method, steps=steps)


def _honest_cell(seed: int) -> dict[str, Any]:
    return honest(_load(), seed)


def _rival_cell(seed: int, method: str, steps: int) -> dict[str, Any]:
    return honest_rival(_load(), seed, method, steps=steps)


def _unaided_cell(seed: int, missingness: bool, max_time: float) -> dict[str, Any]:
    return unaided(_load(), seed, missingness=missingness, max_time=max_time)


def _run(run: Run) -> Outcome:
    fetch(MOVIELENS_100K)  # before the cells: several processes must not download at once
    seeds, steps, max_time = run.count(10, 1), run.size(400, 20), run.size(300.0, 30.0)
    tasks: list[tuple[str, Any]] = []
    for seed in range(seeds):
        tasks += [(f"as published {m} seed={seed}", partial(_published_cell, seed, m, steps)) for m in PAPER]
        tasks.append((f"honest seed={seed}", partial(_honest_cell, seed)))
        tasks += [(f"honest {m} seed={seed}", partial(_rival_cell, seed, m, steps)) for m in ("MUS", "Baseline", "M³O")]
        tasks += [
            (f"{name} seed={seed}", partial(_unaided_cell, seed, missing, max_time))
            for name, missing in ((_ALONE, False), (_RATED, True))
        ]
    found = run.cells(tasks)
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        rows += [
            {"protocol": "as published", "method": m, "seed": seed} | found[f"as published {m} seed={seed}"]
            for m in PAPER
        ]
        both = found[f"honest seed={seed}"]
        both |= {m: found[f"honest {m} seed={seed}"] for m in ("MUS", "Baseline", "M³O")}
        both |= {m: found[f"{m} seed={seed}"] for m in (_ALONE, _RATED)}
        rows += [{"protocol": "honest", "method": m, "seed": seed} | _flat(scores) for m, scores in both.items()]
    table = _table(rows)
    return Outcome(
        table=table,
        rows=rows,
        figure=_figure(table),
        settings={"seeds": seeds, "steps of M³O at most": steps, "seconds of keyless.link at most": max_time},
        notes=(
            "RMSE on test ratings, mean±std over seeds. Total: all test ratings; a film of two genres counts twice.",
            _LEAKS,
            "Honest: rows shuffled, one split per (user, film), weights of every completion chosen on a tenth of the "
            "training ratings at a time. SIC and all honest completions have offsets for users and films.",
            "keyless with shared films joins rows whose entries in common films agree (`keyless.likelihood.shared`), "
            "every row with its best partner. Without them `keyless.link` decides; where its verdict is not "
            "“linked”, tables are not joined and are filled alone, so its error is that of SIC.",
            MOVIELENS_100K.licence,
        ),
    )


def _flat(scores: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in scores.items():
        flat |= {f"{key}, {genre}": part for genre, part in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    table = []
    for protocol, method in dict.fromkeys((row["protocol"], row["method"]) for row in rows):
        own = [row for row in rows if (row["protocol"], row["method"]) == (protocol, method)]
        line: dict[str, Any] = {"setting": f"{protocol}: {method}"}
        for column in (*GENRES, "Total"):
            numbers = np.array([row[column] for row in own])
            line[column] = f"{numbers.mean():.4f}±{numbers.std(ddof=1):.4f}" if len(own) > 1 else f"{numbers[0]:.4f}"
        if protocol == "as published":
            line["paper"] = PAPER[method][-1]
        links = _means(own, "links right")
        if links:
            line["links right"] = f"{np.mean(links):.3f}"
        near = _means(own, "FOSCTTM")
        if near:
            line["FOSCTTM"] = f"{np.mean(near):.3f}"
        verdicts = sorted({str(row["verdict"]) for row in own if "verdict" in row})
        if verdicts:
            line["verdict"] = ", ".join(verdicts)
        table.append(line)
    return table


def _means(rows: Sequence[Mapping[str, Any]], what: str) -> list[float]:
    """Return for each row that has this figure its mean over the tables."""
    parts = [[value for key, value in row.items() if key.startswith(what)] for row in rows]
    return [float(np.mean(part)) for part in parts if part]


def _figure(table: Sequence[Mapping[str, Any]]) -> Any:
    (ax,) = panels(1, width=7.5, height=5.0)
    totals = [float(str(line["Total"]).split("±")[0]) for line in table]
    papers = [float(line.get("paper", "nan")) for line in table]
    bars(ax, [str(line["setting"]) for line in table], [("paper", papers), ("here", totals)])
    ax.set_xlim(0.8, max(1.05, *totals))
    finish(ax, title="Joining platforms gains little once nothing leaks", xlabel="test RMSE", ylabel="")
    return legend(ax)


EXPERIMENT = Experiment(
    name="movielens",
    title="MovieLens 100K: five genres as five platforms",
    paper="Test RMSE by genre, mean over 10 seeds: " + ", ".join(f"{m} {row[-1]}" for m, row in PAPER.items()) + ".",
    leaks=_LEAKS,
    columns=("setting", "paper", *GENRES, "Total", "links right", "FOSCTTM", "verdict"),
    run=_run,
)
