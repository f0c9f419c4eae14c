"""The canonical-correlation likelihood of correspondences between two whitened tables.

Given whitened factors U (n × p) and V (n × q) and a coupling P, the cross-covariance S = Uᵀ P V / n = a · diag(ρ) · bᵀ
defines a model of paired rows. With u = U a and v = V b, the log-likelihood ratio "same entity" against "strangers" of
rows i and j is

    Σ_k [ 2 ρ_k u_ik v_jk − ρ_k² (u_ik² + v_jk²) ] / (2 (1 − ρ_k²)) − ½ Σ_k log(1 − ρ_k²).

Everything here is a function of S: a small matrix stands for a coupling, so populations of couplings cost almost
nothing to keep or to mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from keyless.assignment import assign

__all__ = [
    "Candidate",
    "CanonicalModel",
    "CrossFit",
    "Matcher",
    "best_permutation",
    "cross_covariance",
    "cross_fit",
    "fit_model",
    "grown",
    "hardened",
    "mirrored_share",
]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

SOFT_MAX_CORRELATION = 0.995
"""While couplings are soft: keeps one pair of directions from deciding alone."""
MAX_CORRELATION = 0.9999
"""Once they are hard: exact relations between tables are real."""
MIN_CORRELATION = 1e-3


@dataclass(frozen=True, eq=False)
class CanonicalModel:
    """Directions of two tables and the correlation of each pair of directions.

    Attributes:
        reference_directions: reference factors × pairs.
        table_directions: table factors × pairs.
        correlations: one per pair, from 0 to below 1.
    """

    reference_directions: FloatArray
    table_directions: FloatArray
    correlations: FloatArray

    @property
    def information(self) -> float:
        """Mean log-likelihood ratio of true pairs under the model, −½ Σ log(1 − ρ²), in nats per row."""
        return _information(self.correlations)

    def log_ratios(self, reference: FloatArray, table: FloatArray) -> FloatArray:
        """Return the log-likelihood ratio "same entity" against "strangers" of all pairs of rows."""
        left, right = self.bilinear(reference, table)
        return left @ right.T

    def bilinear(self, reference: FloatArray, table: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return two thin matrices with left · rightᵀ = `log_ratios`.

        The last two columns carry what depends on a row alone: a number per reference row stands in the last column
        but one of `left`, a number per table row in the last column of `right`.
        """
        rho = self.correlations
        u, v = reference @ self.reference_directions, table @ self.table_directions
        weight = rho / (1 - rho**2)
        square = 0.5 * rho * weight
        of_row = self.information - u**2 @ square
        of_column = -(v**2 @ square)
        left = np.column_stack([u * weight, of_row, np.ones_like(of_row)])
        right = np.column_stack([v, np.ones_like(of_column), of_column])
        return left.astype(u.dtype, copy=False), right.astype(u.dtype, copy=False)


def fit_model(cross: FloatArray, *, max_correlation: float = MAX_CORRELATION) -> CanonicalModel:
    """Return all canonical pairs of a cross-covariance of whitened tables."""
    left, rho, right = np.linalg.svd(cross, full_matrices=False)
    return CanonicalModel(left, right.T, np.clip(rho, MIN_CORRELATION, max_correlation))


def cross_covariance(reference: FloatArray, table: FloatArray, permutation: IntArray) -> FloatArray:
    """Return S of a hard correspondence; rows without a partner (−1) do not count."""
    paired = permutation >= 0
    if not paired.all():
        reference, permutation = reference[paired], permutation[paired]
    return np.asarray(reference.T @ table[permutation] / reference.dtype.type(max(1, len(reference))))


def best_permutation(log_ratios: FloatArray, allowed: BoolArray | None = None) -> IntArray:
    """Return argmax Σ_i log_ratios[i, permutation[i]] over allowed pairs; −1 where no partner is left."""
    cost = -log_ratios if allowed is None else np.where(allowed, -log_ratios, np.inf)
    return np.asarray(assign(cost), dtype=np.int64)


