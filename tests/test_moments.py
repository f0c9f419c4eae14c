"""Maps by moments: against sums over rows, finite differences, and tables whose map is known."""

from functools import reduce

import numpy as np
import pytest

from keyless.maps import moments as module
from keyless.maps.moments import best_maps, moment_maps, moments
from keyless.model.factors import Factors, principal_factors, whitened


def white(rng, rows, size):
    """Return whitened normal factors whose rows are too near the mean to be pulled in."""
    points = rng.normal(size=(rows, size))
    points /= np.sqrt(np.sum(points**2, axis=1, keepdims=True))
    return whitened(points * rng.uniform(0.8, 1.2, size=(rows, 1)))


def normal_tables(rng, rows, *, common, own=0, noise=0.2):
    """Return factors of two tables of normal traits, rows of both in the same order."""
    traits = rng.normal(size=(rows, common))
    tables = []
    for columns in (18, 14):
        seen = np.hstack([traits + noise * rng.normal(size=traits.shape), rng.normal(size=(rows, own))])
        loadings = rng.normal(size=(seen.shape[1], columns))
        tables.append(principal_factors(seen @ loadings + 0.05 * rng.normal(size=(rows, columns))))
    return tables


def normal_fourth(size):
    """Return the fourth moments of independent normal factors."""
    one = np.eye(size)
    return sum(np.einsum(f"ab,cd->{order}", one, one) for order in ("abcd", "acbd", "acdb"))


def proposed(left, right):
    """Return all maps that are proposed."""
    return [each for some in moment_maps(left, right) for _, each in some]


def best_cosine(left, right, maps=None):
    """Return the largest cosine between a proposed map and the cross-covariance of partners."""
    found = []
    for cross in proposed(left, right) if maps is None else maps:
        first, second = cross.shape
        truth = left.scores[:, :first].T @ right.scores[:, :second] / len(left.scores)
        found.append(float(np.sum(cross * truth) / (np.linalg.norm(cross) * np.linalg.norm(truth))))
    return max(found)


def test_moments_are_means_over_rows():
    points = white(np.random.default_rng(0), 30, 3)
    third, fourth = moments(points)
    expected = np.zeros((3, 3, 3)), np.zeros((3, 3, 3, 3))
    for row in points:
        for i, j, k in np.ndindex(3, 3, 3):
            expected[0][i, j, k] += row[i] * row[j] * row[k] / 30
            for m in range(3):
                expected[1][i, j, k, m] += row[i] * row[j] * row[k] * row[m] / 30
    for i, j, k, m in np.ndindex(3, 3, 3, 3):
        expected[1][i, j, k, m] -= (i == j) * (k == m) + (i == k) * (j == m) + (i == m) * (j == k)
    # Normal factors have variances 3! and 4! along one axis, whatever the axis.
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    # A pair of two factors stands for both of their orders.
    times = np.array([1.0 if i == j else np.sqrt(2) for i, j in pairs])
    for i, j, k in np.ndindex(3, 3, 3):
        at = pairs.index((min(j, k), max(j, k)))
        assert third[i, at] / times[at] == pytest.approx(expected[0][i, j, k] * np.sqrt(30 / 6), abs=1e-4)
        for m in range(3):
            other = pairs.index((min(i, m), max(i, m)))
            found = fourth[other, at] / (times[other] * times[at])
            assert found == pytest.approx(expected[1][i, m, j, k] * np.sqrt(30 / 24), abs=1e-4)


def test_value_is_that_of_all_moments():
    rng = np.random.default_rng(8)
    left, right = white(rng, 40, 3), white(rng, 40, 2)
    maps = 0.5 * rng.normal(size=(2, 3, 2))
    found, _ = module._value(maps.astype(np.float32), moments(left), moments(right))
    for cross, value in zip(maps, found, strict=True):
        expected = 0.0
        for order, error in ((3, 6), (4, 24)):
            # The tensors of all moments, row by row, turned by the map one index after another.
            ours, theirs = (
                sum(reduce(np.multiply.outer, [row] * order) for row in rows) / 40 for rows in (left, right)
            )
            if order == 4:
                ours, theirs = (each - normal_fourth(each.shape[0]) for each in (ours, theirs))
            ours, theirs = (np.sqrt(40 / error) * each for each in (ours, theirs))
            onto_right, onto_left = ours, theirs
            for _ in range(order):
                onto_right = np.tensordot(onto_right, cross, axes=(0, 0))
                onto_left = np.tensordot(onto_left, cross, axes=(0, 1))
            own = np.sum(onto_right**2) + np.sum(onto_left**2)
            expected += np.sum(onto_right * theirs) - module._CORRELATION / 2 * own
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_row_far_out_does_not_decide_alone(monkeypatch):
    points = np.random.default_rng(1).normal(size=(200, 3))
    points[0] *= 10.0 / np.linalg.norm(points[0])
    pulled_in = np.abs(moments(whitened(points))[1]).max()
    monkeypatch.setattr(module, "_FARTHEST", np.inf)
    assert pulled_in < 0.5 * np.abs(moments(whitened(points))[1]).max()


