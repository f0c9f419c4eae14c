"""The rotation between two tables whose latents are not Gaussian, component by component.

Independent component analysis turns the latents of each table onto its factors, up to order and signs. What is left is
to find which factor of one table is which of the other, and which have no counterpart. Few rows are far out along two
or three components at once. Two such rows at the same place suggest as many pairs of components; the rows that agree in
these are paired, and other components, which had no part in that, must correlate over the pairs: if they do, they are
added.
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
"""Rows by which components are found."""

_ENDS = 60
"""Rows at either end of every component that are kept."""

_CORNERS = 800
"""Rows far out along two, and along three, components at once that are kept."""

_UNEQUAL = 16.0
"""Of a table so many times larger, at the most, as many times more rows count: as many are equally far out."""

_NEAR = {2: 2.5, 3: 3.0}
"""How far apart, in standard deviations, two rows may be along two or three components to suggest that they match."""

_CORNER_SIZES = tuple(_NEAR)
_NEIGHBOURS = 32
"""So many rows near the same place are looked at; each suggests the less the more there are."""

_SEEDS = 300
"""How many first pairs of components are tried."""

_FIRST = 4
"""With fewer pairs of components the rows they pair are not sure enough to ask for more than the next likeliest."""

_SUPPORT = 2
"""How many components that had no part in pairing the rows must correlate over them, unless there are too few."""

_AGREEING = 3
_SUPPORTED = 0.06
"""Where that many do, and so many first pairs led to the same, fewer rows must find each other to be convincing."""

_TESTED = 12
"""How many different sets of pairs are tested at the most: few components fit each other in many wrong ways."""

_CORRELATED = 0.35
"""Correlation over paired rows that a pair of components must have to be added."""

_FEW_ROWS, _MOST_ROWS = 25, 480
"""Rows at either end of each of the first components, and at all ends of many, over which others must correlate."""

_FEWEST = 5.0
"""How many rows of which each must be paired, in the sum of how surely they are, for correlations to mean anything."""

_CAUTION = 4.0
"""Nats, and half a nat per component, that a row's best partner must have over having none."""


@dataclass(frozen=True, eq=False)
class Components:
    """A table's independent components, and the rows far out along them.

    Attributes:
        directions: latents × components, orthonormal columns.
        rows: row numbers of the rows that are far out.
        values: those rows × components, unit variance over all rows.
        variance: what is not known of each, per row.
        times: how many times more rows count than of a table as large as the other.
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
        """The rows that are far out by their place along each component."""
        return np.argsort(self.values, axis=0, kind="stable")

    def ends(self, components: IntArray, count: int) -> FloatArray:
        """Return the values of the rows farthest out at both ends of some components."""
        most = min(round(count * self.times), len(self.rows) // 2)
        order = self.order[:, components]
        return np.asarray(self.values[np.unique(np.concatenate([order[:most], order[len(order) - most :]]))])

    def cornered(self, size: int) -> tuple[IntArray, IntArray]:
        """Return rows, by their place in `rows`, that are far out along several components at once, and along which.

        A row that is along more than `size` of them comes once for every choice, up to two more.
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
        other: how many rows the table to be compared with has; None: as many.
        rng: draws the rows that components are found by.
    """
    directions = independent_directions(positions, rng)
    turn = positions.whitening @ directions
    unknown = np.linalg.inv(np.eye(positions.rank) + positions.precision)
    # More of the larger, fewer of the smaller, so that the pairs to be looked at are as many as between equals.
    times = float(np.sqrt(np.clip(len(positions) / (other or len(positions)), 1 / _UNEQUAL, _UNEQUAL)))
    rows, far = _far_out(positions.rows.turned(turn), round(_ENDS * max(times, 1.0)), round(_CORNERS * times))
    return Components(directions, rows, far, np.einsum("ak,ab,bk->k", turn, unknown, turn), times)


def independent_directions(positions: Positions, rng: np.random.Generator) -> FloatArray:
    """Return orthonormal directions, as columns, along which a table's latents are as independent as can be.

    Args:
        positions: where the rows stand.
        rng: draws those they are found by.
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
        # Gaussian factors have no components to settle on; the search among them will not be confirmed.
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
    """Tell which rows are not surely less far out than those found so far: few, after the first ones."""
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
    """Return those of some rows that are farthest out; all where there are few."""
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

    Components without counterpart turn to directions that the other table knows nothing of, for which both may have to
    be padded: the rotation has as many rows as that takes. None where no pairs of components grow into more.

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
        # One row far out along many components suggests many pairs of them: only what is new counts.
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
    """Return the share of rows that must find each other for pairs of components to be convincing."""
    return _SUPPORTED if len(pairs) >= _FIRST + _SUPPORT and same >= _AGREEING else CONFIRMED


def _alike(first: list[Pair], second: list[Pair]) -> bool:
    return len(set(first) & set(second)) > 0.8 * len(set(first) | set(second))


def _seeds(left: Components, right: Components, size: int) -> Iterator[list[Pair]]:
    """Yield pairs of components, `size` at a time, that rows far out along all of them suggest, the likeliest first."""
    one, axes = left.cornered(size)
    other, other_axes = right.cornered(size)
    # A corner's axes may be taken in any order.
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
    # Who has many that are near suggests little.
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
    """Add pairs of components that correlate over the rows which those so far pair.

    Up to `_FIRST` the likeliest is added whether or not it correlates much; the others must.
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
