"""Tables as users have them ↔ blocks. NaN means missing here, and only here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from keyless.arrays import array_like, as_matrix, namespace, to_numpy
from keyless.errors import InputError
from keyless.problem import Block, Problem

__all__ = ["Table", "frame_like", "read_tables", "to_block", "to_problem"]


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
    if isinstance(tables, Mapping):
        named = {str(name): table for name, table in tables.items()}
    else:
        named = {"reference" if i == 0 else f"table{i}": table for i, table in enumerate(tables)}
    if len(named) < 2:
        raise InputError(f"tables: must be at least two; found {len(named)}.")
    if reference is None:
        reference = next(iter(named))
    if reference not in named:
        raise InputError(f"reference: must be one of the tables, {', '.join(map(repr, named))}; found {reference!r}.")
    return named, reference


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

    def column(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return one column as it was given, numbers or not."""
        if self.native is not None:
            frame = nw.from_native(self.native, eager_only=True)
            if name in frame.columns:
                return np.asarray(frame[name].to_numpy())
        elif name in self.columns:
            index = self.columns.index(name)
            return np.where(self.block.mask[:, index], self.block.values[:, index], np.nan)
        raise InputError(f"{self.name}: must have a column {name!r}; found {', '.join(map(repr, self.all_columns))}.")

    @property
    def all_columns(self) -> tuple[str, ...]:
        """Names of all columns, used or left out, in the caller's order."""
        if self.native is None:
            return self.columns
        return tuple(nw.from_native(self.native, eager_only=True).columns)

    def rebuilt(self, values: np.ndarray[Any, np.dtype[Any]], rows: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        """Return the caller's kind of table with the given numbers, other columns taken from `rows` (−1: missing)."""
        if self.native is None:
            return values
        frame = nw.from_native(self.native, eager_only=True)
        taken, alone = np.maximum(rows, 0), rows < 0
        columns: dict[str, Any] = {}
        for name in frame.columns:
            if name in self.columns:
                columns[name] = values[:, self.columns.index(name)]
            else:
                entries = list(frame[name].to_list())
                columns[name] = [None if lonely else entries[row] for row, lonely in zip(taken, alone, strict=True)]
        return frame_like(self, columns)


def frame_like(table: Table, columns: Mapping[str, Any]) -> Any:
    """Return a frame of the caller's kind; pandas for arrays."""
    if table.native is None:
        return pd.DataFrame(dict(columns))
    implementation = nw.get_native_namespace(table.native)
    return nw.from_dict({name: list(values) for name, values in columns.items()}, backend=implementation).to_native()


def read_tables(
    tables: Mapping[str, Any] | Iterable[Any], *, reference: str | None = None
) -> tuple[tuple[Table, ...], str]:
    """Return the tables, the reference first, and the reference's name.

    Args:
        tables: arrays (NaN is missing) or frames (pandas, polars, pyarrow), by name or in order.
        reference: name of the table whose row order the answer is given in; the first unless given.
    """
    named, reference = _named(tables, reference)
    read = {name: _read(table, name) for name, table in named.items()}
    return (read[reference], *(table for name, table in read.items() if name != reference)), reference


def _read(table: Any, name: str) -> Table:
    if isinstance(table, nw.DataFrame):
        table = table.to_native()
    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError:
        values = to_numpy(as_matrix(table, name=name, allow_missing=True)).astype(np.float64)
        columns = tuple(f"{name}_{k}" for k in range(values.shape[1]))
        row_ids = tuple(range(values.shape[0]))
        return Table(Block(values, ~np.isnan(values), name, columns, row_ids))
    return _read_frame(frame, table, name)


def _read_frame(frame: Any, native: Any, name: str) -> Table:
    if len(set(frame.columns)) < len(frame.columns):
        raise InputError(f"{name}: must have different column names; some occur twice. Rename them.")
    numeric = [
        column for column in frame.columns if frame[column].dtype.is_numeric() or frame[column].dtype == nw.Boolean
    ]
    if not numeric or not len(frame):
        raise InputError(f"{name}: must have at least one row and one column of numbers; found shape {frame.shape}.")
    values = np.column_stack([_numbers(frame[column]) for column in numeric])
    as_matrix(values, name=name, allow_missing=True)
    indexed = isinstance(native, pd.DataFrame) and not isinstance(native.index, pd.RangeIndex)
    row_ids: Sequence[Any] = list(native.index) if indexed else range(len(frame))
    left_out = tuple(column for column in frame.columns if column not in numeric)
    block = Block(values, ~np.isnan(values), name, tuple(map(str, numeric)), tuple(row_ids))
    return Table(block, native, left_out, indexed)


def _numbers(series: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(
        [np.nan if value is None else float(value) for value in series.to_list()]
        if series.null_count()
        else series.to_numpy(),
        dtype=np.float64,
    )
