"""How the factors of two tables go together: canonical pairs of directions, fitted to pairs of rows.

A map between two tables is the cross-covariance of their factors over rows that are the same entity. Its canonical form
is k directions of either table; along the l-th pair of directions matched rows have the correlation ρ_l. Let x and y be
the positions of a left and a right row along them, each with unit variance. The log-likelihood ratio of "one entity"
against "two entities" is then

    Σ_l [ 2 ρ_l x_l y_l − ρ_l² (x_l² + y_l²) ] / (2 (1 − ρ_l²)) − ½ Σ_l log(1 − ρ_l²).

Factors of one table alone have ρ = 0 and say nothing. Real rows have heavier tails than normal ones; `heavy_tailed`
gives the same ratio under a multivariate t distribution.

Everything is a function of sums over pairs of rows. A row is judged by directions that were fitted without its own
pair, and correlations are those that such left-out pairs show: otherwise any wrong pair would confirm itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from keyless.arrays import NumpyArray
from keyless.maps.folds import Folds

__all__ = [
    "AllPairs",
    "CanonicalModel",
    "CrossFit",
    "LeftOut",
    "ListedPairs",
    "canonical",
    "cross_fit",
    "fit_tail",
    "heavy_tailed",
    "information",
    "left_out",
    "singular_vectors",
    "whitening",
]

MAX_CORRELATION = 0.99999
"""Correlations are never estimated above this. A pair of directions then says 5.4 nats at most, however exact it is."""

NOISE_CORRELATION = 2.0
"""A correlation over left-out pairs counts as 0 below this many standard errors of 1/√pairs: chance gives as much."""

RIDGE = 1e-3
"""Part of the mean variance that is added to every variance, so that a few pairs of rows have a canonical form too.

It matters for factors that only a few rows have. Where these rows are left out of a fit, such a factor has hardly any
variance; with a ridge of 1e-6 all other rows stood 40 standard deviations out along it."""

_LARGEST_RIDGE = 1e6
"""Ridge beyond which `whitening` gives up."""

_LEAST_VARIANCE = 1e-6
"""Least mean variance of whitened factors that a ridge is taken as a part of."""

_FARTHEST = 3.0, 8.0
"""Two limits in standard deviations: when correlations are measured, rows farther out along a direction count as
standing at the limit. The correlation under the first limit is taken, unless the one under the second is clearly lower:
a few rows that stand far out all look alike once they are pulled in to 3."""

_CLEARLY_LOWER = 2.0
"""One correlation is clearly lower than another if it is so by this many standard errors of Fisher's z, 1/√pairs."""

_TAILS = (4.0, 6.0, 10.0, 20.0, 50.0, 150.0)
"""Degrees of freedom that are tried for the tails of real rows, besides normal ones."""

_LEAST_FOR_TAIL = 20
"""With fewer pairs of rows than this, tails are taken for normal."""


