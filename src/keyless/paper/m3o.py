"""M³O: matrix recovery via min–max optimisation (Algorithms 1 and 2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from joblib import Parallel, delayed

from keyless.arrays import Array, check_count, check_nonnegative, check_positive, namespace, to_numpy
from keyless.assignment import from_coupling
from keyless.errors import CONVERGED, RUNNING, InputError, Status
from keyless.lowrank import nuclear_norm
from keyless.paper.problem import CorrespondenceProblem, pair_cost, pair_gradient
from keyless.paper.schedules import (
    CouplingStatistics,
    DecayingEntropy,
    Entropy,
    PenaltyPath,
    Printed,
    Released,
    StepRule,
    step_rule_named,
)
from keyless.paper.solver import (
    LowRank,
    ProxName,
    Record,
    Solution,
    Solver,
    WeightName,
    default_penalty,
    refilled_estimate,
    starting_estimate,
)
from keyless.transport import Transport, sinkhorn_of_ones

__all__ = ["M3O", "M3OState"]

# Below this many rows a table's step is over before a thread has started.
_ROWS_WORTH_A_THREAD = 400

# Settings of the authors' released script for synthetic data, where they differ from what the paper prints.
_RELEASED_PENALTY = 0.55  # λ, in units of the tables' singular values; the only λ of the script
_RELEASED_PROGRESS = 1e-4  # share of the best by which objective or diffuseness must fall to count as progress
_RELEASED_PATIENCE = 101  # steps; the script halves ε when its count of steps without progress exceeds 100
_RELEASED_GIVE_UP = 501  # steps; it stops when the count that halving does not reset exceeds 5 · 100
_RELEASED_DECAYS = 16  # halvings of ε from 0.1; one more is below 1e-6, where the script ends
_RELEASED_MAX_ITER = 50_000  # steps

# Settings the paper prints for synthetic data ("Synthetic data"; supplement, "Hyperparameters setting").
_PRINTED_PENALTY = 0.5  # λ, in the same units; the middle of the three values it chooses from: 0.4, 0.5, 0.6
_PAPER_EPSILON = 0.1  # first ε, in units of the cost; printed, and the same in the script
_PAPER_PATIENCE = 100  # steps; K
_PAPER_SINKHORN_TOLERANCE = 0.01  # residual of the row sums; printed, and the same in the script

ObjectiveName = Literal["transport", "entropic", "tables"]
FirstEstimateName = Literal["gaussian", "refilled"]
ResidualName = Literal["mean", "total"]
ReadingName = Literal["assignment", "row_maximum"]
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, eq=False)
class M3OState:
    """Where a run of M³O stands.

    Attributes:
        estimate: the current matrix.
        estimate_nuclear_norm: its nuclear norm.
        couplings: the couplings of the last step; empty before the first.
        potentials: their dual variables.
        epsilons: this and the coming values of ε.
        penalties: this and the coming values of λ.
        best_objective: the last objective that counted as progress at this λ.
        best_diffuseness: the last mean diffuseness that counted as progress at this λ; no coupling has more than 1.
        stalled: steps since the last progress or the last change of ε or λ.
        idle: steps since the last progress or the last change of λ.
        record: what the last step did.
    """

    estimate: Array
    estimate_nuclear_norm: float
    epsilons: tuple[float, ...]
    penalties: tuple[float, ...]
    couplings: tuple[Array, ...] = ()
    potentials: tuple[tuple[Array, Array], ...] = ()
    best_objective: float = float("inf")
    best_diffuseness: float = 1.0
    stalled: int = 0
    idle: int = 0
    record: Record | None = None


@dataclass(frozen=True)
class _TableStep:
    """One table's share of a step."""

    rows: Array
    transport: Transport
    statistics: CouplingStatistics
    step_size: float


