"""What is said about each row: one distribution over its candidates and "no partner".

Match, probability, second best and margin are all read off this distribution, so they cannot contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray, NumpyArray
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import FIRST_SHARE, best_other, pair_places

__all__ = ["LEAST_TOLD", "Stated", "stated", "with_known_pairs"]

LEAST_TOLD = 1e-12
"""Probabilities below this one are not told apart: margins stay below log(1/this) = 27.6 nats."""


@dataclass(frozen=True, eq=False)
class Stated:
    """The distributions of all rows.

    Attributes:
        coupling: reference rows × rows of the table, how likely each pair is one entity; sparse where only listed pairs
            were looked at. If a row of `coupling` and its `alone` add up to less than 1, the rest is spread over pairs
            that were not looked at.
        alone: how likely each reference row has no partner.
        probability: of each row's match, or of its having no partner where it has no match.
        margin: log of how many times as likely this answer is as the likeliest other answer, in nats; negative where it
            is less likely, as one-to-one matching sometimes makes necessary.
    """

    coupling: Any
    alone: NumpyArray
    probability: NumpyArray
    margin: NumpyArray


def stated(
    permutation: IntArray,
    coupling: Any,
    *,
    limits: Limits,
    belief: float = 1.0,
) -> Stated:
    """Return the distribution of each row, the doubt whether there is a map at all included.

    Args:
        permutation: the row that belongs to each reference row, −1 for none.
        coupling: probabilities of pairs, given that the map is right; dense or sparse.
        limits: which pairs may be matched.
        belief: how likely the map is right. If it is wrong, any row of the table may be the partner of any other.
    """
    matched = permutation >= 0
    rows = np.flatnonzero(matched)
    pairs = coupling
    if not isinstance(coupling, sparse.csr_array):
        pairs = np.asarray(coupling, dtype=np.float64)
    own = np.zeros(len(permutation))
    own[rows] = np.asarray(pairs[rows, permutation[rows]]).ravel()
    alone = np.clip(1.0 - np.asarray(pairs.sum(axis=1)).ravel(), 0.0, 1.0)
    told = np.zeros(len(permutation), dtype=bool)
    told[limits.known[:, 0]] = True
    if belief < 1.0:
        nobody = 1.0 - FIRST_SHARE * min(pairs.shape) / pairs.shape[0]
        # Without any row to choose from there is no partner, whether the map is right or not.
        anybody = limits.choices > 0
        guess = np.where(anybody, (1.0 - belief) * (1.0 - nobody) / np.maximum(limits.choices, 1), 0.0)
        pairs = _mixed(pairs, belief, guess, limits)
        alone = np.where(anybody, belief * alone + (1.0 - belief) * nobody, 1.0)
    if told.any():
        # What the caller knows is in no doubt, whether the map is right or not.
        pairs = with_known_pairs(permutation, pairs, limits)[1]
        alone = np.where(told, 0.0, alone)
    own[rows] = np.asarray(pairs[rows, permutation[rows]]).ravel()
    probability = np.clip(np.where(matched, own, alone), 0.0, 1.0)
    second = np.maximum(best_other(pairs, permutation), np.where(matched, alone, 0.0))
    margin = np.log(np.maximum(probability, LEAST_TOLD)) - np.log(np.clip(second, LEAST_TOLD, 1.0))
    return Stated(pairs, np.clip(alone, 0.0, 1.0), probability, margin)


def with_known_pairs(permutation: IntArray, coupling: Any, limits: Limits) -> tuple[IntArray, Any]:
    """Return matches and probabilities of pairs in which known pairs are certain.

    Args:
        permutation: the row that belongs to each reference row, −1 for none.
        coupling: probabilities of pairs, dense or sparse.
        limits: with the known pairs.
    """
    if not len(limits.known):
        return permutation, coupling
    rows, columns = limits.known.T
    free = [np.ones(size) for size in limits.shape]
    free[0][rows] = 0.0
    found = permutation.copy()
    if not limits.shares:
        found[np.isin(permutation, columns)] = -1
        free[1][columns] = 0.0
    found[rows] = columns
    if not isinstance(coupling, sparse.csr_array):
        pairs = coupling * free[0][:, None] * free[1]
        pairs[rows, columns] = 1.0
        return found, pairs
    rest = sparse.csr_array(sparse.diags_array(free[0]) @ coupling @ sparse.diags_array(free[1]))
    rest.eliminate_zeros()
    known = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=limits.shape)
    return found, sparse.csr_array(rest + known)


def _mixed(pairs: Any, belief: float, guess: NumpyArray, limits: Limits) -> Any:
    """Return the pairs as far as the map is believed, and for the rest a guess among all pairs that may be matched."""
    if isinstance(pairs, sparse.csr_array):
        found = pairs.copy()
        found.data = belief * pairs.data + guess[pair_places(pairs)[0]]
        return found
    mask = limits.mask()
    return belief * pairs + (guess[:, None] if mask is None else np.where(mask, guess[:, None], 0.0))
