"""What the caller says about rows, turned into constraints and first couplings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from scipy.special import logsumexp

from keyless.arrays import FloatArray, IntArray
from keyless.errors import InputError
from keyless.model.scales import choose_scale
from keyless.pairs.constraints import Constraints
from keyless.search_options import Shared
from keyless.tables import Table
from keyless.transport import sinkhorn

__all__ = [
    "did_you_mean",
    "groups_of",
    "known_partners",
    "read_constraints",
    "shared_columns",
    "shared_pairs",
    "start_couplings",
]


_MOST_COMPARED = 5000
"""Most ids that an unknown id is compared with letter by letter, which takes about 20 microseconds each."""


def read_constraints(
    tables: Sequence[Table],
    *,
    known_pairs: Any = None,
    forbid: Any = None,
    within: str | Sequence[str] | None = None,
    shares: bool = False,
) -> Constraints:
    """Return what is known of pairs of rows.

    Args:
        tables: the reference and the others.
        known_pairs: pairs (reference id, row id) that are sure; a list or frame for one table, a mapping from table
            names to such for several.
        forbid: pairs that are sure to be wrong, likewise.
        within: column, or columns, that all tables have and that must agree.
        shares: whether several rows of the reference may have the same partner.
    """
    groups: tuple[IntArray | None, ...] = ()
    if within is not None:
        groups = groups_of(tables, [within] if isinstance(within, str) else list(within))
    return Constraints(
        sizes=tuple(table.block.shape[0] for table in tables),
        groups=groups,
        known=_pairs(tables, known_pairs, "known_pairs"),
        forbidden=_pairs(tables, forbid, "forbid"),
        shares=shares,
    )


def groups_of(tables: Sequence[Table], columns: Sequence[str]) -> tuple[IntArray, ...]:
    """Return, per table, the number of each row's group, −1 if an entry is missing; equal entries have one number."""
    keys = [list(zip(*(map(_plain, table.column(name)) for name in columns), strict=True)) for table in tables]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(key for rows in keys for key in rows))}
    return tuple(np.array([-1 if None in key else numbers[key] for key in rows], dtype=np.int64) for rows in keys)


def _plain(value: Any) -> Any:
    """Missing becomes None; 1, 1.0 and True are the same group."""
    if value is None or value is pd.NA or value != value:  # noqa: PLR0124 — NaN is not itself
        return None
    return value.item() if isinstance(value, np.generic) else value


def known_partners(tables: Sequence[Table], pairs: Any, *, name: str) -> dict[str, tuple[IntArray, IntArray]]:
    """Return, per table, reference rows whose partner is known and that partner, −1 where there is none.

    Args:
        tables: the reference and the others.
        pairs: as `known_pairs`; a missing row id says that a row has no partner. Or, per table, the row number of each
            reference row's partner, −1 for none: an array as long as the reference.
        name: what to call them in an error message.
    """
    found = {}
    for table, given in _by_table(tables, pairs, name).items():
        if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu":
            if len(given) != tables[0].block.shape[0] or given.max(initial=-1) >= table.block.shape[0]:
                raise InputError(
                    f"{name}: must be pairs of ids, or for each of the {tables[0].block.shape[0]} reference rows the "
                    f"number of a row of {table.name}; found {len(given)} numbers up to {given.max(initial=-1)}."
                )
            found[table.name] = (np.arange(len(given)), given.astype(np.int64))
            continue
        listed = list(_each(given, name))
        rows = _rows(tables[0], listed, 0, name, other=table)
        known = [place for place, (_, right) in enumerate(listed) if right is not None]
        partners = np.full(len(listed), -1, dtype=np.int64)
        partners[known] = _rows(table, [listed[place] for place in known], 1, name, other=tables[0])
        found[table.name] = (rows, partners)
    return found


def _by_table(tables: Sequence[Table], given: Any, name: str) -> dict[Table, Any]:
    """Return pairs by the table they are of."""
    others = {table.name: table for table in tables[1:]}
    if not isinstance(given, Mapping):
        try:
            frame = nw.from_native(given, eager_only=True)
        except TypeError:
            frame = None
        if frame is not None and {"reference_id", "table", "row_id"} <= set(frame.columns):
            # A part of an earlier `matches`.
            names = frame.get_column("table").unique(maintain_order=True).to_list()
            given = {one: frame.filter(nw.col("table") == one).to_native() for one in names}
        elif len(others) > 1:
            raise InputError(
                f"{name}: must say which table each pair is of, as {{table name: pairs}}, for several tables."
            )
        else:
            given = {tables[1].name: given}
    for table in given:
        if table == tables[0].name:
            raise InputError(
                f"{name}: must be listed under the other table, {' or '.join(map(repr, others))}; {table!r} is the "
                "reference. Each pair is (id in the reference, id in the other table)."
            )
        if table not in others:
            raise InputError(f"{name}: must name one of {', '.join(map(repr, others))}; found {table!r}.")
    return {others[table]: pairs for table, pairs in given.items()}


