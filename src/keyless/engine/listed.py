"""Match rows of two tables by listed pairs only: pairs near each other under a map, or pairs of the same group.

Few pairs are looked at, so the work grows with the number of rows and not with its square.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray
from keyless.engine.refine import Matching, Refinement
from keyless.maps.canonical import CanonicalModel, CrossFit
from keyless.model.factors import Factors
from keyless.model.scales import ScaleName
from keyless.pairs.limits import Limits
from keyless.pairs.neighbours import nearest
from keyless.pairs.posterior import FIRST_SHARE, largest, less_crowding, log_sums, pair_places, scaled
from keyless.progress import Deadline, is_late

__all__ = ["ListedRows", "listed_identification", "listed_sharpness", "mutual_first_choices"]

_NEAREST = 24
"""How many of the nearest rows of the other table are looked at, for each row of either table."""


@dataclass
class ListedRows:
    """All rows of two tables under one form.

    Attributes:
        scales: how columns are scaled.
        left: factors of the left rows.
        right: factors of the right rows.
        limits: which pairs may be matched.
        common: how many rows have a partner, where that is known; None: it is estimated.
        pattern: the pairs to look at; None: the pairs that are nearest under the map.
    """

    scales: ScaleName
    left: Factors
    right: Factors
    limits: Limits
    common: float | None = None
    pattern: sparse.csr_array | None = None

    def __post_init__(self) -> None:
        # Which pairs may be matched matters for listed pairs only; the fit does not need to know.
        self.refinement = Refinement(self.left.compact, self.right.compact, limits=Limits(self.limits.shape))
        self.smaller = min(self.limits.shape)

    def listed(self, model: CanonicalModel) -> sparse.csr_array:
        """Return the pairs of rows that are looked at, as a pattern."""
        if self.pattern is not None:
            return self.pattern.astype(np.float64)
        rho = model.correlations
        stretch = np.sqrt(rho / (1 - rho**2)).astype(np.float32)
        left = model.left(self.left.compact) * stretch
        right = model.right(self.right.compact) * stretch
        forth, back = nearest(right, left, _NEAREST).points, nearest(left, right, _NEAREST).points
        rows = np.concatenate([np.repeat(np.arange(len(left)), forth.shape[1]), back.ravel()])
        columns = np.concatenate([forth.ravel(), np.repeat(np.arange(len(right)), back.shape[1])])
        there = (rows >= 0) & (columns >= 0)
        there[there] = self.limits.permits(rows[there], columns[there])
        pattern = sparse.csr_array((np.ones(int(there.sum())), (rows[there], columns[there])), shape=self.limits.shape)
        pattern.sum_duplicates()
        return pattern

    def ratios(self, fit: CrossFit) -> sparse.csr_array:
        """Return the log-likelihood ratios of listed pairs, each left row judged by the model that has not seen it."""
        found = self.listed(fit.whole)
        rows, columns = pair_places(found)
        fold = self.refinement.folds.of_rows[rows]
        for k, model in enumerate(self.refinement.in_folds(fit).models):
            own = fold == k
            found.data[own] = model.pair_log_ratios(self.left.compact[rows[own]], self.right.compact[columns[own]])
        found.data += self.limits.head_start(rows, columns)
        return found

    def run(
        self, fit: CrossFit, *, common: float | None = None, rounds: int, deadline: Deadline | None = None
    ) -> Matching:
        """Match and fit in turn, and return the matching in which partners stand out most.

        Args:
            fit: the map to begin with.
            common: how many rows are thought to have a partner at first; None: most of them.
            rounds: how many rounds are made.
            deadline: when the best so far is returned.
        """
        best: Matching | None = None
        fixed = self.common is not None
        common = FIRST_SHARE * self.smaller if common is None else common
        for done in range(1, rounds + 1):
            ratios = self.ratios(fit)
            known = common if self.common is None else self.common
            coupling, common = scaled(less_crowding(ratios), known, fixed=fixed)
            score = listed_identification(ratios, coupling, self.limits)
            found = Matching(fit, self.refinement.folds.of_rows, coupling, common, ratios, score, done)
            # The first map was fitted to some of the rows that it judges here, so the second round always replaces it.
            if best is None or best.rounds == 1 or found.strength > best.strength:
                best = found
            if is_late(deadline) or common < 2:
                break
            fit = self.refinement.fitted(coupling)
        if best is None:
            raise RuntimeError("no round was made")
        return best


def listed_identification(ratios: sparse.csr_array, coupling: sparse.csr_array, limits: Limits) -> float:
    """Return how well partners stand out, as `keyless.engine.refine.identification` does for all pairs.

    Args:
        ratios: log-likelihood ratios of listed pairs.
        coupling: the weight of each of them, those of partners large.
        limits: which pairs may be matched; a guess is a random one of them.
    """
    weight = float(coupling.sum())
    if weight <= 0:
        return 0.0
    gained = 2 * float((coupling.data * ratios.data).sum())
    for line, size, choices in zip(
        pair_places(ratios), ratios.shape, (limits.choices, limits.flipped.choices), strict=True
    ):
        total = log_sums(line, ratios.data, size) - np.log(np.maximum(choices, 1))
        gained -= float(np.bincount(line, coupling.data, size) @ np.where(np.isfinite(total), total, 0.0))
    return gained / (2 * weight)


def mutual_first_choices(ratios: sparse.csr_array) -> int:
    """Return how many pairs are each other's first choice, by maps that have not seen them.

    Unlike sums of log-likelihoods, this number does not depend on how heavy tails are taken to be, which differs from
    form to form. Partners that a form does not tell from other rows are missing in its number.
    """
    rows, columns = pair_places(ratios)
    first = ratios.data >= largest(rows, ratios.data, ratios.shape[0])[rows]
    return int(np.sum(first & (ratios.data >= largest(columns, ratios.data, ratios.shape[1])[columns])))


def listed_sharpness(ratios: sparse.csr_array, permutation: IntArray) -> float:
    """Return the share of matched rows that are the first choice of their partner, averaged over both directions."""
    rows, columns = pair_places(ratios)
    matched = permutation[rows] == columns
    if not matched.any():
        return 0.0
    best = [
        ratios.data[matched] >= largest(line, ratios.data, size)[line[matched]]
        for line, size in ((rows, ratios.shape[0]), (columns, ratios.shape[1]))
    ]
    return float(np.mean(best))
