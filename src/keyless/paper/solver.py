"""What all solvers share: the loop (init → step → terminate), the start, the low-rank operator, the result."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from keyless.arrays import Array, array_like, as_matrix, check_count, check_positive, namespace, random_generator
from keyless.errors import InputError, Status
from keyless.lowrank import SVD, leading_svd
from keyless.paper.problem import CorrespondenceProblem

__all__ = [
    "LowRank",
    "ProxName",
    "Record",
    "Solution",
    "Solver",
    "State",
    "WeightName",
    "default_penalty",
    "refilled_estimate",
    "starting_estimate",
]

ProxName = Literal["soft", "hard", "rank"]
WeightName = Literal["proximal", "printed"]


@dataclass(frozen=True)
class Record:
    """What one step saw and did; tuples hold one entry per table in unknown order.

    Attributes:
        iteration: number of the step, from 0.
        objective: the solver's objective at the estimate the step began with: squared misfit + λ‖·‖_* unless its
            options say otherwise (the penalty counts as zero under the rank operator, which has no λ).
        entropic_objective: the same with the entropy term ε Σ H(P_l); equals `objective` for hard matchings.
        epsilon: ε of the step; 0 for hard matchings.
        penalty: λ of the step.
        step_sizes: ρ per table.
        diffuseness: c per table.
        changes: δ per table.
        inner_iterations: Sinkhorn iterations per table.
    """

    iteration: int
    objective: float
    entropic_objective: float
    epsilon: float = 0.0
    penalty: float = 0.0
    step_sizes: tuple[float, ...] = ()
    diffuseness: tuple[float, ...] = ()
    changes: tuple[float, ...] = ()
    inner_iterations: tuple[int, ...] = ()


class State(Protocol):
    """A solver's state: immutable, and it says what its last step did."""

    @property
    def record(self) -> Record | None:
        """What the last step did; None before the first."""
        ...


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found.

    Attributes:
        estimate: the low-rank matrix, rows in reference order.
        permutations: one integer array per block; `permutation[i] = j` puts row j of the block at place i.
        couplings: one soft correspondence per block (hard solvers: zeros and ones).
        objective: the paper's objective at the end.
        history: one record per step.
        status: how the run ended.
    """

    estimate: Array
    permutations: tuple[Array, ...]
    couplings: tuple[Array, ...]
    objective: float
    history: tuple[Record, ...]
    status: Status

    def __repr__(self) -> str:
        rows, columns = self.estimate.shape
        return (
            f"Solution: {self.status.reason} after {len(self.history)} steps; objective {self.objective:.4g}, estimate "
            f"{rows} × {columns}, {len(self.permutations)} permutations"
        )


StateT = TypeVar("StateT", bound=State)


class Solver(ABC, Generic[StateT]):
    """The loop, written once.

    Subclasses are frozen dataclasses of options with `max_iter` and `max_time` among them.
    """

    max_iter: int
    max_time: float | None

    @abstractmethod
    def init(self, problem: CorrespondenceProblem, *, start: Array | None = None, random_state: Any = None) -> StateT:
        """Return the state before the first step."""

    @abstractmethod
    def step(self, problem: CorrespondenceProblem, state: StateT) -> StateT:
        """Return the state after one more step."""

    @abstractmethod
    def terminate(self, problem: CorrespondenceProblem, state: StateT) -> Status:
        """Say whether to go on (`running`) or why to stop."""

    @abstractmethod
    def finish(
        self, problem: CorrespondenceProblem, state: StateT, history: Sequence[Record], status: Status
    ) -> Solution:
        """Turn the last state into a solution."""

    def solve(
        self,
        problem: CorrespondenceProblem,
        *,
        start: Array | None = None,
        random_state: Any = None,
        callback: Callable[[StateT], object] | None = None,
    ) -> Solution:
        """Run the solver on a problem.

        Args:
            problem: a `Problem` or `PatchProblem`; never modified.
            start: the first estimate; None for a Gaussian one.
            random_state: None, a seed or a numpy Generator for the Gaussian start.
            callback: called with the state after every step.
        """
        began = time.monotonic()
        state = self.init(problem, start=start, random_state=random_state)
        history: list[Record] = []
        while True:
            status = self.terminate(problem, state)
            if status.reason != "running":
                break
            if len(history) >= self.max_iter:
                status = Status("max_iter", "Stopped before settling. Raise max_iter, or loosen tolerance.")
                break
            if self.max_time is not None and time.monotonic() - began >= self.max_time:
                status = Status("max_time", "Stopped before settling. Raise max_time, or start closer.")
                break
            state = self.step(problem, state)
            if state.record is not None:
                history.append(state.record)
            if callback is not None:
                callback(state)
        return self.finish(problem, state, history, status)

    def _check_limits(self) -> None:
        check_count(self.max_iter, name="max_iter")
        if self.max_time is not None:
            check_positive(self.max_time, name="max_time")


@dataclass(frozen=True)
class LowRank:
    """The operator that makes an estimate low rank: soft threshold, hard threshold or projection."""

    name: ProxName
    rank: int | None = None
    weight: WeightName | None = None

    def __post_init__(self) -> None:
        if self.weight not in (None, "proximal", "printed"):
            raise InputError(f"prox_weight: must be 'proximal' or 'printed'; found {self.weight!r}.")
        if self.weight == "proximal" and self.name != "soft":
            raise InputError(
                f"prox_weight: 'proximal' must go with prox='soft'; found prox={self.name!r}, which has no such weight."
            )
        if self.name not in ("soft", "hard", "rank"):
            raise InputError(f"prox: must be 'soft', 'hard' or 'rank'; found {self.name!r}.")
        if (self.rank is not None) != (self.name == "rank"):
            raise InputError(
                f"rank: must be given with prox='rank' and only then; found prox={self.name!r}, rank={self.rank!r}."
            )
        if self.rank is not None:
            check_count(self.rank, name="rank")

    @property
    def proximal(self) -> bool:
        """Whether the threshold is ρ·λ, as in a true proximal step, rather than λ."""
        return self.name == "soft" and self.weight != "printed"

    def check_fits(self, problem: CorrespondenceProblem) -> None:
        """Raise `InputError` when the rank exceeds the matrix."""
        if self.rank is not None:
            check_count(self.rank, name="rank", maximum=min(problem.shape))

    def __call__(self, matrix: Array, weight: float) -> SVD:
        """Return the factors of the result; `weight` is the threshold of the first two."""
        if self.name == "rank":
            return leading_svd(matrix, rank=self.rank)
        factors = leading_svd(matrix, above=weight)
        return factors.shrunk(weight) if self.name == "soft" else factors

    def penalty_term(self, penalty: float, nuclear_norm: float) -> float:
        """λ‖·‖_*, or nothing for the projection, which has no λ."""
        return 0.0 if self.name == "rank" else penalty * nuclear_norm


def starting_estimate(problem: CorrespondenceProblem, start: Array | None, random_state: Any) -> Array:
    """Return `start`, checked, or a Gaussian matrix as large as the observed entries are (root mean square)."""
    if start is not None:
        return _checked_start(problem, start)
    values = problem.reference.values
    tables = (problem.reference, *problem.blocks)
    squares = sum(float(namespace(values).sum(table.values * table.values)) for table in tables)
    scale = (squares / observed) ** 0.5 if (observed := _count_observed(problem)) else 1.0
    return array_like(scale * random_generator(random_state).standard_normal(problem.shape), values)


def refilled_estimate(problem: CorrespondenceProblem, start: Array | None, random_state: Any) -> Array:
    """Return `start`, checked, or the released one; in both, observed entries of the reference are put in.

    The released start is zero in the reference and normal in the tables, with the mean absolute value of the observed
    entries as its standard deviation.
    """
    if start is not None:
        reference, parts = problem.split(_checked_start(problem, start))
    else:
        values = problem.reference.values
        xp = namespace(values)
        total = sum(float(xp.sum(xp.abs(table.values))) for table in (problem.reference, *problem.blocks))
        scale = total / observed if (observed := _count_observed(problem)) else 1.0
        drawn = array_like(scale * random_generator(random_state).standard_normal(problem.shape), values)
        reference, parts = problem.split(drawn)
        reference = xp.zeros_like(reference)
    return problem.join(problem.refilled(reference), parts)


def _checked_start(problem: CorrespondenceProblem, start: Array) -> Array:
    found = array_like(as_matrix(start, name="start"), problem.reference.values)
    if tuple(found.shape) != problem.shape:
        raise InputError(f"start: must have shape {problem.shape}, as the estimate; found {tuple(found.shape)}.")
    return found


def _count_observed(problem: CorrespondenceProblem) -> int:
    tables = (problem.reference, *problem.blocks)
    return sum(int(namespace(table.mask).count_nonzero(table.mask)) for table in tables)


def default_penalty(problem: CorrespondenceProblem) -> float:
    """Return a quarter of the largest singular value the aligned matrix can have.

    Each table's norm is taken with missing entries as zeros and divided by its observed share; squares add up when
    tables share their factors. In the paper's synthetic setting (entries scaled by 2/100) this is about its λ = 0.5.
    """
    total = 0.0
    for table in (problem.reference, *problem.blocks):
        xp = namespace(table.values)
        share = int(xp.count_nonzero(table.mask)) / (table.shape[0] * table.shape[1])
        if share:
            total += (float(xp.linalg.matrix_norm(table.values, ord=2)) / share) ** 2
    return 0.25 * total**0.5 if total else 1.0
