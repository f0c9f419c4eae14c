"""Partners that were overlooked among rows without match: how many there are, which, and what that does to a link."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import keyless
from keyless.engine.by_columns import ColumnSearch
from keyless.pairs.overlooked import Fits, Overlooked, left_over, with_left_over, with_overlooked


def fits(seed, *, overlooked, rows=400, better=4.0):
    """Return fits of rows of which a share has a partner that was overlooked, and which rows those are."""
    rng = np.random.default_rng(seed)
    partner = rng.random(rows) < overlooked
    return Fits(rng.normal(size=rows) + better * partner, rng.normal(size=1000)), partner


def drawn_tables(seed, rows=300, *, common=200, matched=150):
    """Return ratios of tables whose first rows are partners, of which some were matched, and the permutation."""
    rng = np.random.default_rng(seed)
    ratios = rng.normal(size=(rows, rows))
    ratios[np.arange(common), np.arange(common)] += 8.0
    permutation = np.full(rows, -1)
    permutation[:matched] = np.arange(matched)
    return ratios, permutation


def test_levels_are_shares_of_matched_rows_that_fit_as_well():
    own, others = np.array([0.5, 2.0, -np.inf, 1.0]), np.array([1.0, -np.inf, 0.0, 3.0, 1.0])
    expected = [(1 + sum(other >= one for other in others if other > -np.inf)) / 5 for one in own]
    assert Fits(own, others).levels.tolist() == expected


@pytest.mark.parametrize("overlooked", [0.0, 0.3, 0.8])
def test_the_share_is_that_of_overlooked_partners(overlooked):
    shares = [fits(seed, overlooked=overlooked)[0].share for seed in range(40)]
    # Rows in the upper half are counted twice: a standard error of √(400 · (1 − share)/2 · …) below 2 · 0.025 each.
    assert np.mean(shares) == pytest.approx(overlooked, abs=0.03)
    assert np.std(shares) < 0.08


def test_few_rows_prove_nothing():
    assert Fits(np.array([9.0]), np.zeros(100)).share <= 0.0
    assert Fits(np.full(9, 9.0), np.zeros(100)).share == pytest.approx(1 - 2 / 10)


def test_chances_hold_and_rise_with_the_fit():
    stated, right = [], []
    for seed in range(30):
        found, partner = fits(seed, overlooked=0.4, better=2.0)
        chances = found.chances
        order = np.argsort(found.unmatched)
        assert np.all(np.diff(chances[order]) >= -1e-12)
        stated.append(chances)
        right.append(partner)
    stated, right = np.concatenate(stated), np.concatenate(right)
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01)):
        some = (stated >= low) & (stated < high)
        assert some.sum() > 200
        assert stated[some].mean() == pytest.approx(right[some].mean(), abs=0.08)


def test_rows_that_fit_by_chance_have_no_overlooked_partner():
    chances = np.mean([fits(seed, overlooked=0.0)[0].chances.mean() for seed in range(20)])
    assert chances < 0.06


def test_overlooked_partners_are_matched_and_probabilities_stay_distributions():
    ratios, permutation = drawn_tables(1)
    pairs = np.zeros_like(ratios)
    pairs[np.arange(150), np.arange(150)] = 0.9
    pairs[240, 3] = 0.05  # a row without match, and the partner of another
    matches, found = with_left_over(permutation, pairs, ratios)
    # Partners fit by 8 nats more than by chance, whose best of 150 is 2.5 in the mean.
    assert np.mean(matches[:200] == np.arange(200)) > 0.98
    assert np.mean(matches[200:] == -1) > 0.98
    assert found.sum(axis=0).max() <= 1 + 1e-9
    assert found.sum(axis=1).max() <= 1 + 1e-9
    # What is said of rows with match stays.
    np.testing.assert_allclose(found[:, :150], pairs[:, :150])
    alone = 1 - found.sum(axis=1)
    # A standard error of the share of 1/√150 · 2 · ½ = 0.08.
    assert alone[150:200].mean() < 0.25
    assert alone[200:].mean() > 0.75


def test_pairs_that_must_not_be_are_not_found():
    ratios, permutation = drawn_tables(2)
    ratios[160, 160] = -np.inf
    ratios[170] = -np.inf
    matches, found = with_left_over(permutation, np.zeros_like(ratios), ratios)
    assert matches[170] == -1
    assert found[160, 160] == 0
    assert found[170].sum() == 0


def test_known_pairs_tell_nothing_about_chance():
    """A row of a known pair may have no other partner, so it fits none of the rows without match."""
    counts = []
    for known in (0, 75):
        expected = []
        for seed in range(20):
            ratios, permutation = drawn_tables(seed, common=150)
            ratios[:known], ratios[:, :known] = -np.inf, -np.inf
            ratios[np.arange(known), np.arange(known)] = 100.0
            rows, columns, matched, partners = left_over(permutation, len(ratios))
            block = ratios[np.ix_(rows, columns)]
            left = Fits(block.max(axis=1), ratios[np.ix_(matched, columns)].max(axis=1))
            right = Fits(block.max(axis=0), ratios[np.ix_(rows, partners)].max(axis=0))
            expected.append(Overlooked(rows, columns, block, left, right).count)
        counts.append(np.mean(expected))
    # Nobody was overlooked; 150 rows on either side with a standard error of √150 = 12, of which chance keeps half.
    assert max(counts) < 12


def test_rows_that_may_be_nobody_do_not_count():
    found = Fits(np.array([9.0, -np.inf, 8.0, -np.inf]), np.zeros(100))
    assert found.possible.tolist() == [True, False, True, False]
    assert found.share == pytest.approx(1 - 2 / 3)
    assert found.chances[[1, 3]].sum() == 0
    assert Fits(np.array([-np.inf]), np.zeros(100)).chances.tolist() == [0.0]


def test_few_rows_with_match_tell_nothing():
    ratios, permutation = drawn_tables(7, matched=20)
    pairs = np.zeros_like(ratios)
    assert with_left_over(permutation, pairs, ratios) == (permutation, pairs)


def test_rows_that_fit_nobody_are_not_matched():
    ratios, permutation = drawn_tables(8)
    ratios -= 30.0
    matches, found = with_left_over(permutation, np.zeros_like(ratios), ratios)
    assert np.array_equal(matches, permutation)
    assert found[150:200].sum() > 25


def test_listed_pairs_give_the_answer_of_all_pairs():
    ratios, permutation = drawn_tables(3)
    rows, columns, matched, partners = left_over(permutation, len(ratios))
    block = ratios[np.ix_(rows, columns)]
    told = (
        Fits(block.max(axis=1), ratios[np.ix_(matched, columns)].max(axis=1)),
        Fits(block.max(axis=0), ratios[np.ix_(rows, partners)].max(axis=0)),
    )
    dense = with_overlooked(permutation, np.zeros_like(ratios), Overlooked(rows, columns, block, *told))
    listed = with_overlooked(
        permutation,
        sparse.csr_array(ratios.shape),
        Overlooked(rows, columns, sparse.csr_array(block), *told),
    )
    assert np.array_equal(dense[0], listed[0])
    # Of all pairs those of a probability below a millionth are left out.
    np.testing.assert_allclose(dense[1], listed[1].toarray(), rtol=1e-9, atol=1e-6)


def test_nothing_changes_where_as_many_pairs_are_expected():
    ratios, permutation = drawn_tables(4)
    pairs = np.zeros_like(ratios)
    pairs[150:, 150:] = 1 / 200
    assert with_left_over(permutation, pairs, ratios) == (permutation, pairs)
    everybody = np.arange(300)
    assert with_left_over(everybody, pairs, ratios) == (everybody, pairs)


@pytest.mark.slow
def test_rows_whose_partners_fit_badly_are_matched_all_the_same(monkeypatch):
    """A model that is fitted to the surest pairs is too strict for all others."""
    rng = np.random.default_rng(5)
    rows, traits = 800, 6
    latent = rng.normal(size=(rows, traits))
    first, second = np.arange(720), rng.permutation(np.arange(160, rows))
    tables = {}
    for name, width, own in (("a", 18, first), ("b", 14, second)):
        view = latent + 0.05 * rng.normal(size=latent.shape)
        columns = view @ rng.normal(size=(traits, width)) + 0.05 * rng.normal(size=(rows, width))
        tables[name] = pd.DataFrame(columns[own])
    place = {int(entity): at for at, entity in enumerate(second)}
    truth = np.array([place.get(int(entity), -1) for entity in first])
    # Partners that must not be matched are left over, and fit each other best: they stay alone.
    some = np.flatnonzero(truth >= 0)[:5]
    forbidden = np.column_stack([some, truth[some]])
    found = keyless.link(tables, forbid=forbidden, random_state=0).found["b"]
    assert not np.any(found.permutation[some] == truth[some])
    assert found.coupling[tuple(forbidden.T)].sum() == 0
    monkeypatch.setattr(ColumnSearch, "with_left_over", lambda _self, _left, _right, _places, matched, _: matched)
    before = keyless.link(tables, random_state=0).found["b"]
    missed = [np.sum((one.permutation < 0) & (truth >= 0)) for one in (found, before)]
    assert missed[0] < missed[1] / 2
    for one in (found, before):
        matched = one.permutation >= 0
        assert np.mean(one.permutation[matched] == truth[matched]) > 0.98
    errors = [
        abs(one.probability[one.permutation < 0].mean() - np.mean(truth[one.permutation < 0] < 0))
        for one in (found, before)
    ]
    assert errors[0] < errors[1]
