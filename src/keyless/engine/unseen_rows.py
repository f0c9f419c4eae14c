"""What the verdict on a large link rests on: rows that had no part in it, and what chance reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyless.arrays import FloatArray, IntArray
from keyless.maps.by_moments import from_moments
from keyless.maps.components import from_components, independent_directions
from keyless.maps.far_rows import from_far_rows
from keyless.model.positions import Places, Positions
from keyless.model.shards import sampled
from keyless.pairs.matching import Matched
from keyless.pairs.nearest_rows import find_nearest_rows
from keyless.pairs.posterior import largest, pair_places

__all__ = ["Tested", "chance_score", "tested"]


_SAMPLE = 2_000
"""How many rows are searched for their best partner by chance, and how many matched rows tell mirror images."""

_STARTS = 2
"""The most starts on rows far out where there is nothing to find: more starts do not reach higher scores."""


@dataclass(frozen=True, eq=False)
class Tested:
    """How good one table's matches are, told by rows that the model was not fitted to.

    Attributes:
        score: information of the matches of rows that the model was not fitted to, in nats per row that could be
            matched; a match counts for no less than −log n, n being the rows of the smaller table.
        sharpness: share of these matches that are the likeliest partner of both rows.
        share: of the rows that could be matched, the share that is matched.
        latents: latent means of some matched rows, far from the middle, of both sides.
    """

    score: float
    sharpness: float
    share: float
    latents: tuple[FloatArray, FloatArray]


def tested(matched: Matched, places: Places, *, fitted: IntArray) -> Tested:
    """Return how good the matches of rows are that a model was not fitted to.

    Args:
        matched: the matches.
        places: where the rows of both tables stand.
        fitted: left rows that the model may have been fitted to, or whose partners were told.
    """
    ratios, permutation = matched.ratios, matched.permutation
    unseen = np.ones(len(permutation), dtype=bool)
    unseen[fitted] = False
    smaller = min(ratios.shape)
    could = max(float(unseen.sum()) * smaller / len(unseen), 1.0)
    rows = np.flatnonzero(unseen & (permutation >= 0))
    own = np.asarray(ratios[np.arange(len(permutation)), np.maximum(permutation, 0)]).ravel()[rows]
    floored = np.maximum(own, -np.log(max(smaller, 2)))
    mutual = [
        own >= largest(line, ratios.data, size)[chosen]
        for line, size, chosen in zip(pair_places(ratios), ratios.shape, (rows, permutation[rows]), strict=True)
    ]
    sharpness = float(np.mean(mutual)) if len(rows) else 0.0
    pairs = np.flatnonzero(permutation >= 0)
    far = places[0].outermost(_SAMPLE, among=permutation >= 0)
    latents = places[0].rows.take(far), places[1].rows.take(permutation[far])
    return Tested(float(floored.sum() / could), sharpness, len(pairs) / smaller, latents)


def chance_score(
    left: Positions,
    right: Positions,
    *,
    rng: np.random.Generator,
    expired: Callable[[], bool] = lambda: False,
) -> tuple[float, int]:
    """Return the score that the search reaches where there is nothing to find, and the distances looked at.

    The right side's independent components are dealt anew to its rows, each by itself. Their shapes stay, and with them
    all that could lead to a wrong map. The search for a map and for each row's likeliest partner is run again.
    """
    destroyed = right.scattered(independent_directions(right, rng), rng)
    found = from_far_rows(left, destroyed, agreeing=1, most=_STARTS, expired=expired)
    for propose in (from_components, from_moments):
        other = None if expired() else propose(left, destroyed, rng=rng, expired=expired)
        if other is not None and other.confirmed > found.confirmed:
            found = other
    rank = len(found.rotation)
    left, turned = left.padded(rank), destroyed.padded(rank).turned(found.rotation)
    near = find_nearest_rows((left, turned), (sampled(len(left), _SAMPLE, rng), None), seed=int(rng.integers(2**31)))
    # A row whose best partner is no nearer than a stranger would be counts as one without partner.
    return float(np.maximum(near.best, 0.0).mean()), near.evaluations
