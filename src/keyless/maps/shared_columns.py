"""Rows of two tables that are near each other by columns that both have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyless.arrays import IntArray, SingleArray, batches
from keyless.model.scales import Scale
from keyless.model.scored_tables import ScoredTable
from keyless.model.shards import BATCH, sampled
from keyless.pairs.neighbours import nearest

__all__ = ["pairs_by_columns"]


_SIMILAR = 5_000
"""Most rows of the smaller table whose nearest rows, by columns that both tables have, give a first map."""


def pairs_by_columns(
    tables: tuple[ScoredTable, ScoredTable],
    columns: Sequence[tuple[int, int]],
    *,
    rng: np.random.Generator,
    seed: int,
    device: Any = None,
) -> tuple[IntArray | None, int]:
    """Pair some rows of the smaller table with their nearest rows of the larger; also count the distances looked at.

    Args:
        tables: the reference and another table.
        columns: numbers of the columns that both have.
        rng: draws the rows.
        seed: of the search for the nearest.
        device: where that search runs; None: on the processor.

    Returns:
        The pairs, k × 2, None where no row has all columns observed; and the number of distances.
    """
    small = int(len(tables[1]) < len(tables[0]))
    rows = [np.arange(len(table)) for table in tables]
    rows[small] = sampled(len(tables[small]), _SIMILAR, rng)
    # Both on the scale of the reference: a table of other rows has another centre.
    scales = [tables[0].scales[column] for column, _ in columns]
    seen = [
        _seen_values(table, index, [pair[k] for pair in columns], scales)
        for k, (table, index) in enumerate(zip(tables, rows, strict=True))
    ]
    (few, queries), (many, points) = seen[small], seen[1 - small]
    if not (len(few) and len(many)):
        return None, 0
    near = nearest(points, queries, 1, seed=seed, device=device)
    pairs = few, many[near.points[:, 0]]
    return np.stack(pairs[::-1] if small else pairs, axis=1), near.evaluations


def _seen_values(
    table: ScoredTable, rows: IntArray, columns: Sequence[int], scales: Sequence[Scale]
) -> tuple[IntArray, SingleArray]:
    """Return which of the given rows have all given columns observed, and their values on given scales."""
    values, seen = np.empty((len(rows), len(columns)), dtype=np.float32), np.empty(len(rows), dtype=bool)
    for part in batches(len(rows), BATCH):
        some = np.asarray(table.values[rows[part]], dtype=np.float64)[:, columns]
        mask = np.asarray(table.mask[rows[part]])[:, columns]
        for k, scale in enumerate(scales):
            values[part, k] = scale.apply(np.where(mask[:, k], some[:, k], scale.centre))
        seen[part] = mask.all(axis=1)
    return rows[seen], values[seen]
