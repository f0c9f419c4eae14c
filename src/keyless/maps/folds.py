"""Rows dealt to folds: what is said about the rows of one fold comes from the rows of all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.arrays import IntArray

__all__ = ["Folds"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Folds:
    """Rows in folds of the same length; the last rows of a fold may be empty, and count for nothing.

    Attributes:
        place: where each row stands when the folds stand one after the other.
        count: how many folds there are.
        size: rows of a fold.
    """

    place: IntArray
    count: int
    size: int

    @classmethod
    def along(cls, numbers: Array, count: int) -> Folds:
        """Return rows sorted by a number and dealt one by one, so that neither chance nor their order decides.

        Args:
            numbers: one for each row.
            count: how many folds there are, at most one per row.
        """
        count = max(1, min(count, len(numbers)))
        size = -(-len(numbers) // count)
        along = np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
        return cls(along % count * size + along // count, count, size)

    @property
    def of_rows(self) -> IntArray:
        """The fold of each row."""
        return np.asarray(self.place // self.size)

    def folded(self, rows: Array, axis: int = 0) -> Array:
        """Return numbers of rows fold by fold: the axis of rows becomes two, folds × rows of a fold."""
        before, after = rows.shape[:axis], rows.shape[axis + 1 :]
        found = np.zeros((*before, self.count * self.size, *after), dtype=rows.dtype)
        found[(slice(None),) * axis + (self.place,)] = rows
        return found.reshape(*before, self.count, self.size, *after)

    def unfolded(self, folded: Array, axis: int = 0) -> Array:
        """Return numbers of rows in the original order of rows; undoes `folded`."""
        before, after = folded.shape[:axis], folded.shape[axis + 2 :]
        return np.asarray(
            folded.reshape(*before, self.count * self.size, *after)[(slice(None),) * axis + (self.place,)]
        )
