"""Maps of tables of many rows from the third and fourth moments of their latents; see `keyless.maps.moments`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keyless.arrays import FloatArray
from keyless.maps.by_pairs import Common, corrected, known_directions, rotation_of
from keyless.maps.moments import best_maps, moments
from keyless.maps.proposed import CONFIRMED, ProposedMap
from keyless.model.positions import Positions
from keyless.model.shards import sampled

__all__ = ["from_moments"]

_SAMPLE = 100_000
"""Most rows of a table from which moments are computed. The samples of two larger tables have different rows. Moments
of normal latents then do not agree, since only the same rows make them agree; latents that are not normal are found by
their components."""

_DIRECTIONS = 8
"""Most directions of each table that are used: the work grows with the sixth power of their number."""

_COMMON = 0.5
"""Strength, from 0 to 1, above which a pair of directions is taken to be common to both tables."""


def from_moments(
    left: Positions, right: Positions, *, rng: np.random.Generator, expired: Callable[[], bool] = lambda: False
) -> ProposedMap | None:
    """Return, of the maps under which the moments of both tables agree best, the one that held-out rows confirm most.

    Args:
        left: where the left rows stand.
        right: where the right rows stand.
        rng: draws the rows that are used where there are very many.
        expired: tells whether time is up.
    """
    directions = [_leading(positions) for positions in (left, right)]
    if min(own.shape[1] for own in directions) < 2:
        return None
    factors = [
        positions.rows.take(sampled(len(positions), _SAMPLE, rng)) @ positions.whitening @ own
        for positions, own in zip((left, right), directions, strict=True)
    ]
    best: Common | None = None
    tried: list[tuple[str, str, float]] = []
    for number, found in enumerate(best_maps(*map(moments, factors)), start=1):
        forth, strengths, back = np.linalg.svd(found, full_matrices=False)
        common = strengths > _COMMON
        if not common.any():
            continue
        this = corrected(left, right, directions[0] @ forth[:, common], directions[1] @ back[common].T)
        tried.append(("moments", f"map {number}", this.confirmed))
        best = this if best is None or this.confirmed > best.confirmed else best
        if best.confirmed >= CONFIRMED or expired():
            break
    if best is None:
        return None
    rotation = rotation_of((known_directions(left), best.left), (known_directions(right), best.right))
    return ProposedMap(rotation, best.rows, best.confirmed, 1, tuple(tried))


def _leading(positions: Positions) -> FloatArray:
    """Return, as columns, the directions that a table knows most of; at most `_DIRECTIONS`."""
    values, vectors = np.linalg.eigh(positions.rows.moment)
    known = vectors[:, values > 1e-9 * max(float(values.max(initial=0.0)), 1e-300)]
    return np.asarray(known[:, ::-1][:, :_DIRECTIONS])
