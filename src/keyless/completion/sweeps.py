"""The sweeps behind Soft-Impute.

The problem is min ½‖P_Ω(X − M)‖² + λ‖M‖_*, written with factors M = left·rightᵀ as
½‖P_Ω(X − left·rightᵀ)‖² + λ/2(‖left‖² + ‖right‖²), which has the same minimum. Each sweep solves exactly for `left`,
row by row, then for `right`, column by column; Anderson acceleration, kept only when the objective falls, shortens the
way. Whenever the sweeps settle, the optimality condition of the nuclear norm, ‖P_Ω(X − M)‖₂ ≤ λ, is looked at: singular
directions of the residual above λ join the factors. So the rank grows to that of the minimiser, and a start in a
subspace is no trap. Offsets are columns of the factors that carry no penalty, their partner held at one. Long sparse
tables start from the answer for a tenth of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from keyless.arrays import (
    Array,
    array_like,
    is_numpy,
    namespace,
)
from keyless.completion.observed import ObservedTable, squares
from keyless.errors import CONVERGED, Status
from keyless.lowrank import SparsePlusLowRank, truncated_svd

__all__ = ["FactorLayout", "Settled", "head_start", "row_pass", "solve"]

_MEMORY = 5
"""How many earlier sweeps Anderson acceleration looks back."""

_ROUGH = 1e-3
"""Relative fall of the objective per sweep at which missing directions are looked for the first time."""

_LONG = 100_000
"""Sparse tables of this many rows or more are first fitted to a part of their rows."""

_PART = 0.1
"""That part of the rows."""

_UNSETTLED = Status("max_iter", "Stopped before settling. Raise max_iter or tolerance, or raise the penalty.")


@dataclass(frozen=True)
class FactorLayout:
    """Which columns of the factors are what: `rank` penalised pairs, then (a, 1) for row, (1, b) for column offsets."""

    rank: int
    row_offsets: bool = False
    column_offsets: bool = False

    @property
    def width(self) -> int:
        """Columns of a factor, offsets included."""
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


def take(matrix: Array, columns: Any) -> Array:
    if is_numpy(matrix):
        return matrix[:, columns]
    xp = namespace(matrix)
    return xp.take(matrix, array_like(np.asarray(columns, dtype=np.int64), matrix, dtype=xp.int64), axis=1)


def ridge(
    layout: FactorLayout, penalty: float, moments: Array, cross: Array, counts: Array, *, of_rows: bool
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
    wanted, gained = take(cross, free), 0.0
    if fixed is not None:
        wanted = wanted - take(moments, where[free, fixed])
        gained = float(0.5 * xp.sum(moments[:, int(where[fixed, fixed])]) - xp.sum(cross[:, fixed]))
    parts = []
    if width:
        normal = xp.reshape(take(moments, where[np.ix_(free, free)].ravel()), (size, width, width))
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
class Pass:
    """The rows solved for one right factor, and what the column step needs."""

    left: Array
    objective: float
    moments: Array
    cross: Array


def row_pass(table: ObservedTable, layout: FactorLayout, right: Array, penalty: float, *, columns: bool = True) -> Pass:
    """Solve all rows for a given `right`; collect the column moments on the way, so the data are read once a sweep."""
    xp = namespace(right)
    first, second, _ = layout.pairs()
    products = take(right, first) * take(right, second)
    lefts = xp.empty((table.shape[0], layout.width), dtype=right.dtype, device=right.device)
    gained = 0.0
    moments, cross = xp.zeros_like(products), xp.zeros_like(right)
    for part, values, seen in table.chunks(layout.width**2):
        left, gain = ridge(layout, penalty, seen @ products, values @ right, table.row_counts[part], of_rows=True)
        lefts[part, :] = left
        gained += gain
        if columns:
            moments = moments + seen.T @ (take(left, first) * take(left, second))
            cross = cross + values.T @ left
    objective = gained + 0.5 * table.energy + 0.5 * penalty * squares(right[:, : layout.rank])
    return Pass(lefts, objective, moments, cross)


def clean(layout: FactorLayout, left: Array, right: Array, penalty: float) -> tuple[FactorLayout, Array, Array]:
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


def directions(
    table: ObservedTable,
    layout: FactorLayout,
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
class Settled:
    """Where the sweeps settled."""

    layout: FactorLayout
    left: Array
    right: Array
    singular_values: Array
    history: tuple[float, ...]
    status: Status


def solve(
    table: ObservedTable,
    layout: FactorLayout,
    right: Array,
    penalty: float,
    *,
    limit: int,
    max_iter: int,
    tolerance: float,
) -> Settled:
    """Alternate exact row and column steps from `right` until neither they nor a new direction lower the objective."""
    xp = namespace(right)
    slack = tolerance**0.5
    history: list[float] = []
    trail: list[tuple[Array, Array]] = []
    status, rough, bound, plain = _UNSETTLED, True, float("inf"), right
    trial = right
    for sweep in range(max_iter):
        state = row_pass(table, layout, trial, penalty)
        if state.objective > bound:  # the accelerated point is no better than the plain one
            trial, trail = plain, []
            state = row_pass(table, layout, trial, penalty)
        right = trial
        fall = history[-1] - state.objective if history else float("inf")
        history.append(state.objective)
        # Only a full sweep can tell; the last term is rounding.
        settled = bound < float("inf") and fall <= tolerance * state.objective + 1e-15 * table.energy
        if settled or (rough and fall <= _ROUGH * state.objective) or (sweep == 0 and layout.rank == 0):
            new = None
            if layout.rank < limit:
                new = directions(
                    table, layout, state.left, right, penalty=penalty, limit=limit, slack=slack, certify=settled
                )
            if settled and (new is None or new.shape[1] == 0):
                status = CONVERGED
                break
            layout, trial, _ = clean(layout, state.left, right, penalty)
            if new is not None:
                trial = xp.concat([trial[:, : layout.rank], new, trial[:, layout.rank :]], axis=1)
                layout = replace(layout, rank=layout.rank + new.shape[1])
            rough = new is not None and new.shape[1] > 0
            bound, trail = float("inf"), []
            continue
        plain, gained = ridge(layout, penalty, state.moments, state.cross, table.column_counts, of_rows=False)
        bound = 0.5 * table.energy + gained + 0.5 * penalty * squares(state.left[:, : layout.rank])
        trail = [*trail, (right, plain)][-_MEMORY - 1 :]
        trial = extrapolate(trail, layout)
    layout, right, values = clean(layout, state.left, right, penalty)
    state = row_pass(table, layout, right, penalty, columns=False)
    if layout.rank:  # the columns of right are orthogonal, so those of the estimate are those of left, rescaled
        values = xp.linalg.svdvals(xp.linalg.qr(state.left[:, : layout.rank] * xp.sqrt(values))[1])
    return Settled(layout, state.left, right, values, (*history, state.objective), status)


def head_start(
    table: ObservedTable,
    layout: FactorLayout,
    right: Array,
    penalty: float,
    *,
    limit: int,
    generator: np.random.Generator,
) -> tuple[FactorLayout, Array]:
    """The right factor to start a long sparse table with: that of a random tenth of its rows, rescaled.

    Were the table f copies of its part, the minimiser would be the part's for λ/√f, with `right` f^¼ times as large. So
    most sweeps, and all in which the rank grows, read a tenth of the entries. The minimum sought stays the same.
    """
    rows = table.shape[0]
    if table.seen is not None or rows < _LONG:
        return layout, right
    chosen = np.sort(generator.choice(rows, round(_PART * rows), replace=False))
    part, weight = table.some_rows(chosen), penalty * _PART**0.5
    layout, right = head_start(part, layout, right, weight, limit=limit, generator=generator)
    found = solve(part, layout, right, weight, limit=limit, max_iter=50, tolerance=1e-4)
    right, layout = found.right.copy(), found.layout
    right[:, : layout.rank] *= _PART**-0.25
    return layout, right


def extrapolate(trail: list[tuple[Array, Array]], layout: FactorLayout) -> Array:
    """Anderson acceleration: the affine mix of the last sweeps whose steps cancel best, applied to their results.

    Offsets are mixed alike but not looked at, for their unit differs from that of the factors.
    """
    measured = slice(0, layout.rank or layout.width)
    moves = [(after - before)[:, measured] for before, after in trail]
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
