"""How the factors of two tables go together: canonical pairs of directions, fitted to pairs of rows.

A map between two tables is the cross-covariance of their factors over rows that are the same entity. Its canonical form
is k directions of either table; along the l-th pair of directions matched rows have the correlation ρ_l. With x and y
the positions of a left and a right row along them, each with unit variance, the two rows are one entity rather than two
by the log-likelihood ratio

    Σ_l [ 2 ρ_l x_l y_l − ρ_l² (x_l² + y_l²) ] / (2 (1 − ρ_l²)) − ½ Σ_l log(1 − ρ_l²).

Factors of one table alone have ρ = 0 and say nothing. Real rows have heavier tails than normal ones; `heavy_tailed`
gives the same ratio under a multivariate t distribution.

Everything is a function of sums over pairs of rows. A row is judged by directions that were fitted without its own
pair, and correlations are those that such left-out pairs show: otherwise any wrong pair would confirm itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln

__all__ = ["CanonicalModel", "Coupled", "CrossFit", "PairSums", "cross_fit", "fit_tail", "heavy_tailed", "information"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

MAX_CORRELATION = 0.99999
"""Correlations are never estimated above this: 5.4 nats a pair of directions, however exact the relation."""

NOISE_CORRELATION = 2.0
"""Left-out correlations below this many standard errors, 1/√pairs each, count as 0: chance gives them."""

RIDGE = 1e-3
"""Part of the mean variance that is added to every variance, so that a few pairs of rows have a canonical form too.

It is what factors count for that only a few rows have: where those are left out of a fit, such a factor has hardly any
variance, and with a ridge of 1e-6 all other rows stood 40 standard deviations out along it."""

_LARGEST_RIDGE = 1e6

_LEAST_VARIANCE = 1e-6
"""Mean variance of whitened factors that a ridge is measured by at the least."""

_FARTHEST = 3.0, 8.0
"""Standard deviations: rows farther out along a direction count as this far when correlations are measured. The
correlation by the first is taken, unless that by the second is clearly lower: where a few rows stand far out, they are
all alike once they are pulled in to 3."""

_CLEARLY_LOWER = 2.0
"""Standard errors of Fisher's z, 1/√pairs each, by which one correlation is clearly lower than another."""

_TAILS = (4.0, 6.0, 10.0, 20.0, 50.0, 150.0)
"""Degrees of freedom that are tried for the tails of real rows, besides normal ones."""

_LEAST_FOR_TAIL = 20
"""Pairs of rows below which tails are taken for normal."""