def information(correlations: NumpyArray) -> float:
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

    left_centre: NumpyArray
    right_centre: NumpyArray
    left_directions: NumpyArray
    right_directions: NumpyArray
    correlations: NumpyArray
    tail: float = np.inf

    @property
    def information(self) -> float:
        """Mean log-likelihood ratio of true pairs, in nats per pair."""
        return information(self.correlations)

    def left(self, factors: NumpyArray) -> NumpyArray:
        """Return where left rows are along the directions."""
        return _placed(factors, self.left_centre, self.left_directions)

    def right(self, factors: NumpyArray) -> NumpyArray:
        """Return where right rows are along the directions."""
        return _placed(factors, self.right_centre, self.right_directions)

    def log_ratios(self, left: NumpyArray, right: NumpyArray) -> NumpyArray:
        """Return the log-likelihood ratio of all pairs of left and right rows, tails included."""
        rho = self.correlations
        x, y = self.left(left), self.right(right)
        weight, square = ((part / (1 - rho**2)).astype(x.dtype) for part in (rho, 0.5 * rho**2))
        ratios = np.asarray((x * weight) @ y.mT)
        ratios += (x.dtype.type(self.information) - x**2 @ square)[..., None]
        ratios -= (y**2 @ square)[..., None, :]
        if np.isinf(self.tail):
            return ratios
        return self._with_tail(ratios, (x**2).sum(axis=-1)[..., None], (y**2).sum(axis=-1)[..., None, :])

    def pair_log_ratios(self, left: NumpyArray, right: NumpyArray) -> NumpyArray:
        """Return the log-likelihood ratio of left row i with right row i."""
        rho = self.correlations
        x, y = self.left(left), self.right(right)
        ratios = self.information + np.sum((2 * rho * x * y - rho**2 * (x**2 + y**2)) / (2 * (1 - rho**2)), axis=1)
        return ratios if np.isinf(self.tail) else self._with_tail(ratios, (x**2).sum(axis=1), (y**2).sum(axis=1))

    def _with_tail(self, ratios: NumpyArray, left: NumpyArray, right: NumpyArray) -> NumpyArray:
        size = len(self.correlations)
        # The squared length of the pair, in units of the joint covariance: it follows from the ratio and the lengths.
        joint = left + right - 2 * (ratios - ratios.dtype.type(self.information))
        tails = heavy_tailed(joint, left, right, (size, size), self.tail)
        return np.asarray(tails + ratios.dtype.type(self.information))


def canonical(
    left: tuple[NumpyArray, NumpyArray], right: tuple[NumpyArray, NumpyArray], cross: NumpyArray
) -> CanonicalModel:
    """Return the canonical pairs of a map between factors.

    Args:
        left: mean factors of coupled left rows, and their mean products.
        right: likewise of right rows.
        cross: mean products of the factors of coupled rows, left × right.
    """
    centres = left[0], right[0]
    forth, back = (whitening(squares - np.outer(mean, mean)) for mean, squares in (left, right))
    one, rho, two = np.linalg.svd(forth @ (cross - np.outer(*centres)) @ back.T, full_matrices=False)
    return CanonicalModel(*centres, forth.T @ one, back.T @ two.T, np.clip(rho, 0.0, MAX_CORRELATION))


