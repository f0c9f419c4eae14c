"""Fill the missing entries of one table: Soft-Impute.

The problem is min ½‖P_Ω(X − M)‖² + λ‖M‖_*, written with factors M = left·rightᵀ as
½‖P_Ω(X − left·rightᵀ)‖² + λ/2(‖left‖² + ‖right‖²), which has the same minimum. Each sweep solves exactly for `left`,
row by row, then for `right`, column by column; Anderson acceleration, kept only when the objective falls, shortens the
way. Whenever the sweeps settle, the optimality condition of the nuclear norm, ‖P_Ω(X − M)‖₂ ≤ λ, is looked at: singular
directions of the residual above λ join the factors. So the rank grows to that of the minimiser, and a start in a
subspace is no trap. Offsets are columns of the factors that carry no penalty, their partner held at one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from keyless.arrays import (
    Array,
    array_like,
    as_matrix,
    check_count,
    check_positive,
    is_numpy,
    namespace,
    random_generator,
)
from keyless.errors import CONVERGED, ConvergenceWarning, InputError, Status
from keyless.lowrank import SparsePlusLowRank, truncated_svd

__all__ = ["Completion", "SoftImpute", "soft_impute"]

_CHUNK = 4_000_000
"""Numbers in the largest temporary of a sweep, about 32 MB."""

_MEMORY = 5
"""How many earlier sweeps Anderson acceleration looks back."""

_ROUGH = 1e-3
"""Relative fall of the objective per sweep at which missing directions are looked for the first time."""

_OFFSETS = ("none", "columns", "rows", "both")

_DENSE = 0.25
"""Above this fraction of observed entries dense products are the faster ones."""

_UNSETTLED = Status("max_iter", "Stopped before settling. Raise max_iter or tolerance, or raise the penalty.")


@dataclass(frozen=True, eq=False)
class _Table:
    """Observed entries: dense `values` (0 where missing) with a 0/1 `seen`, or scipy CSR `values` and no `seen`."""

    values: Any
    seen: Array | None
    row_counts: Array
    column_counts: Array
    energy: float

    @classmethod
    def dense(cls, values: Array, mask: Array) -> _Table:
        """Take values that are zero where the boolean mask is False."""
        xp = namespace(values)
        seen = xp.astype(mask, values.dtype)
        return cls(values, seen, xp.sum(seen, axis=1), xp.sum(seen, axis=0), _squares(values))

    @classmethod
    def sparse(cls, values: Any) -> _Table:
        """Take a CSR array whose stored entries are the observed ones."""
        columns = np.bincount(values.indices, minlength=values.shape[1])
        return cls(values, None, np.diff(values.indptr), columns, _squares(values.data))

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    def chunks(self, width: int) -> Iterator[tuple[slice, Any, Any]]:
        """Yield row ranges with their values and their 0/1 indicator; both can be multiplied from both sides."""
        rows, columns = self.shape
        step = max(1, _CHUNK // max(1, width))
        for first in range(0, rows, step):
            part = slice(first, min(first + step, rows))
            if self.seen is not None:
                yield part, self.values[part, :], self.seen[part, :]
            else:
                bounds = self.values.indptr[part.start : part.stop + 1]
                inside = slice(bounds[0], bounds[-1])
                pattern = (self.values.indices[inside], bounds - bounds[0])
                data, shape = self.values.data[inside], (part.stop - part.start, columns)
                ones = sparse.csr_array((np.ones_like(data), *pattern), shape=shape)
                yield part, sparse.csr_array((data, *pattern), shape=shape), ones

    def residual(self, left: Array, right: Array) -> Any:
        """P_Ω(X − left·rightᵀ), dense or CSR as the table is."""
        if self.seen is not None:
            return self.values - self.seen * (left @ right.T)
        rows = np.repeat(np.arange(self.shape[0], dtype=self.values.indices.dtype), self.row_counts)
        data = self.values.data - _entries(left, right, rows, self.values.indices)
        return sparse.csr_array((data, self.values.indices, self.values.indptr), shape=self.shape)

    def means(self, axis: int) -> Array:
        """Mean observed entry of each row (axis 1) or column (axis 0), zero where nothing is observed. Numpy only."""
        counts = self.row_counts if axis else self.column_counts
        return np.asarray(self.values.sum(axis=axis)).ravel() / np.maximum(counts, 1)

    def less(self, rows: Array, columns: Array) -> _Table:
        """The same entries with row and column offsets taken off. Numpy only."""
        if self.seen is not None:
            return _Table.dense(self.values - self.seen * (rows[:, None] + columns), self.seen)
        data = self.values.data - np.repeat(rows, self.row_counts) - columns[self.values.indices]
        return _Table.sparse(sparse.csr_array((data, self.values.indices, self.values.indptr), shape=self.shape))

    def split(self, generator: np.random.Generator, fraction: float) -> tuple[_Table, Array, Array, Array]:
        """Hold out a random fraction of the observed entries: what is left, then their rows, columns and values."""
        if self.seen is not None:
            rows, columns = np.nonzero(self.seen)
        else:
            rows, columns = np.repeat(np.arange(self.shape[0]), self.row_counts), self.values.indices
        out = generator.permutation(len(rows)) < max(1, round(fraction * len(rows)))
        if self.seen is not None:
            kept, values = self.seen.astype(bool), self.values[rows, columns]
            kept[rows[out], columns[out]] = False
            return _Table.dense(np.where(kept, self.values, 0.0), kept), rows[out], columns[out], values[out]
        values = self.values.data
        left = sparse.csr_array((values[~out], (rows[~out], columns[~out])), shape=self.shape)
        return _Table.sparse(left), rows[out], columns[out], values[out]


def _is_sparse(table: Any) -> bool:
    return bool(sparse.issparse(table))


def _squares(array: Array) -> float:
    """The sum of squares."""
    if is_numpy(array):
        return float(np.vdot(array, array))
    return float(namespace(array).sum(array * array))


def _entries(left: Array, right: Array, rows: Array, columns: Array) -> Array:
    """Single entries of left·rightᵀ, without forming it."""
    found = np.empty(len(rows), dtype=left.dtype)
    step = max(1, _CHUNK // max(1, left.shape[1]))
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        np.einsum("ij,ij->i", left[rows[part]], right[columns[part]], out=found[part])
    return found


@dataclass(frozen=True)
class _Layout:
    """Which columns of the factors are what: `rank` penalised pairs, then (a, 1) for row, (1, b) for column offsets."""

    rank: int
    row_offsets: bool = False
    column_offsets: bool = False

    @property
    def width(self) -> int:
        return self.rank + self.row_offsets + self.column_offsets

    def free(self, *, of_rows: bool) -> list[int]:
        """Columns to solve for; the penalised ones first, then at most one offset."""
        own = self.row_offsets if of_rows else self.column_offsets
        return list(range(self.rank)) + ([self.rank if of_rows else self.width - 1] if own else [])

    def fixed(self, *, of_rows: bool) -> int | None:
        """The column held at one, which multiplies the other side's offset."""
        other = self.column_offsets if of_rows else self.row_offsets
        return (self.width - 1 if of_rows else self.rank) if other else None

    def pairs(self) -> tuple[Any, Any, Any]:
        """Index pairs i ≤ j, and the square table that says where each pair is."""
        first, second = np.triu_indices(self.width)
        where = np.empty((self.width, self.width), dtype=np.int64)
        where[first, second] = where[second, first] = np.arange(len(first))
        return first, second, where


