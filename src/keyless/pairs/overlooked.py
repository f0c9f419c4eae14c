"""Rows that seem to have no partner because theirs fits badly among many others that are near.

Whether an entity is missing from a table has nothing to do with how crowded its place in the other one is: as many rows
of crowded places are without partner as of others. Where far more seem to be, partners were overlooked there: one that
is a little off is lost among rows that are near, and stands out in an empty place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.spatial import KDTree

from keyless.pairs.posterior import Posterior

__all__ = ["Overlooked", "overlooked_partners", "with_overlooked"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_NEAREST = 3
"""Nearest rows of the same table whose mean distance tells how crowded a place is; a single one may be a repeat."""


@dataclass(frozen=True, eq=False)
class Overlooked:
    """Partners that were overlooked.

    Attributes:
        count: how many there seem to be, beyond those that are expected by the stated probabilities.
        crowded: left rows, and right rows, whose place is more crowded than that of half of their table.
    """

    count: float
    crowded: tuple[BoolArray, BoolArray]


def overlooked_partners(chances: Posterior, places: tuple[FloatArray, FloatArray]) -> Overlooked:
    """Return how many partners were overlooked: rows that seem alone in the crowded half of a table beyond the other.

    Either table gives a number; it is their mean, and at least 0.

    Args:
        chances: the probabilities of pairs.
        places: where left rows, and where right rows stand, on a scale on which partners are about 1 apart.
    """
    crowded = [_crowded(side) for side in places]
    more = 0.0
    for axis, half in enumerate(crowded):
        alone = chances.alone(axis)
        if half.any():
            more += 0.5 * float(alone[half].sum() - alone[~half].mean() * half.sum())
    return Overlooked(max(more, 0.0), (crowded[0], crowded[1]))


def with_overlooked(
    chances: Posterior, permutation: IntArray, overlooked: Overlooked, allowed: BoolArray | None
) -> Posterior:
    """Return probabilities of pairs under which overlooked partners are to be found in crowded places.

    Which of the rows without match there belongs to which is not known: each may be it, in proportion to how likely
    both seemed to have no partner.

    Args:
        chances: the probabilities so far.
        permutation: the right row that each left row is matched to, −1 for none.
        overlooked: how many partners were overlooked, and where; at most all that seem alone there were.
        allowed: left × right rows, whether a pair may be matched; None: all may.
    """
    unmatched = permutation < 0, ~np.isin(np.arange(chances.pairs.shape[1]), permutation)
    alone = [
        np.where(free & crowded, chances.alone(axis), 0.0)
        for axis, (free, crowded) in enumerate(zip(unmatched, overlooked.crowded, strict=True))
    ]
    totals = [float(part.sum()) for part in alone]
    count = min(overlooked.count, *totals)
    if count <= 0.0:
        return chances
    more = np.outer(alone[0] / totals[0], alone[1] / totals[1]) * count
    pairs = sparse.csr_array(chances.pairs + sparse.csr_array(more if allowed is None else more * allowed))
    return Posterior(pairs, float(pairs.sum()), chances.odds)


def _crowded(places: FloatArray) -> BoolArray:
    """Return which rows are nearer to the nearest rows of their table than half of them are."""
    nearest = min(_NEAREST, len(places) - 1)
    if nearest < 1:
        return np.zeros(len(places), dtype=bool)
    far = np.asarray(KDTree(places).query(places, k=nearest + 1)[0])[:, 1:].mean(axis=1)
    return np.asarray(far < np.median(far))
