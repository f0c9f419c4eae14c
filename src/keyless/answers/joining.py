"""One wide table: the rows of all tables side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from keyless.answers.labels import ids
from keyless.arrays import FloatArray, IntArray, check_finite
from keyless.errors import InputError
from keyless.table_link import LinkedTables
from keyless.tables import Table, frame_like
from keyless.tables.frames import free_name, taken

__all__ = ["Fill", "How", "cut", "joined", "joined_columns", "joined_plan"]

How = Literal["left", "inner", "outer"]
Fill = bool | Literal["all"]
Linked = TypeVar("Linked", bound=LinkedTables)


def joined(
    links: LinkedTables,
    *,
    how: How = "left",
    min_probability: float | None = None,
    fill: Fill = True,
    indicator: bool = False,
    suffixes: Sequence[str] | Mapping[str, str] | None = None,
) -> Any:
    """Return one wide table: all columns of all tables side by side.

    Each table but the reference also has a column `<table>_id`, the id of the partner, and `<table>_probability`,
    how likely that is right. Both are missing where there is no partner.

    Args:
        links: the result.
        how: `"left"` has all rows of the reference, in its order; `"inner"` those that have a partner in every
            table; `"outer"` also the rows of other tables that are nobody's partner, at the end.
        min_probability: matches that are less likely than this are left out, as if there were no partner.
        fill: True fills missing entries of rows that a table has; False leaves them missing. `"all"` also makes up
            the entries of rows that a table does not have, where there is no partner.
        indicator: add `_merge` (`"both"`, `"left_only"` or `"right_only"`, as pandas does; `_merge_<table>` for
            several tables) and `_filled`, the names of the columns that were filled in that row.
        suffixes: what to add to columns that several tables have: one per table, or by the table's name. Unless
            given, such columns get the table's name and a dot in front.
    """
    if how not in get_args(How):
        raise InputError(f"how: must be 'left', 'inner' or 'outer'; found {how!r}.")
    if not (isinstance(fill, bool) or fill == "all"):
        raise InputError(f"fill: must be True, False or 'all'; found {fill!r}.")
    links, rows, names, extra = joined_plan(
        links, how=how, min_probability=min_probability, indicator=indicator, suffixes=suffixes
    )
    tables = links.tables
    columns: dict[str, Any] = dict(joined_columns(links, rows, names, extra, fill=fill))
    if not links._pandas:
        for name in (extra[table.name, "probability"] for table in tables[1:]):
            columns[name] = _or_none(columns[name])
    if indicator:
        for table, places in zip(tables[1:], rows[1:], strict=True):
            columns[extra[table.name, "merge"]] = _merged(rows[0], places, like=tables[0])
        filled: list[list[str]] = [[] for _ in rows[0]]
        for table, places, own in zip(tables, rows, names, strict=True) if fill else ():
            for label, seen in zip(table.all_columns, table.observed(places), strict=True):
                for row in np.flatnonzero(~seen if fill == "all" else ~seen & (places >= 0)).tolist():
                    filled[row].append(own[label])
        columns[extra["", "filled"]] = list(map(", ".join, filled))
    return frame_like(tables[0], columns, index=_index(tables[0], rows[0]))


def joined_plan(
    links: Linked,
    *,
    how: How = "left",
    min_probability: float | None = None,
    indicator: bool = False,
    suffixes: Sequence[str] | Mapping[str, str] | None = None,
) -> tuple[Linked, list[IntArray], list[dict[Any, str]], dict[tuple[str, str], str]]:
    """Return what the joined table is made of; the options are those of `Links.joined`.

    Returns:
        The links without matches that are too unlikely; per table its row for each row of the joined table, −1 for
        none, and what its columns are called there; what the columns of ids and probabilities are called.
    """
    links = links if min_probability is None else cut(links, min_probability)
    names = _column_names(links.tables, suffixes)
    extra = _extra_names(links.tables, [label for own in names for label in own.values()], indicator=indicator)
    return links, _rows(links, how), names, extra


def joined_columns(
    links: LinkedTables,
    rows: Sequence[IntArray],
    names: Sequence[Mapping[Any, str]],
    extra: Mapping[tuple[str, str], str],
    *,
    fill: Fill = True,
) -> Iterator[tuple[str, Any]]:
    """Yield name and entries of each column of the joined table, made one after the other.

    Args:
        links: the result, as `joined_plan` returns it; the next three come from there, too.
        rows: per table its row for each row of the joined table.
        names: per table what its columns are called.
        extra: what the columns of ids and probabilities are called.
        fill: as in `Links.joined`.
    """
    order, made = np.arange(len(rows[0])), None
    if fill and not links._large:
        made = links.model.complete(links._placed[0], rows)
    for number, (table, places, own) in enumerate(zip(links.tables, rows, names, strict=True)):
        here = places >= 0
        if number:
            yield extra[table.name, "id"], ids((table, places), like=links.tables[0])
            chance: FloatArray = np.full(len(order), np.nan)
            both = here & (rows[0] >= 0)
            chance[both] = links.found[table.name].probability[rows[0][both]]
            yield extra[table.name, "probability"], chance
        values = None if made is None else made[number][0]
        if fill and made is None:
            values = links.model.gaps(number, links._placed[0], rows)
        if values is not None:
            # What follows the table's own columns says which of its entries are observed.
            values = values[:, : table.block.shape[1]]
        observed = table.observed(places)
        for (label, column), seen in zip(table.each_entry(values, places), observed, strict=True):
            known = here if fill else here & seen
            complete = fill == "all" or known.all()
            yield own[label], column if complete else _with_gaps(column, np.where(known, order, -1))


def cut(links: Linked, min_probability: float) -> Linked:
    """Return the links without matches that are less likely than `min_probability`: those rows have no partner then.

    Args:
        links: the result.
        min_probability: from 0 to 1.
    """
    least = check_finite(min_probability, name="min_probability")
    if not 0 <= least <= 1:
        raise InputError(f"min_probability: must lie between 0 and 1; found {min_probability!r}.")
    found = {
        name: replace(link, permutation=np.where(np.nan_to_num(link.probability) >= least, link.permutation, -1))
        for name, link in links.found.items()
    }
    return replace(links, found=found)


def _rows(links: LinkedTables, how: How) -> list[IntArray]:
    """Return, per table, its row for each row of the result, −1 for none; the reference first."""
    rows = [np.arange(len(links.tables[0].row_ids)), *links.permutations.values()]
    if how == "inner":
        kept = np.flatnonzero(np.all([places >= 0 for places in rows], axis=0))
        return [places[kept] for places in rows]
    if how == "left":
        return rows
    for number, table in enumerate(links.tables[1:], start=1):
        alone = np.setdiff1d(np.arange(len(table.row_ids)), rows[number])
        rows = [
            np.concatenate([places, alone if k == number else np.full(len(alone), -1)]) for k, places in enumerate(rows)
        ]
    return rows


def _with_gaps(column: Any, places: IntArray) -> Any:
    """Return entries of a column in a new order, missing for −1."""
    if isinstance(column, nw.Series):
        return taken(column.alias("entries").to_frame(), "entries", places)
    return taken(pd.DataFrame({"entries": pd.Series(column)}), "entries", places)


def _or_none(numbers: FloatArray) -> list[float | None]:
    """Return numbers with None for NaN, as frames other than pandas' say missing."""
    return [None if missing else number for number, missing in zip(numbers.tolist(), np.isnan(numbers), strict=True)]


