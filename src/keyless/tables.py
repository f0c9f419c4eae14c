"""Tables as users have them ↔ blocks. NaN means missing here, and only here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from narwhals.exceptions import DuplicateError

from keyless.arrays import array_like, as_matrix, namespace, to_numpy
from keyless.errors import InputError
from keyless.problem import Block, Problem

__all__ = [
    "Table",
    "frame_like",
    "name_tables",
    "read_table",
    "read_tables",
    "to_block",
    "to_problem",
    "with_missingness",
]


def to_block(table: Any, *, name: str = "table") -> Block:
    """Return a table of numbers as a `Block`: NaN becomes a False in the mask.

    Example:
        >>> to_block([[1.0, float("nan")]]).mask
        array([[ True, False]])
    """
    values = as_matrix(table, name=name, allow_missing=True)
    return Block(values, ~namespace(values).isnan(values), name=name)


def to_problem(tables: Mapping[str, Any] | Iterable[Any], *, reference: str | None = None) -> Problem:
    """Return tables of numbers as a `Problem`.

    Args:
        tables: at least two tables, by name or in order; NaN is missing.
        reference: name of the table whose row order the answer is given in; the first unless given.

    Example:
        >>> problem = to_problem({"clinic": [[1.0, 2.0], [3.0, 4.0]], "lab": [[5.0], [6.0]]})
        >>> problem.shape
        (2, 3)
    """
    tables, reference = _named(tables, reference)
    blocks = {name: to_block(table, name=name) for name, table in tables.items()}
    like = blocks[reference].values
    for name, block in blocks.items():
        kind, wanted = type(block.values), type(like)
        if kind is not wanted:
            raise InputError(
                f"{name}: must be of the same kind as {reference}, {wanted.__module__}.{wanted.__name__}; "
                f"found {kind.__module__}.{kind.__name__}. Convert one of them."
            )
    xp = namespace(like)
    common = xp.result_type(*(block.values.dtype for block in blocks.values()))
    for name, block in blocks.items():
        if block.values.dtype != common:
            blocks[name] = Block(array_like(block.values, like, dtype=common), block.mask, name=name)
    others = tuple(block for name, block in blocks.items() if name != reference)
    return Problem(blocks[reference], others)


def _named(tables: Mapping[str, Any] | Iterable[Any], reference: str | None) -> tuple[dict[str, Any], str]:
    """Return the tables by name, and the name of the reference."""
    named = name_tables(tables)
    if len(named) < 2:
        raise InputError(f"tables: must be at least two; found {len(named)}.")
    if reference is None:
        reference = next(iter(named))
    if reference not in named:
        raise InputError(f"reference: must be one of the tables, {', '.join(map(repr, named))}; found {reference!r}.")
    return named, reference


def name_tables(tables: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return tables by name; those given in order are called reference, table1, table2, ….

    Args:
        tables: a mapping from names to tables, or tables in order.
    """
    if isinstance(tables, Mapping):
        named = {str(name): table for name, table in tables.items()}
        if len(named) < len(tables):
            raise InputError(f"tables: must have different names as text; found {', '.join(map(repr, tables))}.")
        return named
    if isinstance(tables, str) or not isinstance(tables, Iterable) or nw.dependencies.is_into_dataframe(tables):
        raise InputError(
            f"tables: must be a mapping from names to tables, or tables in order; found {type(tables).__name__}."
        )
    return {"reference" if i == 0 else f"table{i}": table for i, table in enumerate(tables)}


