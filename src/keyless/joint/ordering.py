"""A standard order of tables, rows and columns, so that the order they are given in cannot matter.

Everything is sorted by what it contains: quantities that are the same, to the last bit, whatever the order of the rest
and the signs of columns. Linking is done in the standard order and its result brought back to the given one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.model.factor_model import FactorModel
from keyless.pairs.constraints import Constraints

__all__ = ["Arrangement", "TableOrder"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_DECIMALS = 9
"""Scores are compared and used to this many decimals: noise of rounding must not decide."""


@dataclass(frozen=True, eq=False)
class TableOrder:
    """The standard order of one table's rows and columns, and the sign of each column.

    Attributes:
        rows: given number of each row of the standard order.
        columns: given number of each column of the standard order.
        signs: what each of those columns is multiplied with.
        key: what tables are sorted by.
    """

    rows: IntArray
    columns: IntArray
    signs: FloatArray
    key: tuple[float, ...]

    @classmethod
    def of(cls, values: FloatArray, mask: BoolArray) -> TableOrder:
        """Find the standard order of a table."""
        values = np.round(values, _DECIMALS)
        size = np.abs(values)
        row_keys, column_keys = _keys(size, mask), _keys(size.T, mask.T)
        # Once more, each entry weighted by where its column or row came: this tells apart what was alike.
        row_keys += _keys(size * (1 + _places(column_keys))[None, :], mask)[1:]
        column_keys += _keys(size.T * (1 + _places(row_keys))[None, :], mask.T)[1:]
        rows, columns = _sorted(row_keys), _sorted(column_keys)
        placed = values[rows][:, columns]
        first = placed[np.argmax(placed != 0, axis=0), np.arange(len(columns))]
        key = (-float(mask.sum()), float(len(rows)), float(len(columns)), *(float(np.sort(k).sum()) for k in row_keys))
        return cls(rows, columns, np.where(first < 0, -1.0, 1.0), key)

    def apply(self, values: FloatArray, mask: BoolArray) -> tuple[FloatArray, BoolArray]:
        """Return the table in standard order."""
        placed = np.round(values, _DECIMALS)[self.rows][:, self.columns] * self.signs
        return placed, mask[self.rows][:, self.columns]

    @property
    def standard_rows(self) -> IntArray:
        """Place of each given row in the standard order."""
        return np.argsort(self.rows)

    def given_rows(self, numbers: IntArray) -> IntArray:
        """Return the given numbers of rows of the standard order; −1 stays −1."""
        return np.where(numbers >= 0, self.rows[np.maximum(numbers, 0)], -1)


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Several tables in standard order.

    Attributes:
        tables: given number of each table of the standard order.
        orders: the order of each of those.
    """

    tables: tuple[int, ...]
    orders: tuple[TableOrder, ...]

    @classmethod
    def of(cls, tables: Sequence[tuple[FloatArray, BoolArray]]) -> Arrangement:
        """Find the standard order of tables."""
        orders = [TableOrder.of(*table) for table in tables]
        numbers = sorted(range(len(tables)), key=lambda number: orders[number].key)
        return cls(tuple(numbers), tuple(orders[number] for number in numbers))

    def place(self, number: int) -> int:
        """Return where a given table is in the standard order."""
        return self.tables.index(number)

    def constraints(self, given: Constraints) -> Constraints:
        """Return the same constraints about the tables in standard order."""
        groups = given.groups or (None,) * len(self.tables)
        return Constraints(
            sizes=tuple(given.sizes[number] for number in self.tables),
            groups=tuple(
                None if groups[number] is None else np.asarray(groups[number])[order.rows]
                for number, order in zip(self.tables, self.orders, strict=True)
            ),
            known={key: pairs for tables, rows in given.known.items() for key, pairs in [self._pairs(tables, rows)]},
            forbidden={
                key: pairs for tables, rows in given.forbidden.items() for key, pairs in [self._pairs(tables, rows)]
            },
        )

    def couplings(self, given: Mapping[tuple[int, int], FloatArray]) -> dict[tuple[int, int], FloatArray]:
        """Return couplings of given tables as couplings of the tables in standard order, earlier table first."""
        placed = {}
        for (first, second), coupling in given.items():
            a, b = self.place(first), self.place(second)
            turned = coupling[np.ix_(self.orders[a].rows, self.orders[b].rows)]
            placed[min(a, b), max(a, b)] = turned if a < b else turned.T
        return placed

    def given_model(self, model: FactorModel) -> FactorModel:
        """Return a model over all columns in standard order as one over the columns as given."""
        sizes = [len(order.columns) for order in self.orders]
        starts = np.cumsum([0, *sizes])
        signs = np.concatenate([order.signs for order in self.orders])
        where = []
        for number in range(len(self.tables)):
            place = self.place(number)
            where.append(starts[place] + np.argsort(self.orders[place].columns))
        return model.signed(signs).columns(np.concatenate(where))

    def _pairs(self, tables: tuple[int, int], rows: IntArray) -> tuple[tuple[int, int], IntArray]:
        a, b = self.place(tables[0]), self.place(tables[1])
        pairs = np.stack([self.orders[a].standard_rows[rows[:, 0]], self.orders[b].standard_rows[rows[:, 1]]], axis=1)
        return ((a, b), pairs) if a < b else ((b, a), pairs[:, ::-1])


def _keys(size: FloatArray, mask: BoolArray) -> list[FloatArray]:
    """Count, sum and sum of squares of each row; entries are sorted before they are added."""
    ordered = np.sort(size, axis=1)
    return [mask.sum(axis=1).astype(np.float64), ordered.sum(axis=1), (ordered**2).sum(axis=1)]


def _places(keys: Sequence[FloatArray]) -> FloatArray:
    """Rank of each row by its keys, equal rows sharing one."""
    _, place = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    return np.asarray(place.reshape(-1), dtype=np.float64)


def _sorted(keys: Sequence[FloatArray]) -> IntArray:
    return np.lexsort(tuple(keys))