def _take(matrix: Array, columns: Any) -> Array:
    if is_numpy(matrix):
        return matrix[:, columns]
    xp = namespace(matrix)
    return xp.take(matrix, array_like(np.asarray(columns, dtype=np.int64), matrix, dtype=xp.int64), axis=1)


def _ridge(
    layout: _Layout, penalty: float, moments: Array, cross: Array, counts: Array, *, of_rows: bool
) -> tuple[Array, float]:
    """Solve the small ridge problems of all rows (or all columns) at once.

    Args:
        layout: what the columns mean.
        penalty: λ.
        moments: per row, Σ_Ω of the products of all pairs of the other side's columns.
        cross: per row, Σ_Ω of value times the other side's columns.
        counts: per row, the number of observed entries.
        of_rows: whether rows or columns are solved.

    Returns:
        The factor of this side, and the smallest value of ½Σ_Ω(…)² + λ/2‖factor‖² less ½Σ_Ω X².
    """
    xp = namespace(cross)
    free, fixed = layout.free(of_rows=of_rows), layout.fixed(of_rows=of_rows)
    size, width = cross.shape[0], len(free)
    where = layout.pairs()[2]
    wanted, gained = _take(cross, free), 0.0
    if fixed is not None:
        wanted = wanted - _take(moments, where[free, fixed])
        gained = float(0.5 * xp.sum(moments[:, int(where[fixed, fixed])]) - xp.sum(cross[:, fixed]))
    parts = []
    if width:
        normal = xp.reshape(_take(moments, where[np.ix_(free, free)].ravel()), (size, width, width))
        weights = xp.full((size, width), penalty, dtype=cross.dtype, device=cross.device)
        if width > layout.rank:  # nothing observed leaves the offset open: keep it at zero
            weights[:, layout.rank] = xp.astype(counts == 0, cross.dtype)
        normal = normal + weights[:, :, None] * xp.eye(width, dtype=cross.dtype, device=cross.device)[None, :, :]
        solved = xp.linalg.solve(normal, wanted[:, :, None])[:, :, 0]
        gained -= float(0.5 * xp.sum(wanted * solved))
        parts = [solved]
    if fixed is not None:
        ones = xp.ones((size, 1), dtype=cross.dtype, device=cross.device)
        parts = [*(part[:, :fixed] for part in parts), ones, *(part[:, fixed:] for part in parts)]
    return (xp.concat(parts, axis=1) if parts else cross), gained


