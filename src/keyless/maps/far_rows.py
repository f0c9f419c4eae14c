"""Maps from the rows farthest out: their signatures give a coupling, and the coupling a rotation, which is annealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from keyless.arrays import FloatArray
from keyless.maps.proposed import CONFIRMED, FarRows, ProposedMap, mutual_pairs, sets_of_far_rows
from keyless.maps.rotations import TEMPERATURES, anneal, paired_rotation, settle, signature_starts
from keyless.model.positions import Positions

__all__ = ["from_far_rows"]


_AGREEING = 3
"""Starts that must lead to the same confirmed rotation for the search to end before all starts are tried."""

_SAME = 0.9
"""Mean cosine of corresponding directions above which two rotations count as the same."""

_CLEARLY = 1.02
"""A rotation is better than the best so far if its confirmed share is above this many times that of the best."""


def from_far_rows(
    left: Positions,
    right: Positions,
    *,
    agreeing: int = _AGREEING,
    most: int | None = None,
    expired: Callable[[], bool] = lambda: False,
) -> ProposedMap:
    """Find the rotation of the right rows' latents onto the left ones with the rows farthest out.

    Args:
        left: where the left rows stand.
        right: where the right rows stand, among as many latents.
        agreeing: how many starts must agree for the search to end before all are tried.
        most: starts to try at the most; None: all.
        expired: tells whether time is up.
    """
    tried: list[tuple[str, str, float]] = []
    best: tuple[float, FloatArray, FarRows] | None = None
    same = 0
    for rows, start, rotation in islice(_rotations(left, right), most):
        share = rows.confirmed(rotation)
        tried.append((rows.name, start, share))
        if best is None or share > best[0] * _CLEARLY:
            same = same if best is not None and _alike(rotation, best[1]) else 0
            best = (share, rotation, rows)
        same += share >= CONFIRMED and _alike(rotation, best[1])
        if same >= agreeing or expired():
            break
    if best is None:
        raise RuntimeError("no set of far rows has any rows")
    share, rotation, rows = best
    pairs = mutual_pairs(rows.left, rows.right, rotation)
    if len(pairs) > 2 * left.rank:
        turned = paired_rotation(rows.left.white[pairs[:, 0]], rows.right.white[pairs[:, 1]])
        again = rows.confirmed(turned)
        if again >= share:
            rotation, share = turned, again
            pairs = mutual_pairs(rows.left, rows.right, rotation)
    return ProposedMap(rotation, rows.numbers(pairs), share, same, tuple(tried))


def _alike(first: FloatArray, second: FloatArray) -> bool:
    """Whether two rotations differ by little: cosines of corresponding directions near 1."""
    return bool(np.mean((first * second).sum(axis=0)) > _SAME)


def _rotations(left: Positions, right: Positions) -> Iterator[tuple[FarRows, str, FloatArray]]:
    for rows in sets_of_far_rows(left, right):
        few = np.arange(rows.count)
        one, other = rows.used
        for name, coupling in signature_starts(rows.left, rows.right, left_rows=few, right_rows=few):
            turned = anneal(one.white, other.white, coupling, steps=TEMPERATURES)
            yield rows, name, settle(one, other, turned).rotation
