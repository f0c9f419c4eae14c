"""Couple rows under a map, fit the map to the coupled rows, and so on.

Every row of the smaller table is given partners: rows that have none do little harm while the map is poor, whereas
letting rows stay alone then empties the coupling. The map begins with the leading factors of both tables and takes in
more of them step by step: with all factors at once, any coupling confirms itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from keyless.maps.canonical import CanonicalModel, Coupled, CrossFit, cross_fit
from keyless.maps.kernels import Kernel, kernels
from keyless.progress import Deadline, check_time, is_late

__all__ = ["Alternation", "Candidate"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

FOLDS = 4
"""Folds of left rows; each is coupled by the map that the others give."""

_LEAST_SCALINGS, _MOST_SCALINGS = 2, 20
"""Scalings of rows and columns per step. They start where the last step ended, and mostly few are needed."""

_COLUMN_ERROR = 0.05
"""Share of the weight that columns may have too little or too much when scaling stops."""

_SOFT_CORRELATION = 0.9995
"""Correlations count for no more than this while rows are coupled: one pair of directions must not decide alone."""

_MOST_FILLINGS, _FAR = 4, 20.0
"""The kernel is filled anew, so many times at the most, while some scaling is farther than this from 1, in logs."""

_RANGE = np.float32(-1e4), np.float32(1e4)
"""Potentials stay between these: what is beyond is as good as impossible."""

_TINY = np.float32(1e-20)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A map that was reached, and what it was judged by.

    Attributes:
        name: what it was reached from.
        fit: its models.
        choice: per left row, the right row it prefers, −1 for none.
    """

    name: str
    fit: CrossFit
    choice: IntArray

    @property
    def information(self) -> float:
        """Information that left-out rows show, in nats per row."""
        return self.fit.information

    def agrees(self, other: Candidate, share: float) -> bool:
        """Tell whether both prefer the same partner for at least this share of rows."""
        return float(np.mean(self.choice == other.choice)) >= share


