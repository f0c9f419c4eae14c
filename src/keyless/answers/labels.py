"""Ids of rows as columns of a frame; entries, standard errors and probabilities as short pieces of text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from keyless.arrays import IntArray
from keyless.errors import InputError, printable
from keyless.tables import Table

__all__ = ["ids", "row_number", "shown", "shown_guess", "stated"]

_LONG_NUMBER = re.compile(r"-?\d+([.,])\d{4,}")

_LONGEST = 30
"""Most characters of a text that are shown."""

_CERTAIN = 0.999
"""The highest probability that is stated as a number; a higher one is shown as ">0.999"."""


def ids(*parts: tuple[Table, IntArray], like: Table | None) -> Any:
    """Return the ids of rows, missing for −1, as a column of a frame of the kind of `like`.

    Whole numbers stay whole numbers beside missing ones. Where the frame holds one type per column, ids of several
    types become text.

    Args:
        parts: tables, and numbers of their rows, −1 for none; the ids of one follow those of the other.
        like: the table whose kind of frame the column is for; None: pandas.
    """
    form = "array" if like is None else like.form
    pandas = like is None or (form != "records" and (like.native is None or isinstance(like.native, pd.DataFrame)))
    if pandas and all(isinstance(table.row_ids, range) for table, _ in parts):
        rows = np.concatenate([places for _, places in parts]).astype(np.int64)
        return pd.arrays.IntegerArray(np.maximum(rows, 0), rows < 0)
    found = [table.row_ids[row] if row >= 0 else None for table, places in parts for row in places.tolist()]
    kinds = {type(label) for table in {id(table): table for table, _ in parts}.values() for label in table.row_ids}
    if pandas or form == "anndata":
        whole = all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds)
        return pd.array(found, dtype="Int64") if whole else found
    if form != "records" and len(kinds) > 1:
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


def stated(probability: float) -> str:
    """Return a probability as text; nothing is stated as certain."""
    return ">0.999" if probability > _CERTAIN else f"{probability:.3f}"


def shown_guess(value: Any, error: float, *, comma: bool, longest: int = _LONGEST) -> str:
    """Return a predicted entry and, where it is known, its standard error.

    The error has two digits, and no exponent where it is short without one.

    Args:
        value: the entry.
        error: its standard error; NaN where there is none.
        comma: whether the table writes numbers of this column with a decimal comma.
        longest: how many characters of a text are shown.
    """
    guess = shown(value, longest)
    if not np.isfinite(error):
        return guess
    rounded = float(f"{error:.2g}")
    written = np.format_float_positional(rounded, trim="-") if 1e-5 <= rounded < 1e7 else f"{rounded:g}"
    return f"{guess} ± {written.replace('.', ',') if comma else written}"


def shown(value: Any, longest: int = _LONGEST) -> str:
    """Return an entry as one short piece of text; "missing" where there is none.

    Args:
        value: the entry.
        longest: how many characters of a text are shown.
    """
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "missing"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    text = printable(value)
    if long := _LONG_NUMBER.fullmatch(text):
        # A cell of a text file, with more digits than a reader needs.
        return f"{float(text.replace(',', '.')):.4g}".replace(".", long[1])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
