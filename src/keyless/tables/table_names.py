"""Tables by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw

from keyless.errors import InputError
from keyless.tables.files import stem
from keyless.tables.table import Table

__all__ = ["name_reference", "name_tables"]


def name_reference(tables: Mapping[str, Any] | Iterable[Any], reference: str | None) -> tuple[dict[str, Any], str]:
    """Return the tables by name, and the name of the reference."""
    named = name_tables(tables)
    if len(named) < 2:
        raise InputError(f"tables: must be at least two; found {len(named)}.")
    for name, table in named.items():
        if table is None or isinstance(table, int | float):
            raise InputError(f"{name}: must be a table or the path of a file; found {table!r}.")
    if reference is None:
        reference = next(iter(named))
    if reference not in named:
        raise InputError(f"reference: must be one of the tables, {', '.join(map(repr, named))}; found {reference!r}.")
    return named, reference


def name_tables(tables: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return tables by name; those given in order are called reference, table1, table2, …, files by their names.

    Args:
        tables: a mapping from names to tables, or tables in order.
    """
    if isinstance(tables, Mapping):
        named = {str(name): table for name, table in tables.items()}
        if len(named) < len(tables):
            raise InputError(f"tables: must have different names as text; found {', '.join(map(repr, tables))}.")
        return named
    # An array or a sparse matrix is one table, not a list of its rows.
    one = isinstance(tables, str | Path) or len(getattr(tables, "shape", ())) == 2
    if one or not isinstance(tables, Iterable) or nw.dependencies.is_into_dataframe(tables):
        raise InputError(
            f"tables: must be two or more, in a list or by name; found one {type(tables).__name__}. "
            'Example: link({"clinic": a, "lab": b})'
        )
    named = {}
    for number, table in enumerate(tables):
        if isinstance(table, str | Path):
            name = stem(table)
        elif isinstance(table, Table):
            name = table.name
        else:
            name = "reference" if number == 0 else f"table{number}"
        unique, count = name, 2
        while unique in named:
            unique, count = f"{name}-{count}", count + 1
        named[unique] = table
    return named
