"""Let a map grow from a few leading factors of two tables to all of them.

Rows are coupled under a map, the map is fitted to the coupled rows, and so on: expectation and maximisation of the
likelihood of one table's rows given the other's, when nobody knows which row belongs to which. With three to six
leading factors this compares the shapes of two clouds of points, and many first maps can be tried. A map that is right
there is then given twice as many factors at every stage, until all factors are in it and partners can be told from all
other rows.

Every row of the smaller table is given partners. Rows that fit badly count less when the map is fitted: they may have
no partner at all. If rows could stay without partner while the map is poor, the coupling would end up empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from keyless.arrays import BoolArray, NumpyArray
from keyless.maps.canonical import CanonicalModel, canonical, whitening
from keyless.progress import check_time

__all__ = ["Growth", "Shapes", "random_turn"]

_MOST_CORRELATION = 0.98
"""Correlations count for no more than this while rows are coupled, so that one pair of directions does not decide
alone: at this correlation, a difference of one standard deviation counts 12 nats."""

_SCALINGS = 5
"""Scalings of rows and columns in a step. They begin where the step before ended, so few of them are enough."""

_WIDENING, _STEPS = 2, 3
"""How many times as many factors every stage of growth has, and how many steps of coupling and fitting it takes."""

_HALF_WEIGHT = 1.0
"""Squared distance of a row from its partners, as a multiple of the median of all rows, at which it counts half."""

_PAIRS_TOGETHER = 400_000
"""Pairs of rows of all maps that are settled at once: as many as the processor's cache holds."""

_FARTHEST = np.float32(60.0)
"""Potentials stay within so many nats: what is beyond is as good as impossible."""

_TINY = np.float32(1e-30)
"""Least number that is divided by, or of which a logarithm is taken."""


class _Coupled(NamedTuple):
    """A coupling of all rows: the kernel of a `Growth`, its rows and columns scaled.

    Attributes:
        rows: scaling of each left row.
        columns: scaling of each right row.
        potentials: logs of all scalings of right rows so far.
    """

    rows: NumpyArray
    columns: NumpyArray
    potentials: NumpyArray


class _Fitted(NamedTuple):
    """What coupled rows say about the map.

    Attributes:
        cross: mean products of their factors, left × right.
        weights: of left and of right rows in the coupling.
    """

    cross: NumpyArray
    weights: tuple[NumpyArray, NumpyArray]


