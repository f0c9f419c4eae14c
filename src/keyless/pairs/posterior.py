"""How likely each pair of rows is one entity, given the log-likelihood ratios of all pairs that are possible.

Rows are matched one to one. The weight of a matching is the product of the odds of its pairs; a row may also be without
partner. The probabilities of all pairs of a row, and of its being alone, add up to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from keyless.arrays import IntArray, NumpyArray
from keyless.progress import check_time
from keyless.sizes import TELLING_ROWS

__all__ = [
    "FAR_BEHIND",
    "FIRST_SHARE",
    "GAMMA_IN_GROUPS",
    "LEAST_STATED",
    "Posterior",
    "best_other",
    "largest",
    "less_crowding",
    "less_per_row",
    "log_sums",
    "log_sums_with_rest",
    "marginals",
    "pair_places",
    "posterior",
    "prior_log_odds",
    "propagated",
    "scaled",
    "with_data",
]

GAMMA = 0.85
"""The exponent γ of `marginals`: with this value stated and true frequencies were seen to agree on simulated tables of
many kinds."""

GAMMA_IN_GROUPS = 0.75
"""The exponent γ where rows match inside small groups, in which rivals often exchange their partners."""

_UNDAMPED = 5
"""Steps after which changes are halved: without that, steps jump to and fro where rivals are about equally likely."""

LEAST_STATED = 0.5
"""Least probability of a match that is stated where rows may have no partner."""

FAR_BEHIND = 12.0
"""Nats from which a pair counts as impossible: so far behind the best pairs of its row and of its column, or so far
below a ratio of 0."""

FIRST_SHARE = 0.9
"""Share of the rows of the smaller table that are taken to have a partner before anything is known."""

_SETTLED_SHARE = 1e-3
"""Change of the share of rows with a partner below which its estimate is settled."""

_SUREST = 60.0
"""The largest log-likelihood ratio that a row may have, in nats: rows with a larger one are lowered to it, so that
single precision is enough."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """The probabilities of pairs.

    Attributes:
        pairs: left × right rows, the probability that a pair is one entity; pairs that are not stored have none.
        common: how many pairs there are expected to be.
        odds: prior log-odds of a pair against both rows being without partner; ∞ where every row that can have a
            partner has one.
    """

    pairs: sparse.csr_array
    common: float
    odds: float

    def alone(self, axis: int = 0) -> NumpyArray:
        """Return how likely each left row (axis 0) or right row (axis 1) is to have no partner."""
        return np.asarray(np.clip(1.0 - np.asarray(self.pairs.sum(axis=1 - axis)).ravel(), 0.0, 1.0))

    def answers(self, permutation: IntArray) -> NumpyArray:
        """Return how likely each left row's match is, or its having no partner where it has no match (−1)."""
        partner = np.asarray(self.pairs[np.arange(len(permutation)), np.maximum(permutation, 0)]).ravel()
        return np.asarray(np.clip(np.where(permutation >= 0, partner, self.alone()), 0.0, 1.0))


def prior_log_odds(shape: tuple[int, ...], common: float) -> float:
    """Return the prior log-odds of a pair against two rows without partner: log common/(left alone · right alone).

    Args:
        shape: number of left rows and of right rows.
        common: how many of them are thought to have a partner.
    """
    left, right = (max(size - common, 0.5) for size in shape)
    return float(np.log(max(common, 0.5)) - np.log(left) - np.log(right))


def posterior(
    ratios: sparse.csr_array, *, every_row: bool = False, common: float | None = None, gamma: float = GAMMA
) -> Posterior:
    """Return the probabilities of listed pairs; all others are impossible.

    Args:
        ratios: left × right rows, the log-likelihood ratio of each pair that is possible.
        every_row: whether every row of the smaller table has a partner.
        common: how many rows have one, where that is known; None: it is estimated.
        gamma: see `marginals`.

    Example:
        >>> found = posterior(sparse.csr_array([[9.0, 0.5], [0.5, 9.0]]), every_row=True)
        >>> found.pairs.toarray().round(2)
        array([[1., 0.],
               [0., 1.]])
    """
    smaller = min(ratios.shape)
    if every_row:
        weights = with_data(ratios, ratios.data.astype(np.float64))
        sides = tuple(size > smaller for size in ratios.shape)
        pairs = marginals(weights, alone=(sides[0], sides[1]), gamma=gamma)
        return Posterior(pairs, float(pairs.sum()), np.inf)
    known, common = common is not None, FIRST_SHARE * smaller if common is None else common
    for _ in range(20):
        odds = prior_log_odds(ratios.shape, common)
        weights = with_data(ratios, ratios.data + odds)
        if known:
            break
        # The number of pairs settles long before the probability of each pair does.
        before, common = common, float(marginals(weights, max_iter=10, gamma=gamma).sum())
        if abs(common - before) < _SETTLED_SHARE * smaller:
            break
    pairs = marginals(weights, gamma=gamma)
    return Posterior(pairs, float(pairs.sum()), odds)


