"""Frames of any library, on their way to a table and back.

Rows of a column are taken, what was filled is put in, and a frame of the caller's kind is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa

from keyless.arrays import FloatArray, IntArray
from keyless.tables.cells import DAY, NANOSECOND_DAYS, written_dates, written_numbers
from keyless.tables.memory import is_large
from keyless.tables.reading_options import Coding, ColumnUse, Kind

__all__ = [
    "Dialect",
    "Form",
    "Given",
    "as_text",
    "build",
    "free_name",
    "from_records",
    "in_pandas",
    "taken",
    "to_records",
    "without_views",
]


Form = Literal["frame", "lazy", "records", "cells", "array", "sparse", "anndata"]


@dataclass(frozen=True)
class Dialect:
    """How a table was written, so that what is made of it can be written the same.

    Attributes:
        kind: text, or a spreadsheet, for which the others do not matter.
        separator: between cells.
        decimal: mark of numbers.
        encoding: of text.
    """

    kind: Literal["text", "sheet"] = "text"
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


@dataclass(frozen=True, eq=False)
class Given:
    """A frame on its way to a table.

    Attributes:
        frame: of any library; of a file of cells, one column of text per column, cells exactly as they are.
        where: the table, as messages name it.
        form: what kind of thing was given.
        notes: what there is to say about how it was read.
        source: the path it was read from.
        line: gives the line of a row in its file; None where that is not known.
        typed: columns of text whose numbers come from numbers, and have a decimal point.
        dialect: how the file is written.
    """

    frame: Any
    where: str
    form: Form = "frame"
    notes: tuple[str, ...] = ()
    source: str | None = None
    line: Callable[[int], int | None] = field(default=lambda _row: None, repr=False)
    typed: frozenset[str] = frozenset()
    dialect: Dialect = field(default_factory=Dialect)

    @property
    def is_file(self) -> bool:
        """Whether entries are cells of a text file."""
        return self.form == "cells"

    @property
    def index(self) -> pd.Index | None:
        """The index of a pandas frame, where it has more than row numbers."""
        index = self.frame.index if isinstance(self.frame, pd.DataFrame) else None
        return None if index is None or index.equals(pd.RangeIndex(len(index))) else index


_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The first day of the year 1 and the last of the year 9999, counted from 1970."""