def _pairs(tables: Sequence[Table], given: Any, name: str) -> dict[tuple[int, int], IntArray]:
    if given is None:
        return {}
    names = [table.name for table in tables]
    found = {}
    for table, pairs in _by_table(tables, given, name).items():
        listed = list(_each(pairs, name))
        sides = _rows(tables[0], listed, 0, name, other=table), _rows(table, listed, 1, name, other=tables[0])
        found[(0, names.index(table.name))] = np.stack(sides, axis=1)
    return found


def _each(pairs: Any, name: str) -> Iterable[tuple[Any, Any]]:
    try:
        frame = nw.from_native(pairs, eager_only=True)
    except TypeError:
        if isinstance(pairs, str) or not isinstance(pairs, Iterable):
            raise InputError(f"{name}: must be pairs (reference id, row id); found {pairs!r}.") from None
        rows = [() if isinstance(pair, str) or not isinstance(pair, Iterable) else tuple(pair) for pair in pairs]
    else:
        if {"reference_id", "row_id"} <= set(frame.columns):
            frame = frame.select("reference_id", "row_id")
        if frame.shape[1] != 2:
            raise InputError(f"{name}: must have two columns, reference id and row id; found {frame.shape[1]}.")
        rows = list(frame.rows())
    if any(len(row) != 2 for row in rows):
        raise InputError(f"{name}: must be pairs (reference id, row id); found an entry that is not a pair.")
    return [(_plain(left), _plain(right)) for left, right in rows]


def _rows(table: Table, pairs: Sequence[tuple[Any, Any]], side: int, name: str, *, other: Table) -> IntArray:
    """Return the row number of one id of each pair, in one pass over the table's ids."""
    labels = [pair[side] for pair in pairs]
    try:
        places: dict[Any, list[int]] = {label: [] for label in labels}
    except TypeError:
        raise InputError(f"{name}: must be pairs (reference id, row id) of single values.") from None
    for place, row in enumerate(table.row_ids):
        if row in places:
            places[row].append(place)
    for label, found in places.items():
        if not found:
            exchanged = pairs[labels.index(label)][1 - side] in table.row_ids and label in other.row_ids
            advice = did_you_mean(label, table.row_ids)
            if exchanged:
                advice = f" {other.name} has: each pair is (id in the reference, id in the other table)."
            raise InputError(f"{name}: must name rows that exist; {table.name} has no row {label!r}.{advice}")
        if len(found) > 1:
            raise InputError(f"{name}: must name one row each; {table.name} has {len(found)} rows {label!r}.")
    return np.array([places[label][0] for label in labels], dtype=np.int64)


def did_you_mean(label: Any, known: Sequence[Any]) -> str:
    """Return advice about an id that a table does not have; empty where there is none to give.

    Ids that differ in type, spaces, capital letters or leading zeros only (1, "1", "00001") look the same to a person.

    Args:
        label: the id that was not found.
        known: the ids that there are.

    Example:
        >>> did_you_mean("1", ["00001", "00002"])
        " Did you mean '00001'?"
    """
    if label is None:
        return ""
    wanted = _bare(label)
    alike = next((one for one in known if _bare(one) == wanted), None)
    if alike is None:
        close = get_close_matches(str(label), [str(one) for one in known[:_MOST_COMPARED]], n=1, cutoff=0.8)
        return f" Did you mean {close[0]!r}?" if close else ""
    kind = "text" if isinstance(alike, str) else "a number"
    more = "" if isinstance(alike, str) == isinstance(label, str) else f", which is {kind}"
    return f" Did you mean {alike!r}{more}?"


def _bare(label: Any) -> str:
    """Return what a person takes an id for: without spaces around it, capital letters, zeros in front and `.0`."""
    text = str(label).strip().casefold()
    text = text.removesuffix(".0") if text.removesuffix(".0").isdigit() else text
    return text.lstrip("0") or "0"


