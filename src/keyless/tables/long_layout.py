"""The long layout: one line per entry, with its row, its column and its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from keyless.errors import InputError
from keyless.tables.frames import nullable
from keyless.tables.reading_options import Reading, shown

__all__ = ["widened"]


def widened(
    frame: pd.DataFrame, *, where: str, reading: Reading, is_file: bool
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return a frame in the wide layout, and what there is to say about it.

    Rows and columns come in the order in which they first occur; what does not occur is missing, unless `unstored` is
    `"zero"`.

    Args:
        frame: the first three columns are row, column and value, unless columns have these names.
        where: the table, as messages name it.
        reading: options.
        is_file: whether entries are cells of a text file.
    """
    if frame.shape[1] < 3:
        raise InputError(
            f"{where}: must have three columns, row, column and value, in the long layout; found {frame.shape[1]}."
        )
    known = {str(label).strip().lower(): label for label in frame.columns}
    labels = [known[name] for name in ("row", "column", "value") if name in known]
    if len(labels) < 3:
        labels = list(frame.columns[:3])
    others = [str(label) for label in frame.columns if label not in labels]
    notes = (f"not used in the long layout: {', '.join(map(shown, others))}",) if others else ()
    for label in labels[:2]:
        empty = np.flatnonzero(frame[label].isna().to_numpy() | _marked(frame[label], reading if is_file else None))
        if empty.size:
            raise InputError(f"{where}, column {str(label)!r}, row {empty[0]}: must not be missing in the long layout.")
    try:
        rows, row_names = pd.factorize(frame[labels[0]])
        columns, column_names = pd.factorize(frame[labels[1]])
    except (TypeError, ValueError, NotImplementedError) as error:
        raise InputError(f"{where}: must name rows and columns by text or numbers in the long layout.") from error
    shape = (len(row_names), len(column_names))
    reading.check_memory(
        shape[0] * shape[1] * 40,
        where=where,
        what=f"a table of {shape[0]} × {shape[1]} entries",
    )
    places = rows.astype(np.int64) * shape[1] + columns
    again = pd.Series(places).duplicated().to_numpy()
    if again.any():
        line = int(np.flatnonzero(again)[0])
        first = int(np.flatnonzero(places == places[line])[0])
        raise InputError(
            f"{where}, row {line}: must give every entry once; row {shown(row_names[rows[line]])}, column "
            f"{shown(column_names[columns[line]])} was given in row {first}. Take one of them out."
        )
    zero: Any = ("0" if is_file else 0) if reading.unstored == "zero" else None
    made = _spread(frame[labels[2]], rows, columns, shape, zero)
    wide = pd.DataFrame(dict(enumerate(made)))
    wide.index = _labels(row_names, labels[0])
    wide.columns = _labels(column_names, labels[1])
    return wide, notes


def _labels(names: Iterable[Any], title: Any) -> Any:
    """Return one label for each name, also where names are tuples."""
    made = list(names)
    if any(isinstance(name, tuple) for name in made):
        made = [str(name) for name in made]
    return pd.Index(made, name=str(title))


def _marked(entries: pd.Series, reading: Reading | None) -> Any:
    if reading is None:
        return np.zeros(len(entries), dtype=bool)
    return entries.str.strip().isin([marker.strip() for marker in reading.missing]).to_numpy(dtype=bool)


def _spread(values: pd.Series, rows: Any, columns: Any, shape: tuple[int, int], zero: Any) -> list[Any]:
    """Return one array per column, with missing or `zero` where nothing is given."""
    order = np.argsort(columns, kind="stable")
    edges = np.searchsorted(columns[order], np.arange(shape[1] + 1))
    entries, made = nullable(values), []
    for k in range(shape[1]):
        here = order[edges[k] : edges[k + 1]]
        index = np.full(shape[0], -1)
        index[rows[here]] = here
        taken = pd.api.extensions.take(entries, index, allow_fill=True)
        if zero is not None:
            taken[index < 0] = zero
        made.append(taken)
    return made
