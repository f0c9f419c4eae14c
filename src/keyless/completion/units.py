"""Units of entries: the spread that each column is divided by, the levels of rows and columns, and one unit for all.

Entries so large or small that their squares are no numbers are divided by a unit; results are multiplied by it.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from keyless.arrays import Array, is_sparse, safe_unit
from keyless.completion.observed import ObservedTable
from keyless.completion.sweeps import FactorLayout, Settled
from keyless.errors import InputError

__all__ = ["centre", "level_offsets", "penalty_in_unit", "returned", "spreads", "warn_of_empty_columns"]

_SMALLEST = 1e-150
"""A penalty is at least so large when entries are about 1."""

_ROUNDING = 1e-12
"""Spread of a column, as a share of its largest absolute value, that rounding alone can make."""

_LEAST = float(np.finfo(np.float64).smallest_subnormal)
"""The smallest number above 0; a spread is at least so large."""


def penalty_in_unit(penalty: float, unit: float) -> float:
    """Return the penalty for entries that are divided by a unit; above zero."""
    return min(max(penalty / unit, _SMALLEST), 1 / _SMALLEST)


def returned(numbers: Any, unit: Any, dtype: Any = np.float64) -> Any:
    """Return numpy's numbers times a unit, as a dtype; those beyond its range are the largest it has.

    Args:
        numbers: an array.
        unit: one for all numbers, or an array that fits theirs.
        dtype: float64 or float32.
    """
    if dtype == np.float64 and np.all(unit == 1):
        return numbers
    largest = float(np.finfo(dtype).max)
    with np.errstate(over="ignore"):
        found = np.asarray(numbers * unit)
    np.clip(found, -largest, largest, out=found)
    return found.astype(dtype, copy=False)[()]


def spreads(given: Any, *, scale: bool | None, offsets: str) -> Array:
    """Return what each column is divided by: its standard deviation, or its root mean square where it has no offset.

    Args:
        given: the table, NaN where missing, or a sparse one.
        scale: True or False; None: a dense table is scaled, unless rows have offsets.
        offsets: of the fit.
    """
    rows = offsets in ("rows", "both")
    if scale not in (None, True, False):
        raise InputError(f"scale: must be True, False or None; found {scale!r}.")
    if scale and (rows or is_sparse(given)):
        what = "rows have offsets" if rows else "the table is sparse"
        raise InputError(f"scale: must be False or None where {what}; found True. Scale the columns first.")
    if scale is False or rows or is_sparse(given):
        return np.ones(given.shape[1])
    values = np.asarray(given, dtype=np.float64)
    seen = ~np.isnan(values)
    size = np.where(seen, np.abs(values), 0.0).max(axis=0, initial=0.0)
    # Squares are of numbers in a unit in which they neither overflow nor vanish.
    unit = np.array([safe_unit(largest) for largest in size.tolist()])
    values, size = np.where(seen, values, 0.0) / unit, size / unit
    count = np.maximum(seen.sum(axis=0), 1)
    middle = values.sum(axis=0) / count if offsets == "columns" else 0.0
    spread = np.sqrt((np.where(seen, values - middle, 0.0) ** 2).sum(axis=0) / count)
    # A constant column, or rounding of one, has no spread to divide by.
    return np.where(spread > _ROUNDING * size, np.maximum(spread * unit, _LEAST), unit)


def warn_of_empty_columns(counts: Array, names: Any) -> None:
    """Warn of columns of which nothing is observed.

    Args:
        counts: observed entries of each column.
        names: of the columns, where they have names.
    """
    empty = np.flatnonzero(np.asarray(counts) == 0)
    if not empty.size:
        return
    said = ", ".join(str(k) if names is None else repr(str(names[k])) for k in empty[:5])
    more = f" and {empty.size - 5} more" if empty.size > 5 else ""
    warnings.warn(
        f"SoftImpute: no entry of column {said}{more} is observed; what is filled in there means nothing. Leave such "
        "columns out.",
        UserWarning,
        stacklevel=3,
    )


def centre(
    table: ObservedTable, layout: FactorLayout, columns: Array | None = None
) -> tuple[ObservedTable, Array, Array]:
    """Take off `columns` or the observed column means, then the observed row means, where the layout has offsets."""
    rows = np.zeros(table.shape[0])
    if columns is None:
        columns = table.means(0) if layout.column_offsets else np.zeros(table.shape[1])
    table = table.less(rows, columns)
    if layout.row_offsets:
        rows = table.means(1)
        table = table.less(rows, np.zeros(table.shape[1]))
    return table, rows, columns


def level_offsets(found: Settled, observed: ObservedTable, rows: Array, columns: Array) -> tuple[Array, float]:
    """All column offsets, and the row offset of a row with nothing observed; both the mean of the others there."""
    layout = found.layout
    if layout.row_offsets:
        rows = rows + found.left[:, layout.rank]
    level = float(rows[observed.row_counts > 0].mean())
    if not layout.column_offsets:
        return columns, level
    columns = columns + found.right[:, -1] + level
    columns[observed.column_counts == 0] = columns[observed.column_counts > 0].mean()
    return columns, 0.0