class Growth:
    """The rows of two tables while they are coupled, and a map is fitted to them, in turn.

    A map is a matrix of left × right leading factors: the covariance of the factors of rows that belong together.

    Args:
        left: whitened factors of the left rows, the strongest first.
        right: likewise of the right rows.
        allowed: which pairs may be coupled; None: all.
    """

    def __init__(self, left: NumpyArray, right: NumpyArray, *, allowed: BoolArray | None = None) -> None:
        self.left = np.ascontiguousarray(left, dtype=np.float32)
        self.right = np.ascontiguousarray(right, dtype=np.float32)
        self._masses = _masses((len(left), len(right)), allowed)
        self._forbidden = None if allowed is None else ~allowed
        self._kernel = np.empty((len(left), len(right)), dtype=np.float32)

    @property
    def ranks(self) -> tuple[int, int]:
        """How many factors the tables have."""
        return self.left.shape[1], self.right.shape[1]

    def map_of(self, coupling: Any, size: int) -> NumpyArray:
        """Return the map between leading factors of both tables that coupled rows give.

        Args:
            coupling: left × right rows.
            size: how many leading factors of either table, at most.
        """
        left, right = self.left[:, :size], self.right[:, :size]
        return np.asarray(left.T @ (coupling @ right) / max(float(coupling.sum()), 1e-12), dtype=np.float64)

    def grown(self, cross: NumpyArray) -> NumpyArray:
        """Return the coupling that a map of leading factors leads to when it is given all others, stage by stage.

        Args:
            cross: the map to begin with.
        """
        size, most = max(cross.shape), max(self.ranks)
        sizes = [size]
        while size < most:
            size = min(most, _WIDENING * size)
            sizes.append(size)
        return self._stepped(_Fitted(cross, self._masses), [size for size in sizes for _ in range(_STEPS)])

    def again(self, coupling: NumpyArray, *, steps: int) -> NumpyArray:
        """Return what a coupling becomes in some steps with all factors.

        Args:
            coupling: left × right rows.
            steps: how often the map is fitted and rows are coupled.
        """
        most = max(self.ranks)
        return self._stepped(_Fitted(self.map_of(coupling, most), self._masses), [most] * steps)

    def _stepped(self, fitted: _Fitted, sizes: Sequence[int]) -> NumpyArray:
        """Return the coupling after some steps, given how many leading factors are used in each."""
        model = self._model(fitted)
        coupled = self._coupled(model, self._no_potentials())
        for size in sizes[1:]:
            model = self._model(self._fitted(model, coupled, size))
            coupled = self._coupled(model, coupled.potentials)
        return self._coupling(coupled)

    def coupling_of(self, model: CanonicalModel) -> NumpyArray:
        """Return the coupling of all rows that a model gives, left × right rows."""
        return self._coupling(self._coupled(model, self._no_potentials(), scalings=4 * _SCALINGS))

    def _no_potentials(self) -> NumpyArray:
        return np.zeros(len(self.right), dtype=np.float32)

    def _model(self, fitted: _Fitted) -> CanonicalModel:
        """Return canonical pairs of a map."""
        (first, second), (left, right) = fitted.cross.shape, fitted.weights
        model = canonical(_moments(self.left[:, :first], left), _moments(self.right[:, :second], right), fitted.cross)
        return replace(model, correlations=np.minimum(model.correlations, _MOST_CORRELATION))

    def _coupled(self, model: CanonicalModel, potentials: NumpyArray, *, scalings: int = _SCALINGS) -> _Coupled:
        """Couple rows so that the weights of each row add up to its mass, nearly.

        Of all couplings P with these masses, it is the one with the largest ⟨P, log ratio⟩ − Σ P log P. The masses hold
        only as nearly as a few scalings bring them.

        Args:
            model: the map.
            potentials: a number per right row, where scaling begins.
            scalings: of rows and columns in turn.
        """
        check_time()
        kernel, rho = self._kernel, model.correlations.astype(np.float32)
        own, theirs, weight = model.left(self.left), model.right(self.right), rho / (1 - rho**2)
        np.matmul(own * weight, theirs.T, out=kernel)
        kernel += potentials - theirs**2 @ (0.5 * rho * weight)
        if self._forbidden is not None:
            np.copyto(kernel, -np.inf, where=self._forbidden)
        highest = kernel.max(axis=1)
        highest[~np.isfinite(highest)] = 0.0
        kernel -= highest[:, None]
        np.exp(kernel, out=kernel)
        columns = np.ones(len(self.right), dtype=np.float32)
        for _ in range(scalings):
            rows = self._masses[0] / np.maximum(kernel @ columns, _TINY)
            columns = self._masses[1] / np.maximum(rows @ kernel, _TINY)
        rows = self._masses[0] / np.maximum(kernel @ columns, _TINY)
        moved = potentials + np.log(np.maximum(columns, _TINY))
        return _Coupled(rows, columns, np.clip(moved, -_FARTHEST, _FARTHEST))

    def _coupling(self, coupled: _Coupled) -> NumpyArray:
        return self._kernel * coupled.rows[:, None] * coupled.columns

    def _fitted(self, model: CanonicalModel, coupled: _Coupled, size: int) -> _Fitted:
        """Fit the map of `size` leading factors to coupled rows; rows that fit badly count less.

        How badly a row fits is its mean squared distance from its partners along the canonical pairs, in units of the
        variance that the correlations leave over.
        """
        kernel, masses = self._kernel, self._masses[0]
        left, right = self.left[:, :size], self.right[:, :size]
        sums = kernel @ (right * coupled.columns[:, None])
        rho = model.correlations
        error = np.sqrt(1 - rho**2).astype(np.float32)
        own, theirs = model.left(left) * (rho.astype(np.float32) / error), model.right(right) / error
        mass = np.maximum(masses, _TINY)
        means = model.right(sums * (coupled.rows / mass)[:, None]) / error
        squares = (kernel @ ((theirs**2).sum(axis=1) * coupled.columns)) * coupled.rows / mass
        distance = squares - 2 * (own * means).sum(axis=1) + (own**2).sum(axis=1)
        typical = max(float(np.median(distance)), float(_TINY))
        weights = (1 + _HALF_WEIGHT) / (_HALF_WEIGHT + np.maximum(distance, 0.0) / typical)
        rows = coupled.rows * (weights / weights.mean()).astype(np.float32)
        all_weights = rows * (masses / np.maximum(coupled.rows, _TINY)), (rows @ kernel) * coupled.columns
        cross = (left * rows[:, None]).T @ sums / max(float(all_weights[0].sum()), 1e-12)
        return _Fitted(np.asarray(cross, dtype=np.float64), all_weights)


