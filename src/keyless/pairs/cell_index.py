"""Sort points into cells, so that a search for near points need not look at all of them: on any device.

The code is written once for arrays of all libraries. The centre of each cell is a point drawn at random, and every
point is in the cell of the centre nearest to it. Queries, for which near points are sought, look into the cells of the
centres nearest to them. Queries that look into the same cell do so together, in tiles of equal size, so that distances
are products of small matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from keyless.arrays import Array, IntArray, array_like, batches, namespace, on_cpu, on_device, smallest, to_numpy

__all__ = ["CellIndex", "nearest_of_all"]

_TILE = 64
"""How many queries look into a cell together, as one tile."""

_IN_MEMORY, _ON_CARD = 2**24, 2**28
"""The most distances that are held at a time, in main memory and on a graphics card, where they take a gigabyte."""

_QUERIES, _FOUND = 2**18, 2**26
"""The most queries that are answered at a time, and the most points that all their cells may give, which take a
gigabyte."""


def nearest_of_all(points: Array, queries: Array, count: int) -> tuple[Array, Array]:
    """Return the squared distances and the numbers of the `count` points nearest to each query, the nearest first.

    Args:
        points: points × dimensions.
        queries: queries × dimensions, of the same library on the same device.
        count: how many points are wanted, at most as many as there are.
    """
    xp = namespace(points, queries)
    length = xp.sum(points * points, axis=1)
    near, found = [], []
    for part in batches(len(queries), _held(points) // max(len(points), 1)):
        some = queries[part]
        value, place = smallest(length[None, :] - 2 * (some @ points.T), count)
        near.append(value + xp.sum(some * some, axis=1)[:, None])
        found.append(place)
    return xp.concat(near), xp.concat(found)


class CellIndex:
    """Points in cells; it is searched in the same way as a `FaissIndex`.

    Args:
        points: points × dimensions, an array of numpy.
        cells: how many cells there are.
        rng: draws the centres.
        device: where the search runs, as `arrays.find_device` returns it.

    Attributes:
        cells: number of cells.
        looked: how many distances were looked at: of points from centres, and of queries from centres and points.
    """

    def __init__(self, points: Array, cells: int, rng: np.random.Generator, device: Any) -> None:
        points = on_device(points, device)
        xp = namespace(points)
        self.cells, self.looked = cells, cells * len(points)
        chosen = np.sort(rng.choice(len(points), cells, replace=False, shuffle=False))
        self._centres = xp.take(points, self._whole(chosen, points), axis=0)
        cell = self._cells_of(points, 1)[:, 0]
        self._order = xp.argsort(cell, stable=True)
        bounds = self._whole(np.arange(cells + 1), points)
        self._edges = to_numpy(xp.searchsorted(xp.take(cell, self._order), bounds))
        # Counted from its centre a point has small numbers, and so its distances have small errors.
        middles = xp.take(self._centres, xp.take(cell, self._order), axis=0)
        self._points = xp.take(points, self._order, axis=0) - middles
        self._length = xp.sum(self._points * self._points, axis=1)

    def search(self, queries: Any, probes: int, count: int) -> tuple[Any, IntArray]:
        """Return the squared distances and the numbers of the nearest points in some cells, −1 where there are too few.

        Args:
            queries: queries × dimensions, an array of numpy.
            probes: how many cells, the nearest ones, each query looks into.
            count: how many points are wanted for each query.
        """
        distance, found = np.empty((len(queries), count), dtype=np.float32), np.empty((len(queries), count), np.int64)
        for part in batches(len(queries), min(_QUERIES, _FOUND // (probes * count))):
            near, places = self._nearest(array_like(queries[part], self._points), probes, count)
            distance[part], found[part] = to_numpy(near), to_numpy(places)
        self.looked += self.cells * len(queries)
        return distance, found

    def _nearest(self, queries: Array, probes: int, count: int) -> tuple[Array, Array]:
        xp = namespace(queries)
        cell = xp.reshape(self._cells_of(queries, probes), (-1,))
        order = xp.argsort(cell, stable=True)
        bounds = self._whole(np.arange(self.cells + 1), queries)
        edges = to_numpy(xp.searchsorted(xp.take(cell, order), bounds))
        near = xp.full((len(cell), count), xp.inf, dtype=queries.dtype, device=queries.device)
        places = xp.full((len(cell), count), -1, dtype=order.dtype, device=queries.device)
        for cells, first, last in self._tiles(edges):
            # A tile that is not full looks for its last query several times.
            pairs = self._whole(first, order)[:, None] + self._whole(np.arange(_TILE), order)
            pair = xp.take(order, xp.reshape(xp.minimum(pairs, self._whole(last - 1, order)[:, None]), (-1,)))
            value, place = self._in_cells(xp.take(queries, pair // probes, axis=0), cells, count)
            near[pair, : value.shape[1]], places[pair, : value.shape[1]] = value, place
        near, places = (xp.reshape(part, (len(queries), probes * count)) for part in (near, places))
        if probes == 1:
            return near, places
        near, chosen = smallest(near, count)
        return near, xp.take_along_axis(places, chosen, axis=1)

    def _tiles(self, edges: IntArray) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yield tiles of queries, some at a time: of each the cell, its first query, and the end of its queries."""
        asked, size = np.diff(edges), np.diff(self._edges)
        self.looked += int(asked @ size)
        tiles = np.where(size > 0, -(-asked // _TILE), 0)
        cell = np.repeat(np.arange(self.cells), tiles)
        nth = np.arange(len(cell)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        first = edges[cell] + nth * _TILE
        last = np.minimum(first + _TILE, edges[cell + 1])
        # Tiles of cells of about the same size go together, since all cells are filled up to the largest.
        order = np.argsort(-size[cell], kind="stable")
        start = 0
        while start < len(order):
            stop = start + max(_held(self._points) // (_TILE * int(size[cell[order[start]]])), 1)
            some = order[start:stop]
            yield cell[some], first[some], last[some]
            start = stop

    def _in_cells(self, queries: Array, cells: IntArray, count: int) -> tuple[Array, Array]:
        """Return the nearest points of each tile's queries in its cell; not more than the largest cell has."""
        xp = namespace(queries)
        width = int(np.diff(self._edges)[cells].max())
        start, stop = (self._whole(self._edges[cells + k], queries)[:, None] for k in (0, 1))
        rows = start + self._whole(np.arange(width), queries)
        # A cell that is smaller than the largest is filled up with points at an infinite distance.
        inside = rows < stop
        rows = xp.reshape(xp.minimum(rows, stop - 1), (-1,))
        points = xp.reshape(xp.take(self._points, rows, axis=0), (len(cells), width, -1))
        length = xp.reshape(xp.take(self._length, rows), (len(cells), width))
        length = xp.where(inside, length, xp.inf)
        middles = xp.take(self._centres, self._whole(cells, queries), axis=0)
        queries = xp.reshape(queries, (len(cells), _TILE, -1)) - middles[:, None, :]
        square = length[:, None, :] - 2 * (queries @ xp.permute_dims(points, (0, 2, 1)))
        value, place = smallest(square, min(count, width))
        value = xp.reshape(value + xp.sum(queries * queries, axis=2)[:, :, None], (len(cells) * _TILE, -1))
        place = xp.reshape(xp.minimum(place + start[:, :, None], (stop - 1)[:, :, None]), (-1,))
        found = xp.reshape(xp.take(self._order, place), value.shape)
        return value, xp.where(xp.isinf(value), self._whole(np.array(-1), queries), found)

    def _cells_of(self, rows: Array, count: int) -> Array:
        return nearest_of_all(self._centres, rows, count)[1]

    @staticmethod
    def _whole(numbers: IntArray, like: Array) -> Array:
        return array_like(numbers, like, dtype=namespace(like).int64)


def _held(points: Array) -> int:
    return _IN_MEMORY if on_cpu(points) else _ON_CARD