@dataclass(frozen=True, eq=False)
class PairSums:
    """Weighted sums over pairs of rows; those of different pairs add up.

    Attributes:
        weight: Σ w.
        left_sum: Σ w·u.
        right_sum: Σ w·v.
        left: Σ w·u·uᵀ.
        right: Σ w·v·vᵀ.
        cross: Σ w·u·vᵀ.
    """

    weight: float
    left_sum: FloatArray
    right_sum: FloatArray
    left: FloatArray
    right: FloatArray
    cross: FloatArray

    @classmethod
    def of_weights(
        cls, left: FloatArray, right: FloatArray, rows: FloatArray, columns: FloatArray, partners: FloatArray
    ) -> PairSums:
        """Return the sums of a coupling that is known by what follows from it.

        Args:
            left: factors of the left rows.
            right: factors of the right rows.
            rows: weight of each left row.
            columns: weight of each right row.
            partners: per left row, the weighted sum of its partners' factors.
        """
        left_weighted, right_weighted = left * rows[:, None], right * columns[:, None]
        return cls(
            float(rows.sum(dtype=np.float64)),
            *(part.sum(axis=0, dtype=np.float64) for part in (left_weighted, right_weighted)),
            *(
                part.astype(np.float64)
                for part in (left_weighted.T @ left, right_weighted.T @ right, left.T @ partners)
            ),
        )

    def __add__(self, other: PairSums) -> PairSums:
        return PairSums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __sub__(self, other: PairSums) -> PairSums:
        return PairSums(*(a - b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def centred(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the covariances of left, right, and left with right."""
        weight = max(self.weight, 1e-12)
        left, right = self.left_sum / weight, self.right_sum / weight
        return (
            self.left / weight - np.outer(left, left),
            self.right / weight - np.outer(right, right),
            self.cross / weight - np.outer(left, right),
        )


def information(correlations: FloatArray) -> float:
    """Return −½ Σ log(1 − ρ²): the mean log-likelihood ratio of true pairs, in nats per pair."""
    return float(-0.5 * np.log1p(-(np.asarray(correlations, dtype=np.float64) ** 2)).sum())


@dataclass(frozen=True, eq=False)
class CanonicalModel:
    """Pairs of directions of two tables' factors, and how matched rows correlate along them.

    Attributes:
        left_centre: mean factors of matched left rows.
        right_centre: likewise of right rows.
        left_directions: left factors × pairs; positions along them have unit variance over matched rows.
        right_directions: right factors × pairs.
        correlations: one per pair of directions, from 0 to below 1.
        tail: degrees of freedom of the rows' distribution; ∞ is normal.
    """

    left_centre: FloatArray
    right_centre: FloatArray
    left_directions: FloatArray
    right_directions: FloatArray
    correlations: FloatArray
    tail: float = np.inf

    @property
    def information(self) -> float:
        """Mean log-likelihood ratio of true pairs, in nats per pair."""
        return information(self.correlations)

    def left(self, factors: FloatArray) -> FloatArray:
        """Return where left rows are along the directions."""
        return _placed(factors, self.left_centre, self.left_directions)

    def right(self, factors: FloatArray) -> FloatArray:
        """Return where right rows are along the directions."""
        return _placed(factors, self.right_centre, self.right_directions)

    def bilinear(self, left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return two thin matrices whose product is the log-likelihood ratio of all pairs under normal tails.

        The last two columns carry what depends on one row alone: a number per left row stands in the last column but
        one of the first matrix, a number per right row in the last column of the second.

        Args:
            left: factors of left rows.
            right: factors of right rows.
        """
        rho = self.correlations
        x, y = self.left(left), self.right(right)
        weight = (rho / (1 - rho**2)).astype(x.dtype)
        square = (0.5 * rho * rho / (1 - rho**2)).astype(x.dtype)
        of_row, of_column = x.dtype.type(self.information) - x**2 @ square, -(y**2 @ square)
        ones = np.ones(1, dtype=x.dtype)
        return (
            np.column_stack([x * weight, of_row, np.broadcast_to(ones, of_row.shape)]),
            np.column_stack([y, np.broadcast_to(ones, of_column.shape), of_column]),
        )

    def log_ratios(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the log-likelihood ratio of all pairs of left and right rows, tails included."""
        first, second = self.bilinear(left, right)
        ratios = first @ second.T
        if np.isinf(self.tail):
            return ratios
        x, y = self.left(left), self.right(right)
        return self._with_tail(ratios, (x**2).sum(axis=1)[:, None], (y**2).sum(axis=1)[None, :])

    def pair_log_ratios(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the log-likelihood ratio of left row i with right row i."""
        rho = self.correlations
        x, y = self.left(left), self.right(right)
        ratios = self.information + np.sum((2 * rho * x * y - rho**2 * (x**2 + y**2)) / (2 * (1 - rho**2)), axis=1)
        return ratios if np.isinf(self.tail) else self._with_tail(ratios, (x**2).sum(axis=1), (y**2).sum(axis=1))

    def _with_tail(self, ratios: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
        size = len(self.correlations)
        # The squared length of the pair: what is left of the lengths once the pair has been explained.
        joint = left + right - 2 * (ratios - ratios.dtype.type(self.information))
        tails = heavy_tailed(joint, left, right, (size, size), self.tail)
        return np.asarray(tails + ratios.dtype.type(self.information))


def heavy_tailed(
    joint: FloatArray, left: FloatArray, right: FloatArray, sizes: tuple[Any, Any], tail: float
) -> FloatArray:
    """Return log t(joint) − log t(left) − log t(right), the part of a log-likelihood ratio that depends on the rows.

    t is the density of the multivariate t distribution with `tail` degrees of freedom, scaled to its covariance. With
    normal tails it is ½(left + right − joint).

    Args:
        joint: squared length of each pair of rows, in units of their joint covariance.
        left: squared length of each left row, in units of the covariance of left rows.
        right: likewise of right rows.
        sizes: how many numbers a left row and a right row have.
        tail: degrees of freedom, above 2.
    """

    def density(length: FloatArray, size: Any) -> FloatArray:
        half = 0.5 * (tail + size)
        spread = np.maximum(length, 0.0) / (tail - 2)
        return np.asarray(gammaln(half) - half * np.log1p(spread), dtype=np.result_type(length, np.float32))

    constant = np.asarray(gammaln(0.5 * tail), dtype=np.result_type(joint, np.float32))
    return np.asarray(density(joint, sum(sizes)) - density(left, sizes[0]) - density(right, sizes[1]) + constant)


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Models of the same pairs, each fitted without some of them.

    Attributes:
        models: one per fold, for the rows of that fold, whose pairs it has not seen.
        whole: fitted to all pairs, its correlations those that left-out pairs show; for rows of no fold.
    """

    models: tuple[CanonicalModel, ...]
    whole: CanonicalModel

    @property
    def information(self) -> float:
        """Information that left-out pairs show, in nats per pair."""
        return self.whole.information

    def with_tail(self, tail: float) -> CrossFit:
        """Return the same models with other tails."""
        return CrossFit(tuple(replace(model, tail=tail) for model in self.models), replace(self.whole, tail=tail))


@dataclass(frozen=True, eq=False)
class Coupled:
    """Some left rows and all right rows, with weights on their pairs.

    Attributes:
        left: factors of the left rows.
        right: factors of all right rows.
        left_weights: weight of each left row, the sum over its pairs.
        right_weights: weight that each right row has in pairs with these left rows.
        partners: returns, for numbers of the right rows, their weighted sums over each left row's pairs.
    """

    left: FloatArray
    right: FloatArray
    left_weights: FloatArray
    right_weights: FloatArray
    partners: Callable[[FloatArray], FloatArray]

    @classmethod
    def by_matrix(cls, left: FloatArray, right: FloatArray, coupling: Any) -> Coupled:
        """Return rows coupled by a matrix, left × right rows, dense or sparse."""
        rows, columns = (np.asarray(coupling.sum(axis=axis)).ravel() for axis in (1, 0))
        return cls(left, right, rows, columns, lambda numbers: np.asarray(coupling @ numbers))

    @classmethod
    def of_pairs(cls, left: FloatArray, right: FloatArray) -> Coupled:
        """Return partners, in the same order."""
        ones = np.ones(len(left))
        return cls(left, right, ones, ones, lambda numbers: numbers)

    def leading(self, left: int, right: int) -> Coupled:
        """Return the same rows with their leading factors alone."""
        return replace(self, left=self.left[:, :left], right=self.right[:, :right])

    def sums(self) -> PairSums:
        """Return the sums over all pairs."""
        return PairSums.of_weights(
            self.left,
            self.right,
            self.left_weights.astype(self.left.dtype),
            self.right_weights.astype(self.right.dtype),
            self.partners(self.right),
        )


def cross_fit(folds: Sequence[Coupled], *, ridge: float = RIDGE) -> CrossFit:
    """Fit canonical pairs without each fold in turn, and take the correlations from what the folds left out show.

    Directions whose correlation chance would give as well are dropped.

    Args:
        folds: rows of each fold, with weights on their pairs.
        ridge: part of the mean variance that is added to every variance.
    """
    sums = [fold.sums() for fold in folds]
    total = sum(sums[1:], start=sums[0])
    centres = total.left_sum / total.weight, total.right_sum / total.weight
    size = min(total.cross.shape)
    *fitted, whole = _directions([*(total - own if len(folds) > 1 else total for own in sums), total], ridge)
    sizes = np.zeros((3, len(_FARTHEST), size))
    for fold, (forth, back) in zip(folds, fitted, strict=True):
        x, y = _placed(fold.left, centres[0], forth), _placed(fold.right, centres[1], back)
        for k, farthest in enumerate(_FARTHEST):
            # A row far beyond all others would decide alone: none counts for more than a few standard deviations.
            one, two = np.clip(x, -farthest, farthest), np.clip(y, -farthest, farthest)
            sizes[0, k] += fold.left_weights @ one**2
            sizes[1, k] += fold.right_weights @ two**2
            sizes[2, k] += np.sum(one * fold.partners(two), axis=0, dtype=np.float64)
    left, right, cross = sizes / total.weight
    scales = [np.sqrt(np.maximum(part[0], 1e-12)) for part in (left, right)]
    near, far = np.clip(cross / np.sqrt(np.maximum(left * right, 1e-24)), -MAX_CORRELATION, MAX_CORRELATION)
    error = 1.0 / np.sqrt(max(total.weight, 1.0))
    rho = np.where(np.arctanh(near) - np.arctanh(far) > _CLEARLY_LOWER * error, far, near)
    kept = rho > NOISE_CORRELATION * error

    def model(forth: FloatArray, back: FloatArray) -> CanonicalModel:
        return CanonicalModel(*centres, (forth / scales[0])[:, kept], (back / scales[1])[:, kept], rho[kept])

    return CrossFit(tuple(model(*each) for each in fitted), model(*whole))


def fit_tail(model: CanonicalModel, left: FloatArray, right: FloatArray) -> float:
    """Return the degrees of freedom under which partners, given in the same order, are likeliest; ∞ for few.

    Args:
        model: canonical pairs, best fitted without these rows.
        left: positions of left rows along its directions.
        right: positions of their partners.
    """
    size = len(model.correlations)
    if len(left) < _LEAST_FOR_TAIL or not size:
        return np.inf
    rho = model.correlations
    joint = np.sum((left**2 + right**2 - 2 * rho * left * right) / (1 - rho**2), axis=1)

    def likelihood(tail: float) -> float:
        if np.isinf(tail):
            return float(np.mean(-0.5 * joint) - size * np.log(2.0))
        half = 0.5 * tail + size
        constant = gammaln(half) - gammaln(0.5 * tail) - size * np.log(tail - 2)
        return float(constant - half * np.mean(np.log1p(joint / (tail - 2))))

    return max((*_TAILS, np.inf), key=likelihood)


def _placed(factors: FloatArray, centre: FloatArray, directions: FloatArray) -> FloatArray:
    # Tables may have more factors than the model speaks of: it speaks of the leading ones.
    turn = directions.astype(factors.dtype, copy=False)
    return np.asarray(factors[:, : len(turn)] @ turn - (centre @ directions).astype(factors.dtype))


def _directions(sums: Sequence[PairSums], ridge: float) -> list[tuple[FloatArray, FloatArray]]:
    """Return canonical directions of both sides, the best correlated first, of unit variance over these pairs.

    Of several sums at once: on matrices this small, calling takes longer than computing.
    """
    left, right, cross = (np.stack(parts) for parts in zip(*(one.centred() for one in sums), strict=True))
    forth, back = (np.linalg.inv(_roots(covariances, ridge)) for covariances in (left, right))
    turned, _, turned_back = np.linalg.svd(forth @ cross @ back.mT, full_matrices=False)
    return list(zip(forth.mT @ turned, back.mT @ turned_back.mT, strict=True))


def _roots(covariances: FloatArray, ridge: float) -> FloatArray:
    """Return Cholesky factors of covariances, made definite by a ridge: ever larger ones, until it is enough."""
    size = covariances.shape[-1]
    # Factors have unit variance; of a few rows next to none may be left.
    variances = np.maximum(np.trace(covariances, axis1=1, axis2=2) / size, _LEAST_VARIANCE)
    while True:
        try:
            return np.linalg.cholesky(covariances + ridge * variances[:, None, None] * np.eye(size))
        except np.linalg.LinAlgError:
            # Where a few rows have all the weight, rounding leaves negative variances.
            ridge *= 100.0
            if ridge > _LARGEST_RIDGE:
                raise