class Shapes:
    """The rows of two tables while many maps of few leading factors are settled at once.

    Rows need not be the same entities: under a map the shapes of two clouds of points are compared.

    Args:
        left: factors of left rows, the strongest first; they are whitened here.
        right: likewise of right rows.
        allowed: which pairs may be coupled; None: all.
    """

    def __init__(self, left: NumpyArray, right: NumpyArray, *, allowed: BoolArray | None = None) -> None:
        self.left, self.right = (_white(side) for side in (left, right))
        self._masses = _masses((len(left), len(right)), allowed)
        self._forbidden = None if allowed is None else ~allowed
        self._chance, self._total = _chance(self._masses)
        self._together = max(1, _PAIRS_TOGETHER // (len(left) * len(right)))

    def settled(self, maps: NumpyArray, *, steps: int) -> tuple[NumpyArray, NumpyArray]:
        """Return what maps become in some steps of coupling and fitting, and the likelihood of the rows under each.

        Args:
            maps: number × left × right leading factors.
            steps: of coupling and fitting.
        """
        parts = [self._settled(maps[k : k + self._together], steps) for k in range(0, len(maps), self._together)]
        return np.concatenate([found for found, _ in parts]), np.concatenate([values for _, values in parts])

    def _settled(self, maps: NumpyArray, steps: int) -> tuple[NumpyArray, NumpyArray]:
        left, right = self.left[:, : maps.shape[1]], self.right[:, : maps.shape[2]]
        first, second = self._masses[0][:, None], self._masses[1][:, None]
        potentials = np.zeros((len(maps), len(right), 1), dtype=np.float32)
        kernel = np.empty((len(maps), len(left), len(right)), dtype=np.float32)
        for _ in range(steps):
            check_time()
            forth, rho, back = np.linalg.svd(maps.astype(np.float32), full_matrices=False)
            rho = np.minimum(rho, np.float32(_MOST_CORRELATION))[:, None, :]
            weight = rho / (1 - rho**2)
            square = (0.5 * rho * weight).mT
            own, theirs = left @ forth, right @ back.mT
            np.matmul(own * weight, theirs.mT, out=kernel)
            kernel += (potentials - theirs**2 @ square).mT
            if self._forbidden is not None:
                np.copyto(kernel, -np.inf, where=self._forbidden)
            highest = kernel.max(axis=2, keepdims=True)
            highest[~np.isfinite(highest)] = 0.0
            kernel -= highest
            np.exp(kernel, out=kernel)
            columns = np.ones_like(potentials)
            for _ in range(_SCALINGS):
                rows = first / np.maximum(kernel @ columns, _TINY)
                columns = second / np.maximum(kernel.mT @ rows, _TINY)
            rows = first / np.maximum(kernel @ columns, _TINY)
            potentials = np.clip(potentials + np.log(np.maximum(columns, _TINY)), -_FARTHEST, _FARTHEST)
            by_row = -0.5 * np.log1p(-(rho**2)).sum(axis=2, keepdims=True) - own**2 @ square
            of_rows = np.log(np.maximum(rows, _TINY)) - highest - by_row
            used = (of_rows * first).sum(axis=(1, 2)) + (potentials * second).sum(axis=(1, 2))
            maps = (left * rows).mT @ (kernel @ (right * columns)) / np.float32(self._total)
        return maps, self._chance - used / self._total


def _white(factors: NumpyArray) -> NumpyArray:
    """Return factors of some rows made white again; signs stay, so that maps hold for factors of all rows."""
    centred = factors - factors.mean(axis=0)
    return np.asarray(centred @ whitening(centred.T @ centred / len(centred)).T, dtype=np.float32)


def _masses(sizes: tuple[int, int], allowed: BoolArray | None) -> tuple[NumpyArray, NumpyArray]:
    """Return the weight that each left row and each right row is to have in a coupling.

    It is 1 for each row of the smaller table. The rows of the larger table share the same total equally. A row without
    an allowed partner has 0.
    """
    smaller = min(sizes)
    left, right = (np.full(size, smaller / size, dtype=np.float32) for size in sizes)
    return (left, right) if allowed is None else (left * allowed.any(axis=1), right * allowed.any(axis=0))


def _chance(masses: tuple[NumpyArray, NumpyArray]) -> tuple[float, float]:
    """Return the mean log-weight of a pair if all pairs are coupled alike, and the weight of all pairs together."""
    total = max(float(masses[0].sum()), 1.0)
    logs = sum(float((mass * np.log(np.maximum(mass, _TINY))).sum(dtype=np.float64)) for mass in masses)
    return logs / total - float(np.log(total)), total


def _moments(factors: NumpyArray, weights: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Return the weighted mean of factors, and their weighted mean products."""
    total = max(float(weights.sum()), 1e-12)
    weighted = factors * weights[:, None]
    return np.asarray(weighted.sum(axis=0) / total), np.asarray(factors.T @ weighted / total, dtype=np.float64)


def random_turn(rng: np.random.Generator, size: int) -> NumpyArray:
    """Return a random orthogonal matrix."""
    turned, scaled = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray(turned * np.sign(np.diag(scaled)))
