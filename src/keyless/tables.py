"""Tables as users have them ↔ blocks. NaN means missing here, and only here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keyless.arrays import array_like, as_matrix, namespace
from keyless.errors import InputError
from keyless.problem import Block, Problem

__all__ = ["to_block", "to_problem"]


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
    if not isinstance(tables, Mapping):
        tables = {"reference" if i == 0 else f"table{i}": table for i, table in enumerate(tables)}
    if len(tables) < 2:
        raise InputError(f"tables: must be at least two; found {len(tables)}.")
    if reference is None:
        reference = next(iter(tables))
    if reference not in tables:
        raise InputError(f"reference: must be one of the tables, {', '.join(map(repr, tables))}; found {reference!r}.")
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
