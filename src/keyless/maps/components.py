"""The rotation between two tables whose latents are not Gaussian, component by component.

Independent component analysis turns the latents of each table onto its factors, up to order and signs. What is left is
to find which factor of one table is which of the other, and which have no counterpart. Few rows are far out along two
or three components at once. Two such rows, one of each table and at the same place, suggest two or three pairs of
components. The rows that agree in these components are paired. Other components had no part in the pairing: those that
correlate over the paired rows are added.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, islice, permutations, zip_longest

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from keyless.arrays import BoolArray, FloatArray, IntArray
from keyless.maps.by_pairs import Common, corrected, known_directions, rotation_of
from keyless.maps.proposed import CONFIRMED, ProposedMap
from keyless.model.positions import Positions
from keyless.model.shards import Sharded, in_batches, sampled

__all__ = ["Components", "find_components", "from_components", "independent_directions"]


Pair = tuple[int, int, int]
"""A component of the left table, one of the right, and the sign between them."""

_SAMPLE = 40_000
"""Most rows of a table by which components are found."""

_ENDS = 60
"""Rows at either end of every component that are kept."""

_CORNERS = 800
"""Rows far out along two, and along three, components at once that are kept."""

_UNEQUAL = 16.0
"""Of a larger table more rows count, in proportion to its size up to this ratio: as many times more of its rows are
equally far out."""

_NEAR = {2: 2.5, 3: 3.0}
"""How far apart, in standard deviations, two rows may be along two or three components to suggest that they match."""

_CORNER_SIZES = tuple(_NEAR)
"""Along how many components at once rows must be far out."""

_NEIGHBOURS = 32
"""Most rows near the same place that are looked at; the more there are, the less each of them suggests."""

_SEEDS = 300
"""How many first sets of two or three pairs of components are tried."""

_FIRST = 4
"""Up to this many pairs of components, the next likeliest pair is added even if it correlates little: the rows that so
few components pair are not sure enough to ask for more."""

_SUPPORT = 2
"""How many pairs of components must be added because they correlate, beyond the first `_FIRST`; fewer if a table has
too few components."""

_AGREEING = 3
"""How many first sets of pairs must lead to the same pairs of components for `_SUPPORTED` to be enough."""

_SUPPORTED = 0.06
"""Share of held-out rows that must find each other, instead of `CONFIRMED`, where `_SUPPORT` pairs of components were
added and `_AGREEING` first sets agree."""

_TESTED = 12
"""Most different sets of pairs that are tested: if components are few, they fit each other in many wrong ways."""

_CORRELATED = 0.35
"""Correlation over paired rows above which a pair of components is added."""

_FEW_ROWS, _MOST_ROWS = 25, 480
"""Rows over which other components must correlate: the first number at either end of each component while there are
fewer than `_FIRST` pairs, then the second number at all ends together."""

_FEWEST = 5.0
"""How many pairs of rows, each counted by how sure it is, correlations need to mean anything."""

_CAUTION = 4.0
"""Having no partner counts as much as a partner whose fit is this many nats, and half a nat per component, below a
perfect one."""


@dataclass(frozen=True, eq=False)
class Components:
    """A table's independent components, and the rows far out along them.

    Attributes:
        directions: latents × components, orthonormal columns.
        rows: row numbers of the rows that are far out.
        values: those rows × components, unit variance over all rows.
        variance: per component, the variance that is left when a row's entries are known.
        times: how many times as many rows count as of a table that is as large as the other one.
    """

    directions: FloatArray
    rows: IntArray
    values: FloatArray
    variance: FloatArray
    times: float

    @property
    def count(self) -> int:
        """Number of components."""
        return int(self.values.shape[1])

    @cached_property
    def order(self) -> IntArray:
        """Places in `rows`, sorted by value along each component."""
        return np.argsort(self.values, axis=0, kind="stable")

    def ends(self, components: IntArray, count: int) -> FloatArray:
        """Return the values of the rows farthest out at both ends of some components."""
        most = min(round(count * self.times), len(self.rows) // 2)
        order = self.order[:, components]
        return np.asarray(self.values[np.unique(np.concatenate([order[:most], order[len(order) - most :]]))])

    def cornered(self, size: int) -> tuple[IntArray, IntArray]:
        """Return rows, by their place in `rows`, that are far out along `size` components at once, and which these are.

        A row that is far out along more components comes once for every choice of `size` from its `size + 2` farthest.
        """
        distance = np.abs(self.values)
        ranked = np.sort(distance, axis=1)
        count = min(round(_CORNERS * self.times), len(ranked))
        least = np.partition(ranked[:, -size], len(ranked) - count)[len(ranked) - count]
        outside = distance >= np.maximum(least, ranked[:, -min(size + 2, self.count)])[:, None]
        found = [
            (row, *axes)
            for row in np.flatnonzero(outside.sum(axis=1) >= size).tolist()
            for axes in combinations(np.flatnonzero(outside[row]).tolist(), size)
        ]
        place = np.array(found, dtype=np.int64)
        return place[:, 0], place[:, 1:]


def find_components(positions: Positions, *, other: int | None = None, rng: np.random.Generator) -> Components:
    """Return the independent components of a table.

    Args:
        positions: where the rows stand.
        other: how many rows the other table has; None: as many as this one.
        rng: draws the rows that components are found by.
    """
    directions = independent_directions(positions, rng)
    turn = positions.whitening @ directions
    unknown = np.linalg.inv(np.eye(positions.rank) + positions.precision)
    # More rows of the larger table and fewer of the smaller one: as many pairs to look at as between equal tables.
    times = float(np.sqrt(np.clip(len(positions) / (other or len(positions)), 1 / _UNEQUAL, _UNEQUAL)))
    rows, far = _far_out(positions.rows.turned(turn), round(_ENDS * max(times, 1.0)), round(_CORNERS * times))
    return Components(directions, rows, far, np.einsum("ak,ab,bk->k", turn, unknown, turn), times)


def independent_directions(positions: Positions, rng: np.random.Generator) -> FloatArray:
    """Return orthonormal directions, as columns, along which a table's latents are as independent as can be.

    Args:
        positions: where the rows stand.
        rng: draws the rows that directions are found by.
    """
    used = known_directions(positions)
    sample = positions.rows.take(sampled(len(positions), _SAMPLE, rng)) @ positions.whitening @ used
    return np.asarray(used @ _unmixing(sample))


def _unmixing(white: FloatArray) -> FloatArray:
    """Return the rotation after which the columns of white rows are as independent as can be."""
    if white.shape[1] < 2:
        return np.eye(white.shape[1])
    analysis = FastICA(whiten=False, max_iter=100, tol=1e-6, random_state=0)
    with warnings.catch_warnings():
        # Gaussian factors have no components to settle on; held-out rows will not confirm what is found then.
        warnings.simplefilter("ignore", ConvergenceWarning)
        analysis.fit(white)
    first, _, second = np.linalg.svd(analysis.components_)
    return np.asarray((first @ second).T)


def _far_out(rows: Sharded, ends: int, corners: int) -> tuple[IntArray, FloatArray]:
    """Return the rows at the ends of components, those far out along two or three, and their values along all."""
    parts = rows.each(partial(_far_out_of_shard, ends=ends, corners=corners))
    numbers, far = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _farthest(numbers, far, ends, corners)


def _far_out_of_shard(
    shard: FloatArray, turn: FloatArray, first: int, *, ends: int, corners: int
) -> tuple[IntArray, FloatArray]:
    rows, far = np.empty(0, dtype=np.int64), np.empty((0, turn.shape[1]))
    for start, values in in_batches(shard, turn):
        new = np.flatnonzero(_may_be_far(values, far, ends, corners))
        rows = np.concatenate([rows, first + start + new])
        rows, far = _farthest(rows, np.concatenate([far, values[new]]), ends, corners)
    return rows, far


def _may_be_far(values: FloatArray, far: FloatArray, ends: int, corners: int) -> BoolArray:
    """Tell which rows may be as far out as those found so far; after the first rows these are few."""
    if len(far) <= 2 * max(ends, corners):
        return np.ones(len(values), dtype=bool)
    ordered = np.sort(far, axis=0)
    found = ((values <= ordered[ends - 1]) | (values >= ordered[-ends])).any(axis=1)
    distance, sizes = np.abs(values), np.sort(np.abs(far), axis=1)
    for size in _CORNER_SIZES:
        if size <= far.shape[1]:
            least = np.partition(sizes[:, -size], len(far) - corners)[len(far) - corners]
            found |= np.count_nonzero(distance >= least, axis=1) >= size
    return np.asarray(found)


def _farthest(rows: IntArray, far: FloatArray, ends: int, corners: int) -> tuple[IntArray, FloatArray]:
    """Return those of some rows that are farthest out; all rows where there are few."""
    if len(far) <= 2 * max(ends, corners):
        return rows, far
    keep = np.zeros(len(far), dtype=bool)
    order = np.argpartition(far, (ends - 1, len(far) - ends), axis=0)
    keep[order[:ends]] = keep[order[len(far) - ends :]] = True
    distance = np.sort(np.abs(far), axis=1)
    for size in _CORNER_SIZES:
        if size <= far.shape[1]:
            keep[np.argpartition(distance[:, -size], len(far) - corners)[len(far) - corners :]] = True
    return rows[keep], far[keep]


def from_components(
    left: Positions,
    right: Positions,
    *,
    rng: np.random.Generator,
    expired: Callable[[], bool] = lambda: False,
) -> ProposedMap | None:
    """Find which components of two tables are the same, and return the rotation that makes them so.

    Components without counterpart are turned to directions that the other table knows nothing of. Both tables may have
    to be padded with such directions; the rotation then has more rows than they have latents. Return None where no
    first set of pairs of components grows.

    Args:
        left: where the left rows stand.
        right: where the right rows stand.
        rng: draws the rows that components are found by.
        expired: tells whether time is up.
    """
    one, other = (find_components(own, other=len(than), rng=rng) for own, than in ((left, right), (right, left)))
    most = min(one.count, other.count)
    if most < 2:
        return None
    best: tuple[list[Pair], Common] | None = None
    checked: list[list[Pair]] = []
    led: list[Pair] = []
    same, tried = 0, []
    seeds = _interleaved(*(_seeds(one, other, size) for size in _CORNER_SIZES if size <= most))
    for seed in islice(seeds, _SEEDS):
        if len(checked) == _TESTED or expired():
            break
        pairs = _grown(one, other, seed)
        if len(pairs) < min(_FIRST + _SUPPORT, most):
            continue
        if not any(_alike(pairs, before) for before in checked):
            checked.append(pairs)
            common = corrected(left, right, *_directions(one, other, pairs))
            tried.append(("components", f"{len(pairs)} of {most}", common.confirmed))
            if best is None or common.confirmed > best[1].confirmed:
                best, same, led = (pairs, common), 0, []
        if best is None or not _alike(pairs, best[0]):
            continue
        # One row that is far out along many components suggests many sets of pairs: only sets with a new pair count.
        same += not set(seed) <= set(led)
        led += seed
        if same >= _AGREEING and best[1].confirmed >= _needed(best[0], same):
            break
    if best is None:
        return None
    pairs, common = best
    rotation = rotation_of((one.directions, common.left), (other.directions, common.right))
    return ProposedMap(rotation, common.rows, common.confirmed, same, tuple(tried), _needed(pairs, same))


def _needed(pairs: list[Pair], same: int) -> float:
    """Return the share of held-out rows that must find each other for pairs of components to be convincing."""
    return _SUPPORTED if len(pairs) >= _FIRST + _SUPPORT and same >= _AGREEING else CONFIRMED


def _alike(first: list[Pair], second: list[Pair]) -> bool:
    return len(set(first) & set(second)) > 0.8 * len(set(first) | set(second))


def _seeds(left: Components, right: Components, size: int) -> Iterator[list[Pair]]:
    """Yield sets of `size` pairs of components that rows far out along all of them suggest, the likeliest first."""
    one, axes = left.cornered(size)
    other, other_axes = right.cornered(size)
    # The components of a left row may belong to those of a right row in any order.
    orders = list(permutations(range(size)))
    other, other_axes = np.tile(other, len(orders)), np.concatenate([other_axes[:, order] for order in orders])
    scale = np.sqrt(left.variance.mean() + right.variance.mean() + 0.002)
    place, other_place = left.values[one[:, None], axes] / scale, right.values[other[:, None], other_axes] / scale
    distance, near = cKDTree(np.abs(other_place)).query(
        np.abs(place), k=min(_NEIGHBOURS, len(other)), distance_upper_bound=_NEAR[size]
    )
    distance, near = np.asarray(distance), np.asarray(near)
    i, nth = np.nonzero(np.isfinite(distance))
    j, closeness = near[i, nth], np.exp(-0.5 * distance[i, nth] ** 2)
    # A row with many rows near it suggests little.
    others = np.bincount(i, closeness, len(one))[i] + np.bincount(j, closeness, len(other))[j] - closeness
    opposite = place[i] * other_place[j] < 0
    suggested = np.stack([axes[i], other_axes[j], opposite], axis=2).reshape(len(i), 3 * size)
    shape = (left.count, right.count, 2) * size
    code, inverse = np.unique(np.ravel_multi_index(tuple(suggested.T), shape), return_inverse=True)
    weight = np.bincount(inverse, closeness / (others + 0.2))
    for best in np.argsort(-weight, kind="stable"):
        pairs = np.reshape(np.unravel_index(code[best], shape), (size, 3)).tolist()
        yield [(component, partner, 1 - 2 * flip) for component, partner, flip in pairs]


def _interleaved(*seeds: Iterable[list[Pair]]) -> Iterator[list[Pair]]:
    for together in zip_longest(*seeds):
        yield from (seed for seed in together if seed is not None)


def _grown(left: Components, right: Components, pairs: list[Pair]) -> list[Pair]:
    """Add pairs of components that correlate over paired rows; the components added so far pair the rows.

    Up to `_FIRST` pairs the likeliest is added even if it correlates little; later ones must correlate.
    """
    while len(pairs) < min(left.count, right.count):
        first, second, sign = (np.array(part) for part in zip(*pairs, strict=True))
        count = _FEW_ROWS if len(pairs) < _FIRST else _MOST_ROWS // (2 * len(pairs))
        rows = left.ends(first, count), right.ends(second, count)
        deviation = np.sqrt(2 * (left.variance[first] + right.variance[second]) + 0.01)
        coupling = _mutual(rows[0][:, first] / deviation, rows[1][:, second] * sign / deviation)
        if coupling.sum() < _FEWEST:
            break
        correlation = _correlations(*rows, coupling)
        correlation[first] = 0.0
        correlation[:, second] = 0.0
        one, other = linear_sum_assignment(-np.abs(correlation))
        size = np.abs(correlation[one, other])
        chosen = np.array([size.argmax()])
        if len(pairs) >= _FIRST:
            chosen = np.flatnonzero(size > max(_CORRELATED, 0.8 * float(size.max())))
        if not len(chosen) or not size[chosen].all():
            break
        signs = np.sign(correlation[one, other])[chosen]
        pairs = pairs + list(zip(one[chosen].tolist(), other[chosen].tolist(), signs.astype(int).tolist(), strict=True))
    return pairs


def _mutual(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return how surely rows are each other's only likely partner."""
    products = left @ right.T - 0.5 * (left**2).sum(axis=1)[:, None] - 0.5 * (right**2).sum(axis=1)
    kernel = np.exp(np.maximum(products, -60.0))
    alone = np.exp(-_CAUTION - 0.5 * left.shape[1])
    return np.asarray(kernel**2 / (kernel.sum(axis=1) + alone)[:, None] / (kernel.sum(axis=0) + alone))


def _correlations(left: FloatArray, right: FloatArray, coupling: FloatArray) -> FloatArray:
    """Return the correlation of every left with every right component over coupled rows."""
    scale = np.outer((left**2).T @ coupling.sum(axis=1), (right**2).T @ coupling.sum(axis=0))
    return np.asarray(left.T @ (coupling @ right) / np.sqrt(np.maximum(scale, 1e-300)))


def _directions(one: Components, other: Components, pairs: list[Pair]) -> tuple[FloatArray, FloatArray]:
    first, second, sign = (np.array(part) for part in zip(*pairs, strict=True))
    return one.directions[:, first], other.directions[:, second] * sign
