"""Does another correspondence fit as well, because the rows come in mirror images?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from keyless.arrays import BoolArray, IntArray, NumpyArray
from keyless.engine.corroboration import BY_ITSELF, corroboration
from keyless.engine.refine import FIRST_ROUNDS, Matching, Refinement, identification
from keyless.maps.canonical import CanonicalModel, CrossFit
from keyless.maps.growth import Growth
from keyless.model.factors import whitened
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import scaled

__all__ = ["LEADING", "MIRRORED", "OUTERMOST", "SOFT_CORRELATION", "mirrored_share", "turns"]

MIRRORED = 0.85
"""A mirror image makes a link uncertain if partners stand out in it at least this much, as a share of the link. Images
in tables that are symmetric by construction reach 0.93 and more."""

LEADING = 8
"""How many leading pairs of directions are turned around one by one."""

OUTERMOST = 250
"""The most rows that are looked at: those farthest from the middle, since the image of a row is as far out as the
row."""

_ROWS_PER_FACTOR = 12
"""Rows for each factor that is used. With half as many, maps of real tables with 40 factors fitted 250 rows so closely
that left-out partners stood out less than a random row, and half-right maps passed for images."""

_STEPS, _SHARPENED = 3, 6
"""Steps in which a turned map settles with correlations held down to `SOFT_CORRELATION`, and rounds that follow without
that limit: only in these do partners of a nearly exact image stand out fully."""

_FOLDS = 4
"""Folds of left rows; each is judged by the map that the others give."""

_MOVED = 0.5
"""Share of rows to which an image gives another partner, above which it is another correspondence."""

_AGREE = 0.5
"""Part of what the directions of the map say about each other. If those of an image say less, they contradict each
other."""

_AS_WELL = 1.25
"""How many times as much, at the most, partners may stand out in an image as in the map: an image fits as well, not
better. An image that fits far better has found partners that suit these few rows and factors alone."""

_MOST_ROWS = 1000
"""The most rows, those farthest out, among which an image is looked at again with all factors."""

SOFT_CORRELATION = 0.99
"""Correlations of a turned map count for no more than this at first: images are not exact."""


def mirrored_share(
    left: NumpyArray, right: NumpyArray, *, allowed: BoolArray | None = None, known: IntArray | None = None
) -> float:
    """Return how well partners stand out in the best mirror image of a correspondence, as a share of its own value.

    A table whose rows come in mirror images fits equally well when a direction is turned around: then nothing in the
    numbers tells which correspondence is the right one. Every leading pair of directions is turned around by itself,
    and all pairs at once. The planes of the first three directions are turned by a sixth to a third of a circle, like a
    wheel with three to six spokes. Images that match most rows as before do not count, nor do those that give a known
    row another partner. An image that would make the link uncertain is refined with all factors. If it comes back to
    the correspondence then, or stands out far less, it was no image.

    Args:
        left: factors of the matched left rows.
        right: those of their partners, in the same order.
        allowed: which pairs of them may be matched; None: all.
        known: rows whose partners are known to be right; None: there are none.
    """
    told = np.empty(0, dtype=np.int64) if known is None else known
    order = np.argsort(-np.sum(left**2, axis=1), kind="stable")
    far, farther = (
        np.concatenate([order[:most], np.setdiff1d(told, order[:most])]) for most in (OUTERMOST, _MOST_ROWS)
    )
    rank = max(1, len(far) // _ROWS_PER_FACTOR)
    one, two = (whitened(side[far, :rank]).astype(np.float32) for side in (left, right))
    rows = Refinement(one, two, limits=Limits((len(far), len(far))), folds=_FOLDS)
    identity = np.eye(len(far), dtype=np.float32)
    fit = rows.fitted(identity, heavy_tails=False)
    model = fit.whole
    if not len(model.correlations):
        return 1.0
    among = None if allowed is None else allowed[np.ix_(far, far)]
    growth = Growth(one, two, allowed=among)
    settled, *images = (_settled(rows, growth, turned, among) for turned in (model, *_turned(model)))
    # How well the correspondence stands out as it was found, or as it settles among these rows, whichever is more: a
    # map that leaves its own correspondence does not measure it.
    found = identification(rows.ratios(fit), identity)
    own = max(found, _stands_out(rows, rows.fitted(settled, heavy_tails=False)))
    if own <= 0:
        return 1.0
    borne_out, fixed = _borne_out(rows, fit), np.isin(far, told)
    best, whole = 0.0, None
    for image in images:
        partners = image.argmax(axis=1)
        moved = partners != np.arange(len(far))
        if moved.mean() <= _MOVED or moved[fixed].any():
            continue
        fit = rows.fitted(image, heavy_tails=False)
        share = _stands_out(rows, fit) / own
        if best < share <= _AS_WELL:
            # The best of many wrong partners stands out as well; but directions of a wrong map contradict each other.
            agreeing = _borne_out(rows, fit) / borne_out
            share = share if agreeing > _AGREE else min(share, agreeing)
            if share >= MIRRORED:
                whole = whole or _AllFactors(left, right, farther, far, allowed)
                share = min(share, whole.share(far[partners], fixed=told))
            best = max(best, share)
    return best


@dataclass(eq=False)
class _AllFactors:
    """A correspondence and its images, refined with all factors.

    Attributes:
        left: factors of the matched left rows.
        right: those of their partners, in the same order.
        rows: the rows that are looked at.
        some: those of `rows` among which images are found.
        allowed: which pairs of rows may be matched; None: all.
    """

    left: NumpyArray
    right: NumpyArray
    rows: IntArray
    some: IntArray
    allowed: BoolArray | None

    def __post_init__(self) -> None:
        one, two = (whitened(side[self.rows]).astype(np.float32) for side in (self.left, self.right))
        allowed = None if self.allowed is None else self.allowed[np.ix_(self.rows, self.rows)]
        self.growth = Growth(one, two, allowed=allowed)
        self.refinement = Refinement(one, two, limits=Limits((len(self.rows), len(self.rows))))
        self.place = np.full(len(self.left), -1)
        self.place[self.rows] = np.arange(len(self.rows))

    @cached_property
    def own(self) -> float:
        """The strength of the correspondence itself, refined from the same rows as images are."""
        return self.refined(self.some).strength

    def refined(self, partners: IntArray) -> Matching:
        """Return what a correspondence of some rows becomes among all that are looked at."""
        pairs = np.zeros((len(self.rows), len(self.rows)), dtype=np.float32)
        pairs[self.place[self.some], self.place[partners]] = 1.0
        begun = self.growth.coupling_of(self.refinement.fitted(pairs).whole)
        return self.refinement.run(self.growth.again(begun, steps=_STEPS), rounds=FIRST_ROUNDS)

    def share(self, partners: IntArray, *, fixed: IntArray) -> float:
        """Return how strong an image is, as a share of the correspondence; 0 if most rows get their partners back.

        Args:
            partners: what the image gives some rows as partners.
            fixed: rows whose partners are known; an image that gives them others does not count.
        """
        image = self.refined(partners)
        moved = image.ratios.argmax(axis=1) != np.arange(len(self.rows))
        if moved.mean() <= _MOVED or moved[self.place[fixed]].any():
            return 0.0
        return image.strength / self.own if self.own > 0 else 1.0


def _settled(rows: Refinement, growth: Growth, model: CanonicalModel, allowed: BoolArray | None) -> NumpyArray:
    """Return the coupling that a model leads to, as sharp as the correlations of coupled rows allow."""
    coupling = growth.again(growth.coupling_of(model), steps=_STEPS)
    for _ in range(_SHARPENED):
        ratios = rows.ratios(rows.fitted(coupling, heavy_tails=False))
        if allowed is not None:
            ratios[~allowed] = -np.inf
        coupling = scaled(ratios, float(min(ratios.shape)), fixed=True)[0]
    return coupling


def _stands_out(rows: Refinement, fit: CrossFit) -> float:
    """Return how well the partners that a map gives stand out, each left row judged by the map that has not seen it."""
    ratios = rows.ratios(fit)
    return identification(ratios, scaled(ratios, float(len(ratios)), fixed=True)[0])


def _borne_out(rows: Refinement, fit: CrossFit) -> float:
    """Return what directions say about each other, in nats; never 0, so that maps of one direction compare as equal."""
    return BY_ITSELF + corroboration(fit, rows.folds.of_rows, float(len(rows.left)), rows.left, rows.right)


def _turned(model: CanonicalModel) -> Iterator[CanonicalModel]:
    """Yield the model under the reflections and rotations that leave symmetric clouds of points as they are."""
    for turn in turns(len(model.correlations)):
        yield CanonicalModel(
            model.left_centre,
            model.right_centre,
            model.left_directions,
            model.right_directions @ turn,
            np.minimum(model.correlations, SOFT_CORRELATION),
        )


def turns(size: int) -> Iterator[NumpyArray]:
    """Yield the reflections and rotations under which clouds of points are most often symmetric.

    Args:
        size: how many pairs of directions there are; leading ones come first.
    """
    yield -np.eye(size)
    for k in range(min(LEADING, size)):
        yield np.diag(np.where(np.arange(size) == k, -1.0, 1.0))
    for plane in combinations(range(min(3, size)), 2):
        for spokes in (3, 4, 5, 6):
            cosine, sine = np.cos(2 * np.pi / spokes), np.sin(2 * np.pi / spokes)
            turn = np.eye(size)
            turn[np.ix_(plane, plane)] = [[cosine, -sine], [sine, cosine]]
            yield turn
