"""Probabilities of pairs: against the enumeration of all one-to-one matchings, and the laws they obey."""

import itertools

import numpy as np
import pytest
from scipy import sparse

from keyless.pairs.posterior import (
    Posterior,
    largest,
    less_crowding,
    log_sums_with_rest,
    marginals,
    pair_places,
    posterior,
    prior_log_odds,
    scaled,
)

EXACT = {"tolerance": 1e-11, "max_iter": 5000}
GAMMA = 0.85


def matchings(rows, columns):
    """All one-to-one matchings: the partner of each row, −1 for none."""
    for choice in itertools.product(range(-1, columns), repeat=rows):
        matched = [j for j in choice if j >= 0]
        if len(set(matched)) == len(matched):
            yield choice


def enumerated(weights, alone=(True, True)):
    """How likely each pair is, from the sum over all matchings that are possible."""
    rows, columns = weights.shape
    found, total = np.zeros(weights.shape), 0.0
    for choice in matchings(rows, columns):
        pairs = [(i, j) for i, j in enumerate(choice) if j >= 0]
        if (not alone[0] and len(pairs) < rows) or (not alone[1] and len(pairs) < columns):
            continue
        weight = np.exp(sum(weights[pair] for pair in pairs))
        total += weight
        for pair in pairs:
            found[pair] += weight
    return found / total


def some_pairs(rng, shape, *, share=0.7, spread=2.0):
    """Random weights on some pairs, and the same as a dense table with −∞ elsewhere."""
    listed = rng.random(shape) < share
    values = np.where(listed, spread * rng.normal(size=shape), -np.inf)
    rows, columns = np.nonzero(listed)
    return sparse.csr_array((values[rows, columns], (rows, columns)), shape=shape), values


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (2, 5), (5, 4)])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_marginals_are_near_the_enumeration_of_all_matchings(rng, shape, spread):
    errors = []
    for _ in range(6):
        pairs, dense = some_pairs(rng, shape, spread=spread)
        errors.append(np.abs(marginals(pairs).toarray() - enumerated(dense)).max())
    assert max(errors) < 0.15
    assert np.mean(errors) < 0.05


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (4, 3), (3, 5)])
def test_clear_matches_have_the_probabilities_of_the_enumeration(rng, shape):
    weights = rng.uniform(-14.0, -10.0, shape)
    order = rng.permutation(max(shape))[: min(shape)]
    clear = (np.arange(shape[0]), order) if shape[0] <= shape[1] else (order, np.arange(shape[1]))
    weights[clear] = rng.uniform(10.0, 14.0, min(shape))
    found = marginals(sparse.csr_array(weights)).toarray()
    np.testing.assert_allclose(found, enumerated(weights), atol=2e-4)
    assert found[clear].min() > 0.999


def test_a_pair_that_nothing_rivals_is_exact_where_its_rows_must_not_be_alone():
    pair = sparse.csr_array([[-3.0]])
    np.testing.assert_allclose(marginals(pair, alone=(False, False)).toarray(), [[1.0]], rtol=1e-12)
    np.testing.assert_allclose(posterior(pair, every_row=True).pairs.toarray(), [[1.0]], rtol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (1, 5), (5, 1), (3, 5), (6, 2)])
def test_equal_rivals_are_equally_likely_where_every_row_has_a_partner(rows, columns):
    found = posterior(sparse.csr_array(np.full((rows, columns), 1.7)), every_row=True)
    np.testing.assert_allclose(found.pairs.toarray(), 1 / max(rows, columns), rtol=0.02)
    np.testing.assert_allclose(found.common, min(rows, columns), rtol=0.02)
    assert found.odds == np.inf


