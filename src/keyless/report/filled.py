"""What was filled in: how many entries of each column, how well that should be, and some of them to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from keyless.arrays import FloatArray, IntArray, safe_unit, some_of
from keyless.block import Block
from keyless.links import Links

__all__ = ["FilledColumn", "FilledEntry", "Sample", "fill_sample", "filled_columns", "filled_entries"]


MOST_ROWS = 2000
"""Rows that are filled to say how well filling goes; more would not change it."""


@dataclass(frozen=True)
class FilledColumn:
    """One column with missing entries.

    Attributes:
        table: its table's name.
        column: its name.
        missing: how many of its entries are missing.
        rows: how many it has.
        explained: expected share of the variance of missing entries that the filled ones explain; NaN if unknown.
    """

    table: str
    column: str
    missing: int
    rows: int
    explained: float


@dataclass(frozen=True)
class FilledEntry:
    """One entry that was missing.

    Attributes:
        table: its table's name.
        reference_id: label of the reference row it belongs to.
        column: its column's name.
        value: what it was filled with; numbers as such, also where the table has them as text.
        error: standard error, in the same unit; None for what is no number.
    """

    table: str
    reference_id: Any
    column: str
    value: Any
    error: float | None


@dataclass(frozen=True, eq=False)
class Sample:
    """Some reference rows with all tables filled in.

    Attributes:
        rows: the reference rows.
        places: per table, the row that belongs to each, −1 for none.
        filled: per table, values and standard errors.
    """

    rows: IntArray
    places: list[IntArray]
    filled: list[tuple[FloatArray, FloatArray]]


def fill_sample(links: Links) -> Sample:
    """Fill the tables for at most `MOST_ROWS` reference rows, drawn at random but always the same."""
    chosen = some_of(np.arange(len(links.tables[0].row_ids)), MOST_ROWS)
    blocks, rows, places = [], [], []
    for table in links.tables:
        block = links._used(table).block
        place = links._rows(table.name)[chosen]
        taken = np.maximum(place, 0)
        blocks.append(Block(block.values[taken], block.mask[taken], block.name, block.columns))
        rows.append(np.where(place >= 0, np.arange(len(chosen)), -1))
        places.append(place)
    return Sample(chosen, places, links.model.complete(blocks, rows))


def filled_columns(links: Links, sample: Sample) -> list[FilledColumn]:
    """Return the columns with missing entries, table by table, in their order."""
    columns = []
    for table, place, (_, errors) in zip(links.tables, sample.places, sample.filled, strict=True):
        mask, values = table.block.mask, table.block.values
        for use in table.uses:
            numbers = [table.places[name] for name in use.columns]
            missing = int((~mask[:, numbers[0]]).sum()) if numbers else 0
            if not missing:
                continue
            seen = values[np.ix_(mask[:, numbers[0]], numbers)]
            unit = safe_unit(float(np.abs(seen).max(initial=0.0)))
            seen = seen / unit
            spread = float(seen.var(axis=0).sum()) if len(seen) > 1 else 0.0
            unseen = (place >= 0) & ~mask[np.maximum(place, 0), numbers[0]]
            known = spread > 0 and unseen.any()
            error = float(((errors[np.ix_(unseen, numbers)] / unit) ** 2).sum(axis=1).mean()) if known else 0.0
            explained = 1 - error / spread if known else float("nan")
            columns.append(FilledColumn(table.name, use.name, missing, len(mask), explained))
    return columns


def filled_entries(links: Links, sample: Sample, *, most: int = 40) -> list[FilledEntry]:
    """Return some filled entries, from all tables in turn, the first rows first."""

    def of_table(number: int) -> Iterator[FilledEntry]:
        table, place, (values, errors) = links.tables[number], sample.places[number], sample.filled[number]
        entries = list(table.entries(values[:, : table.block.shape[1]], place).values())
        used = [(use, column) for use, column in zip(table.uses, entries, strict=True) if use.columns]
        for i, row in enumerate(place):
            for use, column in used:
                first = table.places[use.columns[0]]
                if row >= 0 and not table.block.mask[row, first]:
                    label = links.tables[0].row_ids[int(sample.rows[i])]
                    error = float(errors[i, first]) if use.kind in ("number", "integer") else None
                    value = column.iloc[i] if hasattr(column, "iloc") else column[i]
                    if error is not None and use.coding is not None and isinstance(value, str):
                        value = float(use.coding.style.plain([value])[0] or "nan")
                    yield FilledEntry(table.name, label, use.name, value, error)

    in_turn = zip_longest(*map(of_table, range(len(links.tables))))
    chosen = islice((entry for entries in in_turn for entry in entries if entry is not None), most)
    order = [table.name for table in links.tables]
    return sorted(chosen, key=lambda entry: order.index(entry.table))
