"""Find rows of one table that differ by noise only, and make their log-likelihood ratios equal.

Samples that were measured several times differ by noise, and so do people who gave the same answers. The noise of one
table says nothing about that of the other. A map cannot know that: it takes every difference of two rows for one that
their partners show as well, and is far too sure which of them belongs to which.
"""

from __future__ import annotations

import numpy as np

from keyless.arrays import NumpyArray
from keyless.engine.forms import Form
from keyless.engine.matches import every_row_matched
from keyless.maps.canonical import CanonicalModel
from keyless.pairs.limits import Limits
from keyless.sizes import TELLING_ROWS

__all__ = ["averaged_over_replicates", "differences_are_shared", "replicate_weights"]

_MOST_ROWS = 3_000
"""The most rows of a table in which replicates are sought: all pairs of its rows are compared, which takes 72 MB."""

_WIDER = 4.0
"""Rows count as a crowd within this many times the variance of the noise. Rows of a crowd are near each other without
being replicates; of replicates there are many at the distance of noise, and few at twice that distance."""

_CLEAR = 0.5
"""Probability above which two rows count as replicates, and the part of all expected replicates that must be so clear.

This part was 0.6 to 0.9 in tables of replicates and of answers in classes, 0.2 to 0.4 in some real tables with crowds.
Other tables with crowds pass: of digits and molecules only the partners show that the differences are no noise."""

_FIRST, _STEPS, _SETTLED = 0.5, 200, 1e-4
"""First guess of how many replicates a row has, the most steps in which this number is estimated, and the change of it
below which the steps end."""

_LARGEST_EXPONENT = 60.0
"""Nats beyond which it does not matter how much likelier it is that two rows are replicates."""


def averaged_over_replicates(form: Form, *, limits: Limits) -> NumpyArray:
    """Return the log-likelihood ratios of a form, those of replicates replaced by their mean.

    All ratios stay as they are unless both tables have replicates; for rows that only one table repeats see
    `keyless.engine.repeats`. Ratios of predictions always stay as they are.

    Args:
        form: factors, map and ratios of all pairs.
        limits: which pairs may be matched; rows of known pairs are left as they are.
    """
    ratios: NumpyArray = form.matching.ratios
    model = form.matching.fit.whole
    # Predictions tell rows apart that the map has at one place.
    by_map = len(model.correlations) > 0 and not form.matching.predicted
    if not by_map or max(ratios.shape) > _MOST_ROWS or min(ratios.shape) < TELLING_ROWS:
        return ratios
    places = model.left(form.left.compact), model.right(form.right.compact)
    left, right = (replicate_weights(side, model.correlations, model.tail) for side in places)
    if left is None or right is None:
        return ratios
    partners = every_row_matched(ratios)
    rows = np.flatnonzero(partners >= 0)
    both = places[0][rows], places[1][partners[rows]]
    for weights, (own, others), index in ((left, both, rows), (right, both[::-1], partners[rows])):
        if differences_are_shared(own, others, weights[np.ix_(index, index)], model.correlations):
            return ratios
    for side, known in zip((left, right), limits.known.T, strict=True):
        side[known] = np.eye(len(side))[known]
    possible = np.isfinite(ratios)
    # Pairs that must not be matched are left out of all means.
    share = left @ possible @ right.T
    mean = left @ np.where(possible, ratios, 0.0) @ right.T / np.maximum(share, np.finfo(np.float64).tiny)
    return np.asarray(np.where(possible, mean, ratios), dtype=ratios.dtype)


