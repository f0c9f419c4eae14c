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
"""Most pairs of rows by which a map is found."""

_CORRECTIONS = 5
"""Most rounds in which directions are corrected by the rows that find each other."""

_WEAKEST = 0.3
"""A direction counts as common if its correlation is above this part of the strongest correlation."""

_BEYOND_CHANCE = 3.0
"""A direction counts as common if its correlation is above this many times √(latents / pairs). The strongest
correlation of random pairs is about 2 times that root."""

_FULLY = 0.9
"""Correlation that is enough, however few pairs there are: held-out rows tell later whether it arose by chance."""


@dataclass(frozen=True, eq=False)
class Common:
    """Directions that two tables have in common, and the rows that find each other along them.

    Attributes:
        left: latents × directions of the left table.
        right: likewise of the right table, in the same order.
        confirmed: share of held-out rows that find each other.
        rows: all rows that find each other, k × 2.
    """

    left: FloatArray
    right: FloatArray
    confirmed: float
    rows: IntArray


def from_pairs(
    left: Positions, right: Positions, rows: IntArray, *, name: str, rng: np.random.Generator
) -> ProposedMap | None:
    """Return the rotation that pairs of rows suggest; not all of the pairs need to be right.

    Directions along which the pairs do not correlate are taken for those of one table alone.

    Args:
        left: where the left rows stand.
        right: where the right rows stand.
        rows: the pairs, k × 2 row numbers.
        name: what to call the pairs in the record of what was tried.
        rng: draws the pairs that are used where there are very many.
    """
    rows = rows[sampled(len(rows), _SAMPLE, rng)]
    first, second = (table.rows.take(rows[:, k]) @ table.whitening for k, table in enumerate((left, right)))
    onto, strength, turned = np.linalg.svd(first.T @ second / max(len(rows), 1))
    # Along a direction few pairs may have a spread far from 1. Divided by it, the strength is a correlation.
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
    """Return common directions of two tables, corrected by the rows that find each other along them.

    Args:
        left: where the left rows stand.
        right: where the right rows stand.
        onto: directions of the left table, as columns.
        turned: the same directions in the right table, nearly.
    """
    rows = next(sets_of_far_rows(left.marginal(onto), right.marginal(turned)))
    rotation = np.eye(onto.shape[1])
    confirmed, found = rows.confirmed(rotation), mutual_pairs(rows.left, rows.right, rotation)
    # Components are found with errors, and sometimes two of them mixed.
    for _ in range(_CORRECTIONS):
        # Pairs of two held-out rows have no part in the correction.
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
    """Return the rotation of the right latents onto the left ones, both padded with empty latents.

    Args:
        left: orthonormal directions that the left table knows of, and the common ones.
        right: likewise, the common ones in the same order.
    """
    common = left[1].shape[1]
    rank = max(len(left[0]), left[0].shape[1] + right[0].shape[1] - common)
    own, empty = zip(*(_complements(*side, rank) for side in (left, right)), strict=True)
    same = [np.pad(side[1], ((0, rank - len(side[1])), (0, 0))) for side in (left, right)]
    # The order: common directions, those of the left alone, those of the right alone, those empty in both.
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
