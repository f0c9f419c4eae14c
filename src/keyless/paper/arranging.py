"""Put patches where their borders fit: grow arrangements, breed them, swap patches while that helps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import FloatArray
from keyless.paper.borders import Borders, neighbours

__all__ = ["Grid", "breed", "grow", "swap_while_better"]

IntArray = NDArray[np.intp]

# What is added to the evidence of a border when breeding, as shares of a typical border's.
_AGREED = 0.75  # both parents have it
_BUDDIES = 0.25  # one parent has it, and the two patches prefer each other to all others
_NOISE = 0.25  # standard deviation, on average: some children stay close to their parents, some go far


@dataclass(frozen=True, eq=False)
class Grid:
    """Places in rows and columns, numbered row by row, and the evidence for patches to be neighbours.

    Attributes:
        rows: of places.
        columns: of places.
        borders: evidence for pairs of patches.
    """

    rows: int
    columns: int
    borders: Borders

    @property
    def size(self) -> int:
        """Number of places, and of patches."""
        return self.rows * self.columns

    def score(self, arrangements: IntArray) -> FloatArray:
        """Return the evidence for arrangements, all borders together; `arrangement[place]` is a patch."""
        beside, above = neighbours(self.rows, self.columns)
        right, below = self.borders.right, self.borders.below
        found = right[arrangements[..., beside[:, 0]], arrangements[..., beside[:, 1]]].sum(axis=-1)
        found = found + below[arrangements[..., above[:, 0]], arrangements[..., above[:, 1]]].sum(axis=-1)
        return np.asarray(found)


def grow(grid: Grid, cells: IntArray, *, anchored: bool) -> IntArray:
    """Return an arrangement grown from given cells: always the place next whose best patch is the least in doubt.

    Args:
        grid: places and evidence.
        cells: one line (row, column, patch) each; at least one.
        anchored: whether rows and columns are those of the grid; else there must be one cell, at row and column 0, and
            the grid is laid around what grows.

    Returns:
        A patch per place.
    """
    rows, columns, n = grid.rows, grid.columns, grid.size
    # The one cell of an unanchored arrangement may end up in any corner: leave room for a grid on each side of it.
    height, width = (rows, columns) if anchored else (2 * rows - 1, 2 * columns - 1)
    right, below = grid.borders.right, grid.borders.below
    board = np.full((height + 2, width + 2), -1, dtype=np.intp)  # with a margin that stays empty
    support = np.zeros((*board.shape, n))
    touching = np.zeros(board.shape, dtype=np.intp)
    inside = np.zeros(board.shape, dtype=bool)
    inside[1:-1, 1:-1] = True
    free = np.ones(n, dtype=bool)

    def put(row: int, column: int, patch: int) -> None:
        board[row, column], free[patch] = patch, False
        support[row, column + 1] += right[patch]
        support[row, column - 1] += right[:, patch]
        support[row + 1, column] += below[patch]
        support[row - 1, column] += below[:, patch]
        for place in ((row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column)):
            touching[place] += 1

    down, across = (1, 1) if anchored else (rows, columns)
    for row, column, patch in cells:
        put(int(row) + down, int(column) + across, int(patch))
    while free.any():
        open_places = (board < 0) & (touching > 0) & inside
        if not anchored:
            filled_rows, filled_columns = np.nonzero(board >= 0)
            open_places[: max(filled_rows.max() - rows + 1, 0)] = False
            open_places[filled_rows.min() + rows :] = False
            open_places[:, : max(filled_columns.max() - columns + 1, 0)] = False
            open_places[:, filled_columns.min() + columns :] = False
        at_row, at_column = np.nonzero(open_places)
        left = np.flatnonzero(free)
        fit = support[at_row, at_column][:, left]
        best = fit.max(axis=1)
        second = np.partition(fit, -2, axis=1)[:, -2] if len(left) > 1 else best
        # A fifth of the evidence itself, so that among equally clear choices the better founded comes first.
        place = int(np.argmax(best - second + 0.2 * best / touching[at_row, at_column]))
        put(int(at_row[place]), int(at_column[place]), int(left[fit[place].argmax()]))
    filled_rows, filled_columns = np.nonzero(board >= 0)
    top, start = int(filled_rows.min()), int(filled_columns.min())
    return board[top : top + rows, start : start + columns].ravel()


def breed(
    grid: Grid, one: IntArray, other: IntArray, cells: IntArray, *, anchored: bool, rng: np.random.Generator
) -> IntArray:
    """Return an arrangement grown with a liking for the neighbourhoods of two others, above all those of both.

    Args:
        grid: places and evidence.
        one: an arrangement, a patch per place.
        other: another, or the same.
        cells: where to begin, as for `grow`.
        anchored: as for `grow`.
        rng: source of the noise that tells children of the same parents apart.
    """
    noise = _NOISE * rng.exponential()
    liked = []
    for pairs, evidence in zip(
        neighbours(grid.rows, grid.columns), (grid.borders.right, grid.borders.below), strict=True
    ):
        # Evidence is in nats and grows with the patches; what is added to it has to grow alike.
        unit = max(float(np.median(evidence.max(axis=1))), 1.0)
        in_one, in_other = (np.zeros(evidence.shape, dtype=bool) for _ in range(2))
        in_one[one[pairs[:, 0]], one[pairs[:, 1]]] = True
        in_other[other[pairs[:, 0]], other[pairs[:, 1]]] = True
        buddies = (evidence >= evidence.max(axis=1, keepdims=True)) & (evidence >= evidence.max(axis=0, keepdims=True))
        bonus = _AGREED * (in_one & in_other) + _BUDDIES * (buddies & (in_one | in_other))
        liked.append(evidence + unit * (bonus + noise * rng.standard_normal(evidence.shape)))
    return grow(replace(grid, borders=Borders(*liked)), cells, anchored=anchored)


def swap_while_better(grid: Grid, arrangement: IntArray, movable: IntArray) -> tuple[IntArray, float]:
    """Swap the two patches that help most, until none do; return arrangement and evidence.

    Args:
        grid: places and evidence.
        arrangement: where to begin.
        movable: places whose patches may move.
    """
    value = float(grid.score(arrangement))
    first, second = (movable[index] for index in np.triu_indices(len(movable), 1))
    lines = np.arange(len(first))
    while len(lines):
        swapped = np.repeat(arrangement[None], len(first), axis=0)
        swapped[lines, first], swapped[lines, second] = arrangement[second], arrangement[first]
        values = grid.score(swapped)
        best = int(values.argmax())
        if values[best] <= value + 1e-9:
            break
        arrangement, value = swapped[best], float(values[best])
    return arrangement, value
