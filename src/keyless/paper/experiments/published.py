"""The published protocol on ratings, with its leaks, and what it shares with the honest one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import BoolArray, FloatArray
from keyless.block import Block
from keyless.paper import M3O, Baseline, FixedEntropy, UnlabeledSensing
from keyless.paper.experiments.ratings import (
    GENRES,
    Published,
    Ratings,
    published_tables,
    rank_iterates,
    soft_path,
    threshold_path,
)
from keyless.paper.problem import Problem
from keyless.paper.schedules import CouplingStatistics

__all__ = [
    "LEAKS",
    "METHODS",
    "RANKS",
    "as_published",
    "completed_alone",
    "pieces_of",
    "problem_of",
    "scores_of",
    "solver_of",
    "turns",
]

IntArray = NDArray[np.intp]
Iterates = Callable[[int, FloatArray], Iterator[FloatArray]]

METHODS = ("SIR", "SIC", "MUS", "Baseline", "M³O", "Oracle")
RANKS = (*range(1, 9), *range(9, 20, 2), *range(21, 51, 5), *range(51, 151, 10))
"""What the released M³O loop goes through."""
LEAKS = (
    "As published: users are never shuffled and every table starts from its own completion in true order (leak of the "
    "order); the split is drawn per table, so that half of the test ratings stand in another table's training part "
    "(leak of the split); λ, rank and iterate are those of lowest test error, for SIC and M³O even table by table "
    "(leak of the test ratings); only users with ratings in all genres stay, and the first film is lost."
)
_ORDER = ("Drama", "Comedy", "Romance", "Action", "Thriller")
"""Of the tables in the published runs; the first is the reference."""


def scores_of(errors: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return RMSE by genre and over all test ratings.

    Args:
        errors: by genre, squared.
    """
    found = {genre: float(np.sqrt(errors[genre].mean())) for genre in GENRES}
    return found | {"Total": float(np.sqrt(np.concatenate([errors[genre] for genre in GENRES]).mean()))}


def problem_of(values: Mapping[str, FloatArray], masks: Mapping[str, BoolArray]) -> Problem:
    """Return the tables as a problem, the first as the reference.

    Args:
        values: by genre.
        masks: by genre, True where known.
    """
    blocks = [Block(table, masks[genre], name=genre) for genre, table in values.items()]
    return Problem(blocks[0], tuple(blocks[1:]))


