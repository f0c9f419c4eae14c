"""How many matches are expected right, and between which two numbers the true count may lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from keyless.arrays import NumpyArray

__all__ = ["ExpectedRight", "expected_right"]

_ODDS_OFF = 1.0
"""Nats by which all stated odds of a link may be off in the same direction.

Of linked tables (benchmarks/bench_verdict.py with other seeds than it reports), 19 of 20 have at least the lower number
of right matches. If odds were taken to be never off, only 12 of 20 would."""

_DEVIATIONS = 1.96
"""Standard deviations within which 95% of all sums of chances lie."""


@dataclass(frozen=True)
class ExpectedRight:
    """How many matches are expected right.

    Attributes:
        count: the sum of the matches' probabilities.
        low: lower end of the interval that should hold the true number in 19 of 20 links.
        high: upper end of that interval.
        of: how many matches there are.
    """

    count: float
    low: float
    high: float
    of: int

    def __str__(self) -> str:
        return f"{self.count:,.0f} ({self.low:,.0f} to {self.high:,.0f})"


def expected_right(probability: NumpyArray) -> ExpectedRight:
    """Return how many matches are expected right, and an interval.

    The interval allows for chance, each match being right or wrong by itself, and for probabilities that are all too
    high or all too low, as models of real tables make them.

    Args:
        probability: of each match.

    Example:
        >>> print(expected_right(np.array([1.0, 1.0, 0.9, 0.6])))
        4 (2 to 4)
    """
    stated = np.asarray(probability, dtype=np.float64)
    ends = []
    # Results of earlier versions may lack some probabilities.
    stated = stated[np.isfinite(stated)]
    with np.errstate(divide="ignore"):
        odds = logit(np.clip(stated, 0.0, 1.0))
    for direction in (-1, 1):
        shifted = expit(odds + direction * _ODDS_OFF)
        spread = np.sqrt(float((shifted * (1.0 - shifted)).sum()))
        ends.append(float(np.clip(shifted.sum() + direction * _DEVIATIONS * spread, 0.0, len(stated))))
    return ExpectedRight(float(stated.sum()), ends[0], ends[1], len(stated))