def differences_are_shared(
    places: NumpyArray, partners: NumpyArray, weights: NumpyArray, correlations: NumpyArray
) -> bool:
    """Tell whether partners of rows that may be replicates differ as these rows do, rather than by noise of their own.

    Matching picks partners that differ alike, so that noise seems to be shared, too. Therefore partners are drawn in
    both ways, about each row and about the mean of its replicates, and are matched anew. The differences are shared if
    what is found is nearer to partners drawn about each row; also if no two replicates are matched, since nothing
    speaks against it then.

    Args:
        places: where matched rows are along the directions of a map.
        partners: where their partners are, row by row.
        weights: rows × rows, the weights of the mean of each row and its replicates.
        correlations: of partners.
    """
    if not np.triu(weights, 1).any():
        return True
    rng = np.random.default_rng(0)
    mean = weights @ places / weights.sum(axis=1, keepdims=True)
    noise = rng.normal(size=places.shape)
    about_rows = correlations * places + np.sqrt(1 - correlations**2) * noise
    about_means = mean + np.sqrt(1 - correlations) * noise
    model = _between_places(correlations)
    shared = []
    for drawn in (about_rows, about_means):
        found = every_row_matched(model.log_ratios(places, drawn))
        shared.append(_shared_part(places, drawn[found], weights, correlations))
    actual = _shared_part(places, partners, weights, correlations)
    return abs(actual - shared[0]) <= abs(actual - shared[1])


def _shared_part(places: NumpyArray, partners: NumpyArray, weights: NumpyArray, correlations: NumpyArray) -> float:
    """Return the slope of the differences of partners on those of rows: the median over all rows and replicates.

    A mean would be decided by a few rows far out.
    """
    rows, others = np.nonzero(np.triu(weights, 1))
    own, theirs = places[rows] - places[others], partners[rows] - partners[others]
    weight = 1.0 / (1.0 - correlations)
    return float(np.median(own * theirs @ weight / np.maximum(own**2 @ weight, np.finfo(np.float64).tiny)))


def replicate_weights(places: NumpyArray, correlations: NumpyArray, tail: float) -> NumpyArray | None:
    """Return the weights of the mean that takes the place of each row: equal ones for it and its replicates.

    Two replicates are as far apart as noise puts them, like partners. If both tables have the same noise, replicates
    are correlated as partners are. Two other rows are as near by chance as is likely in a normal distribution, or in
    the crowd about them. The number of replicates is estimated together with which rows they are.

    Args:
        places: where the rows of a table are along the directions of a map, with unit variance.
        correlations: of partners along these directions.
        tail: degrees of freedom of the rows' distribution.

    Returns:
        rows × rows, each summing to 1; None where replicates are not clear.
    """
    rows = len(places)
    if rows < 2:
        return None
    wider = 1.0 - _WIDER * (1.0 - correlations)
    crowd = np.exp(_compared(places[:, wider > 0], wider[wider > 0], tail)).sum(axis=1) / (rows - 1)
    allowance = 0.5 * np.log(0.5 + 0.5 * crowd)
    likelier = np.exp(_compared(places, correlations, tail) - allowance[:, None] - allowance[None, :])
    number = _FIRST
    for _ in range(_STEPS):
        prior = number / rows
        same = prior * likelier / (1.0 - prior + prior * likelier)
        before, number = number, float(same.sum()) / rows
        if abs(number - before) < _SETTLED:
            break
    clear = np.where(same > _CLEAR, same, 0.0)
    if not clear.any() or clear.sum() < _CLEAR * same.sum():
        return None
    weights = clear + np.eye(rows)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _compared(places: NumpyArray, correlations: NumpyArray, tail: float) -> NumpyArray:
    """Return how much likelier two rows are to be measurements of one thing than of two; −∞ for a row with itself.

    In nats, rows × rows.
    """
    ratios = np.minimum(
        _between_places(correlations, tail).log_ratios(places, places).astype(np.float64), _LARGEST_EXPONENT
    )
    np.fill_diagonal(ratios, -np.inf)
    return np.asarray(ratios)


def _between_places(correlations: NumpyArray, tail: float = np.inf) -> CanonicalModel:
    """Return the map between rows that are given by their places."""
    size = len(correlations)
    return CanonicalModel(np.zeros(size), np.zeros(size), np.eye(size), np.eye(size), correlations, tail)
