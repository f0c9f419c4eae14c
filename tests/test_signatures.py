"""First couplings: signatures against their definitions and the laws they obey, couplings against masses and limits."""

import numpy as np
import pytest

from keyless.maps.signatures import SIGNATURE_KINDS, annealed, first_couplings, signature_cost, signatures
from keyless.model.factors import Factors, whitened


def random_rotation(rng, rank):
    return np.linalg.qr(rng.normal(size=(rank, rank)))[0]


def standard(table):
    return (table - table.mean()) / table.std()


def skewed(rng, rows, rank):
    return rng.exponential(size=(rows, rank)) - 1


def factors_of(points):
    return Factors(whitened(points), np.linspace(2.0, 1.0, points.shape[1]))


def test_signatures_are_quantiles_of_relations_to_all_rows(rng):
    points = rng.normal(size=(40, 3))
    lengths = np.linalg.norm(points, axis=1)
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    found = signatures(points)
    assert tuple(found) == SIGNATURE_KINDS
    relations = {
        "inner": points @ points.T,
        "distance": distances,
        "cosine": points @ points.T / np.outer(lengths, lengths),
    }
    for kind, relation in relations.items():
        expected = np.quantile(relation, np.linspace(0, 1, 64), axis=1).T
        np.testing.assert_allclose(found[kind], expected, atol=1e-6)
    # The first number of nearness is the nearest other row.
    nearest = np.log(np.where(np.eye(40, dtype=bool), np.inf, distances).min(axis=1))
    np.testing.assert_allclose(found["nearest"][:, 0], nearest, atol=1e-3)
    assert np.all(np.diff(found["nearest"], axis=1) >= 0)


def test_signatures_ignore_rotation_and_the_order_of_rows(rng):
    points = rng.normal(size=(50, 4))
    order = rng.permutation(50)
    found = signatures(points[order] @ random_rotation(rng, 4))
    for kind, expected in signatures(points).items():
        np.testing.assert_allclose(found[kind], expected[order], atol=1e-6, err_msg=kind)


def test_a_row_is_no_distance_from_itself_in_single_precision(rng):
    points = (100 + rng.normal(size=(30, 3))).astype(np.float32)
    np.testing.assert_array_equal(signatures(points)["distance"][:, 0], 0.0)
    rows = np.array([7, 2, 25])
    np.testing.assert_array_equal(signatures(points, rows)["distance"][:, 0], 0.0)


@pytest.mark.parametrize("kind", SIGNATURE_KINDS)
def test_every_kind_of_signature_tells_rows_apart(rng, kind):
    points = skewed(rng, 40, 3)
    order = rng.permutation(40)
    cost = signature_cost(points, points[order] @ random_rotation(rng, 3), kinds=[kind])
    np.testing.assert_array_equal(order[cost.argmin(axis=1)], np.arange(40))


def test_the_cost_is_the_sum_of_standard_distances_between_signatures(rng):
    left, right = rng.normal(size=(20, 3)), rng.normal(size=(26, 3))
    first, second = signatures(left), signatures(right)
    expected = sum(
        standard(np.linalg.norm(first[kind][:, None] - second[kind], axis=2)) for kind in ("inner", "nearest")
    )
    np.testing.assert_allclose(signature_cost(left, right, kinds=("inner", "nearest")), expected, atol=1e-4)
    whole = signature_cost(left, right)
    assert whole.shape == (20, 26)
    np.testing.assert_allclose(
        whole, sum(signature_cost(left, right, kinds=[kind]) for kind in SIGNATURE_KINDS), atol=1e-4
    )


def test_the_cost_ignores_rotation_and_follows_the_order_of_rows(rng):
    left, right = rng.normal(size=(30, 3)), rng.normal(size=(35, 3))
    rows, columns = rng.permutation(30), rng.permutation(35)
    cost = signature_cost(left[rows] @ random_rotation(rng, 3), right[columns] @ random_rotation(rng, 3))
    np.testing.assert_allclose(cost, signature_cost(left, right)[np.ix_(rows, columns)], atol=1e-3)
    np.testing.assert_allclose(signature_cost(right, left), signature_cost(left, right).T, atol=1e-3)


@pytest.mark.parametrize("kind", ["inner", "distance", "cosine", "nearest"])
def test_chosen_rows_are_compared_by_their_relations_to_all_rows(rng, kind):
    """The cost of some rows is that part of the whole cost, but for mean and variance."""
    left, right = rng.normal(size=(40, 3)), rng.normal(size=(45, 3))
    rows, columns = rng.permutation(40)[:15], rng.permutation(45)[:12]
    np.testing.assert_allclose(signatures(left, rows)[kind], signatures(left)[kind][rows], atol=1e-4)
    some = signature_cost(left, right, rows=(rows, columns), kinds=[kind])
    whole = signature_cost(left, right, kinds=[kind])
    np.testing.assert_allclose(some, standard(whole[np.ix_(rows, columns)]), atol=1e-3)
    one_sided = signature_cost(left, right, rows=(None, columns), kinds=[kind])
    np.testing.assert_allclose(one_sided, standard(whole[:, columns]), atol=1e-3)


