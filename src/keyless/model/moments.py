"""Factor models from sums over rows: a table without gaps is fitted in time that does not grow with its rows.

All that variational EM needs to know of the rows is their number, their sum and the sum of their outer products. Such
sums of parts of a table add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.arrays import BoolArray, FloatArray
from keyless.model.factor_model import (
    ColumnStatistics,
    FactorModel,
    advanced,
    evidence,
    fit,
    fit_steps,
    fit_table,
    model_from_directions,
)

__all__ = ["Moments", "fit_moments", "fit_rows"]


_SPARE = 5
"""Factors to begin with beyond those that stand out of the noise: weak factors may not stand out."""

_FEW_ROWS = 2_000
"""In a table with gaps the rank is found with the first so many rows; the model is then fitted to all rows."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over rows; those of parts of a table add up.

    Attributes:
        count: columns × columns, rows in which both columns are observed.
        total: columns × columns, Σ value_k over the rows in which column l is observed too.
        products: columns × columns, Σ value_k·value_l.
    """

    count: FloatArray
    total: FloatArray
    products: FloatArray

    @classmethod
    def of(cls, values: Any, mask: BoolArray) -> Moments:
        """Return the sums over some rows.

        Args:
            values: standard scores, 0 where missing.
            mask: True where observed.
        """
        values = np.asarray(values, dtype=np.float64)
        if mask.all():
            width = values.shape[1]
            total = np.repeat(values.sum(axis=0)[:, None], width, axis=1)
            return cls(np.full((width, width), float(len(values))), total, values.T @ values)
        seen = mask.astype(np.float64)
        return cls(seen.T @ seen, values.T @ seen, values.T @ values)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.products + other.products)

    @property
    def rows(self) -> float:
        """Rows of a table without gaps; with gaps, the most in which any column is observed."""
        return float(self.count.max(initial=0.0))

    @property
    def mean(self) -> FloatArray:
        """Mean of each column."""
        return np.asarray(np.diagonal(self.total) / np.maximum(np.diagonal(self.count), 1.0))

    @property
    def second(self) -> FloatArray:
        """Mean products of columns, each over the rows that have both; made positive definite where gaps spoil that."""
        found = self.products / np.maximum(self.count, 1.0)
        if self.count.min() == self.count.max():
            return np.asarray(found)
        # Products must not contradict each other, nor the means: values at a limit are missing, for instance, and rows
        # in which two columns are observed have other means than all rows of either.
        apart = np.outer(self.mean, self.mean)
        values, vectors = np.linalg.eigh(0.5 * (found + found.T) - apart)
        return np.asarray((vectors * np.maximum(values, 1e-6)) @ vectors.T + apart)


def fit_moments(
    moments: Moments,
    *,
    rank: int,
    max_iter: int = 2_000,
    tolerance: float = 1e-8,
    expired: Callable[[], bool] | None = None,
) -> FactorModel:
    """Fit the factor model that `keyless.model.factor_model.fit` would fit to the rows.

    For a table with gaps it is the model of a table without gaps that has the same means and mean products: a good
    start.

    Args:
        moments: sums over the rows of standard scores.
        rank: factors to begin with at most; those that stand out from noise, and some more, are enough.
        max_iter: stop after so many steps.
        tolerance: stop when the evidence changes by less than this per entry.
        expired: asked before every step whether to end with the model there is.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> values = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 12)) + 0.1 * rng.normal(size=(200, 12))
        >>> values = (values - values.mean(axis=0)) / values.std(axis=0)
        >>> fit_moments(Moments.of(values, np.ones(values.shape, dtype=bool)), rank=8).rank
        3
    """
    rows, second, mean = moments.rows, moments.second, moments.mean
    width = len(mean)
    values, vectors = np.linalg.eigh(second)
    noise = float(np.median(values[: -(-width // 2)])) * (1 + np.sqrt(width / max(rows, 1.0))) ** 2
    rank = max(1, min(rank, width - 1, int((values > 1.2 * noise).sum()) + _SPARE))
    directions = (vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0)))[:, :rank]

    def step(model: FactorModel) -> tuple[FactorModel, float]:
        statistics, latents, log_z = _expected(model, rows, mean, second)
        return advanced(model, statistics, latents), evidence(model, log_z, statistics)

    start = model_from_directions(directions, noise=0.03)
    return fit_steps(
        step, start, entries=rows * width, max_iter=max_iter, tolerance=tolerance, prune=True, expired=expired
    )[0]


def fit_rows(
    values: FloatArray,
    mask: BoolArray,
    *,
    rank: int,
    start: FactorModel | None = None,
    max_iter: int = 10,
    expired: Callable[[], bool] | None = None,
) -> FactorModel:
    """Fit a factor model to many rows: from their sums where nothing is missing, else by a few steps of EM.

    Args:
        values: standard scores, 0 where missing.
        mask: True where observed.
        rank: factors to begin with.
        start: where to begin, for rows with gaps; None: a model of the first rows, which finds the rank.
        max_iter: steps over all rows with gaps.
        expired: for rows without gaps, asked before every step whether to end with the model there is.
    """
    if mask.all():
        return fit_moments(Moments.of(values, mask), rank=rank, expired=expired)
    if start is None:
        start = fit_table(values[:_FEW_ROWS], mask[:_FEW_ROWS], largest_rank=rank, max_iter=60)
    return fit(values, mask, start, max_iter=max_iter)[0]


def _expected(
    model: FactorModel, rows: float, mean: FloatArray, second: FloatArray
) -> tuple[ColumnStatistics, FloatArray, float]:
    """Return the columns' statistics, the latents' mean second moment, and Σ log Z over all rows.

    Every row's latents have the covariance C = (I + G)⁻¹ and the mean C(x·L/noise − c): linear in the row x.
    """
    rank, weight = model.rank, 1.0 / model.noise
    outer = model.loadings[:, :, None] * model.loadings[:, None, :] + model.spread[:, :rank, :rank]
    system = np.eye(rank) + np.tensordot(weight, outer, axes=1)
    covariance = np.linalg.inv(system)
    constant = weight @ (model.offsets[:, None] * model.loadings + model.spread[:, :rank, rank]) @ covariance
    linear = (model.loadings * weight[:, None]) @ covariance
    centre = mean @ linear
    average = centre - constant
    means_square = linear.T @ second @ linear - np.outer(centre, constant) - np.outer(constant, centre)
    means_square += np.outer(constant, constant)
    latents = means_square + covariance
    full = np.empty((rank + 1, rank + 1))
    full[:rank, :rank], full[:rank, rank], full[rank, :rank], full[rank, rank] = latents, average, average, 1.0
    cross = np.concatenate([second @ linear - np.outer(mean, constant), mean[:, None]], axis=1)
    width = len(mean)
    statistics = ColumnStatistics(
        rows * np.broadcast_to(full, (width, rank + 1, rank + 1)),
        rows * cross,
        rows * np.diagonal(second),
        np.full(width, rows),
    )
    log_z = 0.5 * rows * (float(np.sum(system * means_square)) - float(np.linalg.slogdet(system)[1]))
    return statistics, latents, log_z
