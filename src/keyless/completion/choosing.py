"""Choose penalty and rank of Soft-Impute by the error on held-out entries."""

from __future__ import annotations

import numpy as np

from keyless.arrays import Array
from keyless.completion.observed import ObservedTable, entries
from keyless.completion.sweeps import FactorLayout, Settled, solve
from keyless.lowrank import truncated_svd

__all__ = ["PenaltySearch"]


class PenaltySearch:
    """Choose penalty and rank by the error on held-out entries.

    For one rank limit the penalty walks down a fixed grid, each fit starting from the one before, until the error has
    risen. Limits grow by half until the error rises, then the gaps around the best one are halved.
    """

    def __init__(
        self,
        split: tuple[ObservedTable, Array, Array, Array],
        layout: FactorLayout,
        right: Array,
        steps: int,
        floor: float,
    ) -> None:
        self.train, self.rows, self.columns, self.truth = split
        nothing = solve(self.train, layout, right, 1.0, limit=0, max_iter=50, tolerance=1e-4)
        largest = float(truncated_svd(self.train.residual(nothing.left, nothing.right), 1).singular_values[0])
        self.penalties = max(largest, floor) * np.logspace(0, -4 if largest > floor else 0, steps)
        self.path: list[tuple[float, int, int, float]] = []
        # Of a fit, only what the next can start from is kept: its rows may be many.
        self.fits: dict[int, dict[int, tuple[float, FactorLayout, Array]]] = {
            0: {0: (self._error(nothing), nothing.layout, nothing.right)}
        }

    def _error(self, fit: Settled) -> float:
        gaps = self.truth - entries(fit.left, fit.right, self.rows, self.columns)
        return float(np.sqrt(np.mean(gaps**2)))

    def best(self, limit: int) -> tuple[float, int]:
        """The lowest error with this rank limit, and the place of its penalty on the grid."""
        return min((error, step) for step, (error, _, _) in self.fits[limit].items())

    def attempt(self, limit: int) -> float:
        """Walk down the penalties with this rank limit; return the lowest error."""
        if limit not in self.fits:
            near = max(known for known in self.fits if known < limit)
            first = max(0, self.best(near)[1] - 3)
            _, layout, right = self.fits[near].get(first, next(iter(self.fits[near].values())))
            found: dict[int, tuple[float, FactorLayout, Array]] = {}
            for step in range(first, len(self.penalties)):
                penalty = float(self.penalties[step])
                fit = solve(self.train, layout, right, penalty, limit=limit, max_iter=50, tolerance=1e-4)
                layout, right = fit.layout, fit.right
                found[step] = (self._error(fit), layout, right)
                self.path.append((penalty, limit, layout.rank, found[step][0]))
                if step - min(found, key=lambda known: found[known][0]) == 1:
                    break
            self.fits[limit] = found
        return self.best(limit)[0]

    def limit(self, largest: int) -> int:
        """The rank limit of lowest error."""
        now = 1
        while self.attempt(now) <= min(self.best(known)[0] for known in self.fits) and now < largest:
            now = min(now + (now + 1) // 2, largest)
        while True:
            best = min(self.fits, key=lambda known: self.best(known)[0])
            below = max((known for known in self.fits if known < best), default=best)
            above = min((known for known in self.fits if known > best), default=best)
            gaps = [(one + two) // 2 for one, two in ((below, best), (best, above)) if two - one > 1]
            if not gaps:
                return max(best, 1)
            for middle in gaps:
                if self.attempt(middle) < self.best(best)[0]:
                    break
