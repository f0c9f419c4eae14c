"""Tables that were linked, side by side as one table of their entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from keyless.arrays import BoolArray, IntArray, NumpyArray

__all__ = ["Joined", "side_by_side"]


@dataclass(frozen=True, eq=False)
class Joined:
    """Some tables, and which of their rows are one entity. Every row of every table belongs to one entity.

    Attributes:
        numbers: of the tables.
        rows: per table, the row of every entity, −1 where it has none.
    """

    numbers: tuple[int, ...]
    rows: tuple[IntArray, ...]

    @classmethod
    def alone(cls, number: int, size: int) -> Joined:
        """Return one table by itself: each of its rows is an entity."""
        return cls((number,), (np.arange(size),))

    def __len__(self) -> int:
        """How many entities there are."""
        return len(self.rows[0])

    def with_partners(self, other: Joined, partners: IntArray) -> Joined:
        """Return both groups of tables joined.

        Args:
            other: other tables.
            partners: the entity of the other tables that belongs to each entity, −1 for none.
        """
        single = np.setdiff1d(np.arange(len(other)), partners)
        own = [np.append(rows, np.full(len(single), -1)) for rows in self.rows]
        theirs = [np.append(np.append(rows, -1)[partners], rows[single]) for rows in other.rows]
        return Joined(self.numbers + other.numbers, (*own, *theirs))

    def without(self, number: int) -> Joined:
        """Return the other tables; entities that none of them has are gone."""
        kept = [k for k, own in enumerate(self.numbers) if own != number]
        seen = np.any([self.rows[k] >= 0 for k in kept], axis=0)
        return Joined(tuple(self.numbers[k] for k in kept), tuple(self.rows[k][seen] for k in kept))

    def rows_of(self, number: int) -> IntArray:
        """Return the row of a table that each entity has, −1 for none."""
        return self.rows[self.numbers.index(number)]

    def entities_of(self, number: int) -> IntArray:
        """Return the entity that each row of a table belongs to."""
        rows = self.rows_of(number)
        entities = np.flatnonzero(rows >= 0)
        return entities[np.argsort(rows[entities])]

    def carried(
        self, couplings: Mapping[tuple[int, int], Sequence[tuple[str, NumpyArray]]], other: Joined
    ) -> list[tuple[str, NumpyArray]]:
        """Return named couplings of rows of two tables as couplings of entities.

        Args:
            couplings: named couplings of rows, by the numbers of two tables, the smaller number first.
            other: the tables on the right.
        """
        found = []
        for first in self.numbers:
            for second in other.numbers:
                for name, coupling in couplings.get((min(first, second), max(first, second)), ()):
                    turned = coupling if first < second else coupling.T
                    padded = np.pad(np.asarray(turned), ((0, 1), (0, 1)))
                    found.append((name, padded[np.ix_(self.rows_of(first), other.rows_of(second))]))
        return found


def side_by_side(
    tables: Sequence[tuple[NumpyArray, BoolArray]], rows: Sequence[IntArray]
) -> tuple[NumpyArray, BoolArray]:
    """Return values and masks of tables side by side in the order of entities; missing where an entity has no row.

    Args:
        tables: values and mask of each.
        rows: per table, the row of every entity, −1 where it has none.
    """
    values, masks = [], []
    for (value, mask), index in zip(tables, rows, strict=True):
        seen = mask[np.maximum(index, 0)] & (index >= 0)[:, None]
        values.append(np.where(seen, value[np.maximum(index, 0)], 0.0))
        masks.append(seen)
    return np.concatenate(values, axis=1), np.concatenate(masks, axis=1)
