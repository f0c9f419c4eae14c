"""The observed entries of a table, dense or sparse, as the sweeps read them.

A sparse table is held once, as its owner stored it: offsets are taken off and numbers made float64 chunk by chunk while
reading, so that neither a second copy of the entries nor anything of the size of the dense table is ever formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import Array, array_like, batches, is_numpy, namespace
from keyless.assignment.candidates import keep_pairs
from keyless.errors import InputError

__all__ = ["ObservedTable", "checked_places", "entries", "observed_entries", "squares", "stored"]

_DENSE = 0.25
"""Above this fraction of observed entries dense products are the faster ones."""

_CHUNK = 4_000_000
"""Numbers in the largest temporary of a sweep, about 32 MB."""

_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class ObservedTable:
    """Observed entries: dense `values` (0 where missing) with a 0/1 `seen`, or scipy CSR `values` and no `seen`.

    Of a sparse table the entries meant are `values` less the levels of their row and column, where there are levels.
    """

    values: Any
    seen: Array | None
    row_counts: Array
    column_counts: Array
    energy: float
    row_levels: Array | None = None
    column_levels: Array | None = None

    @classmethod
    def dense(cls, values: Array, mask: Array) -> ObservedTable:
        """Take values that are zero where the boolean mask is False."""
        xp = namespace(values)
        seen = xp.astype(mask, values.dtype)
        # Squares of numbers that are not divided by their unit yet may overflow; they are measured again then.
        with np.errstate(over="ignore"):
            energy = squares(values)
        return cls(values, seen, xp.sum(seen, axis=1), xp.sum(seen, axis=0), energy)

    @classmethod
    def sparse(cls, values: Any) -> ObservedTable:
        """Take a CSR array whose stored entries, float32 or float64, are the observed ones; it is not copied."""
        columns = np.zeros(values.shape[1], dtype=np.int64)
        for part in batches(values.nnz, _CHUNK):  # bincount makes its argument int64
            columns += np.bincount(values.indices[part], minlength=values.shape[1])
        return cls(values, None, np.diff(values.indptr), columns, 0.0)._measured()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.values.shape
        return rows, columns

    def _measured(self) -> ObservedTable:
        with np.errstate(over="ignore"):
            return replace(self, energy=sum(squares(values.data) for _, values in self._parts(1)))

    def _parts(self, width: int) -> Iterator[tuple[slice, Any]]:
        """Yield row ranges of a sparse table with their entries in float64, levels taken off."""
        rows, columns = self.shape
        starts = self.values.indptr
        first, step = 0, max(1, _CHUNK // max(1, width))
        while first < rows:
            reach = min(int(starts[first]) + _CHUNK, int(starts[-1]))
            full = int(np.searchsorted(starts, starts.dtype.type(reach), side="right")) - 1
            part = slice(first, min(first + step, max(first + 1, full), rows))
            first = part.stop
            bounds = starts[part.start : part.stop + 1]
            inside = slice(bounds[0], bounds[-1])
            places, data = self.values.indices[inside], self.values.data[inside].astype(np.float64, copy=False)
            if self.column_levels is not None:
                data = data - self.column_levels[places]
            if self.row_levels is not None:
                data = data - np.repeat(self.row_levels[part], self.row_counts[part])
            yield part, sparse.csr_array((data, places, bounds - bounds[0]), shape=(part.stop - part.start, columns))

    def chunks(self, width: int) -> Iterator[tuple[slice, Any, Any]]:
        """Yield row ranges with their values and their 0/1 indicator; both can be multiplied from both sides."""
        if self.seen is None:
            for part, values in self._parts(width):
                ones = (np.ones_like(values.data), values.indices, values.indptr)
                yield part, values, sparse.csr_array(ones, shape=values.shape)
            return
        for part in batches(self.shape[0], _CHUNK // max(1, width)):
            yield part, self.values[part, :], self.seen[part, :]

    def residual(self, left: Array, right: Array) -> Any:
        """P_Ω(X − left·rightᵀ), dense or CSR as the table is."""
        if self.seen is not None:
            return self.values - self.seen * (left @ right.T)
        data = np.empty(self.values.nnz)
        for part, values in self._parts(left.shape[1]):
            rows = np.repeat(np.arange(part.start, part.stop), self.row_counts[part])
            inside = slice(self.values.indptr[part.start], self.values.indptr[part.stop])
            data[inside] = values.data - entries(left, right, rows, values.indices)
        return sparse.csr_array((data, self.values.indices, self.values.indptr), shape=self.shape)

    def means(self, axis: int) -> Array:
        """Mean observed entry of each row (axis 1) or column (axis 0), zero where nothing is observed. Numpy only."""
        counts = self.row_counts if axis else self.column_counts
        if self.seen is not None:
            sums = self.values.sum(axis=axis)
        else:
            parts = [np.asarray(values.sum(axis=axis)).ravel() for _, values in self._parts(1)]
            sums = np.concatenate(parts) if axis else sum(parts)
        return np.asarray(sums).ravel() / np.maximum(counts, 1)

    def less(self, rows: Array, columns: Array) -> ObservedTable:
        """The same entries with row and column offsets taken off. Numpy only."""
        if self.seen is not None:
            return ObservedTable.dense(self.values - self.seen * (rows[:, None] + columns), self.seen)
        levels = [
            new if old is None else old + new for old, new in ((self.row_levels, rows), (self.column_levels, columns))
        ]
        rows, columns = (level if level.any() else None for level in levels)
        return replace(self, row_levels=rows, column_levels=columns)._measured()

    @property
    def largest(self) -> float:
        """The largest absolute value of an observed entry, offsets not taken off; 0 where nothing is observed."""
        entries = self.values if self.seen is not None else self.values.data
        if 0 in entries.shape:
            return 0.0
        xp = namespace(entries)
        return max(float(xp.max(entries)), -float(xp.min(entries)))

    def in_unit(self, unit: float) -> ObservedTable:
        """The same entries divided by a unit; without levels."""
        if unit == 1:
            return self
        if self.seen is not None:
            return replace(self, values=(values := self.values / unit), energy=squares(values))
        return replace(self, values=self.values / unit)._measured()

    def scaled(self, spreads: Array) -> ObservedTable:
        """The same entries, those of each column divided by its spread; the largest numbers instead of infinite ones.

        Without levels. Numpy only.
        """
        if (spreads == 1).all():
            return self
        dense = self.seen is not None
        with np.errstate(over="ignore"):
            found = self.values / spreads if dense else self.values.data / spreads[self.values.indices]
        found = np.clip(found, -_LARGEST, _LARGEST, out=found)
        if dense:
            return replace(self, values=found, energy=squares(found))
        table = sparse.csr_array((found, self.values.indices, self.values.indptr), shape=self.shape)
        return replace(self, values=table)._measured()

    def split(self, generator: np.random.Generator, fraction: float) -> tuple[ObservedTable, Array, Array, Array]:
        """Hold out a random fraction of the observed entries: what is left, then their rows, columns and values."""
        if self.seen is not None:
            rows, columns = np.nonzero(self.seen)
            out = generator.permutation(len(rows)) < max(1, round(fraction * len(rows)))
            keep, values = self.seen.astype(bool), self.values[rows, columns]
            keep[rows[out], columns[out]] = False
            return ObservedTable.dense(np.where(keep, self.values, 0.0), keep), rows[out], columns[out], values[out]
        stored = self.values.nnz
        out = generator.permutation(stored) < max(1, round(fraction * stored))
        places = np.flatnonzero(out)
        rows = np.searchsorted(self.values.indptr, places, side="right") - 1
        columns, values = self.values.indices[places], self.values.data[places].astype(np.float64)
        if self.column_levels is not None:
            values = values - self.column_levels[columns]
        if self.row_levels is not None:
            values = values - self.row_levels[rows]
        rest = replace(ObservedTable.sparse(keep_pairs(self.values, ~out)), row_levels=self.row_levels)
        return replace(rest, column_levels=self.column_levels)._measured(), rows, columns, values

    def some_rows(self, rows: Array) -> ObservedTable:
        """The table of these rows, in this order. Sparse only."""
        levels = None if self.row_levels is None else self.row_levels[rows]
        found = replace(ObservedTable.sparse(self.values[rows]), row_levels=levels, column_levels=self.column_levels)
        return found._measured()


def squares(array: Array) -> float:
    """The sum of squares."""
    if is_numpy(array):
        return float(np.vdot(array, array))
    return float(namespace(array).sum(array * array))


def entries(left: Array, right: Array, rows: Array, columns: Array) -> Array:
    """Single entries of left·rightᵀ, without forming it."""
    parts = list(batches(len(rows), _CHUNK // max(1, left.shape[1])))
    if is_numpy(left):
        found = np.empty(len(rows), dtype=left.dtype)
        for part in parts:
            np.einsum("ij,ij->i", left[rows[part]], right[columns[part]], out=found[part])
        return found
    xp = namespace(left)
    rows, columns = (array_like(places, left, dtype=xp.int64) for places in (rows, columns))
    pieces = [
        xp.sum(xp.take(left, rows[part], axis=0) * xp.take(right, columns[part], axis=0), axis=1) for part in parts
    ]
    return xp.concat(pieces) if pieces else xp.zeros(0, dtype=left.dtype, device=left.device)


def stored(values: Any, *, name: str) -> tuple[Any, ObservedTable]:
    """Return a CSR array with repeated entries added up, and its observed entries: those stored that are not NaN."""
    if np.isinf(values.data).any():
        raise InputError(f"{name}: must hold finite numbers; found an infinity among the stored entries. Drop it.")
    if not values.has_canonical_format:
        values = values.copy()
        values.sum_duplicates()
    missing = np.isnan(values.data)
    return values, ObservedTable.sparse(keep_pairs(values, ~missing) if missing.any() else sparse.csr_array(values))


def checked_places(rows: Any, columns: Any, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return row and column numbers, broadcast against each other and checked."""
    rows, columns = np.broadcast_arrays(rows, columns)
    for name, places, size in (("rows", rows, shape[0]), ("columns", columns, shape[1])):
        if places.dtype.kind not in "iu" or (places.size and not 0 <= places.min() <= places.max() < size):
            raise InputError(f"{name}: must be whole numbers from 0 to {size - 1}; found {places!r}.")
    return rows, columns


def observed_entries(values: Array, mask: Array) -> ObservedTable:
    """Return the observed entries of a dense table; stored sparsely where few are observed, which is faster then."""
    if not is_numpy(values) or mask.mean() > _DENSE:
        return ObservedTable.dense(values, mask)
    rows, columns = np.nonzero(mask)
    start = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=mask.shape[0]))])
    return ObservedTable.sparse(sparse.csr_array((values[mask], columns, start), shape=mask.shape))
