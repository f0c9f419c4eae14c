"""Find the nearest rows in the space in which distance is likelihood.

Where pairs are few, or faiss is not installed, every distance is looked at, shard by shard, and the best of the shards
are merged. Where pairs are many, points are sorted into cells, by `faiss_index` on the processor and by `cell_index` on
a graphics card. Queries look into the nearest cells, and into more cells if they have found nothing that is near
enough. How many cells are needed is measured on a sample of queries whose true neighbours are known.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from keyless.arrays import IntArray, batches, on_device, to_numpy
from keyless.pairs.cell_index import CellIndex, nearest_of_all
from keyless.pairs.faiss_index import CellLayout, FaissIndex
from keyless.parallel import in_turn, one_thread
from keyless.progress import check_time

__all__ = ["Nearest", "lay_out", "nearest"]

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
Result = TypeVar("Result")

_ALL_PAIRS = 1_000_000_000
"""The most distances that are all looked at where faiss is installed; without faiss all distances always are."""

_ALL_ON_DEVICE = 20_000_000_000
"""The same on a graphics card, which looks at more than ten times as many in a second."""

_SHARD = 65_536
_QUERIES = 256
"""Without faiss, the distances of `_QUERIES` queries to the `_SHARD` points of one shard are held at a time."""

_FEWEST_POINTS = 10_000
"""Number of points from which they are sorted into cells."""

_AT_A_TIME = 2**27
"""About how many distances one call of faiss looks at: that takes a quarter of a second, after which a time limit is
obeyed."""

_FEWEST = 128
"""The fewest queries of one call: with fewer at a time, products of matrices are slow."""

_BLAS_FROM = 20
"""The limit from which faiss is told to find all distances by products of matrices: so low that it does for all but a
handful of queries. Left to itself, faiss from version 1.15 on does so only from 128,000 numbers on, which is meant for
machines of very many cores: with 1,000 queries of 20 numbers each, one core then takes 4 to 9 times as long."""

_FEWEST_TRIED, _MOST_TRIED, _TRIED_SHARE = 200, 1_000, 0.003
"""The fewest and the most queries by which a search is checked, and their share of all queries between these two
numbers. Each of them is compared with all points, which takes as long as the search of a hundred others."""

_LOOKING = 3
"""The cost of looking into cells, for each query and each point of an average cell, in units of one distance from a
centre: a query looks into two to three cells on average, and each point of them costs more than a centre. With 700 to
2,800 cells a million rows take equally long."""

_LOOKING_ON_DEVICE = 16
"""The same on a graphics card, where queries look into four cells and more at a time."""

_TOGETHER = 128
"""How many queries look into a cell together, on average: with fewer at a time, products of matrices are slow."""

_PROBES = (1, 4, 16, 32, 64, 128, 256)
_NEARLY, _GOOD_RECALL = 0.98, 0.999
"""Numbers of cells to look into, which are tried in turn. A number is enough if its recall is at least `_GOOD_RECALL`
and that of the number before was at least `_NEARLY`: a sample in which by luck no query misses its neighbour does not
follow one in which many do."""

_WORTH_A_STAGE = 0.25
"""Looking into few cells first is worth its time if it settles at least this share of the queries."""


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest points of each query, the nearest first.

    Attributes:
        points: queries × count, −1 where there are not that many.
        evaluations: how many distances were looked at.
        recall: share of sampled queries whose true nearest point was found, or is too far away to matter.
    """

    points: IntArray
    evaluations: int
    recall: float = 1.0


