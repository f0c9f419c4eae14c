"""Maps that grow: steps against their definition by loops, laws of couplings, and maps that lead to all rows."""

import numpy as np
import pytest

from keyless.maps.canonical import RIDGE
from keyless.maps.growth import Growth, Shapes, _Fitted, random_turn
from keyless.model.factors import whitened

ROWS = 60


def factors(rng, *, rows=ROWS, common=4, own=1, noise=0.1):
    """Whitened factors of two tables, skewed so that clouds have a shape, and the right row of each left row."""
    shared = rng.exponential(size=(rows, common)) - 1
    sides = []
    for _ in range(2):
        seen = np.column_stack([shared + noise * rng.normal(size=shared.shape), 0.3 * rng.normal(size=(rows, own))])
        sides.append(whitened(seen))
    order = rng.permutation(rows)
    return sides[0], sides[1][order], np.argsort(order)


def coupled_by_loops(left, right, cross, masses, scalings):
    """The coupling of one step by its definition: log-likelihood ratios of canonical pairs, rows and columns scaled."""
    centred = []
    for side, weight in zip((left, right), masses, strict=True):
        mean = np.average(side, axis=0, weights=weight)
        covariance = np.cov(side.T, aweights=weight, bias=True)
        covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        spread = np.linalg.cholesky(np.linalg.inv(covariance))
        centred.append((side - mean, spread, mean))
    (one, forth, mean), (two, back, other) = centred
    axes, rho, turned = np.linalg.svd(forth.T @ (cross - np.outer(mean, other)) @ back)
    count = len(rho)
    x, y = one @ forth @ axes[:, :count], two @ back @ turned[:count].T
    rho = np.minimum(rho, 0.98)
    ratios = np.zeros((len(left), len(right)))
    for i in range(len(left)):
        for j in range(len(right)):
            for r, a, b in zip(rho, x[i], y[j], strict=True):
                ratios[i, j] += (r * a * b - 0.5 * r**2 * (a**2 + b**2)) / (1 - r**2)
    kernel = np.exp(ratios - ratios.max(axis=1, keepdims=True))
    columns = np.ones(len(right))
    for _ in range(scalings):
        rows = masses[0] / (kernel @ columns)
        columns = masses[1] / (rows @ kernel)
    return kernel * (masses[0] / (kernel @ columns))[:, None] * columns


@pytest.mark.parametrize("sizes", [(20, 20), (14, 20), (20, 13)])
def test_rows_are_coupled_as_defined(rng, sizes):
    left, right, _ = factors(rng, rows=20, common=3, own=0)
    left, right = left[: sizes[0]], right[: sizes[1]]
    cross = 0.7 * random_turn(rng, 3)
    growth = Growth(left, right)
    smaller = min(sizes)
    masses = [np.full(size, smaller / size) for size in sizes]
    # One step with all three factors: the map is used as it is given.
    found = growth._stepped(_Fitted(cross, growth._masses), [3])
    np.testing.assert_allclose(found, coupled_by_loops(left, right, cross, masses, 5), atol=2e-4)


@pytest.mark.parametrize("sizes", [(60, 60), (41, 60), (60, 50)])
def test_every_row_of_the_smaller_table_is_given_partners(rng, sizes):
    left, right, _ = factors(rng)
    found = Growth(left[: sizes[0]], right[: sizes[1]]).grown(0.7 * random_turn(rng, 3))
    assert found.shape == sizes
    smaller = min(sizes)
    np.testing.assert_allclose(found.sum(axis=1), smaller / sizes[0], rtol=1e-3)
    np.testing.assert_allclose(found.sum(), smaller, rtol=1e-3)


def test_a_right_map_of_some_factors_grows_to_all(rng):
    left, right, truth = factors(rng, common=6)
    growth = Growth(left, right)
    pairs = np.eye(ROWS)[np.argsort(truth)].T
    for size in (3, 4, 6):
        assert np.mean(growth.grown(growth.map_of(pairs, size)).argmax(axis=1) == truth) > 0.95


