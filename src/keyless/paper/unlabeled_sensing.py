"""The paper's MUS rival: unlabeled sensing, table by table (supplement, "The MUS Algorithm")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyless.arrays import Array, array_like, check_positive, namespace, to_numpy
from keyless.assignment import assign
from keyless.block import Block
from keyless.completion import SoftImpute
from keyless.errors import CONVERGED, RUNNING, InputError, Status
from keyless.paper.baseline import hard_couplings
from keyless.paper.problem import CorrespondenceProblem, Problem
from keyless.paper.solver import Record, Solution, Solver

__all__ = ["UnlabeledSensing", "UnlabeledSensingState"]


@dataclass(frozen=True, eq=False)
class UnlabeledSensingState:
    """Where a run stands.

    Attributes:
        reference: the reference table, completed.
        permutations: the tables matched so far.
        record: what the last step did.
    """

    reference: Array
    permutations: tuple[Array, ...] = ()
    record: Record | None = None


@dataclass(frozen=True, kw_only=True)
class UnlabeledSensing(Solver[UnlabeledSensingState]):
    """Solve min ‖A − P B W‖² over permutations P and weights W, for each table B against the completed reference A.

    The one-step estimator of Zhang and Li: P = argmax ⟨P, A Aᵀ B Bᵀ⟩, one assignment a table. It takes the rows as they
    stand for a first guess, so it works when few rows are displaced and fails when most are. Every table is completed
    alone by Soft-Impute before, and the aligned tables together after.

    Attributes:
        penalty: λ of the completions; None: chosen for each by held-out entries.
        max_iter: at most so many steps; a step matches one table.
        max_time: at most so many seconds; tables not reached keep their given order.

    Example:
        >>> from keyless.datasets import make_shuffled_tables
        >>> from keyless.paper.problem import to_problem
        >>> tables, truth = make_shuffled_tables(20, (6, 5), rank=2, random_state=0)
        >>> UnlabeledSensing().solve(to_problem(tables)).status.converged
        True
    """

    penalty: float | None = None
    max_iter: int = 1_000
    max_time: float | None = None

    def __post_init__(self) -> None:
        if self.penalty is not None:
            check_positive(self.penalty, name="penalty")
        self._check_limits()

    def init(
        self, problem: CorrespondenceProblem, *, start: Array | None = None, random_state: Any = None
    ) -> UnlabeledSensingState:
        """Return the state before the first table, the reference completed."""
        del random_state  # nothing here is random
        if not isinstance(problem, Problem):
            raise InputError("problem: must be tables side by side; patches cannot be written as a regression.")
        if start is not None:
            raise InputError("start: must be left out; this method starts from the rows in their given order.")
        problem.require_square()
        return UnlabeledSensingState(self._completed(problem.reference))

    def step(self, problem: CorrespondenceProblem, state: UnlabeledSensingState) -> UnlabeledSensingState:
        """Match the next table."""
        index = len(state.permutations)
        table = self._completed(problem.blocks[index])
        regression = state.reference @ (state.reference.T @ table)
        fitted = regression @ table.T
        permutation = assign(-fitted)
        xp = namespace(table)
        aligned = xp.take(table, permutation, axis=0)
        # The regression the matching stands for; what it leaves is this method's own objective.
        weights = xp.linalg.pinv(aligned) @ state.reference
        residual = state.reference - aligned @ weights
        objective = float(xp.sum(residual * residual))
        return replace(
            state,
            permutations=(*state.permutations, permutation),
            record=Record(iteration=index, objective=objective, entropic_objective=objective),
        )

    def terminate(self, problem: CorrespondenceProblem, state: UnlabeledSensingState) -> Status:
        """Stop when every table has been matched."""
        return CONVERGED if len(state.permutations) == len(problem.blocks) else RUNNING

    def finish(
        self, problem: CorrespondenceProblem, state: UnlabeledSensingState, history: Sequence[Record], status: Status
    ) -> Solution:
        """Complete the aligned tables together."""
        xp = namespace(state.reference)
        as_given = [
            xp.arange(block.shape[0], dtype=xp.int64, device=block.values.device)
            for block in problem.blocks[len(state.permutations) :]
        ]
        permutations = (*state.permutations, *as_given)
        return Solution(
            estimate=self._completed(problem.place(permutations)),
            permutations=permutations,
            couplings=hard_couplings(permutations, problem),
            objective=sum(record.objective for record in history),
            history=tuple(history),
            status=status,
        )

    def _completed(self, block: Block) -> Array:
        """Fill one table alone; observed entries stay."""
        table = to_numpy(block.values).astype(np.float64)
        mask = to_numpy(block.mask)
        if mask.all():
            return block.values
        table[~mask] = np.nan
        return array_like(
            SoftImpute(penalty=self.penalty, scale=False, random_state=0).fit_transform(table), block.values
        )