def nearest(
    points: FloatArray,
    queries: FloatArray,
    count: int,
    *,
    enough: Any | None = None,
    limit: Any | None = None,
    layout: CellLayout | None = None,
    seed: int = 0,
    device: Any = None,
) -> Nearest:
    """Return the `count` points at the least Euclidean distance from each query.

    Args:
        points: points × dimensions.
        queries: queries × dimensions.
        count: how many points are wanted for each query.
        enough: per query, the squared distance of a point that is near enough to end the search for a nearer one; None:
            no point is.
        limit: per query, the squared distance beyond which it does not matter which point is nearest; None: it always
            matters.
        layout: the cells of the points, where `lay_out` has made them; None: they are made here if they are needed.
        seed: of the cells and of the sample on which the search is checked.
        device: where to search, as `arrays.find_device` returns it; None: on the processor.

    Example:
        >>> nearest(np.array([[0.0], [1.0], [5.0]]), np.array([[0.9]]), 2).points
        array([[1, 0]])
    """
    check_time()
    points, queries = (np.ascontiguousarray(side, dtype=np.float32) for side in (points, queries))
    if not len(queries):
        return Nearest(np.empty((0, count), dtype=np.int64), 0)
    if not _by_cells_is_quicker(len(points), len(queries), device):
        return Nearest(_all_pairs(points, queries, count, device), len(points) * len(queries))
    enough = np.full(len(queries), -1.0) if enough is None else enough
    limit = np.full(len(queries), np.inf) if limit is None else limit
    rng = np.random.default_rng([seed, 53])
    made = 0
    if device is not None:
        index: CellIndex | FaissIndex = CellIndex(points, _cells(len(points), len(queries), device), rng, device)
    else:
        if layout is None:
            layout = _layout(points, len(queries), seed)
            made = layout.looked
        index = FaissIndex(_faiss(), points, layout)
    found = _by_cells(index, points, queries, count, enough=enough, limit=limit, rng=rng, device=device)
    return replace(found, evaluations=found.evaluations + made)


def lay_out(points: FloatArray, queries: int, *, seed: int = 0, device: Any = None) -> CellLayout | None:
    """Return the cells of points, for several calls of `nearest` among them; None where they need none.

    Args:
        points: points × dimensions.
        queries: how many there will be in the largest call.
        seed: as for `nearest`.
        device: as for `nearest`.
    """
    if device is not None or not _by_cells_is_quicker(len(points), queries, device):
        return None
    return _layout(np.ascontiguousarray(points, dtype=np.float32), queries, seed)


def _layout(points: FloatArray, queries: int, seed: int) -> CellLayout:
    with _by_products():
        rng = np.random.default_rng([seed, 61])
        return CellLayout.of(_faiss(), points, _cells(len(points), queries, None), rng)


def _by_cells_is_quicker(points: int, queries: int, device: Any) -> bool:
    most = _ALL_PAIRS if device is None else _ALL_ON_DEVICE
    return points >= _FEWEST_POINTS and points * queries > most and (device is not None or _faiss() is not None)


@cache
def _faiss() -> Any:
    try:
        return importlib.import_module("faiss")
    except ImportError:
        return None


