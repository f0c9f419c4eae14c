"""Whitened factors of one table: its principal components, or given columns before them.

They are made from complete standard scores. Factors have unit variance and are uncorrelated, in falling order of
strength; their signs are fixed by the data, so that neither the order nor the signs of the columns matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from keyless.arrays import FloatArray, IntArray, SingleArray, as_matrix, check_count
from keyless.errors import InputError
from keyless.progress import in_time

__all__ = ["Factors", "principal_factors", "standardise", "whitened"]

_NOTHING = 1e-3
"""Components weaker than this part of the strongest are rounding, or exact dependencies between columns."""

_CLEAR_GAP = 4.0
"""If the weakest factor is this many times as strong as the strongest noise, the gap alone tells them apart.
Neighbouring singular values of noise differ by less than 1.5 times where there are twice as many rows as columns."""


@dataclass(frozen=True, eq=False)
class Factors:
    """What a table says about its rows, as uncorrelated numbers of unit variance.

    Attributes:
        scores: rows × rank, mean 0, variance 1, uncorrelated.
        strengths: rank numbers, falling: how much of the table each factor carries.
        signal_rank: how many factors stand out of the table's noise; 0 where that is not known.
    """

    scores: FloatArray
    strengths: FloatArray
    signal_rank: int = 0

    @property
    def rank(self) -> int:
        """How many factors there are."""
        return int(self.scores.shape[1])

    @cached_property
    def compact(self) -> SingleArray:
        """The scores in single precision, as the search uses them."""
        return np.ascontiguousarray(self.scores, dtype=np.float32)

    @cached_property
    def row_order(self) -> IntArray:
        """Rows by rising first factor: an order that does not depend on the one the table came in."""
        return np.argsort(self.scores[:, 0], kind="stable")

    def rows(self, order: IntArray) -> Factors:
        """Return the factors with rows in another order."""
        return Factors(self.scores[order], self.strengths, self.signal_rank)

    def weighted(self, *, rank: int, weight: float) -> FloatArray:
        """Return the `rank` strongest factors times strength**weight, with mean variance 1."""
        scale = self.strengths[:rank] ** weight
        scale /= np.sqrt(np.mean(scale**2))
        return self.scores[:, :rank] * scale


def standardise(values: FloatArray) -> FloatArray:
    """Return the columns that vary, each with mean 0 and variance 1."""
    centred = values - values.mean(axis=0)
    spread = centred.std(axis=0)
    varies = spread > 1e-10 * np.maximum(np.abs(values).max(axis=0), np.finfo(float).tiny)
    return np.asarray(centred[:, varies] / spread[varies])


def principal_factors(
    scores: FloatArray,
    *,
    max_rank: int = 40,
    largest_score: float = 5.0,
    leading: Sequence[int] = (),
) -> Factors:
    """Return the principal components of standard scores, scaled to unit variance.

    There are never more than a quarter as many factors as rows. A table in which nothing varies gets one factor that is
    zero everywhere.

    Args:
        scores: rows × columns, complete; columns are centred and scaled again.
        max_rank: the most factors kept.
        largest_score: scores are pulled in to this many standard deviations, so that no outlier makes a factor alone.
        leading: columns that become factors of their own, before all others; components are made of what they leave.

    Example:
        >>> import numpy as np
        >>> factors = principal_factors(np.random.default_rng(0).normal(size=(40, 3)))
        >>> factors.scores.shape, bool(np.allclose(factors.scores.T @ factors.scores / 40, np.eye(3)))
        ((40, 3), True)
    """
    max_rank = check_count(max_rank, name="max_rank")
    if not largest_score > 0:
        raise InputError(f"largest_score: must be a positive number; found {largest_score!r}.")
    table = standardise(np.asarray(as_matrix(scores, name="scores"), dtype=np.float64))
    table = standardise(np.clip(table, -largest_score, largest_score)) if table.size else table
    n_rows = scores.shape[0]
    if not table.size:
        return Factors(np.zeros((n_rows, 1)), np.ones(1))
    if len(leading):
        return _with_leading(scores, table, leading, max_rank=max_rank, largest=largest_score)
    left, strengths, _ = in_time(lambda: np.linalg.svd(table, full_matrices=False))
    present = int(np.sum(strengths > _NOTHING * strengths[0]))
    rank = max(1, min(max_rank, n_rows // 4, present))
    signal = min(rank, _signal_rank(strengths, table.shape))
    return Factors(_signed(left[:, :rank]) * np.sqrt(n_rows), strengths[:rank], signal)


def _with_leading(
    scores: FloatArray, table: FloatArray, leading: Sequence[int], *, max_rank: int, largest: float
) -> Factors:
    """Return given columns as the first factors, and the principal components of what they leave of the table."""
    chosen = standardise(np.clip(standardise(scores[:, list(leading)]), -largest, largest))
    basis, sizes, _ = np.linalg.svd(chosen, full_matrices=False)
    # If several columns say the same, only one counts.
    count = int(np.sum(sizes > _NOTHING * sizes[0])) if sizes.size else 0
    basis = _signed(np.linalg.qr(chosen)[0] if count == chosen.shape[1] else basis[:, :count])[:, :max_rank]
    left, strengths, _ = np.linalg.svd(table - basis @ (basis.T @ table), full_matrices=False)
    present = int(np.sum(strengths > _NOTHING * strengths[0])) if strengths.size else 0
    rank = max(0, min(max_rank, len(scores) // 4) - basis.shape[1])
    rest = _signed(left[:, : min(rank, present)])
    strongest = strengths[0] if rest.shape[1] else 1.0
    return Factors(
        np.hstack([basis, rest]) * np.sqrt(len(scores)),
        np.concatenate([np.full(basis.shape[1], strongest), strengths[: rest.shape[1]]]),
    )


def whitened(columns: FloatArray) -> FloatArray:
    """Return columns made uncorrelated one after the other, with mean 0 and variance 1 and signs fixed by the data."""
    centred = columns - columns.mean(axis=0)
    centred = centred / np.maximum(centred.std(axis=0), np.finfo(float).tiny ** 0.5)
    basis, _ = np.linalg.qr(centred)
    return np.asarray(_signed(basis) * np.sqrt(len(columns)))


def _signal_rank(strengths: FloatArray, shape: tuple[int, ...]) -> int:
    """Count singular values before a clear gap, or above the optimal threshold for noise of unknown size.

    The threshold (Gavish and Donoho, 2014) depends on the median singular value, which must be noise. Narrow tables of
    many factors have too few columns for that, but then there is a gap.
    """
    steps = strengths[:-2] / np.maximum(strengths[1:-1], np.finfo(float).tiny)
    if steps.size and steps.max() >= _CLEAR_GAP:
        return int(steps.argmax()) + 1
    ratio = min(shape) / max(shape)
    factor = 0.56 * ratio**3 - 0.95 * ratio**2 + 1.82 * ratio + 1.43
    return max(1, int(np.sum(strengths > factor * np.median(strengths))))


def _signed(basis: FloatArray) -> FloatArray:
    """Give every column the sign that makes its skewness positive."""
    return np.asarray(basis * np.where(np.sum(basis**3, axis=0) < 0, -1.0, 1.0))
