"""Tables by name, and tables of numbers as a problem. NaN means missing here, and only in this room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw

from keyless.arrays import array_like, as_matrix, namespace
from keyless.errors import InputError
from keyless.problem import Block, Problem
from keyless.tables.files import stem
from keyless.tables.table import Table

__all__ = ["name_reference", "name_tables", "to_block", "to_problem"]


def to_block(table: Any, *, name: str = "table") -> Block:
    """Return a table of numbers as a `Block`: NaN becomes a False in the mask.

    Example:
        >>> to_block([[1.0, float("nan")]]).mask
        array([[ True, False]])
    """
    values = as_matrix(table, name=name, allow_missing=True)
    return Block(values, ~namespace(values).isnan(values), name=name)


def to_problem(tables: Mapping[str, Any] | Iterable[Any], *, reference: str | None = None) -> Problem:
    """Return tables of numbers as a `Problem`.

    Args:
        tables: at least two tables, by name or in order; NaN is missing.
        reference: name of the table whose row order the answer is given in; the first unless given.

    Example:
        >>> problem = to_problem({"clinic": [[1.0, 2.0], [3.0, 4.0]], "lab": [[5.0], [6.0]]})
        >>> problem.shape
        (2, 3)
    """
    tables, reference = name_reference(tables, reference)
    blocks = {name: to_block(table, name=name) for name, table in tables.items()}
    like = blocks[reference].values
    for name, block in blocks.items():
        kind, wanted = type(block.values), type(like)
        if kind is not wanted:
            raise InputError(
                f"{name}: must be of the same kind as {reference}, {wanted.__module__}.{wanted.__name__}; "
                f"found {kind.__module__}.{kind.__name__}. Convert one of them."
            )
    xp = namespace(like)
    common = xp.result_type(*(block.values.dtype for block in blocks.values()))
    for name, block in blocks.items():
        if block.values.dtype != common:
            blocks[name] = Block(array_like(block.values, like, dtype=common), block.mask, name=name)
    others = tuple(block for name, block in blocks.items() if name != reference)
    return Problem(blocks[reference], others)


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