@dataclass(frozen=True, eq=False)
class _Pass:
    """The rows solved for one right factor, and what the column step needs."""

    left: Array
    objective: float
    moments: Array
    cross: Array


def _row_pass(table: _Table, layout: _Layout, right: Array, penalty: float, *, columns: bool = True) -> _Pass:
    """Solve all rows for a given `right`; collect the column moments on the way, so the data are read once a sweep."""
    xp = namespace(right)
    first, second, _ = layout.pairs()
    products = _take(right, first) * _take(right, second)
    lefts, gained = [], 0.0
    moments, cross = xp.zeros_like(products), xp.zeros_like(right)
    for part, values, seen in table.chunks(layout.width**2):
        left, gain = _ridge(layout, penalty, seen @ products, values @ right, table.row_counts[part], of_rows=True)
        lefts.append(left)
        gained += gain
        if columns:
            moments = moments + seen.T @ (_take(left, first) * _take(left, second))
            cross = cross + values.T @ left
    objective = gained + 0.5 * table.energy + 0.5 * penalty * _squares(right[:, : layout.rank])
    return _Pass(xp.concat(lefts, axis=0), objective, moments, cross)


def _clean(layout: _Layout, left: Array, right: Array, penalty: float) -> tuple[_Layout, Array, Array]:
    """Take one Soft-Impute step inside the span of `right`: it balances the factors and reveals their true rank.

    With `left` solved for, residual·right = λ·left. So with right = basis·diag(scale)·turnᵀ,
    (residual + M)·basis = left·turn·diag(λ/scale + scale), and nothing has to be read.

    Returns:
        The layout with the new rank, the balanced right factor, and the new singular values.
    """
    xp = namespace(right)
    rank = layout.rank
    if rank == 0:
        return layout, right, right[0, :0]
    basis, scale, turn = xp.linalg.svd(right[:, :rank], full_matrices=False)
    kept = int(xp.count_nonzero(scale > 1e-6 * scale[0]))  # the rest adds less than 1e-12 of the largest to M
    basis, scale, turn = basis[:, :kept], scale[:kept], turn.T[:, :kept]
    _, triangle = xp.linalg.qr((left[:, :rank] @ turn) * (penalty / scale + scale))
    _, values, turn = xp.linalg.svd(triangle, full_matrices=False)
    kept = int(xp.count_nonzero(values > penalty))
    values = values[:kept] - penalty
    factor = basis @ turn.T[:, :kept] * xp.sqrt(values)
    return replace(layout, rank=kept), xp.concat([factor, right[:, rank:]], axis=1), values


