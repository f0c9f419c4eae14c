"""How the factors of two tables go together where straight lines do not say it all: smooth functions of many factors.

Either table's factors are predicted from the other's by kernel ridge regression, fitted to coupled rows. Let f(x) be
the prediction from a left row, Σ the covariance of what predictions leave over, and y the factors of a right row. The
log-likelihood ratio of "one entity" against "two entities" is then

    log t(y; f(x), Σ) − log t(y; 0, I),

with t the density of the multivariate t distribution, whose tails are fitted. The same is done from right to left. Both
ratios estimate the same number, and both exaggerate; they are added with the weights under which sure partners stand
out most among all rows.

Canonical pairs (`keyless.maps.canonical`) need several rows for each factor, so they can use few factors. A ridge
shrinks every factor as far as held-out rows ask for, so that all of them can be used. Each row is judged by a
prediction that has not seen its own pairs; leaving a row out of a ridge regression has a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from keyless.arrays import IntArray, NumpyArray
from keyless.model.factors import Factors
from keyless.progress import check_time

__all__ = ["KERNELS", "Kernel", "Regression"]


class Kernel(NamedTuple):
    """How alike two rows are, from 0 to 1: a straight part and a smooth one.

    Attributes:
        straight: weight of the straight part, the products of factors; the smooth part has the rest of 1.
        power: factors count in the smooth part, a Gaussian of the distance of rows, by this power of their strengths.
        width: the variance of that Gaussian is this many times the median squared distance of rows.
    """

    straight: float
    power: float
    width: float


KERNELS = (
    Kernel(0.9, 0.5, 2.0),
    Kernel(0.5, 0.5, 0.5),
    Kernel(0.5, 1.0, 0.5),
    Kernel(0.1, 1.0, 2.0),
    Kernel(0.1, 1.0, 0.5),
)
"""Kernels that are tried, from nearly straight to smooth. The one that predicts left-out coupled rows best is kept."""

_STRAIGHT_POWER = 0.5
"""Factors count in the straight part by this power of their strengths: weak factors less, but more than nothing."""

_MOST_CENTRES = 400
"""Most rows to which each row is compared, to describe it: the work grows with their number squared, times the rows."""

_RIDGES = tuple(np.geomspace(1e-3, 10.0, 9))
"""Ridges that are tried for every factor to be predicted, in units of a row's likeness to itself."""

_LEAST_OTHERS = 1e-3
"""Least part of a prediction that counts as coming from other rows; rows that have no others near them reach it."""

_NO_ERROR = 1e-3
"""Squared error, in units of a factor's variance, below which a still better prediction is no reason for a kernel."""

_LEAST_WEIGHT = 0.05
"""A row is used for fitting if all its pairs together have at least this weight."""

_SURE = 0.5
"""Rows that are each other's first choice count as partners above this probability, when tails and weights are
fitted."""

_FEWEST_PARTNERS = 20
"""With fewer partners than this, neither tails nor weights can be fitted."""

_UNTOLD_TAIL, _UNTOLD_WEIGHT = 10.0, 0.3
"""Degrees of freedom, and weight of either direction, where they cannot be fitted: common values of real tables."""

_TAILS = (3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 150.0, 1e6)
"""Degrees of freedom that are tried; the last is as good as normal."""

_ROWS_LOOKED_AT = 300
"""Most partners by which weights are fitted; more would not change the weights."""

_WEIGHT_STEPS, _WEIGHT_SETTLED, _LEAST_DIRECTION = 12, 0.01, 0.01
"""The most Newton steps for the weights, the change below which they are settled, and the least weight."""

_TINY_BEND = 1e-6
"""Part of the curvature that is added to it, so that weights can be computed if both kinds of ratios say the same."""

_TINY = 1e-30
"""Stands for a weight of 0 in divisions."""

_RIDGE_OF_COVARIANCE = 1e-4
"""Added to the variances of what predictions leave over, in units of a factor's variance."""


