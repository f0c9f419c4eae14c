"""Parquet files of many numbers → tables, a batch of rows at a time.

A file of `memory.LARGE_CELLS` cells or more is read in batches straight into one array; the file's own frame is not
kept, and whatever needs its entries reads them again (see `kept`). That is for files whose columns are numbers, whole
numbers and booleans; columns named in `drop`, `within` or `id` may be of any type. Other files (text, categories,
dates, an index of pandas) are read whole, as small ones are.

The array is in single precision, unless that would lose what a column says: where the error of rounding is more than
`ROUNDING` of the column's standard deviation (whole numbers beyond 2²⁴ that differ little, times in seconds), or where
numbers are beyond its range. Then the whole array is in double precision. Where nothing is missing the mask is one True
for all entries, and takes no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keyless.arrays import batches
from keyless.errors import InputError
from keyless.problem import Block
from keyless.tables.column_use import Found, is_named_like_id, look, refuse_infinity, says_nothing
from keyless.tables.columns import Coding, Column
from keyless.tables.files import File, check_names, file_name
from keyless.tables.ids import doubtful_ids, id_column, is_called_id, named_rows, row_numbers
from keyless.tables.large_file import LargeFile, keep
from keyless.tables.memory import check_memory, is_large
from keyless.tables.reading_options import ColumnUse, Kind, Reading, option, shown
from keyless.tables.table import Table

__all__ = ["ROUNDING", "read_large"]

Values = np.ndarray[Any, np.dtype[Any]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

ROUNDING = 1e-4
"""Single precision is enough where its errors are at most this share of a column's standard deviation."""

_CELLS_AT_A_TIME = 2**17
_ROWS_AT_A_TIME = 1024
"""A batch has so many cells, or so many rows where there are many columns."""

_STEPS_PER_BATCH = 8
"""Files are read faster in batches of more rows than are looked at together."""

_BUFFERS = 2**24
"""Bytes of the file that are read ahead, over all columns."""


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
            parquet = _opened(file.path)
            if not is_large(parquet.metadata.num_rows, parquet.metadata.num_columns):
                return None
            if not _is_plain(parquet.schema_arrow, name, reading):
                return None
            return _read(file.path, parquet, name=name, source=source, reading=reading)
        except pa.ArrowException as error:
            raise InputError(f"{file.where}: must be a Parquet file; it is damaged or of another kind.") from error