@dataclass(frozen=True, kw_only=True)
class M3O(Solver[M3OState]):
    """Minimise ‖reference misfit‖² + Σ_l (⟨cost_l, P_l⟩ + ε H(P_l)) + λ‖estimate‖_* over estimate and couplings P_l.

    Each step finds the couplings by Sinkhorn (the Max-Oracle), takes a gradient step on the estimate, and applies a
    low-rank operator. With the default step rule and the soft operator the entropic objective never rises at fixed ε
    and λ. From random starts the method usually ends in a poor local optimum; see docs/solvers.md.

    Attributes:
        penalty: λ, or a `PenaltyPath`; None: a quarter of the largest singular value the aligned matrix can have.
        prox: `"soft"` shrinks singular values (the paper's text), `"hard"` keeps those above λ unshrunk (the released
            synthetic runs), `"rank"` keeps the `rank` largest (the released MovieLens and face runs).
        rank: for `prox="rank"`.
        prox_weight: `"proximal"` shrinks by ρ·λ, a true proximal gradient step, for which all tables take the smallest
            of their step sizes; `"printed"` shrinks by λ whatever ρ, as in the paper. None: proximal for the soft
            operator, printed for the hard one.
        step_rule: `"descending"`, `"printed"`, `"released"`, or a rule from `keyless.paper.schedules`.
        entropy: the schedule of ε; None: halved from the median cost each time the objective stalls.
        reference_update: `"refill"` replaces the reference's observed entries (Algorithm 2), `"step"` moves them by
            the smallest step size (Algorithm 1).
        objective: what must fall to count as progress. `"transport"`: reference misfit + Σ_l ⟨cost_l, P_l⟩ +
            λ‖estimate‖_*, without the entropy; `"entropic"`: with it, the printed problem (values at different ε are
            not compared); `"tables"`: `"transport"` without the reference misfit, as released.
        patience: K; ε (or λ) moves on after this many steps without progress.
        tolerance: the objective makes progress when it is lower than the last one that did by this share of it.
        diffuseness_tolerance: the mean diffuseness c of the couplings makes progress, too, when it is lower than the
            last one that did by this share of it, as released. None: only the objective counts.
        give_up: stop after this many steps without progress, whatever ε is, as released. None: go through all ε.
        first_estimate: where no start is given. `"gaussian"`: all entries normal, as large as the observed ones (root
            mean square). `"refilled"`, as released: zero in the reference, normal with the observed entries' mean
            absolute value as standard deviation in the other tables. The released script also refills the
            reference and applies the low-rank operator before the first coupling: `"refilled"` does so with a given
            start, too.
        sinkhorn_tolerance: row residual at which the couplings are good enough.
        sinkhorn_residual: what the tolerance bounds: `"mean"`, (1/√n)‖P·1 − 1‖₂ as printed, or `"total"`, ‖P·1 − 1‖₂
            as released.
        sinkhorn_max_iter: at most so many Sinkhorn iterations a table and step.
        warm_start: start Sinkhorn from the potentials of the step before.
        reading: how permutations are read off the couplings. `"assignment"`: the matching of most weight;
            `"row_maximum"`: each row's largest weight, as released, which can use a row of the table twice.
        max_iter: at most so many steps.
        max_time: at most so many seconds; the best so far is returned.
        n_jobs: threads over the tables; they pay from some 400 rows on.

    Example:
        >>> from keyless.datasets import make_shuffled_tables
        >>> from keyless.paper.problem import to_problem
        >>> tables, truth = make_shuffled_tables(20, (6, 5), rank=2, random_state=0)
        >>> solution = M3O(max_iter=20).solve(to_problem(tables), random_state=0)
        >>> solution.estimate.shape
        (20, 11)
    """

    penalty: float | PenaltyPath | None = None
    prox: ProxName = "soft"
    rank: int | None = None
    prox_weight: WeightName | None = None
    step_rule: str | StepRule = "descending"
    entropy: Entropy | None = None
    reference_update: Literal["refill", "step"] = "refill"
    objective: ObjectiveName = "transport"
    patience: int = 100
    tolerance: float = 1e-6
    diffuseness_tolerance: float | None = None
    give_up: int | None = None
    first_estimate: FirstEstimateName = "gaussian"
    sinkhorn_tolerance: float = 0.01
    sinkhorn_residual: ResidualName = "mean"
    sinkhorn_max_iter: int = 10_000
    warm_start: bool = True
    reading: ReadingName = "assignment"
    max_iter: int = 5_000
    max_time: float | None = None
    n_jobs: int | None = None
    _operator: LowRank = field(init=False, repr=False, compare=False)
    _rule: StepRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_operator", LowRank(self.prox, self.rank, self.prox_weight))
        object.__setattr__(self, "_rule", step_rule_named(self.step_rule))
        if self.penalty is not None and not isinstance(self.penalty, PenaltyPath):
            check_positive(self.penalty, name="penalty")
        if self.reference_update not in ("refill", "step"):
            raise InputError(f"reference_update: must be 'refill' or 'step'; found {self.reference_update!r}.")
        for option, allowed in (
            ("objective", ObjectiveName),
            ("first_estimate", FirstEstimateName),
            ("sinkhorn_residual", ResidualName),
            ("reading", ReadingName),
        ):
            if getattr(self, option) not in get_args(allowed):
                names = ", ".join(map(repr, get_args(allowed)))
                raise InputError(f"{option}: must be one of {names}; found {getattr(self, option)!r}.")
        check_count(self.patience, name="patience")
        check_nonnegative(self.tolerance, name="tolerance")
        if self.diffuseness_tolerance is not None:
            check_nonnegative(self.diffuseness_tolerance, name="diffuseness_tolerance")
        if self.give_up is not None:
            check_count(self.give_up, name="give_up")
        check_positive(self.sinkhorn_tolerance, name="sinkhorn_tolerance")
        check_count(self.sinkhorn_max_iter, name="sinkhorn_max_iter")
        self._check_limits()

    @classmethod
    def released(cls, *, penalty: float = _RELEASED_PENALTY) -> M3O:
        """Return M³O-AS-DE as in the authors' released script for synthetic data.

        It expects tables scaled as theirs are, `make_shuffled_tables(..., scale=True)`. docs/solvers.md lists all
        differences to the printed algorithm and to the default options.

        Args:
            penalty: λ; the script has this one value.
        """
        return cls(
            penalty=penalty,
            prox="hard",
            step_rule=Released(),
            entropy=DecayingEntropy(initial=_PAPER_EPSILON, decays=_RELEASED_DECAYS),
            objective="tables",
            patience=_RELEASED_PATIENCE,
            tolerance=_RELEASED_PROGRESS,
            diffuseness_tolerance=_RELEASED_PROGRESS,
            give_up=_RELEASED_GIVE_UP,
            first_estimate="refilled",
            sinkhorn_tolerance=_PAPER_SINKHORN_TOLERANCE,
            sinkhorn_residual="total",
            warm_start=False,
            reading="row_maximum",
            max_iter=_RELEASED_MAX_ITER,
        )

    @classmethod
    def printed(cls, *, penalty: float = _PRINTED_PENALTY) -> M3O:
        """Return M³O-AS-DE as Algorithm 2, Remarks 3 and 4 and the printed hyperparameters have it.

        Where the text says nothing (the last ε, the number of steps) it is as released. docs/solvers.md lists all
        differences.

        Args:
            penalty: λ; the paper takes the best of 0.4, 0.5 and 0.6 per setting, without saying by what.
        """
        return cls(
            penalty=penalty,
            prox="soft",
            prox_weight="printed",
            step_rule=Printed(),
            entropy=DecayingEntropy(initial=_PAPER_EPSILON, decays=_RELEASED_DECAYS),
            objective="entropic",
            patience=_PAPER_PATIENCE,
            tolerance=0.0,
            sinkhorn_tolerance=_PAPER_SINKHORN_TOLERANCE,
            warm_start=False,
            max_iter=_RELEASED_MAX_ITER,
        )

    def init(self, problem: CorrespondenceProblem, *, start: Array | None = None, random_state: Any = None) -> M3OState:
        """Return the state before the first step: a given or random estimate, the first ε and λ."""
        problem.require_square()
        self._operator.check_fits(problem)
        if isinstance(self.penalty, PenaltyPath):
            penalties = self.penalty.path()
        else:
            penalties = (self.penalty if self.penalty is not None else default_penalty(problem),)
        if self.first_estimate == "refilled":
            drawn = refilled_estimate(problem, start, random_state)
            estimate = self._operator(drawn, penalties[0]).dense()
        else:
            estimate = starting_estimate(problem, start, random_state)
        entropy = self.entropy if self.entropy is not None else DecayingEntropy()
        median_cost = float(np.median(np.concatenate([to_numpy(cost).ravel() for cost in problem.costs(estimate)])))
        return M3OState(
            estimate=estimate,
            estimate_nuclear_norm=nuclear_norm(estimate),
            epsilons=entropy.path(median_cost),
            penalties=penalties,
        )

    def step(self, problem: CorrespondenceProblem, state: M3OState) -> M3OState:
        """Couplings, gradient step, low-rank operator; then move ε or λ on if there was no progress for long."""
        epsilon, penalty = state.epsilons[0], state.penalties[0]
        reference, parts = problem.split(state.estimate)

        def couple(index: int) -> _TableStep:
            return self._couple(problem, state, parts[index], index)

        tables = self._map(couple, range(len(problem.blocks)), problem.places)
        sizes = [table.step_size for table in tables]
        if self._operator.proximal:
            sizes = [min(sizes)] * len(sizes)
        moved = [
            table.rows - size * pair_gradient(table.rows, table.transport.coupling, block)
            for table, size, block in zip(tables, sizes, problem.blocks, strict=True)
        ]
        if self.reference_update == "refill":
            filled = problem.refilled(reference)
        else:
            filled = reference - 2 * min(sizes) * problem.reference_residual(reference)
        factors = self._operator(
            problem.join(filled, moved),
            penalty * (min(sizes) if self._operator.proximal else 1.0),
        )

        objective, entropic = self._objectives(problem, state, reference, [table.transport for table in tables])
        record = Record(
            iteration=0 if state.record is None else state.record.iteration + 1,
            objective=objective,
            entropic_objective=entropic,
            epsilon=epsilon,
            penalty=penalty,
            step_sizes=tuple(sizes),
            diffuseness=tuple(table.statistics.diffuseness for table in tables),
            changes=tuple(table.statistics.change for table in tables),
            inner_iterations=tuple(table.transport.iterations for table in tables),
        )
        moved_on = replace(
            state,
            estimate=factors.dense(),
            estimate_nuclear_norm=factors.nuclear_norm,
            couplings=tuple(table.transport.coupling for table in tables),
            potentials=tuple(table.transport.potentials for table in tables),
            record=record,
        )
        return self._count_progress(moved_on, record)

    def terminate(self, problem: CorrespondenceProblem, state: M3OState) -> Status:  # noqa: ARG002
        """Stop when there was no progress for long at the last ε and λ, or for `give_up` steps at the last λ."""
        if len(state.penalties) > 1:
            return RUNNING
        finished = state.stalled >= self.patience and len(state.epsilons) == 1
        gave_up = self.give_up is not None and state.idle >= self.give_up
        return CONVERGED if finished or gave_up else RUNNING

    def finish(
        self, problem: CorrespondenceProblem, state: M3OState, history: Sequence[Record], status: Status
    ) -> Solution:
        """Read the permutations off the couplings of the final estimate."""
        reference, parts = problem.split(state.estimate)
        transports = [self._transport(problem, state, part, index) for index, part in enumerate(parts)]
        objective, _ = self._objectives(problem, state, reference, transports)
        return Solution(
            estimate=state.estimate,
            permutations=tuple(self.read(transport.coupling) for transport in transports),
            couplings=tuple(transport.coupling for transport in transports),
            objective=objective,
            history=tuple(history),
            status=status,
        )

    def read(self, coupling: Array) -> Array:
        """Return the permutation of a coupling, as `reading` says."""
        if self.reading == "assignment":
            return from_coupling(coupling)
        return namespace(coupling).argmax(coupling, axis=1)

    def _objectives(
        self, problem: CorrespondenceProblem, state: M3OState, reference: Array, transports: Sequence[Transport]
    ) -> tuple[float, float]:
        """Return the objective that counts as progress, and the one with the entropy, at the state's estimate."""
        rest = self._operator.penalty_term(state.penalties[0], state.estimate_nuclear_norm)
        if self.objective != "tables":
            rest += problem.reference_misfit(reference)
        entropic = rest + sum(transport.entropic_cost for transport in transports)
        if self.objective == "entropic":
            return entropic, entropic
        return rest + sum(_transport_cost(transport) for transport in transports), entropic

    def _count_progress(self, state: M3OState, record: Record) -> M3OState:
        """Compare with the last values that made progress, not with the lowest seen: slow, steady falls add up."""
        diffuseness = sum(record.diffuseness) / len(record.diffuseness)
        lower = _is_lower(record.objective, state.best_objective, self.tolerance)
        sharper = self.diffuseness_tolerance is not None and _is_lower(
            diffuseness, state.best_diffuseness, self.diffuseness_tolerance
        )
        progress = lower or sharper
        counted = replace(
            state,
            best_objective=record.objective if lower else state.best_objective,
            best_diffuseness=diffuseness if sharper else state.best_diffuseness,
            stalled=0 if progress else state.stalled + 1,
            idle=0 if progress else state.idle + 1,
        )
        return self._move_on(counted) if counted.stalled >= self.patience else counted

    def _move_on(self, state: M3OState) -> M3OState:
        """Take the next ε; when there is none, the next λ; when there is none, leave the state as it is."""
        if len(state.epsilons) > 1:
            # The entropic objective at another ε is another function.
            best = float("inf") if self.objective == "entropic" else state.best_objective
            return replace(state, epsilons=state.epsilons[1:], best_objective=best, stalled=0)
        if len(state.penalties) > 1:
            return replace(
                state,
                penalties=state.penalties[1:],
                best_objective=float("inf"),
                best_diffuseness=1.0,
                stalled=0,
                idle=0,
            )
        return state

    def _couple(self, problem: CorrespondenceProblem, state: M3OState, rows: Array, index: int) -> _TableStep:
        transport = self._transport(problem, state, rows, index)
        statistics = _statistics(transport.coupling, state.couplings[index] if state.couplings else None)
        return _TableStep(rows, transport, statistics, self._rule.step_size(statistics))

    def _transport(self, problem: CorrespondenceProblem, state: M3OState, rows: Array, index: int) -> Transport:
        # `sinkhorn` bounds the root mean square over rows; a bound on the norm is √n times tighter.
        tightness = rows.shape[0] ** 0.5 if self.sinkhorn_residual == "total" else 1.0
        return sinkhorn_of_ones(
            pair_cost(rows, problem.blocks[index]),
            epsilon=state.epsilons[0],
            potentials=state.potentials[index] if self.warm_start and state.potentials else None,
            tolerance=self.sinkhorn_tolerance / tightness,
            max_iter=self.sinkhorn_max_iter,
        )

    def _map(self, function: Callable[[int], Outcome], items: Sequence[int], places: tuple[int, ...]) -> list[Outcome]:
        if self.n_jobs in (None, 1) or len(items) == 1 or max(places) < _ROWS_WORTH_A_THREAD:
            return [function(item) for item in items]
        return list(Parallel(n_jobs=self.n_jobs, prefer="threads")(delayed(function)(item) for item in items))


def _transport_cost(transport: Transport) -> float:
    """⟨cost, coupling⟩ where all costs are finite, which `Transport.transport_cost` would have to find out."""
    return _inner(transport.cost, transport.coupling)


def _inner(first: Array, second: Array) -> float:
    """The sum of all products of entries, without a matrix of them."""
    xp = namespace(first)
    return float(xp.vecdot(xp.reshape(first, (-1,)), xp.reshape(second, (-1,))))


def _is_lower(value: float, best: float, share: float) -> bool:
    """Tell whether a value lies below the best by more than this share of it; anything does when there is none yet."""
    return best == float("inf") or value < best - share * abs(best)


def _statistics(coupling: Array, previous: Array | None) -> CouplingStatistics:
    xp = namespace(coupling)
    rows = coupling.shape[0]
    # Before the first step the coupling is zero, as in Algorithm 2.
    change = coupling if previous is None else coupling - previous
    moved = xp.abs(change)
    return CouplingStatistics(
        change=_inner(change, change) / (2 * rows),
        diffuseness=float(xp.sum(xp.abs(xp.max(coupling, axis=1) - 1))) / rows,
        largest_change=float(xp.max(moved)),
        mean_change=float(xp.sum(moved)) / rows**2,
    )
