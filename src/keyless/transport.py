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
from typing import Any

from keyless.arrays import Array, array_like, as_float, as_matrix, check_count, check_positive, exp_in_place, namespace
from keyless.errors import CONVERGED, InputError, Status

__all__ = ["Transport", "sinkhorn"]


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
            how much the last row update would still change them.
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
    check_every: int = 10,
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
    cost = _checked_cost(cost)
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
    residual = scaling.run(tolerance=tolerance, max_iter=max_iter, check_every=check_every)
    status = CONVERGED
    if residual > tolerance:
        status = Status(
            "max_iter",
            f"Stopped after {scaling.iterations} iterations with residual {residual:.2g}, above the tolerance "
            f"{tolerance:.2g}. Raise max_iter, or raise epsilon, or start from the potentials of a larger epsilon.",
        )
    rows, columns = scaling.potentials()
    return Transport(
        coupling=scaling.coupling(),
        potentials=(rows, columns),
        cost=cost,
        epsilon=epsilon,
        row_mass=row_mass,
        column_mass=column_mass,
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
        self.check_scalings_every = 10 if double else 1
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
        while True:
            row_scale = self._update(self.row_mass, self.kernel @ self.column_scale, self.rows)
            done = self.iterations >= max_iter
            if self.iterations and (done or self.iterations % check_every == 0):
                residual = self._residual(row_scale)
                if done or residual <= tolerance:
                    return residual
            self.row_scale = row_scale
            self._update_columns()
            self.iterations += 1

    def _update(self, mass: Array, sums: Array, potential: Array) -> Array:
        """Return the scaling that is optimal when the other side is held fixed."""
        if self.damping == 1.0:
            return mass / sums
        return (mass / sums) ** self.damping * self.xp.exp(-(1 - self.damping) / self.epsilon * potential)

    def _update_columns(self) -> None:
        sums = self.row_scale @ self.kernel
        # A pass over the scalings costs as much as a product when n is small. After the first iterations no sum can
        # change by more than a factor n at a time, so looking now and then is enough.
        look = self.iterations < 3 or self.iterations % self.check_scalings_every == 0
        if look and not (self._is_safe(self.row_scale) and self._is_safe(sums)):
            self.rows = self.rows + self.epsilon * self.xp.log(self.row_scale)
            self.columns = self._exact_columns()
            self._build()
            return
        self.column_scale = self._update(self.column_mass, sums, self.columns)
        if look and not self._is_safe(self.column_scale):
            self.rows, self.columns = self.potentials()
            self._build()

    def _is_safe(self, scale: Array) -> bool:
        return bool(self.xp.max(scale) < self.largest) and bool(self.xp.min(scale) > 1 / self.largest)

    def _exact_columns(self) -> Array:
        """Return the optimal column potentials for `self.rows`, computed in the log domain."""
        exponent = self.rows[:, None] - self.cost
        exponent /= self.epsilon
        largest = self.xp.max(exponent, axis=0)
        exponent -= largest
        sums = self.xp.sum(exp_in_place(exponent), axis=0)
        return self.damping * self.epsilon * (self.xp.log(self.column_mass) - largest - self.xp.log(sums))

    def _residual(self, new_row_scale: Array) -> float:
        """(1/√n)‖P·1 − row_mass‖₂, read off the next row scaling: P·1 = row_mass ∘ (old scale / new scale)."""
        change = self.row_mass * (self.row_scale / new_row_scale - 1)
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


def _checked_cost(cost: Any) -> Array:
    cost = as_matrix(cost, name="cost", allow_infinite=True)
    xp = namespace(cost)
    if bool(xp.any(cost == -xp.inf)):
        raise InputError("cost: must not be minus infinity. Use a finite cost to favour a pair.")
    for axis, side in ((1, "row"), (0, "column")):
        hopeless = xp.all(xp.isinf(cost), axis=axis)
        if bool(xp.any(hopeless)):
            where = int(xp.argmax(xp.astype(hopeless, xp.int64)))
            raise InputError(
                f"cost, {side} {where}: must allow at least one pair; every cost is infinite. "
                f"Leave the {side} out or give it a finite cost."
            )
    return cost


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
            f"row_mass and column_mass: must have the same total; found {total:.6g} and {received:.6g}. "
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
    if not bool(xp.all(xp.isfinite(mass) & (mass > 0))):
        raise InputError(f"{name}: must be positive and finite everywhere. Leave out rows or columns without mass.")
    return mass


def _checked_start(cost: Array, potentials: tuple[Any, Any] | None) -> Array:
    """Return the column potential to start from; the first row update forgets the row potential."""
    xp = namespace(cost)
    if potentials is None:
        return xp.zeros((cost.shape[1],), dtype=cost.dtype, device=cost.device)
    if len(potentials) != 2:
        raise InputError(f"potentials: must be a pair (rows, columns); found {len(potentials)} entries.")
    for potential, size, side in zip(potentials, cost.shape, ("row", "column"), strict=True):
        shape = tuple(getattr(potential, "shape", ()))
        if shape != (size,):
            raise InputError(f"potentials, {side}s: must have {size} entries, as the cost does; found shape {shape}.")
    start = array_like(potentials[1], cost)
    if not bool(xp.all(xp.isfinite(start))):
        raise InputError("potentials: must be finite. Start without them.")
    return start