def test_slopes_are_derivatives():
    rng = np.random.default_rng(2)
    left, right = (
        module.FactorMoments(*(part.astype(np.float64) for part in moments(white(rng, 40, size)))) for size in (4, 3)
    )
    maps = 0.5 * rng.normal(size=(1, 4, 3))
    _, slopes = module._value(maps, left, right)
    for place in np.ndindex(4, 3):
        step = np.zeros((1, 4, 3))
        step[0][place] = 1e-5
        rise = module._value(maps + step, left, right)[0] - module._value(maps - step, left, right)[0]
        assert rise[0] / 2e-5 == pytest.approx(slopes[0][place], rel=1e-4, abs=1e-4)


def test_value_does_not_change_when_both_tables_are_turned():
    rng = np.random.default_rng(3)
    left, right = white(rng, 60, 4), white(rng, 60, 4)
    cross = 0.5 * rng.normal(size=(4, 4))
    turns = [np.linalg.qr(rng.normal(size=(4, 4)))[0] for _ in range(2)]
    before = module._value(cross[None], moments(left), moments(right))[0]
    turned = (turns[0].T @ cross @ turns[1])[None]
    after = module._value(turned, moments(left @ turns[0]), moments(right @ turns[1]))[0]
    assert after == pytest.approx(before, rel=1e-3, abs=1e-3)


def test_maps_are_no_longer_than_rotations_and_distinct():
    rng = np.random.default_rng(4)
    found = best_maps(moments(white(rng, 80, 4)), moments(white(rng, 80, 3)))
    assert 1 <= len(found) <= module._MAPS
    for number, one in enumerate(found):
        assert one.shape == (4, 3)
        assert np.linalg.norm(one, 2) <= 1 + 1e-5
        for other in found[:number]:
            assert np.sum(one * other) < module._DISTINCT * np.linalg.norm(one) * np.linalg.norm(other)


@pytest.mark.parametrize("rows", [150, 3000])
def test_the_map_of_normal_tables_is_found_whatever_the_number_of_rows(rows):
    left, right = normal_tables(np.random.default_rng(rows), rows, common=6)
    assert best_cosine(left, right) > 0.9


def test_the_map_is_found_where_either_table_has_factors_of_its_own():
    left, right = normal_tables(np.random.default_rng(6), 2000, common=5, own=1, noise=0.05)
    assert best_cosine(left, right) > 0.9


def test_turns_find_maps_that_random_maps_miss(monkeypatch):
    rng = np.random.default_rng(11)
    traits = rng.exponential(size=(600, 6)) - 1.0
    tables = []
    for columns in (18, 14):
        seen = np.hstack([traits + 0.5 * rng.normal(size=traits.shape), rng.normal(size=(600, 3))])
        loadings = rng.normal(size=(9, columns))
        tables.append(principal_factors(seen @ loadings + 0.05 * rng.normal(size=(600, columns))))
    known = [moments(each.scores[:, :9]) for each in tables]
    assert best_cosine(*tables, best_maps(*known)) > 0.8
    monkeypatch.setattr(module, "_TURNS", 0)
    assert best_cosine(*tables, best_maps(*known)) < 0.8


def test_other_entities_have_no_map():
    left, right = normal_tables(np.random.default_rng(7), 800, common=6)
    other = Factors(whitened(right.scores[400:]), right.strengths, right.signal_rank)
    one = Factors(whitened(left.scores[:400]), left.strengths, left.signal_rank)
    truth = left.scores[:, :6].T @ right.scores[:, :6] / 800
    cosines = [
        float(np.sum(each * truth) / (np.linalg.norm(each) * np.linalg.norm(truth)))
        for each in proposed(one, other)
        if each.shape == truth.shape
    ]
    assert max(cosines) < 0.9


def test_tables_of_one_factor_have_maps():
    factors = Factors(whitened(np.random.default_rng(9).normal(size=(20, 1))), np.ones(1), 1)
    for each in proposed(factors, factors):
        assert each.shape == (1, 1)
