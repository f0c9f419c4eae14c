"""Where the table is in a file of cells: title lines above it, names of two lines, blank lines, totals and notes below.

What is sure is skipped, and a note says so. What is not is asked: `skip`, `header` and `footer` of `Reading` decide.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyless.arrays import IntArray
from keyless.errors import InputError
from keyless.tables.numbers import Written, styled
from keyless.tables.reading_options import MISSING, Reading, option, shown

__all__ = ["HEAD", "TAIL", "Body", "Top", "find_body", "find_top", "text_top"]

Row = Sequence[str]

HEAD = 60
"""Records at the beginning of a file that are looked at to find the column names."""

TAIL = 12
"""Records at its end that may be totals and notes."""

NUMERIC = 0.8
"""A column below the names is one of numbers where so many of its cells are."""

_SEPARATORS = ",;\t|"
_TOTAL = (
    r"(?i)^(grand |sub|over)?-?(totals?|sum|summe|gesamt(summe|ergebnis)?|insgesamt|zwischensumme|endsumme|average|avg"
    r"|mean|mittelwert|durchschnitt|somme|moyenne|totale?|suma|promedio|media|somma)( \p{L}+)?\s*:?$"
)
_UNITS_LINE = re.compile(r"(?i)^(units?|einheit(en)?|unités?|\[.*\]|\(.*\)|-)?:?$")
_NOTHING = re.compile(r"^[\[(]?-?[\])]?$")


@dataclass(frozen=True)
class Top:
    """Where the column names are.

    Attributes:
        skip: lines of text, or rows of a sheet, above them.
        header: how many they take.
        separator: between cells of text.
        notes: what there is to say about it.
    """

    skip: int = 0
    header: int = 1
    separator: str = ","
    notes: tuple[str, ...] = ()


def text_top(head: str, separator: str | None, reading: Reading) -> Top:
    """Return where the column names are in a text file.

    Args:
        head: its beginning.
        separator: between cells, where it is known.
        reading: lines to skip and lines of names, where they are known.
    """
    lines = list(islice(io.StringIO(head, newline=""), 10 * HEAD))
    given = reading.count("skip")
    kept = lines if given is None else lines[given:]
    mark = _separator(kept) if separator is None else separator
    records, starts = _records(kept, mark)
    top = find_top(records, reading)
    # Lines, and not records: cells of a title may hold line ends, and empty lines are no records.
    skip = (starts[top.skip] if top.skip else 0) if given is None else given
    return Top(skip, top.header, mark, top.notes)


def _records(lines: Sequence[str], separator: str) -> tuple[list[list[str]], list[int]]:
    """Return the first records, and how many lines stand above each."""
    records: list[list[str]] = []
    starts: list[int] = []
    reader = csv.reader(lines, delimiter=separator)
    before = 0
    try:
        for record in islice(reader, 2 * HEAD):
            if record:
                records.append(record)
                starts.append(before)
            before = reader.line_num
    except csv.Error:
        pass  # one cell is very long: what was read before it is enough
    return records[:HEAD], starts[:HEAD]


def _separator(lines: Sequence[str]) -> str:
    """Return what separates the cells: that of the first line, unless other lines do not agree with it."""
    first = next((line for line in lines if line.strip()), "")
    bare = re.sub(r'"[^"]*"', "", first)
    chosen = max(_SEPARATORS, key=bare.count) if any(mark in bare for mark in _SEPARATORS) else ","
    widths = {len(record) for record in _records(lines, chosen)[0]}
    agree = len(widths) == 1 and widths != {1}
    return chosen if agree else max(_SEPARATORS, key=lambda mark: _agreement(lines, mark))


def _agreement(lines: Sequence[str], separator: str) -> tuple[int, int]:
    """Return how many records have the commonest number of cells above one, and that number."""
    widths = Counter(len(record) for record in _records(lines, separator)[0] if len(record) > 1)
    return max(((count, width) for width, count in widths.items()), default=(0, 0))


def find_top(records: Sequence[Row], reading: Reading) -> Top:
    """Return where the column names are among records.

    Args:
        records: the first of them.
        reading: records to skip and records of names, where they are known.
    """
    known, header = reading.count("skip"), reading.count("header")
    if not records:
        return Top(header=1 if header is None else header)
    width = max(Counter(len(record) for record in records).items(), key=lambda entry: (entry[1], entry[0]))[0]
    skip = _titles(records, width) if known is None else 0
    if skip and header is None and _is_merged(records[skip - 1 :]):
        skip -= 1
    rest = records[skip:]
    notes = []
    if skip:
        said = [shown(_only(record), limit=40) for record in records[:skip] if _filled(record)]
        lines = "the first line is" if skip == 1 else f"the first {skip} lines are"
        notes.append(f"{lines} not part of the table and skipped{': ' if said else ''}{', '.join(said[:3])}")
    if header is None:
        header = 2 if len(rest) > 3 and _second_line_names(rest[0], rest[1], rest[2:]) else 1
        if header == 2:
            notes.append(f"the column names take two lines, as in {shown(_names(rest[:2])[-1])}")
    return Top(skip, header, notes=tuple(notes))


def _is_merged(records: Sequence[Row]) -> bool:
    """Tell whether what looks like a title is a line of merged names above the others."""
    first, second = records[0], records[1]
    inside = any(cell.strip() for cell in first[1:])
    apart = bool(first) and not (first[0].strip() and second[0].strip())
    return inside and apart and len(records) > 3 and _second_line_names(first, second, records[2:])


def _filled(record: Row) -> int:
    return sum(bool(cell.strip()) for cell in record)


def _only(record: Row) -> str:
    return " ".join(cell.strip() for cell in record if cell.strip())


def _titles(records: Sequence[Row], width: int) -> int:
    """Return how many records stand above the names: those with hardly a cell, where a line of names follows."""
    if width < 2:
        return 0
    for number, record in enumerate(records[:-1]):
        filled = _filled(record)
        short = len(record) != width or width > 2
        if filled == 0 or (short and filled == 1) or (width >= 5 and filled == 2):
            continue
        named = len(record) == width and 2 * filled >= width and not _like_numbers(record).any()
        return number if named else 0
    return 0


def _like_numbers(cells: Sequence[str]) -> Any:
    return Written(pa.array([cell.strip() for cell in cells], type=pa.large_string())).like_numbers


def _second_line_names(first: Row, second: Row, below: Sequence[Row]) -> bool:
    """Tell whether a second line belongs to the names: merged names above, or units below."""
    width = len(first)
    if width < 2 or len(second) != width:
        return False
    tops, bottoms = [cell.strip() for cell in first], [cell.strip() for cell in second]
    known = set(MISSING) - {""}
    if _like_numbers(bottoms).any() or any(cell in known for cell in bottoms):
        return False
    rows = [row for row in below if len(row) == width]
    numeric = [k for k in range(width) if _is_numeric([row[k] for row in rows])]
    if not numeric or any(bottoms[k] in {row[k].strip() for row in rows} for k in numeric if bottoms[k]):
        return False
    blank = [k for k in range(1, width) if not tops[k]]
    if blank and all(bottoms[k] for k in [*blank, *numeric]):
        return True
    # Units stand in columns of numbers only, below names that are all there.
    others = [bottoms[k] for k in range(width) if k not in numeric]
    units = sum(bool(bottoms[k]) for k in numeric)
    return bool(not blank and units and others and all(_UNITS_LINE.match(cell) for cell in others))


def _is_numeric(cells: Sequence[str]) -> bool:
    seen = [cell.strip() for cell in cells if cell.strip() not in MISSING]
    return len(seen) > 1 and float(_like_numbers(seen).mean()) >= NUMERIC


def _names(rows: Sequence[Row]) -> list[str]:
    """Return column names of one or several lines; a merged name holds for the columns right of it, too."""
    if len(rows) == 1:
        return list(rows[0])
    above, below = [list(row) for row in rows[:-1]], rows[-1]
    for line in above:
        last = ""
        for k, cell in enumerate(line):
            if cell.strip():
                # A name above nothing is merged with what is below it, and not with its neighbours.
                last = cell.strip() if below[k].strip() else ""
            elif below[k].strip():
                line[k] = last
    columns = zip(*above, below, strict=True)
    return [
        " ".join(part for part in (cell.strip() for cell in column) if not _NOTHING.match(part)) for column in columns
    ]


# --- below the names -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Body:
    """The rows of a table.

    Attributes:
        names: of its columns.
        columns: its cells, an Arrow array of text for each.
        places: which record each row is, counted from the first line of names.
        numbers: which column of the file each column is.
        notes: what there is to say about it.
    """

    names: list[str]
    columns: list[Any]
    places: IntArray
    numbers: list[int]
    notes: tuple[str, ...] = ()


def find_body(
    table: pa.Table,
    ragged: Sequence[tuple[int, Row]],
    header: int,
    *,
    reading: Reading,
    where: str,
    line: Callable[[int], int | None],
) -> Body | None:
    """Return the rows of a table: without blank ones, totals and notes; None where a record has too many or few cells.

    Args:
        table: all records of the width of the table, those of the names first.
        ragged: the others: number, from the first line of names, and cells.
        header: how many records the names take.
        reading: how many records stand below the rows, where that is known.
        where: the file, as messages name it.
        line: gives the line of a record.
    """
    width = table.num_columns
    if table.num_rows < header:
        label = option(reading.door, "header")
        raise InputError(f"{where}: must have {header} lines of column names, as {label} says; found {table.num_rows}.")
    names = _names(_rows(table, 0, header)) if header else [f"column {k + 1}" for k in range(width)]
    total = table.num_rows + len(ragged)
    footer = reading.count("footer")
    notes: list[str] = []
    if footer is None:
        footer, notes = _found_footer(table, ragged, header, reading=reading, where=where, line=line)
    first = total - footer
    if any(number < first for number, _ in ragged):
        return None
    rows = max(first - header, 0)
    columns = [column.slice(header, rows) for column in table.columns]
    places, numbers = header + np.arange(rows), list(range(width))
    blank = _blank_rows(columns) if width > 1 else np.empty(0, dtype=np.int64)
    if blank.size:
        kept = np.setdiff1d(np.arange(rows), blank)
        columns, places = [column.take(kept) for column in columns], places[kept]
        at = line(int(blank[0]) + header)
        place = "" if at is None else f", line {at} first"
        notes.append(f"blank lines are skipped: {blank.size}{place}")
    if rows and width > 1:
        notes += _inner_totals(columns[0], places, line)
        empty = [k for k, name in enumerate(names) if not name.strip() and _is_blank(columns[k])]
        if empty and len(empty) < width:
            numbers = [k for k in numbers if k not in empty]
            names, columns = [names[k] for k in numbers], [columns[k] for k in numbers]
            notes.append(f"columns without a name and without entries are skipped: {len(empty)}")
    return Body(names, columns, places, numbers, tuple(notes))


def _rows(table: pa.Table, start: int, stop: int) -> list[list[str]]:
    part = table.slice(start, stop - start)
    return [list(row) for row in zip(*(column.to_pylist() for column in part.columns), strict=True)]


def _is_blank(column: Any) -> bool:
    return bool(pc.all(pc.equal(pc.utf8_trim_whitespace(column), "")).as_py())


def _blank_rows(columns: Sequence[Any]) -> IntArray:
    """Return the rows that have nothing in any cell."""
    rows = np.arange(len(columns[0]))
    for column in columns:
        if not rows.size:
            break
        empty = pc.equal(pc.utf8_trim_whitespace(column.take(rows)), "")
        rows = rows[np.asarray(empty, dtype=bool)]
    return rows


def _inner_totals(column: Any, places: IntArray, line: Callable[[int], int | None]) -> list[str]:
    found = np.flatnonzero(np.asarray(pc.match_substring_regex(pc.utf8_trim_whitespace(column), _TOTAL), dtype=bool))
    if not found.size or found.size > TAIL:
        return []
    at = line(int(places[found[0]]))
    place = f"row {found[0]}" if at is None else f"line {at}"
    return [f"{place} looks like totals ({shown(column[int(found[0])].as_py())}) and is taken for a row"]


def _found_footer(
    table: pa.Table,
    ragged: Sequence[tuple[int, Row]],
    header: int,
    *,
    reading: Reading,
    where: str,
    line: Callable[[int], int | None],
) -> tuple[int, list[str]]:
    """Return how many records at the end are no rows, and say which; ask where that is not sure."""
    width, total = table.num_columns, table.num_rows + len(ragged)
    odd = dict(ragged)
    start = max(total - TAIL, header + 1)
    if width < 2 or any(number < start for number in odd):
        return 0, []
    inner = iter(_rows(table, start, table.num_rows))
    tail = [odd[number] if number in odd else next(inner) for number in range(start, total)]
    first = len(tail)
    for place in reversed(range(len(tail))):
        row = tail[place]
        note = _is_sentence(row) if start + place in odd else width > 2 and _filled(row) == 1
        if not (_filled(row) == 0 or note or _is_total(row)):
            break
        first = place
    # A row of one cell is a note below a blank line or a total, or a sentence where others have single words. Elsewhere
    # it is a row of which nothing else is known.
    words = not pc.any(pc.match_substring(table.column(0).slice(header, start + first - header), " ")).as_py()
    while first < len(tail) and not (
        start + first in odd
        or _filled(tail[first]) == 0
        or _is_total(tail[first])
        or (words and bool(tail[first][0]) and _is_sentence(tail[first]))
    ):
        first += 1
    for place in range(first, len(tail)):
        row = tail[place]
        if start + place not in odd and _is_total(row) and not _adds_up(table, start + first, header, row):
            at = line(start + place)
            raise InputError(
                f"{where}{'' if at is None else f', line {at}'}: {shown(_only(row), limit=60)} may be a line of totals "
                f"or a row of the table. Say {option(reading.door, 'footer', len(tail) - place)} to leave it out, "
                f"{option(reading.door, 'footer', 0)} to keep it."
            )
    said = [shown(_only(row), limit=40) for row in tail[first:] if _filled(row)]
    if not said:
        return 0, []  # blank lines are counted with the others
    lines = "the last line is not a row" if len(said) == 1 else f"the last {len(said)} lines are not rows"
    return len(tail) - first, [f"{lines} and skipped: {', '.join(said[:3])}"]


def _is_sentence(row: Row) -> bool:
    """Tell whether a record is one cell of several words, and not the beginning of a line that was cut off."""
    only = _only(row)
    return _filled(row) == 1 and (" " in only or only.startswith(("*", "#", "†")))


def _is_total(row: Row) -> bool:
    label = next((cell.strip() for cell in row if cell.strip()), "")
    return bool(pc.match_substring_regex(pa.scalar(label), _TOTAL).as_py())


def _adds_up(table: pa.Table, stop: int, header: int, row: Row) -> bool:
    """Tell whether a cell of a row is the sum or the mean of the cells above it."""
    for column, cell in zip(table.columns, row, strict=True):
        texts = pc.utf8_trim_whitespace(column.slice(header, stop - header))
        texts = texts.filter(pc.invert(pc.is_in(texts, value_set=pa.array([*MISSING, "-"], type=texts.type))))
        both = pa.chunked_array([*texts.chunks, pa.array([cell.strip()], type=texts.type)])
        found = styled(Written(both), None) if len(texts) > 1 and cell.strip() else None
        if found is None:
            continue
        *numbers, last = pc.cast(found.plain, pa.float64()).to_pylist()
        written = str(found.plain[-1].as_py())
        step = 10.0 ** -len(written.partition(".")[2])
        if any(abs(last - wanted) <= step * 0.51 + 1e-9 * abs(wanted) for wanted in (sum(numbers), np.mean(numbers))):
            return True
    return False