def scaled(
    ratios: Any, common: float, *, fixed: bool = False, max_iter: int = 200, tolerance: float = 0.02
) -> tuple[Any, float]:
    """Return rough probabilities of pairs, and how many there are expected to be; quicker than `posterior`.

    They are `marginals` with γ = 0, which leaves matches less sure than they are.

    Args:
        ratios: left × right rows, log-likelihood ratios: dense, −∞ where a pair is impossible, or sparse.
        common: how many pairs there are thought to be.
        fixed: whether there are exactly so many, whatever the ratios say; never more than the smaller table has rows.
        max_iter: stop after so many scalings.
        tolerance: stop when no scaling changes by more than this, in logs.
    """
    listed = isinstance(ratios, sparse.csr_array)
    highest = _row_maxima(ratios)
    # Lowering all pairs of a row leaves their order, and a row this sure of its partner stays sure.
    top = np.clip(highest, 0.0, _SUREST)
    if listed:
        kernel: Any = ratios.astype(np.float32)
        # Places of the kernel, not of the ratios: conversion may have sorted the pairs of a row.
        places = pair_places(kernel)
        kernel.data = np.exp(kernel.data - highest[places[0]].astype(np.float32))
    else:
        kernel = np.exp(ratios - np.where(np.isfinite(highest), highest, 0.0).astype(ratios.dtype)[:, None])
    transposed = kernel.T.tocsr() if listed else kernel.T
    lift = np.exp(np.where(highest < 0, highest, top))
    smaller = min(kernel.shape)
    common = min(common, smaller - 0.25)
    odds = np.exp(prior_log_odds(kernel.shape, common))
    rows = 1.0 / np.sqrt(1.0 + odds * lift)
    columns = 1.0 / np.sqrt(1.0 + odds * _scaled_column_maxima(kernel, lift))
    for _ in range(max_iter):
        check_time()
        # The square roots damp the scalings, which otherwise converge slowly.
        rows = np.sqrt(rows / (1.0 + odds * lift * (kernel @ columns.astype(np.float32))))
        fresh = np.sqrt(columns / (1.0 + odds * (transposed @ (lift * rows).astype(np.float32))))
        moved = float(np.abs(np.log(fresh / columns)).max(initial=0.0))
        columns = fresh
        if moved < tolerance:
            if fixed:
                break
            # Only settled scalings say how many pairs there are.
            before = common
            found = float((odds * lift * rows) @ (kernel @ columns.astype(np.float32)))
            common = float(np.clip(found, 1.0, smaller - 0.25))
            if abs(common - before) < _SETTLED_SHARE * smaller:
                break
            odds = np.exp(prior_log_odds(kernel.shape, common))
    rows = odds * lift * rows
    if listed:
        kernel.data *= rows[places[0]] * columns[places[1]]
        kernel.data /= np.maximum(np.asarray(kernel.sum(axis=1)).ravel(), 1.0)[places[0]]
        kernel.data /= np.maximum(np.asarray(kernel.sum(axis=0)).ravel(), 1.0)[places[1]]
    else:
        kernel *= rows[:, None].astype(kernel.dtype)
        kernel *= columns.astype(kernel.dtype)
        kernel /= np.maximum(kernel.sum(axis=1), 1.0)[:, None]
        kernel /= np.maximum(kernel.sum(axis=0), 1.0)
    return kernel, float(kernel.sum(dtype=np.float64))


def less_crowding(ratios: Any) -> Any:
    """Return log-likelihood ratios as they would be if rows did not come in crowds.

    A ratio compares the density of rows beside the row's partner with that of all rows, for which the model takes a
    normal distribution. Where rows come in clusters, a row without partner has many rows near it, and fits each of them
    better than that distribution would have it: it would seem to have a partner. The other rows tell how much too dense
    its place is: the mean of their exponentiated ratios, without the best of them, which may be its partner, is 1 if
    the distribution is right. Where the mean is more, half of its logarithm is subtracted for each of the two rows of a
    pair, since the density of either row could be used alone. Tables of few rows are left as they are.

    Args:
        ratios: left × right rows: dense, −∞ where a pair is impossible, or sparse.
    """
    if min(ratios.shape) < TELLING_ROWS:
        return ratios
    if isinstance(ratios, sparse.csr_array):
        places = pair_places(ratios)
        rows, columns = (
            _crowd(line, ratios.data, size, others)
            for line, size, others in zip(places, ratios.shape, reversed(ratios.shape), strict=True)
        )
    else:
        rows, columns = _dense_crowd(ratios), _dense_crowd(ratios.T)
    return less_per_row(ratios, rows, columns)


