"""Levels of rows and columns: taken off before a fit, and read from it afterwards."""

from __future__ import annotations

import numpy as np

from keyless.arrays import Array
from keyless.completion.observed import ObservedTable
from keyless.completion.sweeps import FactorLayout, Settled

__all__ = ["centre", "level_offsets"]


def centre(
    table: ObservedTable, layout: FactorLayout, columns: Array | None = None
) -> tuple[ObservedTable, Array, Array]:
    """Take off `columns` or the observed column means, then the observed row means, where the layout has offsets."""
    rows = np.zeros(table.shape[0])
    if columns is None:
        columns = table.means(0) if layout.column_offsets else np.zeros(table.shape[1])
    table = table.less(rows, columns)
    if layout.row_offsets:
        rows = table.means(1)
        table = table.less(rows, np.zeros(table.shape[1]))
    return table, rows, columns


def level_offsets(found: Settled, observed: ObservedTable, rows: Array, columns: Array) -> tuple[Array, float]:
    """All column offsets, and the row offset of a row with nothing observed; both the mean of the others there."""
    layout = found.layout
    if layout.row_offsets:
        rows = rows + found.left[:, layout.rank]
    level = float(rows[observed.row_counts > 0].mean())
    if not layout.column_offsets:
        return columns, level
    columns = columns + found.right[:, -1] + level
    columns[observed.column_counts == 0] = columns[observed.column_counts > 0].mean()
    return columns, 0.0
