"""The rotation between two clouds of rows, from the few rows that are easiest to tell apart.

Rows far out in one table are far out in the other, and there are few of them. A first correspondence of the farthest
gives a rotation; those next to them, which had no part in it, tell whether it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from keyless.alignment.latents import Latents, anneal, kicked, paired_rotation, settle, signature_starts
from keyless.arrays import FloatArray, IntArray
from keyless.landmarks.clouds import Cloud
from keyless.landmarks.metric import Metric
from keyless.progress import check_time

__all__ = ["VERIFIED", "LandmarkMap", "LandmarkSet", "confirmed", "find_map", "first_landmarks", "mutual_pairs"]


_LANDMARKS = 500
"""Rows of each table that are annealed."""

_HELD_OUT = 2_000
"""Rows of each table, next to the landmarks, that a rotation is verified on."""

VERIFIED = 0.25
"""Share of held-out rows that must find each other for the search to end; of few latents chance reaches 0.16."""

_PAIRS = 25_000_000
_MOST_UNEQUAL = 50.0
"""Of a table so many times larger, at the most, as many times more rows are compared, and fewer of both: so many
pairs."""

_SHARED = 0.5
"""Precision, beside the prior's 1, that both sides together must have of a direction for it to count as shared."""

_PROMISING = 0.02
"""Share of held-out rows that must find each other for it to be worth going on."""


@dataclass(frozen=True, eq=False)
class LandmarkSet:
    """Rows of two clouds among which partners are likely.

    Attributes:
        name: of the choice.
        left: the landmarks' latents, then those held out.
        right: likewise.
        left_rows: their row numbers.
        right_rows: likewise.
        count: how many of each are landmarks.
    """

    name: str
    left: Latents
    right: Latents
    left_rows: IntArray
    right_rows: IntArray
    count: int

    @classmethod
    def of(cls, name: str, left: Cloud, right: Cloud, rows: tuple[IntArray, IntArray], count: int) -> LandmarkSet:
        """Return the latents of chosen rows."""
        return cls(name, left.latents(rows[0]), right.latents(rows[1]), *rows, count)

    @property
    def landmarks(self) -> tuple[Latents, Latents]:
        """Those a rotation is sought with."""
        few = np.arange(self.count)
        return self.left[few], self.right[few]

    def verified(self, rotation: FloatArray) -> float:
        """Return the share of held-out rows that find each other under a rotation, and are not there by chance."""
        left, right = (np.arange(self.count, len(side)) for side in (self.left, self.right))
        if not len(left) or not len(right):
            return 0.0
        return len(mutual_pairs(self.left[left], self.right[right], rotation)) / min(len(left), len(right))


@dataclass(frozen=True, eq=False)
class LandmarkMap:
    """A rotation, how it was found and how far it can be trusted.

    Attributes:
        rotation: turns the right cloud onto the left one: `right @ rotation ≈ left`.
        pairs: rows that found each other, k × 2.
        verified: share of held-out rows that found each other.
        agreeing: how many starts led to it.
        tried: records of landmark set, start and verified share, in order.
        needed: the share that must be verified for it to be convincing.
    """

    rotation: FloatArray
    pairs: IntArray
    verified: float
    agreeing: int
    tried: tuple[tuple[str, str, float], ...]
    needed: float = VERIFIED

    @property
    def found(self) -> bool:
        """Whether enough held-out rows found each other."""
        return self.verified >= self.needed

    @property
    def promising(self) -> bool:
        """Whether so many did that a model of those that are sure may find the others."""
        return self.found or (self.verified >= _PROMISING and len(self.pairs) > 2 * len(self.rotation))


def mutual_pairs(left: Latents, right: Latents, rotation: FloatArray) -> IntArray:
    """Return rows, k × 2, that are each other's likeliest partner, and likelier than the best of all wrong ones.

    Of k × k wrong pairs the best has a log-likelihood ratio of about 2 log k; 20·k times odds leave one in twenty.
    Precisions must be the same for all rows of a side.
    """
    check_time()
    metric = Metric.between(left.info.precision[0], rotation.T @ right.info.precision[0] @ rotation)
    queries, points = metric.queries(left.means), metric.points(right.means @ rotation)
    ratios = queries @ points.T
    ratios -= 0.5 * (points**2).sum(axis=1)
    ratios += (metric.offsets(left.means) - 0.5 * (queries.astype(np.float64) ** 2).sum(axis=1))[:, None]
    forth, back = ratios.argmax(axis=1), ratios.argmax(axis=0)
    rows = np.flatnonzero(back[forth] == np.arange(len(forth)))
    rows = rows[ratios[rows, forth[rows]] > np.log(20 * max(ratios.shape))]
    return np.stack([rows, forth[rows]], axis=1)


