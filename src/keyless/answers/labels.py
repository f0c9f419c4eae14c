"""Ids of rows as columns of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from keyless.arrays import IntArray
from keyless.errors import InputError
from keyless.tables import Table

__all__ = ["ids", "row_number"]


def ids(table: Table, places: IntArray, *, like: Table) -> Any:
    """Return the ids of rows of a table, missing for −1, as a column of a frame of the kind of `like`.

    Whole numbers stay whole numbers beside missing ones. Where the frame holds one type per column, ids of several
    types become text.

    Args:
        table: the table whose rows are meant.
        places: numbers of its rows, −1 for none.
        like: the table whose kind of frame the column is for.
    """
    pandas = like.native is None or isinstance(like.native, pd.DataFrame)
    labels: Sequence[Any] = table.row_ids
    if isinstance(labels, range) and pandas and like.form != "records":
        return pd.arrays.IntegerArray(np.maximum(places, 0).astype(np.int64), places < 0)
    found = [labels[place] if place >= 0 else None for place in places.tolist()]
    if like.form == "records":
        return found
    if pandas or like.form not in ("frame", "lazy"):
        whole = all(isinstance(label, int | np.integer) and not isinstance(label, bool) for label in labels)
        return pd.array(found, dtype="Int64") if whole else pd.Series(found, dtype=object)
    if len({type(label) for label in labels}) > 1:
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
