"""Clusters of two tables: which ones correspond, and the map that grows inside them."""

import numpy as np
import pytest

from keyless.engine.search import Search
from keyless.maps.clusters import Blocks, _blocks, _correspondences, _distinct, blocks_of_clusters, grown_in_blocks
from keyless.model.factors import Factors, whitened
from keyless.pairs.limits import Limits


def distances(points):
    return np.sqrt(np.sum((points[:, None] - points[None]) ** 2, axis=2))


def clustered(seed, *, rows=260, clusters=5, traits=6, own=3, left_out=None):
    """Return factors of two tables of the same entities, in clusters; each table has traits of its own.

    Args:
        seed: of all random numbers.
        rows: entities.
        clusters: how many there are.
        traits: that both tables see.
        own: traits of one table alone, normal.
        left_out: a cluster that the right table lacks; None: it has all.

    Returns:
        Factors of both, the right row of each left row, −1 for none, and the cluster of each left and right row.
    """
    rng = np.random.default_rng(seed)
    label = np.arange(rows) % clusters
    latent = (2.5 * rng.normal(size=(clusters, traits)))[label] + rng.normal(size=(rows, traits))
    kept = rng.permutation(np.flatnonzero(label != (-1 if left_out is None else left_out)))
    sides = []
    for chosen in (np.arange(rows), kept):
        seen = np.column_stack([latent + 0.1 * rng.normal(size=latent.shape), rng.normal(size=(rows, own))])[chosen]
        turned = whitened(seen) @ np.linalg.qr(rng.normal(size=(traits + own, traits + own)))[0]
        sides.append(Factors(turned, np.ones(traits + own), traits + own))
    truth = np.append(np.full(rows, -1), -1)
    truth[kept] = np.arange(len(kept))
    return sides, truth[:rows], (label, label[kept])


@pytest.mark.parametrize("lacking", [0, 1])
def test_distances_tell_which_clusters_correspond(lacking):
    rng = np.random.default_rng(1)
    points = rng.normal(size=(6, 5))
    order = rng.permutation(6)[: 6 - lacking]
    noisy = points[order] * np.exp(0.02 * rng.normal(size=(6 - lacking, 1)))
    own, theirs = _correspondences(distances(points), distances(noisy))[0]
    assert len(own) == 6 - lacking
    assert np.array_equal(order[theirs], own)


def test_correspondences_that_do_not_contradict_each_other_are_one():
    whole = np.array([0, 1, 2, 3]), np.array([2, 0, 1, 3])
    part = np.array([0, 1, 2]), np.array([2, 0, 1])
    other = np.array([0, 1, 2]), np.array([0, 2, 1])
    assert [len(own) for own, _ in _distinct([whole, part, other])] == [4, 3]
    assert _distinct([part, whole, other])[1] is other


def test_a_cluster_without_rows_among_those_that_are_coupled():
    found = _blocks(np.array([0, 1]), np.array([0, 1]), np.array([0, 1, 2]), np.array([5, 0, 1]), 6)
    # The left cluster 1 is the right cluster 0; the rows of the others may be anybody.
    assert found.allowed.tolist() == [[True, True], [True, True]]
    assert found.masses[0].tolist() == pytest.approx([0.01, 1.0])
    assert found.masses[1].tolist() == pytest.approx([1.0, 0.01])


def test_tables_without_clusters_have_none():
    rng = np.random.default_rng(2)
    sides = [Factors(whitened(rng.normal(size=(200, 6))), np.ones(6), 6) for _ in range(2)]
    assert not list(blocks_of_clusters(*sides, (np.arange(200), np.arange(200))))


@pytest.mark.parametrize("left_out", [None, 2])
def test_rows_of_clusters_that_correspond_make_a_block(left_out):
    sides, truth, labels = clustered(3, left_out=left_out)
    blocks = next(blocks_of_clusters(*sides, tuple(np.arange(len(side.scores)) for side in sides)))
    common = np.flatnonzero(truth >= 0)
    assert blocks.allowed[common, truth[common]].mean() > 0.99
    same = labels[0][:, None] == labels[1]
    inside = np.isin(labels[0], labels[1])
    assert blocks.allowed[inside][~same[inside]].mean() < 0.01
    coupling = blocks.coupling
    np.testing.assert_allclose(coupling.sum(axis=1), blocks.masses[0], rtol=1e-5)
    if left_out is not None:
        # Of rows that nothing is known about, little is made.
        assert coupling[~inside].sum() < 0.05 * coupling.sum()


def test_the_map_grows_inside_blocks():
    sides, truth, _ = clustered(4)
    blocks = next(blocks_of_clusters(*sides, (np.arange(260), np.arange(260))))
    for coupling in grown_in_blocks(blocks, sides[0].compact, sides[1].compact).values():
        assert np.mean(coupling.argmax(axis=1) == truth) > 0.9
        assert coupling[~blocks.allowed].sum() == 0


def test_a_search_finds_the_map_by_clusters_though_tables_have_traits_of_their_own():
    sides, truth, _ = clustered(5, left_out=1)
    search = Search(*sides, Limits((len(sides[0].scores), len(sides[1].scores))), spaces=0)
    found = search.run()
    common = truth >= 0
    assert np.mean(found.ratios.argmax(axis=1)[common] == truth[common]) > 0.9
    assert any("clusters that correspond" in start.name for start in search.tried)


def test_pairs_that_must_not_be_stay_out_of_blocks():
    sides, truth, _ = clustered(6)
    forbidden = np.column_stack([np.arange(20), truth[:20]])
    # The caller knows a pair of rows of different clusters.
    known = np.array([[30, truth[31]]])
    search = Search(*sides, Limits((260, 260), known=known, forbidden=forbidden), spaces=0)
    proposals = [one for batch in search._batches(()) for one in batch if one.blocks is not None]
    assert proposals
    for one in proposals:
        assert isinstance(one.blocks, Blocks)
        assert not one.blocks.allowed[forbidden[:, 0], forbidden[:, 1]].any()
        assert one.blocks.allowed[30].sum() == 1
        assert one.blocks.allowed[30, truth[31]]