def test_chosen_rows_in_another_order_have_the_same_signatures(rng):
    points = rng.normal(size=(60, 3))
    rows = rng.permutation(60)[:30]
    order = rng.permutation(30)
    for kind, expected in signatures(points, rows).items():
        np.testing.assert_allclose(signatures(points, rows[order])[kind], expected[order], atol=1e-6, err_msg=kind)
    everyone = signatures(points, np.arange(60))
    for kind, expected in signatures(points).items():
        np.testing.assert_allclose(everyone[kind], expected, atol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_rows_have_signatures_too(rng, count):
    for table in signatures(rng.normal(size=(count, 2))).values():
        assert len(table) == count
        assert np.isfinite(table).all()


def test_equal_rows_have_equal_signatures():
    found = signatures(np.ones((6, 2)))
    for table in found.values():
        assert np.isfinite(table).all()
        np.testing.assert_allclose(table, table[:1].repeat(6, axis=0), atol=1e-9)


SPACES = [(1.0, 3), (0.5, 5), (1.0, 9), (1.0, 5)]


@pytest.mark.parametrize("sizes", [(40, 40), (50, 30), (25, 45)])
def test_first_couplings_give_the_smaller_side_a_partner(rng, sizes):
    left, right = (factors_of(skewed(rng, size, 5)) for size in sizes)
    found = list(first_couplings(left, right, spaces=SPACES))
    # Rank 9 is not to be had, and rank 5 with the same weight follows: it is looked at once.
    assert len(found) == 3 * 2
    assert len({name for name, _ in found}) == 6
    smaller = min(sizes)
    for name, coupling in found:
        assert coupling.shape == sizes
        assert coupling.min() >= 0
        np.testing.assert_allclose(coupling.sum(axis=0), smaller / sizes[1], rtol=1e-3, err_msg=name)
        # A few scalings do: rows have nearly as much as they should.
        assert np.abs(coupling.sum(axis=1) - smaller / sizes[0]).sum() < 0.3 * smaller, name


@pytest.mark.parametrize("share", [0.9, 0.3])
def test_first_couplings_keep_to_what_is_allowed(rng, share):
    left, right = factors_of(skewed(rng, 40, 5)), factors_of(skewed(rng, 30, 5))
    allowed = rng.random((40, 30)) < share
    allowed[:, 0] = True
    for name, coupling in first_couplings(left, right, spaces=SPACES[:2], allowed=allowed):
        np.testing.assert_array_equal(coupling[~allowed], 0.0)
        np.testing.assert_allclose(coupling.sum(axis=0), 1.0, rtol=1e-3, err_msg=name)


def test_rows_that_may_match_nobody_have_no_weight(rng):
    left, right = factors_of(skewed(rng, 20, 4)), factors_of(skewed(rng, 24, 4))
    allowed = np.ones((20, 24), dtype=bool)
    allowed[3], allowed[:, 5] = False, False
    for _, coupling in first_couplings(left, right, spaces=SPACES[:1], allowed=allowed):
        assert np.isfinite(coupling).all()
        np.testing.assert_array_equal(coupling[~allowed], 0.0)
        np.testing.assert_allclose(np.delete(coupling.sum(axis=0), 5), 20 / 24, rtol=1e-3)


def test_chosen_rows_are_coupled_alone(rng):
    left, right = factors_of(skewed(rng, 60, 4)), factors_of(skewed(rng, 50, 4))
    rows, columns = rng.permutation(60)[:20], rng.permutation(50)[:25]
    allowed = rng.random((20, 25)) < 0.8
    for _, coupling in first_couplings(left, right, rows=(rows, columns), spaces=SPACES[:1], allowed=allowed):
        assert coupling.shape == (20, 25)
        np.testing.assert_array_equal(coupling[~allowed], 0.0)
        np.testing.assert_allclose(coupling.sum(axis=0), 20 / 25, rtol=1e-3)


def test_first_couplings_find_the_same_rows_in_another_order(rng):
    points = whitened(skewed(rng, 80, 4)) * [2.0, 1.6, 1.3, 1.0]
    order = rng.permutation(80)
    left, right = Factors(points, np.ones(4)), Factors(points[order] @ random_rotation(rng, 4), np.ones(4))
    for name, coupling in first_couplings(left, right, spaces=[(0.0, 4)]):
        truth = coupling[order, np.arange(80)]
        right = np.mean(order[coupling.argmax(axis=1)] == np.arange(80))
        # Annealing ends warm: many rows have a likelier neighbour, but true partners have much more than a guess.
        assert right > 0.3, name
        assert truth.mean() > 8 / 80, name


@pytest.mark.parametrize("rotate", [True, False])
def test_annealing_sharpens_a_noisy_coupling(rng, rotate):
    points = skewed(rng, 100, 5).astype(np.float32)
    order = rng.permutation(100)
    right = (points[order] @ random_rotation(rng, 5)).astype(np.float32)
    truth = np.argsort(order)
    rows = np.arange(100)
    partner = np.where(rng.random(100) < 0.5, truth, rng.permutation(100))
    start = np.full((100, 100), 0.8 / 100, dtype=np.float32)
    start[rows, partner] += 0.2
    found = annealed(points, right, start, rotate=rotate)
    assert np.mean(partner == truth) < 0.6
    assert np.mean(found.argmax(axis=1) == truth) > 0.8
    assert found[rows, truth].mean() > 1.5 * start[rows, truth].mean()
    np.testing.assert_allclose(found.sum(axis=0), 1.0, rtol=1e-3)


def test_annealing_keeps_to_what_is_allowed_and_leaves_its_start_alone(rng):
    points = skewed(rng, 30, 3).astype(np.float32)
    allowed = rng.random((30, 30)) < 0.5
    allowed |= np.eye(30, dtype=bool)
    start = (allowed / allowed.sum(axis=1, keepdims=True)).astype(np.float32)
    kept = start.copy()
    found = annealed(points, points, start, allowed=allowed)
    np.testing.assert_array_equal(found[~allowed], 0.0)
    np.testing.assert_array_equal(start, kept)
