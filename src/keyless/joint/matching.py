"""From log-likelihood ratios to one matching, with or without rows that have no partner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from keyless.assignment import assign
from keyless.likelihood.pairs import FORBIDDEN, couple, couple_or_nobody
from keyless.pairs.posterior import prior_log_odds

__all__ = ["Match", "match"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Match:
    """The most likely matching of two sides.

    Attributes:
        permutation: left → right number, −1 for none.
        log_ratio: the log-likelihood ratios behind it.
        common: how many pairs there are thought to be when rows may have no partner; None when they may not.
    """

    permutation: IntArray
    log_ratio: FloatArray
    common: float | None

    def coupling(self, *, max_iter: int = 500, tolerance: float = 1e-4) -> FloatArray:
        """Return the probability of each pair (temperature 1); forbidden pairs have none."""
        if self.common is not None:
            found = couple_or_nobody(
                self.log_ratio, common=self.common, max_iter=max_iter, tolerance=tolerance
            ).toarray()
            return np.asarray(found, dtype=np.float64)
        coupling = couple(self.log_ratio, max_iter=max_iter, tolerance=tolerance)
        coupling[self.log_ratio <= FORBIDDEN] = 0.0
        # Where too few pairs are allowed, or the iteration stopped early, sums may pass one.
        coupling /= np.maximum(1.0, coupling.sum(axis=1))[:, None]
        coupling /= np.maximum(1.0, coupling.sum(axis=0))[None, :]
        return coupling


def match(log_ratio: FloatArray, *, may_be_alone: bool, max_iter: int = 20) -> Match:
    """Find the matching of the largest total log-likelihood ratio.

    Args:
        log_ratio: left × right; pairs at `FORBIDDEN` are never made.
        may_be_alone: whether rows may have no partner. Then how many do is estimated from the coupling itself, and a
            pair is made where it is more likely than not that both rows are the same entity.
        max_iter: how often that number is estimated anew at most.
    """
    if not may_be_alone:
        cost = np.where(log_ratio <= FORBIDDEN, np.inf, -log_ratio)
        return Match(np.asarray(assign(cost), dtype=np.int64), log_ratio, None)
    common = 0.9 * min(log_ratio.shape)
    for _ in range(max_iter):
        before, common = common, float(couple_or_nobody(log_ratio, common=common).sum())
        if abs(common - before) < 1e-3 * min(log_ratio.shape):
            break
    weight = log_ratio + prior_log_odds(log_ratio.shape, common)
    rows, columns = np.nonzero(weight > 0)
    worthwhile = sparse.csr_array((-weight[rows, columns], (rows, columns)), shape=weight.shape)
    return Match(np.asarray(assign(worthwhile, unmatched_cost=0.0), dtype=np.int64), log_ratio, common)
