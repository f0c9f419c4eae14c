"""From log-likelihood ratios of all pairs to matches: who belongs to whom, how likely, and who has no partner."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray, NumpyArray
from keyless.assignment import assign, best_matching
from keyless.pairs.look_alikes import less_chance_fit
from keyless.pairs.overlooked import can_be_compared, left_over, share_left_over
from keyless.pairs.posterior import (
    FAR_BEHIND,
    LEAST_STATED,
    Posterior,
    less_crowding,
    posterior,
    with_data,
)

__all__ = ["every_row_matched", "likely_matches", "matched", "sharpness"]

_FEWEST_STATED = 0.5
"""If at least this share of the matches are likely enough to be stated, the others are left out; see
`likely_matches`."""

_MOST_RIVALS = 64
"""How many of the likeliest partners of a row are weighed against each other; where more are near, none stands out
anyway."""

_FEW_ALONE = 0.03
"""Share of rows expected to be without partner, up to which tables of equal size are taken to hold the same rows. It
was 0.00 to 0.03 for most tables that hold the same rows, and 0.037 or more for tables that lack 5% of each other's rows
(pairs of benchmarks/bench_real.py and bench_verdict.py, with other seeds than they report)."""

_ODD_ONES = 2.0
"""How many rows may be without partner in tables that are taken to hold the same rows: a table may hold one or two odd
rows."""

_NEXT_TO_NOTHING = 1e-9
"""Probability that a nat of log-likelihood ratio counts for where stated probabilities make no difference: so little
that ratios of a thousand nats change no probability that anybody looks at."""


def matched(ratios: NumpyArray, every_row: bool | None) -> tuple[IntArray, Posterior, bool]:
    """Return the match of each row, the probabilities of all pairs, and whether every row was given a partner.

    Args:
        ratios: left × right rows, log-likelihood ratios; −∞ where a pair must not be.
        every_row: whether every row of the smaller table has a partner; None: decided from the data.
    """
    thinned = less_crowding(ratios)
    if every_row:
        return _every_row(thinned)
    listed = _possible(thinned)
    first = posterior(listed)
    # Rows that look like each other by chance are allowed for.
    listed = _possible(less_chance_fit(thinned, ratios, _best_matches(listed, first)))
    chances = posterior(listed)
    permutation = _stated(listed, chances)
    if every_row is None and _hold_the_same_rows(thinned, permutation, first):
        return _every_row(thinned)
    return permutation, chances, False


def _every_row(ratios: NumpyArray) -> tuple[IntArray, Posterior, bool]:
    """Return what `matched` does where every row has a partner: however bad a match is, its row needs it.

    The matches are those of which most are expected to be right, so they cannot contradict the probabilities. Where
    several matchings are equally good by that, the one with the highest ratios is taken.
    """
    chances = posterior(_possible(ratios, every_row_matched(ratios)), every_row=True)
    return every_row_matched(chances.pairs.toarray() + _NEXT_TO_NOTHING * ratios), chances, True


def _hold_the_same_rows(ratios: NumpyArray, permutation: IntArray, chances: Posterior) -> bool:
    """Tell whether two tables of equal size hold the same rows, though some rows may seem to have no partner.

    They do if nearly all rows without match have their partner among the rows that are left over in the other table.

    Args:
        ratios: left × right rows, log-likelihood ratios.
        permutation: the matches that are likely enough to be stated, −1 for all other rows.
        chances: the probabilities of pairs. They tell how many rows have no partner if rows left over do not.
    """
    rows = len(permutation)
    if ratios.shape[1] != rows:
        return False
    others = left_over(permutation, rows)
    alone = rows - chances.common
    if can_be_compared(*others[:3]):
        alone = len(others[0]) * (1.0 - share_left_over(ratios, *others))
    return alone <= max(_FEW_ALONE * rows, _ODD_ONES)


def every_row_matched(ratios: NumpyArray) -> IntArray:
    """Return the one-to-one matches with the largest sum of ratios, −1 for rows without match.

    Every row of the smaller table that may have a partner gets one.

    Args:
        ratios: left × right rows, log-likelihood ratios; −∞ where a pair must not be.
    """
    return np.asarray(assign(np.where(np.isfinite(ratios), -ratios, np.inf)), dtype=np.int64)


def _best_matches(ratios: sparse.csr_array, chances: Posterior) -> IntArray:
    """Return the likeliest one-to-one matches; −1 for rows that are likelier to have no partner."""
    return best_matching(with_data(ratios, ratios.data + chances.odds)).permutation


def _stated(ratios: sparse.csr_array, chances: Posterior) -> IntArray:
    """Return the likeliest one-to-one matches that are likely enough to be stated; −1 for all other rows."""
    return likely_matches(_best_matches(ratios, chances), chances)


def likely_matches(permutation: IntArray, chances: Posterior) -> IntArray:
    """Return the matches that are likely enough to be stated; −1 for all other rows.

    Where these are few, because several rows could be the partner, other matches are returned as well: those that are
    at least as likely as one of their two rows is to have no partner. Their probabilities say how unsure they are.
    Otherwise a map whose rows are alike, or repeated, could not be judged.
    """
    rows = np.flatnonzero(permutation >= 0)
    probability = chances.answers(permutation)[rows]
    likely = probability >= LEAST_STATED
    if likely.sum() < _FEWEST_STATED * len(rows):
        likely = probability >= np.minimum(chances.alone(0)[rows], chances.alone(1)[permutation[rows]])
    stated = np.full(len(permutation), -1, dtype=np.int64)
    stated[rows[likely]] = permutation[rows[likely]]
    return stated


def _possible(ratios: NumpyArray, permutation: IntArray | None = None) -> sparse.csr_array:
    """Return the pairs that are worth a look, as a sparse matrix of their log-likelihood ratios.

    Args:
        ratios: left × right rows; −∞ where a pair must not be.
        permutation: matches that are kept, however low their ratios; None: pairs with ratios far below 0 are not worth
            a look.
    """
    highest = _highest(ratios)
    possible = np.isfinite(ratios) & (ratios > np.minimum(*highest) - FAR_BEHIND)
    if permutation is None:
        possible &= ratios > -FAR_BEHIND
    else:
        # Only pairs near the best of the row and the best of the column: others cannot take part in an exchange of
        # partners.
        possible &= ratios > np.maximum(*highest) - 2 * FAR_BEHIND
    if min(ratios.shape) > _MOST_RIVALS:
        lowest = [np.partition(ratios, -_MOST_RIVALS, axis=axis).take([-_MOST_RIVALS], axis=axis) for axis in (1, 0)]
        possible &= ratios >= np.minimum(*lowest)
    if permutation is not None:
        rows = np.flatnonzero(permutation >= 0)
        possible[rows, permutation[rows]] = True
    rows, columns = np.nonzero(possible)
    return sparse.csr_array((ratios[rows, columns].astype(np.float64), (rows, columns)), shape=ratios.shape)


def _highest(ratios: NumpyArray) -> list[NumpyArray]:
    """Return the highest ratio of each row and of each column; −∞ where no pair may be."""
    return [ratios.max(axis=axis, keepdims=True, initial=-np.inf) for axis in (1, 0)]


def sharpness(ratios: NumpyArray, permutation: IntArray) -> float:
    """Return the share of matched rows that are the first choice of their partner, averaged over both directions."""
    rows = np.flatnonzero(permutation >= 0)
    if not len(rows):
        return 0.0
    forth = ratios.argmax(axis=1)[rows] == permutation[rows]
    back = ratios.argmax(axis=0)[permutation[rows]] == rows
    return float(forth.mean() + back.mean()) / 2
