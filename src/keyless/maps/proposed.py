"""A proposed map between two tables of many rows, and how far rows that had no part in it confirm it.

The map is a rotation of the right rows' latents onto the left rows' latents. Rows far out in one table are far out in
the other, and there are few of them. A map is sought with the farthest rows. The rows next to them are held out: under
the right map many of them find each other, under a wrong one hardly any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keyless.arrays import FloatArray, IntArray
from keyless.model.latents import Latents
from keyless.model.positions import Positions
from keyless.pairs.metric import Metric
from keyless.progress import check_time

__all__ = ["CONFIRMED", "FarRows", "ProposedMap", "confirmed_share", "mutual_pairs", "sets_of_far_rows"]


_USED = 500
"""Most rows of each table that a map is sought with."""

_HELD_OUT = 2_000
"""Most rows of each table, the next ones after those, by which a map is confirmed."""

CONFIRMED = 0.25
"""Share of held-out rows that must find each other for the search to end. If latents are few, chance reaches 0.16."""

_PROMISING = 0.02
"""Share of held-out rows that must find each other for a refined map to be worth its time."""

_PAIRS = 25_000_000
"""Most pairs of rows that are compared: where one table is much larger, fewer rows of both are taken."""

_MOST_UNEQUAL = 50.0
"""Of a larger table more rows are compared, in proportion to its size up to this ratio."""

_SHARED = 0.5
"""A direction counts as shared if its precision in both tables together is above this; the prior's precision is 1. Of
tables with the precisions A and B it is (A⁻¹ + B⁻¹)⁻¹: small if either table knows little."""

_SURER_THAN_CHANCE = 20
"""Among k × k rows a pair must have odds above this many times k: the best of k wrong partners has such odds for one
row in twenty. The best of all k × k wrong pairs has a log-likelihood ratio of about 2 log k."""


@dataclass(frozen=True, eq=False)
class ProposedMap:
    """A rotation, how it was found and how far it can be trusted.

    Attributes:
        rotation: turns the right latents onto the left ones: `right @ rotation ≈ left`.
        pairs: rows that found each other, k × 2.
        confirmed: share of held-out rows that found each other.
        agreement: how many starts led to it.
        tried: records of proposer, start and confirmed share, in order.
        needed: the share that must be confirmed for the map to convince.
    """

    rotation: FloatArray
    pairs: IntArray
    confirmed: float
    agreement: int
    tried: tuple[tuple[str, str, float], ...]
    needed: float = CONFIRMED

    @property
    def convincing(self) -> bool:
        """Whether enough held-out rows found each other."""
        return self.confirmed >= self.needed

    @property
    def promising(self) -> bool:
        """Whether enough held-out rows found each other for a model of the sure pairs to find the others."""
        return self.convincing or (self.confirmed >= _PROMISING and len(self.pairs) > 2 * len(self.rotation))


@dataclass(frozen=True, eq=False)
class FarRows:
    """Rows of two tables that are far out, among which partners are likely.

    Attributes:
        name: what the set is called.
        left: latents of the left rows that a map is sought with, then of those held out.
        right: likewise of the right rows.
        left_rows: row numbers of the left rows.
        right_rows: likewise of the right rows.
        count: with how many rows of each table a map is sought.
    """

    name: str
    left: Latents
    right: Latents
    left_rows: IntArray
    right_rows: IntArray
    count: int

    @property
    def used(self) -> tuple[Latents, Latents]:
        """The rows that a map is sought with."""
        few = np.arange(self.count)
        return self.left[few], self.right[few]

    def confirmed(self, rotation: FloatArray) -> float:
        """Return the share of held-out rows that find each other under a rotation, more surely than by chance."""
        left, right = (np.arange(self.count, len(side)) for side in (self.left, self.right))
        if not len(left) or not len(right):
            return 0.0
        return len(mutual_pairs(self.left[left], self.right[right], rotation)) / min(len(left), len(right))

    def numbers(self, pairs: IntArray) -> IntArray:
        """Return pairs of places among these rows as pairs of row numbers."""
        return np.stack([self.left_rows[pairs[:, 0]], self.right_rows[pairs[:, 1]]], axis=1)


def sets_of_far_rows(left: Positions, right: Positions) -> Iterator[FarRows]:
    """Yield the rows farthest out, then those further in.

    Rows that are far out in one table only, such as those with errors, spoil the first set but not the others.
    """
    smaller = min(len(left), len(right))
    # The larger table has more rows that are equally far out.
    larger = [min(max(1.0, len(positions) / smaller), _MOST_UNEQUAL) for positions in (left, right)]
    most = int(np.sqrt(_PAIRS / max(larger)))
    for name, skip in (("farthest rows", 0), ("rows further in", _USED), ("rows still further in", 4 * _USED)):
        size = min(smaller - skip, _USED + _HELD_OUT, most)
        if skip and smaller - skip < 3 * (_USED // 2):
            return
        rows = [
            positions.outermost(round(size * times), skip=round(skip * times))
            for positions, times in zip((left, right), larger, strict=True)
        ]
        count = min(_USED, max(size // 3, 1))
        yield FarRows(name, left.latents(rows[0]), right.latents(rows[1]), rows[0], rows[1], count)


def mutual_pairs(left: Latents, right: Latents, rotation: FloatArray) -> IntArray:
    """Return pairs of rows, k × 2, that are each other's likeliest partners, and likelier than chance explains.

    Precisions must be the same for all rows of a table.
    """
    check_time()
    metric = Metric.between(left.info.precision[0], rotation.T @ right.info.precision[0] @ rotation)
    queries, points = metric.queries(left.means), metric.points(right.means @ rotation)
    ratios = queries @ points.T
    ratios -= 0.5 * (points**2).sum(axis=1)
    ratios += (metric.offsets(left.means) - 0.5 * (queries.astype(np.float64) ** 2).sum(axis=1))[:, None]
    forth, back = ratios.argmax(axis=1), ratios.argmax(axis=0)
    rows = np.flatnonzero(back[forth] == np.arange(len(forth)))
    rows = rows[ratios[rows, forth[rows]] > np.log(_SURER_THAN_CHANCE * max(ratios.shape))]
    return np.stack([rows, forth[rows]], axis=1)


def confirmed_share(left: Positions, right: Positions) -> float:
    """Return the share of held-out rows that find each other, given tables that are about the same latents already.

    How far out rows are is judged by directions that both tables know of. A row far out along any other direction need
    not have a partner that is.
    """
    sum_of_both = np.linalg.pinv(left.precision + right.precision, hermitian=True)
    values, vectors = np.linalg.eigh(left.precision @ sum_of_both @ right.precision)
    shared = vectors[:, values > _SHARED]
    if not shared.shape[1]:
        return 0.0
    rows = next(sets_of_far_rows(left.marginal(shared), right.marginal(shared)))
    return rows.confirmed(np.eye(shared.shape[1]))
