"""The numbers of rows at which a search changes: the only room that knows how many rows are few or many."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ALL_PAIRS_ROWS",
    "FEW_ROWS",
    "LARGE_ROWS",
    "MOST_SEARCHED_ROWS",
    "STEADY_ROWS",
    "TELLING_ROWS",
    "has_many_rows",
]

TELLING_ROWS = 120
"""From so many rows of the smaller table on, rows tell about each other. Halves of so many rows can be linked, which
tells what chance reaches. And a single row that is near by chance is no crowd; among 40 rows it would be a fortieth of
all."""

FEW_ROWS = 200
"""Rows up to which a model of all columns is found from nothing in seconds, and halves of them can be linked by it."""

STEADY_ROWS = 500
"""Rows from which on scores hardly vary by chance: one comparison with chance is enough."""

ALL_PAIRS_ROWS = 2_000
"""Rows up to which every form of a link is tried on all pairs of rows, in 20 s of processor time. With more rows, only
likely pairs are looked at until the map is settled."""

LARGE_ROWS = 5_000
"""Rows from which on tables are linked without ever holding all pairs of rows."""

MOST_SEARCHED_ROWS = 100_000
"""Rows up to which two tables that are linked by a model of all columns, but not sharply, are searched for canonical
pairs, whose factors are held in memory."""


def has_many_rows(sizes: Iterable[int]) -> bool:
    """Tell whether tables of so many rows are linked without looking at all pairs of rows."""
    return max(sizes, default=0) >= LARGE_ROWS
