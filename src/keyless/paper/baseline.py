"""The paper's Baseline: alternate a hard assignment and Soft-Impute (Algorithm 3, supplement)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keyless.arrays import Array, array_like, check_count, check_nonnegative, check_positive, namespace, to_numpy
from keyless.assignment import assign
from keyless.block import Block
from keyless.errors import CONVERGED, RUNNING, Status
from keyless.lowrank import nuclear_norm
from keyless.paper.problem import CorrespondenceProblem
from keyless.paper.solver import (
    LowRank,
    ProxName,
    Record,
    Solution,
    Solver,
    WeightName,
    default_penalty,
    starting_estimate,
)

__all__ = ["Baseline", "BaselineState", "hard_couplings"]


@dataclass(frozen=True, eq=False)
class BaselineState:
    """Where a run of Baseline stands.

    Attributes:
        estimate: the current matrix.
        estimate_nuclear_norm: its nuclear norm.
        penalty: λ.
        permutations: the matchings of the last step; empty before the first.
        settled: whether the last step changed neither matchings nor estimate.
        record: what the last step did.
    """

    estimate: Array
    estimate_nuclear_norm: float
    penalty: float
    permutations: tuple[Array, ...] = ()
    settled: bool = False
    record: Record | None = None


@dataclass(frozen=True, kw_only=True)
class Baseline(Solver[BaselineState]):
    """Minimise ‖reference misfit‖² + Σ_l ⟨cost_l, P_l⟩ + λ‖estimate‖_* over estimate and permutations P_l, by turns.

    Attributes:
        penalty: λ; None: a quarter of the largest singular value the aligned matrix can have.
        prox: `"soft"`, `"hard"` or `"rank"`, as in `M3O`.
        rank: for `prox="rank"`.
        prox_weight: `"proximal"` shrinks by λ/2, which minimises the objective above and never raises it;
            `"printed"` shrinks by λ, as in the paper. None: proximal for the soft operator, printed for the hard one.
        completion_steps: N_p, low-rank steps after each assignment.
        tolerance: relative change of the estimate, with matchings unchanged, at which it has settled.
        max_iter: at most so many steps.
        max_time: at most so many seconds.

    Example:
        >>> from keyless.datasets import make_shuffled_tables
        >>> from keyless.paper.problem import to_problem
        >>> tables, truth = make_shuffled_tables(20, (6, 5), rank=2, random_state=0)
        >>> Baseline().solve(to_problem(tables), random_state=0).status.converged
        True
    """

    penalty: float | None = None
    prox: ProxName = "soft"
    rank: int | None = None
    prox_weight: WeightName | None = None
    completion_steps: int = 10
    tolerance: float = 1e-6
    max_iter: int = 1_000
    max_time: float | None = None
    _operator: LowRank = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_operator", LowRank(self.prox, self.rank, self.prox_weight))
        if self.penalty is not None:
            check_positive(self.penalty, name="penalty")
        check_count(self.completion_steps, name="completion_steps")
        check_nonnegative(self.tolerance, name="tolerance")
        self._check_limits()

    def init(
        self, problem: CorrespondenceProblem, *, start: Array | None = None, random_state: Any = None
    ) -> BaselineState:
        """Return the state before the first step: a given or Gaussian estimate."""
        problem.require_square()
        self._operator.check_fits(problem)
        estimate = starting_estimate(problem, start, random_state)
        penalty = self.penalty if self.penalty is not None else default_penalty(problem)
        return BaselineState(estimate, nuclear_norm(estimate), penalty)

    def step(self, problem: CorrespondenceProblem, state: BaselineState) -> BaselineState:
        """Match every block to the estimate, then complete what the matchings put together."""
        permutations = tuple(assign(cost) for cost in problem.costs(state.estimate))
        observed = problem.place(permutations)
        xp = namespace(observed.values)
        weight = state.penalty * (0.5 if self._operator.proximal else 1.0)
        estimate = state.estimate
        for _ in range(self.completion_steps):
            factors = self._operator(xp.where(observed.mask, observed.values, estimate), weight)
            estimate = factors.dense()
        same = len(state.permutations) == len(permutations) and all(
            bool(xp.all(old == new)) for old, new in zip(state.permutations, permutations, strict=True)
        )
        change = float(xp.linalg.matrix_norm(estimate - state.estimate))
        scale = float(xp.linalg.matrix_norm(estimate))
        objective = _misfit(observed, state.estimate)
        objective += self._operator.penalty_term(state.penalty, state.estimate_nuclear_norm)
        return replace(
            state,
            estimate=estimate,
            estimate_nuclear_norm=factors.nuclear_norm,
            permutations=permutations,
            settled=same and change <= self.tolerance * max(scale, 1e-300),
            record=Record(
                iteration=0 if state.record is None else state.record.iteration + 1,
                objective=objective,
                entropic_objective=objective,
                penalty=state.penalty,
            ),
        )

    def terminate(self, problem: CorrespondenceProblem, state: BaselineState) -> Status:  # noqa: ARG002
        """Stop when nothing moves any more."""
        return CONVERGED if state.settled else RUNNING

    def finish(
        self, problem: CorrespondenceProblem, state: BaselineState, history: Sequence[Record], status: Status
    ) -> Solution:
        """Match once more, to the final estimate."""
        permutations = tuple(assign(cost) for cost in problem.costs(state.estimate))
        objective = _misfit(problem.place(permutations), state.estimate)
        return Solution(
            estimate=state.estimate,
            permutations=permutations,
            couplings=hard_couplings(permutations, problem),
            objective=objective + self._operator.penalty_term(state.penalty, state.estimate_nuclear_norm),
            history=tuple(history),
            status=status,
        )


def _misfit(observed: Block, estimate: Array) -> float:
    """Squared misfit of the estimate to what the permutations put in place."""
    xp = namespace(estimate)
    difference = estimate - observed.values
    return float(xp.sum(xp.where(observed.mask, difference * difference, xp.zeros_like(difference))))


def hard_couplings(permutations: Sequence[Array], problem: CorrespondenceProblem) -> tuple[Array, ...]:
    """Return the 0/1 coupling of each permutation, in the library and dtype of its block."""
    couplings = []
    for permutation, block in zip(permutations, problem.blocks, strict=True):
        rows = array_like(range(block.shape[0]), block.values)
        targets = array_like(to_numpy(permutation), block.values)
        couplings.append(array_like(targets[:, None] == rows[None, :], block.values))
    return tuple(couplings)
