"""The best one-to-one matching of listed pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray
from keyless.assignment import OneToOne
from keyless.assignment.in_parts import match_in_parts
from keyless.cluster import LOCAL, Workers
from keyless.pairs.posterior import Posterior, largest, pair_places, posterior, with_data

__all__ = ["Matched", "best_of_listed", "match_listed"]

_PAIR, _WORST = 1e4, 1e3
"""Where every row has a partner: nats that each pair adds to a matching, and the most nats that a pair counts as behind
the best of its row. So one pair more is worth more than any choice among pairs."""

_SURELY_ALONE, _FEW_ALONE = 0.99, 0.005
"""Probability above which a row counts as having no partner, and the share of such rows up to which tables of equal
size are taken to hold the same rows. Two rows are always few."""


@dataclass(frozen=True, eq=False)
class Matched:
    """The best matching of listed pairs, and how likely each pair is.

    Attributes:
        matching: per left row, its right row, and how far from the best the matching may be.
        chances: the probabilities of the listed pairs.
        ratios: log-likelihood ratios of the listed pairs.
        every_row: whether every row of the smaller table was given a partner, as far as listed pairs allow.
    """

    matching: OneToOne
    chances: Posterior
    ratios: sparse.csr_array
    every_row: bool

    @property
    def permutation(self) -> IntArray:
        """Per left row, its right row, −1 for none."""
        return np.asarray(self.matching.permutation, dtype=np.int64)


def match_listed(
    ratios: sparse.csr_array,
    *,
    every_row: bool | None,
    remaining: Callable[[], float | None] = lambda: None,
    workers: Workers = LOCAL,
) -> Matched:
    """Return probabilities and the best matching of listed pairs.

    Args:
        ratios: left × right rows, log-likelihood ratios of the pairs that may be matched.
        every_row: whether every row of the smaller table has a partner; None: decided from the data.
        remaining: tells the seconds left for the matching; after them the best so far counts, and its gap says how
            good it is.
        workers: who works.
    """
    smaller = min(ratios.shape)
    chances = posterior(ratios)
    if every_row is None:
        alone = int((chances.alone() > _SURELY_ALONE).sum())
        every_row = ratios.shape[0] == ratios.shape[1] and alone <= max(2, _FEW_ALONE * smaller)
    if every_row:
        # The partner of a row may not be listed: a pair that fits badly stays unlikely.
        chances = posterior(ratios, common=float(smaller))
    matching = best_of_listed(ratios, chances.odds, every_row=every_row, remaining=remaining, workers=workers)
    return Matched(matching, chances, ratios, every_row)


def best_of_listed(
    ratios: sparse.csr_array,
    odds: float,
    *,
    every_row: bool,
    remaining: Callable[[], float | None] = lambda: None,
    workers: Workers = LOCAL,
) -> OneToOne:
    """Return the likeliest matching of listed pairs.

    Args:
        ratios: left × right rows, log-likelihood ratios of the pairs that may be matched.
        odds: prior log-odds of a pair against both rows being without partner.
        every_row: whether as many pairs are made as possible.
        remaining: tells the seconds left; None: there is no limit.
        workers: who works.
    """
    gains = ratios.data + odds
    if every_row:
        # One pair more is worth more than any choice among pairs. Every row of the smaller side gets a partner, so it
        # does not matter if the same number is taken off all pairs of a row.
        line = pair_places(ratios)[int(ratios.shape[0] > ratios.shape[1])]
        best = largest(line, ratios.data, min(ratios.shape))
        gains = _PAIR + np.maximum(ratios.data - best[line], -_WORST)
    return match_in_parts(with_data(ratios, gains), workers=workers, remaining=remaining)
