"""One wide table: the rows of all tables side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from keyless.answers.labels import ids
from keyless.arrays import FloatArray, IntArray, check_finite
from keyless.errors import InputError
from keyless.tables import Table, frame_like
from keyless.tables.frames import taken

__all__ = ["Fill", "How", "cut", "joined", "joined_plan", "reference_rows"]

How = Literal["left", "inner", "outer"]
Fill = bool | Literal["all"]


def joined(
    links: Any,
    *,
    how: How = "left",
    min_probability: float | None = None,
    fill: Fill = True,
    indicator: bool = False,
    suffixes: Sequence[str] | Mapping[str, str] | None = None,
) -> Any:
    """Return one wide table; the options are those of `Links.joined`."""
    if how not in get_args(How):
        raise InputError(f"how: must be 'left', 'inner' or 'outer'; found {how!r}.")
    if not (isinstance(fill, bool) or fill == "all"):
        raise InputError(f"fill: must be True, False or 'all'; found {fill!r}.")
    links = links if min_probability is None else cut(links, min_probability)
    tables, rows = links.tables, _rows(links, how)
    names = _column_names(tables, suffixes)
    values = _values(links, rows) if fill else [None] * len(tables)
    columns: dict[str, Any] = {}
    extra = _extra_names(tables, [label for own in names for label in own.values()], indicator=indicator)
    pandas = tables[0].native is None or isinstance(tables[0].native, pd.DataFrame)
    gaps = np.zeros((len(rows[0]), 0), dtype=bool)
    filled_names: list[str] = []
    for table, places, numbers, own in zip(tables, rows, values, names, strict=True):
        if table is not tables[0]:
            columns[extra[table.name, "id"]] = ids(table, places, like=tables[0])
            chance = _probability(links.found[table.name], rows[0], places)
            columns[extra[table.name, "probability"]] = chance if pandas else _or_none(chance)
        entries = _entries(table, places, numbers, everyone=fill == "all")
        columns |= {own[label]: column for label, column in entries.items()}
        if indicator and fill:
            blank = np.column_stack([~seen for seen in table.observed(places)])
            gaps = np.hstack([gaps, blank if fill == "all" else blank & (places >= 0)[:, None]])
            filled_names += [own[label] for label in table.all_columns]
    if indicator:
        for table, places in zip(tables[1:], rows[1:], strict=True):
            columns[extra[table.name, "merge"]] = _merged(rows[0], places, like=tables[0])
        columns[extra["", "filled"]] = [", ".join(filled_names[k] for k in np.flatnonzero(row)) for row in gaps]
    return frame_like(tables[0], columns, index=_index(tables[0], rows[0]))


def joined_plan(
    links: Any, *, how: How = "left", min_probability: float | None = None
) -> tuple[Any, list[IntArray], list[dict[Any, str]], dict[tuple[str, str], str]]:
    """Return what the joined table is made of, for those who make it column by column.

    Args:
        links: the result.
        how: as in `Links.joined`.
        min_probability: as in `Links.joined`.

    Returns:
        The links without matches that are too unlikely; per table its row for each row of the joined table, and what
        its columns are called there; what the columns of ids and probabilities are called.
    """
    links = links if min_probability is None else cut(links, min_probability)
    names = _column_names(links.tables, None)
    extra = _extra_names(links.tables, [label for own in names for label in own.values()], indicator=False)
    return links, _rows(links, how), names, extra


def reference_rows(links: Any, *, how: How = "left", min_probability: float | None = None) -> IntArray:
    """Return the reference row of each row of the joined table, −1 for rows of other tables alone.

    Args:
        links: the result.
        how: as in `Links.joined`.
        min_probability: as in `Links.joined`.
    """
    return _rows(links if min_probability is None else cut(links, min_probability), how)[0]


def cut(links: Any, min_probability: float) -> Any:
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


def _rows(links: Any, how: How) -> list[IntArray]:
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


def _values(links: Any, rows: Sequence[IntArray]) -> list[FloatArray]:
    """Return the numbers of each table for each row of the result, what is missing filled by the model."""
    blocks, widths = links._placed[0], [table.block.shape[1] for table in links.tables]
    if links._large:
        made = [links.model.gaps(number, blocks, rows) for number in range(len(blocks))]
    else:
        made = [values for values, _ in links.model.complete(blocks, rows)]
    return [values[:, :width] for values, width in zip(made, widths, strict=True)]


def _entries(table: Table, places: IntArray, values: FloatArray | None, *, everyone: bool) -> dict[Any, Any]:
    """Return the columns of a table: filled, or with gaps where no values are given.

    Args:
        table: the table.
        places: its row for each row of the result, −1 for none.
        values: numbers to fill in.
        everyone: also fill rows of the result that have no row in the table.
    """
    here = places >= 0
    if values is not None and (everyone or here.all()):
        return table.entries(values, places)
    if values is None:
        seen = [known & here for known in table.observed(places)]
        if table.form in ("array", "sparse", "anndata"):
            whole = table.entries(np.zeros((len(places), len(table.columns))), places)
            order = np.arange(len(places))
            return {
                label: _with_gaps(whole[label], np.where(k, order, -1)) for label, k in zip(whole, seen, strict=True)
            }
        labels = zip(table.all_columns, seen, strict=True)
        return {label: taken(_frame(table, label), label, np.where(known, places, -1)) for label, known in labels}
    there = np.flatnonzero(here)
    position = np.full(len(places), -1)
    position[there] = np.arange(len(there))
    return {
        label: _with_gaps(column, position) for label, column in table.entries(values[there], places[there]).items()
    }


def _frame(table: Table, label: Any) -> Any:
    """Return a frame that has a column of a table, as `taken` reads it."""
    if table.large_file is not None:
        return table.large_file.frame(label)
    return table.native if isinstance(table.native, pd.DataFrame) else nw.from_native(table.native, eager_only=True)


def _with_gaps(column: Any, places: IntArray) -> Any:
    """Return entries of a column in a new order, missing for −1."""
    if isinstance(column, nw.Series):
        return taken(column.alias("entries").to_frame(), "entries", places)
    return taken(pd.DataFrame({"entries": pd.Series(column)}), "entries", places)


def _probability(link: Any, reference: IntArray, places: IntArray) -> FloatArray:
    """Return how likely each match is right; missing where there is none."""
    chance: FloatArray = np.full(len(reference), np.nan)
    matched = (reference >= 0) & (places >= 0)
    chance[matched] = link.probability[reference[matched]]
    return chance


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
        free = name
        while free in used:
            free = f"_{free}"
        used.add(free)
        found[key] = free
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
