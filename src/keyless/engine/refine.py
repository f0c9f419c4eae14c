"""Match rows under a map, with "no partner" as one of the answers, and fit the map to the matches, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import BoolArray, IntArray, NumpyArray
from keyless.maps.canonical import CrossFit, cross_fit, fit_tail
from keyless.maps.folds import Folds
from keyless.maps.regression import Regression
from keyless.model.factors import Factors
from keyless.pairs.decoys import most_partners
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import FIRST_SHARE, less_crowding, scaled
from keyless.progress import Deadline, check_time, is_late

__all__ = [
    "CLEARLY_MORE",
    "FIRST_ROUNDS",
    "MOST_ROUNDS",
    "TARGETS",
    "Matching",
    "Refinement",
    "SmoothRefinement",
    "averaged",
    "identification",
    "smoothed",
]

FOLDS = 8
"""Folds of left rows; each is judged by the map that the others give."""

_SETTLED = 0.01
"""A matching is settled when the changes of all probabilities add up to less than this share of the number of pairs."""

_PATIENCE = 4
"""Rounds without an improvement after which nothing more is expected."""

MOST_ROUNDS, FIRST_ROUNDS = 25, 8
"""The most rounds of refining, of which few candidates need more than ten; and the most rounds before candidates are
compared."""

CLEARLY_MORE = 1.1
"""A matching is clearly better than another if it has this many times the other's strength, or information of all
pairs. In the second case fewer pairs are preferred to more."""

TARGETS = (8, 12, 20, 40, 64)
"""Numbers of factors of either table that are predicted in turn; the number that makes the matching strongest is
used."""

_FIRST_LOOK = 2
"""Rounds of matching before numbers of predicted factors are compared."""

_AVERAGED_TARGETS = (12, 20, 40)
"""Numbers of predicted factors that rounds take in turn while their ratios are averaged: few factors say something
about every row, many factors tell look-alikes apart."""

_AVERAGED_ROUNDS, _NEWEST = 9, 0.3
"""Rounds whose ratios are averaged, and the weight of the newest one; the first of nine counts for 0.06, as good as
nothing. On real tables without a fifth of their rows (pairs of benchmarks/bench_real.py, other seeds than it reports),
0.70 of the matches of the strongest round are right and 0.82 is stated; of those by averaged ratios 0.78 and 0.77. With
15 rounds, or with a weight of 0.15 for the newest, these numbers are the same within 0.02."""

_SURE = 0.5
"""Probability above which a pair is used to tell how heavy the tails are."""

_ODD_ROWS = 0.05
"""Share of rows whose partner is taken to be no likelier than any row when candidates are compared, so that a few odd
rows do not decide."""

_PAIRS_PER_FACTOR = 4.0
"""Pairs of rows that a map needs for each factor, counted over both tables; with fewer pairs, fewer factors are
used."""


@dataclass(frozen=True, eq=False)
class Matching:
    """A map, and the rows that are matched under it.

    Attributes:
        fit: the map, fitted without each fold in turn.
        folds: the fold of each left row.
        coupling: rough probabilities of pairs, dense or sparse.
        common: how many pairs there are expected to be.
        ratios: log-likelihood ratios of pairs, each left row judged by the map that has not seen it.
        identification: how well partners stand out among all rows, in nats per pair; see `identification`.
        rounds: how many rounds it took.
        predicted: whether the ratios come from predictions of either table's factors instead of the map.
    """

    fit: CrossFit
    folds: IntArray
    coupling: Any
    common: float
    ratios: Any
    identification: float
    rounds: int
    predicted: bool = False

    @property
    def information(self) -> float:
        """Information that left-out pairs show, in nats per pair."""
        return self.fit.information

    @property
    def strength(self) -> float:
        """Identification times the root of the number of pairs, so that a mean counts by its standard error.

        The sum over all pairs would favour pairs that are forced on rows without partner, since the best of many wrong
        partners stands out too; the mean alone would favour a few pairs.
        """
        return self.identification * float(np.sqrt(self.common))

    def better_than(self, other: Matching) -> bool:
        """Tell whether this matching is better than another.

        It is if its pairs stand out as much or more, and all of them together have clearly more information. If neither
        matching is better in this way, the stronger one is.

        Where partners stand out fully, strength only counts pairs: it does not see that a map without the wrong pairs
        is far sharper.
        """
        if self._dominates(other) or other._dominates(self):
            return self._dominates(other)
        return self.strength > other.strength

    def _dominates(self, other: Matching) -> bool:
        more = self.information * self.common > CLEARLY_MORE * other.information * other.common
        return more and self.identification >= other.identification

    def surest(self, share: float) -> Any:
        """Return the coupling with only the pairs that stand out most, a share of all; the others have no weight."""
        lowest = np.float32(-1e6)
        ratios = np.where(np.isfinite(self.ratios), self.ratios, lowest)
        against = sum(_log_sum_exp(ratios, axis) for axis in (1, 0))
        weight = np.maximum(self.coupling.sum(axis=1), np.finfo(np.float32).tiny)
        gained = np.sum(self.coupling * np.where(ratios > lowest, 2 * ratios - against, 0.0), axis=1) / weight
        order = np.argsort(-(gained + np.log(weight)), kind="stable")
        kept = np.zeros_like(self.coupling)
        chosen = order[: max(2, int(share * self.common))]
        kept[chosen] = self.coupling[chosen]
        return kept


class Refinement:
    """Two tables whose rows are matched and whose map is fitted to the matches, in turn.

    Args:
        left: whitened factors of the left rows.
        right: whitened factors of the right rows.
        limits: which pairs may be matched.
        folds: how many folds left rows are dealt to.
        by_decoys: whether decoys tell how many rows have a partner (`keyless.pairs.decoys`). They cannot while the map
            is poor, when partners fit no better than decoys.
    """

    by_predictions = False

    def __init__(
        self, left: NumpyArray, right: NumpyArray, *, limits: Limits, folds: int = FOLDS, by_decoys: bool = False
    ) -> None:
        self.left, self.right, self.limits, self.by_decoys = left, right, limits, by_decoys
        self.folds = Folds.along(left[:, 0], folds)

    @cached_property
    def mask(self) -> BoolArray | None:
        """Which pairs may be matched; None where all may. It is made only when all pairs are looked at."""
        return self.limits.mask()

    def fitted(self, coupling: Any, *, heavy_tails: bool = True) -> CrossFit:
        """Fit the map to coupled rows, between as many leading factors as there are enough pairs for.

        Args:
            coupling: left × right rows, dense or sparse.
            heavy_tails: whether tails are fitted as well; otherwise they are normal.
        """
        most = max(2, int(float(coupling.sum()) / (2 * _PAIRS_PER_FACTOR)))
        left, right = self.left[:, :most], self.right[:, :most]
        fit = cross_fit(left, right, coupling, self.folds)
        if not heavy_tails:
            return fit
        rows, columns = _sure_pairs(coupling)
        positions = [np.empty((len(rows), len(fit.whole.correlations))) for _ in range(2)]
        for k, model in enumerate(fit.models):
            own = self.folds.of_rows[rows] == k
            positions[0][own], positions[1][own] = model.left(left[rows[own]]), model.right(right[columns[own]])
        return fit.with_tail(fit_tail(fit.whole, *positions))

    def judged(self, coupling: Any) -> tuple[CrossFit, NumpyArray]:
        """Return the map that coupled rows give, and the log-likelihood ratios of all pairs under it."""
        fit = self.fitted(coupling)
        return fit, self.ratios(fit)

    def in_folds(self, fit: CrossFit) -> CrossFit:
        """Return the models of a map for the folds of these rows; if it has other folds, its whole model for each."""
        same = len(fit.left_directions) == self.folds.count
        return fit if same else CrossFit.of_one(fit.whole, self.folds.count)

    def ratios(self, fit: CrossFit) -> NumpyArray:
        """Return the log-likelihood ratios of all pairs; −∞ where a pair must not be."""
        check_time()
        found = self.folds.unfolded(fit.log_ratios(self.folds.folded(self.left), self.right))
        if self.mask is not None:
            found[~self.mask] = -np.inf
        return found

    def score(self, coupling: NumpyArray) -> float:
        """Return how well partners stand out by maps that have not seen the left rows, in nats above a guess.

        That is the mean log-probability of what each row of the smaller table is coupled to, among all rows of the
        larger. Rows of the larger table are not asked, since many of them have no partner. A few rows whose partner is
        improbable by any map do not decide the score.

        Args:
            coupling: left × right rows.
        """
        ratios = self.ratios(self.fitted(coupling, heavy_tails=False))
        axis = int(len(self.left) <= len(self.right))
        highest = np.maximum(ratios.max(axis=axis, keepdims=True), np.finfo(np.float32).min)
        weights = np.exp(ratios - highest)
        choices = np.maximum(np.isfinite(ratios).sum(axis=axis), 1)
        sums = np.maximum(weights.sum(axis=axis) * coupling.sum(axis=axis), np.finfo(np.float32).tiny)
        chances = (coupling * weights).sum(axis=axis) / sums
        return float(np.log((1 - _ODD_ROWS) * chances * choices + _ODD_ROWS).mean())

    def contradicted(self, coupling: Any) -> bool:
        """Tell whether known pairs speak against a coupling.

        They do if, by the map that the coupling of the other rows gives, known partners are less likely than a random
        row, on average. A known row whose partner is out of the question counts no more than one whose partner stands
        out fully.

        Args:
            coupling: left × right rows, dense or sparse.
        """
        known, most = self.limits.known, float(np.log(max(len(self.right), 2)))
        if not len(known):
            return False
        gained = []
        for k, model in enumerate(self.fitted(coupling).models):
            rows, columns = known[self.folds.of_rows[known[:, 0]] == k].T
            ratios = model.log_ratios(self.left[rows], self.right)
            chances = ratios[np.arange(len(rows)), columns] - _log_sum_exp(ratios, 1).ravel()
            gained.append(np.maximum(chances + np.log(len(self.right)), -most))
        return float(np.concatenate(gained).mean()) < 0

    def run(
        self, coupling: Any, *, rounds: int, common: float | None = None, deadline: Deadline | None = None
    ) -> Matching:
        """Fit and match in turn, from a coupling until it settles, `rounds` times at the most; once when time is up."""
        smaller = min(len(self.left), len(self.right))
        common = FIRST_SHARE * smaller if common is None else common
        best: Matching | None = None
        for done in range(1, rounds + 1):
            found = self.matched(*self.judged(coupling), common, done)
            if best is None or found.strength > best.strength:
                best = found
            change = float(abs(found.coupling - coupling).sum())
            coupling, common = found.coupling, found.common
            settled = common < 2 or change < _SETTLED * common or done >= best.rounds + _PATIENCE
            if settled or is_late(deadline):
                break
        if best is None:
            raise RuntimeError("no round was made")
        return best

    def matched(self, fit: CrossFit, ratios: NumpyArray, common: float, done: int) -> Matching:
        """Match rows by log-likelihood ratios.

        Args:
            fit: the map.
            ratios: of all pairs.
            common: how many pairs there were thought to be so far.
            done: number of the round.
        """
        thinned = less_crowding(ratios)
        coupling, common = scaled(thinned, common)
        most = most_partners(thinned) if self.by_decoys else common
        if most < common:
            # Pairs of rows without partner would spoil the map.
            coupling, common = scaled(thinned, most, fixed=True)
        told = identification(ratios, coupling)
        return Matching(fit, self.folds.of_rows, coupling, common, ratios, told, done, predicted=self.by_predictions)


class SmoothRefinement(Refinement):
    """A refinement in which pairs are judged by predictions of either table's factors; see `keyless.maps.regression`.

    Args:
        regression: predicts rows from each other.
        limits: which pairs may be matched.
        targets: how many factors of either table are predicted.
        by_map: factors of both tables, between which the map is fitted to the pairs.
    """

    by_predictions = True

    def __init__(
        self, regression: Regression, *, limits: Limits, targets: int, by_map: tuple[NumpyArray, NumpyArray]
    ) -> None:
        super().__init__(*by_map, limits=limits, by_decoys=True)
        self.regression, self.targets = regression, targets

    def judged(self, coupling: NumpyArray) -> tuple[CrossFit, NumpyArray]:
        """Return the map that coupled rows give, and the log-likelihood ratios of all pairs by predictions."""
        return self.fitted(coupling, heavy_tails=False), self.predicted_ratios(coupling, self.targets)

    def predicted_ratios(self, coupling: NumpyArray, targets: int) -> NumpyArray:
        """Return log-likelihood ratios of all pairs by predictions of so many factors; −∞ where a pair must not be."""
        found = self.regression.ratios(coupling, targets)
        if self.mask is not None:
            found[~self.mask] = -np.inf
        return found

    def run(
        self, coupling: NumpyArray, *, rounds: int, common: float | None = None, deadline: Deadline | None = None
    ) -> Matching:
        """Fit and match in turn, with the kernels that suit the coupling best; see `Refinement.run`.

        Kernels are chosen for the first coupling, and stay the same.
        """
        self.regression.settle(coupling, self.targets)
        return super().run(coupling, rounds=rounds, common=common, deadline=deadline)


def smoothed(
    matching: Matching,
    views: Sequence[tuple[Factors, Factors]],
    *,
    limits: Limits,
    by_map: tuple[NumpyArray, NumpyArray],
    deadline: Deadline | None = None,
) -> Matching:
    """Return the matching that predictions lead to, if partners stand out more in it; otherwise the matching as it was.

    The number of predicted factors is the one that makes the matching strongest.

    Args:
        matching: where to begin.
        views: factors of both tables; see `keyless.maps.regression.Regression`.
        limits: which pairs may be matched.
        by_map: factors of both tables, between which the map is fitted.
        deadline: when nothing further is tried.
    """
    regression = Regression(views)
    tried: list[tuple[SmoothRefinement, Matching]] = []
    for count in sorted({min(count, regression.rank) for count in TARGETS}):
        refinement = SmoothRefinement(regression, limits=limits, targets=count, by_map=by_map)
        found = refinement.run(matching.coupling, rounds=_FIRST_LOOK, common=matching.common, deadline=deadline)
        tried.append((refinement, found))
        if is_late(deadline):
            break
    refinement, begun = max(tried, key=lambda one: one[1].strength)
    found = refinement.run(begun.coupling, rounds=FIRST_ROUNDS, common=begun.common, deadline=deadline)
    return max(matching, begun, found, key=lambda one: one.strength)


def averaged(
    matching: Matching,
    views: Sequence[tuple[Factors, Factors]],
    *,
    limits: Limits,
    by_map: tuple[NumpyArray, NumpyArray],
    deadline: Deadline | None = None,
) -> Matching:
    """Return what a matching becomes when the ratios of several rounds of predictions are averaged.

    Where rows have no partner, the predictions of a round are fitted to wrong pairs of the round before. So a round is
    surer than it should be, and the strongest of several rounds is the one that exaggerates most. Right pairs stand out
    in every round, by few factors and by many; wrong ones change from round to round.

    Args: see `smoothed`.
    """
    regression = Regression(views)
    regression.settle(matching.coupling, _AVERAGED_TARGETS[0])
    refinement = SmoothRefinement(regression, limits=limits, targets=_AVERAGED_TARGETS[0], by_map=by_map)
    found, mean = matching, None
    for number in range(_AVERAGED_ROUNDS):
        targets = _AVERAGED_TARGETS[number % len(_AVERAGED_TARGETS)]
        newest = refinement.predicted_ratios(found.coupling, targets)
        mean = newest if mean is None else (1 - _NEWEST) * mean + _NEWEST * newest
        found = refinement.matched(matching.fit, mean, found.common, number + 1)
        if is_late(deadline):
            break
    return replace(found, fit=refinement.fitted(found.coupling))


def identification(ratios: NumpyArray, coupling: NumpyArray, *, axes: Sequence[int] = (1, 0)) -> float:
    """Return how well partners stand out: the mean log-probability of each among all rows, in nats above a guess.

    A guess has 0, partners that stand out fully have the logarithm of how many rows there are. It is averaged over both
    directions: right rows to choose from for a left row, and left rows for a right row. What depends on one row alone
    cancels, so that rows far from all others count no more than other rows.

    Args:
        ratios: log-likelihood ratios of all pairs, −∞ where a pair must not be.
        coupling: the weight of each pair, those of partners large.
        axes: the directions: 1 is a left row among right rows, 0 a right row among left rows.
    """
    weight = float(coupling.sum())
    if weight <= 0:
        return 0.0
    possible = np.isfinite(ratios)
    finite = np.where(possible, ratios, 0.0)
    gained = float((coupling * finite).sum()) * len(axes)
    for axis in axes:
        best = _log_sum_exp(ratios, axis).ravel() - np.log(np.maximum(possible.sum(axis=axis), 1))
        gained -= float(coupling.sum(axis=axis) @ best)
    return gained / (len(axes) * weight)


def _log_sum_exp(ratios: NumpyArray, axis: int) -> NumpyArray:
    """Return the log of the sum of exponentials along an axis, kept with length 1; very low where nothing is finite."""
    highest = ratios.max(axis=axis, initial=-1e6, keepdims=True)
    sums = np.exp(ratios - highest).sum(axis=axis, dtype=np.float64, keepdims=True)
    return np.asarray(np.log(np.maximum(sums, 1e-300)) + highest)


def _sure_pairs(coupling: Any) -> tuple[IntArray, IntArray]:
    if isinstance(coupling, sparse.csr_array):
        found = coupling.tocoo()
        kept = found.data > _SURE
        return found.row[kept].astype(np.int64), found.col[kept].astype(np.int64)
    rows, columns = np.nonzero(coupling > _SURE)
    return rows.astype(np.int64), columns.astype(np.int64)
