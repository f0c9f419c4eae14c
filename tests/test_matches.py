"""From ratios to matches: who has no partner, and how many pairs there are."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from keyless.engine.matches import matched


def normal_ratios(rng, rows, *, correlation, traits, columns=None):
    """Ratios of rows of normal traits of which the first min(rows, columns) are partners: the definition, in a loop."""
    columns = rows if columns is None else columns
    left = rng.normal(size=(rows, traits))
    right = rng.normal(size=(columns, traits))
    both = min(rows, columns)
    right[:both] = correlation * left[:both] + np.sqrt(1 - correlation**2) * right[:both]
    ratios = np.zeros((rows, columns))
    for x, y, rho in zip(left.T, right.T, [correlation] * traits, strict=True):
        for i in range(rows):
            far = (x[i] ** 2 - 2 * rho * x[i] * y + y**2) / (1 - rho**2)
            ratios[i] += -0.5 * np.log(1 - rho**2) - 0.5 * far + 0.5 * (x[i] ** 2 + y**2)
    return ratios


def test_rows_without_partner_are_told_in_tables_of_equal_size():
    rng = np.random.default_rng(2)
    ratios = normal_ratios(rng, 120, correlation=0.99, traits=6)[:100, 20:]
    permutation, chances, everybody = matched(ratios, None)
    truth = np.where(np.arange(100) >= 20, np.arange(100) - 20, -1)
    assert not everybody
    assert np.mean(permutation == truth) > 0.95
    assert chances.common == pytest.approx(80, abs=3)


def test_transposed_ratios_give_transposed_matches():
    rng = np.random.default_rng(5)
    ratios = 2.0 * normal_ratios(rng, 60, correlation=0.95, traits=5, columns=75)
    permutation, chances, _ = matched(ratios, None)
    back, transposed, _ = matched(ratios.T.copy(), None)
    forth = np.full(75, -1)
    forth[permutation[permutation >= 0]] = np.flatnonzero(permutation >= 0)
    assert np.mean(forth == back) > 0.97
    np.testing.assert_allclose(chances.pairs.toarray(), transposed.pairs.toarray().T, atol=0.03)


@pytest.mark.parametrize("rows", [60, 240])
@pytest.mark.parametrize(("gone", "same"), [(0, True), (0.15, False)])
def test_tables_of_equal_size_hold_the_same_rows_or_not(rows, gone, same):
    """A fifth of the partners fit badly, but better than any other row that is left over; or some have no partner."""
    rng = np.random.default_rng(rows)
    ratios = rng.normal(size=(rows, rows)) - 8
    badly, lost = rows // 5, int(gone * rows)
    own = np.where(np.arange(rows) < badly, -3.0, 10.0)
    own[:lost] = ratios[np.arange(lost), np.arange(lost)]
    ratios[np.arange(rows), np.arange(rows)] = own
    permutation, _, everybody = matched(ratios, None)
    assert everybody is same
    if same:
        assert (permutation == np.arange(rows)).all()
    else:
        assert (permutation[:lost] == -1).all()


@pytest.mark.parametrize("rows", [20, 120])
def test_where_no_pair_is_possible_nobody_is_matched(rows):
    permutation, chances, _ = matched(np.full((rows, rows), -np.inf), None)
    assert (permutation == -1).all()
    assert chances.common == 0


def test_rows_of_which_nobody_can_tell_which_is_the_partner_are_matched_with_a_low_probability():
    """Every right row has three equal candidates, of which one is matched: with a third, not with certainty."""
    ratios = np.repeat(np.where(np.eye(50) > 0, 12.0, -12.0), 3, axis=0)
    permutation, chances, every_row = matched(ratios, False)
    own = np.flatnonzero(permutation >= 0)
    assert not every_row
    assert len(own) == len(np.unique(permutation[own])) == 50
    assert (permutation[own] == own // 3).all()
    np.testing.assert_allclose(chances.answers(permutation)[own], 1 / 3, atol=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_where_every_row_has_a_partner_most_rows_are_expected_right(seed):
    """No other way to match the rows has a larger sum of stated probabilities: all 720 are tried."""
    rng = np.random.default_rng(seed)
    ratios = 4 * rng.normal(size=(6, 6))
    # An odd row that fits nobody, its partner least of all.
    ratios[0] -= 30
    ratios[0, 0] -= 30
    permutation, chances, everybody = matched(ratios, True)
    assert everybody
    stated = chances.pairs.toarray()
    best = max(sum(stated[row, place] for row, place in enumerate(order)) for order in permutations(range(6)))
    assert sum(stated[row, place] for row, place in enumerate(permutation)) == pytest.approx(best)
