"""Put patches where their borders fit: grow an arrangement from its surest part, then swap while that helps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from keyless.solvers.borders import Borders, neighbours

__all__ = ["Grid", "grow", "sure_parts", "swap_while_better"]

IntArray = NDArray[np.intp]


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

    def score(self, arrangements: IntArray) -> NDArray[np.float64]:
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
        anchored: whether rows and columns are those of the grid; else only their differences count, and the grid is
            laid around what grows.
    """
    rows, columns, n = grid.rows, grid.columns, grid.size
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

    shift = (0, 0) if anchored else (rows - 1 - int(cells[:, 0].max()) // 2, columns - 1 - int(cells[:, 1].max()) // 2)
    for row, column, patch in cells:
        put(int(row) + shift[0] + 1, int(column) + shift[1] + 1, int(patch))
    while free.any():
        filled_rows, filled_columns = np.nonzero(board >= 0)
        open_places = (board < 0) & (touching > 0) & inside
        if not anchored:
            open_places[: max(filled_rows.max() - rows + 1, 0)] = False
            open_places[filled_rows.min() + rows :] = False
            open_places[:, : max(filled_columns.max() - columns + 1, 0)] = False
            open_places[:, filled_columns.min() + columns :] = False
        at_row, at_column = np.nonzero(open_places)
        left = np.flatnonzero(free)
        fit = support[at_row, at_column][:, left]
        best = fit.max(axis=1)
        second = np.partition(fit, -2, axis=1)[:, -2] if len(left) > 1 else best
        place = int(np.argmax(best - second + 0.2 * best / touching[at_row, at_column]))
        put(int(at_row[place]), int(at_column[place]), int(left[fit[place].argmax()]))
    filled_rows, filled_columns = np.nonzero(board >= 0)
    top, start = int(filled_rows.min()), int(filled_columns.min())
    return board[top : top + rows, start : start + columns].ravel()


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


def sure_parts(grid: Grid, arrangement: IntArray) -> IntArray:
    """Number the parts of an arrangement that hold together: neighbours each of whom prefers the other to all others.

    Args:
        grid: places and evidence.
        arrangement: a patch per place.

    Returns:
        The number of its part for every place.
    """
    edges = []
    for pairs, evidence in zip(
        neighbours(grid.rows, grid.columns), (grid.borders.right, grid.borders.below), strict=True
    ):
        one, other = arrangement[pairs[:, 0]], arrangement[pairs[:, 1]]
        found = evidence[one, other]
        edges.append(pairs[(found >= evidence[one].max(axis=1)) & (found >= evidence[:, other].max(axis=0))])
    joined = np.concatenate(edges)
    graph = sparse.coo_array((np.ones(len(joined)), (joined[:, 0], joined[:, 1])), shape=(grid.size, grid.size))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.intp)
