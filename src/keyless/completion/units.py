"""Entries so large or small that their squares are no numbers are divided by a unit; results are multiplied by it."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyless.arrays import is_array, namespace

__all__ = ["in_caller_unit", "penalty_in_unit", "returned"]

_SMALLEST, _LARGEST = 1e-150, float(np.finfo(np.float64).max)
"""A penalty is at least so large when entries are about 1; what is returned is at most so large."""


def penalty_in_unit(penalty: float, unit: float) -> float:
    """Return the penalty for entries that are divided by a unit; above zero."""
    return min(max(penalty / unit, _SMALLEST), 1 / _SMALLEST)


def in_caller_unit(numbers: Any, unit: float) -> Any:
    """Return numbers in the caller's unit; those beyond the range of numbers are the largest there are."""
    if unit == 1:
        return numbers
    if not is_array(numbers):
        return [float(number) for number in in_caller_unit(np.asarray(numbers), unit)]
    with np.errstate(over="ignore"):
        return namespace(numbers).clip(numbers * unit, -_LARGEST, _LARGEST)


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
