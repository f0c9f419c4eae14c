"""Sort points into cells by faiss, so that a search for near points need not look at all of them: on the processor.

Faiss makes the cells, and finds the nearest points for all queries that look into the same cell together, so that
distances are products of matrices. Faiss's own index of cells takes the queries one by one: among a million points of
20 numbers each this takes three times as long.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.arrays import IntArray, batches, smallest
from keyless.progress import check_time, in_time

__all__ = ["CellLayout", "FaissIndex"]

FloatArray = np.ndarray[Any, np.dtype[np.float32]]

_ROUNDS, _POINTS_OF_A_CENTRE = 6, 40
"""Rounds in which the centres of cells are found, and how many points are drawn per centre to find them."""

_SORTED = 2**17
"""How many points are sorted into cells at a time."""

_FOUND = 2**23
"""The most points that all cells may give to the queries that are answered at a time; they take 100 megabytes."""


@dataclass(frozen=True, eq=False)
class CellLayout:
    """Which point is in which cell: the work that all searches among the same points share.

    Attributes:
        centres: cells × dimensions.
        order: the points, cell after cell.
        edges: where each cell begins in that order, and where the last one ends.
        looked: how many distances of points from centres were looked at to make the layout.
    """

    centres: FloatArray
    order: IntArray
    edges: IntArray
    looked: int

    @classmethod
    def of(cls, faiss: Any, points: FloatArray, cells: int, rng: np.random.Generator) -> CellLayout:
        """Sort points into cells.

        Args:
            faiss: the library.
            points: points × dimensions.
            cells: how many cells there are.
            rng: draws the points by which the centres are found.
        """
        drawn = min(len(points), _POINTS_OF_A_CENTRE * cells)
        trained = points[rng.choice(len(points), drawn, replace=False, shuffle=False)]
        means = faiss.Kmeans(
            points.shape[1],
            cells,
            niter=_ROUNDS,
            seed=int(rng.integers(2**31)),
            min_points_per_centroid=1,
            max_points_per_centroid=_POINTS_OF_A_CENTRE,
        )
        in_time(lambda: means.train(trained))
        centres = means.centroids
        parts = [_nearest_centres(faiss, centres, points[part], 1)[:, 0] for part in batches(len(points), _SORTED)]
        cell = np.concatenate(parts)
        order = np.argsort(cell, kind="stable")
        edges = np.searchsorted(cell[order], np.arange(cells + 1))
        # Numbers of 4 bytes are enough for as many points as one index can hold.
        return cls(centres, order.astype(np.int32), edges, cells * (_ROUNDS * drawn + len(points)))


class FaissIndex:
    """Points in cells.

    Args:
        faiss: the library.
        points: points × dimensions.
        layout: which of the points is in which cell.

    Attributes:
        layout: which point is in which cell.
        cells: number of cells.
        looked: how many distances of queries from centres and points were looked at.
    """

    def __init__(self, faiss: Any, points: FloatArray, layout: CellLayout) -> None:
        self._faiss, self.layout, self.cells, self.looked = faiss, layout, len(layout.centres), 0
        self._lock = threading.Lock()
        # Counted from its centre a point has small numbers, and so its distances have small errors.
        self._points = points[layout.order]
        self._points -= np.repeat(layout.centres, np.diff(layout.edges), axis=0)

    def search(self, queries: FloatArray, probes: int, count: int) -> tuple[FloatArray, IntArray]:
        """Return the squared distances and the numbers of the nearest points in some cells, −1 where there are too few.

        Args:
            queries: queries × dimensions.
            probes: how many cells, the nearest ones, each query looks into.
            count: how many points are wanted for each query.
        """
        distance, found = np.empty((len(queries), count), dtype=np.float32), np.empty((len(queries), count), np.int64)
        for part in batches(len(queries), max(_FOUND // (probes * count), 1)):
            distance[part], found[part] = self._nearest(queries[part], probes, count)
        return distance, found

    def _nearest(self, queries: FloatArray, probes: int, count: int) -> tuple[FloatArray, IntArray]:
        centres, of_points = self.layout.centres, self.layout.edges
        cell = _nearest_centres(self._faiss, centres, queries, probes).ravel()
        order = np.argsort(cell, kind="stable")
        edges = np.searchsorted(cell[order], np.arange(self.cells + 1))
        near = np.full((len(cell), count), np.inf, dtype=np.float32)
        places = np.full((len(cell), count), -1, dtype=np.int64)
        asked, size = np.diff(edges), np.diff(of_points)
        for one in np.flatnonzero((asked > 0) & (size > 0)).tolist():
            check_time()
            pair = order[edges[one] : edges[one + 1]]
            some = queries[pair // probes] - centres[one]
            first, last = of_points[one : one + 2].tolist()
            most = min(count, last - first)
            near[pair, :most], place = self._faiss.knn(some, self._points[first:last], most)
            places[pair, :most] = self.layout.order[first + place]
        with self._lock:
            self.looked += self.cells * len(queries) + int(asked @ size)
        if probes == 1:
            return near, places
        near, places = near.reshape(len(queries), -1), places.reshape(len(queries), -1)
        near, chosen = smallest(near, count)
        return near, np.take_along_axis(places, chosen, axis=1)


def _nearest_centres(faiss: Any, centres: FloatArray, rows: FloatArray, count: int) -> IntArray:
    return np.asarray(faiss.knn(rows, centres, count)[1])
