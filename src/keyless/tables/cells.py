"""Text cells ↔ numbers and dates. One grammar for all files, so that no reader's habits leak."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from keyless.arrays import BoolArray, FloatArray, IntArray, NumpyArray
from keyless.tables.numbers import NumberStyle, Written

__all__ = [
    "DATES",
    "NANOSECOND_DAYS",
    "TextCells",
    "are_whole",
    "date_format",
    "days_of",
    "decimals_of",
    "padded_width",
    "written_dates",
    "written_numbers",
]


_EXPONENT = r"([eE][+-]?\d+)?$"
_NUMBER = {mark: rf"^[+-]?(\d+{shown}?\d*|{shown}\d+)" + _EXPONENT for mark, shown in ((".", r"\."), (",", ","))}
_INTEGER = r"^[+-]?\d+$"
_PADDED = r"^0\d+$"
_POINTS_OF_THOUSANDS = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$"
_INFINITY = r"(?i)^[+-]?inf(inity)?$"

_DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
_TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f")
DATES = (*_DAYS, *(f"{day}{gap}{time}" for day in _DAYS for gap in (" ", "T") for time in _TIMES))
"""Dates that are recognised in text."""

_LOOKS_LIKE_DATE = r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}(:\d{2}(\.\d{1,9})?)?)?$"

_FEW_CELLS = 256
"""Cells of a column up to which Python is as fast as Arrow."""

_DIGITS = 6
"""Digits of a number that a model filled in, where the column does not show how many it has: predictions are less
certain than that."""

NANOSECOND_DAYS = 106_751
"""Days before and after 1970 that a number of nanoseconds can count."""

DAY = 86_400_000_000
"""Microseconds of a day: dates are counted in days."""

_PER_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": DAY}
"""Units of a day. Far from 1970 the coarse ones are more microseconds than can be counted."""


@dataclass(frozen=True, eq=False)
class TextCells:
    """A column of text cells.

    Attributes:
        cells: the cells as they are.
        markers: cells that mean missing.
    """

    cells: Any
    markers: Sequence[str] = ()

    @cached_property
    def text(self) -> Any:
        """The cells without the spaces around them."""
        return pc.utf8_trim_whitespace(self.cells)

    @cached_property
    def _short(self) -> list[str | None] | None:
        """The cells without the spaces around them as Python's text, where there are few.

        Arrow takes as long for a few cells as for thousands, and tables of few rows may have many columns.
        """
        return self.text.to_pylist() if len(self.cells) <= _FEW_CELLS else None

    @cached_property
    def _seen(self) -> list[str]:
        """The observed ones among few cells."""
        return [
            cell
            for cell, gone in zip(self._short or [], self.missing.tolist(), strict=True)
            if not gone and cell is not None
        ]

    @cached_property
    def missing(self) -> BoolArray:
        """True where a cell means missing."""
        if self._short is not None:
            marks = {marker.strip() for marker in self.markers}
            return np.array([cell is None or cell in marks for cell in self._short], dtype=bool)
        empty = pc.is_null(self.cells)
        if self.markers:
            marks = pa.array([marker.strip() for marker in self.markers], type=self.text.type)
            empty = pc.or_(empty, pc.is_in(self.text, value_set=marks))
        return np.asarray(empty, dtype=bool)

    @cached_property
    def observed(self) -> Any:
        """The cells that are not missing, without the spaces around them."""
        return self.text.filter(pa.array(~self.missing)) if self.missing.any() else self.text

    @property
    def constant(self) -> bool:
        """Whether several cells are observed and all are the same text."""
        if self._short is not None:
            return len(self._seen) > 1 and len(set(self._seen)) == 1
        return len(self.observed) > 1 and bool(pc.all(pc.equal(self.observed, self.observed[0])).as_py())

    def match(self, pattern: str) -> BoolArray:
        """Tell which observed cells match."""
        if self._short is not None:
            found = _compiled(pattern).search
            return np.array([found(cell) is not None for cell in self._seen], dtype=bool)
        return np.asarray(pc.match_substring_regex(self.observed, pattern), dtype=bool)

    def are_numbers(self, decimal: str) -> BoolArray:
        """Tell which observed cells are numbers."""
        return self.match(_NUMBER[decimal])

    def are_infinite(self) -> BoolArray:
        """Tell which observed cells are infinities."""
        return self.match(_INFINITY)

    @property
    def padded(self) -> bool:
        """Whether there are digits with zeros in front, as ids have them."""
        return bool(self.match(_PADDED).any())

    @property
    def points_may_divide(self) -> bool:
        """Whether there are points, and each of them may as well divide thousands."""
        pointed = self.match(r"\.")
        return bool(pointed.any()) and bool((self.match(_POINTS_OF_THOUSANDS) == pointed).all())

    @property
    def points_likely_divide(self) -> bool:
        """Whether each point may divide thousands, and numbers without one are too small to need it."""
        if not self.points_may_divide:
            return False
        plain = ~self.match(r"\.")
        return bool(plain.any()) and bool(self.match(r"^[+-]?\d{1,3}$")[plain].all())

    @cached_property
    def written(self) -> Written:
        """The observed cells as numbers people write."""
        return Written(self.observed)

    def plain(self, decimal: str) -> Any:
        """Return the observed cells in Python's writing; every one must be a number with that decimal mark."""
        text = self.observed
        if pc.any(pc.starts_with(text, "+")).as_py():
            text = pc.replace_substring_regex(text, pattern=r"^\+", replacement="")
        return text if decimal == "." else pc.replace_substring(text, pattern=decimal, replacement=".")

    def values(self, plain: Any) -> FloatArray:
        """Return the numbers, NaN where missing.

        Args:
            plain: the observed cells in Python's writing.
        """
        values = np.full(len(self.missing), np.nan)
        values[~self.missing] = np.asarray(pc.cast(plain, pa.float64()))
        return values

    @cached_property
    def levels(self) -> tuple[IntArray, list[str]]:
        """For each cell the number of its level, −1 where missing; and the levels, in the order they first occur in."""
        codes = np.full(len(self.missing), -1)
        coded = self.observed.dictionary_encode()
        coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
        codes[~self.missing] = coded.indices
        return codes, coded.dictionary.to_pylist()

    def entries(self) -> list[str | None]:
        """Return the cells without the spaces around them, None where missing."""
        if self._short is not None:
            return [None if gone else cell for cell, gone in zip(self._short, self.missing.tolist(), strict=True)]
        entries: list[str | None] = pc.if_else(pa.array(self.missing), None, self.text).to_pylist()
        return entries


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern that means in Python what it means in Arrow: digits are those of ASCII, `$` is the very end."""
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII)


def are_whole(plain: Any) -> bool:
    """Tell whether all numbers in Python's writing are whole."""
    if len(plain) <= _FEW_CELLS:
        return all(map(_compiled(_INTEGER).search, plain.to_pylist()))
    return bool(pc.all(pc.match_substring_regex(plain, _INTEGER)).as_py())