def _directions(
    table: _Table,
    layout: _Layout,
    left: Array,
    right: Array,
    *,
    penalty: float,
    limit: int,
    slack: float,
    certify: bool,
) -> Array:
    """Right factors of the residual's singular directions above λ: what the nuclear norm says is still missing.

    Appended to `right` they lower the objective: the quadratic has slope at most one, so a step of (singular value − λ)
    along a pair of unit vectors descends.
    """
    xp = namespace(right)
    room = min(limit, *table.shape) - layout.rank
    residual = table.residual(left, right)
    if layout.rank:  # directions already in the factors have singular value λ: take them out
        basis, _ = xp.linalg.qr(left[:, : layout.rank])
        image = residual.T @ basis
        residual = residual - basis @ image.T if table.seen is not None else SparsePlusLowRank(residual, -basis, image)
    count = min(room, max(10, layout.rank))
    # A few power steps find directions that matter; only a close call deserves more.
    found = truncated_svd(residual, count, max_iter=4)
    if certify and 0.8 * penalty < float(found.singular_values[0]) <= penalty * (1 + slack):
        found = truncated_svd(residual, count, start=found.right, tolerance=min(1e-2, 10 * slack), max_iter=30)
    values = found.singular_values
    above = int(xp.count_nonzero(values > penalty * (1 + slack)))
    if above > 2:  # stop at the widest gap, but let the rank double
        ratios = values[: above - 1] / values[1:above]
        above = max(int(xp.argmax(ratios)) + 1, min(above, max(2, layout.rank)))
    return found.right[:, :above] * xp.sqrt(values[:above] - penalty)


@dataclass(frozen=True, eq=False)
class _Solution:
    layout: _Layout
    left: Array
    right: Array
    singular_values: Array
    history: tuple[float, ...]
    status: Status


def _solve(
    table: _Table,
    layout: _Layout,
    right: Array,
    penalty: float,
    *,
    limit: int,
    max_iter: int,
    tolerance: float,
) -> _Solution:
    """Alternate exact row and column steps from `right` until neither they nor a new direction lower the objective."""
    xp = namespace(right)
    slack = tolerance**0.5
    history: list[float] = []
    trail: list[tuple[Array, Array]] = []
    status, rough, bound, plain = _UNSETTLED, True, float("inf"), right
    trial = right
    for sweep in range(max_iter):
        state = _row_pass(table, layout, trial, penalty)
        if state.objective > bound:  # the accelerated point is no better than the plain one
            trial, trail = plain, []
            state = _row_pass(table, layout, trial, penalty)
        right = trial
        fall = history[-1] - state.objective if history else float("inf")
        history.append(state.objective)
        # Only a full sweep can tell; the last term is rounding.
        settled = bound < float("inf") and fall <= tolerance * state.objective + 1e-15 * table.energy
        if settled or (rough and fall <= _ROUGH * state.objective) or (sweep == 0 and layout.rank == 0):
            new = None
            if layout.rank < limit:
                new = _directions(
                    table, layout, state.left, right, penalty=penalty, limit=limit, slack=slack, certify=settled
                )
            if settled and (new is None or new.shape[1] == 0):
                status = CONVERGED
                break
            layout, trial, _ = _clean(layout, state.left, right, penalty)
            if new is not None:
                trial = xp.concat([trial[:, : layout.rank], new, trial[:, layout.rank :]], axis=1)
                layout = replace(layout, rank=layout.rank + new.shape[1])
            rough = new is not None and new.shape[1] > 0
            bound, trail = float("inf"), []
            continue
        plain, gained = _ridge(layout, penalty, state.moments, state.cross, table.column_counts, of_rows=False)
        bound = 0.5 * table.energy + gained + 0.5 * penalty * _squares(state.left[:, : layout.rank])
        trail = [*trail, (right, plain)][-_MEMORY - 1 :]
        trial = _extrapolate(trail)
    layout, right, values = _clean(layout, state.left, right, penalty)
    state = _row_pass(table, layout, right, penalty, columns=False)
    return _Solution(layout, state.left, right, values, (*history, state.objective), status)


def _extrapolate(trail: list[tuple[Array, Array]]) -> Array:
    """Anderson acceleration: the affine mix of the last sweeps whose steps cancel best, applied to their results."""
    moves = [after - before for before, after in trail]
    last = trail[-1][1]
    if len(trail) == 1:
        return last
    xp = namespace(last)
    changes = [later - earlier for earlier, later in pairwise(moves)]
    gram = np.asarray([[float(xp.sum(one * two)) for two in changes] for one in changes])
    target = np.asarray([float(xp.sum(one * moves[-1])) for one in changes])
    weights = np.linalg.lstsq(gram, target, rcond=1e-12)[0]
    for weight, ((_, earlier), (_, later)) in zip(weights, pairwise(trail), strict=True):
        last = last - float(weight) * (later - earlier)
    return last