def shared_columns(first: Table, second: Table, shared: Shared) -> list[tuple[int, int]]:
    """Return column numbers of two tables that measure the same thing.

    Args:
        first: a table.
        second: another.
        shared: `"auto"` for columns of the same name (frames only), None for none, a list of names both have, or a
            mapping from names in the first to names in the second.
    """
    if shared is None:
        return []
    if isinstance(shared, str) and shared == "auto":
        if first.native is None or second.native is None:
            return []
        names = {column: column for column in first.columns if column in second.columns}
    elif isinstance(shared, Mapping):
        names = dict(shared)
    elif isinstance(shared, str):
        raise InputError(f"shared: must be 'auto', None, a list of column names or a mapping; found {shared!r}.")
    else:
        names = {column: column for column in shared}
    for column, table in [(c, first) for c in names] + [(c, second) for c in names.values()]:
        if column not in table.columns:
            raise InputError(f"shared: must name numeric columns; {table.name} has no such column {column!r}.")
    return [(first.columns.index(left), second.columns.index(right)) for left, right in names.items()]


def start_couplings(
    tables: Sequence[Table], constraints: Constraints, shared: Shared
) -> dict[tuple[int, int], list[tuple[str, FloatArray]]]:
    """Return first couplings from known pairs and from shared columns, per pair of tables."""
    found: dict[tuple[int, int], list[tuple[str, FloatArray]]] = {}
    for (first, second), rows in constraints.known.items():
        if len(rows):
            coupling = np.zeros((constraints.sizes[first], constraints.sizes[second]))
            coupling[rows[:, 0], rows[:, 1]] = 1.0
            found.setdefault((first, second), []).append(("known pairs", coupling))
    for (first, second), pairs in shared_pairs(tables, shared).items():
        coupling = _by_shared_columns(tables[first], tables[second], pairs)
        found.setdefault((first, second), []).append(("shared columns", coupling))
    return found


def shared_pairs(tables: Sequence[Table], shared: Shared) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return, per pair of tables that have any, the columns that measure the same thing; see `shared_columns`."""
    _check_shared(tables, shared)
    found = {}
    for second in range(1, len(tables)):
        for first in range(second):
            both = shared
            if len(tables) > 2 and shared is not None and not isinstance(shared, str):
                # Of several tables, only the part of it that is about these two.
                names = dict(shared) if isinstance(shared, Mapping) else {name: name for name in shared}
                left, right = tables[first].columns, tables[second].columns
                both = {one: two for one, two in names.items() if one in left and two in right}
            pairs = shared_columns(tables[first], tables[second], both)
            if pairs:
                found[first, second] = pairs
    return found


def _check_shared(tables: Sequence[Table], shared: Shared) -> None:
    """Refuse names that fewer than two of several tables have; two tables are checked by `shared_columns`."""
    if len(tables) == 2 or shared is None or isinstance(shared, str):
        return
    for name in {*shared, *(shared.values() if isinstance(shared, Mapping) else ())}:
        found = [table.name for table in tables if name in table.columns]
        if len(found) < (1 if isinstance(shared, Mapping) else 2):
            raise InputError(f"shared: must name numeric columns of two tables; {name!r} is in {len(found)} of them.")


def _by_shared_columns(first: Table, second: Table, pairs: Sequence[tuple[int, int]]) -> FloatArray:
    """Couple rows whose shared columns are close; a missing entry says nothing."""
    cost = np.zeros((first.block.shape[0], second.block.shape[0]))
    for left, right in pairs:
        seen_left, seen_right = first.block.mask[:, left], second.block.mask[:, right]
        both = np.concatenate([first.block.values[seen_left, left], second.block.values[seen_right, right]])
        scale = choose_scale(both)
        gap = scale.apply(first.block.values[:, left])[:, None] - scale.apply(second.block.values[:, right])[None, :]
        # The squared difference of two unrelated standard scores is 2 on average: expected where an entry is missing.
        cost += np.where(seen_left[:, None] & seen_right[None, :], gap**2, 2.0)
    nearest = np.minimum(np.median(cost.min(axis=0)), np.median(cost.min(axis=1)))
    epsilon = max(nearest, 1e-3 * len(pairs))
    if cost.shape[0] != cost.shape[1]:
        # Some rows have no partner, and no other row must take them. Weight is shared among the rows that compete.
        weight = -cost / epsilon
        total = np.maximum(logsumexp(weight, axis=1)[:, None], logsumexp(weight, axis=0)[None, :])
        return np.asarray(np.exp(weight - total), dtype=np.float64)
    found: FloatArray = sinkhorn(cost, epsilon=epsilon, tolerance=1e-2, max_iter=200).coupling
    return found