class Regression:
    """Two tables whose factors are predicted from each other.

    Args:
        views: factors of the left and of the right rows, many factors each. There may be several such pairs, each on
            scales of its own; then the mean of their ratios counts.
        kernels: the kernels that are tried.
    """

    def __init__(self, views: Sequence[tuple[Factors, Factors]], *, kernels: Sequence[Kernel] = KERNELS) -> None:
        self.views = [(_Direction(*view, kernels), _Direction(*view[::-1], kernels)) for view in views]

    @property
    def rank(self) -> int:
        """The most factors that can be predicted."""
        return max(int(side.wanted.shape[1]) for view in self.views for side in view)

    def settle(self, coupling: NumpyArray, targets: int) -> None:
        """Choose the kernels that predict best by a coupling, at the first call; the others are not tried again.

        Args:
            coupling: left × right rows, the weight of each pair.
            targets: how many of the strongest factors of either table are predicted.
        """
        for forth, back in self.views:
            forth.settle(coupling, targets)
            back.settle(coupling.T, targets)

    def ratios(self, coupling: NumpyArray, targets: int) -> NumpyArray:
        """Return the log-likelihood ratios of all pairs, left × right rows; each row judged without its own pairs.

        Args:
            coupling: left × right rows, the weight of each pair.
            targets: how many of the strongest factors of either table are predicted.
        """
        partners = _partners(coupling)
        found = np.zeros(coupling.shape, dtype=np.float32)
        for forth, back in self.views:
            check_time()
            both = forth.ratios(coupling, partners, targets), back.ratios(coupling.T, partners[::-1], targets).T
            weights = _weights(both, partners) / len(self.views)
            found += np.float32(weights[0]) * both[0] + np.float32(weights[1]) * both[1]
        return found


@dataclass(frozen=True, eq=False)
class _Predicted:
    """What is predicted for each row of a table, without its own pairs.

    Attributes:
        means: rows × targets.
        spread: per row, how much more its prediction may err than others' do; a factor on the variance, about 1.
        misfit: sum over targets of the log of the mean squared error; the lower, the better.
    """

    means: NumpyArray
    spread: NumpyArray
    misfit: float


class _Direction:
    """The factors of one table, predicted from those of the other.

    Args:
        given: factors of the table that predicts.
        wanted: factors of the table that is predicted.
        kernels: the kernels that are tried.
    """

    def __init__(self, given: Factors, wanted: Factors, kernels: Sequence[Kernel]) -> None:
        self.features = [_features(given, kernel) for kernel in kernels]
        self.wanted = wanted.scores

    def settle(self, coupling: NumpyArray, targets: int) -> None:
        """Keep the kernel that predicts left-out rows best."""
        if len(self.features) > 1:
            points = self.wanted[:, :targets]
            self.features = [min(self.features, key=lambda each: _predicted(each, points, coupling).misfit)]

    def ratios(self, coupling: NumpyArray, partners: tuple[IntArray, IntArray], targets: int) -> NumpyArray:
        """Return the log-likelihood ratios of all pairs, predicting × predicted rows."""
        wanted = self.wanted[:, :targets]
        found = min((_predicted(each, wanted, coupling) for each in self.features), key=lambda each: each.misfit)
        # Pairs of rows that are hard to predict say less about what predictions leave over.
        weighted = coupling / found.spread[:, None].astype(coupling.dtype)
        total = max(float(coupling.sum()), _TINY)
        size = wanted.shape[1]
        crossed = found.means.T @ (weighted @ wanted)
        covariance = (wanted * weighted.sum(axis=0)[:, None]).T @ wanted - crossed - crossed.T
        covariance += (found.means * weighted.sum(axis=1)[:, None]).T @ found.means
        covariance /= total
        # If there are as many factors as pairs, covariances between factors count by half.
        shrunk = size / (size + total)
        covariance = (1 - shrunk) * covariance + shrunk * np.diag(np.diag(covariance))
        whiten = np.linalg.inv(np.linalg.cholesky(covariance + _RIDGE_OF_COVARIANCE * np.eye(size)))
        place, points = (found.means @ whiten.T).astype(np.float32), (wanted @ whiten.T).astype(np.float32)
        lengths = np.sum(place**2, axis=1)[:, None] + np.sum(points**2, axis=1) - 2 * place @ points.T
        lengths = np.maximum(lengths, 0.0) / found.spread[:, None].astype(np.float32)
        tail = _fitted_tail(lengths[partners], size)
        by_row = np.log(np.diag(whiten)).sum() - 0.5 * size * np.log(found.spread)
        ratios = _log_density(lengths, size, tail)
        ratios += by_row[:, None].astype(np.float32)
        by_itself = np.sum(wanted**2, axis=1)
        ratios -= _log_density(by_itself, size, _fitted_tail(by_itself, size)).astype(np.float32)
        return ratios


