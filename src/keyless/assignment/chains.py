"""One row more, by the chain of moves that loses least."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from keyless.arrays import FloatArray, IntArray, NumpyArray
from keyless.progress import Deadline

__all__ = ["Chains"]

# After so many columns of one search, look at the clock and the steps.
_PATIENCE = 1024
# The candidates of a row that has more of them are sifted all at once.
_FEW = 32


class _Chain(NamedTuple):
    """What a search found: a chain that loses `loss` and ends at a free column, or, where that is −1, with a row alone.

    `distances` says what is lost up to a column, `reached_by` from which row and by which of its candidates, and
    `passed` which columns are nearer than the end of the chain.
    """

    loss: float
    column: int
    alone: int
    distances: dict[int, float]
    reached_by: dict[int, tuple[int, int]]
    passed: list[int]


class Chains:
    """Places single rows in a market whose prices prove that the matching of all other rows is the best.

    A row takes a column, whose owner moves on, and so forth, until a column is free or a row stays alone. The chain
    is found by Dijkstra's search over what rows lose by moving, after prices; then prices rise by what the columns
    passed were short of, so that they prove the new matching, too.

    Args:
        indptr: where the candidates of each row begin, as in a csr_array.
        columns: the column of each candidate.
        gains: the gain of each candidate.
        prices: of the columns; changed in place, as are the next two.
        owners: the row that has the column, or −1.
        pairs: the candidate that each row has, or −1.
        steps: how many columns all searches together may pass, to within 1,024.
    """

    def __init__(
        self,
        *,
        indptr: NumpyArray,
        columns: NumpyArray,
        gains: NumpyArray,
        prices: FloatArray,
        owners: IntArray,
        pairs: IntArray,
        steps: float = np.inf,
    ) -> None:
        self._steps = steps
        # Single numbers come out of a memoryview faster than out of an array, and go into it, too.
        self._arrays = (columns, gains, prices)
        self._indptr: Any = indptr.data
        self._columns: Any = columns.data
        self._gains: Any = gains.data
        self._prices: Any = prices.data
        self._owners: Any = owners.data
        self._pairs: Any = pairs.data

    def place(self, row: int, deadline: Deadline) -> bool:
        """Place a row that has no column; return False, with nothing changed, when time or steps are used up."""
        chain = self._search(row, deadline) if self._steps > 0 else None
        if chain is None:
            return False
        self._steps -= len(chain.passed)
        prices, pairs = self._prices, self._pairs
        for column in chain.passed:
            prices[column] += chain.loss - chain.distances[column]
        if chain.alone == row:
            return True
        column = chain.column
        if chain.alone >= 0:
            column = self._columns[pairs[chain.alone]]
            pairs[chain.alone] = -1
        mover = -1
        while mover != row:
            mover, place = chain.reached_by[column]
            self._owners[column] = mover
            left, pairs[mover] = pairs[mover], place
            column = self._columns[left]
        return True

    def _search(self, row: int, deadline: Deadline) -> _Chain | None:
        indptr, columns, gains = self._indptr, self._columns, self._gains
        prices, owners, pairs = self._prices, self._owners, self._pairs
        candidates = range(indptr[row], indptr[row + 1])
        worth = max(0.0, *(gains[place] - prices[columns[place]] for place in candidates))
        loss, end, alone = worth, -1, row
        distances: dict[int, float] = {}
        reached_by: dict[int, tuple[int, int]] = {}
        queue: list[tuple[float, int, int]] = []
        passed: list[int] = []
        lost, ticket = 0.0, 0
        while True:
            for place in self._nearer(indptr[row], indptr[row + 1], loss - lost - worth):
                column = columns[place]
                less = worth + prices[column] - gains[place]  # below 0 by rounding only
                distance = lost + less if less > 0 else lost
                if distance < loss and distance < distances.get(column, loss):
                    distances[column] = distance
                    reached_by[column] = (row, place)
                    if owners[column] < 0:
                        loss, end, alone = distance, column, -1
                    else:
                        # Of equals the last one first: deep chains find free columns sooner than wide searches.
                        ticket -= 1
                        heapq.heappush(queue, (distance, ticket, column))
            while queue and queue[0][0] > distances[queue[0][2]]:
                heapq.heappop(queue)
            if not queue or queue[0][0] >= loss:
                return _Chain(loss, end, alone, distances, reached_by, passed)
            lost, _, column = heapq.heappop(queue)
            passed.append(column)
            if len(passed) % _PATIENCE == 0 and (deadline.passed or len(passed) >= self._steps):
                return None
            row = owners[column]
            worth = max(gains[pairs[row]] - prices[column], 0.0)
            if lost + worth < loss:
                loss, end, alone = lost + worth, -1, row

    def _nearer(self, start: int, stop: int, limit: float) -> Iterable[int]:
        """Leave out, where that is quicker than to look at each, the candidates that lose as much as the limit."""
        if stop - start <= _FEW:
            return range(start, stop)
        columns, gains, prices = self._arrays
        nearer: list[int] = (start + np.flatnonzero(prices[columns[start:stop]] - gains[start:stop] <= limit)).tolist()
        return nearer
