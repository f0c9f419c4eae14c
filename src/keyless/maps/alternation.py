"""Couple rows under a map, fit the map to the coupled rows, and so on, for several couplings at once.

Every row of the smaller table is given partners: rows that have none do little harm while the map is poor, whereas
letting rows stay alone then empties the coupling. The map begins with the leading factors of both tables and takes in
more of them step by step: with all factors at once, any coupling confirms itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyless.maps.canonical import AllPairs, CanonicalModel, left_out
from keyless.maps.folds import Folds
from keyless.progress import Deadline, check_time, is_late

__all__ = ["Alternation"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_FOLDS = 4
"""Folds of left rows; each is coupled by the map that the others give."""

_LEAST_SCALINGS, _MOST_SCALINGS = 2, 20
"""Scalings of rows and columns per step. They start where the last step ended, and mostly few are needed."""

_COLUMN_ERROR = 0.05
"""Share of the weight that columns may have too little or too much when scaling stops."""

_MOST_CORRELATION, _MOST_OWN_CORRELATION = 0.9995, 0.995
"""Correlations count for no more than this while rows are coupled, so that one pair of directions does not decide
alone: the first by maps that have not seen a row, the second by maps that have."""

_MOST_FILLINGS, _FAR = 4, 20.0
"""The kernel is filled anew, so many times at the most, while some scaling is farther than this from the others, in
logs: single precision would lose what is farther away."""

_FORBIDDEN = -1e6
"""Stands for minus infinity in logs; its exponential is 0."""

_RANGE = -1e4, 1e4
"""Potentials stay between these: what is beyond is as good as impossible."""

_TINY = np.float32(1e-20)


class Alternation:
    """The rows of two tables while they are coupled and their map is fitted, in turn.

    Couplings are stacked: number × left × right rows. Each is worked on as if it were alone.

    Args:
        left: whitened factors of the left rows, in single precision, the strongest first.
        right: likewise of the right rows.
        allowed: which pairs may be coupled; None: all.
        masses: weight that each left and each right row is to have; None: 1 for the smaller side, and as much in all
            for the larger.
        deadline: after which no further step is taken than the first.
    """

    def __init__(
        self,
        left: FloatArray,
        right: FloatArray,
        *,
        allowed: BoolArray | None = None,
        masses: tuple[FloatArray, FloatArray] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        rows, columns = len(left), len(right)
        self.deadline, self.folds = deadline, Folds.along(left[:, 0], _FOLDS)
        smaller = min(rows, columns)
        masses = masses or (np.full(rows, smaller / rows), np.full(columns, smaller / columns))
        self.left = self.folds.folded(np.asarray(left, dtype=np.float32))
        self.right = np.ascontiguousarray(right, dtype=np.float32)
        self.row_masses = self.folds.folded(masses[0].astype(np.float32)).ravel()
        self.column_masses, self.total = masses[1].astype(np.float32), float(masses[0].sum())
        self.forbidden = None if allowed is None else ~self.folds.folded(allowed)

    @property
    def ranks(self) -> tuple[int, int]:
        """How many factors the tables have."""
        return int(self.left.shape[2]), int(self.right.shape[1])

    @property
    def factors(self) -> tuple[FloatArray, FloatArray]:
        """The factors of the left and of the right rows."""
        return self.folds.unfolded(self.left), self.right

    def coupled(self, model: CanonicalModel) -> FloatArray:
        """Return the coupling of all rows that a map gives, left × right rows."""
        weight = (model.correlations / (1 - model.correlations**2)).astype(np.float32)
        queries = (model.left(self.left) * weight)[None]
        kernel = np.empty((1, *self.left.shape[:2], len(self.right)), dtype=np.float32)
        self._scale(kernel, queries, model.right(self.right), self._potentials(1))
        return self.folds.unfolded(kernel[0])

    def grow(self, couplings: FloatArray, *, first: int, last: int, steps: int, settle: float = 0.2) -> FloatArray:
        """Alternate with each row's own coupling included; return the couplings that are reached.

        Where rows are few beside factors, what a row says about its own partner is needed to find it.

        Args:
            couplings: where to start, stacked.
            first: factors to begin with.
            last: factors to end with.
            steps: how many steps to take.
            settle: the last part of the steps, in which no factor is added.
        """
        found = self.folds.folded(couplings.astype(np.float32, copy=False), axis=1)
        potentials = self._potentials(len(couplings))
        for step in range(steps):
            share = min(1.0, step / max(1.0, steps * (1 - settle)))
            sizes = [min(size, last, round(first + max(0, min(size, last) - first) * share)) for size in self.ranks]
            self._scale(found, self._by_all_rows(found, *sizes), self.right[:, : sizes[1]], potentials)
            if is_late(self.deadline):
                break
        return self.folds.unfolded(found, axis=1)

    def climb(self, couplings: FloatArray, ranks: Sequence[int]) -> FloatArray:
        """Alternate, each row coupled by what other rows say; return the couplings that are reached.

        Args:
            couplings: where to start, stacked.
            ranks: of each step, how many of the leading factors are used.
        """
        found = self.folds.folded(couplings.astype(np.float32, copy=False), axis=1)
        potentials = self._potentials(len(couplings))
        for rank in ranks:
            queries, offsets = self._by_other_rows(found, *(min(rank, size) for size in self.ranks))
            self._scale(found, queries, self.right[:, :rank], potentials, offsets)
            if is_late(self.deadline):
                break
        return self.folds.unfolded(found, axis=1)

    def _by_all_rows(self, couplings: FloatArray, left: int, right: int) -> FloatArray:
        """Return where left rows look for their partners under the map of all coupled rows, noise and all."""
        cross = (self.left[..., :left].mT @ (couplings @ self.right[:, :right])).sum(axis=1) / np.float32(self.total)
        squares, turned = np.linalg.eigh(cross.mT @ cross)
        weight = 1 / (1 - np.clip(squares, 0.0, _MOST_OWN_CORRELATION**2))
        onto = cross @ (turned * weight[:, None, :]) @ turned.mT
        return np.asarray(self.left[..., :left] @ onto[:, None])

    def _by_other_rows(self, couplings: FloatArray, left: int, right: int) -> tuple[FloatArray, FloatArray]:
        """Return where left rows look for their partners under the map of the other folds, and numbers per right row.

        The log-likelihood ratio of a pair is the product of where the left row looks and the right row's factors, plus
        the number of the right row, plus what depends on the left row alone.
        """
        x, y = self.left[..., :left], self.right[:, :right]
        found = left_out(x, y, AllPairs.of(couplings))
        rho = np.minimum(found.correlations, _MOST_CORRELATION)[:, None, None, :]
        forth, back = (
            (directions / scale[:, None, None, :]).astype(np.float32)
            for directions, scale in zip((found.left, found.right), found.scales, strict=True)
        )
        weight, square = ((part / (1 - rho**2)).astype(np.float32) for part in (rho, 0.5 * rho**2))
        one, two = (centre[:, None, None].astype(np.float32) for centre in found.centres)
        queries = ((x - one) @ forth * weight) @ back.mT
        return queries, -(((y - two) @ back) ** 2 @ square.mT)[..., 0]

    def _scale(
        self,
        kernels: FloatArray,
        queries: FloatArray,
        points: FloatArray,
        potentials: FloatArray,
        offsets: FloatArray | None = None,
    ) -> None:
        """Couple rows so that they have the masses asked for, nearly; in place of the kernels.

        That is the maximum over couplings P with these masses of Σ P·(log ratio − log P).

        Args:
            kernels: where the couplings go.
            queries: where left rows look; their products with the points are log ratios, up to numbers per row.
            points: where right rows are.
            potentials: a number per right row, of each coupling, where scaling begins; brought up to date.
            offsets: numbers that are added for each fold and right row; None: nothing.
        """
        masses, turned = self.row_masses, points.T
        for number in range(len(kernels)):
            kernel, flat = kernels[number], kernels[number].reshape(-1, len(self.right))
            for _ in range(_MOST_FILLINGS):
                check_time()
                np.matmul(queries[number], turned, out=kernel)
                kernel += potentials[number] if offsets is None else (offsets[number] + potentials[number])[:, None, :]
                if self.forbidden is not None:
                    np.copyto(kernel, _FORBIDDEN, where=self.forbidden)
                kernel -= kernel.max(axis=2, keepdims=True)
                np.exp(kernel, out=kernel)
                if self.forbidden is not None:
                    # In a row without any pair all of them are as good as the best.
                    np.copyto(kernel, 0.0, where=self.forbidden)
                columns = np.ones_like(self.column_masses)
                for scaling in range(_MOST_SCALINGS):
                    rows = masses / np.maximum(flat @ columns, _TINY)
                    sums = rows @ flat
                    if scaling >= _LEAST_SCALINGS:
                        error = float(np.abs(sums * columns - self.column_masses).sum())
                        if error <= _COLUMN_ERROR * self.total:
                            break
                    columns = self.column_masses / np.maximum(sums, _TINY)
                # Columns last: a row that fits nowhere counts for a little less.
                columns = self.column_masses / np.maximum(sums, _TINY)
                moved = np.log(np.maximum(columns, _TINY))
                potentials[number] = np.clip(potentials[number] + moved, *_RANGE)
                if float(np.abs(moved - np.median(moved)).max()) < _FAR:
                    break
            flat *= rows[:, None]
            flat *= columns

    def _potentials(self, count: int) -> FloatArray:
        return np.zeros((count, len(self.right)), dtype=np.float32)
