"""From ratios to matches: how much models exaggerate, who has no partner, and how many pairs there are."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import softmax

from keyless.engine.matches import (
    _left_over_are_partners,
    every_row_matched,
    fitted_power,
    hardly_one_alone,
    matched,
)
from keyless.pairs.posterior import Posterior, posterior


def normal_ratios(rng, rows, *, correlation, traits, columns=None, exaggerated=1.0):
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
    return exaggerated * ratios


@pytest.mark.parametrize("exaggerated", [1.0, 2.0, 4.0])
def test_the_power_undoes_what_ratios_exaggerate(exaggerated):
    """Partners are drawn by softmax of the ratios themselves, which are then multiplied."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(5):
        ratios = 2.0 * rng.normal(size=(300, 300))
        partner = np.array([rng.choice(300, p=softmax(row)) for row in ratios])
        # Each row is drawn by itself, and so are the columns of partners.
        found.append(fitted_power(exaggerated * ratios, np.arange(300), partner))
    assert np.median(found) * exaggerated == pytest.approx(1.0, abs=0.25)


def test_ratios_that_keep_their_promise_are_left_alone():
    rng = np.random.default_rng(0)
    ratios = normal_ratios(rng, 200, correlation=0.9, traits=5)
    assert fitted_power(ratios, np.arange(200), np.arange(200)) == 1.0


@pytest.mark.parametrize("correlation", [0.9, 0.95])
def test_ratios_that_exaggerate_are_believed_less(correlation):
    """Beside the same ratios believed fully. Where a third of the matches is wrong, wrong ones hide some of it."""
    stated, believed, right = [], [], []
    for seed in range(6):
        ratios = normal_ratios(np.random.default_rng(seed), 150, correlation=correlation, traits=5, exaggerated=3.0)
        permutation, chances, _ = matched(ratios, True)
        stated.append(chances.answers(permutation).mean())
        every = posterior(sparse.csr_array(ratios), every_row=True)
        believed.append(every.answers(permutation).mean())
        right.append(np.mean(permutation == np.arange(150)))
    error, error_before = np.mean(stated) - np.mean(right), np.mean(believed) - np.mean(right)
    assert error_before > 0.05  # otherwise nothing is shown
    assert abs(error) < 0.5 * error_before


def test_rows_that_want_each_other_have_partners_though_their_ratios_are_low():
    """All pairs of a quarter of the rows are lowered: whom these rows want most stays."""
    rng = np.random.default_rng(1)
    ratios = normal_ratios(rng, 80, correlation=0.98, traits=6)
    ratios[:20] -= 25.0
    permutation, _, everybody = matched(ratios, None)
    assert everybody
    assert np.mean(permutation == np.arange(80)) > 0.95


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
    ratios = normal_ratios(rng, 60, correlation=0.95, traits=5, columns=75, exaggerated=2.0)
    permutation, chances, _ = matched(ratios, None)
    back, transposed, _ = matched(ratios.T.copy(), None)
    forth = np.full(75, -1)
    forth[permutation[permutation >= 0]] = np.flatnonzero(permutation >= 0)
    assert np.mean(forth == back) > 0.97
    np.testing.assert_allclose(chances.pairs.toarray(), transposed.pairs.toarray().T, atol=0.03)


def test_few_pairs_tell_no_power():
    ratios = np.eye(5) * 9
    assert fitted_power(ratios, np.arange(5), np.roll(np.arange(5), 1)) == 1.0


@pytest.mark.parametrize(("columns", "common", "same"), [(31, 30.0, False), (30, 29.5, True), (30, 25.0, False)])
def test_tables_of_equal_size_hold_the_same_rows_if_hardly_one_is_alone(columns, common, same):
    assert hardly_one_alone(Posterior(sparse.csr_array(np.eye(30, columns)), common, 0.0)) is same


@pytest.mark.parametrize(("rows", "left"), [(40, 10), (200, 40)])
@pytest.mark.parametrize("same", [True, False])
def test_rows_that_are_left_over_are_each_others_partners_or_not(rng, rows, left, same):
    """The first rows have no match. Their partners fit badly, but better than any other row that is left; or not."""
    ratios = rng.normal(size=(rows, rows)) - 6
    matched_rows = np.arange(left, rows)
    ratios[matched_rows, matched_rows] = 10
    if same:
        ratios[np.arange(left), np.arange(left)] = -1
    permutation = np.where(np.arange(rows) < left, -1, np.arange(rows))
    pairs = np.diag((permutation >= 0).astype(float))
    chances = Posterior(sparse.csr_array(pairs), float(rows - left), 0.0)
    assert _left_over_are_partners(ratios, permutation, every_row_matched(ratios), chances) is same


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
