"""How many rows have a partner, told by decoys: the best candidate of a row once its own match is hidden.

A row without partner has a best candidate, too, which fits it by chance. Rows with a match tell how well such
candidates fit: their match is hidden, and what is best then is a decoy. Where fewer rows than that have a badly fitting
best candidate, the others have partners. No model says how well partners fit.
"""

from __future__ import annotations

import numpy as np

from keyless.arrays import IntArray, NumpyArray
from keyless.sizes import TELLING_ROWS

__all__ = ["most_partners"]

_LOWEST = 0.25
"""Share of decoys, those that fit worst. Rows whose best candidate fits worse than these count as rows without partner:
so many of those are among them. A larger share would count partners that fit badly, a smaller one has few rows."""

_FEWEST = 30
"""Matches below which decoys do not tell: the share of rows without partner would have a standard error of 0.15."""


def most_partners(ratios: NumpyArray) -> float:
    """Return how many rows have a partner at the most: the mean of what the rows of both tables tell, and its error.

    A few partners fit as badly as the worst decoys do and are not counted. Of few rows, all may have one.

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
    # Counts vary by their roots; the mean of two has half of the sum of both variances.
    error = np.sqrt(sum(low)) / (2 * _LOWEST)
    return float(np.clip(np.mean(told) + error, 1.0, smaller))


def _hidden(ratios: NumpyArray, match: IntArray) -> NumpyArray:
    """Return how well the best candidate of each row fits that is not its match."""
    others = ratios.copy()
    others[np.arange(len(match)), match] = -np.inf
    return np.asarray(others.max(axis=1))
