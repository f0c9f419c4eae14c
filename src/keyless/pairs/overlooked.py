"""Find partners that were overlooked: they fit worse than most partners, so that both rows seem to have none.

How well does a row without match fit the best of the rows of the other table that have no match either? A row with a
match has its partner elsewhere, so it fits the best of them by chance alone. So rows with match tell what chance does,
and where rows without match fit better than that, their partners are among these rows and were overlooked. No model
says how badly a partner may fit. But rows without match are taken to stand where other rows do: if two tables hold
different entities of one cluster, these seem to be partners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.isotonic import IsotonicRegression

from keyless.arrays import BoolArray, IntArray, NumpyArray
from keyless.pairs.posterior import FAR_BEHIND, largest, pair_places, with_data

__all__ = [
    "MOST_COMPARED",
    "Fits",
    "Overlooked",
    "can_be_compared",
    "left_over",
    "share_left_over",
    "with_left_over",
    "with_overlooked",
]

MOST_COMPARED = 2_000
"""The most rows with match, of either table, that tell what chance does: more rows would tell no more."""

_UPPER_HALF = 0.5
"""Level (see `Fits.levels`) above which all rows without match are taken to have no partner. Levels of rows without
partner are spread evenly from 0 to 1, so that as many of them are below this level as above it (Storey's estimate)."""

_LEAST_STATED = 2 / 3
"""Least probability of a pair that is stated as a match. Only the fit of other rows tells this probability, so more is
asked of such a pair than of other matches: of 259 such pairs of real tables four in five were right, of those from one
half on three in five (pairs of benchmarks/bench_real.py with other seeds than it reports)."""

_FEWEST_MATCHED = 30
"""Rows with match below which they do not tell what chance does: the estimated share of overlooked partners would have
a standard error of more than 0.18."""

_NEGLIGIBLE = 1e-6
"""Probability up to which a pair is left out: with some thousand rows, all pairs left out add up to less than 0.01 per
row."""

_SCALINGS = 50
"""How often rows and columns are scaled in turn to the sums that they are to have."""


@dataclass(frozen=True, eq=False)
class Fits:
    """How well rows fit the best unmatched row of the other table, in log-likelihood ratios; −∞ where none is possible.

    Attributes:
        unmatched: of the rows without match.
        matched: of rows with match.
    """

    unmatched: NumpyArray
    matched: NumpyArray

    @property
    def possible(self) -> BoolArray:
        """Which rows without match may have a partner among those of the other table."""
        return np.asarray(self.unmatched > -np.inf)

    @property
    def levels(self) -> NumpyArray:
        """Per row without match, the share of rows with match that fit as well; the row itself counts as one of them.

        Rows with match that may be matched to none of these rows, by what the caller knows, tell nothing about chance.
        """
        chance = np.sort(self.matched[self.matched > -np.inf])
        better = len(chance) - np.searchsorted(chance, self.unmatched, side="left")
        return np.asarray((1 + better) / (1 + len(chance)))

    @property
    def share(self) -> float:
        """Of the rows that may have a partner, the share whose partner was overlooked; by chance it may be below 0.

        Rows with a level in the upper half are taken to have no partner. One more such row is counted, so that few rows
        prove nothing.
        """
        alone = np.count_nonzero(self.levels[self.possible] > _UPPER_HALF) + 1
        return 1.0 - alone / (1 - _UPPER_HALF) / (np.count_nonzero(self.possible) + 1)

    @property
    def count(self) -> float:
        """How many partners were overlooked."""
        return self.share * np.count_nonzero(self.possible)

    @property
    def chances(self) -> NumpyArray:
        """How likely the partner of each row without match was overlooked: the better the row fits, the likelier.

        That is 1 − (density of levels of rows without partner) / (density of all levels), which falls as levels rise.
        """
        found = np.zeros(len(self.unmatched))
        levels, place, count = np.unique(self.levels[self.possible], return_inverse=True, return_counts=True)
        if not len(levels):
            return found
        width = np.diff(levels, prepend=0.0)
        falling = IsotonicRegression(increasing=False).fit_transform(levels, count / width, sample_weight=width)
        density = falling[place] / len(place)
        alone = min(1.0 - self.share, 1.0)
        found[self.possible] = np.clip(1.0 - alone / np.maximum(density, alone), 0.0, 1.0)
        return found


@dataclass(frozen=True, eq=False)
class Overlooked:
    """Rows of both tables that have no match, and how well they fit.

    Attributes:
        rows: left rows without match.
        columns: right rows without match.
        ratios: rows × columns, log-likelihood ratios: dense, −∞ where a pair must not be, or sparse.
        left: how well left rows fit the best of the columns.
        right: how well right rows fit the best of the rows.
    """

    rows: IntArray
    columns: IntArray
    ratios: Any
    left: Fits
    right: Fits

    @property
    def count(self) -> float:
        """How many partners were overlooked, the mean of what both tables tell."""
        told = (self.left.count + self.right.count) / 2
        return float(np.clip(told, 0.0, min(len(self.rows), len(self.columns))))

    @property
    def pairs(self) -> Any:
        """How likely each pair was overlooked: chances of rows and columns, divided among their pairs by the ratios."""
        count = self.count
        chances = [fits.chances for fits in (self.left, self.right)]
        sums = [np.minimum(each * count / max(each.sum(), np.finfo(float).tiny), 1.0) for each in chances]
        kernel = _exponentiated(self.ratios)
        turned = kernel.T.tocsr() if isinstance(kernel, sparse.csr_array) else kernel.T
        tiny, columns = np.finfo(float).tiny, np.ones(len(self.columns))
        for _ in range(_SCALINGS):
            rows = sums[0] / np.maximum(kernel @ columns, tiny)
            columns = sums[1] / np.maximum(turned @ rows, tiny)
        rows = np.minimum(rows, sums[0] / np.maximum(kernel @ columns, tiny))
        if isinstance(kernel, sparse.csr_array):
            places = pair_places(kernel)
            return with_data(kernel, kernel.data * rows[places[0]] * columns[places[1]])
        return kernel * rows[:, None] * columns


def can_be_compared(rows: IntArray, columns: IntArray, matched: IntArray) -> bool:
    """Tell whether both tables have rows without match, and enough rows with match to tell what chance does."""
    return bool(len(rows) and len(columns) and len(matched) >= _FEWEST_MATCHED)


def left_over(permutation: IntArray, size: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return left rows and right rows without match, then some left rows with match and their right rows.

    Args:
        permutation: the right row of each left row, −1 for none.
        size: how many right rows there are.
    """
    matched = np.flatnonzero(permutation >= 0)
    partners = permutation[matched]
    some = np.linspace(0, len(matched) - 1, min(len(matched), MOST_COMPARED)).astype(np.int64)
    return np.flatnonzero(permutation < 0), np.setdiff1d(np.arange(size), partners), matched[some], partners[some]


def with_left_over(permutation: IntArray, pairs: Any, ratios: NumpyArray) -> tuple[IntArray, Any]:
    """Return matches and probabilities of pairs, overlooked partners among them, where all pairs are known.

    Args:
        permutation: the right row of each left row, −1 for none.
        pairs: left × right rows, probabilities of pairs so far.
        ratios: left × right rows, log-likelihood ratios of all pairs; −∞ where a pair must not be.
    """
    rows, columns, matched, partners = left_over(permutation, ratios.shape[1])
    if not can_be_compared(rows, columns, matched):
        return permutation, pairs
    return with_overlooked(permutation, pairs, _compared(ratios, rows, columns, matched, partners))


def share_left_over(
    ratios: NumpyArray, rows: IntArray, columns: IntArray, matched: IntArray, partners: IntArray
) -> float:
    """Return the share of rows without match whose partners are among those of the other table, as mean of both tables.

    Args:
        ratios: left × right rows, log-likelihood ratios of all pairs; −∞ where a pair must not be.
        rows: left rows without match; these and the following rows are as `left_over` returns them.
        columns: right rows without match.
        matched: left rows with match.
        partners: right rows with match.
    """
    found = _compared(ratios, rows, columns, matched, partners)
    return float(np.mean([found.left.share, found.right.share]))


def _compared(
    ratios: NumpyArray, rows: IntArray, columns: IntArray, matched: IntArray, partners: IntArray
) -> Overlooked:
    block = ratios[np.ix_(rows, columns)]
    left = Fits(block.max(axis=1), ratios[np.ix_(matched, columns)].max(axis=1))
    right = Fits(block.max(axis=0), ratios[np.ix_(rows, partners)].max(axis=0))
    return Overlooked(rows, columns, block, left, right)


def with_overlooked(permutation: IntArray, pairs: Any, found: Overlooked) -> tuple[IntArray, Any]:
    """Return matches and probabilities of pairs, overlooked partners among them; as they were if none is expected.

    Args:
        permutation: the right row of each left row, −1 for none.
        pairs: left × right rows, probabilities of pairs so far: dense or sparse. If these expect at least as many pairs
            of rows without match as were overlooked, none is added.
        found: rows without match, and how well they fit each other.
    """
    listed = sparse.csr_array(pairs).tocoo()
    free = [np.zeros(size, dtype=bool) for size in listed.shape]
    free[0][found.rows], free[1][found.columns] = True, True
    among = free[0][listed.row] & free[1][listed.col]
    if found.count <= float(listed.data[among].sum()):
        return permutation, pairs
    kept = listed.data[~among], (listed.row[~among], listed.col[~among])
    old = sparse.csr_array(kept, shape=listed.shape)
    block = _listed(found.pairs)
    rows, columns = found.rows[block.row], found.columns[block.col]
    # The probabilities of pairs with a matched row stay; only what they leave of each row is shared out.
    room = [np.clip(1.0 - np.asarray(old.sum(axis=axis)).ravel(), 0.0, 1.0) for axis in (1, 0)]
    data = block.data
    for index, free_share in ((rows, room[0]), (columns, room[1])):
        total = np.bincount(index, data, len(free_share))
        data = data * np.minimum(1.0, free_share / np.maximum(total, np.finfo(float).tiny))[index]
    both = sparse.csr_array(old + sparse.csr_array((data, (rows, columns)), shape=listed.shape))
    # A row may have its partner among these rows and fit none of them: its probabilities say so, but it is not matched.
    likely = (data > _LEAST_STATED) & (_values_at(found.ratios, block) > -FAR_BEHIND)
    matches = permutation.copy()
    matches[rows[likely]] = columns[likely]
    return matches, both if sparse.issparse(pairs) else both.toarray()


def _listed(pairs: Any) -> sparse.coo_array:
    """Return the pairs that are not negligible."""
    if isinstance(pairs, sparse.csr_array):
        return pairs.tocoo()
    rows, columns = np.nonzero(pairs > _NEGLIGIBLE)
    return sparse.coo_array((pairs[rows, columns], (rows, columns)), shape=pairs.shape)


def _values_at(ratios: Any, block: sparse.coo_array) -> NumpyArray:
    """Return the ratios of listed pairs; listed ratios have the same pairs in the same order."""
    return np.asarray(ratios.data if isinstance(ratios, sparse.csr_array) else ratios[block.row, block.col])


def _exponentiated(ratios: Any) -> Any:
    """Return the exponentials of ratios, the highest of each row 1."""
    if isinstance(ratios, sparse.csr_array):
        places = pair_places(ratios)
        highest = largest(places[0], ratios.data, ratios.shape[0])
        return with_data(ratios, np.exp(ratios.data - highest[places[0]]))
    highest = ratios.max(axis=1, keepdims=True)
    return np.exp(ratios.astype(np.float64) - np.where(np.isfinite(highest), highest, 0.0))
