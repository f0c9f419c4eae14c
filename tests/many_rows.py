"""Tables of many rows, complete, with gaps, or with rows that have no partner; and what an index of cells must find."""

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist


def shuffled(rng, case, *, rows):
    """Two tables with gaps, or with 70% of the entities in common, and the right row of each."""
    latents = rng.laplace(size=(2 * rows, 6))
    own = np.r_[: round(0.7 * rows), rows : rows + rows - round(0.7 * rows)] if case == "strangers" else np.arange(rows)
    order = rng.permutation(rows)
    tables = [latents[:rows], latents[own[order]]]
    tables = [
        side @ rng.normal(size=(6, width)) + 0.3 * rng.normal(size=(rows, width))
        for side, width in zip(tables, (20, 16), strict=True)
    ]
    if case == "gaps":
        for table in tables:
            table[rng.random(table.shape) < 0.15] = np.nan
    truth = np.full(2 * rows, -1)
    truth[own[order]] = np.arange(rows)
    return tables, truth[:rows]


def check_all_cells(index, points, queries, cells):
    """Compare an index whose queries look into all cells with all distances; it must have counted them, too."""
    before = index.looked
    distance, found = index.search(queries, cells, 4)
    all_distances = cdist(queries.astype(float), points.astype(float), "sqeuclidean")
    expected = np.sort(all_distances, axis=1)[:, :4]
    np.testing.assert_allclose(np.take_along_axis(all_distances, found, axis=1), expected, atol=1e-3)
    np.testing.assert_allclose(distance, expected, atol=1e-3)
    assert index.looked - before == len(queries) * (cells + len(points))


def check_one_cell(index, centres, points, queries, count):
    """Compare an index whose queries look into one cell with the distances from the points of that cell."""
    home, asked = (cKDTree(centres).query(side)[1] for side in (points, queries))
    _, found = index.search(queries, 1, count)
    for query, cell, own in zip(queries, asked, found, strict=True):
        members = np.flatnonzero(home == cell)
        order = members[np.argsort(((points[members] - query) ** 2).sum(axis=1))][:count]
        np.testing.assert_array_equal(own[: len(order)], order)
        assert (own[len(order) :] == -1).all()
