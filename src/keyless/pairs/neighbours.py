"""Nearest rows in the space in which distance is likelihood.

Few pairs, or no faiss: every distance is looked at, shard by shard, and the best of the shards merged. Many: faiss
sorts the points into cells and looks into the nearest ones, into more of them for queries that have not found what is
near enough; how many it takes is measured on a sample of queries whose true neighbours are known. On a graphics card
`cell_index` does what faiss does.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from keyless.arrays import batches, on_device, to_numpy
from keyless.pairs.cell_index import CellIndex, nearest_of_all
from keyless.progress import check_time, in_time

__all__ = ["Nearest", "nearest"]

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

_ALL_PAIRS = 1_000_000_000
"""Up to so many distances are all looked at, with faiss; without it always."""

_ALL_ON_DEVICE = 20_000_000_000
"""The same on a card, which looks at more than ten times as many in a second."""

_SHARD = 65_536
_QUERIES = 256
"""Without faiss, the distances of so many queries to the points of one shard are held at a time."""

_AT_A_TIME = 2**28
"""Distances that one call of faiss looks at, about: half a second on one core, after which a time limit is heard."""

_FEWEST = 256
"""Queries of a call at the least: of fewer at a time products of matrices are slow."""

_BLAS_FROM = 20
"""What faiss is told about when to find all distances by products of matrices: for all but a handful of queries. From
version 1.15 on it does so by itself only from 128,000 numbers on, which is meant for machines of very many cores: with
1,000 queries of 20 numbers on one core it then takes 4 to 9 times as long."""

_FEWEST_TRIED, _MOST_TRIED, _TRIED_SHARE = 200, 1_000, 0.003
"""Queries by which a search is checked: this share of them within these bounds. Each is compared with all points, which
takes as long as the search of a hundred others."""

_PROBES = (1, 4, 16, 32, 64, 128, 256)
_NEARLY, _GOOD_RECALL = 0.98, 0.999
"""Recall that looking into fewer cells must have reached, and that looking into enough of them reaches: a sample in
which by luck nobody misses its neighbour does not follow one in which many do."""

_WORTH_A_STAGE = 0.25
"""Looking into few cells first pays where it settles this share of the queries."""


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest points of each query, the nearest first.

    Attributes:
        points: queries × count, −1 where there are not that many.
        evaluations: distances that were looked at.
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
    seed: int = 0,
    device: Any = None,
) -> Nearest:
    """Return the `count` points at the least Euclidean distance from each query.

    Args:
        points: points × dimensions.
        queries: queries × dimensions.
        count: how many.
        enough: squared distance of each query's nearest point that ends the search for a nearer one; None: no such.
        limit: squared distance from each query beyond which it does not matter who is nearest; None: it always does.
        seed: of the cells and of the sample on which the search is checked.
        device: where to search, as `arrays.find_device` has it; None: by the processor.

    Example:
        >>> nearest(np.array([[0.0], [1.0], [5.0]]), np.array([[0.9]]), 2).points
        array([[1, 0]])
    """
    check_time()
    points, queries = (np.ascontiguousarray(side, dtype=np.float32) for side in (points, queries))
    if not len(queries):
        return Nearest(np.empty((0, count), dtype=np.int64), 0)
    pairs = len(points) * len(queries)
    if len(points) < 10_000 or pairs <= (_ALL_PAIRS if device is None else _ALL_ON_DEVICE) or not _has_cells(device):
        return Nearest(_all_pairs(points, queries, count, device), pairs)
    enough = np.full(len(queries), -1.0) if enough is None else enough
    limit = np.full(len(queries), np.inf) if limit is None else limit
    return _by_cells(points, queries, count, enough=enough, limit=limit, seed=seed, device=device)


@cache
def _faiss() -> Any:
    try:
        return importlib.import_module("faiss")
    except ImportError:
        return None


def _has_cells(device: Any) -> bool:
    return device is not None or _faiss() is not None


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
        with _by_products(faiss):
            for part in batches(len(queries), max(_AT_A_TIME // len(points), _FEWEST)):
                found[part, :most] = faiss.knn(queries[part], points, most)[1]
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
def _by_products(faiss: Any) -> Iterator[None]:
    """Let faiss find all distances by products of matrices as long as this lasts."""
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
    points: FloatArray, queries: FloatArray, count: int, *, enough: Any, limit: Any, seed: int, device: Any
) -> Nearest:
    # Sorting n points into c cells and looking into p of them for q queries costs n·c + q·c + q·p·n/c.
    cells = np.sqrt(len(queries) * 16.0 * len(points) / (len(points) + len(queries)))
    cells = int(np.clip(cells, 16, len(points) // 64))
    rng = np.random.default_rng([seed, 53])
    index, training = _index(points, cells, rng) if device is None else (CellIndex(points, cells, rng, device), 0)
    checked = int(np.clip(_TRIED_SHARE * len(queries), _FEWEST_TRIED, _MOST_TRIED))
    tried = rng.choice(len(queries), min(checked, len(queries)), replace=False)
    truth = _all_pairs(points, queries[tried], 1, device)[:, 0]
    least = _distances(points, queries[tried], truth)
    least[least > limit[tried]] = np.inf
    stages, recall, settles = _stages(index, points, queries[tried], least, enough[tried])
    _forget_looks(index)
    found = np.empty((len(queries), count), dtype=np.int64)
    # On a card the index itself looks at the time.
    looks = index.nlist + stages[-1] * len(points) // index.nlist
    together = max(_AT_A_TIME // looks, _FEWEST) if device is None else len(queries)
    for part in batches(len(queries), together):
        found[part] = _in_stages(index, queries[part], count, stages, enough[part] if settles else None)
    looked = _looked(index)
    sorting = cells * (len(points) + len(stages) * len(queries))
    return Nearest(found, looked + sorting + training + len(tried) * len(points), recall)


def _index(points: FloatArray, cells: int, rng: np.random.Generator) -> tuple[Any, int]:
    """Return an index of faiss, and the distances that were looked at to make its cells."""
    faiss = _faiss()
    trained = points[rng.choice(len(points), min(len(points), 40 * cells), replace=False, shuffle=False)]
    quantizer = faiss.IndexFlatL2(points.shape[1])
    index = faiss.IndexIVFFlat(quantizer, points.shape[1], cells)
    index.cp.niter, index.cp.seed = 6, int(rng.integers(2**31))
    in_time(lambda: index.train(trained))
    for part in batches(len(points), _AT_A_TIME // cells):
        index.add(points[part])
    return index, len(trained) * cells * int(index.cp.niter)


def _forget_looks(index: Any) -> None:
    if isinstance(index, CellIndex):
        index.looked = 0
    else:
        _faiss().cvar.indexIVF_stats.reset()


def _looked(index: Any) -> int:
    """Return how many distances were looked at since they were forgotten."""
    return index.looked if isinstance(index, CellIndex) else int(_faiss().cvar.indexIVF_stats.ndis)


def _stages(
    index: Any, points: FloatArray, queries: FloatArray, least: Any, enough: Any
) -> tuple[list[int], float, bool]:
    """Return how many cells to look into, stage after stage, the recall that was seen, and whether to trust `enough`.

    It is not to be trusted where points come in near twins: then a point near enough may not be the nearest.

    Args:
        index: the points in their cells.
        points: the points.
        queries: a sample of the queries.
        least: squared distance of each from its nearest point, ∞ where any point will do.
        enough: as of `nearest`.
    """
    found = np.full(len(queries), np.inf)
    stages: list[int] = []
    recall, settles = 0.0, True
    # All cells are looked into only where there are no more than that: it would be all pairs of rows.
    choices = sorted({min(probes, index.nlist) for probes in _PROBES})
    for probes in choices:
        still = np.flatnonzero(found > enough) if settles else np.arange(len(queries))
        if not len(still):
            break
        index.nprobe = probes
        found[still] = _distances(points, queries[still], index.search(queries[still], 1)[1][:, 0])
        # By distance, not by name: of points that coincide any will do.
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


def _in_stages(index: Any, queries: FloatArray, count: int, stages: list[int], enough: Any | None) -> IntArray:
    found = np.empty((len(queries), count), dtype=np.int64)
    still = np.arange(len(queries))
    for index.nprobe in stages:
        distance, found[still] = index.search(queries[still], count)
        if enough is not None:
            still = still[distance[:, 0] > enough[still]]
    return found
