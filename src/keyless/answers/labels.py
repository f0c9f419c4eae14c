"""Ids of rows as columns of a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from keyless.arrays import IntArray
from keyless.errors import InputError
from keyless.tables import Table

__all__ = ["ids", "row_number"]


def ids(*parts: tuple[Table, IntArray], like: Table) -> Any:
    """Return the ids of rows, missing for −1, as a column of a frame of the kind of `like`.

    Whole numbers stay whole numbers beside missing ones. Where the frame holds one type per column, ids of several
    types become text.

    Args:
        parts: tables, and numbers of their rows, −1 for none; the ids of one follow those of the other.
        like: the table whose kind of frame the column is for.
    """
    pandas = like.form != "records" and (like.native is None or isinstance(like.native, pd.DataFrame))
    if pandas and all(isinstance(table.row_ids, range) for table, _ in parts):
        rows = np.concatenate([places for _, places in parts]).astype(np.int64)
        return pd.arrays.IntegerArray(np.maximum(rows, 0), rows < 0)
    found = [table.row_ids[row] if row >= 0 else None for table, places in parts for row in places.tolist()]
    kinds = {type(label) for table in {id(table): table for table, _ in parts}.values() for label in table.row_ids}
    if pandas or like.form == "anndata":
        whole = all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds)
        return pd.array(found, dtype="Int64") if whole else found
    if like.form != "records" and len(kinds) > 1:
        return [label if label is None else str(label) for label in found]
    return found


def row_number(table: Table, label: Any, *, name: str) -> int:
    """Return the number of the row with an id; ids that differ in type alone (17 and "17") are the same.

    Args:
        table: a table.
        label: the id of one of its rows.
        name: what to call it in an error message.
    """
    labels = list(table.row_ids)
    found = [place for place, known in enumerate(labels) if _same(known, label)]
    if not found:
        found = [place for place, known in enumerate(labels) if str(known) == str(label)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{name}: must be the id of one row; {table.name} has {len(found)} rows with the id {label!r}."
        )
    some = ", ".join(repr(known) for known in labels[:3])
    raise InputError(f"{name}: must be the id of a row of {table.name} ({some}, …); found {label!r}.")


def _same(known: Any, label: Any) -> bool:
    try:
        return type(known) is not bool and bool(known == label)
    except (TypeError, ValueError):
        return False
