"""Frames as files in the dialect of the tables they were made of: text with its separator and marks, or .xlsx."""

from __future__ import annotations

import datetime
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from keyless.errors import InputError
from keyless.runs.cells import is_risky, spreadsheet_safe_frame
from keyless.tables import Dialect, Table

__all__ = [
    "OutFormat",
    "check_format",
    "dialect_of",
    "ending",
    "for_ending",
    "in_marks",
    "text_of",
    "typed",
    "write_table",
]

OutFormat: TypeAlias = Literal["same", "csv", "tsv", "xlsx", "parquet"]
"""Formats of tables that are written: that of the tables given, plain CSV or TSV, an Excel workbook, or Parquet."""

MOST_ROWS, MOST_COLUMNS, LONGEST_CELL = 2**20 - 1, 2**14, 32_767
"""What a sheet of .xlsx holds: rows below the names, columns, and characters of a cell."""

_PLAIN = {"csv": Dialect(), "tsv": Dialect(separator="\t")}


def dialect_of(table: Table, out_format: OutFormat = "same") -> Dialect:
    """Return the dialect in which what is made of a table is written.

    Args:
        table: the table.
        out_format: `"same"` is the dialect of the table.
    """
    if out_format in _PLAIN:
        return _PLAIN[out_format]
    if out_format == "xlsx":
        return Dialect("sheet")
    if table.dialect.kind == "sheet" and not _has_openpyxl():
        return Dialect()
    return table.dialect


def check_format(out_format: OutFormat, tables: Sequence[Table] = ()) -> None:
    """Say before the work, not after, that tables cannot be written as .xlsx.

    Args:
        out_format: the format that was asked for.
        tables: the tables, where they are known.
    """
    if out_format != "xlsx":
        return
    if not _has_openpyxl():
        raise InputError('--out-format: xlsx needs a library that is not installed. Run: pip install "keyless[excel]"')
    rows = max((table.block.shape[0] for table in tables), default=0) * max(len(tables) - 1, 1)
    columns = sum(len(table.all_columns) for table in tables) + 1
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        raise InputError(
            f"--out-format: xlsx holds at most {MOST_ROWS:,} rows and {MOST_COLUMNS:,} columns; the results would have "
            f"{rows:,} and {columns:,}. Use --out-format csv."
        )


def _has_openpyxl() -> bool:
    try:
        import openpyxl  # noqa: F401, PLC0415 — an extra
    except ImportError:
        return False
    return True


def ending(dialect: Dialect) -> str:
    """Return the ending of a file in a dialect."""
    if dialect.kind == "sheet":
        return ".xlsx"
    return ".tsv" if dialect.separator == "\t" else ".csv"


def for_ending(dialect: Dialect, suffix: str) -> Dialect:
    """Return a dialect for a file whose name says more: .xlsx, or text with tabs or without."""
    if suffix == ".xlsx":
        return Dialect("sheet")
    if suffix == ending(dialect):
        return dialect
    # A comma would be the decimal mark and the separator.
    between = "\t" if suffix == ".tsv" else ";" if dialect.decimal == "," else ","
    return replace(dialect, kind="text", separator=between)


def write_table(
    frame: pd.DataFrame, path: Path, dialect: Dialect, *, tables: Sequence[Table] = (), raw_cells: bool = False
) -> dict[str, str]:
    """Write a frame, and return how: separator, decimal mark and encoding, or that it is a sheet.

    Text that the encoding of the dialect does not have is written in UTF-8 with a byte order mark, which spreadsheets
    understand.

    Args:
        frame: any frame.
        path: where; its name ends in `ending(dialect)`.
        dialect: how.
        tables: the tables its columns come from, under their own names or with the table's name and a dot in front.
        raw_cells: write text as it is, also where a spreadsheet would run it as a formula.
    """
    if dialect.kind == "sheet":
        _write_sheet(typed(frame, tables, dates=True), path, raw_cells=raw_cells)
        return {"kind": "sheet"}
    try:
        _to_csv(frame, path, dialect, tables, raw_cells=raw_cells)
    except UnicodeEncodeError:
        dialect = replace(dialect, encoding="utf-8-sig")
        # Halves of characters, which UTF-8 cannot hold, become escapes.
        _to_csv(frame, path, dialect, tables, raw_cells=raw_cells, errors="backslashreplace")
    return asdict(dialect)


def text_of(frame: pd.DataFrame, dialect: Dialect, *, tables: Sequence[Table] = (), raw_cells: bool = False) -> str:
    """Return a frame as text with the separator and decimal mark of a dialect.

    Args:
        frame: any frame.
        dialect: how; commas and points for that of a sheet.
        tables: the tables its columns come from.
        raw_cells: leave text as it is, also where a spreadsheet would run it as a formula.
    """
    text = io.StringIO()
    _to_csv(frame, text, Dialect() if dialect.kind == "sheet" else dialect, tables, raw_cells=raw_cells)
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _to_csv(
    frame: pd.DataFrame,
    target: Any,
    dialect: Dialect,
    tables: Sequence[Table],
    *,
    raw_cells: bool,
    errors: Literal["strict", "backslashreplace"] = "strict",
) -> None:
    written = in_marks(frame, dialect.decimal, tables)
    written = written if raw_cells else spreadsheet_safe_frame(written)
    written.to_csv(
        target, index=False, lineterminator="\n", sep=dialect.separator, encoding=dialect.encoding, errors=errors
    )


