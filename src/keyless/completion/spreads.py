"""Columns of different units: what each is divided by before a fit, and which hold nothing at all."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from keyless.arrays import Array, is_sparse, safe_unit
from keyless.errors import InputError

__all__ = ["spreads", "warn_of_empty_columns"]

_ROUNDING = 1e-12
"""Spread of a column, as a share of its largest absolute value, that rounding alone can make."""

_LEAST = float(np.finfo(np.float64).smallest_subnormal)
"""The smallest number above 0; a spread is at least so large."""


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
