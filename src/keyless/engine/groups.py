"""Find the map by groups: the mean factors of each group in one table and in the other are paired data.

No row need be matched for that. Chance is told by exchanged groups: where the rows of a group are offered the rows of
another group, no row meets its partner, and whatever stands out then is chance.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import minimize_scalar

from keyless.arrays import IntArray, NumpyArray
from keyless.engine.side import sums_of_groups
from keyless.maps.canonical import CrossFit, cross_fit
from keyless.maps.folds import Folds
from keyless.model.factors import Factors
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import log_sums, pair_places

__all__ = ["FEWEST_GROUPS", "exchanged", "group_map", "shared_groups", "sharpened_by"]

FEWEST_GROUPS = 30
"""Groups that both tables must have for the map to be found by their means: a map of few factors has as many
numbers."""

_GROUPS_PER_FACTOR = 4
"""Groups that are needed for each factor, counted over both tables; with fewer groups, fewer factors are used."""

_WEAKEST, _STRONGEST = 0.5, 2.0
"""The smallest and the largest number by which log-likelihood ratios are multiplied, as exchanged groups ask for.
Beyond these, one number for all pairs is not enough."""

_FOLDS = 8
"""Folds of groups; each shows what the map that the others give is worth."""


def shared_groups(limits: Limits) -> IntArray:
    """Return the labels of the groups that both tables have, in rising order; none where there are no groups."""
    if limits.groups is None:
        return np.empty(0, dtype=np.int64)
    both = np.intersect1d(*limits.groups)
    return np.asarray(both[both >= 0], dtype=np.int64)


def group_map(left: Factors, right: Factors, limits: Limits) -> CrossFit:
    """Return the map that the mean factors of groups give.

    Each mean is multiplied by the root of the number of its rows, which gives all means the same noise.

    Args:
        left: factors of the left table.
        right: factors of the right table.
        limits: with groups that both tables have.
    """
    if limits.groups is None:
        raise ValueError("limits: must have groups.")
    shared = shared_groups(limits)
    most = max(2, len(shared) // (2 * _GROUPS_PER_FACTOR))
    means = [
        _means(side.scores[:, :most], labels, shared) for side, labels in zip((left, right), limits.groups, strict=True)
    ]
    folds = Folds.along(means[0][:, 0], _FOLDS)
    return cross_fit(means[0], means[1], sparse.eye_array(len(shared), format="csr"), folds)


def exchanged(limits: Limits) -> Limits:
    """Return limits under which the rows of every left group meet those of another right group of about its size."""
    if limits.groups is None:
        raise ValueError("limits: must have groups.")
    shared = shared_groups(limits)
    sizes = [
        np.bincount(np.searchsorted(shared, labels[np.isin(labels, shared)]), minlength=len(shared))
        for labels in limits.groups
    ]
    order = np.lexsort((shared, *sizes))
    partner = dict(zip(shared[order].tolist(), shared[np.roll(order, 1)].tolist(), strict=True))
    nobody = int(max(labels.max() for labels in limits.groups)) + 1
    left, right = limits.groups
    found, place = np.unique(left, return_inverse=True)
    moved = np.array([partner.get(label, nobody) for label in found.tolist()], dtype=np.int64)[place]
    return Limits(limits.shape, (moved, right))


def sharpened_by(own: sparse.csr_array, other: sparse.csr_array, alone: NumpyArray) -> float:
    """Return the number that log-likelihood ratios must be multiplied by to be as sure as they should be.

    Every left row is offered the rows of its own group and those of another. Its partner is in its own group, or it has
    none. The number is the one under which that is likeliest: where ratios are too high, rows of the other group are
    taken for the partner too surely and too often.

    Args:
        own: log-likelihood ratios of pairs of the same group.
        other: log-likelihood ratios of left rows with the rows of another group.
        alone: per left row, the log-odds of having no partner against one given row of its group being its partner.
    """
    counts = [np.diff(ratios.indptr) for ratios in (own, other)]
    both = (counts[0] > 0) & (counts[1] > 0)
    if not both.any():
        return 1.0

    def surprise(log_factor: float) -> float:
        mine, theirs = (
            log_sums(pair_places(ratios)[0], np.exp(log_factor) * ratios.data, ratios.shape[0])[both]
            for ratios in (own, other)
        )
        mine = np.logaddexp(mine, alone[both])
        return float(np.mean(np.logaddexp(mine, theirs) - mine))

    bounds = float(np.log(_WEAKEST)), float(np.log(_STRONGEST))
    return float(np.exp(minimize_scalar(surprise, bounds=bounds, method="bounded").x))


def _means(scores: NumpyArray, labels: IntArray, shared: IntArray) -> NumpyArray:
    """Return the sum of each group's rows, divided by the root of their number."""
    rows = np.flatnonzero(np.isin(labels, shared))
    place = np.searchsorted(shared, labels[rows])
    count = np.bincount(place, minlength=len(shared))
    return sums_of_groups(scores[rows], place, len(shared)) / np.sqrt(count)[:, None]