def find_map(
    left: Cloud,
    right: Cloud,
    *,
    known: IntArray | None = None,
    agreeing: int = 3,
    most: int | None = None,
    expired: Callable[[], bool] = lambda: False,
) -> LandmarkMap:
    """Find the rotation of the right cloud onto the left one.

    Landmark sets and signatures are tried in turn, quickly at first, until one is verified and `agreeing` starts say
    the same; where none is, local optima are kicked too.

    Args:
        left: one cloud.
        right: the other, of as many latents.
        known: k × 2 rows that are sure to be partners.
        agreeing: how many starts must agree, as long as any are left.
        most: starts to try at the most; None: all, slow ones too where quick ones fail.
        expired: tells whether time is up.
    """
    tried: list[tuple[str, str, float]] = []
    best: tuple[float, FloatArray, LandmarkSet] | None = None
    same = 0
    for landmarks, start, rotation in islice(_rotations(left, right, known), most):
        share = landmarks.verified(rotation)
        tried.append((landmarks.name, start, share))
        if best is None or share > best[0] * 1.02:
            same = same if best is not None and _alike(rotation, best[1]) else 0
            best = (share, rotation, landmarks)
        same += share >= VERIFIED and _alike(rotation, best[1])
        if same >= agreeing or (start == "known pairs" and share >= VERIFIED) or expired():
            break
        if same and start.endswith("slow"):
            # Quick starts are over: what is verified is not waited for any longer.
            break
    if best is None:
        raise RuntimeError("no landmark set has any rows")
    share, rotation, landmarks = best
    pairs = mutual_pairs(landmarks.left, landmarks.right, rotation)
    if len(pairs) > 2 * left.rank:
        first, second = landmarks.left.white[pairs[:, 0]], landmarks.right.white[pairs[:, 1]]
        turned = paired_rotation(first, second)
        again = landmarks.verified(turned)
        if again >= share:
            rotation, share = turned, again
            pairs = mutual_pairs(landmarks.left, landmarks.right, rotation)
    rows = np.stack([landmarks.left_rows[pairs[:, 0]], landmarks.right_rows[pairs[:, 1]]], axis=1)
    return LandmarkMap(rotation, rows, share, same, tuple(tried))


def confirmed(left: Cloud, right: Cloud) -> float:
    """Return the share of rows next to the landmarks that find each other between clouds of the same latents.

    Who is far out is judged by what both sides know of: along the others partners are no farther out than anybody.
    """
    sum_of_both = np.linalg.pinv(left.precision + right.precision, hermitian=True)
    values, vectors = np.linalg.eigh(left.precision @ sum_of_both @ right.precision)
    shared = vectors[:, values > _SHARED]
    if not shared.shape[1]:
        return 0.0
    return first_landmarks(left.marginal(shared), right.marginal(shared)).verified(np.eye(shared.shape[1]))


def first_landmarks(left: Cloud, right: Cloud) -> LandmarkSet:
    """Return the outermost rows of both, and those next to them."""
    return next(_landmark_sets(left, right))


def _alike(first: FloatArray, second: FloatArray) -> bool:
    """Whether two rotations differ by little: cosines of corresponding directions near 1."""
    return bool(np.mean((first * second).sum(axis=0)) > 0.9)


def _landmark_sets(left: Cloud, right: Cloud) -> Iterator[LandmarkSet]:
    """Yield sets, the likeliest to serve first.

    Rows that are far out in one table only, such as those with errors, spoil the first set but not those further in.
    """
    smaller = min(len(left), len(right))
    # The larger table has more rows as far out.
    larger = [min(max(1.0, len(cloud) / smaller), _MOST_UNEQUAL) for cloud in (left, right)]
    most = int(np.sqrt(_PAIRS / max(larger)))
    for name, skip in (("outermost", 0), ("further in", _LANDMARKS), ("further in still", 4 * _LANDMARKS)):
        size = min(smaller - skip, _LANDMARKS + _HELD_OUT, most)
        count = min(_LANDMARKS, max(size // 3, 1))
        if skip and smaller - skip < 3 * (_LANDMARKS // 2):
            return
        rows = [
            cloud.outermost(round(size * times), skip=round(skip * times))
            for cloud, times in zip((left, right), larger, strict=True)
        ]
        yield LandmarkSet.of(name, left, right, (rows[0], rows[1]), count)


def _rotations(left: Cloud, right: Cloud, known: IntArray | None) -> Iterator[tuple[LandmarkSet, str, FloatArray]]:
    sets = list(_landmark_sets(left, right))
    if known is not None and len(known) > left.rank:
        first, second = left.latents(known[:, 0]).white, right.latents(known[:, 1]).white
        yield sets[0], "known pairs", paired_rotation(first, second)
    for landmarks in sets:
        for name, coupling in _starts(landmarks):
            yield landmarks, name, _annealed(landmarks, coupling, steps=10)
    # Slowly, and next to the best optimum of those, on the first set only: telling that there is nothing takes as long.
    landmarks, pool = sets[0], []
    for name, coupling in _starts(landmarks):
        rotation = _annealed(landmarks, coupling, steps=60)
        yield landmarks, f"{name}, slow", rotation
        pool.append(settle(*landmarks.landmarks, rotation, start=name, temperatures=(1.0,)))
    optimum = max(pool, key=lambda found: found.score)
    for rotation in kicked(*landmarks.landmarks, optimum):
        yield landmarks, f"{optimum.start} kicked, slow", _after_kick(landmarks, rotation)


def _starts(landmarks: LandmarkSet) -> Iterator[tuple[str, FloatArray]]:
    few = np.arange(landmarks.count)
    return signature_starts(landmarks.left, landmarks.right, left_rows=few, right_rows=few)


def _annealed(landmarks: LandmarkSet, coupling: FloatArray, *, steps: int) -> FloatArray:
    left, right = landmarks.landmarks
    return settle(left, right, anneal(left.white, right.white, coupling, steps=steps)).rotation


def _after_kick(landmarks: LandmarkSet, rotation: FloatArray) -> FloatArray:
    left, right = landmarks.landmarks
    found = settle(left, right, rotation, temperatures=(2.0, 1.0))
    return anneal(left.white, right.white, found.coupling, warmest=3.0, steps=30, damped=False)