def _opened(path: Path, columns: int = 1) -> Any:
    # Without a buffer of its own, each column is read for a whole group of rows at once.
    return pq.ParquetFile(str(path), buffer_size=min(max(_BUFFERS // columns, 2**13), 2**20), pre_buffer=False)


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
        wish in ("drop", "within", "id") or (_kind(column.type) is not None and wish != "as_category")
        for column, wish in zip(schema, wishes, strict=True)
    )


def _kind(given: pa.DataType) -> Kind | None:
    if pa.types.is_boolean(given):
        return "boolean"
    if pa.types.is_integer(given):
        return "integer"
    return "number" if pa.types.is_floating(given) else None


def _fits(given: pa.DataType) -> bool:
    """Tell whether single precision holds every number of a type."""
    return bool(pa.types.is_boolean(given) or given.bit_width <= (32 if pa.types.is_floating(given) else 16))


def _read(path: Path, parquet: Any, *, name: str, source: str, reading: Reading) -> Table:
    kept, schema, rows = keep(path), parquet.schema_arrow, parquet.metadata.num_rows
    check_names(schema.names, kept.where)
    wishes = [reading.wish(name, given.name) for given in schema]
    columns = [_column(given, wish, kept, rows) for given, wish in zip(schema, wishes, strict=True)]
    found: list[Found | None] = []
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
    watch = _Watch([schema.field(number) for number in streamed])
    values, mask = _numbers(path, rows, watch, reading) if streamed else (np.empty((rows, 0)), None)
    for place, number in enumerate(streamed):
        found[number] = watch.found(place, columns[number], as_number=wishes[number] == "as_number")
    complete = [one for one in found if one is not None]
    id_at = id_column(columns, complete, indexed=False)
    uses = named_rows(complete, id_at)
    kept_places = [place for place, number in enumerate(streamed) if uses[number].columns]
    if not kept_places:
        said = "; ".join(f"{shown(use.name)}: {use.reason}" for use in uses[:5])
        raise InputError(
            f"{kept.where}: must have at least one row and one column of numbers, categories or dates whose entries "
            f"differ; found shape {(rows, len(uses))}. {said}{'; …' if len(uses) > 5 else ''}."
        )
    values, mask = _packed(values, kept_places), None if mask is None else _packed(mask, kept_places)
    # Nobody writes to it from here on, so that nobody needs a copy.
    values.flags.writeable = False
    mask = np.broadcast_to(np.True_, values.shape) if mask is None else mask
    row_ids = row_numbers(rows) if id_at is None else columns[id_at].series.to_list()
    block = Block(values, mask, name, tuple(use.name for use in uses if use.columns), row_ids)
    return Table(
        block,
        uses=uses,
        notes=tuple(doubtful_ids(columns, complete)),
        source=source,
        id_column=None if id_at is None else columns[id_at].name,
        form="frame",
        large_file=kept,
    )


def _may_be_id(given: pa.Field) -> bool:
    return _kind(given.type) == "integer" and is_named_like_id(given.name)


def _column(given: pa.Field, wish: str | None, kept: LargeFile, rows: int) -> Column:
    """Return a column; its entries are read only where the column may name the rows."""
    series: Any = range(rows)
    if wish == "id" or is_called_id(given.name) or _may_be_id(given):
        series = nw.from_native(kept.frame(given.name)[given.name], series_only=True)
    return Column(given.name, series, where=kept.where)


def _packed(table: Values, kept: Sequence[int]) -> Values:
    """Return some columns of an array in its own memory: they move to the left, a batch of rows at a time."""
    if len(kept) < table.shape[1]:
        for rows in _batches(*table.shape):
            table[rows, : len(kept)] = table[rows][:, kept]
    return table[:, : len(kept)]


def _batches(rows: int, columns: int) -> Iterator[slice]:
    return batches(rows, max(_CELLS_AT_A_TIME // columns, _ROWS_AT_A_TIME))


def _numbers(path: Path, rows: int, watch: _Watch, reading: Reading) -> tuple[Values, BoolArray | None]:
    """Return the numbers, 0 where missing, in single precision where that is enough; and a mask where some are."""
    width = len(watch.fields)
    for dtype in (np.float32, np.float64):
        check_memory(
            rows * width * (np.dtype(dtype).itemsize + 1) + 2 * _BUFFERS,
            max_memory=reading.max_memory,
            where=file_name(path),
            what=f"a table of {rows} × {width} numbers",
        )
        read = _pass(path, rows, watch, dtype)
        if read is not None:
            return read
    raise AssertionError  # double precision is always enough


def _pass(path: Path, rows: int, watch: _Watch, dtype: Any) -> tuple[Values, BoolArray | None] | None:
    """Read all rows once; None as soon as the precision proves too low."""
    watch.begin(check=dtype == np.float32)
    width = len(watch.fields)
    parquet = _opened(path, width)
    values, mask = np.empty((rows, width), dtype=dtype), None
    stop = 0
    for part in _parts(parquet, [given.name for given in watch.fields]):
        start, stop = stop, stop + len(part)
        missing = np.isnan(part)
        with np.errstate(over="ignore"):
            values[start:stop] = part
        watch.look(part, values[start:stop], missing, start)
        if missing.any():
            if mask is None:
                mask = np.ones(values.shape, dtype=bool)
            mask[start:stop] = ~missing
            values[start:stop][missing] = 0
        if start == 0 and not watch.precise:
            return None
    if stop != rows:
        raise InputError(f"{file_name(path)}: must hold {rows} rows, as it says; found {stop}. It is damaged.")
    return (values, mask) if watch.precise else None


def _parts(parquet: Any, names: Sequence[str]) -> Iterator[FloatArray]:
    """Yield the rows in order, NaN where missing, so many at a time that they stay in the processor's cache."""
    step = max(_CELLS_AT_A_TIME // len(names), _ROWS_AT_A_TIME)
    for batch in parquet.iter_batches(batch_size=_STEPS_PER_BATCH * step, columns=list(names)):
        columns = [_as_floats(batch.column(name)) for name in names]
        for start in range(0, batch.num_rows, step):
            # Column by column in memory: that is how they come, and how they are summed.
            part = np.empty((len(names), min(step, batch.num_rows - start))).T
            for place, column in enumerate(columns):
                part[:, place] = column[start : start + step]
            yield part


def _as_floats(entries: pa.Array) -> Values:
    if pa.types.is_boolean(entries.type):
        entries = entries.cast(pa.uint8())
    return np.asarray(entries.to_numpy(zero_copy_only=False))


@dataclass(eq=False)
class _Watch:
    """What batches of numbers say about their columns.

    Attributes:
        fields: the columns.
        check: whether to look at what rounding to single precision loses.
    """

    fields: Sequence[pa.Field]
    check: bool = False
    count: IntArray = field(init=False)
    low: FloatArray = field(init=False)
    high: FloatArray = field(init=False)
    infinite: IntArray = field(init=False)

    def begin(self, *, check: bool) -> None:
        """Forget everything."""
        width = len(self.fields)
        # Not the columns that single precision holds exactly.
        self.wide = np.array([number for number, given in enumerate(self.fields) if not _fits(given.type)], dtype=int)
        self.check = check and bool(self.wide.size)
        self.count = np.zeros(width, dtype=np.int64)
        self.low, self.high = np.full(width, np.nan), np.full(width, np.nan)
        self.infinite = np.full(width, -1)
        self.first: dict[tuple[int, bool], int] = {}
        self.centre: FloatArray | None = None
        self.sums = np.zeros((3, self.wide.size))

    def look(self, part: FloatArray, kept: Values, missing: BoolArray, start: int) -> None:
        """Take note of a batch, of what is kept of it, and of what is missing, from row `start` on."""
        low, high = np.fmin.reduce(part, axis=0), np.fmax.reduce(part, axis=0)
        self.count += len(part) - missing.sum(axis=0)
        self.low, self.high = np.fmin(self.low, low), np.fmax(self.high, high)
        for place in np.flatnonzero((np.isinf(low) | np.isinf(high)) & (self.infinite < 0)).tolist():
            self.infinite[place] = start + int(np.flatnonzero(np.isinf(part[:, place]))[0])
        for place, given in enumerate(self.fields):
            if pa.types.is_boolean(given.type):
                for mark in (False, True):
                    if (place, mark) not in self.first and (low[place] == mark or high[place] == mark):
                        self.first[place, mark] = start + int(np.flatnonzero(part[:, place] == mark)[0])
        if self.check:
            # Choosing all columns by number would copy them.
            wide: Any = slice(None) if self.wide.size == part.shape[1] else self.wide
            self._compare(part[:, wide], kept[:, wide], missing[:, wide])

    def _compare(self, part: FloatArray, kept: Values, missing: BoolArray) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            if self.centre is None:
                # Squares of what is far from 0 would say nothing about how it varies.
                self.centre = np.nan_to_num(part[0], posinf=0.0, neginf=0.0)
            lost, moved = kept - part, part - self.centre
            lost[missing], moved[missing] = 0.0, 0.0
            self.sums += [moved.sum(axis=0), (moved**2).sum(axis=0), (lost**2).sum(axis=0)]

    @property
    def precise(self) -> bool:
        """Whether single precision has been enough for every column so far."""
        if not self.check:
            return True
        finite = self.infinite[self.wide] < 0
        total, squares, lost = self.sums[:, finite]
        count = np.maximum(self.count[self.wide][finite], 1)
        with np.errstate(invalid="ignore", over="ignore"):
            variance = squares / count - (total / count) ** 2
            # Not `>`: what overflows compares as nothing.
            enough = (lost == 0) | (lost / count <= ROUNDING**2 * variance)
        low, high, tiny = self.low[self.wide][finite], self.high[self.wide][finite], np.finfo(np.float32).tiny
        # On a scale of ratios, what is nearly 0 must not become 0.
        vanishing = ((low > 0) & (low < tiny)) | ((high < 0) & (high > -tiny))
        return bool((enough & ~vanishing).all())

    def found(self, place: int, column: Column, *, as_number: bool) -> Found:
        """Return what a column counts as, once all rows have been looked at."""
        kind = _kind(self.fields[place].type) or "number"
        if self.infinite[place] >= 0:
            raise refuse_infinity(column, int(self.infinite[place]))
        left = says_nothing(column, int(self.count[place]), self.low[place], self.high[place])
        if left is not None:
            if kind == "boolean" and self.count[place]:
                said = f"every observed entry is the same, {shown(bool(self.low[place]))}"
                return Found(ColumnUse(column.name, "left out", said), left.values)
            return left
        reason, coding = "numbers", Coding()
        if kind == "integer":
            reason, coding = "whole numbers", Coding(decimals=0)
        if as_number and kind != "boolean":
            reason = f"named in {option(column.door, 'as_number')}"
        if kind == "boolean":
            marks = [mark for mark in (False, True) if (place, mark) in self.first]
            exemplars = tuple(self.first[place, mark] for mark in marks)
            reason, coding = "true and false", Coding(exemplars=exemplars, marks=tuple(map(float, marks)))
        return Found(ColumnUse(column.name, kind, reason, (column.name,), coding), np.empty((len(column.series), 0)))