def _all_pairs(points: FloatArray, queries: FloatArray, count: int, device: Any = None) -> IntArray:
    faiss = _faiss()
    found = np.full((len(queries), count), -1, dtype=np.int64)
    most = min(count, len(points))
    if not most:
        return found
    if device is not None:
        given, asked = on_device(points, device), on_device(queries, device)
        found[:, :most] = to_numpy(nearest_of_all(given, asked, most)[1])
        return found
    if faiss is not None:
        parts = list(batches(len(queries), max(_AT_A_TIME // len(points), _FEWEST)))
        for part, near in zip(
            parts, _on_all_cores(lambda part: faiss.knn(queries[part], points, most)[1], parts), strict=True
        ):
            found[part, :most] = near
        return found
    length = (points**2).sum(axis=1)
    for part in batches(len(queries), _QUERIES):
        best = np.full((part.stop - part.start, 0), 0, dtype=np.int64)
        near = np.empty((part.stop - part.start, 0), dtype=np.float32)
        for shard in batches(len(points), _SHARD):
            square = length[shard] - 2 * queries[part] @ points[shard].T
            kept = min(most, square.shape[1])
            chosen = np.argpartition(square, kept - 1, axis=1)[:, :kept]
            best = np.concatenate([best, shard.start + chosen], axis=1)
            near = np.concatenate([near, np.take_along_axis(square, chosen, axis=1)], axis=1)
            order = np.argsort(near, axis=1, kind="stable")[:, :most]
            best, near = np.take_along_axis(best, order, axis=1), np.take_along_axis(near, order, axis=1)
        found[part, :most] = best
    return found


@contextmanager
def _by_products() -> Iterator[None]:
    """Let faiss, where it is installed, find all distances by products of matrices inside the `with` block."""
    faiss = _faiss()
    if faiss is None:
        yield
        return
    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = _BLAS_FROM
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


def _distances(points: FloatArray, queries: FloatArray, chosen: IntArray) -> Any:
    """Return the squared distance of each query from the point chosen for it, ∞ where there is none."""
    difference = points[np.maximum(chosen, 0)].astype(np.float64) - queries
    return np.where(chosen < 0, np.inf, np.square(difference).sum(axis=1))


def _by_cells(
    index: CellIndex | FaissIndex,
    points: FloatArray,
    queries: FloatArray,
    count: int,
    *,
    enough: Any,
    limit: Any,
    rng: np.random.Generator,
    device: Any,
) -> Nearest:
    checked = int(np.clip(_TRIED_SHARE * len(queries), _FEWEST_TRIED, _MOST_TRIED))
    tried = rng.choice(len(queries), min(checked, len(queries)), replace=False)
    # Two nearest points are sought, though one is wanted: for a single one faiss uses a method that is slow with few
    # queries.
    truth = _all_pairs(points, queries[tried], 2, device)[:, 0]
    least = _distances(points, queries[tried], truth)
    least[least > limit[tried]] = np.inf
    stages, recall, settles = _stages(index, points, queries[tried], least, enough[tried])
    found = np.empty((len(queries), count), dtype=np.int64)
    still = np.arange(len(queries))
    for probes in stages:
        distance, found[still] = _search(index, queries[still], probes, count)
        if settles:
            still = still[distance[:, 0] > enough[still]]
    return Nearest(found, index.looked + len(tried) * len(points), recall)


def _cells(points: int, queries: int, device: Any) -> int:
    """Return how many cells are the cheapest: n points and q queries with c cells cost (n + q)·c + q·looking·n/c."""
    looking = _LOOKING if device is None else _LOOKING_ON_DEVICE
    return int(np.clip(np.sqrt(looking * points * queries / (points + queries)), 16, points // 64))


def _search(index: CellIndex | FaissIndex, queries: FloatArray, probes: int, count: int) -> tuple[FloatArray, IntArray]:
    """Return what an index finds; on the processor, each core takes some queries at a time."""
    if isinstance(index, CellIndex) or not len(queries):
        return index.search(queries, probes, count)
    parts = list(batches(len(queries), max(_TOGETHER * index.cells // probes, 1)))
    found = _on_all_cores(lambda part: index.search(queries[part], probes, count), parts)
    distances, places = (np.concatenate(each) for each in zip(*found, strict=True))
    return distances, places


def _on_all_cores(search: Callable[[slice], Result], parts: list[slice]) -> list[Result]:
    """Return what parts of a search by faiss find, one part on each core at a time.

    Faiss can spread a call over the cores by itself, but then two cores together use nearly twice the processor time of
    one.
    """
    faiss = _faiss()

    def alone(part: slice) -> Result:
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)  # for calls in this thread
        try:
            return search(part)
        finally:
            faiss.omp_set_num_threads(before)

    # As many threads as faiss may use here, asked before linear algebra is kept to one thread.
    threads = faiss.omp_get_max_threads()
    with one_thread(), _by_products():
        return list(in_turn(alone, [(part,) for part in parts], n_jobs=threads))


def _stages(
    index: Any, points: FloatArray, queries: FloatArray, least: Any, enough: Any
) -> tuple[list[int], float, bool]:
    """Return how many cells to look into, stage after stage, the recall that was seen, and whether to trust `enough`.

    `enough` is not to be trusted where points come in near twins: then a point that is near enough may not be the
    nearest.

    Args:
        index: the points in their cells.
        points: the points.
        queries: a sample of the queries.
        least: squared distance of each sampled query from its nearest point, ∞ where any point will do.
        enough: as for `nearest`.
    """
    found = np.full(len(queries), np.inf)
    stages: list[int] = []
    recall, settles = 0.0, True
    # All cells are looked into only where there are no more than the largest number: it would mean all pairs of rows.
    choices = sorted({min(probes, index.cells) for probes in _PROBES})
    for probes in choices:
        still = np.flatnonzero(found > enough) if settles else np.arange(len(queries))
        if not len(still):
            break
        found[still] = _distances(points, queries[still], index.search(queries[still], probes, 1)[1][:, 0])
        # Points are compared by distance, not by number: of points that coincide any will do.
        nearest_found = found <= least * (1 + 1e-5)
        before, recall = recall, float(nearest_found.mean())
        settled = found <= enough
        if settles and settled.any() and nearest_found[settled].mean() < _GOOD_RECALL:
            settles, stages = False, []
        if (before >= _NEARLY and recall >= _GOOD_RECALL) or probes == choices[-1]:
            break
        if settles and np.count_nonzero(settled[still]) >= _WORTH_A_STAGE * len(still):
            stages.append(probes)
    return [*stages, probes], recall, settles
