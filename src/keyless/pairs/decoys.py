"""Tell how many rows have a partner by decoys: a decoy is the best candidate of a row once its own match is hidden.

A row without partner has a best candidate, too, which fits it by chance. Rows with a match tell how well such
candidates fit: their match is hidden, and the best candidate then is a decoy. Where fewer rows have a badly fitting
best candidate than decoys would, the others have partners. No model says how well partners fit.
"""

from __future__ import annotations

import numpy as np

from keyless.arrays import IntArray, NumpyArray
from keyless.sizes import TELLING_ROWS

__all__ = ["most_partners"]

_LOWEST = 0.25
"""Share of decoys, those that fit worst. Rows whose best candidate fits as badly count as rows without partner, and are
taken to be this share of all rows without partner. A larger share would count partners that fit badly, too; a smaller
one would rest on few rows."""

_FEWEST = 30
"""Matches below which decoys do not tell: the share of rows without partner would have a standard error of 0.15."""


def most_partners(ratios: NumpyArray) -> float:
    """Return how many rows have a partner at the most: the mean of what the rows of both tables tell, plus its error.

    A few partners fit as badly as the worst decoys do and are not counted. Where rows are few, all may have one.

    Args:
        ratios: left × right rows, log-likelihood ratios; −∞ where a pair must not be.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ratios = rng.normal(size=(200, 200))
        >>> ratios[np.arange(150), np.arange(150)] += 8
        >>> 145 < most_partners(ratios) < 175
        True
    """
    rows, smaller = np.arange(len(ratios)), float(min(ratios.shape))
    if smaller < TELLING_ROWS:
        return smaller
    choice = ratios.argmax(axis=1)
    both = ratios.argmax(axis=0)[choice] == rows
    matched, partners = rows[both], choice[both]
    if len(matched) < _FEWEST:
        return smaller
    best = ratios.max(axis=1), ratios.max(axis=0)
    decoys = _hidden(ratios[matched], partners), _hidden(ratios.T[partners], matched)
    low = [int(np.sum(fits < np.quantile(each, _LOWEST))) for fits, each in zip(best, decoys, strict=True)]
    told = [len(fits) - count / _LOWEST for fits, count in zip(best, low, strict=True)]
    # A count has its own root as standard error; the mean of two counts has half the root of their sum.
    error = np.sqrt(sum(low)) / (2 * _LOWEST)
    return float(np.clip(np.mean(told) + error, 1.0, smaller))


def _hidden(ratios: NumpyArray, match: IntArray) -> NumpyArray:
    """Return how well the best candidate of each row fits, its match left out."""
    others = ratios.copy()
    others[np.arange(len(match)), match] = -np.inf
    # A row may have no other candidate; quantiles cannot be taken of −∞.
    return np.asarray(np.maximum(others.max(axis=1), np.finfo(np.float32).min / 2))
