"""Divide the space of points into boxes of about equally many points: neighbours are sought box by box.

A box is cut in two where half of its points are on either side, along the direction in which they differ most. No point
of a box is nearer to a row than the box is, so that a row need not look into boxes that are farther away than what it
has found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyless.arrays import FloatArray, IntArray, SingleArray

__all__ = ["CELL", "Cells"]


CELL = 2**20
"""About the most points of a cell. So the time of a search inside a cell does not depend on how many rows there are."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A tree of cuts; the children of node k are 2k + 1 (up to the cut) and 2k + 2.

    Attributes:
        axes: per inner node, the direction that is cut.
        cuts: per inner node, the place of the cut along that direction.
    """

    axes: IntArray
    cuts: FloatArray

    @classmethod
    def of(cls, points: SingleArray, count: int) -> Cells:
        """Return at least `count` cells, a power of two.

        Args:
            points: a sample of the points to be divided.
            count: how many cells there must be.
        """
        depth = max(0, int(np.ceil(np.log2(max(count, 1)))))
        axes, cuts = np.zeros(2**depth - 1, dtype=np.int64), np.zeros(2**depth - 1)
        members = [np.asarray(points)]
        for node in range(len(axes)):
            own = members[node]
            if len(own):
                axes[node] = int(own.var(axis=0).argmax())
                cuts[node] = float(np.median(own[:, axes[node]]))
            above = own[:, axes[node]] > cuts[node]
            members += [own[~above], own[above]]
        return cls(axes, cuts)

    def __len__(self) -> int:
        return len(self.axes) + 1

    def home(self, points: SingleArray) -> IntArray:
        """Return the cell that each point is in."""
        node = np.zeros(len(points), dtype=np.int64)
        rows = np.arange(len(points))
        for _ in range(len(self).bit_length() - 1):
            node = 2 * node + 1 + (points[rows, self.axes[node]] > self.cuts[node])
        return node - len(self.axes)

    def distances(self, queries: SingleArray) -> SingleArray:
        """Return the squared distance of each query from each cell, 0 from the cell that it is in."""
        found = np.empty((len(queries), len(self)), dtype=np.float32)
        self._descend(0, np.zeros(queries.shape, dtype=np.float32), queries, found)
        return found

    def _descend(self, node: int, outside: SingleArray, queries: SingleArray, found: SingleArray) -> None:
        """Fill in the distances from the cells below a node; `outside` is how far queries are outside its box."""
        inner = len(self.axes)
        if node >= inner:
            found[:, node - inner] = np.square(outside).sum(axis=1)
            return
        axis = self.axes[node]
        beyond, before = queries[:, axis] - self.cuts[node], outside[:, axis].copy()
        for child, side in ((2 * node + 1, beyond), (2 * node + 2, -beyond)):
            outside[:, axis] = np.maximum(before, side)
            self._descend(child, outside, queries, found)
        outside[:, axis] = before
