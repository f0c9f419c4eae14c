"""The numbers of a large frame, held once: each column goes to its place as soon as it has been looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keyless.arrays import NumpyArray
from keyless.tables.batches import ROUNDING
from keyless.tables.column_use import UsedColumn

__all__ = ["numbers_of"]


def numbers_of(looks: Sequence[Callable[[], UsedColumn]], rows: int) -> tuple[NumpyArray, Any, list[UsedColumn]]:
    """Return the numbers of all columns, 0 where missing, their mask, and what each column counts as.

    The numbers are in single precision where that loses nothing that a column says, as those of large files are.

    Args:
        looks: looks at one column each, and returns what it counts as and its numbers.
        rows: how many there are.
    """
    for dtype in (np.float32, np.float64):
        # Most columns become one column of numbers; categories become more.
        values = np.empty((rows, len(looks)), dtype=dtype)
        mask: Any = None
        found, width = list[UsedColumn](), 0
        for look in looks:
            one = look()
            own, stop = one.values, width + one.values.shape[1]
            if stop > values.shape[1]:
                values = _wider(values, stop)
                mask = None if mask is None else _wider(mask, stop)
            missing = np.isnan(own)
            with np.errstate(over="ignore"):
                values[:, width:stop] = own
            if dtype == np.float32 and not _enough(own, values[:, width:stop], missing):
                break
            if missing.any():
                mask = np.ones(values.shape, dtype=bool) if mask is None else mask
                mask[:, width:stop] = ~missing
                values[:, width:stop][missing] = 0
            found.append(replace(one, values=own[:0]))
            width = stop
        else:
            values = values[:, :width]
            values.flags.writeable = False
            return values, np.broadcast_to(np.True_, values.shape) if mask is None else mask[:, :width], found
    raise AssertionError  # double precision is always enough


def _wider(table: NumpyArray, width: int) -> NumpyArray:
    """Return a table with room for twice the columns that are needed."""
    made = np.ones((len(table), 2 * width), dtype=table.dtype)
    made[:, : table.shape[1]] = table
    return made


def _enough(own: NumpyArray, kept: NumpyArray, missing: Any) -> bool:
    """Tell whether rounding changes numbers by little beside how they vary."""
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(own.shape[1]):
            seen = own[~missing[:, k], k]
            if not seen.size:
                continue
            lost = kept[~missing[:, k], k] - seen
            if lost.any() and not np.mean(lost**2) <= ROUNDING**2 * seen.var():
                return False
            tiny = np.finfo(np.float32).tiny
            if 0 < seen.min() < tiny or -tiny < seen.max() < 0:
                return False
    return True
