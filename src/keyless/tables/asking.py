"""What is asked where a column of cells can be read in two ways, or nearly is one of numbers."""

from __future__ import annotations

import numpy as np

from keyless.arrays import BoolArray
from keyless.errors import InputError
from keyless.tables.columns import Column
from keyless.tables.numbers import NumberStyle
from keyless.tables.reading_options import option, shown

__all__ = ["ask_mark", "mixed_marks", "not_a_number"]


_MARKS = {".": "point", ",": "comma"}


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
    advice = _left_out(column, cell)
    if column.cells.are_infinite()[~fits][0]:
        return column.refuse(row, f"{shown(cell)} is an infinity, not a finite number", advice)
    if fits.any() and (style.before or style.after):
        like = shown(column.entries[int(rows[fits][0])])
        return column.refuse(row, f"{shown(cell)} is not a number like {like}", f"{advice} {_as_category(column)}")
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


def _left_out(column: Column, cell: str) -> str:
    return (
        f"Name it missing with {option(column.door, 'missing', cell)}, or leave the column out with "
        f"{option(column.door, 'drop', column.name)}."
    )


def _as_category(column: Column) -> str:
    return f"If these are no numbers, say {option(column.door, 'as_category', column.name)}."
