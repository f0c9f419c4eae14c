"""Who else it could be: the likeliest partners of each row, "nobody" among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyless.answers.distributions import distribution, likeliest_partners
from keyless.answers.labels import ids
from keyless.arrays import check_count
from keyless.table_link import LinkedTables
from keyless.tables import frame_like

__all__ = ["candidates"]


def candidates(links: LinkedTables, k: int = 5, *, table: str | None = None) -> Any:
    """Return the likeliest partners of each reference row, and how likely it is that there is none.

    Args:
        links: the result.
        k: how many partners of each row and table, at most.
        table: of one table only; None: of all.

    Returns:
        A frame with reference_id, table, rank (from 1), row_id and probability, the likeliest first. A line whose
        row_id is missing stands for "nobody": it is there for each row beside its k partners. Over all partners and
        "nobody" the probabilities of a row sum to 1.
    """
    count = check_count(k, name="k")
    reference, found = links.tables[0], []
    for name in links._chosen(table):
        other = links.tables[links._number(name)]
        found.append((other, *ranked(*distribution(links.found[name]), count)))
    columns = {
        "reference_id": ids(*((reference, rows) for _, rows, _, _ in found), like=reference),
        "table": np.repeat(np.array([t.name for t, *_ in found], dtype=object), [len(rows) for _, rows, *_ in found]),
        "rank": np.concatenate([_ranks(rows) for _, rows, _, _ in found]),
        "row_id": ids(*((other, places) for other, _, places, _ in found), like=reference),
        "probability": np.concatenate([chance for *_, chance in found]),
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