def heavy_tailed(
    joint: NumpyArray, left: NumpyArray, right: NumpyArray, sizes: tuple[Any, Any], tail: float
) -> NumpyArray:
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

    def density(length: NumpyArray, size: Any) -> NumpyArray:
        half = 0.5 * (tail + size)
        spread = np.maximum(length, 0.0) / (tail - 2)
        return np.asarray(gammaln(half) - half * np.log1p(spread), dtype=np.result_type(length, np.float32))

    constant = np.asarray(gammaln(0.5 * tail), dtype=np.result_type(joint, np.float32))
    return np.asarray(density(joint, sum(sizes)) - density(left, sizes[0]) - density(right, sizes[1]) + constant)


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Models of the same pairs, each fitted without some of them.

    Attributes:
        left_directions: per fold, the left directions of the model that judges its rows, fitted without their pairs.
        right_directions: likewise the right ones.
        whole: model fitted to all pairs, with the correlations that left-out pairs show; it judges rows of no fold.
    """

    left_directions: NumpyArray
    right_directions: NumpyArray
    whole: CanonicalModel

    @classmethod
    def of_one(cls, model: CanonicalModel, folds: int) -> CrossFit:
        """Return the same model for all folds."""
        left, right = (
            np.broadcast_to(each, (folds, *each.shape)) for each in (model.left_directions, model.right_directions)
        )
        return cls(left, right, model)

    @property
    def models(self) -> tuple[CanonicalModel, ...]:
        """One model for each fold."""
        directions = zip(self.left_directions, self.right_directions, strict=True)
        return tuple(replace(self.whole, left_directions=one, right_directions=two) for one, two in directions)

    @property
    def information(self) -> float:
        """Information that left-out pairs show, in nats per pair."""
        return self.whole.information

    def with_tail(self, tail: float) -> CrossFit:
        """Return the same models with other tails."""
        return replace(self, whole=replace(self.whole, tail=tail))

    def log_ratios(self, left: NumpyArray, right: NumpyArray) -> NumpyArray:
        """Return the log-likelihood ratios of all pairs, each left row judged by the model of its fold.

        Args:
            left: factors of left rows, folds × rows × factors.
            right: factors of right rows.
        """
        return replace(
            self.whole, left_directions=self.left_directions, right_directions=self.right_directions
        ).log_ratios(left, right)


class Couplings(Protocol):
    """Weights on pairs of rows: one or several couplings, each between left rows in folds and all right rows."""

    @property
    def rows(self) -> NumpyArray:
        """The weight of each left row, the sum over its pairs: couplings × folds × rows."""

    @property
    def columns(self) -> NumpyArray:
        """The weight that each right row has in pairs with the rows of a fold: couplings × folds × right rows."""

    def times(self, numbers: NumpyArray) -> NumpyArray:
        """Return, per left row, the weighted sum of its partners' numbers.

        Args:
            numbers: right rows × numbers, or one such matrix for each coupling and fold.
        """


@dataclass(frozen=True, eq=False)
class AllPairs:
    """Weights on all pairs.

    Attributes:
        weights: couplings × folds × rows × right rows.
        rows: see `Couplings`.
        columns: see `Couplings`.
    """

    weights: NumpyArray
    rows: NumpyArray
    columns: NumpyArray

    @classmethod
    def of(cls, weights: NumpyArray) -> AllPairs:
        """Return the couplings with the weight of each row."""
        return cls(weights, weights.sum(axis=3), weights.sum(axis=2))

    def times(self, numbers: NumpyArray) -> NumpyArray:
        """Return, per left row, the weighted sum of its partners' numbers."""
        return np.asarray(self.weights @ numbers)


@dataclass(frozen=True, eq=False)
class ListedPairs:
    """One coupling with weights on some pairs; all others have none.

    Attributes:
        parts: per fold, rows × right rows, sparse.
        rows: see `Couplings`.
        columns: see `Couplings`.
    """

    parts: Sequence[sparse.csr_array]
    rows: NumpyArray
    columns: NumpyArray

    @classmethod
    def of(cls, coupling: Any, folds: Folds, dtype: Any) -> ListedPairs:
        """Return a sparse coupling, left × right rows, in folds."""
        coupling = sparse.csr_array(coupling)
        slots = np.full(folds.count * folds.size, len(folds.place))
        slots[folds.place] = np.arange(len(folds.place))
        # One more row, without pairs, stands for all empty places in folds.
        longer = sparse.csr_array(
            (coupling.data, coupling.indices, np.append(coupling.indptr, coupling.indptr[-1])),
            shape=(coupling.shape[0] + 1, coupling.shape[1]),
        )
        parts = [longer[rows] for rows in slots.reshape(folds.count, folds.size)]
        sums = (np.stack([np.asarray(part.sum(axis=axis)) for part in parts])[None].astype(dtype) for axis in (1, 0))
        return cls(parts, *sums)

    def times(self, numbers: NumpyArray) -> NumpyArray:
        """Return, per left row, the weighted sum of its partners' numbers."""
        each = numbers[0] if numbers.ndim > 2 else [numbers] * len(self.parts)
        return np.stack([part @ one for part, one in zip(self.parts, each, strict=True)])[None].astype(numbers.dtype)


class LeftOut(NamedTuple):
    """Canonical pairs of several couplings, fitted without each fold in turn.

    Attributes:
        left: couplings × folds × left factors × pairs, directions of unit variance over the pairs that were seen. If
            asked for, one more fold at the end holds the directions of all pairs.
        right: likewise of right factors.
        centres: mean factors of coupled left rows, and of right rows.
        correlations: couplings × pairs, as the folds that were left out show them.
        scales: standard deviations of left positions, and of right ones, in the folds that were left out.
    """

    left: NumpyArray
    right: NumpyArray
    centres: tuple[NumpyArray, NumpyArray]
    correlations: NumpyArray
    scales: tuple[NumpyArray, NumpyArray]


