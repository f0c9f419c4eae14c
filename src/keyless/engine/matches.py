"""From log-likelihood ratios of all pairs to matches: who belongs to whom, how likely, and who has no partner.

Ratios come from models that have not seen the pairs. But models of few rows, or of rows that are not distributed as the
model has it, are still surer than they should be. So likelihood ratios are raised to a power at which partners stand
out as often as is stated. And rows with low ratios that are each other's first choice all the same are not taken to be
without partner.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray, NumpyArray
from keyless.assignment import assign, best_matching
from keyless.pairs.decoys import most_partners
from keyless.pairs.look_alikes import less_chance_fit
from keyless.pairs.overlooked import can_be_compared, left_over, share_left_over
from keyless.pairs.posterior import (
    FAR_BEHIND,
    LEAST_STATED,
    Posterior,
    less_crowding,
    marginals,
    posterior,
    prior_log_odds,
    with_data,
)
from keyless.sizes import TELLING_ROWS

__all__ = [
    "NOT_REFUTED",
    "every_row_matched",
    "fitted_power",
    "hardly_one_alone",
    "likely_matches",
    "matched",
    "sharpness",
]

_FEWEST_STATED = 0.5
"""If at least this share of the matches are likely enough to be stated, the others are left out; see
`likely_matches`."""

_MOST_RIVALS = 64
"""How many of the likeliest partners of a row are weighed against each other; where more are near, none stands out
anyway."""

_FEW_ALONE = 0.03
"""Share of rows that are expected to be without partner, up to which tables of equal size are taken to hold the same
rows. The share was 0.00 to 0.04 for real tables that hold the same rows, and 0.036 to 0.075 for those that lack 5% of
each other's rows."""

_ODD_ONES = 2.0
"""How many rows may be left over in tables that are taken to hold the same rows: a table may hold one or two odd
rows."""

_WANTED = 2 / 3
"""If more than this share of the rows that seem to have no partner are a first choice all the same, tables hold the
same rows.

The share was 0.05 to 0.55 where such rows indeed had no partner, and 0.6 to 0.86 where they had one."""

_POWERS = np.geomspace(0.15, 1.0, 16)
"""Powers that likelihood ratios may be raised to."""

NOT_REFUTED = 1.0
"""Nats of log-likelihood by which a power may be worse than the best one and still count as good. Of all good powers
the one nearest to 1 is taken."""

_EVEN = 0.5
"""Probability of having no partner above which a row seems to have none."""

_ODD_ROWS = 0.05
"""Share of rows whose partner is taken to say nothing about the power, so that a few odd rows do not decide it."""

_VERY_ODD_ROWS = 0.005
"""The same share where the question is whether every row has a partner. It is smaller, since rows without partner must
count."""

_HARDLY_LOST, _MUCH_LOST = 0.03, 0.1
"""Nats per row that partners lose if ratios are not raised to the best power. Up to the first number every row has a
partner, beyond the second some rows have none, and in between other questions decide.

By models of all columns, real tables with a tenth or a fifth of their entries missing lost 0.00 to 0.06 where every row
has a partner, and 0.06 to 0.29 where either table lacks a twentieth of the rows (pairs of benchmarks/bench_real.py with
other seeds than it reports)."""

_LARGEST_EXPONENT = 60.0
"""The most nats that a candidate counts as ahead: beyond these it does not matter how far, and single precision holds
their exponential."""

_ROWS_LOOKED_AT = 300
"""The most rows, and columns, by which the power is chosen."""

_FEWEST_PAIRS = 12
"""Pairs below which a power is not chosen."""

_SEARCHES, _LONGEST_STEP, _NEAR_ENOUGH = 15, 3.0, 5e-3
"""The most steps in which the odds are sought that give the wanted number of pairs; the longest step, in nats; and by
how much that number may be off, as a share of the smaller table's rows."""