@dataclass(frozen=True, eq=False)
class Table:
    """A table as the caller gave it, and the numbers that are used of it.

    Attributes:
        block: the numeric columns, in float64, with names and row labels.
        native: the caller's frame; None when an array was given.
        left_out: names of columns that are not numbers.
        indexed: whether the rows have labels of their own (a pandas index), rather than numbers from 0.
    """

    block: Block
    native: Any = None
    left_out: tuple[str, ...] = ()
    indexed: bool = False

    @property
    def name(self) -> str:
        """What the table is called."""
        return self.block.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns used."""
        return self.block.columns or ()

    @property
    def row_ids(self) -> tuple[Any, ...]:
        """Label of each row."""
        return self.block.row_ids or ()

    @property
    def index(self) -> pd.Index | None:
        """The caller's pandas index, where its labels are more than row numbers."""
        return self.native.index if self.indexed else None

    def column(self, name: str) -> list[Any]:
        """Return one column as it was given, numbers or not."""
        if self.native is not None:
            frame = nw.from_native(self.native, eager_only=True)
            for label in frame.columns:
                if str(label) == name:
                    return list(frame.get_column(label).to_list())
        elif name in self.columns:
            index = self.columns.index(name)
            return list(np.where(self.block.mask[:, index], self.block.values[:, index], np.nan).tolist())
        raise InputError(
            f"{self.name}: must have a column {name!r}; found {', '.join(repr(str(c)) for c in self.all_columns)}."
        )

    @property
    def all_columns(self) -> tuple[Any, ...]:
        """The caller's names of all columns, used or left out, in the caller's order."""
        if self.native is None:
            return self.columns
        return tuple(nw.from_native(self.native, eager_only=True).columns)

    def filled(
        self, values: np.ndarray[Any, np.dtype[Any]], rows: np.ndarray[Any, np.dtype[np.int64]]
    ) -> dict[Any, Any]:
        """Return all columns by name: the used ones with the given numbers, others from `rows` (−1: missing)."""
        return {
            label: values[:, self.columns.index(str(label))]
            if str(label) in self.columns
            else self._gathered(label, rows)
            for label in self.all_columns
        }

    def rebuilt(
        self,
        values: np.ndarray[Any, np.dtype[Any]],
        rows: np.ndarray[Any, np.dtype[np.int64]],
        *,
        index: pd.Index | None = None,
    ) -> Any:
        """Return the caller's kind of table with the given numbers, other columns taken from `rows` (−1: missing).

        Args:
            values: numbers of the used columns.
            rows: row of this table for each row of the result.
            index: row labels of a pandas frame; None: numbers from 0.
        """
        if self.native is None:
            return values.copy()
        return frame_like(self, self.filled(values, rows), index=index)

    def _gathered(self, label: Any, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        taken, alone = np.maximum(rows, 0), rows < 0
        if isinstance(self.native, pd.DataFrame):
            # As a series, so that categories and times stay what they are.
            return self.native[label].iloc[taken].reset_index(drop=True).mask(alone)
        entries = nw.from_native(self.native, eager_only=True).get_column(label).to_list()
        return [None if lonely else entries[row] for row, lonely in zip(taken, alone, strict=True)]


def frame_like(table: Table, columns: Mapping[Any, Any], *, index: pd.Index | None = None) -> Any:
    """Return a frame of the caller's kind; pandas for arrays.

    Args:
        table: the caller's table.
        columns: entries by column name.
        index: row labels of a pandas frame; None: numbers from 0.
    """
    if table.native is None or isinstance(table.native, pd.DataFrame):
        frame = pd.DataFrame(dict(columns))
        return frame if index is None else frame.set_axis(index, axis=0)
    implementation = nw.get_native_namespace(table.native)
    plain = {str(name): list(values) for name, values in columns.items()}
    return nw.from_dict(plain, backend=implementation).to_native()


def read_tables(
    tables: Mapping[str, Any] | Iterable[Any], *, reference: str | None = None
) -> tuple[tuple[Table, ...], str]:
    """Return the tables, the reference first, and the reference's name.

    Args:
        tables: arrays (NaN is missing) or frames (pandas, polars, pyarrow), by name or in order.
        reference: name of the table whose row order the answer is given in; the first unless given.
    """
    named, reference = _named(tables, reference)
    read = {name: read_table(table, name=name) for name, table in named.items()}
    return (read[reference], *(table for name, table in read.items() if name != reference)), reference


def read_table(table: Any, *, name: str) -> Table:
    """Return an array (NaN is missing) or a frame as a `Table`."""
    if isinstance(table, nw.DataFrame):
        table = table.to_native()
    try:
        frame = nw.from_native(table, eager_only=True)
    except DuplicateError as error:
        raise InputError(f"{name}: must have different column names; some occur twice. Rename them.") from error
    except TypeError:
        values = to_numpy(as_matrix(table, name=name, allow_missing=True)).astype(np.float64)
        columns = tuple(f"{name}_{k}" for k in range(values.shape[1]))
        row_ids = tuple(range(values.shape[0]))
        return Table(Block(values, ~np.isnan(values), name, columns, row_ids))
    return _read_frame(frame, table, name)


def _read_frame(frame: Any, native: Any, name: str) -> Table:
    series = {label: frame.get_column(label) for label in frame.columns}
    if len(set(map(str, series))) < len(series):
        raise InputError(f"{name}: must have different column names, as text; some occur twice. Rename them.")
    numeric = [label for label, entries in series.items() if entries.dtype.is_numeric() or entries.dtype == nw.Boolean]
    if not numeric or not len(frame):
        raise InputError(f"{name}: must have at least one row and one column of numbers; found shape {frame.shape}.")
    values = np.column_stack([_numbers(series[label]) for label in numeric])
    as_matrix(values, name=name, allow_missing=True)
    indexed = isinstance(native, pd.DataFrame) and not native.index.equals(pd.RangeIndex(len(native)))
    row_ids: Sequence[Any] = list(native.index) if indexed else range(len(frame))
    left_out = tuple(str(label) for label in frame.columns if label not in numeric)
    block = Block(values, ~np.isnan(values), name, tuple(map(str, numeric)), tuple(row_ids))
    return Table(block, native, left_out, indexed)


def _numbers(series: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(
        [np.nan if value is None or value is pd.NA else float(value) for value in series.to_list()]
        if series.null_count()
        else series.to_numpy(),
        dtype=np.float64,
    )


def with_missingness(table: Table, *, like: Table | None = None) -> Table:
    """Return the table with one more column per column that is sometimes missing: 1 where it is observed, else 0.

    Args:
        table: a table.
        like: the table that says which columns are sometimes missing; None: the table itself.
    """
    share = (table if like is None else like).block.mask.mean(axis=0)
    varying = np.flatnonzero((share > 0) & (share < 1))
    mask = table.block.mask
    values = np.concatenate([table.block.values, mask[:, varying].astype(np.float64)], axis=1)
    seen = np.concatenate([mask, np.ones((mask.shape[0], varying.size), dtype=bool)], axis=1)
    columns = (*table.columns, *(f"{table.columns[k]} is observed" for k in varying))
    return replace(table, block=Block(values, seen, table.name, columns, table.row_ids))