def less_per_row(ratios: Any, rows: NumpyArray, columns: NumpyArray) -> Any:
    """Return log-likelihood ratios less a number for each left row and a number for each right row.

    Args:
        ratios: left × right rows: dense, or sparse.
        rows: per left row, what is taken off.
        columns: per right row, what is taken off.
    """
    if isinstance(ratios, sparse.csr_array):
        places = pair_places(ratios)
        return with_data(ratios, ratios.data - rows[places[0]] - columns[places[1]])
    return ratios - rows[:, None].astype(ratios.dtype) - columns.astype(ratios.dtype)


def _dense_crowd(ratios: NumpyArray) -> NumpyArray:
    """Return half the log of the mean of a row's exponentiated ratios without the highest one, at least 0."""
    first, place = np.arange(len(ratios)), ratios.argmax(axis=1)
    highest = np.maximum(ratios[first, place], _ALMOST_NOTHING).astype(ratios.dtype)
    weights = np.exp(ratios - highest[:, None])
    weights[first, place] = 0.0
    return _half_log_mean(weights.sum(axis=1, dtype=np.float64), highest, ratios.shape[1]).astype(ratios.dtype)


def _crowd(line: IntArray, ratios: NumpyArray, size: int, others: int) -> NumpyArray:
    """Return the same for lines (rows or columns) of listed ratios; pairs that are not listed count 0."""
    highest = largest(line, ratios, size)
    weights = np.exp(ratios - highest[line])
    best = np.flatnonzero(weights == 1.0)
    weights[best[np.unique(line[best], return_index=True)[1]]] = 0.0
    return _half_log_mean(np.bincount(line, weights, size), highest, others)


def _half_log_mean(sums: NumpyArray, highest: NumpyArray, others: int) -> NumpyArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(sums) + highest - np.log(max(others - 1, 1))
    return np.asarray(0.5 * np.maximum(np.where(sums > 0, found, 0.0), 0.0))


def _row_maxima(ratios: Any) -> NumpyArray:
    """Return the largest log-likelihood ratio of each row, −∞ where a row has no pair."""
    if isinstance(ratios, sparse.csr_array):
        return largest(pair_places(ratios)[0], ratios.data, ratios.shape[0])
    return np.asarray(ratios.max(axis=1, initial=-np.inf), dtype=np.float64)


def _scaled_column_maxima(kernel: Any, lift: NumpyArray) -> NumpyArray:
    """Return the largest entry of each column of a kernel whose rows are multiplied by `lift`."""
    if isinstance(kernel, sparse.csr_array):
        rows, columns = pair_places(kernel)
        return np.maximum(largest(columns, kernel.data * lift[rows], kernel.shape[1]), 0.0)
    return np.asarray((kernel * lift[:, None].astype(kernel.dtype)).max(axis=0, initial=0.0), dtype=np.float64)


def marginals(
    weights: sparse.csr_array,
    *,
    alone: tuple[bool, bool] = (True, True),
    max_iter: int = 100,
    tolerance: float = 0.01,
    gamma: float = GAMMA,
) -> sparse.csr_array:
    """Return how likely each listed pair is among all one-to-one matchings, weighed by the product of their odds.

    The result is approximate: with scalings such that each row and each column sums to one, being alone included, the
    probabilities solve

        p · (1 − p)^γ = row scaling · exp(weight) · column scaling.

    γ = 0 leaves matches less sure than they are; γ = 1 is belief propagation, exact where pairs form no cycles but too
    sure where two rows may swap their partners, for which γ = ½ is exact.

    Args:
        weights: log-odds of each listed pair against both rows being alone; all other pairs are impossible.
        alone: whether left rows, and right rows, may be alone. A row without any pair is alone in any case.
        max_iter: stop after so many steps.
        tolerance: stop when no log-odds change by more than this.
        gamma: between 0 and 1, see above.

    Example:
        >>> marginals(sparse.csr_array([[np.log(3.0)]])).toarray().round(3)
        array([[0.75]])
    """
    lines = pair_places(weights)
    # A pair without any rival is as likely as its odds say; most pairs of clearly linked tables are such pairs.
    logs = weights.data.astype(np.float64)
    found = with_data(weights, expit(logs) if all(alone) else np.ones(len(logs)))
    rivals = [np.bincount(line, minlength=size)[line] > 1 for line, size in zip(lines, weights.shape, strict=True)]
    contested = np.flatnonzero(rivals[0] | rivals[1])
    if len(contested):
        among = [np.unique(line[contested], return_inverse=True) for line in lines]
        found.data[contested] = propagated(
            (among[0][1], among[1][1]),
            logs[contested],
            tuple(len(labels) for labels, _ in among),
            alone=alone,
            max_iter=max_iter,
            tolerance=tolerance,
            gamma=gamma,
        )
    # Scalings that have not settled yet can leave a sum a little above one.
    found.data /= np.maximum(1.0, np.asarray(found.sum(axis=0)).ravel())[lines[1]]
    return found