def left_out(
    left: NumpyArray, right: NumpyArray, couplings: Couplings, *, whole: bool = False, ridge: float = RIDGE
) -> LeftOut:
    """Fit canonical pairs without each fold in turn, and take the correlations from what the folds left out show.

    Args:
        left: factors of the left rows, folds × rows × factors.
        right: factors of the right rows.
        couplings: weights on their pairs.
        whole: whether directions of all pairs are wanted as well.
        ridge: part of the mean variance that is added to every variance.
    """
    tiny = np.finfo(np.float64).tiny
    weight = np.maximum(couplings.rows.sum(axis=(1, 2), dtype=np.float64), tiny)
    rest = np.maximum(_others(couplings.rows.sum(axis=2), whole), tiny)[..., None]
    centres, means, forths = [], [], []
    for factors, weights in ((left, couplings.rows), (right, couplings.columns)):
        weighted = factors * weights[..., None]
        sums = weighted.sum(axis=2, dtype=np.float64)
        centres.append(sums.sum(axis=1) / weight[:, None])
        means.append(_others(sums, whole) / rest)
        squares = _others(weighted.mT @ factors, whole) / rest[..., None]
        forths.append(whitening(squares - means[-1][..., :, None] * means[-1][..., None, :], ridge))
    cross = _others(left.mT @ couplings.times(right), whole) / rest[..., None]
    cross -= means[0][..., :, None] * means[1][..., None, :]
    turns = singular_vectors(forths[0] @ cross @ forths[1].mT)
    directions = [forth.mT @ turn for forth, turn in zip(forths, turns, strict=True)]
    folds = left.shape[0]
    x, y = (
        factors @ each[:, :folds].astype(factors.dtype)
        - (centre[:, None, None] @ each[:, :folds]).astype(factors.dtype)
        for factors, each, centre in zip((left, right), directions, centres, strict=True)
    )
    sizes = []
    for limit in _FARTHEST:
        # A row far beyond all others would decide alone: none counts for more than a few standard deviations.
        near, there = np.clip(x, -limit, limit), np.clip(y, -limit, limit)
        sizes.append(
            (
                (couplings.rows[..., None, :] @ near**2).sum(axis=(1, 2), dtype=np.float64),
                (couplings.columns[..., None, :] @ there**2).sum(axis=(1, 2), dtype=np.float64),
                (near * couplings.times(there)).sum(axis=(1, 2), dtype=np.float64),
            )
        )
    lefts, rights, products = (np.stack(each) / weight[:, None] for each in zip(*sizes, strict=True))
    near, far = np.clip(products / np.sqrt(np.maximum(lefts * rights, 1e-24)), -MAX_CORRELATION, MAX_CORRELATION)
    error = 1.0 / np.sqrt(np.maximum(weight, 1.0))[:, None]
    rho = np.where(np.arctanh(near) - np.arctanh(far) > _CLEARLY_LOWER * error, far, near)
    rho = np.where(rho > NOISE_CORRELATION * error, rho, 0.0)
    scales = np.sqrt(np.maximum(lefts[0], 1e-12)), np.sqrt(np.maximum(rights[0], 1e-12))
    return LeftOut(directions[0], directions[1], (centres[0], centres[1]), rho, scales)


