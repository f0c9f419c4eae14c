"""A table as the caller gave it, the numbers that are used of it, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from keyless.arrays import BoolArray, FloatArray, IntArray
from keyless.block import Block
from keyless.errors import InputError
from keyless.tables import matrices
from keyless.tables.frames import Dialect, Form, build, taken, to_records
from keyless.tables.on_disk import NumbersOnDisk
from keyless.tables.parquet import LargeFile
from keyless.tables.reading_options import ColumnUse

__all__ = ["Table", "frame_like", "with_missingness"]


@dataclass(frozen=True, eq=False)
class Table:
    """A table as the caller gave it, and the numbers that are used of it.

    Attributes:
        block: the numbers, with names and row labels; in float64, large tables often in float32.
        native: the caller's frame or AnnData, a frame of text for a text file; None when an array or a large file was
            given.
        indexed: whether the rows have labels of their own (a pandas index), rather than numbers from 0.
        uses: what became of each column, in the caller's order.
        notes: what there is to say about how it was read.
        source: the path it was read from.
        id_column: name of the column that names the rows, where one does.
        form: what kind of thing was given.
        matrix: the array or sparse matrix given, where the block does not hold all of it.
        unstored_missing: whether what a sparse matrix does not store is missing, rather than 0.
        large_file: the large file whose entries are read again when they are asked for.
        dialect: how the file it was read from is written.
        keeps: what must stay as long as the table does: the numbers of a folder, in a file of their own.
    """

    block: Block
    native: Any = None
    indexed: bool = False
    uses: tuple[ColumnUse, ...] = ()
    notes: tuple[str, ...] = ()
    source: str | None = None
    id_column: str | None = None
    form: Form = "array"
    matrix: Any = field(default=None, repr=False)
    unstored_missing: bool = False
    large_file: LargeFile | None = None
    dialect: Dialect = field(default_factory=Dialect)
    keeps: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        used = sum(bool(use.columns) for use in self.uses)
        return f"Table {self.name!r}: {self.block.shape[0]:,} rows, {used} of {len(self.uses)} columns used"

    @property
    def name(self) -> str:
        """What the table is called."""
        return self.block.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the block's columns."""
        return self.block.columns or ()

    @property
    def row_ids(self) -> Sequence[Any]:
        """Label of each row."""
        return self.block.row_ids or ()

    @property
    def index(self) -> pd.Index | None:
        """The caller's pandas index, where its labels are more than row numbers."""
        if not self.indexed:
            return None
        index: pd.Index = self.native.obs_names if self.form == "anndata" else self.native.index
        return index

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of columns that are not used."""
        return tuple(use.name for use in self.uses if use.kind in ("id", "left out"))

    @property
    def all_columns(self) -> tuple[Any, ...]:
        """The caller's names of all columns, used or left out, in the caller's order."""
        if self.native is None:
            return tuple(use.name for use in self.uses)
        if self.form == "anndata":
            return tuple(self.native.var_names)
        return tuple(self._frame.columns)

    def column(self, name: str) -> list[Any]:
        """Return one column as it was given; of text files numbers as such, and None where missing."""
        if name in [use.name for use in self.uses]:
            number = [use.name for use in self.uses].index(name)
            if self.form in ("array", "sparse", "anndata"):
                return list(matrices.column(self.block, self.matrix, self.uses, number).tolist())
            use, label = self.uses[number], self.all_columns[number]
            if self.form == "cells":
                return self._read_cells(use, label)
            if self.large_file is not None:
                return self.large_file.column(label)
            return list(self._frame.get_column(label).to_list())
        if self.form == "anndata" and name in self.native.obs.columns:
            return list(self.native.obs[name].tolist())
        found = ", ".join(repr(str(column)) for column in self.all_columns[:20])
        raise InputError(f"{self.name}: must have a column {name!r}; found {found}.")

    def levels(self, use: ColumnUse) -> list[Any]:
        """Return the entries that the levels of a category stand for, in its order."""
        if use.coding is None or not use.coding.exemplars:
            return []
        entries = self.column(use.name)
        return [entries[row] for row in use.coding.exemplars]

    def _read_cells(self, use: ColumnUse, label: Any) -> list[Any]:
        if use.kind in ("number", "integer"):
            at = self.columns.index(use.columns[0])
            values = self.block.values[:, at].tolist()
            seen = self.block.mask[:, at].tolist()
            kind = int if use.kind == "integer" else float
            return [kind(value) if known else None for value, known in zip(values, seen, strict=True)]
        entries = self.native[label].tolist()
        if use.columns:
            seen = self.block.mask[:, self.columns.index(use.columns[0])].tolist()
            return [entry.strip() if known else None for entry, known in zip(entries, seen, strict=True)]
        return [None if entry is pd.NA or not entry.strip() else entry.strip() for entry in entries]

    @cached_property
    def _frame(self) -> Any:
        return nw.from_native(self.native, eager_only=True)

    def observed(self, rows: IntArray) -> list[BoolArray]:
        """Return, for each column, where it is observed in `rows` (−1: nowhere) or not used at all."""
        return [self._observed(use, rows) for use in self.uses]

    def _observed(self, use: ColumnUse, rows: IntArray) -> BoolArray:
        if not use.columns:
            return np.ones(len(rows), dtype=bool)
        seen: BoolArray = self.block.mask[np.maximum(rows, 0), self.places[use.columns[0]]] & (rows >= 0)
        return seen

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of each of `columns`, by its name."""
        return {name: number for number, name in enumerate(self.columns)}

    def entries(self, values: FloatArray, rows: IntArray) -> dict[Any, Any]:
        """Return all columns by name, rows in a new order, what is not observed filled.

        Args:
            values: numbers of the block's columns for each row of the result; those observed are not looked at.
            rows: row of this table for each row of the result, −1 for none.
        """
        return dict(self.each_entry(values, rows))

    def each_entry(self, values: FloatArray | None, rows: IntArray) -> Iterator[tuple[Any, Any]]:
        """Yield name and entries of each column, as `entries` returns them; one column of a large file at a time.

        Without values nothing is filled: entries of frames are missing then, and those of arrays are 0.
        """
        if self.form in ("array", "sparse", "anndata"):
            nothing = np.broadcast_to(0.0, (len(rows), len(self.columns)))
            whole = self._whole(nothing if values is None else values, rows)
            yield from ((label, whole[:, k]) for k, label in enumerate(self.all_columns))
            return
        frame = self.native if isinstance(self.native, pd.DataFrame) or self.large_file is not None else self._frame
        for label, use in zip(self.all_columns, self.uses, strict=True):
            source = frame if self.large_file is None else self.large_file.frame(label)
            seen = self._observed(use, rows)
            if values is None:
                yield label, taken(source, label, np.where(seen, rows, -1))
            else:
                own = values[:, [self.places[name] for name in use.columns]]
                yield label, taken(source, label, rows, use=use, values=own, observed=seen)

    def rebuilt(self, values: FloatArray, rows: IntArray, *, index: pd.Index | None = None) -> Any:
        """Return the caller's kind of table: observed entries as they are, others filled with the given numbers.

        Args:
            values: numbers of the block's columns for each row of the result; those observed are not looked at.
            rows: row of this table for each row of the result, −1 for none.
            index: row labels of a pandas frame; None: numbers from 0.
        """
        if self.form in ("array", "sparse", "anndata"):
            whole = self._whole(values, rows)
            some = self.form == "sparse" and whole.dtype.kind == "f"
            return self._matrix(whole, rows, index, known=~np.isnan(whole) if some else None)
        return self._framed(self.entries(values, rows), index)

    def marked(self, rows: IntArray, *, index: pd.Index | None = None) -> Any:
        """Return the same kind of table as `rebuilt` with True where an entry was filled.

        Args:
            rows: row of this table for each row of the result, −1 for none.
            index: row labels of a pandas frame; None: numbers from 0.
        """
        filled = [~seen for seen in self.observed(rows)]
        if self.form in ("array", "sparse", "anndata"):
            return self._matrix(np.column_stack(filled), rows, index, known=None)
        return self._framed(dict(zip(self.all_columns, filled, strict=True)), index)

    def _whole(self, values: FloatArray, rows: IntArray) -> Any:
        missing = self.unstored_missing
        return matrices.filled(self.block, self.matrix, self.uses, values, rows, unstored_missing=missing)

    def _framed(self, columns: Mapping[Any, Any], index: pd.Index | None) -> Any:
        made = frame_like(self, columns, index=index)
        if isinstance(made, pd.DataFrame) and self.native is not None:
            made.columns = self.native.columns
        return made

    def _matrix(self, whole: Any, rows: IntArray, index: pd.Index | None, *, known: BoolArray | None) -> Any:
        if self.form == "sparse":
            return matrices.as_sparse(whole, like=self.matrix, known=known)
        if self.form == "anndata":
            return matrices.as_anndata(whole, like=self.native, rows=rows, index=index, name=self.name)
        return whole