def _own_columns(frame: pd.DataFrame, tables: Sequence[Table]) -> Mapping[str, Any]:
    """Return what each column that comes from a text file counts as."""
    columns = set(frame.columns)
    return {
        name: use
        for table in tables
        for use in (table.uses if table.form == "cells" else ())
        for name in {use.name, f"{table.name}.{use.name}"} & columns
    }


def in_marks(frame: pd.DataFrame, decimal: str, tables: Sequence[Table] = ()) -> pd.DataFrame:
    """Return a frame with all numbers written with one decimal mark; text that has it already stays as it is.

    Args:
        frame: any frame.
        decimal: the mark.
        tables: the tables its columns come from.
    """
    made = frame.copy(deep=False)
    known = _own_columns(frame, tables)
    other = "," if decimal == "." else "."
    for place, (name, kind) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        use = known.get(name)
        if use is not None and use.kind in ("number", "integer"):
            style = use.coding.style
            if style.decimal != decimal:
                column = frame.iloc[:, place]
                thousands = other if style.thousands == decimal else style.thousands
                changed = replace(style, decimal=decimal, thousands=thousands)
                marks = [mark for mark in (style.decimal, style.thousands) if mark]
                # Whole numbers stay the very text they were.
                marked = [isinstance(text, str) and any(mark in text for mark in marks) for text in column]
                plain = style.plain(column)
                texts = [
                    changed.written([number])[0] if with_mark and number is not None else text
                    for text, number, with_mark in zip(column, plain, marked, strict=True)
                ]
                made.isetitem(place, np.array(texts, dtype=object))
        elif decimal != "." and (pd.api.types.is_float_dtype(kind) or pd.api.types.is_object_dtype(kind)):
            written = frame.iloc[:, place].astype(object).map(_with_comma, na_action="ignore")
            made.isetitem(place, written.to_numpy(dtype=object))
    return made


def _with_comma(entry: Any) -> Any:
    if isinstance(entry, float | np.floating):
        return repr(float(entry)).replace(".", ",")
    return str(entry).replace(".", ",") if isinstance(entry, Decimal) else entry


def typed(frame: pd.DataFrame, tables: Sequence[Table], *, dates: bool = False) -> pd.DataFrame:
    """Return a frame with the numbers of text files, which are kept as the text they were, as numbers.

    Args:
        frame: columns of the tables, under their own names or with the table's name and a dot in front.
        tables: the tables.
        dates: dates, too, and true and false.
    """
    made = frame.copy()
    for name, use in _own_columns(frame, tables).items():
        if use.kind in ("number", "integer"):
            plain = use.coding.style.plain(frame[name])
            made[name] = pd.to_numeric(pd.Series(plain, index=frame.index, dtype=object))
        elif dates and use.kind == "date" and use.coding.form is not None:
            moments = pd.to_datetime(frame[name].str.strip(), format=use.coding.form, errors="coerce")
            only_days = not bool((moments.dropna() != moments.dropna().dt.normalize()).any())
            days = [None if pd.isna(m) else m.date() if only_days else m.to_pydatetime() for m in moments]
            made[name] = pd.Series(days, index=frame.index, dtype=object)
        elif dates and use.kind == "boolean":
            truths = {"true": True, "yes": True, "false": False, "no": False}
            said = [truths.get(str(cell).strip().lower()) for cell in frame[name]]
            made[name] = pd.Series(said, index=frame.index, dtype=object)
    return made


def _write_sheet(frame: pd.DataFrame, path: Path, *, raw_cells: bool) -> None:
    import openpyxl  # noqa: PLC0415 — an extra
    from openpyxl.cell import WriteOnlyCell  # noqa: PLC0415
    from openpyxl.utils.escape import escape  # noqa: PLC0415

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Sheet1")

    def cell(value: Any) -> Any:
        value = _for_sheet(value)
        if not isinstance(value, str):
            return value
        made = WriteOnlyCell(sheet, escape(value)[:LONGEST_CELL])
        # Text stays text, also where it begins like a formula.
        made.data_type = "s"
        if not raw_cells and is_risky(value):
            # What a person types with a leading apostrophe: it is text still after it is edited.
            made.quotePrefix = True
        return made

    sheet.append([cell(str(name)) for name in frame.columns])
    columns = [frame.iloc[:, place].tolist() for place in range(frame.shape[1])]
    for row in zip(*columns, strict=True):
        sheet.append([cell(value) for value in row])
    book.save(path)


def _for_sheet(value: Any) -> Any:
    """Return an entry as a sheet holds it; None for what is missing."""
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else str(value)
    if isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        # A sheet holds numbers as floats; longer ones, such as ids, would change.
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, pd.Timestamp):
        return value.to_pydatetime() if value.tzinfo is None else value.isoformat()
    if isinstance(value, datetime.datetime | datetime.time) and value.tzinfo is not None:
        return value.isoformat()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time | datetime.timedelta):
        return value
    return str(value)
