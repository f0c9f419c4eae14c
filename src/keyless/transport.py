"""Entropic optimal transport: the soft correspondence between two sets of rows.

The balanced problem is

    argmin_P  ⟨cost, P⟩ + ε Σ P (log P − 1)   subject to  P·1 = row_mass,  Pᵀ·1 = column_mass,

and the unbalanced one replaces the two constraints by τ·KL(P·1 | row_mass) + τ·KL(Pᵀ·1 | column_mass). Both are
solved on the dual potentials α, β, with coupling = exp((α ⊕ β − cost) / ε).

How: the kernel K = exp((α ⊕ β − cost)/ε) is kept and only its row and column scalings are iterated, so that an
iteration is two matrix–vector products. Before the scalings can overflow they are absorbed into the potentials and K
is rebuilt exactly from the cost, so small ε is as safe as in the log domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from keyless.arrays import (
    Array,
    array_like,
    as_cost,
    as_float,
    check_count,
    check_positive,
    exp_in_place,
    is_finite,
    is_numpy,
    namespace,
)
from keyless.errors import CONVERGED, InputError, Status
from keyless.progress import check_time

__all__ = ["Transport", "sinkhorn", "sinkhorn_of_ones"]


_CHECK_EVERY = 10
"""Iterations between two looks at the residual: a look costs about as much as an iteration."""


@dataclass(frozen=True)
class Transport:
    """A solution of the entropic transport problem.

    Attributes:
        coupling: `coupling[i, j]` is the mass moved from row i to column j.
        potentials: the dual variables (α, β); give them back to `sinkhorn` as a warm start.
        cost: the cost that was given.
        epsilon: the entropy weight that was given.
        row_mass: the row marginal asked for.
        column_mass: the column marginal asked for.
        iterations: how many times both potentials were updated.
        residual: how far the row sums are from `row_mass`, as (1/√n)·‖P·1 − row_mass‖₂; for the unbalanced problem,
            the same with `row_mass` times the factor by which one more update would divide each row in place of P·1.
        status: how the iteration ended.
    """

    coupling: Array
    potentials: tuple[Array, Array]
    cost: Array
    epsilon: float
    row_mass: Array
    column_mass: Array
    iterations: int
    residual: float
    status: Status

    def __repr__(self) -> str:
        rows, columns = self.coupling.shape
        return f"Transport: {rows:,} × {columns:,}, {self.iterations} iterations, {self.status}"

    @property
    def transport_cost(self) -> float:
        """⟨cost, coupling⟩, where a forbidden (infinite) cost carries no mass and counts as zero."""
        xp = namespace(self.cost)
        finite = xp.isfinite(self.cost)
        return float(xp.sum(xp.where(finite, self.cost, xp.zeros_like(self.cost)) * self.coupling))

    @property
    def negative_entropy(self) -> float:
        """Σ P (log P − 1), with 0·log 0 = 0."""
        xp = namespace(self.coupling)
        logarithm = xp.log(xp.where(self.coupling > 0, self.coupling, xp.ones_like(self.coupling)))
        return float(xp.sum(self.coupling * (logarithm - 1)))

    @property
    def entropic_cost(self) -> float:
        """⟨cost, P⟩ + ε Σ P (log P − 1), from ε·log P = α ⊕ β − cost: no logarithm of a matrix is taken."""
        xp = namespace(self.coupling)
        rows, columns = self.potentials
        row_sums = xp.sum(self.coupling, axis=1)
        linear = xp.vecdot(row_sums, rows) + xp.vecdot(xp.sum(self.coupling, axis=0), columns)
        return float(linear - self.epsilon * xp.sum(row_sums))

    @property
    def dual_objective(self) -> float:
        """⟨row_mass, α⟩ + ⟨column_mass, β⟩ − ε·ΣP, the value of the balanced dual."""
        xp = namespace(self.cost)
        rows, columns = self.potentials
        linear = xp.sum(self.row_mass * rows) + xp.sum(self.column_mass * columns)
        return float(linear - self.epsilon * xp.sum(self.coupling))


def sinkhorn(
    cost: Array,
    *,
    epsilon: float,
    row_mass: Array | None = None,
    column_mass: Array | None = None,
    marginal_penalty: float | None = None,
    potentials: tuple[Array, Array] | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 10_000,
    check_every: int = _CHECK_EVERY,
) -> Transport:
    """Solve argmin_P ⟨cost, P⟩ + ε Σ P (log P − 1) over couplings P with the given marginals.

    Args:
        cost: n × m costs. An infinite cost forbids the pair.
        epsilon: the entropy weight ε, in units of the cost.
        row_mass: what each row sends; ones unless given.
        column_mass: what each column receives; unless given, all columns receive the same, and together as much as
            the rows send (unbalanced: ones). When the problem is square, that is ones.
        marginal_penalty: τ, the weight of the Kullback–Leibler penalty on both marginals (unbalanced transport).
            None: the marginals are constraints.
        potentials: (α, β) to start from, as in the result of an earlier call.
        tolerance: stop when `Transport.residual` is at most this.
        max_iter: stop after this many iterations, converged or not.
        check_every: look at the residual every so many iterations.

    Returns:
        The coupling with its potentials; `status` says whether it converged and what to do if not.

    Example:
        >>> import numpy as np
        >>> cost = np.array([[0.0, 1.0], [1.0, 0.0]])
        >>> sinkhorn(cost, epsilon=0.05).coupling.round(6)
        array([[1., 0.],
               [0., 1.]])
    """
    epsilon = check_positive(epsilon, name="epsilon")
    tolerance = check_positive(tolerance, name="tolerance")
    max_iter = check_count(max_iter, name="max_iter")
    check_every = check_count(check_every, name="check_every")
    if marginal_penalty is not None:
        marginal_penalty = check_positive(marginal_penalty, name="marginal_penalty")
    cost = as_cost(cost, name="cost")
    all_finite = is_finite(cost)
    if not all_finite:
        _refuse_hopeless(cost)
    _refuse_overflow(cost, epsilon, marginal_penalty, all_finite=all_finite)
    row_mass, column_mass = _checked_masses(cost, row_mass, column_mass, balanced=marginal_penalty is None)
    start = _checked_start(cost, potentials)

    scaling = _Scaling(
        cost,
        epsilon=epsilon,
        row_mass=row_mass,
        column_mass=column_mass,
        marginal_penalty=marginal_penalty,
        start=start,
    )
    return _solved(scaling, tolerance=tolerance, max_iter=max_iter, check_every=check_every)


def sinkhorn_of_ones(
    cost: Array,
    *,
    epsilon: float,
    potentials: tuple[Array, Array] | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 10_000,
) -> Transport:
    """Solve what `sinkhorn` solves for a square cost and masses of one, without looking at the input twice.

    For solvers that call it thousands of times on small costs of their own making: finite, and with options and
    potentials that need no check.

    Args:
        cost: n × n finite costs.
        epsilon: as in `sinkhorn`.
        potentials: as in `sinkhorn`.
        tolerance: as in `sinkhorn`.
        max_iter: as in `sinkhorn`.
    """
    xp = namespace(cost)
    _refuse_small_epsilon(epsilon, float(xp.max(cost)), cost.dtype, xp)
    ones = xp.ones((cost.shape[0],), dtype=cost.dtype, device=cost.device)
    scaling = _Scaling(
        cost,
        epsilon=epsilon,
        row_mass=ones,
        column_mass=ones,
        marginal_penalty=None,
        start=xp.zeros_like(ones) if potentials is None else potentials[1],
        spread=1.0,
    )
    return _solved(scaling, tolerance=tolerance, max_iter=max_iter, check_every=_CHECK_EVERY)


def _solved(scaling: _Scaling, *, tolerance: float, max_iter: int, check_every: int) -> Transport:
    residual = scaling.run(tolerance=tolerance, max_iter=max_iter, check_every=check_every)
    status = CONVERGED
    if not residual <= tolerance:
        advice = (
            f"Stopped after {scaling.iterations} iterations with residual {residual:.2g}, above the tolerance "
            f"{tolerance:.2g}. Raise max_iter, or raise epsilon, or start from the potentials of a larger epsilon."
        )
        if scaling.damping == 1.0 and bool(scaling.xp.any(scaling.xp.isinf(scaling.cost))):
            advice += " If that does not help, the pairs of finite cost may not admit these masses: allow more pairs."
        status = Status("max_iter", advice)
    potentials = scaling.potentials()
    return Transport(
        coupling=scaling.coupling(),
        potentials=potentials,
        cost=scaling.cost,
        epsilon=scaling.epsilon,
        row_mass=scaling.row_mass,
        column_mass=scaling.column_mass,
        iterations=scaling.iterations,
        residual=residual,
        status=status,
    )


class _Scaling:
    """The iterate: kernel K built at potentials (α, β), times row scaling u and column scaling v."""

    def __init__(
        self,
        cost: Array,
        *,
        epsilon: float,
        row_mass: Array,
        column_mass: Array,
        marginal_penalty: float | None,
        start: Array,
        spread: float | None = None,
    ) -> None:
        self.xp: Any = namespace(cost)
        self.cost = cost
        self.epsilon = epsilon
        self.row_mass = row_mass
        self.column_mass = column_mass
        # Unbalanced updates are damped by κ = τ/(τ + ε); κ = 1 is the balanced case.
        self.damping = 1.0 if marginal_penalty is None else marginal_penalty / (marginal_penalty + epsilon)
        # K loses what underflows; scalings may grow until what was lost could matter, with a wide margin.
        double = self.xp.finfo(cost.dtype).bits >= 64
        self.largest = 1e60 if double else 1e15
        # A pass over the scalings costs as much as a product when n is small. After the first iterations of the
        # balanced problem no scaling changes by more than a factor of n times the spread of the masses at a time, so
        # looking now and then is enough.
        if spread is None:
            spread = max(float(self.xp.max(mass) / self.xp.min(mass)) for mass in (row_mass, column_mass))
        self.look_every = 10 if double and marginal_penalty is None and spread < 1e4 else 1
        self.iterations = 0
        # With α = min_j (cost − β) the largest entry of every row of K is one, so no row can vanish.
        self.rows = self.xp.min(cost - start[None, :], axis=1)
        self.columns = start
        self._build()

    def _build(self) -> None:
        kernel = self.rows[:, None] + self.columns[None, :]
        kernel -= self.cost
        kernel /= self.epsilon
        self.kernel = exp_in_place(kernel)
        self.row_scale = self.xp.ones_like(self.row_mass)
        self.column_scale = self.xp.ones_like(self.column_mass)

    def run(self, *, tolerance: float, max_iter: int, check_every: int) -> float:
        """Iterate until the residual is at most `tolerance`; return the residual."""
        if self.look_every > 1 and is_numpy(self.kernel):
            self._leap(min(check_every, self.look_every, max_iter))
        while True:
            check_time()
            row_scale = self._optimal_scale(self.row_mass, self.kernel @ self.column_scale, self.rows)
            rows = None if row_scale is not None else self._exact(self.row_mass, self.potentials()[1], axis=1)
            done = self.iterations >= max_iter
            if self.iterations and (done or self.iterations % check_every == 0):
                residual = self._residual(row_scale, rows)
                if done or residual <= tolerance:
                    return residual
            self._step(row_scale, rows)
            self.iterations += 1
            if self.look_every > 1 and self.iterations >= 3:
                stops = (self.look_every, check_every)
                self._glide(min(max_iter, *(-(-self.iterations // stop) * stop for stop in stops)))

    def _glide(self, until: int) -> None:
        """Iterate up to a given count without looking, when nothing can overflow on the way."""
        count = until - self.iterations
        if is_numpy(self.kernel):
            self._glide_in_place(count)
        else:
            for _ in range(count):
                self.row_scale = self.row_mass / (self.kernel @ self.column_scale)
                self.column_scale = self.column_mass / (self.row_scale @ self.kernel)
        self.iterations = max(until, self.iterations)

    def _leap(self, count: int) -> None:
        """Make the first iterations without looking; go back to the start if a scaling grew too large on the way."""
        with np.errstate(all="ignore"):
            self._glide_in_place(count)
            smallest = min(self.row_scale.min(), self.column_scale.min())
            largest = max(self.row_scale.max(), self.column_scale.max())
        # Comparisons with NaN are false.
        if smallest * self.largest > 1 and largest < self.largest:
            self.iterations = count
        else:
            self.row_scale = self.xp.ones_like(self.row_mass)
            self.column_scale = self.xp.ones_like(self.column_mass)

    def _glide_in_place(self, count: int) -> None:
        """Do the same into memory that is there already: small problems then take 60% of the time."""
        rows, columns = self.row_scale.copy(), self.column_scale.copy()
        times_columns, times_rows, divide = self.kernel.dot, self.kernel.T.dot, np.divide
        for _ in range(count):
            times_columns(columns, rows)
            divide(self.row_mass, rows, rows)
            times_rows(rows, columns)
            divide(self.column_mass, columns, columns)
        self.row_scale, self.column_scale = rows, columns

    def _step(self, row_scale: Array | None, rows: Array | None) -> None:
        """Take the new row scaling, or where there is none the new row potentials, and update the columns."""
        if row_scale is not None:
            column_scale = self._optimal_scale(self.column_mass, row_scale @ self.kernel, self.columns)
            if column_scale is not None:
                self.row_scale, self.column_scale = row_scale, column_scale
                return
            rows = self.rows + self.epsilon * self.xp.log(row_scale)
        self.rows = rows
        self.columns = self._exact(self.column_mass, rows, axis=0)
        self._build()

    def _optimal_scale(self, mass: Array, sums: Array, potential: Array) -> Array | None:
        """Return the scaling that is optimal when the other side is held fixed, or None where it could overflow."""
        look = self.iterations < 3 or self.iterations % self.look_every == 0
        if look and not bool(self.xp.all((sums > mass / self.largest) & (sums / self.largest < mass))):
            return None
        if self.damping == 1.0:
            return mass / sums
        log_scale = self.damping * (self.xp.log(mass) - self.xp.log(sums))
        log_scale -= (1 - self.damping) / self.epsilon * potential
        return None if bool(self.xp.any(self.xp.abs(log_scale) > log(self.largest))) else exp_in_place(log_scale)

    def _exact(self, mass: Array, other: Array, *, axis: int) -> Array:
        """Return the optimal potentials given those of the other side, summing over `axis` in the log domain."""
        exponent = (other[:, None] if axis == 0 else other[None, :]) - self.cost
        exponent /= self.epsilon
        largest = self.xp.max(exponent, axis=axis, keepdims=True)
        exponent -= largest
        sums = self.xp.sum(exp_in_place(exponent), axis=axis)
        log_sums = self.xp.squeeze(largest, axis=axis) + self.xp.log(sums)
        return self.damping * self.epsilon * (self.xp.log(mass) - log_sums)

    def _residual(self, row_scale: Array | None, rows: Array | None) -> float:
        """(1/√n)‖P·1 − row_mass‖₂, read off the next row update: P·1 = row_mass ∘ (old scale / new scale)."""
        if row_scale is not None:
            ratio = self.row_scale / row_scale
        else:
            bound = log(self.largest)
            ratio = self.xp.exp(self.xp.clip((self.potentials()[0] - rows) / self.epsilon, -bound, bound))
        change = self.row_mass * (ratio - 1)
        return float(self.xp.sqrt(self.xp.mean(change * change)))

    def potentials(self) -> tuple[Array, Array]:
        """Return the potentials with the scalings absorbed."""
        return (
            self.rows + self.epsilon * self.xp.log(self.row_scale),
            self.columns + self.epsilon * self.xp.log(self.column_scale),
        )

    def coupling(self) -> Array:
        """Turn the kernel into the coupling, in place: the iteration is over."""
        self.kernel *= self.row_scale[:, None]
        self.kernel *= self.column_scale[None, :]
        return self.kernel


def _refuse_hopeless(cost: Array) -> None:
    xp = namespace(cost)
    for axis, side in ((1, "row"), (0, "column")):
        hopeless = xp.all(xp.isinf(cost), axis=axis)
        if bool(xp.any(hopeless)):
            where = int(xp.argmax(xp.astype(hopeless, xp.int64)))
            raise InputError(
                f"cost, {side} {where}: must allow at least one pair; every cost is infinite. "
                f"Leave the {side} out or give it a finite cost."
            )


def _refuse_overflow(cost: Array, epsilon: float, marginal_penalty: float | None, *, all_finite: bool) -> None:
    """Refuse numbers whose exponents, or whose coupling, no float of this precision can hold."""
    xp = namespace(cost)
    limits = xp.finfo(cost.dtype)
    finite = cost if all_finite else xp.where(xp.isinf(cost), xp.zeros_like(cost), cost)
    lowest, highest = float(xp.min(finite)), float(xp.max(finite))
    _refuse_small_epsilon(epsilon, max(abs(lowest), abs(highest)), cost.dtype, xp)
    if marginal_penalty is not None:
        # At the optimum log P ≤ (τ log(row mass · column mass) − cost) / (2τ + ε): negative costs attract mass.
        exponent = -lowest / (2 * marginal_penalty + epsilon)
        if exponent > log(float(limits.max)) / 4:
            raise InputError(
                f"cost: must not be this far below zero for marginal_penalty {marginal_penalty!r}; found "
                f"{-exponent * (2 * marginal_penalty + epsilon):.2g}, and the coupling would hold masses of about "
                f"exp({exponent:.0f}). Raise marginal_penalty or add a constant to the cost."
            )


def _refuse_small_epsilon(epsilon: float, largest: float, dtype: Any, xp: Any) -> None:
    limits = xp.finfo(dtype)
    if epsilon < float(limits.smallest_normal) or largest / epsilon > float(limits.max) / 16:
        raise InputError(
            f"epsilon: must not be this small for {dtype} costs up to {largest:.2g}; found {epsilon!r}. "
            "Raise epsilon or rescale the cost."
        )


def _checked_masses(cost: Array, row_mass: Any, column_mass: Any, *, balanced: bool) -> tuple[Array, Array]:
    n_rows, n_columns = cost.shape
    rows = _checked_mass(cost, row_mass, n_rows, 1.0, name="row_mass")
    xp = namespace(cost)
    total = float(xp.sum(rows))
    columns = _checked_mass(cost, column_mass, n_columns, total / n_columns if balanced else 1.0, name="column_mass")
    received = float(xp.sum(columns))
    # Compare at the precision of the sums themselves.
    if balanced and abs(total - received) > 100 * float(xp.finfo(cost.dtype).eps) * (n_rows + n_columns) * total:
        raise InputError(
            f"row_mass and column_mass: must have the same total; found {total} and {received}. "
            "Rescale one of them, or set marginal_penalty for unbalanced transport."
        )
    return rows, columns


def _checked_mass(cost: Array, mass: Any, size: int, default: float, *, name: str) -> Array:
    xp = namespace(cost)
    if mass is None:
        return xp.full((size,), default, dtype=cost.dtype, device=cost.device)
    mass = array_like(as_float(mass, name=name), cost)
    if tuple(mass.shape) != (size,):
        raise InputError(f"{name}: must have {size} entries, as the cost does; found shape {tuple(mass.shape)}.")
    bad = ~(xp.isfinite(mass) & (mass > 0))
    if bool(xp.any(bad)):
        where = int(xp.argmax(xp.astype(bad, xp.int64)))
        raise InputError(
            f"{name}, entry {where}: must be positive and finite; found {float(mass[where])}. "
            "Leave out rows and columns without mass."
        )
    return mass


def _checked_start(cost: Array, potentials: tuple[Any, Any] | None) -> Array:
    """Return the column potential to start from; the first row update forgets the row potential."""
    xp = namespace(cost)
    if potentials is None:
        return xp.zeros((cost.shape[1],), dtype=cost.dtype, device=cost.device)
    try:
        rows, columns = potentials
    except (TypeError, ValueError) as error:
        raise InputError("potentials: must be a pair (rows, columns), such as those of an earlier result.") from error
    checked = []
    for potential, size, side in ((rows, cost.shape[0], "row"), (columns, cost.shape[1], "column")):
        values = array_like(as_float(potential, name=f"potentials, {side}s"), cost)
        if tuple(values.shape) != (size,):
            raise InputError(
                f"potentials, {side}s: must have {size} entries, as the cost does; found shape {tuple(values.shape)}."
            )
        if not bool(xp.all(xp.isfinite(values))):
            raise InputError(f"potentials, {side}s: must be finite numbers; found NaN or an infinity. Leave them out.")
        checked.append(values)
    return checked[1]
