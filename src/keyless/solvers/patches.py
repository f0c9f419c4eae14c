"""Patches of an image back in their places: by the borders they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import Array, array_like, check_count, to_numpy
from keyless.errors import CONVERGED, RUNNING, InputError, Status
from keyless.problem import CorrespondenceProblem, PatchProblem
from keyless.solvers.arranging import Grid, grow, sure_parts, swap_while_better
from keyless.solvers.base import Record, Solution, Solver
from keyless.solvers.baseline import hard_couplings
from keyless.solvers.borders import border_evidence, inpaint

__all__ = ["PatchArranger", "PatchArrangerState"]

IntArray = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class PatchArrangerState:
    """Where a run stands.

    Attributes:
        grid: places, and the evidence of the borders.
        arrangement: the best so far: a patch per place.
        evidence: its evidence, in nats.
        seeds: patches from which to grow next.
        regrown: times the best arrangement was grown again from its sure parts.
        settled: whether growing again helped no more.
        record: what the last step did.
    """

    grid: Grid
    arrangement: IntArray
    evidence: float
    seeds: tuple[int, ...]
    regrown: int = 0
    settled: bool = False
    record: Record | None = None


@dataclass(frozen=True, kw_only=True)
class PatchArranger(Solver[PatchArrangerState]):
    """Maximise the evidence of all common borders over arrangements of the shuffled patches.

    What continues across a border is learned from the inside of the patches (see `borders`). An arrangement is grown
    from the patches whose place is known or, where none is, from single patches one after the other; then grown again
    from those of its parts that hold together. The estimate is the arranged image, missing pixels filled smoothly.

    Attributes:
        seeds: single patches to grow from, where no place is known.
        max_iter: at most so many arrangements are grown.
        max_time: at most so many seconds.

    Example:
        >>> import numpy as np
        >>> from keyless.problem import Block, PatchProblem
        >>> y, x = np.mgrid[:24, :24] / 8
        >>> image = np.sin(x + y**2) + np.cos(2 * x - y)
        >>> shuffled = image.copy()
        >>> shuffled[:8, :8], shuffled[:8, 8:16] = image[:8, 8:16], image[:8, :8]
        >>> problem = PatchProblem(Block(shuffled), (8, 8), (0, 1))
        >>> PatchArranger().solve(problem).permutations[0].tolist()
        [1, 0]
    """

    seeds: int = 36
    max_iter: int = 60
    max_time: float | None = None

    def __post_init__(self) -> None:
        check_count(self.seeds, name="seeds")
        self._check_limits()

    def init(
        self, problem: CorrespondenceProblem, *, start: Array | None = None, random_state: Any = None
    ) -> PatchArrangerState:
        """Return the state before the first arrangement: the evidence of all borders, patches as they stand."""
        del random_state  # nothing here is random
        if not isinstance(problem, PatchProblem):
            raise InputError("problem: must be patches of an image; tables have no borders.")
        if start is not None:
            raise InputError("start: must be left out; this method grows its own.")
        height, width = problem.patch_shape
        rows, columns = problem.shape[0] // height, problem.shape[1] // width

        def cut(matrix: Array) -> Any:
            return to_numpy(matrix).reshape(rows, height, columns, width).swapaxes(1, 2).reshape(-1, height, width)

        evidence = border_evidence(cut(problem.image.values).astype(np.float64), cut(problem.image.mask))
        grid = Grid(rows, columns, evidence)
        seeds: tuple[int, ...] = ()
        if len(problem.shuffled) == grid.size:
            clear = np.zeros(grid.size)
            for one_way in (evidence.right, evidence.right.T, evidence.below, evidence.below.T):
                ordered = np.sort(one_way, axis=1)
                clear += ordered[:, -1] - ordered[:, -2] if grid.size > 1 else ordered[:, -1]
            seeds = tuple(int(patch) for patch in np.argsort(-clear, kind="stable")[: self.seeds])
        arrangement = np.arange(grid.size)
        return PatchArrangerState(grid, arrangement, float(grid.score(arrangement)), seeds)

    def step(self, problem: CorrespondenceProblem, state: PatchArrangerState) -> PatchArrangerState:
        """Grow from the next seed; when there is none left, from the sure parts of the best arrangement."""
        assert isinstance(problem, PatchProblem)
        grid, movable = state.grid, np.sort(np.array(problem.shuffled, dtype=np.intp))
        anchored = len(movable) < grid.size
        growing_again = not state.seeds and (state.regrown > 0 or not anchored)
        starts: list[IntArray]
        if state.seeds:
            starts = [np.array([[0, 0, state.seeds[0]]], dtype=np.intp)]
        elif not growing_again:
            starts = [_cells(grid, state.arrangement, np.setdiff1d(np.arange(grid.size), movable), anchored=True)]
        else:
            starts = _sure_starts(grid, state.arrangement, movable)
        best, evidence = state.arrangement, state.evidence
        for cells in starts:
            grown = grow(grid, cells, anchored=anchored)
            if float(grid.score(grown)) < evidence - 0.1 * abs(evidence):
                continue  # swaps will not make up for so much
            found, value = swap_while_better(grid, grown, movable)
            if value > evidence + 1e-9:
                best, evidence = found, value
        record = Record(
            iteration=0 if state.record is None else state.record.iteration + 1,
            objective=-evidence,
            entropic_objective=-evidence,
        )
        return replace(
            state,
            arrangement=best,
            evidence=evidence,
            seeds=state.seeds[1:],
            regrown=state.regrown + (not state.seeds),
            settled=growing_again and evidence <= state.evidence + 1e-9,
            record=record,
        )

    def terminate(self, problem: CorrespondenceProblem, state: PatchArrangerState) -> Status:  # noqa: ARG002
        """Stop when growing again changes nothing."""
        return CONVERGED if state.settled else RUNNING

    def finish(
        self, problem: CorrespondenceProblem, state: PatchArrangerState, history: Sequence[Record], status: Status
    ) -> Solution:
        """Put the patches in place and fill what is missing."""
        assert isinstance(problem, PatchProblem)
        number = {place: index for index, place in enumerate(problem.shuffled)}
        permutation = np.array([number[int(state.arrangement[place])] for place in problem.shuffled], dtype=np.int64)
        placed = problem.place([permutation])
        filled = inpaint(to_numpy(placed.values).astype(np.float64), to_numpy(placed.mask))
        return Solution(
            estimate=array_like(filled, problem.image.values),
            permutations=(permutation,),
            couplings=hard_couplings([permutation], problem),
            objective=-state.evidence,
            history=tuple(history),
            status=status,
        )


def _cells(grid: Grid, arrangement: IntArray, places: IntArray, *, anchored: bool) -> IntArray:
    rows, columns = places // grid.columns, places % grid.columns
    if not anchored:
        rows, columns = rows - rows.min(), columns - columns.min()
    return np.stack([rows, columns, arrangement[places]], axis=1)


def _sure_starts(grid: Grid, arrangement: IntArray, movable: IntArray) -> list[IntArray]:
    """Return the cells that hold together: with the known places, or the three largest parts."""
    parts = sure_parts(grid, arrangement)
    known = np.setdiff1d(np.arange(grid.size), movable)
    if len(known):
        held = np.flatnonzero(np.isin(parts, parts[known]))
        return [_cells(grid, arrangement, held, anchored=True)]
    largest = np.argsort(-np.bincount(parts), kind="stable")[:3]
    return [_cells(grid, arrangement, np.flatnonzero(parts == part), anchored=False) for part in largest]
