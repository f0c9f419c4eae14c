"""Who may belong to whom, row by row: one distribution over the rows of a table and "nobody", which sums to 1.

`distribution` is the only place that reads it from what was found for a table; everything else asks here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray, IntArray
from keyless.table_link import TableLink
from keyless.tables.matrices import is_sparse

__all__ = ["distribution", "likeliest_partners", "link_of_rows", "soft_answers"]

_NOTHING = 1e-290
"""If all other candidates together weigh less than this, none counts as possible: such weights are rounding errors."""


def distribution(link: TableLink) -> tuple[FloatArray | sparse.csr_array, FloatArray]:
    """Return the probability of each partner of each reference row, and of "nobody".

    The link holds both, as `coupling` and `alone`. Links of an earlier version may have no `alone`. Then the match, or
    "nobody" for a row without match, has the probability that `matches` states. What is left to 1 goes to the other
    candidates in proportion to the coupling. If the tables are unlinkable, it goes to all possible candidates in equal
    parts, since nothing tells them apart.

    Args:
        link: what was found for a table, a `TableLink`.

    Returns:
        Reference rows × rows of the table, sparse where the coupling is, and one number per reference row. Both
        together sum to 1 in every row.
    """
    permutation = link.permutation
    if len(link.alone):
        return _summing_to_one(_known(link.coupling), np.nan_to_num(link.alone, nan=0.0))
    own = np.flatnonzero(permutation >= 0)
    matched = permutation >= 0
    stated = np.clip(np.nan_to_num(link.probability, nan=0.0), 0.0, 1.0)
    weights = _known(link.coupling)
    nobody = np.maximum(1.0 - np.asarray(weights.sum(axis=1)).ravel(), 0.0)
    if link.evidence.verdict == "unlinkable":
        weights, nobody = (weights > 0).astype(np.float64), np.zeros(len(permutation))
    weights = _replaced(weights, own, permutation[own], np.zeros(len(own)))
    total = np.asarray(weights.sum(axis=1)).ravel() + np.where(matched, nobody, 0.0)
    possible = total > _NOTHING
    left = np.divide(1.0 - stated, total, out=np.zeros(len(total)), where=possible)
    # Where nothing else is possible, what is left is "nobody".
    alone = np.where(possible, np.where(matched, nobody * left, stated), np.where(matched, 1.0 - stated, 1.0))
    if is_sparse(weights):
        weights.data *= np.repeat(left, np.diff(weights.indptr))
    else:
        weights *= left[:, None]
    return _replaced(weights, own, permutation[own], stated[own]), alone


def link_of_rows(link: TableLink, rows: Any) -> TableLink:
    """Return what was found for some reference rows of a table, so that `distribution` copies only their coupling.

    Args:
        link: what was found for a table, a `TableLink`.
        rows: numbers of reference rows.
    """
    parts = {name: getattr(link, name)[rows] for name in ("permutation", "probability", "margin", "coupling")}
    return replace(link, **parts, alone=link.alone[rows] if len(link.alone) else link.alone)


def _summing_to_one(partners: Any, nobody: FloatArray) -> tuple[Any, FloatArray]:
    """Return a distribution whose rows sum to 1, up to rounding; "nobody" for rows of which nothing is known."""
    total = np.asarray(partners.sum(axis=1)).ravel() + nobody
    nobody = np.where(total > 0, nobody, 1.0)
    share = 1 / np.where(total > 0, total, 1.0)
    if is_sparse(partners):
        partners.data *= np.repeat(share, np.diff(partners.indptr))
    else:
        partners *= share[:, None]
    return partners, nobody * share


def _known(coupling: Any) -> Any:
    """Return a copy of a coupling, 0 where it is not a number."""
    if not is_sparse(coupling):
        return np.maximum(np.nan_to_num(coupling, nan=0.0), 0.0)
    weights = sparse.csr_array(coupling, copy=True)
    weights.data = np.maximum(np.nan_to_num(weights.data, nan=0.0), 0.0)
    return weights


def _replaced(given: Any, rows: IntArray, places: IntArray, values: FloatArray) -> Any:
    """Return weights with other values at some places, one per row at most."""
    if not is_sparse(given):
        given[rows, places] = values
        return given
    weights = sparse.csr_array(given)
    partner = np.full(weights.shape[0], -1)
    partner[rows] = places
    line = np.repeat(np.arange(weights.shape[0]), np.diff(weights.indptr))
    other = weights.indices != partner[line]
    index = (np.concatenate([line[other], rows]), np.concatenate([weights.indices[other], places]))
    return sparse.csr_array((np.concatenate([weights.data[other], values]), index), shape=weights.shape)


def soft_answers(link: TableLink, *, by_column: bool = False) -> tuple[sparse.csr_array, FloatArray]:
    """Return the same as `distribution`, always sparse; or seen from the table's rows.

    Args:
        link: what was found for a table.
        by_column: one line per row of the table: how likely each reference row is its partner. A line may sum to more
            than 1, since reference rows are judged one by one. It is then divided by its sum; what is left to 1 is
            "nobody".
    """
    partners, nobody = distribution(link)
    partners = sparse.csr_array(partners)
    if not by_column:
        return partners, nobody
    turned = sparse.csr_array(partners.T)
    total = np.asarray(turned.sum(axis=1)).ravel()
    turned = sparse.csr_array(sparse.diags_array(1 / np.maximum(total, 1.0)) @ turned)
    return turned, np.maximum(1.0 - total, 0.0)


def likeliest_partners(partners: Any, count: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the `count` likeliest partners of each row, the likeliest first; impossible partners are left out.

    Args:
        partners: probabilities, rows × partners.
        count: how many of each row, at most.

    Returns:
        Row, partner and probability of each, in the order of rows.
    """
    if is_sparse(partners):
        listed = sparse.csr_array(partners)
        rows = np.repeat(np.arange(listed.shape[0]), np.diff(listed.indptr))
        places, chance = listed.indices.astype(np.int64), listed.data
    else:
        width = min(count, partners.shape[1])
        places = np.argpartition(-partners, width - 1, axis=1)[:, :width].ravel()
        rows = np.repeat(np.arange(len(partners)), width)
        chance = partners[rows, places]
    seen = chance > 0
    rows, places, chance = rows[seen], places[seen], chance[seen]
    order = np.lexsort((places, -chance, rows))
    rows, places, chance = rows[order], places[order], chance[order]
    first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=partners.shape[0]))])
    kept = np.arange(len(rows)) - first[rows] < count
    return rows[kept], places[kept], chance[kept]