@pytest.mark.parametrize("shape", [(7, 7), (9, 6), (5, 10)])
def test_marginals_solve_the_equation_they_are_defined_by(rng, shape):
    """p · (1 − p)^γ = row scaling · exp(weight) · column scaling, where the scalings are those of being alone, 1."""
    pairs, dense = some_pairs(rng, shape)
    found = marginals(pairs, **EXACT).toarray()
    alone = np.outer(1 - found.sum(axis=1), 1 - found.sum(axis=0))
    np.testing.assert_allclose(found * (1 - found) ** GAMMA, np.exp(dense) * alone, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("alone", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("spread", [1.0, 8.0, 200.0])
def test_no_row_and_no_column_is_matched_more_than_once(rng, alone, spread):
    for shape in ((6, 6), (8, 5), (4, 9)):
        pairs, _ = some_pairs(rng, shape, spread=spread)
        found = marginals(pairs, alone=alone)
        assert np.isfinite(found.data).all()
        assert found.data.min() >= 0
        assert found.sum(axis=0).max() <= 1 + 1e-9
        assert found.sum(axis=1).max() <= 1 + 1e-9


def test_rows_that_must_not_be_alone_are_matched_for_sure(rng):
    weights = sparse.csr_array(2 * rng.normal(size=(4, 6)))
    found = posterior(weights, every_row=True)
    np.testing.assert_allclose(found.pairs.sum(axis=1), 1, atol=1e-2)
    np.testing.assert_allclose(found.common, 4, rtol=1e-2)
    turned = posterior(sparse.csr_array(weights.T), every_row=True)
    np.testing.assert_allclose(turned.pairs.toarray(), found.pairs.toarray().T, atol=2e-2)


def test_two_tables_may_change_places(rng):
    pairs, _ = some_pairs(rng, (7, 5))
    np.testing.assert_allclose(
        marginals(sparse.csr_array(pairs.T), **EXACT).toarray(), marginals(pairs, **EXACT).toarray().T, atol=1e-9
    )


def test_a_higher_weight_makes_its_pair_likelier_and_its_rivals_less(rng):
    pairs, _ = some_pairs(rng, (5, 5), share=1.0)
    before = marginals(pairs, **EXACT).toarray()
    weights = pairs.toarray()
    for i, j in itertools.product(range(5), repeat=2):
        raised = weights.copy()
        raised[i, j] += 0.5
        after = marginals(sparse.csr_array(raised), **EXACT).toarray()
        assert after[i, j] > before[i, j]
        assert np.all(np.delete(after[i], j) < np.delete(before[i], j))
        assert np.all(np.delete(after[:, j], i) < np.delete(before[:, j], i))


def relabelled(pairs, rng):
    rows, columns = rng.permutation(pairs.shape[0]), rng.permutation(pairs.shape[1])
    moved = sparse.csr_array(pairs[rows][:, columns])
    moved.sort_indices()
    return moved, rows, columns


def test_relabelled_rows_and_columns_have_relabelled_probabilities(rng):
    pairs, _ = some_pairs(rng, (8, 6))
    moved, rows, columns = relabelled(pairs, rng)
    where = np.ix_(rows, columns)
    np.testing.assert_allclose(marginals(moved).toarray(), marginals(pairs).toarray()[where], atol=1e-9)
    np.testing.assert_allclose(posterior(moved).pairs.toarray(), posterior(pairs).pairs.toarray()[where], atol=1e-9)
    (found, common), (same, as_common) = scaled(pairs, 4.0), scaled(moved, 4.0)
    np.testing.assert_allclose(same.toarray(), found.toarray()[where], atol=1e-5)
    np.testing.assert_allclose(as_common, common, rtol=1e-5)


def test_impossible_pairs_have_no_probability_and_rows_without_pairs_are_alone():
    pairs = sparse.csr_array((np.array([2.0, 1.0]), ([0, 2], [1, 1])), shape=(4, 3))
    found = posterior(pairs)
    assert found.pairs.shape == (4, 3)
    assert set(zip(*(place.tolist() for place in found.pairs.nonzero()), strict=True)) <= {(0, 1), (2, 1)}
    np.testing.assert_array_equal(found.alone()[[1, 3]], 1.0)
    np.testing.assert_array_equal(found.alone(1)[[0, 2]], 1.0)
    nothing = posterior(sparse.csr_array((3, 2)))
    assert nothing.common == 0
    np.testing.assert_array_equal(nothing.alone(), np.ones(3))


@pytest.mark.parametrize("every_row", [False, True])
def test_being_alone_and_having_partners_add_up_to_one(rng, every_row):
    pairs, _ = some_pairs(rng, (9, 7), share=0.5)
    found = posterior(pairs, every_row=every_row)
    table = found.pairs.toarray()
    np.testing.assert_allclose(found.alone(0) + table.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(found.alone(1) + table.sum(axis=0), 1.0, atol=1e-9)
    np.testing.assert_allclose(found.common, table.sum(), rtol=1e-12)


def test_alone_is_a_probability_whatever_rounding_does():
    found = Posterior(sparse.csr_array([[1.0 + 1e-12, 0.0], [0.0, 0.25]]), 1.25, 0.0)
    np.testing.assert_array_equal(found.alone(0), [0.0, 0.75])
    np.testing.assert_array_equal(found.alone(1), [0.0, 0.75])


def test_prior_odds_are_pairs_over_pairs_of_rows_that_are_alone():
    np.testing.assert_allclose(prior_log_odds((100, 80), 30.0), np.log(30 / (70 * 50)))
    np.testing.assert_allclose(prior_log_odds((10, 10), 10.0), np.log(10 / 0.25))
    np.testing.assert_allclose(prior_log_odds((10, 20), 0.0), np.log(0.5 / (10 * 20)))
    assert np.all(np.diff([prior_log_odds((100, 80), common) for common in (0.5, 5, 40, 79, 79.5)]) > 0)


def known_matching(rng, shape, common, *, ratio=12.0):
    """Ratios that are high for `common` pairs and low for all others; which pairs."""
    ratios = rng.uniform(-1.0, 1.0, shape) - ratio
    rows, columns = rng.permutation(shape[0])[:common], rng.permutation(shape[1])[:common]
    ratios[rows, columns] += 2 * ratio
    return ratios, rows, columns


@pytest.mark.parametrize(("shape", "common"), [((30, 25), 18), ((20, 40), 20), ((15, 15), 3)])
def test_how_many_rows_have_a_partner_is_found(rng, shape, common):
    ratios, rows, columns = known_matching(rng, shape, common)
    truth = np.zeros(shape)
    truth[rows, columns] = 1.0
    found = posterior(sparse.csr_array(ratios))
    np.testing.assert_allclose(found.pairs.toarray(), truth, atol=0.02)
    np.testing.assert_allclose(found.common, common, rtol=0.01)
    np.testing.assert_allclose(found.odds, prior_log_odds(shape, common), atol=0.1)
    rough, expected = scaled(ratios, 0.9 * min(shape))
    np.testing.assert_allclose(rough, truth, atol=0.06)
    np.testing.assert_allclose(expected, common, rtol=0.05)


def test_rows_that_fit_nowhere_are_alone():
    found = posterior(sparse.csr_array(np.full((6, 6), -20.0)))
    assert found.common < 1e-3
    assert found.alone().min() > 0.999


@pytest.mark.parametrize("shape", [(12, 12), (15, 9), (8, 14)])
@pytest.mark.parametrize("spread", [2.0, 10.0, 60.0])
def test_scaled_is_the_same_for_dense_and_for_listed_pairs(rng, shape, spread):
    pairs, dense = some_pairs(rng, shape, share=0.6, spread=spread)
    dense = dense.astype(np.float32)
    (one, first), (two, second) = scaled(dense, 5.0), scaled(pairs, 5.0)
    assert isinstance(two, sparse.csr_array)
    np.testing.assert_allclose(two.toarray(), one, atol=1e-4)
    np.testing.assert_allclose(second, first, rtol=1e-4)
    np.testing.assert_array_equal(one[np.isneginf(dense)], 0.0)
    assert max(one.sum(axis=0).max(), one.sum(axis=1).max()) <= 1 + 1e-5
    assert one.min() >= 0


def test_scaled_weighs_pairs_against_both_rows_being_alone(rng):
    """γ = 0: p = exp(ratio + prior log-odds) · P(left alone) · P(right alone), at the number of pairs it states."""
    ratios = 2 * rng.normal(size=(14, 11))
    found, common = scaled(ratios, 5.0, tolerance=1e-7, max_iter=20_000)
    alone = np.outer(1 - found.sum(axis=1), 1 - found.sum(axis=0))
    odds = found / alone / np.exp(ratios)
    np.testing.assert_allclose(odds, odds.mean(), rtol=2e-3)
    np.testing.assert_allclose(np.log(odds.mean()), prior_log_odds(ratios.shape, common), atol=0.02)
    np.testing.assert_allclose(common, found.sum(), rtol=1e-6)


def test_scaled_is_finite_for_extreme_ratios_and_for_rows_without_pairs(rng):
    ratios = (300 * rng.normal(size=(10, 8))).astype(np.float32)
    ratios[3], ratios[:, 5] = -np.inf, -np.inf
    found, common = scaled(ratios, 7.0)
    assert np.isfinite(found).all()
    assert np.isfinite(common)
    np.testing.assert_array_equal(found[3], 0.0)
    np.testing.assert_array_equal(found[:, 5], 0.0)


def test_places_and_largest_by_loops(rng):
    pairs, dense = some_pairs(rng, (6, 7), share=0.4)
    dense[2] = -np.inf
    pairs = sparse.csr_array((dense[np.isfinite(dense)], np.nonzero(np.isfinite(dense))), shape=dense.shape)
    rows, columns = pair_places(pairs)
    np.testing.assert_array_equal(dense[rows, columns], pairs.data)
    np.testing.assert_array_equal(largest(rows, pairs.data, 6), dense.max(axis=1))
    np.testing.assert_array_equal(largest(columns, pairs.data, 7), dense.max(axis=0))


def less_crowding_by_loops(ratios):
    """Subtract, for both rows of a pair, half the log of the mean of exponentiated ratios without the best."""

    def half_log_mean(line):
        rest = np.delete(line, line.argmax())
        return 0.5 * max(np.log(np.mean(np.exp(rest))), 0.0) if np.isfinite(rest).any() else 0.0

    rows, columns = [half_log_mean(line) for line in ratios], [half_log_mean(line) for line in ratios.T]
    return np.array([[ratios[i, j] - rows[i] - columns[j] for j in range(len(columns))] for i in range(len(rows))])


@pytest.mark.parametrize("shape", [(130, 130), (125, 140), (140, 125)])
def test_crowding_is_what_its_definition_says_for_dense_and_for_listed_pairs(rng, shape):
    ratios = rng.normal(scale=6.0, size=shape)
    ratios[2, 1:] = ratios[1:4, 3] = -np.inf
    expected = less_crowding_by_loops(ratios)
    np.testing.assert_allclose(less_crowding(ratios), expected, rtol=1e-12)
    listed = np.isfinite(ratios)
    pairs = sparse.csr_array((ratios[listed], np.nonzero(listed)), shape=shape)
    np.testing.assert_allclose(less_crowding(pairs).data, expected[listed], rtol=1e-12)


def test_a_partner_far_ahead_does_not_make_a_crowd():
    ratios = np.full((150, 150), -3.0)
    np.fill_diagonal(ratios, 200.0)
    np.testing.assert_array_equal(less_crowding(ratios), ratios)


def test_few_rows_are_no_crowd(rng):
    ratios = rng.normal(scale=6.0, size=(119, 300))
    assert less_crowding(ratios) is ratios


def test_rows_in_clusters_have_ratios_nearer_to_those_of_their_true_density(rng):
    centres, spread, noise = rng.normal(scale=4.0, size=(6, 2)), 0.5, 0.3
    group = rng.integers(6, size=300)
    left = centres[group] + spread * rng.normal(size=(300, 2))
    right = left + noise * rng.normal(size=left.shape)

    def log_density(offsets, variance):
        return -np.sum(offsets**2, axis=-1) / (2 * variance) - np.log(2 * np.pi * variance)

    beside = log_density(right[None] - left[:, None], noise**2)
    wide = right.var(axis=0)
    normal = np.sum(-((right - right.mean(axis=0)) ** 2) / (2 * wide) - 0.5 * np.log(2 * np.pi * wide), axis=1)
    mixture = np.logaddexp.reduce(log_density(right[:, None] - centres[None], spread**2 + noise**2), axis=1) - np.log(6)
    partners = np.diag(beside - mixture)
    errors = [np.abs(np.diag(found) - partners).mean() for found in (beside - normal, less_crowding(beside - normal))]
    assert errors[1] < 0.7 * errors[0]


def test_rows_that_lost_their_partner_in_a_cluster_are_counted_more_nearly(rng):
    # Half of the rows of each table have no partner: 150 of 300 have one.
    centres = rng.normal(scale=4.0, size=(6, 2))
    rows = centres[rng.integers(6, size=450)] + 0.5 * rng.normal(size=(450, 2))
    left, right = rows[:300], rows[150:] + 0.02 * rng.normal(size=(300, 2))
    wide = rows.var(axis=0)
    beside = -np.sum((right[None] - left[:, None]) ** 2, axis=2) / (2 * 0.02**2) - np.log(0.02**2)
    ratios = beside + np.sum((right - rows.mean(axis=0)) ** 2 / wide + np.log(wide), axis=1) / 2
    assert abs(scaled(less_crowding(ratios), 270.0)[1] - 150) <= 15


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_sums_of_a_line_with_and_without_an_entry_follow_their_definition(rng, alone, spread):
    line, logs = rng.integers(0, 6, 30), rng.normal(scale=spread, size=30)
    line[line == 4] = 5
    line[0] = 4  # the only entry of its line
    total, rest = log_sums_with_rest(line, logs, 6, alone=alone)
    for k in range(30):
        others = [logs[i] for i in range(30) if line[i] == line[k] and i != k]
        # Having no alternative at all weighs e^−700 rather than nothing.
        own = [0.0] if alone else [-700.0]
        np.testing.assert_allclose(total[k], np.logaddexp.reduce([*others, *own, logs[k]]), rtol=1e-12, atol=1e-12)
        # Of a sum that is a tiny part of the line's, 700 nats below it, only that it is tiny matters.
        expected = np.logaddexp.reduce([*others, *own])
        if total[k] - expected < 700:
            np.testing.assert_allclose(rest[k], expected, rtol=1e-9, atol=1e-9)
        else:
            assert rest[k] < total[k] - 600