class Matcher:
    """Soft matching of rows under a model, with potentials kept from one call to the next.

    The coupling is argmax ⟨P, log_ratios⟩ − temperature · Σ P log P over unit row and column sums, approached by a few
    scalings per call. `step` never forms it: only the next cross-covariance comes out. One kernel is kept and
    overwritten.

    Args:
        reference: whitened factors of the reference.
        table: whitened factors of the table, with the same dtype.
        allowed: which pairs may be matched; None: all.
        iterations: scalings per call.
        max_correlation: above which correlations are cut; keeps one pair of directions from deciding alone.
        temperature: what the entropy is multiplied with; 1 gives the posterior, more is softer.
    """

    def __init__(
        self,
        reference: FloatArray,
        table: FloatArray,
        *,
        allowed: BoolArray | None = None,
        iterations: int = 3,
        max_correlation: float = SOFT_MAX_CORRELATION,
        temperature: float = 1.0,
    ) -> None:
        self.reference, self.table = reference, table
        self.iterations, self.max_correlation, self.temperature = iterations, max_correlation, temperature
        self._forbidden = None if allowed is None else ~allowed
        self._potentials: tuple[FloatArray, FloatArray] | None = None
        self._kernel = np.empty((len(reference), len(table)), dtype=reference.dtype)

    def restart(self) -> None:
        """Forget the potentials, before an unrelated model is tried."""
        self._potentials = None

    def step(self, cross: FloatArray) -> tuple[FloatArray, float]:
        """Couple the rows under the model of `cross`; return the cross-covariance of that coupling, and the bound.

        The bound is mean_i Σ_j P_ij (log_ratios_ij − log(n P_ij)), in nats per row, read off the potentials. `cross`
        may be smaller than the tables have factors: it then speaks of the leading ones only, while the result always
        covers all.
        """
        rows, columns, bound = self._couple(cross, self.iterations)
        moved = self._kernel @ (columns[:, None] * self.table)
        return (rows[:, None] * self.reference).T @ moved / self.reference.dtype.type(len(self.reference)), bound

    def coupling(self, cross: FloatArray, *, iterations: int = 50) -> FloatArray:
        """Return the soft coupling under the model of `cross`; a later call does not change it."""
        rows, columns, _ = self._couple(cross, iterations)
        return self._kernel * rows[:, None] * columns[None, :]

    def _couple(self, cross: FloatArray, iterations: int) -> tuple[FloatArray, FloatArray, float]:
        with np.errstate(all="ignore"):
            rows, columns, bound = self._scaled(cross, iterations)
            if not np.isfinite(bound):
                # The last potentials were too far off for this model.
                self.restart()
                rows, columns, bound = self._scaled(cross, iterations)
        return rows, columns, bound

    def _scaled(self, cross: FloatArray, iterations: int) -> tuple[FloatArray, FloatArray, float]:
        model = fit_model(cross, max_correlation=self.max_correlation)
        p, q = cross.shape
        left, right = model.bilinear(self.reference[:, :p], self.table[:, :q])
        if self.temperature != 1.0:
            # The last two columns hold what depends on a row alone, beside ones that stay ones.
            left[:, :-1] /= self.temperature
            right[:, -1] /= self.temperature
        kernel, n_rows = self._kernel, len(self.reference)
        if self._potentials is None:
            iterations += 4
            row_potential, column_potential = self._first_kernel(left, right)
        else:
            row_potential, column_potential = self._potentials
            left[:, -2] += row_potential
            right[:, -1] += column_potential
            np.matmul(left, right.T, out=kernel)
            np.minimum(kernel, 60.0, out=kernel)
        np.exp(kernel, out=kernel)
        if self._forbidden is not None:
            np.copyto(kernel, 0.0, where=self._forbidden)
        tiny = kernel.dtype.type(1e-30)
        columns = np.ones(kernel.shape[1], dtype=kernel.dtype)
        for _ in range(iterations):
            rows = 1.0 / np.maximum(kernel @ columns, tiny)
            columns = 1.0 / np.maximum(rows @ kernel, tiny)
        row_sums = rows * (kernel @ columns)
        row_potential = np.clip(row_potential + np.log(rows), -1e4, 1e4)
        column_potential = np.clip(column_potential + np.log(columns), -1e4, 1e4)
        self._potentials = row_potential, column_potential
        return rows, columns, -float(row_sums @ row_potential + column_potential.sum()) / n_rows - float(np.log(n_rows))

    def _first_kernel(self, left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Fill the kernel with log ratios brought into range, so that no row or column vanishes."""
        kernel = self._kernel
        np.matmul(left, right.T, out=kernel)
        if self._forbidden is not None:
            np.copyto(kernel, -1e6, where=self._forbidden)
        row_potential = -kernel.max(axis=1)
        kernel += row_potential[:, None]
        column_potential = -kernel.max(axis=0)
        kernel += column_potential[None, :]
        return row_potential, column_potential


@dataclass(frozen=True, eq=False)
class Candidate:
    """A correspondence with what is needed to judge, mix and refit it.

    Attributes:
        permutation: the hard correspondence.
        soft: S of the soft coupling it came from.
        hard: S of the permutation.
        score: cross-fitted information, in nats per row.
        confidence: held-out log-likelihood ratio of each row's match.
        origin: where it came from.
    """

    permutation: IntArray
    soft: FloatArray
    hard: FloatArray
    score: float
    confidence: FloatArray
    origin: str = ""


def grown(
    reference: FloatArray,
    table: FloatArray,
    cross: FloatArray,
    *,
    allowed: BoolArray | None = None,
    first_rank: int = 6,
    steps: int = 40,
    settle: float = 0.2,
    polish: int = 4,
    max_correlation: float = SOFT_MAX_CORRELATION,
    temperature: float = 1.0,
    origin: str = "",
) -> Candidate:
    """Refine a coupling, given as its S: leading factors first, then one by one all others, then hard.

    Starting with all factors overfits at once: any coupling then confirms itself.

    Args:
        reference: whitened factors of the reference.
        table: whitened factors of the table.
        cross: S of the coupling to refine.
        allowed: which pairs may be matched; None: all.
        first_rank: factors to begin with.
        steps: how many soft steps are taken.
        settle: the last part of the steps, during which no factor is added.
        polish: the most rounds of assignment and refit.
        max_correlation: see `Matcher`; while couplings are soft.
        temperature: see `Matcher`.
        origin: what to call the candidate.
    """
    matcher = Matcher(reference, table, allowed=allowed, max_correlation=max_correlation, temperature=temperature)
    growth = max(1, int(steps * (1 - settle)))
    for k in range(steps):
        share = min(1.0, k / growth)
        p, q = (
            min(size, round(first_rank + max(0, size - first_rank) * share))
            for size in (reference.shape[1], table.shape[1])
        )
        cross, _ = matcher.step(cross[:p, :q])
    return hardened(reference, table, cross, allowed=allowed, polish=polish, origin=origin)


def hardened(
    reference: FloatArray,
    table: FloatArray,
    soft: FloatArray,
    *,
    allowed: BoolArray | None = None,
    polish: int = 4,
    origin: str = "",
) -> Candidate:
    """Assign and refit in turn, from the S of a soft coupling, until nothing moves or `polish` rounds are over."""
    hard = soft
    permutation = best_permutation(fit_model(hard).log_ratios(reference, table), allowed)
    for _ in range(polish - 1):
        hard = cross_covariance(reference, table, permutation)
        before = permutation
        permutation = best_permutation(fit_model(hard).log_ratios(reference, table), allowed)
        if np.array_equal(permutation, before):
            break
    hard = cross_covariance(reference, table, permutation)
    held_out = cross_fit(reference, table, permutation)
    return Candidate(permutation, soft, hard, held_out.information, held_out.match_ratios(permutation), origin)


def mirrored_share(
    reference: FloatArray,
    table: FloatArray,
    *,
    allowed: BoolArray | None = None,
    leading: int = 8,
    outermost: int = 400,
) -> float:
    """Return the information of the best mirror image of a correspondence, as a share of its own.

    A table whose rows come in mirror images fits equally well when a direction is turned around: then nothing in the
    numbers tells which correspondence is the right one. Every leading pair of directions is turned, and all at once;
    so are the planes of the first three by a sixth to a third of a circle, as of a wheel with three to six spokes.
    Images that match most rows as before do not count.

    Args:
        reference: whitened factors of the matched rows of the reference.
        table: those of their partners, in the same order.
        allowed: which pairs of them may be matched; None: all.
        leading: how many pairs of directions are turned.
        outermost: of more rows than this only those farthest from the middle are looked at; mirror images of a row are
            as far out as it is.
    """
    far = np.argsort(-np.sum(reference**2, axis=1), kind="stable")[:outermost]
    reference, table = (whole[far] - whole[far].mean(axis=0) for whole in (reference, table))
    allowed = None if allowed is None else allowed[np.ix_(far, far)]
    rows = np.arange(len(far))
    left, rho, right = np.linalg.svd(cross_covariance(reference, table, rows), full_matrices=False)
    own = cross_fit(reference, table, rows).information
    best = 0.0
    for turn in _turns(len(rho), leading):
        found = hardened(reference, table, ((left * rho) @ turn @ right).astype(reference.dtype), allowed=allowed)
        if np.mean(found.permutation != rows) > 0.5:
            best = max(best, found.score)
    return best / own if own > 0 else 1.0


def _turns(size: int, leading: int) -> Iterator[FloatArray]:
    """Yield the reflections and rotations under which symmetric clouds of points look the same."""
    yield -np.eye(size)
    for k in range(min(leading, size)):
        turn = np.eye(size)
        turn[k, k] = -1.0
        yield turn
    for first, second in combinations(range(min(3, size)), 2):
        for spokes in (3, 4, 5, 6):
            cosine, sine = np.cos(2 * np.pi / spokes), np.sin(2 * np.pi / spokes)
            turn = np.eye(size)
            turn[np.ix_((first, second), (first, second))] = [[cosine, -sine], [sine, cosine]]
            yield turn


@dataclass(frozen=True, eq=False)
class CrossFit:
    """What models say about rows they never saw.

    A row's directions come from the other folds; each pair's correlation is that of all held-out projections, so
    neither directions nor scales were fitted on the rows they judge.

    Attributes:
        reference: whitened factors of the reference.
        table: whitened factors of the table.
        folds: the fold of each reference row.
        reference_maps: folds × reference factors × pairs; projections have unit variance.
        table_maps: folds × table factors × pairs.
        correlations: one per pair; 0 where chance would do as well.
    """

    reference: FloatArray
    table: FloatArray
    folds: IntArray
    reference_maps: FloatArray
    table_maps: FloatArray
    correlations: FloatArray

    @property
    def information(self) -> float:
        """Mean log-likelihood ratio of matches, −½ Σ log(1 − ρ²), in nats per row."""
        return _information(self.correlations)

    def match_ratios(self, permutation: IntArray) -> FloatArray:
        """Return the held-out log-likelihood ratio of each reference row with its match; 0 where it has none."""
        rho = self.correlations
        ratios = np.zeros(len(permutation))
        for fold, (forth, back) in enumerate(zip(self.reference_maps, self.table_maps, strict=True)):
            rows = np.flatnonzero((self.folds == fold) & (permutation >= 0))
            u, v = self.reference[rows] @ forth, self.table[permutation[rows]] @ back
            ratios[rows] = np.sum((2 * rho * u * v - rho**2 * (u**2 + v**2)) / (2 * (1 - rho**2)), axis=1)
        ratios[permutation >= 0] += self.information
        return ratios

    def log_ratios(self) -> FloatArray:
        """Return the held-out log-likelihood ratios of all pairs; row i by the model that never saw it."""
        kept = self.correlations > 0
        ratios = np.empty((len(self.reference), len(self.table)), dtype=self.reference.dtype)
        for fold, (forth, back) in enumerate(zip(self.reference_maps, self.table_maps, strict=True)):
            rows = self.folds == fold
            model = CanonicalModel(forth[:, kept], back[:, kept], self.correlations[kept])
            ratios[rows] = model.log_ratios(self.reference[rows], self.table)
        return ratios


def cross_fit(
    reference: FloatArray,
    table: FloatArray,
    permutation: IntArray,
    *,
    folds: int = 10,
    max_correlation: float = MAX_CORRELATION,
) -> CrossFit:
    """Fit a correspondence's model without each fold of rows in turn, and correlate what the held-out rows show.

    Pairs of directions whose held-out correlation is below 2/√n, which chance may give, count as 0.
    """
    paired = permutation >= 0
    n_paired = max(1, int(paired.sum()))
    matched = table[np.maximum(permutation, 0)]
    matched[~paired] = 0.0
    # The same balanced random folds for every correspondence of this size.
    labels = np.random.default_rng(0).permutation(np.arange(len(reference)) % min(folds, len(reference)))
    total = reference.T @ matched
    shape = (len(reference), min(total.shape))
    u, v = np.empty(shape, reference.dtype), np.empty(shape, reference.dtype)
    forth, back = [], []
    for fold in range(int(labels.max()) + 1):
        held = labels == fold
        left, _, right = np.linalg.svd(total - reference[held].T @ matched[held], full_matrices=False)
        u[held], v[held] = reference[held] @ left, matched[held] @ right.T
        forth.append(left)
        back.append(right.T)
    u[~paired] = 0.0
    scales = [np.sqrt(np.sum(part**2, axis=0) / n_paired) + 1e-12 for part in (u, v)]
    rho = np.sum(u * v, axis=0) / n_paired / (scales[0] * scales[1])
    rho = np.where(rho > 2 / np.sqrt(n_paired), np.minimum(rho, max_correlation), 0.0).astype(reference.dtype)
    maps = np.stack(forth) / scales[0], np.stack(back) / scales[1]
    return CrossFit(reference, table, labels.astype(np.int64), *maps, rho)


def _information(correlations: FloatArray) -> float:
    return float(-0.5 * np.log1p(-(correlations**2)).sum())
