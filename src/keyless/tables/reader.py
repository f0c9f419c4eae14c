"""Anything that is a table → `Table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa
from narwhals.exceptions import DuplicateError

from keyless.block import Block
from keyless.cluster import ScratchFolder
from keyless.errors import InputError
from keyless.tables.batches import numbers_of
from keyless.tables.column_use import UsedColumn, check_marks, encode, look
from keyless.tables.columns import Column, first_signalling
from keyless.tables.databases import is_sqlite, read_duckdb, read_sqlite
from keyless.tables.files import STDIN, File, file_name, open_file, read_text
from keyless.tables.frames import Dialect, Form, Given, as_text, from_records, without_views
from keyless.tables.ids import doubtful_ids, id_column, named_rows, row_numbers
from keyless.tables.large import read_folder, read_large
from keyless.tables.long_layout import widened
from keyless.tables.matrices import dense, is_anndata, is_sparse, read_anndata, read_array, read_h5ad, read_sparse
from keyless.tables.memory import is_large, memory_needed
from keyless.tables.on_disk import NumbersOnDisk
from keyless.tables.parquet import read_parquet, to_pandas
from keyless.tables.places import place_of
from keyless.tables.reading_options import ColumnUse, Reading, check_named, nothing_used, shown
from keyless.tables.spreadsheets import read_sheet
from keyless.tables.table import Table
from keyless.tables.table_names import name_reference

__all__ = ["read_cells", "read_like", "read_table", "read_tables"]

FEW_ROWS = 5
"""A table with fewer rows gets a note: nothing much can be told from it."""


def read_tables(
    tables: Mapping[str, Any] | Iterable[Any],
    *,
    reference: str | None = None,
    reading: Reading | None = None,
    to_link: bool = True,
) -> tuple[tuple[Table, ...], str]:
    """Return the tables, the reference first, and the reference's name.

    Args:
        tables: whatever `read_table` reads, by name or in order.
        reference: name of the table whose row order the answer is given in; the first unless given.
        reading: how to read them.
        to_link: refuse tables for whose linking there is not enough memory.
    """
    reading = Reading() if reading is None else reading
    named, reference = name_reference(tables, reference)
    if sum(isinstance(table, str) and table == STDIN for table in named.values()) > 1:
        raise InputError("tables: must name standard input ('-') once; found it twice.")
    read = {name: _read(table, name, reading) for name, table in named.items()}
    check_named(list(read.values()), reading)
    ordered = (read[reference], *(table for name, table in read.items() if name != reference))
    if not to_link:
        return ordered, reference
    sizes = " and ".join(str(table.block.shape[0]) for table in ordered)
    there = [not isinstance(table.keeps, NumbersOnDisk) for table in ordered]
    reading.check_memory(
        memory_needed([table.block.shape for table in ordered], in_memory=there),
        where="tables",
        what=f"linking tables of {sizes} rows",
        held=sum(_held(table.block) for table, here in zip(ordered, there, strict=True) if here),
    )
    return ordered, reference


def _held(block: Block) -> int:
    """Return the bytes a block takes; a mask that is one True for all entries takes none."""
    return int(block.values.nbytes + (block.mask.nbytes if any(block.mask.strides) else 0))


def read_table(table: Any, *, name: str, reading: Reading | None = None) -> Table:
    """Return a table with the numbers that are used of it.

    Args:
        table: an array (NaN is missing), a frame (pandas, polars, pyarrow and others that narwhals knows, eager or
            lazy), a list of dictionaries, a sparse matrix, an AnnData, a frame of Dask (its index is not used), the
            path of a CSV, TSV, Parquet or AnnData file, or of a folder of Parquet files, `"file.xlsx::sheet"`,
            `"file.db::table"`, `"-"` for standard input, or a table that was read before.
        name: what to call it.
        reading: how to read it.

    Tables of `memory.LARGE_CELLS` cells and more are held once. Beside a frame there are its numbers, in single
    precision where that is enough. A Parquet file of numbers is read in batches (see `large`), and an array is used
    where it is, in its own precision, also when it is mapped into memory from a file: it must not be changed while the
    table is in use.

    Example:
        >>> table = read_table([{"sex": s, "age": a} for s, a in zip("FMFFMM", range(6))], name="clinic")
        >>> [(use.name, use.kind, use.columns) for use in table.uses]
        [('sex', 'category', ('sex=F',)), ('age', 'integer', ('age',))]
    """
    reading = Reading() if reading is None else reading
    read = _read(table, name, reading)
    check_named([read], reading)
    return read


def _read(table: Any, name: str, reading: Reading) -> Table:
    reading = reading.of(name)
    if isinstance(table, Table):
        return replace(table, block=replace(table.block, name=name))
    source = str(table) if isinstance(table, str | Path) else None
    if isinstance(table, str | Path) and place_of(table).kind == "anndata":
        table = read_h5ad(place_of(table), reading)
    if isinstance(table, str | Path):
        read = _read_path(table, name, reading)
    elif _is_dask(table):
        read = _read_dask(table, name, reading)
    elif is_anndata(table):
        block, matrix, uses = read_anndata(table, name=name, reading=reading)
        missing = reading.unstored == "missing"
        read = Table(
            block,
            table,
            indexed=True,
            uses=uses,
            source=source,
            form="anndata",
            matrix=matrix,
            unstored_missing=missing,
        )
    elif is_sparse(table):
        block, matrix, uses = read_sparse(table, name=name, reading=reading)
        missing = reading.unstored != "zero"
        read = Table(block, uses=uses, form="sparse", matrix=matrix, unstored_missing=missing)
    elif (given := _framed(table, name)) is not None:
        read = _read_frame(_laid_out(given, reading), name, reading)
    else:
        block, matrix, uses = read_array(table, name=name, reading=reading)
        read = Table(block, uses=uses, matrix=matrix)
    rows = read.block.shape[0]
    if rows < FEW_ROWS:
        read = replace(read, notes=(*read.notes, f"{rows} rows are too few to tell a link from chance"))
    return read


def _is_dask(table: Any) -> bool:
    return type(table).__module__.startswith("dask.") and hasattr(table, "to_parquet")


def _read_dask(table: Any, name: str, reading: Reading) -> Table:
    """Read a frame of Dask: its partitions become files of a folder, written by whoever computes them."""
    scratch = ScratchFolder()
    folder = scratch.path / name.replace("/", "-")
    table.to_parquet(str(folder), write_index=False)
    read = _read_path(folder, name, reading)
    if isinstance(read.keeps, NumbersOnDisk):
        read.keeps.source = scratch
    return replace(read, source=None)


def _framed(table: Any, name: str) -> Given | None:
    """Return a frame of any library, or dictionaries one per row; None for anything else."""
    if isinstance(table, list | tuple) and table and all(isinstance(row, Mapping) for row in table):
        records = from_records(table)
        _check_signalling(records, name)
        return Given(records, name, "records")
    if isinstance(table, nw.DataFrame | nw.LazyFrame):
        table = table.to_native()
    if isinstance(table, pa.Table):
        table = without_views(table)
    if isinstance(table, pd.DataFrame):
        _check_signalling(table, name)
    try:
        frame = nw.from_native(table)
        if isinstance(frame, nw.LazyFrame):
            # Only polars' lazy frames can be had again from eager ones.
            lazy = frame.implementation.is_polars()
            return Given(frame.collect().to_native(), name, "lazy" if lazy else "frame")
        nw.from_native(table, eager_only=True).columns  # noqa: B018 — asking finds columns that occur twice
    except DuplicateError as error:
        twice = _first_twice(map(str, getattr(table, "columns", ())))
        said = "some occur" if twice is None else f"{shown(twice)} occurs"
        raise InputError(f"{name}: must have different column names; {said} twice. Rename one.") from error
    except TypeError:
        return None
    return Given(table, name)


def _check_signalling(frame: pd.DataFrame, name: str) -> None:
    """Refuse decimals that no library can compare or copy: those that signal, and among labels all that are NaN."""
    if (row := first_signalling(frame.index, quiet=True)) is not None:
        raise InputError(f"{name}, index, row {row}: must be a label; found {frame.index[row]}. Replace it.")
    for place, kind in enumerate(frame.dtypes):
        if kind.kind == "O" and (row := first_signalling(frame.iloc[:, place])) is not None:
            label = shown(frame.columns[place])
            raise InputError(
                f"{name}, column {label}, row {row}: must be a number or missing; found sNaN. Replace it by NaN."
            )


def _read_path(path: str | Path, name: str, reading: Reading) -> Table:
    file = None
    if place_of(path).kind == "file":
        if Path(path).is_dir():
            folder = read_folder(Path(path), name=name, source=str(path), reading=reading)
            if isinstance(folder, Table):
                return folder
            return _read_frame(_laid_out(Given(folder, file_name(path), source=str(path)), reading), name, reading)
        file = open_file(path, max_memory=reading.max_memory)
        large = read_large(file, name=name, source=str(path), reading=reading) if file.parquet else None
        if large is not None:
            return large
    return _read_frame(_read_whole(path, reading, file), name, reading)


def _read_whole(path: str | Path, reading: Reading, file: File | None = None) -> Given:
    """Read a file, or a sheet or table in one, as a frame.

    Args:
        path: where it is.
        reading: how to read it.
        file: the same, where it is open already: standard input is read once.
    """
    place = place_of(path)
    if place.kind == "sheet":
        given = read_sheet(place, reading)
    elif place.kind == "database":
        given = read_sqlite(place, reading) if is_sqlite(place.path) else read_duckdb(place, reading)
    else:
        file = open_file(path, max_memory=reading.max_memory) if file is None else file
        given = read_parquet(file, reading) if file.parquet else read_text(file, reading)
    return _laid_out(replace(given, source=None if str(path) == STDIN else str(path)), reading)


def read_cells(path: str | Path, reading: Reading | None = None) -> pd.DataFrame:
    """Return a file as a frame of text, with column names in its first line, and nothing else recognised.

    Args:
        path: a file, or a sheet or table in it.
        reading: how to read it.
    """
    reading = replace(Reading() if reading is None else reading, skip=0, header=1, footer=0, layout="wide")
    frame: pd.DataFrame = _read_whole(path, reading).frame
    return frame.map(lambda cell: "" if pd.isna(cell) else str(cell))


def _laid_out(given: Given, reading: Reading) -> Given:
    """Return a frame in the wide layout."""
    if reading.layout == "wide":
        return given
    native = given.frame
    if isinstance(native, pa.Table):
        frame = to_pandas(native, where=given.where)
    else:
        frame = nw.from_native(native, eager_only=True).to_pandas()
    wide, notes = widened(frame, where=given.where, reading=reading, is_file=given.is_file)
    form: Form = "cells" if given.is_file else "frame"
    return replace(given, frame=wide, form=form, notes=given.notes + notes, line=lambda _row: None)


def _first_twice(labels: Iterable[str]) -> str | None:
    """Return the first label that occurs twice; None where all differ."""
    return next((label for label, count in Counter(labels).items() if count > 1), None)


def _read_frame(given: Given, name: str, reading: Reading) -> Table:
    frame = nw.from_native(given.frame, eager_only=True)
    labels = [str(label) for label in frame.columns]
    twice = _first_twice(labels)
    if twice is not None:
        raise InputError(
            f"{given.where}: must have different column names, as text; {shown(twice)} occurs twice. Rename one."
        )
    for label in labels:
        if label != as_text(label):
            # pandas 3 can hold such a name, but hardly anything can be done with it there.
            raise InputError(
                f"{given.where}: must have column names that are text; {shown(label)} holds half a character. Rename "
                "that column."
            )
    if 0 in frame.shape:
        raise InputError(
            f"{given.where}: must have at least one row and one column of numbers; found shape {frame.shape}."
        )
    columns = [
        _column(given, reading, label, frame.get_column(whole))
        for label, whole in zip(labels, frame.columns, strict=True)
    ]
    indexed = given.index is not None
    looks = [partial(_look, column, reading.wish(name, column.name)) for column in columns]
    if is_large(*frame.shape):
        values, mask, found = numbers_of(looks, len(frame))
    else:
        found = [look_at() for look_at in looks]
        values = np.concatenate([one.values for one in found], axis=1)
        mask = ~np.isnan(values)
    if given.is_file:
        check_marks(columns, found)
    # The long layout has its rows named already, and its columns are entries, none of them an id.
    id_at = None if indexed and reading.layout == "long" else id_column(columns, found, indexed=indexed)
    uses = named_rows(found, id_at)
    row_ids: Any = row_numbers(len(frame))
    if id_at is not None:
        row_ids = frame.get_column(frame.columns[id_at]).to_list()
    elif indexed:
        row_ids = given.index
    if not values.shape[1]:
        raise nothing_used(uses, len(frame), where=given.where)
    block_columns = tuple(column for use in uses for column in use.columns)
    if len(set(block_columns)) < len(block_columns):
        twice = next(column for column in block_columns if block_columns.count(column) > 1)
        raise InputError(
            f"{given.where}: must have different names; {shown(twice)} is a column and a level of a category. "
            "Rename one."
        )
    block = Block(values, mask, name, block_columns, row_ids)
    return Table(
        block,
        given.frame,
        indexed=indexed,
        uses=uses,
        notes=(*given.notes, *doubtful_ids(columns, found)),
        source=given.source,
        id_column=None if id_at is None else labels[id_at],
        form=given.form,
        dialect=_with_mark(given.dialect, uses, reading),
    )


def _look(column: Column, wish: str | None) -> UsedColumn:
    """Look at a column as a copy: what it works out about its cells is not kept beside that of all others."""
    return look(replace(column), wish)


def _with_mark(dialect: Dialect, uses: Sequence[ColumnUse], reading: Reading) -> Dialect:
    """Return a dialect with the decimal mark that the columns have, or that the caller says they have."""
    codings = (use.coding for use in uses if use.kind in ("number", "integer"))
    commas = any(coding is not None and coding.decimal == "," for coding in codings)
    return replace(dialect, decimal=",") if commas or reading.mark == "," else dialect


def _column(given: Given, reading: Reading, label: str, series: Any) -> Column:
    return Column(
        label,
        series,
        where=given.where,
        is_file=given.is_file,
        markers=reading.missing,
        decimal="." if label in given.typed else reading.mark,
        line=given.line,
        door=reading.door,
    )


def read_like(rows: Any, *, like: Table, reading: Reading | None = None) -> Table:
    """Return new rows of a known table, every column used as it is used there.

    Args:
        rows: a frame or file with columns of that table, in any order, or an array with the columns of its block.
            Columns that are not there count as missing.
        like: the known table.
        reading: how to read a file.
    """
    reading = (Reading() if reading is None else reading).of(like.name)
    if isinstance(rows, str | Path) and place_of(rows).kind == "anndata":
        rows = read_h5ad(place_of(rows), reading)
    if isinstance(rows, str | Path):
        given: Given | None = _read_whole(rows, reading)
    elif is_anndata(rows) or is_sparse(rows):
        given = None
    else:
        given = _laid_out(framed, reading) if (framed := _framed(rows, like.name)) is not None else None
    if given is None:
        return _like_matrix(rows, like, reading)
    frame = nw.from_native(given.frame, eager_only=True)
    labels = {str(label): label for label in frame.columns}
    if not any(use.name in labels for use in like.uses if use.columns):
        raise InputError(f"rows: must have at least one of the columns of {like.name}, {', '.join(like.columns)}.")
    if not len(frame):
        raise InputError("rows: must be at least one; found none.")
    parts = []
    for use in like.uses:
        if use.columns and use.name in labels:
            column = _column(given, reading, use.name, frame.get_column(labels[use.name]))
            parts.append(encode(column, use, like.levels(use)))
        elif use.columns:
            parts.append(np.full((len(frame), len(use.columns)), np.nan))
    values = np.concatenate(parts, axis=1)
    row_ids: Any = row_numbers(len(frame))
    if like.id_column is not None and like.id_column in labels:
        row_ids = frame.get_column(labels[like.id_column]).to_list()
    elif given.index is not None:
        row_ids = given.index
    block = Block(values, ~np.isnan(values), like.name, like.columns, row_ids)
    return Table(block, given.frame, indexed=given.index is not None, uses=like.uses, form=given.form)


def _like_matrix(rows: Any, like: Table, reading: Reading) -> Table:
    """Return an array with the columns of the block, or with all columns of an array that was given."""
    row_ids: Any = None
    if is_anndata(rows):
        places = {str(name): k for k, name in enumerate(rows.var_names)}
        there = [k for k, name in enumerate(like.columns) if name in places]
        if not there:
            raise InputError(f"rows: must have at least one of the variables of {like.name}.")
        values = np.full((rows.n_obs, len(like.columns)), np.nan)
        given_values = dense(rows.X, zero=reading.unstored != "missing")
        values[:, there] = given_values[:, [places[like.columns[k]] for k in there]]
        row_ids = tuple(rows.obs_names)
    else:
        zero = reading.unstored == "zero" or (reading.unstored == "auto" and like.form == "anndata")
        block, _, _ = read_array(dense(rows, zero=zero), name=like.name, reading=Reading())
        values = np.where(block.mask, block.values, np.nan)
        if like.native is None and values.shape[1] == len(like.uses):
            values = values[:, [k for k, use in enumerate(like.uses) if use.columns]]
        row_ids = block.row_ids
    columns = like.columns if values.shape[1] == len(like.columns) else None
    return Table(Block(values, ~np.isnan(values), like.name, columns, row_ids), uses=like.uses)
