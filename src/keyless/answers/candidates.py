"""Who else it could be: the likeliest partners of each row, "nobody" among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from keyless.answers.distributions import distribution, likeliest_partners
from keyless.answers.labels import ids
from keyless.arrays import check_count
from keyless.errors import InputError
from keyless.tables import frame_like

__all__ = ["candidates"]


def candidates(links: Any, count: int, *, table: str | None = None) -> Any:
    """Return the likeliest partners of each reference row; see `Links.candidates`."""
    count = check_count(count, name="k")
    if table is not None and table not in links.found:
        raise InputError(f"table: must be one of {', '.join(map(repr, links.found))}; found {table!r}.")
    reference, parts = links.tables[0], []
    for other in links.tables[1:]:
        if table in (None, other.name):
            rows, places, chance = ranked(*distribution(links.found[other.name]), count)
            parts.append((other, rows, places, chance))
    rank = np.concatenate([_ranks(rows) for _, rows, _, _ in parts])
    columns: dict[str, Any] = {
        "reference_id": _together([ids(reference, rows, like=reference) for _, rows, _, _ in parts]),
        "table": np.repeat(np.array([t.name for t, *_ in parts], dtype=object), [len(rows) for _, rows, *_ in parts]),
        "rank": rank,
        "row_id": _together([ids(other, places, like=reference) for other, _, places, _ in parts]),
        "probability": np.concatenate([chance for *_, chance in parts]),
    }
    return frame_like(reference, columns)


def ranked(partners: Any, nobody: Any, count: int) -> tuple[Any, Any, Any]:
    """Return row, partner (−1 for nobody) and probability of each candidate, rows in order, the likeliest first.

    Args:
        partners: probabilities, rows × partners.
        nobody: per row, the probability that there is no partner.
        count: how many partners of each row, at most.
    """
    rows, places, chance = likeliest_partners(partners, count)
    rows = np.concatenate([rows, np.arange(len(nobody))])
    places = np.concatenate([places, np.full(len(nobody), -1)])
    chance = np.concatenate([chance, nobody])
    order = np.lexsort((places, -chance, rows))
    return rows[order], places[order], chance[order]


def _ranks(rows: Any) -> Any:
    """Return 1, 2, … for each run of equal numbers."""
    first = np.searchsorted(rows, rows)
    return np.arange(len(rows)) - first + 1


def _together(parts: list[Any]) -> Any:
    if all(isinstance(part, list) for part in parts):
        return [label for part in parts for label in part]
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True)