def _predicted(features: NumpyArray, targets: NumpyArray, coupling: NumpyArray) -> _Predicted:
    """Predict the targets of every row's partner from the row's features, by the pairs of other rows.

    Args:
        features: of the rows that predict.
        targets: of the rows that are predicted: rows × numbers of unit variance.
        coupling: weights of pairs, predicting × predicted rows.
    """
    weight = np.asarray(coupling.sum(axis=1), dtype=np.float64)
    weight[weight < _LEAST_WEIGHT] = 0.0
    used = weight > 0
    wanted = np.zeros((len(weight), targets.shape[1]))
    wanted[used] = (coupling[used] @ targets) / coupling[used].sum(axis=1, keepdims=True)
    total = max(float(weight.sum()), _TINY)
    centre = weight @ wanted / total
    wanted -= centre
    values, turn = np.linalg.eigh((features * weight[:, None]).T @ features)
    turned = features @ turn
    slopes = turned.T @ (weight[:, None] * wanted)
    shrinks = 1.0 / (np.maximum(values, 0.0)[:, None] + np.array(_RIDGES))
    leverage = turned**2 @ shrinks
    # The part of a prediction that does not come from the row's own pairs.
    others = np.maximum(1.0 - weight[:, None] * leverage, _LEAST_OTHERS)
    best, means = np.full(len(centre), np.inf), np.zeros_like(wanted)
    chosen = np.zeros(len(centre), dtype=np.int64)
    for number in range(len(_RIDGES)):
        seen = turned @ (shrinks[:, number, None] * slopes)
        # Rows without pairs have no part in any prediction.
        without = np.where(used[:, None], wanted - (wanted - seen) / others[:, number, None], seen)
        errors = weight @ (wanted - without) ** 2 / total
        better = errors < best
        best[better], means[:, better], chosen[better] = errors[better], without[:, better], number
    # Variances of predictions, in units of the noise, and their mean over targets.
    logs = np.log1p(leverage / others) @ (np.bincount(chosen, minlength=len(_RIDGES)) / len(chosen))
    return _Predicted(means + centre, np.exp(logs - weight @ logs / total), float(np.log(best + _NO_ERROR).sum()))


def _features(factors: Factors, kernel: Kernel) -> NumpyArray:
    """Return features whose products are the kernel of two rows; nearly so if rows are many, as some stand for all."""
    straight = factors.weighted(rank=factors.rank, weight=_STRAIGHT_POWER)
    smooth = factors.weighted(rank=factors.rank, weight=kernel.power)
    rows = len(straight)
    centres = np.unique(np.linspace(0, rows - 1, min(rows, _MOST_CENTRES)).astype(np.int64))
    distances = _squared_distances(smooth, smooth[centres])
    apart = distances[distances > 0]
    typical = float(np.median(apart)) if apart.size else 1.0
    likeness = (1 - kernel.straight) * np.exp(-distances / (2 * kernel.width * typical))
    likeness += kernel.straight * (straight @ straight[centres].T) / max(np.mean(np.sum(straight**2, axis=1)), _TINY)
    variances, turn = np.linalg.eigh(likeness[centres])
    # Directions with variances below the least ridge would be shrunk away.
    kept = variances > _RIDGES[0] * len(centres) / rows
    return np.asarray(likeness @ (turn[:, kept] / np.sqrt(variances[kept])))


