"""Parquet files of many numbers → tables, a batch of rows at a time.

A file, or a folder of files, of `memory.LARGE_CELLS` cells or more is read in batches straight into one array; the
file's own frame is not kept, and whatever needs its entries reads them again (see `parquet`). The array of a folder is
in a file of its own, mapped into memory: its rows need not fit there, and workers of a cluster write and read their
part of it. That is for files whose columns are numbers, whole numbers and booleans; columns named in `drop`, `within`
or `id` may be of any type. Other files (text, categories, dates, an index of pandas) are read whole, as small ones are.

The array is in single precision, unless that would lose what a column says: where the error of rounding is more than
`ROUNDING` of the column's standard deviation (whole numbers beyond 2²⁴ that differ little, times in seconds), or where
numbers are beyond its range. Then the whole array is in double precision. Where nothing is missing the mask is one True
for all entries, and takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from keyless.arrays import BoolArray, NumpyArray
from keyless.block import Block
from keyless.errors import InputError
from keyless.tables.batches import BUFFERS, ROUNDING, ColumnWatch, kind_of, opened, packed, read_numbers
from keyless.tables.column_use import UsedColumn, is_named_like_id, look
from keyless.tables.columns import Column
from keyless.tables.files import File, check_names, damaged_parquet, file_name
from keyless.tables.ids import doubtful_ids, id_column, is_called_id, named_rows, row_numbers
from keyless.tables.memory import is_large
from keyless.tables.on_disk import NumbersOnDisk
from keyless.tables.parquet import LargeFile, check_entries, keep, parquet_files, to_pandas
from keyless.tables.reading_options import Reading, nothing_used
from keyless.tables.table import Table

__all__ = ["ROUNDING", "read_folder", "read_large"]


def read_large(file: File, *, name: str, source: str, reading: Reading) -> Table | None:
    """Return a large Parquet file of numbers as a table; None for any other, which is to be read whole.

    Args:
        file: a Parquet file.
        name: what to call the table.
        source: the path as it was given.
        reading: how to read it.
    """
    if file.path is None or file.compression is not None or reading.layout != "wide":
        return None
    with file.open():
        try:
            parquet = opened(file.path)
            if not is_large(parquet.metadata.num_rows, parquet.metadata.num_columns):
                return None
            if not _is_plain(parquet.schema_arrow, name, reading):
                return None
            rows = parquet.metadata.num_rows
            return _read(file.path, (file.path,), parquet, rows, name=name, source=source, reading=reading)
        except pa.ArrowException as error:
            raise damaged_parquet(file.where) from error


def read_folder(folder: Path, *, name: str, source: str, reading: Reading) -> Table | pd.DataFrame:
    """Return a folder of Parquet files as a table whose numbers are on disk; a small one, or one with text, as a frame.

    Args:
        folder: where the files are, each with the same columns; their rows follow each other.
        name: what to call the table.
        source: the path as it was given.
        reading: how to read it.
    """
    files = parquet_files(folder)
    if not files:
        raise InputError(f"{file_name(folder)}: must hold Parquet files (.parquet); it is a folder without any.")
    rows, size, schema = 0, 0, None
    for path in files:
        with File(file_name(path), path, True, None).open():
            try:
                about = opened(path)
            except pa.ArrowException as error:
                raise damaged_parquet(file_name(path)) from error
        own = about.schema_arrow.remove_metadata()
        if schema is None:
            schema, first = own, about
        if own != schema:
            raise InputError(
                f"{file_name(path)}: must have the same columns as {file_name(files[0])}, of the same types; it has "
                "not. Write all files of the folder anew, from one table."
            )
        rows, size = rows + about.metadata.num_rows, size + path.stat().st_size
    width = first.metadata.num_columns
    if reading.layout == "wide" and is_large(rows, width) and _is_plain(first.schema_arrow, name, reading):
        return _read(folder, files, first, rows, name=name, source=source, reading=reading)
    check_entries(file_name(folder), reading, size, (rows, width))
    parts = [pq.ParquetFile(str(path)).read() for path in files]
    if not rows:
        raise InputError(f"{file_name(folder)}: must have rows; found none.")
    return to_pandas(pa.concat_tables(parts), where=file_name(folder))


def _is_plain(schema: pa.Schema, name: str, reading: Reading) -> bool:
    """Tell whether a file holds numbers only, besides columns that are not used as such."""
    try:
        about = schema.pandas_metadata or {}
        for level in about.get("index_columns", []):
            if not isinstance(level, dict) or (level["start"], level["step"]) != (0, 1):
                return False
        for labels in about.get("column_indexes", []):
            if labels.get("name") is not None or labels.get("pandas_type") not in ("unicode", "string", "empty"):
                return False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # what it says about pandas is nonsense
    wishes = [reading.wish(name, column.name) for column in schema]
    return all(
        wish in ("drop", "within", "id") or (kind_of(column.type) is not None and wish != "as_category")
        for column, wish in zip(schema, wishes, strict=True)
    )


def _read(
    path: Path, files: Sequence[Path], first: Any, rows: int, *, name: str, source: str, reading: Reading
) -> Table:
    kept, schema = keep(path), first.schema_arrow
    check_names(schema.names, kept.where)
    wishes = [reading.wish(name, given.name) for given in schema]
    columns = [_column(given, wish, kept, rows, reading) for given, wish in zip(schema, wishes, strict=True)]
    found: list[UsedColumn | None] = []
    for given, wish, column in zip(schema, wishes, columns, strict=True):
        looked = None
        if wish in ("drop", "within", "id"):
            looked = look(column, wish)
        elif wish is None and _may_be_id(given):
            looked = look(column, None)
            looked = looked if looked.candidate else None
        found.append(looked)
    # Everything else is a number, and is looked at batch by batch.
    streamed = [number for number, one in enumerate(found) if one is None]
    numbers: _InMemory | NumbersOnDisk = NumbersOnDisk(files) if path.is_dir() else _InMemory(path, reading)
    values, mask, watch = numbers.read(rows, [schema.field(number) for number in streamed])
    for place, number in enumerate(streamed):
        found[number] = watch.found(place, columns[number], as_number=wishes[number] == "as_number")
    complete = [one for one in found if one is not None]
    id_at = id_column(columns, complete, indexed=False)
    uses = named_rows(complete, id_at)
    kept_places = [place for place, number in enumerate(streamed) if uses[number].columns]
    if not kept_places:
        raise nothing_used(uses, rows, where=kept.where)
    values, mask = numbers.packed(values, mask, kept_places)
    mask = np.broadcast_to(np.True_, values.shape) if mask is None else mask
    row_ids = row_numbers(rows) if id_at is None else columns[id_at].series.to_list()
    labels = tuple(use.name for use in uses if use.columns)
    return Table(
        numbers.block(values, mask, name, labels, row_ids),
        uses=uses,
        notes=tuple(doubtful_ids(columns, complete)),
        source=source,
        id_column=None if id_at is None else columns[id_at].name,
        form="frame",
        large_file=kept,
        keeps=numbers,
    )


def _may_be_id(given: pa.Field) -> bool:
    return kind_of(given.type) == "integer" and is_named_like_id(given.name)


def _column(given: pa.Field, wish: str | None, kept: LargeFile, rows: int, reading: Reading) -> Column:
    """Return a column; its entries are read only where the column may name the rows."""
    series: Any = range(rows)
    if wish == "id" or is_called_id(given.name) or _may_be_id(given):
        series = nw.from_native(kept.frame(given.name)[given.name], series_only=True)
    return Column(given.name, series, where=kept.where, door=reading.door)


class _InMemory:
    """The numbers of a file, 0 where missing, in single precision where that is enough; a mask where some are."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path, self.reading = path, reading

    def read(self, rows: int, fields: Sequence[pa.Field]) -> tuple[NumpyArray, BoolArray | None, ColumnWatch]:
        """Return the numbers of some columns, their mask, and what was seen of them."""
        width = len(fields)
        for dtype in (np.float32, np.float64):
            self.reading.check_memory(
                rows * width * (np.dtype(dtype).itemsize + 1) + 2 * BUFFERS,
                where=file_name(self.path),
                what=f"a table of {rows} × {width} numbers",
            )
            watch = ColumnWatch(fields, check=dtype == np.float32)
            values = np.empty((rows, width), dtype=dtype)
            mask = read_numbers(self.path, watch, values) if width else None
            if watch.precise:
                return values, mask, watch
        raise AssertionError  # double precision is always enough

    def packed(self, values: NumpyArray, mask: Any, kept: Sequence[int]) -> tuple[NumpyArray, Any]:
        """Return the columns that are kept; nobody writes to them from here on, so that nobody needs a copy."""
        values, mask = packed(values, kept), None if mask is None else packed(mask, kept)
        values.flags.writeable = False
        return values, mask

    def block(self, *given: Any) -> Block:
        return Block(*given)
