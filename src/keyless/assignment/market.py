"""Rows that compete for columns by prices: the state of a matching, and three ways to improve it."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray, IntArray, NumpyArray
from keyless.assignment.chains import Chains
from keyless.progress import Deadline

__all__ = ["Market"]


# So many pairs are looked at in one go: enough to make the cost of a call small, few enough to stay in the cache.
_BLOCK = 1 << 19
# A round of the auction that settles a smaller part of the rows costs more than to place them one by one.
_WORTH = 0.05
# Beside an equally good free column, one that is taken is worth less by this part of the gain: a row that was outbid
# is left with two columns that are equally good but for rounding, and should try the one it has not lost.
_RELUCTANCE = 2.0**-50


class Market:
    """Who has which column, and what the columns cost.

    Between calls, as long as no auction had a step: prices are 0 or more; a column that costs more than 0 is taken;
    a row that has a column gains there, after the price, as much as anywhere else, and at least 0. When every row
    without a column would gain 0 anywhere, too, then the prices prove that the matching is the best.

    Args:
        candidates: positive gains of the pairs that may be made, each pair once.
    """

    def __init__(self, candidates: sparse.csr_array) -> None:
        n_rows, n_columns = candidates.shape
        self._indptr: NumpyArray = candidates.indptr
        self._columns: NumpyArray = candidates.indices
        self._gains: NumpyArray = candidates.data
        self._prices: FloatArray = np.zeros(n_columns)
        self._owners: IntArray = np.full(n_columns, -1, dtype=np.int64)
        # The place of a row's pair among the stored ones tells both its column and its gain.
        self._pairs: IntArray = np.full(n_rows, -1, dtype=np.int64)

    def permutation(self) -> IntArray:
        """Return for each row its column, or −1."""
        permutation: IntArray = np.full(self._pairs.size, -1, dtype=np.int64)
        matched = self._pairs >= 0
        permutation[matched] = self._columns[self._pairs[matched]]
        return permutation

    def gain(self) -> float:
        """Add up the gains of the pairs made."""
        return float(self._gains[self._pairs[self._pairs >= 0]].sum(dtype=np.float64))

    def bound(self) -> float:
        """Return what no matching exceeds: Σ prices + Σ_i max(0, what row i would gain at these prices)."""
        best = self.offers(np.flatnonzero(np.diff(self._indptr)), reluctance=0.0)[1]
        return float(self._prices.sum() + np.maximum(best, 0.0).sum())

    def offers(self, rows: IntArray, *, reluctance: float = _RELUCTANCE) -> tuple[IntArray, FloatArray, FloatArray]:
        """Find for each row, all of which have candidates, the pair that gains most after the price.

        Args:
            rows: their numbers.
            reluctance: a pair whose column is taken counts as if it gained less by this part.

        Returns:
            Its place among the stored pairs, what it gains, and what the next best does, to be alone included.
        """
        places: IntArray = np.empty(rows.size, dtype=np.int64)
        best, second = np.empty((2, rows.size))
        counts = (self._indptr[rows + 1] - self._indptr[rows]).astype(np.int64)
        ends = np.cumsum(counts)
        first = 0
        while first < rows.size:
            passed = int(ends[first - 1]) if first else 0
            block = slice(first, max(first + 1, int(np.searchsorted(ends, passed + _BLOCK, side="right"))))
            first = block.stop
            starts = ends[block] - counts[block] - passed
            place = np.repeat(self._indptr[rows[block]] - starts, counts[block])
            place += np.arange(place.size)
            columns, values = self._columns[place], self._gains[place].astype(np.float64)
            if reluctance:
                values -= np.where(self._owners[columns] >= 0, reluctance * values, 0.0)
            values -= self._prices[columns]
            best[block] = np.maximum.reduceat(values, starts)
            hits = np.flatnonzero(values == np.repeat(best[block], counts[block]))
            hits = hits[np.searchsorted(hits, starts)]
            places[block] = place[hits]
            values[hits] = 0.0
            second[block] = np.maximum(np.maximum.reduceat(values, starts), 0.0)
        return places, best, second

    def auction(self, rows: IntArray, deadline: Deadline, *, step: float = 0.0, bids: float = np.inf) -> IntArray:
        """Let all rows bid at once for the column they like best, round by round; at least one round.

        The highest bidder gets the column at the price of the second highest, its owner bidding, too. A bid is the
        price at which the next best column is as good, plus `step`. Without a step nothing is lost, but rows that
        fight for too few columns stop raising prices: then the rounds end. With a step each row ends at most so much
        below what it would gain elsewhere. After so many `bids`, or when time is over, the rounds end as well.

        Returns:
            The rows that lost and would still gain somewhere.
        """
        while rows.size:
            before = rows.size
            bids -= rows.size
            rows = self._bid(rows, step)
            if deadline.passed or bids <= 0 or (not step and rows.size > (1 - _WORTH) * before):
                break
        return rows

    def _bid(self, rows: IntArray, step: float) -> IntArray:
        places, best, second = self.offers(rows)
        eager = best > 0
        rows, places, best, second = rows[eager], places[eager], best[eager], second[eager]
        columns = self._columns[places]
        bids = self._prices[columns] + (best - second) + step
        owners = self._owners[columns]
        owners = np.unique(owners[owners >= 0])
        if owners.size:
            own = self._pairs[owners]
            liked, liked_best, liked_second = self.offers(owners)
            elsewhere = np.maximum(np.where(liked == own, liked_second, liked_best), 0.0)
            rows, places = np.concatenate([rows, owners]), np.concatenate([places, own])
            bids = np.concatenate([bids, self._gains[own] - elsewhere + step])
            columns = self._columns[places]
        order = np.lexsort((bids, columns))
        rows, places, columns, bids = rows[order], places[order], columns[order], bids[order]
        wins = np.ones(rows.size, dtype=np.bool_)
        wins[:-1] = columns[1:] != columns[:-1]
        # The bid before the winner's is the second highest for the same column, unless it won a column itself.
        contested = np.flatnonzero(wins[1:] & ~wins[:-1]) if rows.size else np.empty(0, dtype=np.int64)
        sold = columns[contested]
        self._prices[sold] = np.maximum(self._prices[sold], bids[contested])
        self._pairs[rows[~wins]] = -1
        self._pairs[rows[wins]] = places[wins]
        self._owners[columns[wins]] = rows[wins]
        return rows[~wins]

    def place(self, rows: IntArray, deadline: Deadline, *, steps: float = np.inf) -> IntArray:
        """Place rows without a column one after the other, each by the chain of moves that loses least.

        Returns:
            The rows not placed before the deadline, or before the searches passed so many columns.
        """
        chains = Chains(
            indptr=self._indptr,
            columns=self._columns,
            gains=self._gains,
            prices=self._prices,
            owners=self._owners,
            pairs=self._pairs,
            steps=steps,
        )
        for number, row in enumerate(rows.tolist()):
            if deadline.passed or not chains.place(row, deadline):
                return rows[number:]
        return rows[:0]

    def fill(self) -> None:
        """Make pairs of rows and columns that are still alone, best first; prices stay as they are."""
        alone, counts = self._pairs < 0, np.diff(self._indptr)
        rows = np.repeat(np.flatnonzero(alone), counts[alone])
        places = np.flatnonzero(np.repeat(alone, counts))
        free = self._owners[self._columns[places]] < 0
        rows, places = rows[free], places[free]
        order = np.argsort(-self._gains[places], kind="stable")
        rows, places = rows[order], places[order]
        while rows.size:
            columns = self._columns[places]
            # Pairs that come first both in their row and in their column; the very first pair always does.
            firsts = np.zeros((2, rows.size), dtype=np.bool_)
            firsts[0, np.unique(rows, return_index=True)[1]] = True
            firsts[1, np.unique(columns, return_index=True)[1]] = True
            made = firsts.all(axis=0)
            self._pairs[rows[made]] = places[made]
            self._owners[columns[made]] = rows[made]
            free = (self._pairs[rows] < 0) & (self._owners[columns] < 0)
            rows, places = rows[free], places[free]
