"""Entries so large or small that their squares are no numbers are divided by a unit; results are multiplied by it."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["penalty_in_unit", "returned"]

_SMALLEST = 1e-150
"""A penalty is at least so large when entries are about 1."""


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
