"""What each column says for or against a pair of rows, under the model of linked tables.

A cell with number x in column k says of the factors z of its entity: log-density −½ zᵀ·g·z + zᵀ·s, up to a constant,
with g = ⟨e eᵀ⟩/noise and s = (x·⟨e⟩ − ⟨offset·e⟩)/noise, where e are the loadings of the column. What a row says is the
sum over its observed cells, G = Σ g and h = Σ s, and with

    log Z(G, h) = −½ log det(I+G) + ½ hᵀ(I+G)⁻¹h

the log-likelihood ratio of "the same entity" against "two entities" is, for the two sides A and B of a pair,

    ratio = log Z(G_A+G_B, h_A+h_B) − log Z(G_A, h_A) − log Z(G_B, h_B).

Two measures of a column, both in nats:

* its **contribution**. All cells are faded in together, g and s times t, from t = 0, where nothing is known and the
  ratio is 0, to t = 1. The contribution of a cell is its part in the growth of the ratio along the way (the value of
  Aumann and Shapley). Contributions add up to the ratio, do not depend on any order of columns, and columns that say
  the same share what they say.
* its **cost of dropping**: the ratio less the ratio without the column. That is how much better the cell is predicted
  with the other row known than from its own row alone. Costs do not add up to the ratio: of two columns that say the
  same, either can be dropped at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keyless.arrays import BoolArray, FloatArray
from keyless.model.factor_model import FactorModel, Information, information, posterior

__all__ = ["PairSide", "contributions", "costs_of_dropping", "log_ratios", "predictions", "ratio"]

_NODES = 24
"""Places between 0 and 1 at which the growth of the ratio is measured; the sum of contributions is then exact to about
1e-8 of the ratio, for columns that are up to a million times as precise as what is known without them."""

_ROWS_AT_A_TIME = 256
"""Rows whose rank × rank matrices are held at a time."""


@dataclass(frozen=True, eq=False)
class PairSide:
    """Rows on one side of pairs: all columns of the tables that stand there.

    Attributes:
        model: loadings, offsets and noise of these columns.
        scores: rows × columns, standard scores, 0 where missing.
        mask: True where observed.
    """

    model: FactorModel
    scores: FloatArray
    mask: BoolArray

    def __len__(self) -> int:
        return len(self.scores)

    def information(self, *, without: Sequence[int] = ()) -> Information:
        """Return what each row says of its entity's factors, some columns left out."""
        mask = self.mask.copy()
        mask[:, list(without)] = False
        return information(self.model, np.where(mask, self.scores, 0.0), mask)

    def rows(self, some: slice) -> PairSide:
        """Return some of the rows."""
        return PairSide(self.model, self.scores[some], self.mask[some])


def log_ratios(left: PairSide, right: PairSide) -> FloatArray:
    """Return the log-likelihood ratio that row i of both sides is the same entity, in nats."""
    return ratio(left.information(), right.information())


def ratio(left: Information, right: Information) -> FloatArray:
    """Return the log-likelihood ratio that row i of both is the same entity, from what rows say of their factors."""
    return np.asarray(posterior(left + right)[2] - posterior(left)[2] - posterior(right)[2], dtype=np.float64)


def costs_of_dropping(
    left: PairSide, right: PairSide, groups: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]
) -> tuple[FloatArray, FloatArray]:
    """Return, per row, the ratio less the ratio without a group of columns, for each group of each side.

    Args:
        left: rows.
        right: their partners, in the same order.
        groups: for each side, lists of column numbers that go together.
    """
    ours, theirs = left.information(), right.information()
    whole = ratio(ours, theirs)
    one = [whole - ratio(left.information(without=group), theirs) for group in groups[0]]
    two = [whole - ratio(ours, right.information(without=group)) for group in groups[1]]
    return _stacked(one, len(left)), _stacked(two, len(left))


def _stacked(columns: list[FloatArray], rows: int) -> FloatArray:
    return np.column_stack(columns) if columns else np.empty((rows, 0))


def contributions(left: PairSide, right: PairSide) -> tuple[FloatArray, FloatArray]:
    """Return what each cell of both sides contributes to the ratio of its pair, in nats: rows × columns of each side.

    Args:
        left: rows.
        right: their partners, in the same order.
    """
    parts = []
    for start in range(0, max(len(left), 1), _ROWS_AT_A_TIME):
        some = slice(start, start + _ROWS_AT_A_TIME)
        parts.append(_contributions(left.rows(some), right.rows(some)))
    return np.concatenate([one for one, _ in parts]), np.concatenate([two for _, two in parts])


def _contributions(left: PairSide, right: PairSide) -> tuple[FloatArray, FloatArray]:
    ours, theirs = left.information(), right.information()
    both = ours + theirs
    # Growth is fast as long as t times the precision is small. So steps are equal in log(1 + λ·t), λ the precision.
    steepness = float(np.log1p(np.linalg.eigvalsh(both.precision).max(initial=1.0)))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    # The growth of a cell is linear in the moments of z, so that the moments can be summed over t first.
    rank = both.precision.shape[-1]
    means, seconds = np.zeros((2, len(left), rank)), np.zeros((2, len(left), rank, rank))
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        t = float(np.expm1(steepness * node) / np.expm1(steepness))
        step = weight * float(steepness * np.exp(steepness * node) / np.expm1(steepness))
        mean, second = _moments(both, t)
        for side, own in enumerate((ours, theirs)):
            own_mean, own_second = _moments(own, t)
            means[side] += step * (mean - own_mean)
            seconds[side] += step * (second - own_second)
    return _growth(left, means[0], seconds[0]), _growth(right, means[1], seconds[1])


def _moments(info: Information, t: float) -> tuple[FloatArray, FloatArray]:
    """Return the means of z and of z·zᵀ, where what is known of z is faded in as far as t."""
    means, covariance, _ = posterior(Information(t * info.precision, t * info.shift))
    return means, covariance + means[:, :, None] * means[:, None, :]


def _growth(side: PairSide, means: FloatArray, seconds: FloatArray) -> FloatArray:
    """Return d log Z / d weight of each cell: the mean over z of −½ zᵀ·g·z + zᵀ·s, from the means of z and z·zᵀ."""
    model, rank = side.model, side.model.rank
    outer = model.loadings[:, :, None] * model.loadings[:, None, :] + model.spread[:, :rank, :rank]
    cross = model.offsets[:, None] * model.loadings + model.spread[:, :rank, rank]
    quadratic = seconds.reshape(len(means), -1) @ outer.reshape(len(outer), -1).T
    linear = side.scores * (means @ model.loadings.T) - means @ cross.T
    return np.where(side.mask, (linear - 0.5 * quadratic) / model.noise, 0.0)


def predictions(side: PairSide, other: PairSide) -> tuple[FloatArray, FloatArray]:
    """Return what the other row of each pair predicts for all cells of this one: standard scores and their deviations.

    Args:
        side: the rows to predict; their own cells are not looked at.
        other: their partners.
    """
    means, covariance, _ = posterior(other.information())
    scores = means @ side.model.loadings.T + side.model.offsets
    spread = np.einsum("nab,ka,kb->nk", covariance, side.model.loadings, side.model.loadings, optimize=True)
    return scores, np.sqrt(spread + side.model.noise)