def frame_like(table: Table, columns: Mapping[Any, Any], *, index: pd.Index | None = None) -> Any:
    """Return a frame of the caller's kind; pandas for arrays and files.

    Args:
        table: the caller's table.
        columns: entries by column name.
        index: row labels of a pandas frame; None: numbers from 0.
    """
    frame = build(columns, like=None if table.form in ("array", "sparse", "anndata") else table.native, index=index)
    if table.form == "records":
        return to_records(frame)
    return frame.lazy() if table.form == "lazy" else frame


def with_missingness(table: Table, *, like: Table | None = None) -> Table:
    """Return the table with one more column per column that is sometimes missing: 1 where it is observed, else 0.

    Args:
        table: a table.
        like: the table that says which columns are sometimes missing; None: the table itself.
    """
    share = (table if like is None else like).block.mask.mean(axis=0)
    varying = np.flatnonzero((share > 0) & (share < 1))
    if not varying.size:
        return table
    if isinstance(table.keeps, NumbersOnDisk):
        raise InputError(
            f"missingness: must not be asked for where numbers are on disk, as those of {table.name!r} are: they would "
            "be read into memory. Leave it out, or give the table as one file."
        )
    mask = table.block.mask
    values = np.concatenate([table.block.values, mask[:, varying].astype(table.block.values.dtype)], axis=1)
    seen = np.concatenate([mask, np.ones((mask.shape[0], varying.size), dtype=bool)], axis=1)
    columns = (*table.columns, *(f"{table.columns[k]} is observed" for k in varying))
    return replace(table, block=Block(values, seen, table.name, columns, table.row_ids))
