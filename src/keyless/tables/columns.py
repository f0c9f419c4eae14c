"""One column of a frame: its entries as Python values, numbers, days, text and levels."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa

from keyless.arrays import BoolArray, FloatArray, IntArray
from keyless.errors import InputError
from keyless.tables.cells import TextCells, in_days
from keyless.tables.numbers import NumberStyle
from keyless.tables.reading_options import Door, option, shown

__all__ = [
    "Column",
    "ask_mark",
    "family",
    "first_signalling",
    "is_missing",
    "levels_in_order",
    "mixed_marks",
    "not_a_number",
]


_MARKS = {".": "point", ",": "comma"}
_DATES = (-719_162, 2_932_897, "a date of the years 1 to 9999")
_DURATIONS = (-(10**8), 10**8, "a duration of at most 100,000,000 days")
"""First and last of the dates and durations that can be read and written, in days; dates count from 1970."""


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a frame.

    Attributes:
        name: its name as text.
        series: its entries.
        where: the table, as messages name it.
        is_file: whether entries are cells of a text file.
        markers: cells that mean missing.
        decimal: decimal mark of numbers in text; None: what the column itself says.
        line: gives the line of a row, for messages about files; None where it is not known.
        door: where the caller came in; advice names the options there.
    """

    name: str
    series: Any
    where: str
    is_file: bool = False
    markers: tuple[str, ...] = ()
    decimal: str | None = None
    line: Callable[[int], int | None] = field(default=lambda _row: None, repr=False)
    door: Door = "python"

    @cached_property
    def family(self) -> str:
        """What kind of entries it has, from their type."""
        return "cells" if self.is_file else family(self.series)

    @cached_property
    def cells(self) -> TextCells:
        """The entries as text."""
        native = self.series.to_native()
        if not self.is_file and self.family != "text":
            native = [None if entry is None else str(entry) for entry in self.entries]
        text = pa.chunked_array(native) if isinstance(native, pa.ChunkedArray) else _arrow(native)
        return TextCells(text.cast(pa.large_string()), self.markers)

    @cached_property
    def entries(self) -> list[Any]:
        """The entries as Python values, None where missing; cells without the spaces around them."""
        if self.is_file:
            return list(self.cells.entries())
        return [None if is_missing(entry) else entry for entry in self.series.to_list()]

    @cached_property
    def numbers(self) -> FloatArray:
        """The entries as numbers, NaN where missing; for numbers and booleans."""
        return _numbers(self.series)

    @cached_property
    def days(self) -> FloatArray:
        """The entries as days (since 1970 for dates), NaN where missing; for dates and durations."""
        days = _days(self.series, self.family)
        first, last, known = _DATES if self.family == "date" else _DURATIONS
        strange = np.flatnonzero((days < first) | (days > last))
        if strange.size:
            problem = f"must be {known}; found one outside of that"
            raise self.refuse(int(strange[0]), problem, "Replace it, or mark it missing.")
        return days

    @cached_property
    def levels(self) -> tuple[IntArray, list[Any]]:
        """For each row the number of its level, −1 where missing; and the levels."""
        if self.is_file:
            return self.cells.levels
        numbers: dict[Any, int] = {}
        try:
            codes = [-1 if e is None else numbers.setdefault(e, len(numbers)) for e in self.entries]
        except TypeError:
            return np.full(len(self.entries), -1), []
        return np.asarray(codes, dtype=np.int64), list(numbers)

    def refuse(self, row: int, problem: str, advice: str) -> InputError:
        """Return an error about one entry."""
        line = self.line(row)
        place = "" if line is None else f" (line {line} of the file)"
        return InputError(f"{self.where}, column {self.name!r}, row {row}: {problem}{place}. {advice}")


def first_signalling(entries: Iterable[Any], *, quiet: bool = False) -> int | None:
    """Return where the first decimal stands that signals when it is looked at; None where there is none.

    Args:
        entries: anything.
        quiet: count those that signal only when they are put in order, too: every NaN.
    """
    found = Decimal.is_nan if quiet else Decimal.is_snan
    return next((row for row, e in enumerate(entries) if isinstance(e, Decimal) and found(e)), None)


def _arrow(native: Any) -> Any:
    made = pa.array(native, type=None if len(native) else pa.string(), from_pandas=True)
    return made.cast(pa.string()) if pa.types.is_null(made.type) else made


def family(series: Any) -> str:
    """Return what kind of entries a series has, from its type."""
    dtype = series.dtype
    if dtype == nw.Boolean:
        return "boolean"
    if dtype.is_numeric():
        return "integer" if dtype.is_integer() else "number"
    for kinds, name in (
        ((nw.String,), "text"),
        ((nw.Date, nw.Datetime), "date"),
        ((nw.Duration,), "duration"),
    ):
        if any(dtype == kind for kind in kinds):
            return name
    if dtype in (nw.Categorical, nw.Enum):
        return "ordered" if levels_in_order(series) is not None else "category"
    if isinstance(series.to_native(), pd.Series):
        # Python objects in a frame of pandas: what they are says their kind.
        inferred = pd.api.types.infer_dtype(series.to_native(), skipna=True)
        return {
            "string": "text",
            "boolean": "boolean",
            "integer": "integer",
            "floating": "number",
            "mixed-integer-float": "number",
            "decimal": "number",
            "date": "date",
            "datetime": "date",
            "timedelta": "duration",
            "empty": "empty",
        }.get(inferred, "other")
    return "other"


