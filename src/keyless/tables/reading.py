"""What the caller says about reading tables, and what became of each column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from keyless.arrays import check_count
from keyless.errors import InputError

__all__ = ["MISSING", "ColumnUse", "Kind", "Reading", "check_named", "shown"]

Kind = Literal["number", "integer", "boolean", "category", "ordered", "date", "id", "left out"]

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", ".")
"""Cells of a text file that mean missing, unless the caller says otherwise."""

_BY_COLUMN = ("drop", "within", "as_number", "as_category", "id")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How tables are read.

    Columns are named as `"column"`, which means that column of every table that has it, or as `"table:column"`.

    Attributes:
        id: column that names the rows, or one for each table; recognised where a table has none of them. It is never
            used as a number.
        missing: cells of text files that mean missing, compared without the spaces around them.
        layout: `"wide"`: one row per thing; `"long"`: the first three columns are row, column and value.
        drop: columns to leave out.
        within: columns that say which rows may match; they are not used as numbers. Set by `keyless.link`.
        as_number: columns to use as numbers, whatever they look like.
        as_category: columns to use as categories, whatever they look like.
        decimal: decimal mark of numbers in text files. A column whose every number has a comma is recognised.
        encoding: of text files; None: UTF-8, or latin-1 where it is not.
        max_line: longest line of a text file, in bytes.
        max_memory: bytes that may be used; None: what the machine has available.
        unstored: what an entry that is not stored means: `"missing"`, `"zero"`, or `"auto"`: zero for AnnData, missing
            for sparse matrices and the long layout.
    """

    id: str | tuple[str, ...] | None = ()
    missing: tuple[str, ...] = MISSING
    layout: Literal["wide", "long"] = "wide"
    drop: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    as_number: tuple[str, ...] = ()
    as_category: tuple[str, ...] = ()
    decimal: str = "."
    encoding: str | None = None
    max_line: int = 2**26
    max_memory: int | None = None
    unstored: Literal["auto", "missing", "zero"] = "auto"

    def __post_init__(self) -> None:
        for name in (*_BY_COLUMN, "missing"):
            given = getattr(self, name)
            if name == "id" and given is None:
                given = ()
            elif isinstance(given, str) or not isinstance(given, Iterable):
                given = (given,)
            given = tuple(given)
            if not all(isinstance(entry, str) for entry in given):
                raise InputError(f"{name}: must be text; found {given!r}.")
            object.__setattr__(self, name, given)
        if self.decimal not in (".", ","):
            raise InputError(f"decimal: must be '.' or ','; found {self.decimal!r}.")
        for name, options in (("layout", ("wide", "long")), ("unstored", ("auto", "missing", "zero"))):
            if getattr(self, name) not in options:
                raise InputError(
                    f"{name}: must be one of {', '.join(map(repr, options))}; found {getattr(self, name)!r}."
                )
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, TypeError) as error:
                raise InputError(f"encoding: must be one Python knows; found {self.encoding!r}.") from error
        check_count(self.max_line, name="max_line")
        if self.max_memory is not None:
            check_count(self.max_memory, name="max_memory")

    def wish(self, table: str, column: str) -> str | None:
        """Return the option that names a column: "id", "drop", "within", "as_number", "as_category", or None."""
        names = (column, f"{table}:{column}")
        wishes = [option for option in _BY_COLUMN if any(name in getattr(self, option) for name in names)]
        if len(wishes) > 1:
            raise InputError(f"{table}, column {column!r}: must be named in one option; found {' and '.join(wishes)}.")
        return wishes[0] if wishes else None

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """Every (option, entry) that names a column."""
        return tuple((option, entry) for option in _BY_COLUMN for entry in getattr(self, option))


def check_named(tables: Sequence[Any], reading: Reading) -> None:
    """Refuse options that name a column none of the tables has."""
    known = {name for table in tables for use in table.uses for name in (use.name, f"{table.name}:{use.name}")}
    for option, entry in reading.named:
        if entry not in known:
            columns = [use.name for table in tables for use in table.uses]
            some = ", ".join(repr(name) for name in list(dict.fromkeys(columns))[:12])
            raise InputError(
                f"{option}: must name a column of {' or '.join(table.name for table in tables)}; found {entry!r}. "
                f"There are {some}{', …' if len(set(columns)) > 12 else ''}."
            )


@dataclass(frozen=True)
class ColumnUse:
    """What became of one column of a table.

    Attributes:
        name: the column.
        kind: what it counts as; `"id"` and `"left out"` are not used for linking.
        reason: why, in a sentence.
        columns: names of the block's columns that were made of it.
        coding: how its entries become numbers and numbers entries; None where it is not used.
    """

    name: str
    kind: Kind
    reason: str
    columns: tuple[str, ...] = ()
    coding: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"kind: must be one of {', '.join(map(repr, get_args(Kind)))}; found {self.kind!r}.")


def shown(text: object, *, limit: int = 200) -> str:
    """Return an entry as a message shows it: quoted, in one line, cut where it is long."""
    written = str(text)
    return repr(written if len(written) <= limit else written[: limit - 1] + "…")
