"""What callers of `link` may mean by what they give: tables in any arrangement, options in the wrong place."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import narwhals.stable.v2 as nw
import numpy as np

from keyless.errors import InputError
from keyless.options import Options
from keyless.search_options import check_not_removed
from keyless.tables import Table
from keyless.tables.column_use import is_named_like_id

__all__ = [
    "check_no_options",
    "check_reference",
    "gathered",
    "refusing_removed",
    "repeated_first",
    "warn_of_text_numbers",
]

Given = ParamSpec("Given")
Result = TypeVar("Result")

_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?%?")
_MOSTLY = 0.8
"""A text column is taken for one of numbers if at least this share of its entries read like numbers."""

_LOOKED_AT = 1000
"""Most entries of a text column that are looked at."""


def refusing_removed(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let a function refuse options of earlier versions by naming what takes their place.

    Args:
        function: takes options by name.
    """

    @wraps(function)
    def checked(*given: Given.args, **options: Given.kwargs) -> Result:
        for name in options:
            check_not_removed(name)
        return function(*given, **options)

    return checked


def gathered(tables: Any, others: Sequence[Any]) -> Any:
    """Return tables that were given one after the other as one list.

    Args:
        tables: the first argument: one table, or all of them.
        others: the arguments after it.
    """
    for given in others:
        if _looks_like_pairs(given):
            raise InputError(
                "tables: must be tables; found a list of pairs among them. Give known pairs as an option: "
                "link(..., known_pairs=pairs). Give a table of two columns as an array or a frame."
            )
    if not others:
        return tables
    several = isinstance(tables, Mapping) or (isinstance(tables, list | tuple) and not _is_one_table(tables))
    if several:
        raise InputError(
            "tables: must be given all in one mapping or list, or one after the other; found both. "
            "Give options by name: link(tables, known_pairs=..., within=...)."
        )
    return [tables, *others]


def _is_one_table(given: Any) -> bool:
    """Tell whether a list is one table: dictionaries one per row, or rows of numbers."""
    return bool(given) and all(
        isinstance(row, Mapping) or (isinstance(row, list | tuple) and all(np.isscalar(entry) for entry in row))
        for row in given
    )


def _looks_like_pairs(given: Any) -> bool:
    if isinstance(given, list | tuple | set):
        return bool(given) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in given)
    if nw.dependencies.is_into_dataframe(given):
        return {"reference_id", "row_id"} <= set(nw.from_native(given, eager_only=True).columns)
    return False


def check_no_options(tables: Any) -> None:
    """Refuse an option that stands among the tables.

    Args:
        tables: tables by name, or in order.
    """
    options = {field.name for field in fields(Options)} & (set(tables) if isinstance(tables, Mapping) else set())
    for name in options:
        if tables[name] is None or not hasattr(tables[name], "shape"):
            raise InputError(
                f"tables: must be tables by name; {name!r} is an option. Give it beside them: link(tables, {name}=...)."
            )


def check_reference(options: Options) -> None:
    """Refuse a reference that is not the table that repeats entities.

    Args:
        options: of the caller.
    """
    if options.repeats in (None, "auto") or options.reference in (None, options.repeats):
        return
    raise InputError(
        f"repeats: must be the same table as reference, since each of its rows gets a partner; found "
        f"repeats={options.repeats!r} and reference={options.reference!r}. Leave reference out."
    )


def repeated_first(tables: Sequence[Table], repeats: str | None) -> tuple[Table, ...]:
    """Return the tables, first the one that repeats entities: each of its rows is matched for itself.

    Args:
        tables: all tables.
        repeats: the name of that table.
    """
    names = [table.name for table in tables]
    if repeats not in names:
        raise InputError(f"repeats: must be 'auto' or one of {', '.join(map(repr, names))}; found {repeats!r}.")
    return tuple(sorted(tables, key=lambda table: table.name != repeats))


def warn_of_text_numbers(tables: Iterable[Table]) -> None:
    """Warn of columns of frames that hold numbers as text and are therefore not used as numbers.

    Tables from text files are left out: there every entry is text, and numbers are read from it.

    Args:
        tables: the tables as read.
    """
    for table in tables:
        if table.form not in ("frame", "lazy", "records") or table.large_file is not None:
            continue
        for use in table.uses:
            if use.columns or use.kind not in ("left out", "id") or use.reason.startswith(("named in", "says which")):
                continue
            seen = [entry for entry in table.column(use.name)[:_LOOKED_AT] if entry is not None]
            texts = [entry.strip() for entry in seen if isinstance(entry, str)]
            numbers = [text for text in texts if _NUMBER.fullmatch(text)]
            if not numbers or len(numbers) < _MOSTLY * len(seen) or len(set(numbers)) < 2:
                continue
            # Ids are often digits: a column that names rows is taken for numbers only if it has decimals.
            decimals = any(mark in text for text in numbers for mark in ".,")
            if use.kind == "id" and (is_named_like_id(use.name) or not decimals):
                continue
            warnings.warn(
                f"{table.name}: column {use.name!r} holds numbers as text ({numbers[0]!r}, …) and is not used. To use "
                f"it, convert it to numbers, or say reading=Reading(as_number={use.name!r}).",
                UserWarning,
                stacklevel=_callers_level(),
            )


def _callers_level() -> int:
    """Return how many calls up the first line outside keyless is: a warning points there."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "keyless":
        frame, level = frame.f_back, level + 1
    return level
