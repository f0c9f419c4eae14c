"""The numbers of large tables, held once, in single precision where that loses nothing that a column says.

A Parquet file is read in batches of rows; of a frame, each column goes to its place as soon as it has been looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keyless.arrays import BoolArray, FloatArray, NumpyArray, batches
from keyless.errors import InputError
from keyless.tables.column_use import UsedColumn, refuse_infinity, says_nothing
from keyless.tables.columns import Column
from keyless.tables.files import file_name
from keyless.tables.reading_options import Coding, ColumnUse, Kind, option, shown

__all__ = [
    "BUFFERS",
    "ROUNDING",
    "ColumnWatch",
    "kind_of",
    "numbers_of",
    "opened",
    "packed",
    "parts_of",
    "read_numbers",
]


ROUNDING = 1e-4
"""Single precision is enough where its errors are at most this share of a column's standard deviation."""

_CELLS_AT_A_TIME = 2**17
_ROWS_AT_A_TIME = 1024
"""A batch has so many cells, or so many rows where there are many columns."""

_STEPS_PER_BATCH = 8
"""Files are read faster in batches of more rows than are looked at together."""

BUFFERS = 2**24
"""Bytes of the file that are read ahead, over all columns."""


def opened(path: Path, columns: int = 1) -> Any:
    """Return an open Parquet file of which so many columns will be read."""
    # Without a buffer of its own, each column is read for a whole group of rows at once.
    return pq.ParquetFile(str(path), buffer_size=min(max(BUFFERS // columns, 2**13), 2**20), pre_buffer=False)


def kind_of(given: pa.DataType) -> Kind | None:
    """Return what a column of a type counts as; None for what is no number."""
    if pa.types.is_boolean(given):
        return "boolean"
    if pa.types.is_integer(given):
        return "integer"
    return "number" if pa.types.is_floating(given) else None


def _fits(given: pa.DataType) -> bool:
    """Tell whether single precision holds every number of a type."""
    return bool(pa.types.is_boolean(given) or given.bit_width <= (32 if pa.types.is_floating(given) else 16))


def packed(table: NumpyArray, kept: Sequence[int]) -> NumpyArray:
    """Return some columns of an array in its own memory: they move to the left, a batch of rows at a time."""
    if len(kept) < table.shape[1]:
        for rows in _batches(*table.shape):
            table[rows, : len(kept)] = table[rows][:, kept]
    return table[:, : len(kept)]


def _batches(rows: int, columns: int) -> Iterator[slice]:
    return batches(rows, max(_CELLS_AT_A_TIME // columns, _ROWS_AT_A_TIME))


def read_numbers(path: Path, watch: ColumnWatch, values: NumpyArray, *, alone: bool = True) -> BoolArray | None:
    """Read all rows of a file once; return a mask where some miss.

    Args:
        path: a Parquet file.
        watch: is told what is read.
        values: where the numbers go, 0 where missing.
        alone: whether the file is the whole table. Then nothing more is read once the precision is not enough for the
            first batch. Of several files it may be enough for all together though not for the first batch of one.
    """
    rows, width = values.shape
    parquet = opened(path, width)
    mask: BoolArray | None = None
    stop = 0
    for part in parts_of(parquet, [given.name for given in watch.fields]):
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
        if alone and start == 0 and not watch.precise:
            return None
    if stop != rows:
        raise InputError(f"{file_name(path)}: must hold {rows} rows, as it says; found {stop}. It is damaged.")
    return mask


def parts_of(parquet: Any, names: Sequence[str]) -> Iterator[FloatArray]:
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


def _as_floats(entries: pa.Array) -> NumpyArray:
    if pa.types.is_boolean(entries.type):
        entries = entries.cast(pa.uint8())
    return np.asarray(entries.to_numpy(zero_copy_only=False))


class ColumnWatch:
    """What batches of numbers say about their columns.

    Args:
        fields: the columns.
        check: whether to look at what rounding to single precision loses.
        origin: number of the first row that is looked at.
    """

    def __init__(self, fields: Sequence[pa.Field], *, check: bool = False, origin: int = 0) -> None:
        self.fields, self.origin = fields, origin
        width = len(fields)
        # Not the columns that single precision holds exactly.
        self.wide = np.array([number for number, given in enumerate(fields) if not _fits(given.type)], dtype=int)
        self.check = check and bool(self.wide.size)
        self.count = np.zeros(width, dtype=np.int64)
        self.low, self.high = np.full(width, np.nan), np.full(width, np.nan)
        self.infinite = np.full(width, -1)
        self.first: dict[tuple[int, bool], int] = {}
        self.centre: FloatArray | None = None
        self.sums = np.zeros((3, self.wide.size))

    def starting(self, origin: int) -> ColumnWatch:
        """Return a watch of other rows, from number `origin` on, that has seen nothing yet."""
        fresh = ColumnWatch(self.fields, check=self.check, origin=origin)
        fresh.centre = self.centre
        return fresh

    def add(self, later: ColumnWatch) -> None:
        """Take note of what a watch of later rows has seen."""
        self.count += later.count
        self.low, self.high = np.fmin(self.low, later.low), np.fmax(self.high, later.high)
        self.infinite = np.where(self.infinite < 0, later.infinite, self.infinite)
        self.first = later.first | self.first
        self.sums += later.sums

    def centred(self, files: Sequence[Path]) -> None:
        """Sum near the first row of all, whoever sums: squares of what is far from 0 do not tell how it varies."""
        names = [given.name for given in self.fields]
        for part in chain.from_iterable(parts_of(opened(path, len(names)), names) for path in files):
            self.centre = np.nan_to_num(part[0][self.wide], posinf=0.0, neginf=0.0)
            return

    def look(self, part: FloatArray, kept: NumpyArray, missing: BoolArray, start: int) -> None:
        """Take note of a batch, of what is kept of it, and of what is missing, from row `start` on."""
        start += self.origin
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

    def _compare(self, part: FloatArray, kept: NumpyArray, missing: BoolArray) -> None:
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
            low, high = self.low[self.wide][finite], self.high[self.wide][finite]
            return bool(np.all(_is_enough(lost / count, variance, low, high)))

    def found(self, place: int, column: Column, *, as_number: bool) -> UsedColumn:
        """Return what a column counts as, once all rows have been looked at."""
        kind = kind_of(self.fields[place].type) or "number"
        if self.infinite[place] >= 0:
            raise refuse_infinity(column, int(self.infinite[place]))
        left = says_nothing(column, int(self.count[place]), self.low[place], self.high[place])
        if left is not None:
            if kind == "boolean" and self.count[place]:
                said = f"every observed entry is the same, {shown(bool(self.low[place]))}"
                return UsedColumn(ColumnUse(column.name, "left out", said), left.values)
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
        return UsedColumn(
            ColumnUse(column.name, kind, reason, (column.name,), coding), np.empty((len(column.series), 0))
        )


def numbers_of(looks: Sequence[Callable[[], UsedColumn]], rows: int) -> tuple[NumpyArray, Any, list[UsedColumn]]:
    """Return the numbers of all columns, 0 where missing, their mask, and what each column counts as.

    The numbers are in single precision where that loses nothing that a column says, as those of large files are.

    Args:
        looks: looks at one column each, and returns what it counts as and its numbers.
        rows: how many there are.
    """
    for dtype in (np.float32, np.float64):
        # Most columns become one column of numbers; categories become more.
        values = np.empty((rows, len(looks)), dtype=dtype)
        mask: Any = None
        found, width = list[UsedColumn](), 0
        for look in looks:
            one = look()
            own, stop = one.values, width + one.values.shape[1]
            if stop > values.shape[1]:
                values = _wider(values, stop)
                mask = None if mask is None else _wider(mask, stop)
            missing = np.isnan(own)
            with np.errstate(over="ignore"):
                values[:, width:stop] = own
            if dtype == np.float32 and not _enough(own, values[:, width:stop], missing):
                break
            if missing.any():
                mask = np.ones(values.shape, dtype=bool) if mask is None else mask
                mask[:, width:stop] = ~missing
                values[:, width:stop][missing] = 0
            found.append(replace(one, values=own[:0]))
            width = stop
        else:
            values = values[:, :width]
            values.flags.writeable = False
            return values, np.broadcast_to(np.True_, values.shape) if mask is None else mask[:, :width], found
    raise AssertionError  # double precision is always enough


def _wider(table: NumpyArray, width: int) -> NumpyArray:
    """Return a table with room for twice the columns that are needed."""
    made = np.ones((len(table), 2 * width), dtype=table.dtype)
    made[:, : table.shape[1]] = table
    return made


def _enough(own: NumpyArray, kept: NumpyArray, missing: Any) -> bool:
    """Tell whether rounding changes numbers by little beside how they vary."""
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(own.shape[1]):
            seen = own[~missing[:, k], k]
            if not seen.size:
                continue
            lost = np.mean((kept[~missing[:, k], k] - seen) ** 2)
            if not _is_enough(lost, seen.var() if lost else 0.0, seen.min(), seen.max()):
                return False
    return True


def _is_enough(lost: Any, variance: Any, low: Any, high: Any) -> Any:
    """Tell whether single precision is enough for columns, by the mean square of what rounding loses of them."""
    tiny = np.finfo(np.float32).tiny
    # On a scale of ratios, what is nearly 0 must not become 0.
    vanishing = ((low > 0) & (low < tiny)) | ((high < 0) & (high > -tiny))
    # Not `>`: what overflows compares as nothing.
    return ((lost == 0) | (lost <= ROUNDING**2 * variance)) & ~vanishing