_PER_DAY = {"s": DAY // 1_000_000, "ms": DAY // 1000, "us": DAY, "ns": DAY * 1000}


def taken(
    frame: Any, label: Any, rows: IntArray, *, use: ColumnUse | None = None, values: Any = None, observed: Any = None
) -> Any:
    """Return entries of one column in a new order, what is not observed filled.

    Args:
        frame: a pandas frame, or a narwhals frame of another library.
        label: the column.
        rows: row of the frame for each row of the result, −1 for none.
        use: what the column counts as; None: nothing is filled.
        values: numbers of the block's columns that were made of it, for each row of the result.
        observed: True where the entry of that row is observed.

    Returns:
        A pandas series or a narwhals series of the frame's library.
    """
    if use is None or use.coding is None or observed.all():
        return _gathered(frame, label, rows)
    # What is filled with a level that occurs is taken from a row that has it, and so has its exact type.
    index = np.where(observed, rows, 0)
    gaps = np.flatnonzero(~observed)
    coding = use.coding
    if coding.exemplars:
        index[gaps] = np.asarray(coding.exemplars)[nearest_level(coding, values[gaps])]
        return _gathered(frame, label, index)
    numbers = values[gaps, 0]
    if isinstance(frame, pd.DataFrame):
        return _put(frame[label], index, gaps, numbers, kind=use.kind, coding=coding)
    series = frame.get_column(label)
    made = _like(series, _entries(series, use.kind, coding, numbers))
    pool = nw.concat([series.alias("pool").to_frame(), made.alias("pool").to_frame()], how="vertical")
    index[gaps] = len(series) + np.arange(gaps.size)
    return pool.get_column("pool")[index].alias(str(label))


def nearest_level(coding: Coding, values: FloatArray) -> IntArray:
    """Return the number of the level that filled numbers mean."""
    if coding.marks:
        levels = np.abs(values[:, :1] - np.asarray(coding.marks)[None, :]).argmin(axis=1)
        return np.asarray(levels, dtype=np.int64)
    rest = 1 - values.sum(axis=1, keepdims=True)
    return np.asarray(np.concatenate([values, rest], axis=1).argmax(axis=1), dtype=np.int64)


def _gathered(frame: Any, label: Any, rows: IntArray) -> Any:
    alone = rows < 0
    if not isinstance(frame, pd.DataFrame):
        series = frame.get_column(label)
        if not alone.any():
            return series[rows]
        column = series.alias("pool").to_frame()
        # One row of nothing at the end, of the same type, for those who have none.
        pool = nw.concat([column, column.head(1).select(nw.all().shift(1))], how="vertical")
        return pool.get_column("pool")[np.where(alone, len(series), rows)].alias(str(label))
    series = frame[label]
    array = nullable(series) if alone.any() else plain_array(series)
    made = pd.api.extensions.take(array, rows, allow_fill=True)
    if made.dtype == object:
        made[alone] = None
    # Without its dtype pandas 3 would take a column of objects for one of its own text type.
    return pd.Series(made, name=label, dtype=made.dtype)


def nullable(series: pd.Series) -> Any:
    """Return entries in an array that can say missing, so that whole numbers and booleans stay what they are."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iub":
        return pd.array(series.to_numpy())
    return plain_array(series)


def plain_array(series: pd.Series) -> Any:
    """Return entries in numpy's array where that is their type, else in pandas' own."""
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array


def _put(
    series: pd.Series, index: IntArray, gaps: IntArray, numbers: FloatArray, *, kind: Kind, coding: Coding
) -> pd.Series:
    """Return entries of a pandas series with filled numbers in their places, in its type."""
    array = plain_array(series).take(index).copy()
    if isinstance(array, pd.arrays.SparseArray):
        array = array.to_dense()  # filled entries have no place in a sparse array
    plain = nw.from_native(series, series_only=True)
    if coding.text or coding.form is None:
        entries = _entries(plain, kind, coding, numbers)
        if array.dtype == object and not coding.text:
            seen = next((entry for entry in series if isinstance(entry, Decimal) and entry.is_finite()), None)
            if seen is not None:
                entries = [round(Decimal(float(n)), max(-int(seen.as_tuple().exponent), 0)) for n in numbers]
    elif kind == "date":
        fine = "ns" in str(array.dtype)
        moments = pd.DatetimeIndex(_rounded(numbers, coding, fine=fine).astype("datetime64[us]"))
        zone = getattr(array.dtype, "tz", None) or getattr(getattr(array.dtype, "pyarrow_dtype", None), "tz", None)
        if zone is not None:
            moments = moments.tz_localize("UTC").tz_convert(zone)
        dates_only = plain.dtype == nw.Date or pd.api.types.infer_dtype(series, skipna=True) == "date"
        entries = list(moments.date) if dates_only else list(moments)
    else:
        entries = list(pd.to_timedelta(_rounded(numbers, coding, fine=True), unit="us"))
    if isinstance(array, np.ndarray):
        array[gaps] = np.array(entries, dtype=array.dtype)
    else:
        array[gaps] = pd.array(entries, dtype=array.dtype)
    made: pd.Series = pd.Series(array, name=series.name, dtype=array.dtype)
    return made


def _rounded(days: FloatArray, coding: Coding, *, fine: bool = False) -> IntArray:
    """Return days as microseconds, in the steps of the column; `fine`: of a column that counts nanoseconds."""
    step = DAY if coding.form == "D" else 1_000_000
    # What a model fills in may lie beyond any calendar.
    days = np.clip(days, _FIRST_DAY, _LAST_DAY)
    if fine:
        days = np.clip(days, -NANOSECOND_DAYS, NANOSECOND_DAYS)
    return (np.round(days * DAY / step) * step).astype(np.int64)


def _entries(series: Any, kind: Kind, coding: Coding, numbers: FloatArray) -> list[Any]:
    """Return filled numbers as entries of a column."""
    if coding.text:
        if coding.form is not None:
            return list(written_dates(numbers, coding.form))
        return written_numbers(numbers, decimals=coding.decimals, style=coding.style, width=coding.width)
    if coding.form is not None:
        moments = _rounded(numbers, coding, fine=getattr(series.dtype, "time_unit", None) == "ns")
        if series.dtype == nw.Date:
            return list((moments // DAY).tolist())
        per_day = _PER_DAY[series.dtype.time_unit]
        return [int(moment) * per_day // DAY for moment in moments.tolist()]
    if kind == "integer":
        return whole_numbers(numbers, str(series.dtype))
    return list(numbers.tolist())


def whole_numbers(numbers: FloatArray, dtype: str) -> list[int]:
    """Return numbers rounded to whole ones that a type can hold."""
    try:
        limits = np.iinfo(dtype.lower())
    except (TypeError, ValueError):
        return [int(number) for number in np.round(numbers).tolist()]
    return [min(max(int(number), int(limits.min)), int(limits.max)) for number in np.round(numbers).tolist()]


def _like(series: Any, entries: Sequence[Any]) -> Any:
    """Return entries as a narwhals series of the same library and type."""
    native = series.to_native()
    if isinstance(native, pa.ChunkedArray):
        made = pa.array(entries, type=pa.int32() if pa.types.is_date32(native.type) else None)
        return nw.from_native(pa.chunked_array([made.cast(native.type)]), series_only=True)
    return nw.new_series("pool", entries, backend=series.implementation).cast(series.dtype)


def build(columns: Mapping[Any, Any], *, like: Any, index: pd.Index | None = None) -> Any:
    """Return a frame of the library of `like`.

    Args:
        columns: entries by column name: series of any library, arrays or lists.
        like: a frame; pandas for None.
        index: row labels of a pandas frame; None: numbers from 0.
    """
    if like is None or isinstance(like, pd.DataFrame):
        plain = {k: in_pandas(v) if isinstance(v, nw.Series) else v for k, v in columns.items()}
        # Columns of the same type are copied into one array, unless there are too many entries to hold them twice.
        large = is_large(len(next(iter(plain.values()), ())), len(plain))
        try:
            frame = pd.DataFrame(plain, copy=False) if large else pd.DataFrame(plain)
        except UnicodeEncodeError:
            # The text of pandas 3 cannot hold halves of characters; Python's own can.
            kept = {k: v if isinstance(v, pd.Series) else pd.Series(v, dtype=object) for k, v in plain.items()}
            frame = pd.DataFrame(kept)
        return frame if index is None else frame.set_axis(index, axis=0)
    implementation = nw.get_native_namespace(like)
    others = {str(label): _for_others(entries, like) for label, entries in columns.items()}
    return nw.from_dict(others, backend=implementation).to_native()


def in_pandas(series: Any) -> pd.Series:
    """Return a narwhals series as one of pandas, also where Python or Arrow have no type for its entries."""
    made: pd.Series = pd.Series(dtype=object)
    with contextlib.suppress(pa.ArrowException, IndexError):  # the latter for categories without a level
        made = series.to_pandas()
    if len(made) < len(series):
        with contextlib.suppress(pa.ArrowException):
            # Times in nanoseconds: Arrow's own type.
            made = series.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
    # The rest are whole numbers of 128 bits.
    return made if len(made) == len(series) else pd.Series(series.to_list(), dtype=object)


def without_views(table: pa.Table) -> pa.Table:
    """Return a table whose text is of a type from which rows can be taken."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    schema = pa.schema([column.with_type(plain.get(column.type, column.type)) for column in table.schema])
    return table if schema.equals(table.schema) else table.cast(schema)


def _for_others(entries: Any, like: Any) -> Any:
    """Return entries as a column of another library; as text where it has no type for them."""
    if isinstance(entries, nw.Series):
        same = entries.implementation == nw.from_native(like, eager_only=True).implementation
        return entries.to_native() if same else _held(entries.to_list(), like)
    if isinstance(entries, pd.Series):
        if isinstance(like, pa.Table) and entries.dtype != object:
            with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
                return pa.chunked_array([pa.Array.from_pandas(entries)])
        missing = entries.isna()
        return _held([None if gone else entry for entry, gone in zip(entries.tolist(), missing, strict=True)], like)
    return _held(list(entries), like)


def _held(entries: list[Any], like: Any) -> Any:
    """Return the entries as they are where the library of a frame can hold them, else as text."""
    try:
        nw.new_series("entries", entries, backend=nw.get_native_namespace(like))
    except Exception:  # every library has errors of its own
        return [None if entry is None else as_text(entry) for entry in entries]
    return entries


def free_name(name: str, names: Collection[str]) -> str:
    """Return a name that is not among others: the name itself, with as many `_` in front as that takes."""
    while name in names:
        name = f"_{name}"
    return name


def as_text(entry: Any) -> str:
    r"""Return an entry as text that every file can hold: halves of characters become escapes.

    Example:
        >>> as_text("a\ud800"), as_text([1, 2])
        ('a\\ud800', '[1, 2]')
    """
    return str(entry).encode("utf-8", "backslashreplace").decode()


def from_records(records: Sequence[Mapping[Any, Any]]) -> pd.DataFrame:
    """Return dictionaries, one per row, as a frame of the very same objects; None where a key is absent."""
    labels = dict.fromkeys(label for record in records for label in record)
    columns = {label: pd.Series([record.get(label) for record in records], dtype=object) for label in labels}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(records)))


def to_records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return a frame as dictionaries, one per row."""
    columns = {label: frame[label].tolist() for label in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