def pieces_of(estimate: FloatArray, tables: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Cut an estimate of all tables side by side.

    Args:
        estimate: of all.
        tables: by genre, as wide as their pieces.
    """
    edges = np.cumsum([0, *(table.shape[1] for table in tables.values())])
    return {genre: estimate[:, edges[k] : edges[k + 1]] for k, genre in enumerate(tables)}


@dataclass(frozen=True)
class _ReleasedOnRatings:
    """The released step size on ratings: clip((½(1 − c)^½ + 0.01)(1 − min(100·mean|ΔP|, 0.99)), 0.01, 0.15), halved.

    Their gradient leaves out the factor 2, hence the halving.
    """

    def step_size(self, statistics: CouplingStatistics) -> float:
        diffuseness = min(max(statistics.diffuseness, 0.0), 1.0)
        moved = min(100 * statistics.mean_change, 0.99)
        raw = (0.5 * (1 - diffuseness) ** 0.5 + 0.01) * (1 - moved)
        return float(0.5 * min(max(raw, 0.01), 0.15))


def solver_of(method: str, rank: int, rows: int) -> Any:
    """Return Baseline or M³O as the released runs on ratings have it: projection to a rank, ε = 0.05.

    Args:
        method: `"Baseline"` or `"M³O"`.
        rank: of the estimate.
        rows: of the tables.
    """
    if method == "Baseline":
        return Baseline(prox="rank", rank=rank, completion_steps=2)
    return M3O(
        penalty=1.0,  # the projection has none
        prox="rank",
        rank=rank,
        step_rule=_ReleasedOnRatings(),
        entropy=FixedEntropy(0.05),
        sinkhorn_tolerance=0.01 / rows**0.5,
        sinkhorn_max_iter=1000,
    )


class _BestByTestError:
    """The iterate of lowest test error: a leak.

    Args:
        tables: ratings and splits.
        estimates: by genre, to begin with.
        apart: choose table by table, beginning with these estimates, as the released M³O does; else one iterate for
            all, and the estimates one begins with do not count.
    """

    def __init__(self, tables: Published, estimates: Mapping[str, FloatArray], *, apart: bool) -> None:
        self.tables, self.estimates, self.apart = tables, dict(estimates), apart
        self.scores = scores_of({genre: tables.squared_errors(genre, found) for genre, found in estimates.items()})
        self._lowest = dict(self.scores) if apart else dict.fromkeys(self.scores, np.inf)

    def note(self, pieces: Mapping[str, FloatArray]) -> tuple[float, bool]:
        """Keep what is better; return the RMSE over all tables, and whether anything was better."""
        errors = {genre: self.tables.squared_errors(genre, piece) for genre, piece in pieces.items()}
        found = scores_of(errors)
        if not self.apart:
            better = list(pieces) if found["Total"] <= 0.9999 * self._lowest["Total"] else []
        else:
            better = [genre for genre in pieces if found[genre] <= 0.9999 * self._lowest[genre]]
        if better:
            self.estimates |= {genre: pieces[genre] for genre in better}
            kept = {genre: self.tables.squared_errors(genre, table) for genre, table in self.estimates.items()}
            self.scores = self._lowest = scores_of(kept)
        return found["Total"], bool(better)


def _released_loop(
    best: _BestByTestError, iterates: Iterates, orders: Mapping[str, IntArray], *, ranks: Sequence[int], steps: int
) -> dict[str, float]:
    """Go through the ranks, each from the best tables so far and until three iterates in turn were no better.

    Args:
        best: the tables to begin with, and what is found.
        iterates: of a rank and a start, side by side.
        orders: by genre, its row at each place of the estimate.
        ranks: to go through.
        steps: over all ranks, at most.
    """
    for rank in ranks:
        start = np.concatenate([table[orders[genre]] for genre, table in best.estimates.items()], axis=1)
        lowest, stalled = np.inf, 0
        for estimate in islice(iterates(rank, start), steps):
            steps -= 1
            pieces = pieces_of(estimate, best.estimates)
            total, better = best.note({g: piece[np.argsort(orders[g])] for g, piece in pieces.items()})
            stalled = 0 if better or total <= 0.9999 * lowest else stalled + 1
            lowest = min(lowest, total)
            if stalled >= 3:
                break
    return best.scores


def as_published(
    ratings: Ratings, seed: int, methods: Sequence[str] = METHODS, *, ranks: Sequence[int] = RANKS, steps: int
) -> dict[str, dict[str, float]]:
    """Return the scores of some methods under the published protocol, leaks included; see `LEAKS`.

    Args:
        ratings: all ratings.
        seed: of the splits.
        methods: some of `METHODS`.
        ranks: that Oracle, MUS, Baseline and M³O go through.
        steps: of each of these over all ranks, at most; of M³O with each of its references.
    """
    tables = published_tables(ratings, seed)
    alone = completed_alone(tables)
    rng = np.random.default_rng(seed)
    rows = np.arange(len(tables.whole[_ORDER[0]]))
    found: dict[str, dict[str, float]] = {}
    for method in methods:
        if method == "SIR":
            found[method] = _published_random(tables, {genre: rng.permutation(rows) for genre in _ORDER})
            continue
        for _, scores in turns(method, tables, alone, ranks=ranks, steps=steps):
            found[method] = scores
    return found


def turns(
    method: str, tables: Published, alone: Mapping[str, FloatArray], *, ranks: Sequence[int], steps: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what a method has reached under the published protocol: at the start, then after each turn.

    The released M³O goes on with each table in turn as the reference, and what it found stays; SIC has no turn, the
    others have one.

    Args:
        method: one of `METHODS` but SIR.
        tables: ratings and splits.
        alone: each table's own completion.
        ranks: to go through in each turn.
        steps: of each turn over all ranks, at most.
    """
    best = _BestByTestError(tables, alone, apart=method in ("SIC", "M³O"))
    rows = np.arange(len(tables.whole[_ORDER[0]]))
    yield "each alone", best.scores
    for reference in () if method == "SIC" else _ORDER if method == "M³O" else _ORDER[:1]:
        genres = (reference, *(genre for genre in _ORDER if genre != reference))
        best.estimates = {genre: best.estimates[genre] for genre in genres}
        orders = dict.fromkeys(genres, rows)
        if method == "MUS":
            orders |= _published_sensing(alone)
        _released_loop(best, _iterates(method, tables, orders), orders, ranks=ranks, steps=steps)
        yield reference, best.scores


def completed_alone(tables: Published) -> dict[str, FloatArray]:
    """Return each table's own completion, the start of all methods: by falling λ, chosen by test error.

    Args:
        tables: ratings and splits.
    """
    return {genre: _published_alone(tables, genre) for genre in _ORDER}


def _published_alone(tables: Published, genre: str) -> FloatArray:
    def error(estimate: FloatArray) -> float:
        return float(np.sqrt(tables.squared_errors(genre, estimate).mean()))

    return threshold_path(tables.values[genre], tables.train[genre], error)


def _published_random(tables: Published, orders: Mapping[str, IntArray]) -> dict[str, float]:
    """Complete the tables side by side in random orders by the text's path of λ, and take the λ of lowest error."""
    values, mask = _side_by_side(tables, orders)
    best: dict[str, float] = {}
    for estimate in soft_path(values, mask, [float(penalty) for penalty in range(300, 0, -10)]):
        pieces = pieces_of(estimate, {genre: tables.whole[genre] for genre in orders})
        errors = {g: tables.squared_errors(g, piece[np.argsort(orders[g])]) for g, piece in pieces.items()}
        best = min(best or scores_of(errors), scores_of(errors), key=lambda scores: scores["Total"])
    return best


def _published_sensing(alone: Mapping[str, FloatArray]) -> dict[str, IntArray]:
    """Return what MUS matches, rows as they stand for a first guess: they stand right, the leak of the order."""
    problem = problem_of(alone, {genre: np.ones(table.shape, dtype=bool) for genre, table in alone.items()})
    found = UnlabeledSensing().solve(problem).permutations
    return {g: np.asarray(p, dtype=np.intp) for g, p in zip(list(alone)[1:], found, strict=True)}


def _side_by_side(tables: Published, orders: Mapping[str, IntArray]) -> tuple[FloatArray, BoolArray]:
    values = np.concatenate([tables.values[genre][order] for genre, order in orders.items()], axis=1)
    return values, np.concatenate([tables.train[genre][order] for genre, order in orders.items()], axis=1)


def _iterates(method: str, tables: Published, orders: Mapping[str, IntArray]) -> Iterates:
    """Return what makes iterates of a rank from a start: by known orders, or by a solver that seeks them."""
    if method in ("Oracle", "MUS"):
        values, mask = _side_by_side(tables, orders)
        return partial(rank_iterates, values, mask)
    values_of = tables.values
    problem = problem_of({g: values_of[g] for g in orders}, {g: tables.train[g] for g in orders})  # not shuffled

    def solved(rank: int, start: FloatArray) -> Iterator[FloatArray]:
        solver = solver_of(method, min(rank, *problem.shape), len(start))
        state = solver.init(problem, start=start)
        while True:
            state = solver.step(problem, state)
            yield np.asarray(state.estimate)

    return solved