def decimals_of(plain: Any) -> int | None:
    """Return how many decimals numbers in Python's writing show at most; None where they have exponents."""
    if len(plain) <= _FEW_CELLS:
        texts = plain.to_pylist()
        exponents = any("e" in text or "E" in text for text in texts)
        return None if exponents else max((len(text.partition(".")[2]) for text in texts), default=0)
    if any(pc.any(pc.match_substring(plain, mark)).as_py() for mark in "eE"):
        return None
    point = pc.find_substring(plain, ".")
    after = pc.subtract(pc.subtract(pc.binary_length(plain), point), 1)
    return int(pc.max(pc.if_else(pc.less(point, 0), 0, after)).as_py() or 0)


def padded_width(plain: Any) -> int:
    """Return how many digits whole numbers are padded to; 0 where they are not."""
    lengths = pc.unique(pc.utf8_length(plain)).to_pylist()
    padded = pc.any(pc.match_substring_regex(plain, _PADDED)).as_py()
    return int(lengths[0]) if len(lengths) == 1 and padded else 0


def date_format(cells: TextCells) -> tuple[str, ...]:
    """Return the formats of `DATES` that every observed cell has; several where day and month cannot be told apart."""
    if not len(cells.observed) or not cells.match(_LOOKS_LIKE_DATE).all():
        return ()
    texts = pd.Series(pc.unique(cells.observed).to_pylist(), dtype=object)
    forms = DATES
    # A few cells rule out nearly all formats.
    for some in (texts.head(20), texts):
        forms = tuple(form for form in forms if pd.to_datetime(some, format=form, errors="coerce").notna().all())
    return forms


def days_of(cells: TextCells, form: str) -> FloatArray:
    """Return dates as days since 1970, NaN where missing or not of that format."""
    texts = pd.Series(cells.entries(), dtype=object)
    return in_days(pd.to_datetime(texts, format=form, errors="coerce").to_numpy())


def in_days(times: NumpyArray) -> FloatArray:
    """Return numpy times as days since 1970, and spans of time as days; NaN for NaT."""
    unit, count = np.datetime_data(times.dtype)
    if unit not in _PER_DAY or count != 1:
        times, unit = times.astype(f"{times.dtype.kind}8[us]"), "us"
    return np.where(np.isnat(times), np.nan, times.astype(np.int64) / _PER_DAY[unit])


def written_dates(days: FloatArray, form: str) -> list[str]:
    """Return days since 1970 as text."""
    step = DAY if form in _DAYS else 1_000_000 * (60 if form.endswith("%M") else 1)
    # What a model fills in may lie beyond the dates that can be written.
    days = np.clip(days, -NANOSECOND_DAYS, NANOSECOND_DAYS)
    moments = (np.round(days * DAY / step) * step).astype(np.int64)
    return list(pd.to_datetime(moments, unit="us").strftime(form))


def _in_few_digits(value: float) -> str:
    """Return a number with six digits, without an exponent; whole digits all stay."""
    short = round(value) if abs(value) >= 10**_DIGITS else float(f"{value:.{_DIGITS}g}")
    return np.format_float_positional(float(short) + 0.0, trim="-")


def written_numbers(values: FloatArray, *, decimals: int | None, style: NumberStyle, width: int) -> list[str]:
    """Return numbers that a model filled in as text.

    Args:
        values: the numbers.
        decimals: how many decimals the observed numbers show. With more than six, as numbers that were computed have,
            six digits are written. None: six digits, with an exponent where that is shorter.
        style: how numbers are written.
        width: how many characters whole numbers are padded to.
    """
    if decimals is None:
        texts = [f"{value:.{_DIGITS}g}" for value in values]
    elif decimals > _DIGITS:
        texts = [_in_few_digits(round(value, decimals)) for value in values.tolist()]
    else:
        # Huge numbers have no decimals, and rounding them would overflow. Adding 0 turns −0 into 0.
        rounded = np.where(np.abs(values) < 2**53, np.round(np.clip(values, -(2**53), 2**53), decimals), values) + 0.0
        texts = [f"{value:.{decimals}f}" for value in rounded]
    if width:
        texts = [text.zfill(width) for text in texts]
    return style.written(texts)