@dataclass(frozen=True, eq=False)
class Completion:
    """The low-rank estimate `left @ right.T` of a table with missing entries.

    Attributes:
        left: rows × rank, balanced with `right`.
        right: columns × rank; each column's squared length is a singular value of the estimate.
        singular_values: those of the estimate, largest first.
        objective: after each sweep, ½‖P_Ω(X − left·rightᵀ)‖² + λ/2(‖left‖² + ‖right‖²). It never rises, and its limit
            is the minimum of ½‖P_Ω(X − M)‖² + λ‖M‖_*.
        status: how the iteration ended.
    """

    left: Array
    right: Array
    singular_values: Array
    objective: tuple[float, ...]
    status: Status

    @property
    def rank(self) -> int:
        """Rank of the estimate."""
        return int(self.singular_values.shape[0])

    @property
    def nuclear_norm(self) -> float:
        """Nuclear norm of the estimate."""
        return float(namespace(self.singular_values).sum(self.singular_values))

    def estimate(self) -> Array:
        """Form the estimate."""
        return self.left @ self.right.T


def soft_impute(
    values: Array,
    mask: Array,
    penalty: float,
    *,
    start: Array | None = None,
    rank: int | None = None,
    max_iter: int = 200,
    tolerance: float = 1e-7,
) -> Completion:
    """Return argmin_M ½‖P_Ω(values − M)‖² + penalty·‖M‖_*, in factors.

    Args:
        values: rows × columns, an array of any library; entries outside the mask are not looked at.
        mask: True where observed, of the same shape.
        penalty: λ, above zero.
        start: columns × any number, a first right factor, such as the `right` of an earlier result.
        rank: the largest rank allowed; with None the convex problem is solved, with a limit it no longer is one.
        max_iter: the most sweeps.
        tolerance: settled when a sweep lowers the objective by less than this fraction and no direction is missing.

    Example:
        >>> import numpy as np
        >>> soft_impute(np.ones((3, 2)), np.ones((3, 2), dtype=bool), 0.1).rank
        1
    """
    given = as_matrix(values, name="values", allow_missing=True, allow_infinite=True)
    xp = namespace(given)
    mask = array_like(mask, given, dtype=xp.bool)
    if mask.shape != given.shape:
        raise InputError(f"mask: must have the shape of values, {given.shape}; found {mask.shape}.")
    filled = as_matrix(xp.where(mask, given, xp.zeros_like(given)), name="values")
    table = _observed(xp.astype(filled, xp.float64), mask)
    limit = check_count(min(given.shape) if rank is None else rank, name="rank", maximum=min(given.shape))
    right = xp.zeros((given.shape[1], 0), dtype=xp.float64, device=given.device)
    if start is not None:
        start = xp.astype(as_matrix(start, name="start"), xp.float64)
        if start.shape[0] != given.shape[1]:
            raise InputError(f"start: must have one row per column, {given.shape[1]}; found {start.shape[0]}.")
        basis, scale, _ = xp.linalg.svd(start, full_matrices=False)
        kept = min(limit, int(xp.count_nonzero(scale > 1e-6 * scale[0])))
        right = basis[:, :kept] * scale[:kept]
    found = _solve(
        table,
        _Layout(right.shape[1]),
        right,
        check_positive(penalty, name="penalty"),
        limit=limit,
        max_iter=check_count(max_iter, name="max_iter"),
        tolerance=check_positive(tolerance, name="tolerance"),
    )
    left, right, singular = (xp.astype(part, given.dtype) for part in (found.left, found.right, found.singular_values))
    return Completion(left, right, singular, found.history, found.status)


def _observed(values: Array, mask: Array) -> _Table:
    """The observed entries of a dense table; stored sparsely where few are observed, which is faster then."""
    if not is_numpy(values) or mask.mean() > _DENSE:
        return _Table.dense(values, mask)
    rows, columns = np.nonzero(mask)
    start = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=mask.shape[0]))])
    return _Table.sparse(sparse.csr_array((values[mask], columns, start), shape=mask.shape))


def _centre(table: _Table, layout: _Layout, columns: Array | None = None) -> tuple[_Table, Array, Array]:
    """Take off `columns` or the observed column means, then the observed row means, where the layout has offsets."""
    rows = np.zeros(table.shape[0])
    if columns is None:
        columns = table.means(0) if layout.column_offsets else np.zeros(table.shape[1])
    table = table.less(rows, columns)
    if layout.row_offsets:
        rows = table.means(1)
        table = table.less(rows, np.zeros(table.shape[1]))
    return table, rows, columns


