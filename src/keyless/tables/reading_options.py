"""What the caller says about reading tables, and what became of each column."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from keyless.arrays import check_count
from keyless.errors import InputError, check_among
from keyless.tables.memory import check_memory
from keyless.tables.numbers import NumberStyle

__all__ = [
    "MISSING",
    "Coding",
    "ColumnUse",
    "Door",
    "Kind",
    "Reading",
    "check_named",
    "nothing_used",
    "option",
    "shown",
]

Kind = Literal["number", "integer", "boolean", "category", "ordered", "date", "id", "left out"]

Door = Literal["python", "command line"]
"""Where the caller came in: messages name the options there."""

_USUAL = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", ".", "<NA>")
_NOT_STATED = ("k.A.", "k. A.", "k.a.", "k. a.", "n.a.", "n. a.", "N.A.")
_SPREADSHEET_ERRORS = (
    *("#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!"),
    *("#NV", "#WERT!", "#BEZUG!", "#ZAHL!"),
)
MISSING = (*_USUAL, *_NOT_STATED, *_SPREADSHEET_ERRORS)
"""Cells of a text file that mean missing, unless the caller says otherwise. With all of them, dashes alone do, too, in
columns of numbers and dates; among words a dash may be one of them."""

_BY_COLUMN = ("drop", "within", "as_number", "as_category", "id")
_BY_TABLE = ("decimal", "encoding", "skip", "header", "footer")
_COUNTS = ("skip", "header", "footer")


def option(door: Door, name: str, value: str | int | None = None) -> str:
    """Return how an option is given where the caller came in.

    Args:
        door: where that is.
        name: the option, as `Reading` has it.
        value: what it is to be; None: the option alone.

    Example:
        >>> option("command line", "as_number", "my age"), option("python", "missing", "?")
        ("--as-number 'my age'", "Reading(missing=(*MISSING, '?'))")
    """
    if door == "command line":
        given = "" if value is None else f" {value if isinstance(value, int) else shlex.quote(value)}"
        return f"--{name.replace('_', '-')}{given}"
    if value is None:
        return name
    # What is given takes the place of the usual ones, and they are still wanted.
    return f"Reading({name}={f'(*MISSING, {value!r})' if name == 'missing' else repr(value)})"


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
        decimal: decimal mark of numbers in text, `"."` or `","`, where a column can be read with either (`12,650`);
            None: such a column is asked about.
        encoding: of text files; None: UTF-8, or cp1252 or latin-1 where it is not.
        skip: lines above the line of column names; None: lines of a title and empty ones are recognised.
        header: lines that the column names take; 0: there are none; None: one, or two where the second is recognised.
        footer: lines below the last row; None: totals and notes are recognised.
        max_line: longest line of a text file, in bytes.
        max_memory: bytes that may be used; None: what the machine has available.
        unstored: what an entry that is not stored means: `"missing"`, `"zero"`, or `"auto"`: zero for AnnData, missing
            for sparse matrices and the long layout.
        missingness: let which entries are observed count as information about the entity.
        door: where the caller came in; messages name the options there.

    `decimal`, `encoding`, `skip`, `header` and `footer` may be given by table name, as in `{"lab": ","}`; the entry
    `""` is for all other tables.
    """

    id: str | tuple[str, ...] | None = ()
    missing: tuple[str, ...] = MISSING
    layout: Literal["wide", "long"] = "wide"
    drop: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    as_number: tuple[str, ...] = ()
    as_category: tuple[str, ...] = ()
    decimal: str | Mapping[str, str] | None = None
    encoding: str | Mapping[str, str] | None = None
    skip: int | Mapping[str, int] | None = None
    header: int | Mapping[str, int] | None = None
    footer: int | Mapping[str, int] | None = None
    max_line: int = 2**26
    max_memory: int | None = None
    unstored: Literal["auto", "missing", "zero"] = "auto"
    missingness: bool = False
    door: Door = "python"

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
        for name in _BY_TABLE:
            given = getattr(self, name)
            if isinstance(given, Mapping):
                # Plain dicts, so that two readings can be compared and saved.
                object.__setattr__(self, name, dict(given))
            for one in given.values() if isinstance(given, Mapping) else (given,):
                self._check(name, one)
        for name, options in (("layout", ("wide", "long")), ("unstored", ("auto", "missing", "zero"))):
            check_among(name, getattr(self, name), options)
        if not isinstance(self.missingness, bool):
            raise InputError(f"missingness: must be True or False; found {self.missingness!r}.")
        check_count(self.max_line, name="max_line")
        if self.max_memory is not None:
            check_count(self.max_memory, name="max_memory")

    def _check(self, name: str, given: Any) -> None:
        """Refuse a value of an option that is given by table."""
        label = option(self.door, name)
        if given is None:
            return
        if name == "decimal" and given not in (".", ","):
            raise InputError(f"{label}: must be '.' or ','; found {given!r}.")
        if name in _COUNTS and not (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
            raise InputError(f"{label}: must be a whole number of at least 0; found {given!r}.")
        if name == "encoding":
            try:
                "".encode(given)
            except (LookupError, TypeError) as error:
                raise InputError(f"{label}: must be an encoding that Python knows; found {given!r}.") from error

    def of(self, table: str) -> Reading:
        """Return how one table is read: with what is given for it where options are given by table."""
        given = {name: getattr(self, name) for name in _BY_TABLE}
        own = {name: value.get(table, value.get("")) for name, value in given.items() if isinstance(value, Mapping)}
        return replace(self, **own) if own else self

    def check_memory(self, needed: int, *, where: str, what: str, held: int = 0) -> None:
        """Refuse what cannot fit into the memory that may be used; see `memory.check_memory`."""
        check_memory(needed, max_memory=self.max_memory, where=where, what=what, held=held)

    @property
    def mark(self) -> str | None:
        """The decimal mark, of a reading for one table."""
        return self.decimal if isinstance(self.decimal, str) else None

    def count(self, name: str) -> int | None:
        """Return `skip`, `header` or `footer`, of a reading for one table."""
        given = getattr(self, name)
        return given if isinstance(given, int) else None

    def wish(self, table: str, column: str) -> str | None:
        """Return the option that names a column: "id", "drop", "within", "as_number", "as_category", or None."""
        names = (column, f"{table}:{column}")
        wishes = [wish for wish in _BY_COLUMN if any(name in getattr(self, wish) for name in names)]
        if len(wishes) > 1:
            named = " and ".join(option(self.door, wish) for wish in wishes)
            raise InputError(f"{table}, column {column!r}: must be named in one option; found {named}.")
        return wishes[0] if wishes else None

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """Every (option, entry) that names a column."""
        return tuple((wish, entry) for wish in _BY_COLUMN for entry in getattr(self, wish))


def check_named(tables: Sequence[Any], reading: Reading) -> None:
    """Refuse options that name a column none of the tables has."""
    known = {name for table in tables for use in table.uses for name in (use.name, f"{table.name}:{use.name}")}
    names = {table.name for table in tables}
    for given in _BY_TABLE:
        by_table = getattr(reading, given)
        for name in by_table if isinstance(by_table, Mapping) else ():
            if name and name not in names:
                raise InputError(
                    f"{option(reading.door, given)}: must name one of the tables, "
                    f"{', '.join(map(shown, sorted(names)))}; found {name!r}."
                )
    for wanted, entry in reading.named:
        if entry not in known:
            columns = [use.name for table in tables for use in table.uses]
            some = ", ".join(repr(name) for name in list(dict.fromkeys(columns))[:12])
            raise InputError(
                f"{option(reading.door, wanted)}: must name a column of "
                f"{' or '.join(table.name for table in tables)}; found {entry!r}. "
                f"There are {some}{', …' if len(set(columns)) > 12 else ''}."
            )


@dataclass(frozen=True)
class Coding:
    """How entries of a column become numbers and numbers entries. Plain values only, so that it can be saved.

    Attributes:
        text: whether entries are text that is read.
        decimal: decimal mark of numbers in text.
        decimals: how many decimals to write; None: as many as needed.
        width: how many digits whole numbers in text are padded to.
        form: of dates in text, their format; of others, the step they are rounded to, "D" or "us".
        exemplars: for each level, a row that has it.
        marks: for levels in order, the number each stands for; empty for levels with indicators.
        pooled: whether the last level stands for all others.
        thousands: what divides thousands of numbers in text; empty for nothing.
        before: text before every number in text, a currency.
        after: text behind every number in text, a unit or currency.
        parentheses: whether negative numbers in text stand in parentheses.
    """

    text: bool = False
    decimal: str = "."
    decimals: int | None = None
    width: int = 0
    form: str | None = None
    exemplars: tuple[int, ...] = ()
    marks: tuple[float, ...] = ()
    pooled: bool = False
    thousands: str = ""
    before: str = ""
    after: str = ""
    parentheses: bool = False

    @property
    def style(self) -> NumberStyle:
        """How numbers in text are written."""
        return NumberStyle(self.decimal, self.thousands, self.before, self.after, self.parentheses)


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
    coding: Coding | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_among("kind", self.kind, get_args(Kind))


def nothing_used(uses: Sequence[ColumnUse], rows: int, *, where: str) -> InputError:
    """Return an error about a table of which no column is used.

    Args:
        uses: what became of each column.
        rows: how many rows the table has.
        where: the table, as messages name it.
    """
    said = "; ".join(f"{shown(use.name)}: {use.reason}" for use in uses[:5])
    return InputError(
        f"{where}: must have at least one row and one column of numbers, categories or dates whose entries differ; "
        f"found shape {(rows, len(uses))}. {said}{'; …' if len(uses) > 5 else ''}."
    )


def shown(text: object, *, limit: int = 200) -> str:
    """Return an entry as a message shows it: quoted, in one line, cut where it is long."""
    written = str(text)
    return repr(written if len(written) <= limit else written[: limit - 1] + "…")
