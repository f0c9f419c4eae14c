"""What one column of a frame counts as, and how its entries become numbers.

| entries | count as | columns of the block |
|---|---|---|
| numbers, whole numbers | number, integer | one |
| true and false | boolean | one: 1 for true |
| ordered categories | ordered | one: 0, 1, 2, … |
| categories, short text with few levels | category | one indicator per level but the last |
| dates and times | date | one, in days |
| all different text, or whole numbers named like an id | id | none |
| other text, constant and empty columns | left out | none |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from keyless.arrays import FloatArray, IntArray
from keyless.errors import InputError
from keyless.tables.cells import are_whole, date_format, days_of, decimals_of, padded_width
from keyless.tables.columns import Column, ask_mark, levels_in_order, not_a_number
from keyless.tables.numbers import NumberStyle, Styled, styled
from keyless.tables.reading_options import MISSING, Coding, ColumnUse, Kind, option, shown

__all__ = [
    "MAX_LEVELS",
    "UsedColumn",
    "check_marks",
    "encode",
    "identifies",
    "is_named_like_id",
    "look",
    "refuse_infinity",
    "says_nothing",
]


MAX_LEVELS = 12
"""A category has at most this many levels of its own; rarer ones are pooled."""

RARE = 0.01
"""A level that fewer of the observed entries have, or only one, is pooled."""

REPEATS = 3
"""Text is a category when a level occurs this often on average …"""

MANY_LEVELS = 100
"""… when there are at most this many levels …"""

SHORT = 50
"""… and when none has more characters."""

NEARLY = 0.95
"""A column of cells is refused where so many are numbers and others are not, …"""

FEW_STRANGE = 3
"""… or where half of them are, and the others are so few different ones that each may mean missing."""

_NAMED_LIKE_ID = "whole numbers, all different, and named like an id"
_DASHES = "^[-\u2010-\u2015\u2212]{1,3}$"
_TRUTHS = ({"true", "false"}, {"yes", "no"})
_ID = re.compile(r"^id$|[_\s.\-:]id$|^(row|record|uu|gu)_?id$", re.IGNORECASE)
_CAMEL_ID = re.compile(r"[a-z](Id|ID)$")
_COUNTER = re.compile(r"^(index|idx|row|rownames?|key|nr|no|number|#|unnamed: 0|)$", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class UsedColumn:
    """What one column counts as, and its numbers.

    Attributes:
        use: what became of it.
        values: rows × columns made of it; NaN where missing.
        candidate: whether it can name the rows.
    """

    use: ColumnUse
    values: FloatArray
    candidate: bool = False


def look(column: Column, wish: str | None) -> UsedColumn:
    """Return what a column counts as.

    Args:
        column: the column.
        wish: the option that names it: "drop", "within", "as_number", "as_category", "id" or None.
    """
    if wish == "drop":
        return _left(column, f"named in {option(column.door, wish)}")
    if wish == "within":
        return _left(column, "says which rows may match")
    if wish == "as_category":
        return _category(column, floor=1, reason=f"named in {option(column.door, wish)}")
    if wish == "id":
        return UsedColumn(ColumnUse(column.name, "id", "named as id"), np.empty((len(column.series), 0)), True)
    if wish == "as_number":
        return _as_number(column)
    return _by_family(column)


def _by_family(column: Column) -> UsedColumn:
    match column.family:
        case "cells":
            return _cells(column)
        case "text":
            return _text(column)
        case "category":
            return _category(column)
        case "ordered":
            return _ordered(column)
        case "boolean":
            return _marked(column, column.numbers, "boolean", "true and false")
        case "integer" if not column.series.null_count() and identifies(column.name, column.numbers):
            return _left(column, _NAMED_LIKE_ID, kind="id", candidate=True)
        case "integer":
            return _number(column, column.numbers, "integer", "whole numbers", Coding(decimals=0))
        case "number":
            return _number(column, column.numbers, "number", "numbers", Coding())
        case "date":
            return _dates(column)
        case "duration":
            return _number(column, column.days, "number", "durations, in days", Coding(form="us"))
        case "empty":
            return _empty(column)
    return _left(column, f"entries of type {column.series.dtype} are neither numbers, categories nor dates")


def _left(column: Column, reason: str, *, kind: Kind = "left out", candidate: bool = False) -> UsedColumn:
    return UsedColumn(ColumnUse(column.name, kind, reason), np.empty((len(column.series), 0)), candidate)


def _empty(column: Column) -> UsedColumn:
    return _left(column, "no entry is observed")


def _number(column: Column, values: FloatArray, kind: Kind, reason: str, coding: Coding) -> UsedColumn:
    """Return a column of numbers, unless it says nothing."""
    seen = _finite(column, values)[~np.isnan(values)]
    extremes = (seen.min(), seen.max()) if seen.size else (np.nan, np.nan)
    left = says_nothing(column, seen.size, *extremes)
    if left is not None:
        return left
    use = ColumnUse(column.name, kind, reason, (column.name,), coding)
    return UsedColumn(use, values[:, None])


def says_nothing(column: Column, count: int, low: float, high: float) -> UsedColumn | None:
    """Return a column of numbers as left out where it says nothing; None where it says something.

    Args:
        column: the column.
        count: how many of its entries are observed.
        low: the smallest.
        high: the largest.
    """
    if not count:
        return _empty(column)
    # A single entry does not show that a column is constant.
    if count > 1 and low == high:
        return _left(column, f"every observed entry is the same, {low:.6g}")
    return None


def _finite(column: Column, values: FloatArray) -> FloatArray:
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise refuse_infinity(column, int(infinite[0]))
    return values


def refuse_infinity(column: Column, row: int) -> InputError:
    """Return an error about an entry that is infinite."""
    return column.refuse(row, "must be a finite number; found an infinity", "Replace it, or mark it missing.")


def is_named_like_id(name: str) -> bool:
    """Tell whether a column of whole numbers, all different, would be taken for ids because of its name."""
    return bool(_ID.search(name) or _CAMEL_ID.search(name) or _COUNTER.search(name))


def identifies(name: str, values: FloatArray) -> bool:
    """Tell whether whole numbers are ids: all different and named so, or named like a counter and counting up."""
    if len(values) < 2 or np.isnan(values).any():
        return False
    if _ID.search(name) or _CAMEL_ID.search(name):
        return len(np.unique(values)) == len(values)
    return bool(_COUNTER.search(name)) and bool((np.diff(values) == 1).all())


def _marked(column: Column, values: FloatArray, kind: Kind, reason: str, *, text: bool = False) -> UsedColumn:
    """Return a column whose numbers stand for levels in order."""
    seen = ~np.isnan(values)
    marks, first = np.unique(values[seen], return_index=True)
    rows = np.flatnonzero(seen)[first]
    coding = Coding(text=text, exemplars=tuple(map(int, rows)), marks=tuple(map(float, marks)))
    found = _number(column, values, kind, reason, coding)
    if found.use.kind == "left out" and marks.size == 1:
        return _left(column, f"every observed entry is the same, {shown(column.entries[rows[0]])}")
    return found


def _ordered(column: Column) -> UsedColumn:
    order = levels_in_order(column.series) or []
    numbers = {level: float(number) for number, level in enumerate(order)}
    values = np.array([np.nan if entry is None else numbers[entry] for entry in column.entries])
    return _marked(column, values, "ordered", f"{len(order)} levels in order")


def _dates(column: Column) -> UsedColumn:
    days = column.days
    seen = days[~np.isnan(days)]
    whole = column.series.dtype == nw.Date or bool((seen == np.round(seen)).all())
    return _number(column, days, "date", "dates, in days", Coding(form="D" if whole else "us"))


def _text(column: Column) -> UsedColumn:
    codes, levels = column.levels
    observed = int((codes >= 0).sum())
    if not observed:
        return _empty(column)
    if len(levels) == len(codes) > 1:
        return _left(column, "text, every entry different", candidate=True)
    if len(levels) == 1 and len(codes) > 1:
        return _left(column, f"every observed entry is the same, {shown(levels[0])}")
    if max(len(str(level)) for level in levels) > SHORT:
        return _left(column, f"free text: entries of more than {SHORT} characters")
    if len(levels) > MANY_LEVELS or observed < REPEATS * len(levels):
        return _left(column, f"free text: {len(levels)} different entries in {observed}")
    return _category(column)


def _category(column: Column, *, floor: int = 2, reason: str | None = None) -> UsedColumn:
    codes, levels = column.levels
    observed = codes[codes >= 0]
    if not observed.size:
        return _empty(column)
    if len(levels) == 1 and len(codes) > 1:
        return _left(column, f"every observed entry is the same, {shown(levels[0])}")
    if reason is None and len(levels) == len(codes) > 1:
        return _left(column, "a category, but every entry is different", candidate=True)
    counts = np.bincount(observed, minlength=len(levels))
    floor = max(floor, int(np.ceil(RARE * observed.size))) if floor > 1 else 1
    order = sorted(range(len(levels)), key=lambda code: (-counts[code], str(levels[code])))
    kept = [code for code in order[:MAX_LEVELS] if counts[code] >= floor]
    others = [code for code in order if code not in kept]
    if len(kept) + bool(others) < 2:
        return _left(column, f"free text: no two of its {len(levels)} different entries are common")
    kept.sort(key=lambda code: str(levels[code]))
    # The last level needs no indicator: it is what the others leave. Rare levels share that place.
    chosen = [*kept, *others[:1]]
    first = {code: int(np.flatnonzero(codes == code)[0]) for code in chosen}
    coding = Coding(text=column.is_file, exemplars=tuple(first[code] for code in chosen), pooled=bool(others))
    said = reason or f"{len(levels)} levels"
    if len(others) > 1:
        said += f"; {len(others)} rare ones count as one"
    names = tuple(f"{column.name}={levels[code]}" for code in chosen[:-1])
    use = ColumnUse(column.name, "category", said, names, coding)
    return UsedColumn(use, _indicators(codes, [[code] for code in chosen[:-1]]))


def _indicators(codes: IntArray, groups: Sequence[Sequence[int]]) -> FloatArray:
    values = np.column_stack([np.isin(codes, group) for group in groups]).astype(np.float64)
    values[codes < 0] = np.nan
    return values


# --- cells -----------------------------------------------------------------------------------------------------------


def _cells(column: Column) -> UsedColumn:
    if column.cells.missing.all():
        return _empty(column)
    if column.cells.constant:
        return _left(column, f"every observed entry is the same, {shown(column.cells.observed[0].as_py())}")
    column = with_dashes(column)
    cells = column.cells
    numbers = _numbers_in(column)
    if numbers is not None:
        return _cell_numbers(column, numbers)
    forms = date_format(cells)
    if len(forms) == 1:
        return _number(column, days_of(cells, forms[0]), "date", "dates, in days", Coding(text=True, form=forms[0]))
    if forms:
        return _left(column, "dates whose day and month cannot be told apart; write them as year-month-day")
    levels = column.levels[1]
    if any({level.lower() for level in levels} <= truths for truths in _TRUTHS):
        values = np.array([np.nan if e is None else float(e.lower() in ("true", "yes")) for e in column.entries])
        return _marked(column, values, "boolean", "true and false", text=True)
    _refuse_nearly_numbers(column)
    return _said_of_numbers(_text(column), column)


def _said_of_numbers(found: UsedColumn, column: Column) -> UsedColumn:
    """Say why a column that is left out is not one of numbers, where most of it looks like it."""
    written = column.cells.written
    if found.use.kind != "left out" or written.like_numbers.mean() < 0.5:
        return found
    if written.like_numbers.all() and len(written.units) > 1:
        units = ", ".join(shown(unit) for unit in written.units[:3] if unit)
        said = f"numbers with different units ({units}): write all in one to use them"
    elif not written.like_numbers.all():
        strange = column.cells.observed[int(np.argmin(written.like_numbers))].as_py()
        said = f"{written.like_numbers.mean():.0%} are numbers, others such as {shown(strange, limit=40)} are not"
    else:
        return found
    return replace(found, use=replace(found.use, reason=f"{found.use.reason}; {said}"))


def with_dashes(column: Column) -> Column:
    """Return a column whose dashes mean missing where everything else in it is a number or a date."""
    if not set(MISSING) <= set(column.markers) or not column.cells.match(_DASHES).any():
        return column
    dashes = tuple(cell for cell in column.levels[1] if re.fullmatch(_DASHES, cell))
    without = replace(column, markers=(*column.markers, *dashes))
    cells = without.cells
    if cells.missing.all():
        return column
    return without if cells.written.like_numbers.mean() >= NEARLY or date_format(cells) else column


def _numbers_in(column: Column) -> Styled | None:
    """Return the cells as numbers where all of them are; ask where they can be read in two ways."""
    cells, mark = column.cells, column.decimal or "."
    if cells.are_numbers(mark).all():
        if column.decimal is None and cells.points_likely_divide:
            raise ask_mark(column, mark)
        return Styled(NumberStyle(mark), cells.plain(mark))
    found = styled(cells.written, column.decimal)
    if found is not None and found.open is not None:
        if found.style.thousands:
            raise ask_mark(column, found.style.thousands)
        # Points are decimal marks unless other columns of the table say otherwise; see `check_marks`.
        return replace(found, open=None)
    return found


def _refuse_nearly_numbers(column: Column) -> None:
    """Refuse what nearly is a column of numbers: to leave it out, or to guess what the rest means, would be silent."""
    cells = column.cells
    if cells.written.like_numbers.mean() < 0.5 and cells.are_infinite().mean() < 0.5:
        return
    styles = list(cells.written.styles())
    fits = [cells.written.fitting(style) for style in styles]
    best = max(range(len(styles)), key=lambda number: int(fits[number].sum()))
    some = np.any(fits, axis=0)
    codes, levels = column.levels
    strange = len({levels[code] for code in codes[codes >= 0][~some]})
    dressed = styles[best].before or styles[best].after
    if some.mean() >= NEARLY or (not dressed and some.mean() >= 0.5 and strange <= FEW_STRANGE):
        raise not_a_number(column, fits[best], styles[best])


def _cell_numbers(column: Column, numbers: Styled, *, reason: str | None = None) -> UsedColumn:
    values, style = column.cells.values(numbers.plain), numbers.style
    whole = are_whole(numbers.plain)
    if whole and reason is None and not column.cells.missing.any():
        if column.cells.padded and len(values) > 1 and len(column.levels[1]) == len(values):
            return _left(column, "padded with zeros, every entry different", candidate=True)
        if identifies(column.name, values):
            return _left(column, _NAMED_LIKE_ID, kind="id", candidate=True)
    coding = Coding(
        text=True,
        decimals=decimals_of(numbers.plain),
        width=padded_width(numbers.plain) if whole else 0,
        **vars(style),
    )
    said = reason or ("whole numbers" if whole else "numbers") + _said(style, column.decimal)
    return _number(column, values, "integer" if whole else "number", said, coding)


def _said(style: NumberStyle, decimal: str | None) -> str:
    """Say how numbers are written, where they are not plain."""
    parts = []
    if style.decimal == "," and decimal is None:
        parts.append("decimal commas")
    if style.thousands:
        parts.append(f"thousands divided by {shown(style.thousands)}")
    parts += [f"{shown(part.strip())}" for part in (style.before, style.after) if part]
    if style.parentheses:
        parts.append("negative ones in parentheses")
    return f" with {' and '.join(parts)}" if parts else ""


def check_marks(columns: Sequence[Column], found: Sequence[UsedColumn]) -> None:
    """Ask where points may divide thousands and another column of the same table has decimal commas."""
    marked = [
        (column, one.use.coding)
        for column, one in zip(columns, found, strict=True)
        if one.use.kind in ("number", "integer") and one.use.coding is not None and one.use.coding.text
    ]
    commas = [column.name for column, coding in marked if coding.decimal == ","]
    for column, coding in marked if commas else ():
        doubtful = column.decimal is None and coding.decimal == "." and not coding.thousands
        if doubtful and with_dashes(column).cells.points_may_divide:
            raise ask_mark(column, ".", because=f", and column {shown(commas[0])} has decimal commas")


def _as_number(column: Column) -> UsedColumn:
    """Return a column as numbers because the caller says so."""
    reason = f"named in {option(column.door, 'as_number')}"
    if column.family in ("integer", "number"):
        kind: Kind = "integer" if column.family == "integer" else "number"
        return _number(column, column.numbers, kind, reason, Coding(decimals=0 if kind == "integer" else None))
    if column.family in ("boolean", "date", "duration", "empty"):
        return _by_family(column)
    if column.family == "other":
        raise InputError(
            f"{column.where}, column {column.name!r}: must hold numbers to be used as such; "
            f"found type {column.series.dtype}. Do not name it in {option(column.door, 'as_number')}."
        )
    column = with_dashes(column)
    cells = column.cells
    numbers = _numbers_in(column) if len(cells.observed) else Styled(NumberStyle(column.decimal or "."), cells.observed)
    if numbers is None:
        styles = [*cells.written.styles(), NumberStyle(column.decimal or ".")]
        best = max(styles, key=lambda style: int(cells.written.fitting(style).sum()))
        raise not_a_number(column, cells.written.fitting(best), best)
    if column.family in ("category", "ordered"):
        # Only the categories there are can be filled in.
        return _marked(column, cells.values(numbers.plain), "number", reason)
    return _cell_numbers(column, numbers, reason=reason)


# --- as another table was read ---------------------------------------------------------------------------------------


def encode(column: Column, use: ColumnUse, levels: Sequence[Any]) -> FloatArray:
    """Return a column's numbers as another one like it was read.

    Args:
        column: the column.
        use: what the other counts as.
        levels: the entries of the other's exemplars.
    """
    coding = use.coding
    assert coding is not None  # the column is used
    typed = column.family in ("boolean", "integer", "number")
    if coding.exemplars and not coding.marks:
        lookup = {level: number for number, level in enumerate(levels)}
        other = len(levels) - 1 if coding.pooled else -1
        codes = np.array([-1 if e is None else lookup.get(e, other) for e in column.entries], dtype=np.int64)
        return _indicators(codes, [[code] for code in range(len(levels) - 1)])
    if column.family == "empty":
        values = np.full(len(column.series), np.nan)
    elif coding.marks and not typed:
        known = dict(zip(levels, coding.marks, strict=True))
        values = np.array([np.nan if e is None else known.get(e, np.nan) for e in column.entries])
    elif coding.form is not None:
        values = column.days if column.family in ("date", "duration") else days_of(column.cells, coding.form)
    elif typed:
        values = column.numbers
    else:
        column = with_dashes(column)
        plain = column.cells.written.read(coding.style)
        if plain.null_count:
            raise not_a_number(column, column.cells.written.fitting(coding.style), coding.style)
        values = column.cells.values(plain)
    return _finite(column, values)[:, None]