def propagated(
    lines: tuple[IntArray, IntArray],
    weight: NumpyArray,
    sizes: tuple[int, ...],
    *,
    alone: tuple[bool, bool] = (True, True),
    max_iter: int,
    tolerance: float,
    gamma: float = GAMMA,
) -> NumpyArray:
    """Return the probabilities of pairs by messages between rows and columns; the loop of `marginals`.

    Args:
        lines: row and column of each pair.
        weight: log-odds of each pair.
        sizes: how many rows and how many columns there are.
        alone: as for `marginals`.
        max_iter: stop after so many steps.
        tolerance: stop when no log-odds change by more than this.
        gamma: as for `marginals`.
    """
    if not len(weight):
        return weight
    rows, columns = lines
    from_columns = np.zeros(len(weight))
    for step in range(max_iter):
        check_time()
        total, others = log_sums_with_rest(rows, weight + from_columns, sizes[0], alone=alone[0])
        from_rows = -(1 - gamma) * total - gamma * others
        total, others = log_sums_with_rest(columns, weight + from_rows, sizes[1], alone=alone[1])
        fresh = -(1 - gamma) * total - gamma * others
        moved = float(np.abs(fresh - from_columns).max())
        from_columns = fresh if step < _UNDAMPED else 0.5 * (from_columns + fresh)
        if moved < tolerance:
            break
    total, _ = log_sums_with_rest(rows, weight + from_columns, sizes[0], alone=alone[0])
    return np.asarray(np.exp(weight + from_columns - total))


def pair_places(pairs: sparse.csr_array) -> tuple[IntArray, IntArray]:
    """Return row and column of each stored pair, in the order of its data."""
    return np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr)), pairs.indices.astype(np.int64, copy=False)


def with_data(pairs: sparse.csr_array, data: NumpyArray) -> sparse.csr_array:
    """Return the same pairs with other numbers; where they are stored is not copied."""
    return sparse.csr_array((data, pairs.indices, pairs.indptr), shape=pairs.shape)


def largest(line: IntArray, values: NumpyArray, size: int) -> NumpyArray:
    """Return the largest value of each of `size` lines, −∞ for a line that has none.

    Args:
        line: the line of each value.
        values: the values.
        size: how many lines there are.
    """
    found = np.full(size, -np.inf)
    np.maximum.at(found, line, values)
    return found


def best_other(pairs: Any, permutation: IntArray, *, of_columns: bool = False) -> NumpyArray:
    """Return the largest value of each row, or of each column, among pairs that are no match; −∞ where there is none.

    Args:
        pairs: rows × columns, dense or sparse.
        permutation: the column that each row is matched to, −1 for none.
        of_columns: whether each column is asked, rather than each row.
    """
    if isinstance(pairs, sparse.csr_array):
        rows, columns = pair_places(pairs)
        other = permutation[rows] != columns
        line = columns if of_columns else rows
        return largest(line[other], pairs.data[other], pairs.shape[int(of_columns)])
    matched = np.flatnonzero(permutation >= 0)
    others = pairs.copy()
    others[matched, permutation[matched]] = -np.inf
    return np.asarray(others.max(axis=0 if of_columns else 1, initial=-np.inf))


def log_sums(line: IntArray, logs: NumpyArray, size: int) -> NumpyArray:
    """Return the log of the sum of exponentials of each of `size` lines, −∞ for a line that has none.

    Args:
        line: the line of each value.
        logs: the values.
        size: how many lines there are.
    """
    highest = largest(line, logs, size)
    sums = np.bincount(line, np.exp(logs - highest[line]), size)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(sums) + highest)


_ALMOST_NOTHING = -700.0
"""Log-weight of having no alternative at all, finite so that differences stay numbers."""


def log_sums_with_rest(line: IntArray, logs: NumpyArray, size: int, *, alone: bool) -> tuple[NumpyArray, NumpyArray]:
    """Return, for each entry, the log of the sum of exponentials over its line, and the same without the entry itself.

    Being alone counts 1 in the sum where it is possible.
    """
    least = 0.0 if alone else _ALMOST_NOTHING
    highest = np.maximum(largest(line, logs, size), least)
    own = np.exp(logs - highest[line])
    none = np.exp(least - highest)
    total = np.bincount(line, own, size) + none
    # If an entry is most of its line's sum, the sum less the entry would be little but rounding errors: such lines are
    # summed anew.
    most = own > 0.5 * total[line]
    others = np.bincount(line, np.where(most, 0.0, own), size) + none
    rest = np.where(most, others[line], total[line] - own)
    with np.errstate(divide="ignore"):
        return (highest + np.log(total))[line], np.maximum(highest[line] + np.log(rest), least)