def levels_in_order(series: Any) -> list[Any] | None:
    """Return the levels of ordered categories, lowest first; None where they have no order."""
    native = series.to_native()
    if isinstance(native, pd.Series):
        dtype = native.dtype
        return list(dtype.categories) if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered else None
    if isinstance(native, pa.ChunkedArray) and native.type.ordered and native.num_chunks:
        return list(native.unify_dictionaries().chunk(0).dictionary.to_pylist())
    return None


def is_missing(entry: Any) -> bool:
    """Tell whether an entry of a column is none: None, NaN or what pandas has for it."""
    if isinstance(entry, Decimal):
        return entry.is_nan()
    return entry is None or entry is pd.NA or entry is pd.NaT or (isinstance(entry, float) and np.isnan(entry))


def _numbers(series: Any) -> FloatArray:
    native = series.to_native()
    if isinstance(native, pd.Series):
        return native.to_numpy(dtype=np.float64, na_value=np.nan)
    try:
        if series.dtype == nw.Boolean:
            series = series.cast(nw.Int8)
        return np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Whole numbers beyond 2⁵³ are rounded here; what is observed comes back from the frame itself.
        return np.array([np.nan if e is None else float(e) for e in series.to_list()], dtype=np.float64)


def _moment(entry: Any) -> Any:
    """A date or time of Python as numpy takes it: in UTC and without a zone."""
    if is_missing(entry):
        return np.datetime64("NaT")
    if isinstance(entry, datetime.datetime) and entry.tzinfo is not None:
        entry = entry.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(entry, "us")


def _days(series: Any, kind: str) -> FloatArray:
    native = series.to_native()
    if not isinstance(native, pd.Series):
        return in_days(np.asarray(series.to_numpy()))
    if isinstance(native.dtype, pd.DatetimeTZDtype):
        native = native.dt.tz_convert(None)
    if isinstance(native.dtype, np.dtype) and native.dtype.kind in "mM":
        return in_days(native.to_numpy())
    try:
        if kind == "duration":
            return in_days(pd.to_timedelta(native.astype(object)).to_numpy())
        return in_days(pd.to_datetime(native.astype(object), utc=True).dt.tz_localize(None).to_numpy())
    except pd.errors.OutOfBoundsDatetime:
        # Dates of Python that nanoseconds cannot count.
        return in_days(np.array([_moment(entry) for entry in native], dtype="datetime64[us]"))
    except OverflowError:
        # Days of Arrow that Python has no dates for; `Column.days` names the first.
        return in_days(pa.array(native, from_pandas=True).to_numpy(zero_copy_only=False))


# --- questions about cells -------------------------------------------------------------------------------------------


def ask_mark(column: Column, mark: str, *, because: str = "") -> InputError:
    """Return the question whether a mark is the decimal mark or divides thousands.

    Args:
        column: a column in which every such mark may be either.
        mark: `.` or `,`.
        because: what else there is to say about it.
    """
    row = int(np.flatnonzero(~column.cells.missing)[column.cells.match(f"[{mark}]")][0])
    other = "," if mark == "." else "."
    return column.refuse(
        row,
        f"the {_MARKS[mark]} of {shown(column.entries[row])} may be a decimal mark or divide thousands{because}",
        f"Say {option(column.door, 'decimal', mark)} if it is a decimal mark, {option(column.door, 'decimal', other)} "
        "if it divides thousands.",
    )


def not_a_number(column: Column, fits: BoolArray, style: NumberStyle) -> InputError:
    """Return an error about the first cell that is no number in a column of numbers.

    Args:
        column: the column.
        fits: which of the observed cells are numbers.
        style: how those are written.
    """
    rows = np.flatnonzero(~column.cells.missing)
    row = int(rows[~fits][0])
    cell = str(column.entries[row])
    advice = (
        f"Name it missing with {option(column.door, 'missing', cell)}, or leave the column out with "
        f"{option(column.door, 'drop', column.name)}."
    )
    if column.cells.are_infinite()[~fits][0]:
        return column.refuse(row, f"{shown(cell)} is an infinity, not a finite number", advice)
    if fits.any() and (style.before or style.after):
        like = shown(column.entries[int(rows[fits][0])])
        other_kind = f"If these are no numbers, say {option(column.door, 'as_category', column.name)}."
        return column.refuse(row, f"{shown(cell)} is not a number like {like}", f"{advice} {other_kind}")
    other = "," if style.decimal == "." else "."
    if other in cell and fits.any() and bool(column.cells.are_numbers(other)[~fits][0]):
        at = next((int(r) for r in rows[fits] if style.decimal in str(column.entries[int(r)])), None)
        if at is not None:
            return mixed_marks(column, row, at)
    if column.is_file and row == 0:
        advice += f" If it belongs to the column names, say {option(column.door, 'header', 2)}."
    elif column.is_file and row == len(column.series) - 1:
        advice += f" If its line is not a row, say {option(column.door, 'footer', 1)}."
    return column.refuse(row, f"{shown(cell)} is not a number", advice)


def mixed_marks(column: Column, row: int, other: int) -> InputError:
    """Return an error about a column with two decimal marks.

    Args:
        column: the column.
        row: a row with one of them.
        other: a row with the other.
    """
    return column.refuse(
        row,
        f"{shown(column.entries[row])} and {shown(column.entries[other])} in row {other} have different decimal marks",
        "Write all numbers of the column with one of them, or leave it out with "
        f"{option(column.door, 'drop', column.name)}.",
    )
