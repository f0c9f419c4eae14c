"""Patches of an image back in their places: by the borders they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import Array, FloatArray, array_like, check_count, random_generator, to_numpy
from keyless.errors import CONVERGED, RUNNING, InputError, Status
from keyless.paper.arranging import Grid, breed, grow, swap_while_better
from keyless.paper.baseline import hard_couplings
from keyless.paper.borders import border_evidence, inpaint
from keyless.paper.problem import CorrespondenceProblem, PatchProblem
from keyless.paper.solver import Record, Solution, Solver

__all__ = ["PatchArranger", "PatchArrangerState"]

IntArray = NDArray[np.intp]

_SWAPPED = 3  # arrangements in every step whose patches are swapped while that helps; it is slow for large grids


@dataclass(frozen=True, eq=False)
class PatchArrangerState:
    """Where a run stands.

    Attributes:
        grid: places, and the evidence of the borders.
        arrangements: the fittest so far, best first; one line each, a patch per place.
        evidence: of each, in nats.
        seed: of the random choices of all generations.
        unimproved: generations since the best improved.
        record: what the last step did.
    """

    grid: Grid
    arrangements: IntArray
    evidence: FloatArray
    seed: int
    unimproved: int = 0
    record: Record | None = None


@dataclass(frozen=True, kw_only=True)
class PatchArranger(Solver[PatchArrangerState]):
    """Maximise the evidence of all common borders over arrangements of the shuffled patches.

    What continues across a border is learned from the inside of the patches (see `borders`). Arrangements are grown
    from the patches whose place is known or, where none is, from single patches; then bred: each step grows new ones
    that take over the neighbourhoods their parents agree on. The estimate is the arranged image, missing pixels filled
    smoothly.

    Attributes:
        children: arrangements grown in every step.
        parents: arrangements kept from step to step.
        patience: steps without a better arrangement after which to stop.
        max_iter: at most so many steps.
        max_time: at most so many seconds.

    Example:
        >>> import numpy as np
        >>> from keyless.block import Block
        >>> from keyless.paper.problem import PatchProblem
        >>> y, x = np.mgrid[:24, :24] / 8
        >>> image = np.sin(x + y**2) + np.cos(2 * x - y)
        >>> shuffled = image.copy()
        >>> shuffled[:8, :8], shuffled[:8, 8:16] = image[:8, 8:16], image[:8, :8]
        >>> problem = PatchProblem(Block(shuffled), (8, 8), (0, 1))
        >>> PatchArranger().solve(problem, random_state=0).permutations[0].tolist()
        [1, 0]
    """

    children: int = 24
    parents: int = 12
    patience: int = 12
    max_iter: int = 200
    max_time: float | None = None

    def __post_init__(self) -> None:
        check_count(self.children, name="children")
        check_count(self.parents, name="parents")
        check_count(self.patience, name="patience")
        self._check_limits()

    def init(
        self, problem: CorrespondenceProblem, *, start: Array | None = None, random_state: Any = None
    ) -> PatchArrangerState:
        """Return the state before the first step: the evidence of all borders, patches as they stand."""
        if not isinstance(problem, PatchProblem):
            raise InputError("problem: must be patches of an image; tables have no borders.")
        if start is not None:
            raise InputError("start: must be left out; this method makes its own start.")
        height, width = problem.patch_shape
        rows, columns = problem.shape[0] // height, problem.shape[1] // width

        def cut(matrix: Array) -> Any:
            return to_numpy(matrix).reshape(rows, height, columns, width).swapaxes(1, 2).reshape(-1, height, width)

        grid = Grid(
            rows, columns, border_evidence(cut(problem.image.values).astype(np.float64), cut(problem.image.mask))
        )
        standing = np.arange(grid.size)[None]
        seed = int(random_generator(random_state).integers(2**32))
        return PatchArrangerState(grid, standing, grid.score(standing), seed)

    def step(self, problem: CorrespondenceProblem, state: PatchArrangerState) -> PatchArrangerState:
        """Grow the next generation, and keep the fittest of old and new."""
        assert isinstance(problem, PatchProblem)
        grid, generation = state.grid, 0 if state.record is None else state.record.iteration + 1
        rng = np.random.default_rng([state.seed, generation])
        movable = np.sort(np.array(problem.shuffled, dtype=np.intp))
        known = np.setdiff1d(np.arange(grid.size), movable)
        grown = []
        for cells in self._beginnings(grid, known, generation, rng):
            if generation == 0:
                grown.append(grow(grid, cells, anchored=len(known) > 0))
                continue
            one, other = state.arrangements[rng.integers(len(state.arrangements), size=2)]
            grown.append(breed(grid, one, other, cells, anchored=len(known) > 0, rng=rng))
        kept = self._fittest(grid, np.concatenate([state.arrangements, grown]))
        swapped = [swap_while_better(grid, arrangement, movable)[0] for arrangement in kept[:_SWAPPED]]
        kept = self._fittest(grid, np.concatenate([kept, swapped]))
        evidence = grid.score(kept)
        return replace(
            state,
            arrangements=kept,
            evidence=evidence,
            unimproved=0 if evidence[0] > state.evidence[0] + 1e-9 else state.unimproved + 1,
            record=Record(iteration=generation, objective=-float(evidence[0]), entropic_objective=-float(evidence[0])),
        )

    def _beginnings(self, grid: Grid, known: IntArray, generation: int, rng: np.random.Generator) -> list[IntArray]:
        """Return the cells from which to grow: those known, or one patch each time."""
        if len(known):
            cells = np.stack([known // grid.columns, known % grid.columns, known], axis=1)
            # Without noise all would grow alike.
            return [cells] * (1 if generation == 0 else self.children)
        patches = rng.permutation(np.arange(max(grid.size, self.children)) % grid.size)[: self.children]
        return [np.array([[0, 0, patch]], dtype=np.intp) for patch in patches]

    def _fittest(self, grid: Grid, arrangements: IntArray) -> IntArray:
        """Return the different ones of most evidence, best first."""
        different = np.unique(arrangements, axis=0)
        return different[np.argsort(-grid.score(different), kind="stable")[: self.parents]]

    def terminate(self, problem: CorrespondenceProblem, state: PatchArrangerState) -> Status:  # noqa: ARG002
        """Stop when generations bring nothing better."""
        return CONVERGED if state.unimproved >= self.patience else RUNNING

    def finish(
        self, problem: CorrespondenceProblem, state: PatchArrangerState, history: Sequence[Record], status: Status
    ) -> Solution:
        """Put the patches in place and fill what is missing."""
        assert isinstance(problem, PatchProblem)
        number = {place: index for index, place in enumerate(problem.shuffled)}
        permutation = np.array(
            [number[int(state.arrangements[0, place])] for place in problem.shuffled], dtype=np.int64
        )
        placed = problem.place([permutation])
        filled = inpaint(to_numpy(placed.values).astype(np.float64), to_numpy(placed.mask))
        return Solution(
            estimate=array_like(filled, problem.image.values),
            permutations=(permutation,),
            couplings=hard_couplings([permutation], problem),
            objective=-float(state.evidence[0]),
            history=tuple(history),
            status=status,
        )
