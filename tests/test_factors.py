from __future__ import annotations

import numpy as np
import pytest

from keyless.errors import InputError
from keyless.model.factors import principal_factors, standardise, whitened


def assert_whitened(scores):
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(scores.T @ scores / len(scores), np.eye(scores.shape[1]), atol=1e-9)


@pytest.fixture
def table(rng):
    latent = rng.exponential(size=(120, 4)) * [4, 3, 2, 1]
    return latent @ rng.normal(size=(4, 15)) + 0.1 * rng.normal(size=(120, 15))


def test_principal_factors_are_whitened_and_span_the_table(table):
    factors = principal_factors(table, largest_score=100)
    assert_whitened(factors.scores)
    assert factors.rank == 15
    assert np.all(np.diff(factors.strengths) <= 0)
    scores = standardise(table)
    rebuilt = factors.scores @ (factors.scores.T @ scores) / len(table)
    np.testing.assert_allclose(rebuilt, scores, atol=1e-9)


def test_strengths_are_singular_values_of_standard_scores(table):
    factors = principal_factors(table, largest_score=100)
    np.testing.assert_allclose(factors.strengths, np.linalg.svd(standardise(table), compute_uv=False))


def test_the_signal_rank_is_the_number_of_latent_factors(table):
    assert principal_factors(table).signal_rank == 4


def test_neither_order_nor_signs_nor_units_of_columns_matter(table, rng):
    other = table[:, rng.permutation(15)] * rng.choice([-1.0, 1.0], 15) * rng.uniform(0.1, 100, 15) + 7
    np.testing.assert_allclose(principal_factors(other).scores, principal_factors(table).scores, atol=1e-8)


def test_rows_go_along(table, rng):
    order = rng.permutation(len(table))
    factors = principal_factors(table)
    moved = principal_factors(table[order])
    np.testing.assert_allclose(moved.scores, factors.scores[order], atol=1e-8)
    np.testing.assert_array_equal(order[moved.row_order], factors.row_order)


def test_an_outlier_owns_no_factor(rng):
    table = rng.normal(size=(200, 5))
    table[3, 0] = 12
    held, free = (np.abs(principal_factors(table, largest_score=size).scores[3]).max() for size in (5, 1e9))
    assert held < 0.7 * free


def test_rank_is_limited_by_rows_by_dependence_and_by_request(rng):
    assert principal_factors(rng.normal(size=(20, 12))).rank == 5
    assert principal_factors(rng.normal(size=(100, 12)), max_rank=7).rank == 7
    assert principal_factors(rng.normal(size=(100, 3)) @ rng.normal(size=(3, 12))).rank == 3


def test_constant_columns_are_left_out(rng):
    table = rng.normal(size=(50, 4))
    padded = np.column_stack([table, np.full(50, 3.0)])
    np.testing.assert_allclose(principal_factors(padded).scores, principal_factors(table).scores, atol=1e-9)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 9])
def test_a_table_in_which_nothing_varies_has_one_factor_of_zeros(n_rows):
    factors = principal_factors(np.full((n_rows, 2), 5.0))
    np.testing.assert_array_equal(factors.scores, np.zeros((n_rows, 1)))
    assert np.all(np.isfinite(factors.weighted(rank=3, weight=1.5)))


def test_weighting_keeps_the_mean_variance_at_one(table):
    points = principal_factors(table).weighted(rank=6, weight=1.5)
    assert np.isclose(np.mean(points.var(axis=0)), 1)
    strengths = principal_factors(table).strengths[:6]
    np.testing.assert_allclose(points.std(axis=0) / points.std(axis=0)[0], (strengths / strengths[0]) ** 1.5)


def test_leading_columns_come_first_and_the_rest_is_what_they_leave(table):
    chosen = [4, 1]
    factors = principal_factors(table, leading=chosen)
    assert_whitened(factors.scores)
    # The first two factors span the two columns.
    columns = standardise(table[:, chosen])
    left = columns - factors.scores[:, :2] @ (factors.scores[:, :2].T @ columns) / len(table)
    assert np.abs(left).max() < 0.05 * np.abs(columns).max()
    assert np.isclose(abs(np.corrcoef(factors.scores[:, 0], table[:, 4])[0, 1]), 1, atol=0.01)
    # All factors together span what those of the whole table do.
    whole = principal_factors(table, max_rank=len(table))
    both = principal_factors(table, max_rank=len(table), leading=chosen)
    assert both.rank == whole.rank
    spanned = both.scores @ (both.scores.T @ whole.scores) / len(table)
    np.testing.assert_allclose(spanned, whole.scores, atol=1e-6)


def test_leading_columns_that_say_the_same_count_once(table):
    doubled = np.column_stack([table, 2 * table[:, 0] + 1])
    factors = principal_factors(doubled, leading=[0, doubled.shape[1] - 1])
    assert_whitened(factors.scores)
    assert factors.rank == principal_factors(table).rank


def test_whitened_keeps_the_first_column(rng):
    columns = rng.exponential(size=(80, 3)) @ rng.normal(size=(3, 3))
    scores = whitened(columns)
    assert_whitened(scores)
    assert np.isclose(abs(np.corrcoef(scores[:, 0], columns[:, 0])[0, 1]), 1)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="max_rank"):
        principal_factors(np.eye(4), max_rank=0)
    with pytest.raises(InputError, match="largest_score"):
        principal_factors(np.eye(4), largest_score=0)
    with pytest.raises(InputError, match="found NaN"):
        principal_factors(np.array([[np.nan, 1.0], [0.0, 1.0]]))
