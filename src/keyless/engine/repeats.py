"""Notice tables that hold several rows of one entity, and match them many to one.

A search matches every row once at the most. If a table repeats entities, the map is found all the same, but most of the
repeated rows are left without partner, although one row of the other table fits them as well as a partner does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from keyless.arrays import BoolArray, IntArray, NumpyArray
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import FIRST_SHARE, LEAST_STATED, best_other, largest, less_crowding, pair_places

__all__ = [
    "RepeatedSide",
    "Rivals",
    "SharedPartners",
    "best_rivals",
    "repeated_side",
    "seem_repeated",
    "shared_partners",
]

Rivals = tuple[NumpyArray, NumpyArray]
RepeatedSide = Literal["", "left", "right"]
"""The table that seems to repeat entities; empty where neither does."""

_RARELY = 0.99
"""Quantile of how well the second best candidates of matched rows fit: the best candidate of a row without partner
seldom fits better."""

_ERRORS = 3.0
"""A table seems to repeat entities if the rows that fit another row's partner are more than chance and wrong matches
explain, by this many standard errors."""

_TINY = 1e-300
"""The smallest sum that is divided by, so that no result is infinite."""

_STEPS = 100
"""Steps in which it is estimated how many rows have a partner; each step changes the number less than the step
before."""


def repeated_side(permutation: IntArray, probability: NumpyArray, rivals: Rivals) -> RepeatedSide:
    """Tell which of two tables seems to hold several rows of one entity.

    The best candidate of a row whose entity the other table lacks fits like the second best candidates of matched rows.
    The best candidate of a repeated row fits as well as a partner, and another row has taken it. Wrong matches leave
    such rows as well, since each takes a partner away. So as many such rows as matches are expected to be wrong are no
    sign of repeats.

    Args:
        permutation: the right row of each left row, −1 for none.
        probability: of each left row's match.
        rivals: see `best_rivals`.
    """
    wrong = float(np.sum(1.0 - probability[permutation >= 0]))
    fits = _fit_taken_partners(permutation, rivals)
    left = _beyond_chance(fits[0], int(np.sum(permutation < 0)), wrong=wrong)
    right = _beyond_chance(fits[1], len(rivals[1]) - int(np.sum(permutation >= 0)), wrong=wrong)
    if max(left, right) <= 0:
        return ""
    return "left" if left > right else "right"


def seem_repeated(ratios: Any, permutation: IntArray) -> tuple[BoolArray, BoolArray]:
    """Tell which left and right rows have no match, but fit a partner of another row as well as partners fit.

    Args:
        ratios: left × right rows, log-likelihood ratios, dense or sparse.
        permutation: the right row of each left row, −1 for none.
    """
    return _fit_taken_partners(permutation, best_rivals(ratios, permutation))


def _fit_taken_partners(permutation: IntArray, rivals: Rivals) -> tuple[BoolArray, BoolArray]:
    """Tell which rows without match fit a partner of another row.

    A candidate fits only if it is also likelier than not to be the partner of a row that has one among so many choices.
    """
    taken = np.zeros(len(rivals[1]), dtype=bool)
    taken[permutation[permutation >= 0]] = True
    fits = []
    for best, matched, choices in zip(rivals, (permutation >= 0, taken), (len(rivals[1]), len(rivals[0])), strict=True):
        usual = np.quantile(best[matched], _RARELY, method="higher") if matched.any() else np.inf
        fits.append(~matched & (best > max(usual, np.log(max(choices, 1)))))
    return fits[0], fits[1]


def _beyond_chance(fits: BoolArray, unmatched: int, *, wrong: float) -> float:
    """Return by how many standard errors too many rows without match fit another row's partner, less `_ERRORS`."""
    expected = wrong + (1.0 - _RARELY) * unmatched
    return float((fits.sum() - expected) / np.sqrt(expected + 1.0)) - _ERRORS


