"""Couplings of two tables from clusters: which cluster of one is which of the other, and then row by row inside them.

Rows often come in clusters: kinds of cells, species, sites. How far clusters are apart, measured by how far rows of one
cluster are spread, is the same in both tables, whatever other traits either has and however many rows of a cluster it
lacks. So the distances between clusters tell which ones correspond. The clusters' centres are a first part of the map;
rows inside them give the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from keyless.maps.alternation import Alternation
from keyless.model.factors import Factors
from keyless.progress import Deadline, check_time, is_late

__all__ = ["MOST_PROPOSED", "Blocks", "blocks_of_clusters", "grown_in_blocks"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_FEWEST, _MOST = 3, 6
"""Clusters of a table at the least and at the most: two are one distance apart, which tells nothing, and the work grows
with the factorial of their number."""

_LEAST_COMMON = 4
"""Clusters that must correspond where either table may lack some; all where a table has fewer."""

_FACTORS = 6, 10
"""Leading factors in which clusters are sought: the first where it is not known how many stand out, the second at the
most."""

_BEYOND_BEST = 2
"""More clusters than the best number so far that are tried; if these are no better, no more are."""

_ROWS_LOOKED_AT = 2_000
"""Rows of a table that its clusters are fitted to: enough for the centres of six, in a tenth of a second."""

_DISTANCE_ERROR = 0.15
"""Standard error of the logarithm of a distance between clusters of some dozen rows each."""

MOST_PROPOSED = 2
"""Correspondences of clusters that are proposed. Of 20 drawn pairs of tables 15 had the right one as the first, 3 as
the second (development seeds of benchmarks/bench_verdict.py)."""

_KEPT = 4
"""Likeliest correspondences of the same clusters of the left table that are compared with those of others."""

_OUTSIDE = np.float32(0.01)
"""Weight of a row whose cluster corresponds to none, beside 1 of other rows: nothing is known about it."""

_STEPS = 16
"""Steps inside clusters in which each row is coupled by what other rows say."""

_OWN_STEPS, _LAST_STEPS = 40, 2
"""Steps in which rows speak for their own pairs, and steps by what other rows say after them."""

_FIRST_FACTORS = 3
"""Leading factors that growth begins with where rows speak for their own pairs."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Clusters that correspond.

    Attributes:
        name: how many of either table's clusters do.
        allowed: left × right rows, whether both are of clusters that correspond; rows of other clusters may be anybody.
        masses: weight of each left row, and of each right row.
        factors: leading factors that clusters were sought in.
    """

    name: str
    allowed: BoolArray
    masses: tuple[FloatArray, FloatArray]
    factors: int

    @property
    def coupling(self) -> FloatArray:
        """Every row coupled alike to all rows of its block."""
        weights = self.allowed * self.masses[1]
        sums = np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return np.asarray(weights / sums * self.masses[0][:, None], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Clusters:
    distances: FloatArray
    labels: IntArray


def blocks_of_clusters(left: Factors, right: Factors, rows: tuple[IntArray, IntArray]) -> Iterator[Blocks]:
    """Yield the likeliest correspondences of clusters, the best first; none where a table has no clusters.

    Args:
        left: factors of all rows of the left table.
        right: factors of all rows of the right table.
        rows: the left and the right rows that are coupled.
    """
    found = []
    for side, own in zip((left, right), rows, strict=True):
        clusters = _clusters(side, own)
        if clusters is None:
            return
        found.append(clusters)
    factors = max(_factors_used(side) for side in (left, right))
    for one, two in _distinct(_correspondences(found[0].distances, found[1].distances)):
        yield _blocks(found[0].labels, found[1].labels, one, two, factors)


def grown_in_blocks(
    blocks: Blocks, left: FloatArray, right: FloatArray, *, deadline: Deadline | None = None
) -> dict[str, FloatArray]:
    """Return couplings that are reached while rows are coupled inside their blocks only, by name.

    Each row is coupled by what other rows say; or all rows speak for their own pairs first.

    Args:
        blocks: clusters that correspond.
        left: whitened factors of the left rows.
        right: whitened factors of the right rows.
        deadline: after which no further step is taken.
    """
    alternation = Alternation(left, right, allowed=blocks.allowed, masses=blocks.masses, deadline=deadline)
    start, found = blocks.coupling[None], {}
    found[f"{blocks.name}, by other rows"] = alternation.climb(start, [blocks.factors] * _STEPS)[0]
    if not is_late(deadline):
        grown = alternation.grow(start, first=_FIRST_FACTORS, last=blocks.factors, steps=_OWN_STEPS)
        found[f"{blocks.name}, rows for themselves"] = alternation.climb(grown, [blocks.factors] * _LAST_STEPS)[0]
    return found


def _factors_used(side: Factors) -> int:
    return min(side.signal_rank or _FACTORS[0], _FACTORS[1], side.rank)


def _clusters(side: Factors, rows: IntArray) -> _Clusters | None:
    """Return the clusters of a table, as many as are likeliest by the Bayesian information criterion, or None."""
    points = np.asarray(side.scores[:, : _factors_used(side)], dtype=np.float64)
    sample = points[:: -(-len(points) // _ROWS_LOOKED_AT)]
    best: Any = None
    least = np.inf
    for count in range(1, _MOST + 1):
        check_time()
        if count * points.shape[1] >= len(sample):
            break
        model = GaussianMixture(
            count, covariance_type="tied", n_init=2, random_state=0, reg_covar=1e-4, tol=1e-2, max_iter=50
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(sample)
        cost = float(model.bic(sample))
        if cost < least:
            best, least = model, cost
        elif count >= best.n_components + _BEYOND_BEST:
            break
    if best is None or best.n_components < _FEWEST:
        return None
    spread = np.linalg.cholesky(best.covariances_)
    centres = np.linalg.solve(spread, best.means_.T).T
    distances = np.sqrt(np.sum((centres[:, None] - centres[None]) ** 2, axis=2))
    return _Clusters(distances, np.asarray(best.predict(points[rows]), dtype=np.int64))


def _correspondences(left: FloatArray, right: FloatArray) -> list[tuple[IntArray, IntArray]]:
    """Return clusters of the left table and those of the right one that they may be, the likeliest first.

    The log-likelihood ratio of a correspondence compares distances that are the same but for an error with distances of
    any two pairs of clusters.

    Args:
        left: clusters × clusters, how far they are apart.
        right: likewise.
    """
    logs = [np.log(np.maximum(each, np.finfo(float).tiny)) for each in (left, right)]
    among = np.concatenate([each[np.triu_indices(len(each), 1)] for each in logs])
    error = _DISTANCE_ERROR
    other = float(np.hypot(np.sqrt(2) * among.std(), error))
    found: list[tuple[float, IntArray, IntArray]] = []
    most = min(len(left), len(right))
    for count in range(min(_LEAST_COMMON, most), most + 1):
        one, two = np.triu_indices(count, 1)
        chosen = np.array(list(permutations(range(len(right)), count)))
        theirs = logs[1][chosen[:, one], chosen[:, two]]
        for own in map(np.array, combinations(range(len(left)), count)):
            apart = (theirs - logs[0][own[one], own[two]]) ** 2
            ratios = (apart / (2 * other**2) - apart / (2 * error**2) + np.log(other / error)).sum(axis=1)
            likeliest = np.argsort(-ratios, kind="stable")[:_KEPT]
            found += [(float(ratios[place]), own, chosen[place]) for place in likeliest]
    return [(own, theirs) for _, own, theirs in sorted(found, key=lambda each: -each[0])]


def _distinct(correspondences: Sequence[tuple[IntArray, IntArray]]) -> list[tuple[IntArray, IntArray]]:
    """Return correspondences that contradict each other; of those that do not, the likeliest.

    Two that agree as far as both go lead to the same map, which would seem to be found by many candidates.
    """
    kept: list[tuple[set[tuple[int, int]], tuple[IntArray, IntArray]]] = []
    for each in correspondences:
        pairs = set(zip(each[0].tolist(), each[1].tolist(), strict=True))
        if all(_contradict(pairs, other) for other, _ in kept):
            kept.append((pairs, each))
        if len(kept) == MOST_PROPOSED:
            break
    return [each for _, each in kept]


def _contradict(one: set[tuple[int, int]], other: set[tuple[int, int]]) -> bool:
    return any((left == own) != (right == theirs) for left, right in one for own, theirs in other)


def _blocks(left: IntArray, right: IntArray, own: IntArray, theirs: IntArray, factors: int) -> Blocks:
    """Return the rows of clusters that correspond as blocks.

    Args:
        left: the cluster of each left row.
        right: the cluster of each right row.
        own: clusters of the left table.
        theirs: the cluster of the right table that each of them is.
        factors: leading factors that clusters were sought in.
    """
    # Of many rows some are coupled, and a cluster may have none of them.
    seen = np.isin(own, left) & np.isin(theirs, right)
    own, theirs = own[seen], theirs[seen]
    labels = [np.full(_MOST, -1) for _ in range(2)]
    labels[0][own], labels[1][theirs] = np.arange(len(own)), np.arange(len(own))
    first, second = labels[0][left], labels[1][right]
    sizes = [np.bincount(each[each >= 0], minlength=len(own)) for each in (first, second)]
    smaller = np.minimum(*sizes)
    masses = tuple(
        np.where(each >= 0, np.append(smaller / size, _OUTSIDE)[each], _OUTSIDE).astype(np.float32)
        for each, size in zip((first, second), sizes, strict=True)
    )
    allowed = (first[:, None] == second) | (first[:, None] < 0) | (second < 0)
    return Blocks(f"{len(own)} clusters that correspond", allowed, (masses[0], masses[1]), factors)
