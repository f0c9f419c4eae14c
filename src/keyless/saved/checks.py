"""Parts of a saved result, checked before anything is made of them: type, shape, range, finiteness.

A file may be damaged, or made by somebody who means harm. Each check returns what it was given, or raises `ValueError`
with the name of the part; whoever reads the file turns that into one `InputError`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from keyless.arrays import FloatArray, IntArray

__all__ = ["flag", "mapping", "number", "numbers", "one_of", "permutation", "sequence", "text"]

_ROUNDING = 1e-6
"""How far a probability may be beyond 0 or 1: some are kept in single precision."""


def numbers(
    array: Any,
    name: str,
    shape: tuple[int | None, ...],
    *,
    low: float = -math.inf,
    high: float = math.inf,
    infinite: bool = False,
) -> FloatArray:
    """Check an array of real numbers.

    Args:
        array: what was read.
        name: what to call it.
        shape: how long it must be in each direction; None: any length.
        low: the least that is allowed.
        high: the most that is allowed.
        infinite: whether infinities are allowed; NaN is not.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        raise ValueError(f"{name} must be real numbers")
    fits = len(array.shape) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must have shape {_shown(shape)}, and has {_shown(array.shape)}")
    if array.size:
        least, most = float(array.min()), float(array.max())
        # NaN compares as nothing.
        if not (low - _ROUNDING <= least and most <= high + _ROUNDING):
            raise ValueError(f"{name} must be numbers from {low:g} to {high:g}")
        if not infinite and not (math.isfinite(least) and math.isfinite(most)):
            raise ValueError(f"{name} must be finite")
    return array


def permutation(array: Any, name: str, places: int, rows: int, *, once: bool = True) -> IntArray:
    """Check which row belongs to each place: −1 for none, and no row twice.

    Args:
        array: what was read.
        name: what to call it.
        places: how many places there are.
        rows: how many rows there are.
        once: whether each row may stand at one place only.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.shape != (places,):
        raise ValueError(f"{name} must be {places} whole numbers")
    taken = array[array >= 0]
    if array.size and (array.min() < -1 or array.max() >= rows):
        raise ValueError(f"{name} must be numbers of rows, from -1 to {rows - 1}")
    if once and len(np.unique(taken)) < len(taken):
        raise ValueError(f"{name} must name each row once")
    return array


def number(value: Any, name: str, *, low: float = -math.inf, whole: bool = False) -> Any:
    """Check one number; a real one may be missing, which is NaN, or infinite.

    Args:
        value: what was read.
        name: what to call it.
        low: the least that is allowed.
        whole: whether it must be a whole number.
    """
    kinds: Any = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or value < low:
        raise ValueError(f"{name} must be a {'whole ' if whole else ''}number{'' if low < 0 else f' from {low:g} on'}")
    return value


def text(value: Any, name: str, *, optional: bool = False) -> Any:
    """Check a text; `optional`: or nothing."""
    if not isinstance(value, str) and not (optional and value is None):
        raise ValueError(f"{name} must be text")
    return value


def flag(value: Any, name: str) -> bool:
    """Check a true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def one_of(value: Any, name: str, allowed: Collection[Any]) -> Any:
    """Check that a value is one of a few."""
    if not isinstance(value, str | int | float) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}")
    return value


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Check a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping")
    return dict(value)


def sequence(value: Any, name: str) -> list[Any]:
    """Check a list."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list")
    return list(value)


def _shown(shape: tuple[int | None, ...]) -> str:
    return " × ".join("any" if size is None else str(size) for size in shape) or "none"
