"""Sheets of spreadsheets as cells of text, to be read like those of text files."""

from __future__ import annotations

import contextlib
import datetime
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from keyless.errors import InputError
from keyless.tables.files import given_cells
from keyless.tables.frames import Dialect, Given
from keyless.tables.layout import HEAD, find_body, find_top
from keyless.tables.memory import in_words
from keyless.tables.places import Place, missing_extra
from keyless.tables.reading_options import Reading, shown

__all__ = ["as_text", "read_sheet"]

_BYTES_PER_CELL = 32
"""Memory that the reader takes for a cell, also for an empty one."""

_SHEET = re.compile(r"xl/worksheets/[^/]*\.xml")
_REFERENCE, _LONGEST_REFERENCE = re.compile(rb'r="([A-Z]{1,4})([0-9]{1,8})"'), 20
"""Where a cell says that it stands, such as `r="B12"`, and its characters."""

_CHUNK = 2**20
_LARGEST_WHOLE = 1e15
"""Whole numbers below this are written without a decimal point."""


def read_sheet(place: Place, reading: Reading) -> Given:
    """Read all cells of a sheet as text; `Given.line` gives the row of the sheet.

    Args:
        place: file and sheet.
        reading: rows above, of and below the column names, and limits.
    """
    try:
        import python_calamine  # noqa: PLC0415 — an extra
    except ImportError as error:
        raise missing_extra(place.where, "spreadsheets", "excel") from error
    _check_unpacked(place, reading)
    try:
        book = python_calamine.CalamineWorkbook.from_path(str(place.path))
        sheet = _sheet(book, place)
        cells = max(sheet.height, 1) * max(sheet.width, 1)
        reading.check_memory(200 * cells, where=place.where, what=f"a sheet of {cells} cells")
        values = sheet.to_python(skip_empty_area=False)
        merged = list(sheet.merged_cell_ranges or [])
    except OSError as error:
        raise InputError(f"{place.where}: must be readable; {error}.") from error
    except python_calamine.CalamineError as error:
        raise InputError(
            f"{place.where}: must be a spreadsheet; it is damaged or of another kind ({error})."
        ) from error
    if not values:
        raise InputError(f"{place.where}: must be a table with column names in the first row; the sheet is empty.")
    return _text(values, merged, place, reading)


def _check_unpacked(place: Place, reading: Reading) -> None:
    """Refuse a small file that unpacks to more than fits, or whose cells lie far apart: all between them are held."""

    def check(needed: int, what: str) -> None:
        reading.check_memory(needed, where=place.where, what=what)

    sheets = []
    # The older format is no archive, and the reader says what is wrong with others.
    harmless = (OSError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)
    with contextlib.suppress(*harmless), zipfile.ZipFile(place.path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        check(3 * size, f"a spreadsheet of {in_words(size)}, unpacked,")
        sheets = [_extent(archive, member) for member in members if _SHEET.fullmatch(member.filename)]
    for rows, width in sheets:
        check(_BYTES_PER_CELL * rows * width, f"a sheet of {rows} × {width} cells")


def _extent(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[int, int]:
    """Return the last row and the last column that a sheet names."""
    rows = width = 0
    with archive.open(member) as file:
        rest = b""
        while chunk := file.read(_CHUNK):
            for letters, digits in set(_REFERENCE.findall(rest + chunk)):
                number = 0
                for letter in letters:
                    number = 26 * number + letter - ord("A") + 1
                rows, width = max(rows, int(digits)), max(width, number)
            rest = chunk[-_LONGEST_REFERENCE:]
    return rows, width


def _sheet(book: Any, place: Place) -> Any:
    names = list(book.sheet_names)
    if place.part is not None:
        if place.part not in names:
            raise InputError(f"{place.where}: must name a sheet; there are {', '.join(map(shown, names))}.")
        return book.get_sheet_by_name(place.part)
    sheets = [sheet for sheet in map(book.get_sheet_by_name, names) if sheet.height]
    if len(sheets) > 1:
        some = ", ".join(shown(sheet.name) for sheet in sheets)
        raise InputError(
            f"{place.where}: must say which sheet is meant; there are {some}. "
            f"Name one as {place.path.name}::{sheets[0].name}."
        )
    if not sheets:
        raise InputError(f"{place.where}: must have a sheet with cells; all are empty.")
    return sheets[0]


def _text(values: list[list[Any]], merged: Sequence[Any], place: Place, reading: Reading) -> Given:
    skip = reading.count("skip")
    head = [as_text(row) for row in values[skip or 0 : (skip or 0) + HEAD]]
    top = find_top(head, reading)
    start = top.skip if skip is None else skip
    for (first, left), (last, right) in merged:
        # A cell merged over several rows holds for each of them.
        if first >= start + top.header and last > first:
            for row in range(first, min(last + 1, len(values))):
                values[row][left : right + 1] = [values[first][left]] * (right + 1 - left)
    rows = values[start:]
    columns = [as_text([row[k] for row in rows]) for k in range(len(values[0]))]
    cells = {str(k): pa.array(column, type=pa.large_string()) for k, column in enumerate(columns)}
    table = pa.table(cells)

    def line(record: int) -> int:
        return start + record + 1

    body = find_body(table, [], top.header, reading=reading, where=place.where, line=line)
    if body is None:
        raise InputError(f"{place.where}: must have rows below the row of column names; found none.")
    body = replace(body, names=[" ".join(name.split()) for name in body.names])
    # Where numbers are stored as such their decimal mark is a point, whatever the text of other columns has.
    typed = frozenset(
        name
        for name, k in zip(body.names, body.numbers, strict=True)
        if any(is_number(rows[place][k]) for place in body.places.tolist())
    )
    notes = (*top.notes, *body.notes)
    return given_cells(body, notes, where=place.where, line=line, dialect=Dialect("sheet"), typed=typed)


def is_number(value: Any) -> bool:
    """Tell whether a cell holds a number as such."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_text(values: Sequence[Any]) -> list[str]:
    """Return values of one column as text: numbers as Python writes them, dates as year-month-day.

    Args:
        values: text, numbers, booleans, dates, times and None.
    """
    # Dates and times of one column in one form, so that it can be recognised.
    timed = any(isinstance(value, datetime.datetime) and value.time() != datetime.time() for value in values)
    return [_written(value, timed=timed) for value in values]


def _written(value: Any, *, timed: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _LARGEST_WHOLE else repr(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="auto") if timed else value.date().isoformat()
    if isinstance(value, datetime.date):
        return f"{value.isoformat()} 00:00:00" if timed else value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
