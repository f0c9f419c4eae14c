"""Do the directions of a map confirm each other? Along each direction, partners are compared that all others chose.

Where the same directions choose a partner and judge it, the best of many wrong partners stands out, too. Along a
direction that had no part in the choice, wrong partners are not correlated, except as far as the map was fitted to
them.
"""

from __future__ import annotations

import numpy as np

from keyless.arrays import IntArray, NumpyArray
from keyless.maps.canonical import CrossFit, information
from keyless.pairs.posterior import scaled

__all__ = ["BY_ITSELF", "corroboration"]

BY_ITSELF = 0.1
"""Nats per pair that are added to what directions say before it is compared: any hundred rows show less than this."""

_FARTHEST = 3.0
"""Standard deviations from the mean: a row that is farther out along a direction counts as this far out."""

_MOST = 0.99
"""The highest correlation that a direction is counted with: one column that is nearly the same in all rows reaches
it."""


def corroboration(fit: CrossFit, folds: IntArray, common: float, left: NumpyArray, right: NumpyArray) -> float:
    """Return what each direction says about partners that the other directions chose, in nats per pair.

    The result is −½ Σ log(1 − r²), summed over directions; r is the correlation along one direction, of rows that were
    matched without that direction. Every left row is judged by a map that has not seen it.

    Args:
        fit: the map.
        folds: the fold of each left row.
        common: how many pairs there are.
        left: whitened factors of the left rows that were matched.
        right: likewise of the right rows.
    """
    models = fit.models
    count = max(int((model.correlations > 0).sum()) for model in models)
    correlations = np.zeros((len(models), count))
    own, others = np.zeros((len(left), count)), np.zeros((len(models), len(right), count))
    for fold, model in enumerate(models):
        strongest = np.argsort(-model.correlations, kind="stable")[:count]
        correlations[fold] = model.correlations[strongest]
        own[folds == fold] = model.left(left[folds == fold])[:, strongest]
        others[fold] = model.right(right)[:, strongest]
    told = [_told(own[:, k], others[folds, :, k], correlations[folds, k]) for k in range(count)]
    whole = sum(told, np.zeros((len(left), len(right)), dtype=np.float32))
    shown = [
        _correlation(scaled(whole - without, common)[0], own[:, k], others[folds, :, k])
        for k, without in enumerate(told)
    ]
    return information(np.clip(shown, 0.0, _MOST))


def _told(own: NumpyArray, others: NumpyArray, correlations: NumpyArray) -> NumpyArray:
    """Return the log-likelihood ratios of all pairs along one direction.

    Args:
        own: the place of each left row along the direction.
        others: left × right rows, the place of each right row by the map that judges the left row.
        correlations: per left row, the correlation of partners by that map.
    """
    rho, x = correlations[:, None], own[:, None]
    ratios = (2 * rho * x * others - rho**2 * (x**2 + others**2)) / (2 * (1 - rho**2)) - 0.5 * np.log1p(-(rho**2))
    return np.asarray(ratios, dtype=np.float32)


def _correlation(coupling: NumpyArray, own: NumpyArray, others: NumpyArray) -> float:
    """Return the correlation of coupled rows along one direction; see `_told`."""
    weights, x, y = coupling.sum(axis=1), np.clip(own, -_FARTHEST, _FARTHEST), np.clip(others, -_FARTHEST, _FARTHEST)
    weight = max(float(weights.sum()), 1e-12)
    means = float(weights @ x) / weight, float((coupling * y).sum()) / weight
    variances = float(weights @ x**2) / weight - means[0] ** 2, float((coupling * y**2).sum()) / weight - means[1] ** 2
    together = float(x @ (coupling * y).sum(axis=1)) / weight - means[0] * means[1]
    return together / max(float(np.sqrt(variances[0] * variances[1])), 1e-12)
