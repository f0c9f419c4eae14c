"""Pairs of rows that are looked at while a map is sought: all of them, or listed ones.

Both kinds hold one number per pair, a log-likelihood ratio and then its exponential, and are used alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from keyless.arrays import batches

__all__ = ["AllPairs", "Kernel", "ListedPairs"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_LARGEST_EXPONENT = 30.0
"""Exponents are cut here: sums of exponentials, scaled, stay finite in single precision."""

_FORBIDDEN = -1e6
"""Stands for minus infinity; its exponential is 0."""

_PAIRS_AT_A_TIME = 200_000
"""Listed pairs whose factors are gathered together, to stay in little memory."""


class Kernel(Protocol):
    """One number per pair of some left rows and all right rows."""

    def fill(self, left: FloatArray, right: FloatArray) -> None:
        """Set every pair to the inner product of its rows."""

    def row_maxima(self) -> FloatArray:
        """Return the largest number of each row; very small where a row has no pair."""

    def column_maxima(self) -> FloatArray:
        """Return the largest number of each column; very small where a column has no pair."""

    def shift(self, rows: FloatArray, columns: FloatArray) -> None:
        """Add a number to every row and to every column."""

    def exponentiate(self) -> None:
        """Replace every number by its exponential; forbidden pairs become 0."""

    def times(self, columns: FloatArray) -> FloatArray:
        """Return kernel · columns, for one vector or several side by side."""

    def transposed_times(self, rows: FloatArray) -> FloatArray:
        """Return rows · kernel."""

    def best(self, columns: FloatArray) -> IntArray:
        """Return, per row, the column of the largest number times `columns`; −1 where a row has no pair."""

    def coupling(self, rows: FloatArray, columns: FloatArray) -> Any:
        """Return the kernel with its rows and columns scaled, dense or sparse."""


class AllPairs:
    """Every pair of rows, in one dense block.

    Args:
        shape: left and right rows.
        allowed: which pairs may be matched; None: all.
    """

    def __init__(self, shape: tuple[int, int], allowed: BoolArray | None = None) -> None:
        self.values = np.empty(shape, dtype=np.float32)
        self.forbidden = None if allowed is None else ~allowed

    def fill(self, left: FloatArray, right: FloatArray) -> None:
        """Set every pair to the inner product of its rows."""
        np.matmul(left, right.T, out=self.values)
        if self.forbidden is not None:
            np.copyto(self.values, _FORBIDDEN, where=self.forbidden)

    def row_maxima(self) -> FloatArray:
        """Return the largest number of each row."""
        return np.asarray(self.values.max(axis=1, initial=_FORBIDDEN))

    def column_maxima(self) -> FloatArray:
        """Return the largest number of each column."""
        return np.asarray(self.values.max(axis=0, initial=_FORBIDDEN))

    def shift(self, rows: FloatArray, columns: FloatArray) -> None:
        """Add a number to every row and to every column."""
        self.values += rows[:, None]
        self.values += columns

    def exponentiate(self) -> None:
        """Replace every number by its exponential."""
        np.minimum(self.values, _LARGEST_EXPONENT, out=self.values)
        np.exp(self.values, out=self.values)
        if self.forbidden is not None:
            np.copyto(self.values, 0.0, where=self.forbidden)

    def times(self, columns: FloatArray) -> FloatArray:
        """Return kernel · columns."""
        return np.asarray(self.values @ columns)

    def transposed_times(self, rows: FloatArray) -> FloatArray:
        """Return rows · kernel."""
        return np.asarray(rows @ self.values)

    def best(self, columns: FloatArray) -> IntArray:
        """Return, per row, the column of the largest number times `columns`."""
        scaled = self.values * columns
        found = scaled.argmax(axis=1)
        return np.where(scaled[np.arange(len(found)), found] > 0, found, -1)

    def coupling(self, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """Return the kernel with its rows and columns scaled."""
        return self.values * rows[:, None] * columns


class ListedPairs:
    """Some pairs of rows; all others are impossible.

    Args:
        pattern: left × right rows, stored where a pair may be matched.
    """

    def __init__(self, pattern: sparse.csr_array) -> None:
        self.rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
        self.columns = pattern.indices.astype(np.int64)
        data = np.zeros(len(self.columns), dtype=np.float32)
        self.values = sparse.csr_array((data, pattern.indices, pattern.indptr), shape=pattern.shape)

    def fill(self, left: FloatArray, right: FloatArray) -> None:
        """Set every pair to the inner product of its rows."""
        for part in batches(len(self.rows), _PAIRS_AT_A_TIME):
            self.values.data[part] = np.einsum("ij,ij->i", left[self.rows[part]], right[self.columns[part]])

    def row_maxima(self) -> FloatArray:
        """Return the largest number of each row."""
        return self._maxima(self.rows, self.values.shape[0])

    def column_maxima(self) -> FloatArray:
        """Return the largest number of each column."""
        return self._maxima(self.columns, self.values.shape[1])

    def shift(self, rows: FloatArray, columns: FloatArray) -> None:
        """Add a number to every row and to every column."""
        self.values.data += rows[self.rows] + columns[self.columns]

    def exponentiate(self) -> None:
        """Replace every number by its exponential."""
        np.minimum(self.values.data, _LARGEST_EXPONENT, out=self.values.data)
        np.exp(self.values.data, out=self.values.data)

    def times(self, columns: FloatArray) -> FloatArray:
        """Return kernel · columns."""
        return np.asarray(self.values @ columns)

    def transposed_times(self, rows: FloatArray) -> FloatArray:
        """Return rows · kernel."""
        return np.asarray(self.values.T @ rows)

    def best(self, columns: FloatArray) -> IntArray:
        """Return, per row, the column of the largest number times `columns`."""
        scaled = self.values.data * columns[self.columns]
        highest = np.zeros(self.values.shape[0], dtype=scaled.dtype)
        np.maximum.at(highest, self.rows, scaled)
        found = np.full(self.values.shape[0], -1, dtype=np.int64)
        top = (scaled == highest[self.rows]) & (scaled > 0)
        # The first of equals, as for all pairs.
        found[self.rows[top][::-1]] = self.columns[top][::-1]
        return found

    def coupling(self, rows: FloatArray, columns: FloatArray) -> sparse.csr_array:
        """Return the kernel with its rows and columns scaled."""
        found = self.values.copy()
        found.data *= rows[self.rows] * columns[self.columns]
        return found

    def _maxima(self, line: IntArray, size: int) -> FloatArray:
        found = np.full(size, _FORBIDDEN, dtype=np.float32)
        np.maximum.at(found, line, self.values.data)
        return found


def kernels(
    folds: Sequence[IntArray], shape: tuple[int, int], allowed: BoolArray | sparse.csr_array | None
) -> list[Kernel]:
    """Return one kernel per fold of left rows.

    Args:
        folds: left rows of each fold.
        shape: left and right rows.
        allowed: which pairs may be matched: a mask, a sparse pattern of listed pairs, or None for all.
    """
    if sparse.issparse(allowed):
        return [ListedPairs(sparse.csr_array(allowed)[rows]) for rows in folds]
    return [AllPairs((len(rows), shape[1]), None if allowed is None else allowed[rows]) for rows in folds]