class _Search:
    """Choose penalty and rank by the error on held-out entries.

    For one rank limit the penalty walks down a fixed grid, each fit starting from the one before, until the error has
    risen. Limits grow by half until the error rises, then the gaps around the best one are halved.
    """

    def __init__(
        self, split: tuple[_Table, Array, Array, Array], layout: _Layout, right: Array, steps: int, floor: float
    ) -> None:
        self.train, self.rows, self.columns, self.truth = split
        nothing = _solve(self.train, layout, right, 1.0, limit=0, max_iter=50, tolerance=1e-4)
        largest = float(truncated_svd(self.train.residual(nothing.left, nothing.right), 1).singular_values[0])
        self.penalties = max(largest, floor) * np.logspace(0, -4 if largest > floor else 0, steps)
        self.path: list[tuple[float, int, int, float]] = []
        self.fits: dict[int, dict[int, tuple[float, _Solution]]] = {0: {0: (self._error(nothing), nothing)}}

    def _error(self, fit: _Solution) -> float:
        gaps = self.truth - _entries(fit.left, fit.right, self.rows, self.columns)
        return float(np.sqrt(np.mean(gaps**2)))

    def best(self, limit: int) -> tuple[float, int]:
        """The lowest error with this rank limit, and the place of its penalty on the grid."""
        return min((error, step) for step, (error, _) in self.fits[limit].items())

    def attempt(self, limit: int) -> float:
        """Walk down the penalties with this rank limit; return the lowest error."""
        if limit not in self.fits:
            near = max(known for known in self.fits if known < limit)
            first = max(0, self.best(near)[1] - 3)
            fit = self.fits[near].get(first, next(iter(self.fits[near].values())))[1]
            found: dict[int, tuple[float, _Solution]] = {}
            for step in range(first, len(self.penalties)):
                penalty = float(self.penalties[step])
                fit = _solve(self.train, fit.layout, fit.right, penalty, limit=limit, max_iter=50, tolerance=1e-4)
                found[step] = (self._error(fit), fit)
                self.path.append((penalty, limit, fit.layout.rank, found[step][0]))
                if step - min(found, key=lambda known: found[known][0]) == 1:
                    break
            self.fits[limit] = found
        return self.best(limit)[0]

    def limit(self, largest: int) -> int:
        """The rank limit of lowest error."""
        now = 1
        while self.attempt(now) <= min(self.best(known)[0] for known in self.fits) and now < largest:
            now = min(now + (now + 1) // 2, largest)
        while True:
            best = min(self.fits, key=lambda known: self.best(known)[0])
            below = max((known for known in self.fits if known < best), default=best)
            above = min((known for known in self.fits if known > best), default=best)
            gaps = [(one + two) // 2 for one, two in ((below, best), (best, above)) if two - one > 1]
            if not gaps:
                return max(best, 1)
            for middle in gaps:
                if self.attempt(middle) < self.best(best)[0]:
                    break


def _offsets(found: _Solution, observed: _Table, rows: Array, columns: Array) -> tuple[Array, float]:
    """All column offsets, and the row offset of a row with nothing observed; both the mean of the others there."""
    layout = found.layout
    if layout.row_offsets:
        rows = rows + found.left[:, layout.rank]
    level = float(rows[observed.row_counts > 0].mean())
    if not layout.column_offsets:
        return columns, level
    columns = columns + found.right[:, -1] + level
    columns[observed.column_counts == 0] = columns[observed.column_counts > 0].mean()
    return columns, 0.0


class SoftImpute(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill missing entries: argmin_M ½‖P_Ω(X − offsets − M)‖² + λ‖M‖_*, Ω being the observed entries.

    A dense table marks missing entries with NaN. In a scipy sparse table, entries that are not stored are missing,
    stored zeros are observed, and fitting never forms the dense table. `transform` and `fit_transform` return a dense
    array in both cases, observed entries untouched; where that would be too large, call `fit` and read entries with
    `estimate_at`. New rows are filled by their best fit to the columns' factors, with the same penalty; for the rows of
    the fit this gives what the fit gave.

    Columns are not rescaled. Standardise them first if their units differ.

    Args:
        penalty: λ. None chooses it by the error on held-out observed entries along a decreasing path, with the rank.
        rank: the largest rank allowed. None means no limit where `penalty` is given, else that it is chosen too.
        n_penalties: length of the path, which spans four powers of ten.
        validation_fraction: the part of the observed entries held out while choosing.
        offsets: "columns" gives every column its own level, fitted on the observed entries and not penalised; "rows"
            does so for rows; "both"; or "none". An offset that no entry determines is the mean of the others.
        max_iter: the most sweeps of the final fit.
        tolerance: settled when a sweep lowers the objective by less than this fraction and no direction is missing.
        random_state: seed of the choice of held-out entries.

    Attributes:
        penalty_: the λ used.
        rank_: rank of M.
        components_: rank × columns, orthonormal rows.
        singular_values_: those of M.
        row_factors_: rows × rank; M = row_factors_ @ column_factors_.T.
        column_factors_: columns × rank, the components times the root of the singular values.
        row_offsets_: one per row; zeros without row offsets.
        column_offsets_: one per column; zeros without column offsets.
        objective_: after each sweep; never rises (see `Completion.objective`).
        path_: dict of arrays `penalty`, `rank_limit`, `rank`, `validation_error`, one entry per fit while choosing.
        n_iter_: sweeps of the final fit.
        status_: how the final fit ended, with advice.

    Example:
        >>> import numpy as np
        >>> table = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
        >>> table[0, 0] = np.nan
        >>> filled = SoftImpute(penalty=0.01, offsets="none").fit_transform(table)
        >>> round(float(filled[0, 0]), 1)
        1.0
    """

    def __init__(
        self,
        *,
        penalty: float | None = None,
        rank: int | None = None,
        n_penalties: int = 20,
        validation_fraction: float = 0.1,
        offsets: str = "columns",
        max_iter: int = 200,
        tolerance: float = 1e-7,
        random_state: Any = 0,
    ) -> None:
        self.penalty = penalty
        self.rank = rank
        self.n_penalties = n_penalties
        self.validation_fraction = validation_fraction
        self.offsets = offsets
        self.max_iter = max_iter
        self.tolerance = tolerance
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> SoftImpute:  # noqa: N803, ARG002
        """Fit offsets and factors to the observed entries of `X`."""
        given, observed = self._read(X, reset=True)
        if self.offsets not in _OFFSETS:
            raise InputError(f"offsets: must be one of {', '.join(_OFFSETS)}; found {self.offsets!r}.")
        if observed.row_counts.sum() == 0:
            raise InputError("X: must have at least one observed entry; found only missing ones.")
        max_iter = check_count(self.max_iter, name="max_iter")
        tolerance = check_positive(self.tolerance, name="tolerance")
        fraction = check_positive(self.validation_fraction, name="validation_fraction")
        if fraction >= 1:
            raise InputError(f"validation_fraction: must be between 0 and 1; found {fraction}.")
        generator = random_generator(self.random_state)
        layout = _Layout(0, self.offsets in ("rows", "both"), self.offsets in ("columns", "both"))
        table, rows, columns = _centre(observed, layout)
        shortest = min(table.shape)
        limit = shortest if self.rank is None else check_count(self.rank, name="rank", maximum=shortest)
        right = np.repeat([[1.0, 0.0]], table.shape[1], axis=0)
        right = right[:, not layout.row_offsets : 1 + layout.column_offsets]
        path: list[tuple[float, int, int, float]] = []
        if self.penalty is None:
            noise = 1e-12 * observed.energy**0.5 or 1.0  # a residual below this is rounding
            steps = check_count(self.n_penalties, name="n_penalties")
            search = _Search(table.split(generator, fraction), layout, right, steps, noise)
            if self.rank is None:
                limit = search.limit(limit)
            search.attempt(limit)
            step = search.best(limit)[1]
            start = search.fits[limit][step][1]
            penalty, start_layout, right, path = float(search.penalties[step]), start.layout, start.right, search.path
        else:
            penalty, start_layout = check_positive(self.penalty, name="penalty"), layout
        found = _solve(table, start_layout, right, penalty, limit=limit, max_iter=max_iter, tolerance=tolerance)
        if not found.status.converged:
            warnings.warn(f"SoftImpute: {found.status.advice}", ConvergenceWarning, stacklevel=2)
        rank = found.layout.rank
        columns, self._row_level = _offsets(found, observed, rows, columns)
        self.column_offsets_ = columns.astype(given.dtype)
        self.penalty_, self.rank_, self.status_ = penalty, rank, found.status
        self.singular_values_ = found.singular_values.astype(given.dtype)
        self.column_factors_ = found.right[:, :rank].astype(given.dtype)
        self.components_ = (self.column_factors_ / np.sqrt(self.singular_values_)).T
        self.objective_ = np.asarray(found.history)
        self.n_iter_ = len(found.history) - 1
        names = ("penalty", "rank_limit", "rank", "validation_error")
        self.path_ = {name: np.asarray([point[place] for point in path]) for place, name in enumerate(names)}
        left, row_offsets = self._solve_rows(observed)
        self.row_factors_, self.row_offsets_ = left.astype(given.dtype), row_offsets.astype(given.dtype)
        return self

    def _solve_rows(self, observed: _Table) -> tuple[Array, Array]:
        """For each row, argmin_z ½‖x_Ω − V_Ω z‖² + λ/2‖z‖², offsets taken off or, for rows, solved for as well."""
        layout = _Layout(self.rank_, row_offsets=self.offsets in ("rows", "both"))
        right = np.ones((observed.shape[1], layout.width))
        right[:, : self.rank_] = self.column_factors_
        table, rows, _ = _centre(observed, layout, self.column_offsets_.astype(np.float64))
        left = _row_pass(table, layout, right, self.penalty_, columns=False).left
        if layout.row_offsets:
            rows = np.where(observed.row_counts > 0, rows + left[:, self.rank_], self._row_level)
        return left[:, : self.rank_], rows

    def transform(self, X: Any) -> Array:  # noqa: N803
        """Return `X` as a dense array with its missing entries filled; observed entries are returned untouched."""
        check_is_fitted(self)
        given, observed = self._read(X, reset=False)
        left, rows = self._solve_rows(observed)
        filled = left @ self.column_factors_.T.astype(np.float64)
        filled += rows[:, None]
        filled += self.column_offsets_
        filled = filled.astype(given.dtype, copy=False)
        if _is_sparse(given):
            given = given.tocoo()
            seen = ~np.isnan(given.data)
            filled[given.row[seen], given.col[seen]] = given.data[seen]
        else:
            np.copyto(filled, given, where=~np.isnan(given))
        return filled

    def estimate_at(self, rows: Any, columns: Any) -> Array:
        """Return single entries of offsets + M for rows of the fitted table, without forming it.

        Args:
            rows: row numbers.
            columns: column numbers; broadcast against `rows`.
        """
        check_is_fitted(self)
        rows, columns = np.broadcast_arrays(rows, columns)
        for name, places, size in (
            ("rows", rows, len(self.row_factors_)),
            ("columns", columns, len(self.column_factors_)),
        ):
            if places.dtype.kind not in "iu" or (places.size and not 0 <= places.min() <= places.max() < size):
                raise InputError(f"{name}: must be whole numbers from 0 to {size - 1}; found {places!r}.")
        found = _entries(self.row_factors_, self.column_factors_, rows.ravel(), columns.ravel()).reshape(rows.shape)
        return found + self.row_offsets_[rows] + self.column_offsets_[columns]

    def _read(self, X: Any, *, reset: bool) -> tuple[Any, _Table]:  # noqa: N803
        """Check the caller's table; return it and its observed entries."""
        try:
            X = validate_data(  # noqa: N806
                self, X, accept_sparse="csr", dtype=(np.float64, np.float32), ensure_all_finite=False, reset=reset
            )
        except ValueError as error:
            raise InputError(f"X: {error}") from error
        if not _is_sparse(X):
            as_matrix(X, name="X", allow_missing=True)
            seen = ~np.isnan(X)
            return X, _observed(np.where(seen, X, 0.0).astype(np.float64, copy=False), seen)
        if np.isinf(X.data).any():
            raise InputError("X: must hold finite numbers; found an infinity among the stored entries. Drop it.")
        if not X.has_canonical_format:
            X = X.copy()  # noqa: N806
            X.sum_duplicates()
        stored = X.tocoo() if np.isnan(X.data).any() else None
        if stored is None:
            return X, _Table.sparse(sparse.csr_array((X.data.astype(np.float64), X.indices, X.indptr), shape=X.shape))
        seen = ~np.isnan(stored.data)
        entries = (stored.data[seen].astype(np.float64), (stored.row[seen], stored.col[seen]))
        return X, _Table.sparse(sparse.csr_array(entries, shape=X.shape))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