def cross_fit(left: NumpyArray, right: NumpyArray, coupling: Any, folds: Folds, *, ridge: float = RIDGE) -> CrossFit:
    """Fit canonical pairs of one coupling without each fold in turn; see `left_out`.

    Directions are dropped if chance would give them as high a correlation.

    Args:
        left: factors of the left rows.
        right: factors of the right rows.
        coupling: left × right rows, the weight of each pair: dense or sparse.
        folds: of the left rows.
        ridge: part of the mean variance that is added to every variance.
    """
    couplings: Couplings
    if sparse.issparse(coupling):
        couplings = ListedPairs.of(coupling, folds, left.dtype)
    else:
        couplings = AllPairs.of(folds.folded(np.asarray(coupling, dtype=left.dtype))[None])
    found = left_out(folds.folded(left), right, couplings, whole=True, ridge=ridge)
    rho = found.correlations[0]
    kept = rho > 0
    one, two = (
        (directions[0] / scale[0])[..., kept]
        for directions, scale in zip((found.left, found.right), found.scales, strict=True)
    )
    whole = CanonicalModel(found.centres[0][0], found.centres[1][0], one[-1], two[-1], rho[kept])
    return CrossFit(one[:-1], two[:-1], whole)


def _others(sums: NumpyArray, whole: bool) -> NumpyArray:
    """Return, for each fold, the sum over all other folds, and if asked for the sum over all folds.

    A single fold has no others: then nothing is left out.

    Args:
        sums: couplings × folds × anything.
        whole: whether the sum of all folds is appended.
    """
    exact = sums.astype(np.float64)
    total = exact.sum(axis=1, keepdims=True)
    rest = exact if exact.shape[1] == 1 else total - exact
    return np.concatenate([rest, total], axis=1) if whole else rest


def fit_tail(model: CanonicalModel, left: NumpyArray, right: NumpyArray) -> float:
    """Return the degrees of freedom under which partners are likeliest; ∞, which is normal, for few pairs.

    Args:
        model: canonical pairs, best fitted without these rows.
        left: positions of left rows along its directions.
        right: positions of their partners, in the same order.
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


def _placed(factors: NumpyArray, centre: NumpyArray, directions: NumpyArray) -> NumpyArray:
    # Tables may have more factors than the model, which uses the leading ones.
    turn = directions.astype(factors.dtype, copy=False)
    return np.asarray(factors[..., : turn.shape[-2]] @ turn - (centre @ directions).astype(factors.dtype)[..., None, :])


def singular_vectors(matrices: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Return left and right singular vectors of a stack of matrices, by falling singular value; zeros for values of 0.

    They come from the eigenvectors of the smaller Gram matrix, which takes half the time of a decomposition. Vectors of
    values below a millionth of the largest are not exact, but along such directions factors hardly correlate.
    """
    flat = matrices.shape[-2] < matrices.shape[-1]
    tall = matrices.mT if flat else matrices
    squares, vectors = np.linalg.eigh(tall.mT @ tall)
    squares, vectors = squares[..., ::-1], vectors[..., ::-1]
    values = np.sqrt(np.maximum(squares, 0.0))[..., None, :]
    others = np.divide(tall @ vectors, values, out=np.zeros_like(tall), where=values > 1e-12)
    return (vectors, others) if flat else (others, vectors)


def whitening(covariances: NumpyArray, ridge: float = RIDGE) -> NumpyArray:
    """Return, for each of a stack of covariances, a matrix that makes factors with this covariance white.

    It is the inverse Cholesky factor of the covariance plus a ridge, which is raised until the sum is definite.

    Args:
        covariances: any number of square matrices.
        ridge: part of the mean variance that is added to every variance.
    """
    size = covariances.shape[-1]
    # Factors have unit variance over all rows, but over a few rows they may have next to none.
    variances = np.maximum(np.trace(covariances, axis1=-2, axis2=-1) / size, _LEAST_VARIANCE)[..., None, None]
    while True:
        try:
            return np.linalg.inv(np.linalg.cholesky(covariances + ridge * variances * np.eye(size)))
        except np.linalg.LinAlgError:
            if covariances.ndim > 2:
                # One covariance is not definite. Each is done alone, so that the others keep the smaller ridge.
                return np.stack([whitening(each, ridge) for each in covariances])
            # Where a few rows have all the weight, rounding leaves negative variances.
            ridge *= 100.0
            if ridge > _LARGEST_RIDGE:
                raise