class Alternation:
    """The rows of two tables, coupled and fitted in turn.

    Args:
        left: whitened factors of the left rows, in single precision, the strongest first.
        right: likewise of the right rows.
        allowed: which pairs may be matched: a mask, a sparse pattern of listed pairs, or None for all.
        masses: weight that each left and each right row is to have; None: 1 for the smaller side, and as much in all
            for the larger.
        folds: how many folds left rows are dealt to.
        deadline: after which no further step is taken by `climb` and `grow` than the first.
    """

    def __init__(
        self,
        left: FloatArray,
        right: FloatArray,
        *,
        allowed: BoolArray | sparse.csr_array | None = None,
        masses: tuple[FloatArray, FloatArray] | None = None,
        folds: int = FOLDS,
        deadline: Deadline | None = None,
    ) -> None:
        self.deadline = deadline
        rows, columns = len(left), len(right)
        self.left, self.right = left, right
        # Dealt along the first factor, so that neither chance nor the order of rows decides.
        order = np.argsort(left[:, 0], kind="stable")
        self.folds: list[IntArray] = [order[k :: min(folds, rows)] for k in range(min(folds, rows))]
        self.kernels: list[Kernel] = kernels(self.folds, (rows, columns), allowed)
        self.masses = masses or (
            np.full(rows, min(1.0, columns / rows), dtype=np.float32),
            np.full(columns, min(1.0, rows / columns), dtype=np.float32),
        )
        self.parts = [np.ascontiguousarray(left[rows]) for rows in self.folds]
        self.potentials: tuple[list[FloatArray], FloatArray] | None = None
        self.scales: tuple[list[FloatArray], FloatArray] | None = None
        self.coupled: list[Coupled] = []

    @property
    def ranks(self) -> tuple[int, int]:
        """How many factors the tables have."""
        return int(self.left.shape[1]), int(self.right.shape[1])

    def begin(self, coupling: FloatArray) -> None:
        """Start from a coupling of all rows, left × right."""
        self.potentials = self.scales = None
        self.coupled = [
            Coupled.by_matrix(part, self.right, coupling[rows])
            for part, rows in zip(self.parts, self.folds, strict=True)
        ]

    def fit(self, rank: int) -> CrossFit:
        """Fit the map of the leading factors to the coupled rows."""
        left, right = (min(rank, size) for size in self.ranks)
        return cross_fit([coupled.leading(left, right) for coupled in self.coupled])

    def couple(self, models: Sequence[CanonicalModel]) -> float:
        """Couple the rows of every fold by its model; return the evidence, in nats per row of the smaller table.

        That is the maximum over couplings P with the given masses of Σ P·(log ratio − log P), up to a constant.
        """
        thin = [model.bilinear(part, self.right) for part, model in zip(self.parts, models, strict=True)]
        with np.errstate(all="ignore"):
            for _ in range(_MOST_FILLINGS):
                known = self._fill(thin)
                rows, columns = self._scaled()
                # Scalings become part of the potentials: far ones would leave the range of single precision.
                potentials = self.potentials = (
                    [np.clip(old + np.log(scale), *_RANGE) for old, scale in zip(known[0], rows, strict=True)],
                    np.clip(known[1] + np.log(columns), *_RANGE),
                )
                if max(float(np.abs(np.log(scale)).max(initial=0.0)) for scale in (*rows, columns)) < _FAR:
                    break
        self._keep(rows, columns)
        total = float(self.masses[0].sum())
        paid = sum(float(part.left_weights @ f) for part, f in zip(self.coupled, potentials[0], strict=True))
        paid += float(self.masses[1] @ potentials[1])
        return -paid / total - float(np.log(total))

    def climb(self, name: str, ranks: Sequence[int]) -> Candidate:
        """Alternate while the number of factors rises; return the map that is reached."""
        for rank in ranks:
            fit = self.fit(rank)
            self.couple(_softened(fit.models))
            if is_late(self.deadline):
                break
        return Candidate(name, fit, self._choice())

    def grow(self, coupling: FloatArray, *, first: int, last: int, steps: int, settle: float = 0.2) -> Any:
        """Alternate with each row's own coupling included, and return the coupling that is reached.

        Where rows are few beside factors, what a row says about its own partner is needed to find it. Quickest with
        one fold.

        Args:
            coupling: where to start, left × right rows.
            first: factors to begin with.
            last: factors to end with.
            steps: how many steps to take.
            settle: the last part of the steps, in which no factor is added.
        """
        self.begin(coupling)
        for step in range(steps):
            cross, weight = self._cross()
            share = min(1.0, step / max(1.0, steps * (1 - settle)))
            left, right = (
                min(size, last, round(first + max(0, min(size, last) - first) * share)) for size in self.ranks
            )
            self.couple([_plain_model(cross[:left, :right] / weight)] * len(self.folds))
            if is_late(self.deadline):
                break
        return self.coupling()

    def coupling(self) -> Any:
        """Return the present coupling, left × right rows; sparse where pairs are listed."""
        if self.scales is None:
            raise RuntimeError("rows have not been coupled yet")
        parts = [
            kernel.coupling(rows, self.scales[1]) for kernel, rows in zip(self.kernels, self.scales[0], strict=True)
        ]
        place = np.argsort(np.concatenate(self.folds), kind="stable")
        if sparse.issparse(parts[0]):
            return sparse.csr_array(sparse.vstack(parts, format="csr")[place])
        return np.concatenate(parts)[place]

    def _fill(self, thin: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[list[FloatArray], FloatArray]:
        """Fill the kernels with log ratios plus potentials, and exponentiate them; return these potentials."""
        if self.potentials is None:
            for kernel, (left, right) in zip(self.kernels, thin, strict=True):
                kernel.fill(left, right)
            rows = [-kernel.row_maxima() for kernel in self.kernels]
            nothing = np.zeros(len(self.right), dtype=np.float32)
            for kernel, shift in zip(self.kernels, rows, strict=True):
                kernel.shift(shift, nothing)
            columns = -np.max([kernel.column_maxima() for kernel in self.kernels], axis=0)
            for kernel, shift in zip(self.kernels, rows, strict=True):
                kernel.shift(np.zeros_like(shift), columns)
        else:
            rows, columns = self.potentials
            for kernel, (left, right), shift in zip(self.kernels, thin, rows, strict=True):
                # The last columns of thin matrices hold what depends on one row alone.
                moved, turned = left.copy(), right.copy()
                moved[:, -2] += shift
                turned[:, -1] += columns
                kernel.fill(moved, turned)
        for kernel in self.kernels:
            kernel.exponentiate()
        return rows, columns

    def _scaled(self) -> tuple[list[FloatArray], FloatArray]:
        """Return scalings of rows and columns under which the kernels have the given masses, nearly."""
        masses = [self.masses[0][fold] for fold in self.folds]
        rows = [np.ones_like(mass) for mass in masses]
        columns = np.ones_like(self.masses[1])
        total = float(self.masses[0].sum())
        for scaling in range(_MOST_SCALINGS):
            check_time()
            sums = sum(kernel.transposed_times(scale) for kernel, scale in zip(self.kernels, rows, strict=True))
            if scaling >= _LEAST_SCALINGS:
                error = float(np.abs(sums * columns - self.masses[1]).sum())
                if not error > _COLUMN_ERROR * total:
                    break
            columns = self.masses[1] / np.maximum(sums, _TINY)
            rows = [
                mass / np.maximum(kernel.times(columns), _TINY)
                for kernel, mass in zip(self.kernels, masses, strict=True)
            ]
        # Columns last: a row that fits nowhere counts for a little less.
        sums = sum(kernel.transposed_times(scale) for kernel, scale in zip(self.kernels, rows, strict=True))
        return rows, self.masses[1] / np.maximum(sums, _TINY)

    def _keep(self, rows: list[FloatArray], columns: FloatArray) -> None:
        """Remember the coupling that scalings of the kernels give."""
        self.scales = rows, columns
        self.coupled = [
            Coupled(
                part,
                self.right,
                scale * kernel.times(columns),
                kernel.transposed_times(scale) * columns,
                partial(_partners, kernel, scale, columns),
            )
            for kernel, part, scale in zip(self.kernels, self.parts, rows, strict=True)
        ]

    def _cross(self) -> tuple[FloatArray, float]:
        """Return the sum of products of coupled rows' factors, and the weight of all pairs."""
        cross = sum(coupled.left.T @ coupled.partners(self.right) for coupled in self.coupled)
        return np.asarray(cross), float(sum(coupled.left_weights.sum() for coupled in self.coupled))

    def _choice(self) -> IntArray:
        if self.scales is None:
            raise RuntimeError("rows have not been coupled yet")
        found = np.empty(len(self.left), dtype=np.int64)
        for kernel, fold in zip(self.kernels, self.folds, strict=True):
            found[fold] = kernel.best(self.scales[1])
        return found


def _partners(kernel: Kernel, rows: FloatArray, columns: FloatArray, numbers: FloatArray) -> FloatArray:
    return rows[:, None] * kernel.times(columns[:, None] * numbers)


def _softened(models: Sequence[CanonicalModel]) -> list[CanonicalModel]:
    return [_capped(model, _SOFT_CORRELATION) for model in models]


def _capped(model: CanonicalModel, most: float) -> CanonicalModel:
    return CanonicalModel(
        model.left_centre,
        model.right_centre,
        model.left_directions,
        model.right_directions,
        np.minimum(model.correlations, most),
    )


def _plain_model(cross: FloatArray, *, most: float = 0.995) -> CanonicalModel:
    """Return the canonical pairs of a cross-covariance of whitened factors, noise and all."""
    left, rho, right = np.linalg.svd(cross, full_matrices=False)
    return CanonicalModel(np.zeros(len(left)), np.zeros(right.shape[1]), left, right.T, np.clip(rho, 1e-3, most))