def matched(ratios: NumpyArray, every_row: bool | None, *, crowded: bool = False) -> tuple[IntArray, Posterior, bool]:
    """Return the match of each row, the probabilities of all pairs, and whether every row was given a partner.

    Args:
        ratios: left × right rows, log-likelihood ratios; −∞ where a pair must not be.
        every_row: whether every row of the smaller table has a partner; None: decided from the data.
        crowded: whether rows may come in crowds, where rows without partner find a look-alike more often than the
            ratios say.
    """
    plain = ratios
    if crowded:
        ratios = less_crowding(plain)
    whole, thinned = every_row_matched(ratios), ratios
    if every_row:
        return _every_row(ratios, whole)
    listed = _possible(ratios)
    first = posterior(listed)
    if every_row is None and not crowded and ratios.shape[0] == ratios.shape[1] >= TELLING_ROWS:
        lost = _lost_by_all(ratios, whole)
        every_row = True if lost <= _HARDLY_LOST else False if lost > _MUCH_LOST else None
    if every_row or (every_row is None and hardly_one_alone(first)):
        return _every_row(ratios, whole)
    most = most_partners(ratios)
    found = _at_most(listed, first, most)
    likely = _best_matches(listed, found)
    if crowded and min(ratios.shape) >= TELLING_ROWS:
        ratios = less_chance_fit(ratios, plain, likely)
        listed = _possible(ratios)
        found = _at_most(listed, posterior(listed), most)
        likely = _best_matches(listed, found)
    if every_row is None and _left_over_are_partners(thinned, _stated(listed, found), whole, first):
        # Rows that fit nobody would take partners away from rows that fit. So they are matched with each other.
        return _every_row(thinned, _completed(_stated(_possible(thinned), first), thinned))
    # The power is fitted to likely matches: if every row had to have a partner, rows without one would take those of
    # others.
    rows = np.flatnonzero(likely >= 0)
    power = fitted_power(ratios, rows, likely[rows])
    if power < 1.0:
        listed = _possible(power * ratios)
        found = _with_common(listed, found.common)
    return _stated(listed, found), found, False


def _every_row(ratios: NumpyArray, whole: IntArray) -> tuple[IntArray, Posterior, bool]:
    """Return what `matched` does where every row has a partner: however bad a match is, its row needs it.

    The matches are those of which most are expected to be right by the probabilities, so the two contradict each other
    as seldom as possible. Rows that this leaves without a match are matched to each other.

    Args:
        ratios: left × right rows, log-likelihood ratios.
        whole: matches by which the power is fitted, and which are possible whatever their ratios.
    """
    rows = np.flatnonzero(whole >= 0)
    power = fitted_power(ratios, rows, whole[rows])
    chances = posterior(_possible(power * ratios, whole), every_row=True)
    return _completed(best_matching(chances.pairs).permutation, ratios), chances, True


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


def _completed(permutation: IntArray, ratios: NumpyArray) -> IntArray:
    """Return the matches, with the rows that have none matched to each other."""
    rows = np.flatnonzero(permutation < 0)
    columns = np.setdiff1d(np.arange(ratios.shape[1]), permutation)
    completed = permutation.copy()
    if len(rows) and len(columns):
        completed[rows] = np.append(columns, -1)[every_row_matched(ratios[np.ix_(rows, columns)])]
    return completed


def fitted_power(ratios: NumpyArray, rows: IntArray, columns: IntArray) -> float:
    """Return the power, at most 1, to which likelihood ratios must be raised for partners to be as likely as stated.

    It is the power under which these partners are likeliest to pick each other among all rows; of powers about as good
    the one nearest to 1. Ratios of models that have not seen the partners show by themselves how much they exaggerate:
    the more they do, the more often other rows beat partners than the ratios say. Where many of the partners are wrong,
    some of the exaggeration stays hidden.

    Args:
        ratios: left × right rows, log-likelihood ratios; −∞ where a pair is impossible.
        rows: left row of each pair of partners.
        columns: right row of each.
    """
    if len(rows) < _FEWEST_PAIRS:
        return 1.0
    found = _likelihoods(ratios, rows, columns, odd_rows=_ODD_ROWS)[0]
    return float(_POWERS[found >= found.max() - NOT_REFUTED].max())


def _likelihoods(ratios: NumpyArray, rows: IntArray, columns: IntArray, *, odd_rows: float) -> tuple[NumpyArray, int]:
    """Return the log-likelihood that partners pick each other, under each power, and how many pairs it sums over.

    Args:
        ratios: left × right rows, log-likelihood ratios; −∞ where a pair is impossible.
        rows: left row of each pair of partners.
        columns: right row of each.
        odd_rows: share of rows whose partner is taken to say nothing.
    """
    some = np.linspace(0, len(rows) - 1, min(len(rows), _ROWS_LOOKED_AT)).astype(np.int64)
    rows, columns = rows[some], columns[some]
    own = ratios[rows, columns][:, None]
    # How many nats the candidates of either row are ahead of its partner.
    sides = ratios[rows] - own, ratios[:, columns].T - own

    def likelihood(power: float) -> float:
        total = 0.0
        for ahead in sides:
            picked = 1.0 / np.exp(np.minimum(power * ahead, _LARGEST_EXPONENT)).sum(axis=1, dtype=np.float64)
            total += 0.5 * float(np.log((1 - odd_rows) * picked + odd_rows / ahead.shape[1]).sum())
        return total

    return np.array([likelihood(power) for power in _POWERS]), len(rows)


