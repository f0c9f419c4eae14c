"""Let a map grow from a few known pairs of rows: these are certain, and the surest other pairs join them step by step.

A coupling of all rows would drown the known pairs: three of them among a hundred coupled rows say next to nothing.
"""

from __future__ import annotations

import numpy as np

from keyless.arrays import IntArray, NumpyArray
from keyless.maps.canonical import CanonicalModel
from keyless.maps.growth import Growth

__all__ = ["grown_from"]

_STEPS = 15
"""Steps in which the number of pairs that the map is fitted to rises to all rows, by the same factor in each step."""

_LEVEL = 2
"""Further steps at the end, with all rows."""

_MOST = 0.9
"""Correlations count for no more than this: a direction of few pairs is known roughly."""


def grown_from(growth: Growth, known: IntArray, rank: int) -> NumpyArray:
    """Return the coupling that a map of the leading factors grows to from known pairs.

    Args:
        growth: the rows of both tables.
        known: k × 2 rows that are one entity.
        rank: how many of the leading factors are used.
    """
    left, right = (side[:, :rank].astype(np.float64) for side in (growth.left, growth.right))
    told = np.zeros((len(left), len(right)))
    told[known[:, 0], known[:, 1]] = 1.0
    rows = min(len(left), len(right))
    weights, coupling = told, told
    for count in [*np.geomspace(len(known), rows, _STEPS), *[rows] * _LEVEL]:
        coupling = growth.coupling_of(_model(left, right, weights))
        sure = coupling.max(axis=1)
        sure[known[:, 0]] = np.inf
        weights = told.copy()
        chosen = np.setdiff1d(np.argsort(-sure, kind="stable")[: round(count)], known[:, 0])
        weights[chosen] = coupling[chosen]
    return coupling


def _model(left: NumpyArray, right: NumpyArray, weights: NumpyArray) -> CanonicalModel:
    """Return the map of weighted pairs; along directions that they say little about, correlations shrink towards 0.

    The ridge suits factors of which half the variance is common: it adds the number of factors to sums over pairs.
    """
    forth = _inverse_root((left * weights.sum(axis=1)[:, None]).T @ left, left.shape[1])
    back = _inverse_root((right * weights.sum(axis=0)[:, None]).T @ right, right.shape[1])
    turned, rho, turned_back = np.linalg.svd(forth @ (left.T @ weights @ right) @ back, full_matrices=False)
    centres = np.zeros(left.shape[1]), np.zeros(right.shape[1])
    return CanonicalModel(*centres, turned, turned_back.T, np.clip(rho, 1e-3, _MOST))


def _inverse_root(sums: NumpyArray, ridge: float) -> NumpyArray:
    """Return (sums + ridge)^(−1/2)."""
    sizes, directions = np.linalg.eigh(sums + ridge * np.eye(len(sums)))
    return np.asarray(directions / np.sqrt(sizes) @ directions.T)
