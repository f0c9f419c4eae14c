"""Carry a column of one table over to another, weighed by all partners that rows may have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from keyless.answers.distributions import soft_answers
from keyless.answers.labels import ids
from keyless.arrays import FloatArray
from keyless.errors import InputError, check_among
from keyless.table_link import LinkedTables
from keyless.tables import Table, frame_like
from keyless.tables.columns import is_missing

__all__ = ["transfer"]


def transfer(links: LinkedTables, table: str, column: str, *, to: str | None = None) -> Any:
    """Return a column of one table for the rows of another, weighed by all partners that a row may have.

    Args:
        links: the result.
        table: the table that has the column.
        column: its name; any column, also one that was not used for linking, and of an AnnData also one of `obs`.
        to: the table whose rows get it: the reference unless given. From the reference it goes to any table.

    Returns:
        A frame with a line per row. Of labels: row_id, value (the likeliest label) and probability (of that label,
        over all partners). Of numbers: row_id, value (the expected one, given that there is a partner),
        standard_deviation (over the partners there may be) and probability (that there is a partner whose number is
        known). Both have a column `nobody`: how likely it is that there is no partner. The value is missing where
        no possible partner has one.
    """
    names = [known.name for known in links.tables]
    target = links.reference if to is None else to
    for option, name in (("table", table), ("to", target)):
        check_among(option, name, names)
    if links.reference not in (table, target) or table == target:
        raise InputError(
            f"table, to: one of the two must be the reference, {links.reference!r}, and the other another table; "
            f"found {table!r} and {target!r}."
        )
    other = table if target == links.reference else target
    weights, nobody = soft_answers(links.found[other], by_column=target != links.reference)
    source, receiver = links.tables[names.index(table)], links.tables[names.index(target)]
    entries = source.column(column)
    known = np.array([not is_missing(entry) for entry in entries])
    numbers = _numbers(source, column, entries, known)
    places = np.arange(weights.shape[0])
    columns: dict[str, Any] = {"row_id": ids((receiver, places), like=receiver)}
    if numbers is None:
        columns |= _labels(weights, entries, known)
    else:
        columns |= _means(weights, numbers, known)
    columns["nobody"] = nobody
    return frame_like(receiver, columns, index=receiver.index)


def _labels(weights: sparse.csr_array, entries: list[Any], known: Any) -> dict[str, Any]:
    """Return the likeliest label of each row and how likely it is."""
    levels = list(dict.fromkeys(entry for entry, seen in zip(entries, known, strict=True) if seen))
    if not levels:
        raise InputError("column: must have at least one entry that is not missing; found only missing ones.")
    number = {level: k for k, level in enumerate(levels)}
    rows = np.flatnonzero(known)
    has = sparse.csr_array(
        (np.ones(len(rows)), (rows, [number[entries[row]] for row in rows])), shape=(len(entries), len(levels))
    )
    chance = np.asarray((weights @ has).toarray())
    best = chance.argmax(axis=1)
    certainty = chance[np.arange(len(best)), best]
    value = [levels[k] if sure > 0 else None for k, sure in zip(best.tolist(), certainty, strict=True)]
    return {"value": pd.Series(value, dtype=object), "probability": certainty}


def _means(weights: sparse.csr_array, numbers: FloatArray, known: Any) -> dict[str, Any]:
    """Return the expected number of each row, its standard deviation, and how likely a partner with a number is."""
    seen = known.astype(np.float64)
    chance = np.asarray(weights @ seen).ravel()
    share = np.divide(1.0, chance, out=np.full(len(chance), np.nan), where=chance > 0)
    values = np.where(known, numbers, 0.0)
    # Deviations from the middle, so that squares of large numbers do not cancel.
    middle = float(values[known].mean()) if known.any() else 0.0
    gaps = np.where(known, values - middle, 0.0)
    mean = np.asarray(weights @ gaps).ravel() * share
    square = np.asarray(weights @ gaps**2).ravel() * share
    return {
        "value": mean + middle,
        "standard_deviation": np.sqrt(np.maximum(square - mean**2, 0.0)),
        "probability": chance,
    }


def _numbers(table: Table, column: str, entries: list[Any], known: Any) -> FloatArray | None:
    """Return the entries as numbers, where the column is one of numbers; None for labels."""
    use = next((use for use in table.uses if use.name == column), None)
    if use is not None and use.columns:
        if use.kind not in ("number", "integer"):
            return None
    elif not all(
        isinstance(entry, int | float | np.number) and not isinstance(entry, bool)
        for entry, seen in zip(entries, known, strict=True)
        if seen
    ):
        return None
    return np.array([float(entry) if seen else np.nan for entry, seen in zip(entries, known, strict=True)])
