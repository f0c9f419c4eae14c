"""Maps from pairs of rows of which many are right: known pairs, or rows that are alike in shared columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import null_space

from keyless.arrays import FloatArray, IntArray
from keyless.maps.proposed import ProposedMap, mutual_pairs, sets_of_far_rows
from keyless.maps.rotations import paired_rotation
from keyless.model.positions import Positions
from keyless.model.shards import sampled

__all__ = ["Common", "corrected", "from_pairs", "known_directions", "rotation_of"]


_SAMPLE = 40_000
"""Pairs of rows by which a map is found at the most."""

_CORRECTIONS = 5
"""Rounds in which directions are set right by the rows that find each other."""

_WEAKEST = 0.3
"""Part of the strongest correlation that a direction must have to count as common."""

_BEYOND_CHANCE = 3.0
"""Times the root of latents by pairs: of pairs at random the strongest correlation is about twice as much."""

_FULLY = 0.9
"""Correlation that is enough, however few pairs there are: held-out rows tell whether it is there by chance."""


@dataclass(frozen=True, eq=False)
class Common:
    """Directions of two tables that are the same, how many held-out rows find each other, and all rows that do."""

    left: FloatArray
    right: FloatArray
    confirmed: float
    rows: IntArray


def from_pairs(
    left: Positions, right: Positions, rows: IntArray, *, name: str, rng: np.random.Generator
) -> ProposedMap | None:
    """Return the rotation that pairs of rows suggest, of which not all need to be right.

    Directions along which the pairs do not correlate are taken for those of one table alone.

    Args:
        left: where the left rows stand.
        right: where the right rows stand.
        rows: k × 2.
        name: what to call the pairs in the record of what was tried.
        rng: draws the pairs that are used, of very many.
    """
    rows = rows[sampled(len(rows), _SAMPLE, rng)]
    first, second = (table.rows.take(rows[:, k]) @ table.whitening for k, table in enumerate((left, right)))
    onto, strength, turned = np.linalg.svd(first.T @ second / max(len(rows), 1))
    # The spread of few pairs along a direction may be far from 1, which says nothing about how they correlate.
    spread = np.sqrt(np.mean((first @ onto) ** 2, axis=0) * np.mean((second @ turned.T) ** 2, axis=0))
    correlation = strength / np.maximum(spread, 1e-12)
    chance = min(_BEYOND_CHANCE * np.sqrt(left.rank / max(len(rows), 1)), _FULLY)
    shared = correlation > max(_WEAKEST * float(correlation.max()), chance)
    if not shared.any():
        return None
    common = corrected(left, right, onto[:, shared], turned[shared].T)
    rotation = rotation_of((known_directions(left), common.left), (known_directions(right), common.right))
    return ProposedMap(rotation, common.rows, common.confirmed, 1, (("pairs", name, common.confirmed),))


def corrected(left: Positions, right: Positions, onto: FloatArray, turned: FloatArray) -> Common:
    """Return directions that are the same, set right by the rows that find each other by them."""
    rows = next(sets_of_far_rows(left.marginal(onto), right.marginal(turned)))
    rotation = np.eye(onto.shape[1])
    confirmed, found = rows.confirmed(rotation), mutual_pairs(rows.left, rows.right, rotation)
    # Components are found with errors, and sometimes two of them mixed.
    for _ in range(_CORRECTIONS):
        # Those held out have no part in it.
        fitting = found[(found < rows.count).any(axis=1)]
        if len(fitting) <= 2 * len(rotation):
            break
        again = paired_rotation(rows.left.white[fitting[:, 0]], rows.right.white[fitting[:, 1]])
        share = rows.confirmed(again)
        if share < confirmed:
            break
        better = share > confirmed
        rotation, confirmed = again, share
        found = mutual_pairs(rows.left, rows.right, rotation)
        if not better:
            break
    return Common(onto, turned @ rotation, confirmed, rows.numbers(found))


def rotation_of(left: tuple[FloatArray, FloatArray], right: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Return the rotation of the right latents, padded with empty ones, onto the left.

    Args:
        left: orthonormal directions that the left table knows of, and those of them that are common.
        right: likewise, the common ones in the same order.
    """
    common = left[1].shape[1]
    rank = max(len(left[0]), left[0].shape[1] + right[0].shape[1] - common)
    own, empty = zip(*(_complements(*side, rank) for side in (left, right)), strict=True)
    same = [np.pad(side[1], ((0, rank - len(side[1])), (0, 0))) for side in (left, right)]
    # Common ones, those of the left alone, those of the right alone, and what is empty on both.
    onto = np.concatenate([same[0], own[0], empty[0]], axis=1)
    alone = own[0].shape[1]
    turned = np.concatenate([same[1], empty[1][:, :alone], own[1], empty[1][:, alone:]], axis=1)
    return np.asarray(turned @ onto.T)


def known_directions(positions: Positions) -> FloatArray:
    """Return orthonormal directions that a table knows of, as columns."""
    values, vectors = np.linalg.eigh(positions.whitening)
    return np.asarray(vectors[:, values > 1e-9 * max(float(values.max(initial=0.0)), 1e-300)])


def _complements(all_known: FloatArray, common: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    """Return a table's directions that are not common, and those it knows nothing of, among `rank` latents."""
    padding = ((0, rank - len(all_known)), (0, 0))
    own = all_known @ null_space(common.T @ all_known)
    return np.pad(own, padding), null_space(np.pad(all_known, padding).T)
