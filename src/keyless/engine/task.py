"""What a search of two tables is given beside the tables themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyless.arrays import NumpyArray
from keyless.engine.side import Side
from keyless.pairs.limits import Limits
from keyless.progress import Callback, Deadline

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
    """What is known about two tables, and how they are searched. Rows are in the caller's order until `ordered`.

    Attributes:
        limits: which pairs may be matched; None: all.
        starts: named couplings that are tried first; the searches that tell chance begin with them, too.
        every_row: whether every row of the smaller table has a partner; None: decided from the data.
        generations: how many generations of candidates a search has at the most; None: the default of `Search`.
        comparisons: how often the link is compared with chance at the most; fewer where the first is clear.
        seed: of all random numbers.
        deadline: when the best so far is returned.
        callback: called with stage, step, total and objective.
    """

    limits: Limits | None = None
    starts: Sequence[tuple[str, NumpyArray]] = ()
    every_row: bool | None = None
    generations: int | None = None
    comparisons: int = 2
    seed: int = 0
    deadline: Deadline | None = None
    callback: Callback | None = None

    def within(self, shape: tuple[int, int]) -> Limits:
        """Return which pairs may be matched of two tables with these numbers of rows."""
        return Limits(shape) if self.limits is None else self.limits

    def ordered(self, left: Side, right: Side) -> Task:
        """Return the same task with rows in the engine's order."""
        order = left.order, right.order
        starts = [(name, coupling[np.ix_(*order)]) for name, coupling in self.starts]
        return replace(self, limits=self.within((len(left), len(right))).reordered(*order), starts=starts)