def _lost_by_all(ratios: NumpyArray, whole: IntArray) -> float:
    """Return the nats per row that partners lose at power 1, compared with the best power, if every row has one.

    Ratios of a model of all columns are as large as they should be. If a row without partner is given one, other rows
    beat that partner far more often than the ratios say, and only a low power would make that likely.

    Args:
        ratios: left × right rows, log-likelihood ratios by a model of all columns.
        whole: the matches where every row is given a partner.
    """
    rows = np.flatnonzero(whole >= 0)
    if not rows.size:
        return 0.0
    found, count = _likelihoods(ratios, rows, whole[rows], odd_rows=_VERY_ODD_ROWS)
    return float(found.max() - found[-1]) / count


def _at_most(ratios: sparse.csr_array, found: Posterior, most: float) -> Posterior:
    """Return the probabilities of listed pairs, under lower odds where more pairs are expected than there can be."""
    return found if found.common <= most else _with_common(ratios, most)


def _with_common(ratios: sparse.csr_array, common: float) -> Posterior:
    """Return the probabilities of listed pairs under the odds that give `common` pairs."""
    smaller = min(ratios.shape)
    wanted = min(common, smaller - 0.5)
    odds = prior_log_odds(ratios.shape, wanted)
    weights = ratios.copy()
    for _ in range(_SEARCHES):
        weights.data = ratios.data + odds
        pairs = marginals(weights)
        missing = wanted - float(pairs.sum())
        if abs(missing) < _NEAR_ENOUGH * smaller:
            break
        # A pair that is as likely as not gains most when the odds rise.
        gain = max(float((pairs.data * (1.0 - pairs.data)).sum()), _NEAR_ENOUGH * smaller)
        odds += float(np.clip(missing / gain, -_LONGEST_STEP, _LONGEST_STEP))
    return Posterior(pairs, float(pairs.sum()), odds)


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


def hardly_one_alone(chances: Posterior) -> bool:
    """Tell whether two tables have equally many rows, of which hardly one is expected to be without partner."""
    left, right = chances.pairs.shape
    return left == right and left - chances.common <= _may_be_alone(left)


def _may_be_alone(rows: int) -> float:
    """Return how many rows, at the most, may be expected to be without partner in tables that hold the same rows."""
    return max(_FEW_ALONE * rows, _ODD_ONES)


def _left_over_are_partners(ratios: NumpyArray, permutation: IntArray, whole: IntArray, chances: Posterior) -> bool:
    """Tell whether rows without match in tables of equal size are each other's partners, so that every row has one.

    They are if nearly all of them have their partner among the rows that are left over in the other table. Few rows are
    judged by first choices: if every row has a partner, most rows that seem to have none are the first choice of the
    row that is left for them, or have that row as theirs. The first choice of rows that indeed have no partner are rows
    with partners.

    Args:
        ratios: left × right rows, log-likelihood ratios.
        permutation: the matches that are likely enough to be stated, −1 for all other rows.
        whole: the matches where every row is given a partner.
        chances: the probabilities of pairs.
    """
    if ratios.shape[0] != ratios.shape[1]:
        return False
    if len(ratios) >= TELLING_ROWS:
        others = left_over(permutation, len(ratios))
        if not can_be_compared(*others[:3]):
            return False
        return len(others[0]) * (1.0 - share_left_over(ratios, *others)) <= _may_be_alone(len(ratios))
    rows = np.flatnonzero(whole >= 0)
    columns = whole[rows]
    seem_alone = (chances.alone(0)[rows] > _EVEN) | (chances.alone(1)[columns] > _EVEN)
    wanted = ((ratios.argmax(axis=1)[rows] == columns) | (ratios.argmax(axis=0)[columns] == rows))[seem_alone]
    return wanted.size > 0 and float(wanted.mean()) > _WANTED


def _possible(ratios: NumpyArray, permutation: IntArray | None = None) -> sparse.csr_array:
    """Return the pairs that are worth a look, as a sparse matrix of their log-likelihood ratios.

    Args:
        ratios: left × right rows; −∞ where a pair must not be.
        permutation: matches that are kept, however low their ratios; None: pairs with ratios far below 0 are not worth
            a look.
    """
    highest = [ratios.max(axis=axis, keepdims=True, initial=-np.inf) for axis in (1, 0)]
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


def sharpness(ratios: NumpyArray, permutation: IntArray) -> float:
    """Return the share of matched rows that are the first choice of their partner, averaged over both directions."""
    rows = np.flatnonzero(permutation >= 0)
    if not len(rows):
        return 0.0
    forth = ratios.argmax(axis=1)[rows] == permutation[rows]
    back = ratios.argmax(axis=0)[permutation[rows]] == rows
    return float(forth.mean() + back.mean()) / 2