def test_rows_with_other_partners_are_outvoted(rng):
    """Where a third of the pairs are wrong, the map of all pairs leads to the right ones."""
    left, right, truth = factors(rng)
    partners = truth.copy()
    wrong = rng.permutation(ROWS)[:20]
    partners[wrong] = rng.permutation(truth[wrong])
    coupling = np.zeros((ROWS, ROWS), dtype=np.float32)
    coupling[np.arange(ROWS), partners] = 1.0
    assert np.mean(Growth(left, right).again(coupling, steps=6).argmax(axis=1) == truth) > 0.95


def test_forbidden_pairs_carry_no_weight(rng):
    left, right, truth = factors(rng)
    groups = np.arange(ROWS) % 4
    theirs = np.empty(ROWS, dtype=int)
    theirs[truth] = groups
    allowed = groups[:, None] == theirs
    allowed[0] = False
    found = Growth(left, right, allowed=allowed).grown(0.7 * random_turn(rng, 4))
    assert np.isfinite(found).all()
    assert not found[~allowed].any()
    np.testing.assert_allclose(found[1:].sum(axis=1), 1.0, atol=0.05)


def test_the_order_of_rows_and_turns_of_all_factors_do_not_matter(rng):
    left, right, truth = factors(rng)
    pairs = np.eye(ROWS)[np.argsort(truth)].T
    rows, columns = rng.permutation(ROWS), rng.permutation(ROWS)
    turn = random_turn(rng, right.shape[1])
    expected = Growth(left, right).again(pairs, steps=4)
    moved = Growth(left[rows], right[columns] @ turn).again(pairs[np.ix_(rows, columns)], steps=4)
    np.testing.assert_allclose(moved, expected[np.ix_(rows, columns)], atol=2e-3)


def test_clouds_of_the_same_shape_are_turned_onto_each_other(rng):
    """Of random maps the likeliest is the right one, though each table has rows of its own."""
    shared = np.column_stack([rng.exponential(size=160), rng.normal(size=160), -(rng.exponential(size=160) ** 1.5)])
    shared = (shared - shared.mean(axis=0)) / shared.std(axis=0)
    turn = random_turn(rng, 3)
    left, right = shared[:120], shared[40:] @ turn
    maps = np.stack([0.7 * random_turn(rng, 3) for _ in range(60)])
    found, values = Shapes(left, right).settled(maps, steps=20)
    axes, _, others = np.linalg.svd(found[np.argmax(values)])
    # A direction that is symmetric may be turned around.
    np.testing.assert_allclose(np.abs(axes @ others @ turn.T), np.eye(3), atol=0.25)


def test_maps_settle_alike_one_by_one_and_together(rng, monkeypatch):
    left, right, _ = factors(rng)
    maps = np.stack([0.7 * random_turn(rng, 3) for _ in range(5)])
    expected = Shapes(left, right).settled(maps, steps=4)
    monkeypatch.setattr("keyless.maps.growth._PAIRS_TOGETHER", 2 * ROWS**2)
    found = Shapes(left, right).settled(maps, steps=4)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 2)])
def test_tiny_tables_are_no_trouble(rng, shape):
    sides = [rng.normal(size=(rows, 2)) for rows in shape]
    growth = Growth(*sides)
    assert np.isfinite(growth.grown(0.7 * random_turn(rng, 2))).all()
    assert np.isfinite(growth.again(np.ones(shape), steps=2)).all()


def test_random_turns_are_rotations_and_reflections(rng):
    turns = np.stack([random_turn(rng, 3) for _ in range(200)])
    np.testing.assert_allclose(turns @ turns.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (200, 3, 3)), atol=1e-9)
    assert 60 < np.sum(np.linalg.det(turns) > 0) < 140
    assert np.abs(turns.mean(axis=0)).max() < 0.2