def _squared_distances(left: NumpyArray, right: NumpyArray) -> NumpyArray:
    lengths = np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1)
    return np.asarray(np.maximum(lengths - 2 * left @ right.T, 0.0))


def _log_density(lengths: NumpyArray, size: int, tail: float) -> NumpyArray:
    """Return the log-density of the multivariate t distribution at points of these squared lengths.

    Args:
        lengths: squared, in units of the covariance.
        size: how many numbers a point has.
        tail: degrees of freedom, above 2.
    """
    half = 0.5 * (tail + size)
    constant = gammaln(half) - gammaln(0.5 * tail) - 0.5 * size * np.log(np.pi * (tail - 2))
    found = np.log1p(lengths / np.asarray(tail - 2, dtype=lengths.dtype))
    found *= -half
    found += constant
    return np.asarray(found)


def _fitted_tail(lengths: NumpyArray, size: int) -> float:
    """Return the degrees of freedom under which points of these squared lengths are likeliest."""
    if len(lengths) < _FEWEST_PARTNERS:
        return _UNTOLD_TAIL
    return max(_TAILS, key=lambda tail: float(_log_density(lengths, size, tail).mean()))


def _partners(coupling: NumpyArray) -> tuple[IntArray, IntArray]:
    """Return left and right rows that are each other's first choice, and likelier partners than not."""
    rows, choice = np.arange(len(coupling)), coupling.argmax(axis=1)
    sure = (coupling.argmax(axis=0)[choice] == rows) & (coupling[rows, choice] > _SURE)
    return rows[sure], choice[sure].astype(np.int64)


def _weights(kinds: Sequence[NumpyArray], partners: tuple[IntArray, IntArray]) -> NumpyArray:
    """Return the weights of some kinds of log-likelihood ratios under which partners stand out most among all rows.

    They maximise the mean log-probability of partners: of the right row among all right rows, and of the left row among
    all left rows. This mean is concave in the weights, so Newton steps reach its maximum.
    """
    count = len(kinds)
    weights = np.full(count, 2 * _UNTOLD_WEIGHT / count)
    rows, columns = partners
    if len(rows) < _FEWEST_PARTNERS:
        return weights
    some = np.linspace(0, len(rows) - 1, min(len(rows), _ROWS_LOOKED_AT)).astype(np.int64)
    rows, columns = rows[some], columns[some]
    # How far the other candidates of either row are ahead, by each kind of ratios.
    ahead = [
        np.stack([lines - each[rows, columns, None] for each, lines in zip(kinds, taken, strict=True)])
        for taken in ([each[rows] for each in kinds], [each[:, columns].T for each in kinds])
    ]
    for _ in range(_WEIGHT_STEPS):
        slope, bend = np.zeros(count), np.zeros((count, count))
        for each in ahead:
            logs = np.tensordot(weights.astype(np.float32), each, 1)
            chances = np.exp(logs - logs.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            weighted = chances * each
            means = weighted.sum(axis=2, dtype=np.float64)
            slope -= means.sum(axis=1)
            bend += weighted.reshape(count, -1) @ each.reshape(count, -1).T - means @ means.T
        step = np.linalg.solve(bend + _TINY_BEND * max(np.trace(bend), _TINY) * np.eye(count), slope)
        # No weight changes by more than a factor of two at once.
        moved = np.maximum(np.clip(weights + step, 0.5 * weights, 2.0 * weights), _LEAST_DIRECTION)
        change, weights = np.abs(moved - weights).max(), moved
        if change < _WEIGHT_SETTLED:
            break
    return weights