def best_rivals(ratios: Any, permutation: IntArray) -> Rivals:
    """Return the highest ratio of each left and of each right row, that of its own match left out; −∞ where none is.

    Rows in a crowd fit many rows without being repeats, so what crowding adds to the ratios is taken off. Matches are
    left out before that, so that rows with match and rows without it are treated alike.

    Args:
        ratios: left × right rows, log-likelihood ratios, dense or sparse.
        permutation: the right row of each left row, −1 for none.
    """
    thinned = less_crowding(_without_matches(ratios, permutation))
    return best_other(thinned, permutation), best_other(thinned, permutation, of_columns=True)


def _without_matches(ratios: Any, permutation: IntArray) -> Any:
    """Return the ratios of all pairs that are no match."""
    if isinstance(ratios, sparse.csr_array):
        rows, columns = pair_places(ratios)
        other = permutation[rows] != columns
        return sparse.csr_array((ratios.data[other], (rows[other], columns[other])), shape=ratios.shape)
    found = ratios.copy()
    matched = np.flatnonzero(permutation >= 0)
    found[matched, permutation[matched]] = -np.inf
    return found


@dataclass(frozen=True, eq=False)
class SharedPartners:
    """Left rows matched each for itself.

    Attributes:
        permutation: the right row of each left row, −1 where it has none.
        pairs: left × right rows, the probability of each pair; sparse where the ratios are.
        probability: of each left row's match, or of its having no partner.
    """

    permutation: IntArray
    pairs: Any
    probability: NumpyArray


def shared_partners(ratios: Any, *, limits: Limits, every_row: bool | None) -> SharedPartners:
    """Match every left row for itself, whoever else has the same partner.

    With choices n_i of row i, prior share π of rows that have a partner, and log-likelihood ratios r, row i belongs to
    row j with probability

        p_ij = (π/n_i) exp(r_ij) / (1 − π + (π/n_i) Σ_k exp(r_ik)),

    and π is the mean of Σ_j p_ij.

    Args:
        ratios: left × right rows, by a map that was found by matching rows one to one; dense or sparse.
        limits: which pairs may be matched, known pairs left aside.
        every_row: whether every left row has a partner; None: as many as the ratios say.
    """
    dense = not isinstance(ratios, sparse.csr_array)
    listed = _listed(ratios) if dense else ratios
    rows, columns = pair_places(listed)
    # Listed ratios contain the head start that limits give; here the number of choices takes its place.
    plain = listed.data - (0.0 if dense else limits.head_start(rows, columns))
    highest = np.maximum(largest(rows, plain, listed.shape[0]), 0.0)
    weight = np.exp(plain - highest[rows]) / np.maximum(limits.choices[rows], 1)
    total = np.bincount(rows, weight, minlength=len(highest))
    nobody = np.exp(-highest)
    share = 1.0 if every_row else FIRST_SHARE
    for _ in range(0 if every_row else _STEPS):
        share = float(np.mean(share * total / np.maximum((1 - share) * nobody + share * total, _TINY)))
    sums = np.maximum((1 - share) * nobody + share * total, _TINY)
    pairs = sparse.csr_array((share * weight / sums[rows], listed.indices, listed.indptr), shape=listed.shape)
    best = np.maximum(largest(rows, pairs.data, len(highest)), 0.0)
    permutation = np.full(len(highest), -1, dtype=np.int64)
    chosen = (pairs.data == best[rows]) & ((pairs.data >= LEAST_STATED) | bool(every_row))
    permutation[rows[chosen]] = columns[chosen]
    probability = np.where(permutation >= 0, best, np.clip(1.0 - np.asarray(pairs.sum(axis=1)).ravel(), 0.0, 1.0))
    return SharedPartners(permutation, pairs.toarray() if dense else pairs, probability)


def _listed(ratios: NumpyArray) -> sparse.csr_array:
    """Return all pairs that may be matched as a sparse matrix of their ratios."""
    rows, columns = np.nonzero(np.isfinite(ratios))
    return sparse.csr_array((ratios[rows, columns].astype(np.float64), (rows, columns)), shape=ratios.shape)
