"""Which column names the rows, and what rows are called that no column names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keyless.errors import InputError
from keyless.sizes import has_many_rows
from keyless.tables.column_use import UsedColumn
from keyless.tables.columns import Column
from keyless.tables.reading_options import ColumnUse, option, shown

__all__ = ["doubtful_ids", "id_column", "is_called_id", "named_rows", "row_numbers"]


def row_numbers(count: int) -> Sequence[int]:
    """Return numbers from 0 as row labels; those of many rows take no memory."""
    return range(count) if has_many_rows([count]) else tuple(range(count))


def id_column(columns: Sequence[Column], found: Sequence[UsedColumn], *, indexed: bool) -> int | None:
    """Return which column names the rows: the one the caller names, or the first that can where there is no index."""
    named = [number for number, one in enumerate(found) if one.use.kind == "id" and one.use.reason == "named as id"]
    if len(named) > 1:
        names = " and ".join(shown(columns[number].name) for number in named)
        said = option(columns[0].door, "id")
        raise InputError(f"{columns[0].where}: must have one id column; {said} names {names}. Name one of them.")
    if named:
        _check_id(columns[named[0]])
        return named[0]
    if indexed:
        return None
    return next((number for number, one in enumerate(found) if one.candidate), None)


def _check_id(column: Column) -> None:
    seen: dict[Any, int] = {}
    for row, entry in enumerate(column.entries):
        if entry is None:
            raise column.refuse(row, "an id must not be missing", "Name another id column, or fill in the id.")
        if entry in seen:
            raise column.refuse(
                row,
                f"{shown(entry)} is the id of row {seen[entry]}, too",
                "Ids must tell rows apart: name another id column, or take one of the rows out.",
            )
        seen[entry] = row


def named_rows(found: Sequence[UsedColumn], id_at: int | None) -> tuple[ColumnUse, ...]:
    """Return what became of each column, where the one that names the rows is known."""
    return tuple(
        replace(one.use, kind="id", reason=f"{one.use.reason}; it names the rows") if number == id_at else one.use
        for number, one in enumerate(found)
    )


def doubtful_ids(columns: Sequence[Column], found: Sequence[UsedColumn]) -> list[str]:
    """Say so where a column is named like an id and does not tell rows apart."""
    notes = []
    for column, one in zip(columns, found, strict=True):
        if is_called_id(column.name) and one.use.kind == "left out" and column.levels[1]:
            codes, levels = column.levels
            if 1 < len(levels) < len(codes):
                notes.append(
                    f"column {shown(column.name)} is no id: it has {len(levels)} different entries in {len(codes)} rows"
                )
    return notes


def is_called_id(name: str) -> bool:
    """Tell whether a column is called just that."""
    return name.strip().lower() == "id"