def _merged(reference: IntArray, places: IntArray, *, like: Table) -> Any:
    number = np.where(places < 0, 0, np.where(reference < 0, 1, 2))
    # A row of the result that only a third table has is in neither.
    number = np.where((places < 0) & (reference < 0), 3, number)
    kinds = ["left_only", "right_only", "both", "neither"]
    if like.native is None or isinstance(like.native, pd.DataFrame):
        return pd.Categorical([kinds[k] for k in number.tolist()], kinds if (number == 3).any() else kinds[:3])
    return [kinds[k] for k in number.tolist()]


def _column_names(tables: Sequence[Table], suffixes: Sequence[str] | Mapping[str, str] | None) -> list[dict[Any, str]]:
    """Return, per table, what its columns are called in the result."""
    seen = Counter(str(column) for table in tables for column in table.all_columns)
    endings: dict[str, str] | None = None
    if isinstance(suffixes, Mapping):
        for name in suffixes:
            if name not in [table.name for table in tables]:
                known = ", ".join(repr(table.name) for table in tables)
                raise InputError(f"suffixes: must name some of the tables {known}; found {name!r}.")
        endings = {table.name: str(suffixes.get(table.name, "")) for table in tables}
    elif suffixes is not None:
        if isinstance(suffixes, str) or len(suffixes) != len(tables):
            raise InputError(f"suffixes: must be {len(tables)} texts, one per table, or a mapping; found {suffixes!r}.")
        endings = {table.name: str(ending or "") for table, ending in zip(tables, suffixes, strict=True)}
    names = []
    for table in tables:
        own = {}
        for column in table.all_columns:
            plain = str(column)
            named = f"{table.name}.{plain}" if endings is None else f"{plain}{endings[table.name]}"
            own[column] = plain if seen[plain] == 1 else named
        names.append(own)
    if endings is not None:
        count = Counter(name for own in names for name in own.values())
        twice = next((name for name, times in count.items() if times > 1), None)
        if twice is not None:
            raise InputError(
                f"suffixes: must make all column names different; {twice!r} would occur {count[twice]} times."
            )
    return names


def _extra_names(tables: Sequence[Table], taken_names: Sequence[str], *, indicator: bool) -> dict[tuple[str, str], str]:
    """Return the names of the columns that say who is who; one that a table already has gets a `_` in front."""
    wanted = {(table.name, kind): f"{table.name}_{kind}" for table in tables[1:] for kind in ("id", "probability")}
    if indicator:
        several = len(tables) > 2
        wanted |= {(table.name, "merge"): f"_merge_{table.name}" if several else "_merge" for table in tables[1:]}
        wanted["", "filled"] = "_filled"
    used, found = set(taken_names), {}
    for key, name in wanted.items():
        found[key] = free_name(name, used)
        used.add(found[key])
    return found


def _index(table: Table, places: IntArray) -> pd.Index | None:
    """Return the caller's index for the rows of the result, missing for rows that the reference does not have."""
    index = table.index
    if index is None:
        return None
    if (places >= 0).all():
        return index if len(places) == len(index) and (places == np.arange(len(index))).all() else index.take(places)
    if isinstance(index.dtype, np.dtype) and index.dtype.kind in "iu":
        index = index.astype("Int64")
    nothing: Any = pd.NA if index.dtype == "Int64" else np.nan
    return index.take(places, allow_fill=True, fill_value=nothing)
