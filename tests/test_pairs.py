"""Log-likelihood ratios of pairs, against the normal densities they stand for; couplings against their marginals."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from keyless.model.factor_model import FactorModel, Information, information
from keyless.pairs.likelihood import (
    FORBIDDEN,
    approximate_log_ratio,
    best_candidates,
    couple,
    exact_log_ratio,
    expected_log_ratio,
    forbid,
    log_z,
    pair_log_ratio,
)
from keyless.pairs.posterior import prior_log_odds, scaled


def plain_model(rng, columns, rank):
    return FactorModel(
        loadings=rng.normal(size=(columns, rank)),
        offsets=rng.normal(size=columns),
        noise=rng.uniform(0.2, 1.0, columns),
        spread=np.zeros((columns, rank + 1, rank + 1)),
        shrinkage=np.ones(rank + 1),
    )


def two_tables(rng, rows, *, columns=(5, 4), rank=3, observed=1.0):
    """Information of two tables' rows, row i of both the same entity; the model; the values and masks."""
    model = plain_model(rng, sum(columns), rank)
    values = rng.normal(size=(rows, rank)) @ model.loadings.T + model.offsets
    values += np.sqrt(model.noise) * rng.normal(size=values.shape)
    mask = rng.random(values.shape) < observed
    values = np.where(mask, values, 0.0)
    parts = slice(0, columns[0]), slice(columns[0], None)
    infos = tuple(information(model.columns(part), values[:, part], mask[:, part]) for part in parts)
    return infos, model, values, mask


def test_log_z_of_one_factor_in_closed_form():
    info = Information(np.array([[[3.0]]]), np.array([[2.0]]))
    np.testing.assert_allclose(log_z(info), [-0.5 * np.log(4.0) + 0.5 * 4.0 / 4.0])


def test_log_z_is_the_integral():
    """∫ N(z; 0, 1) exp(−½ G z² + h z) dz, by quadrature."""
    grid = np.linspace(-12, 12, 20_001)
    precision, shift = 2.5, -1.3
    weight = np.exp(-0.5 * grid**2 - 0.5 * precision * grid**2 + shift * grid) / np.sqrt(2 * np.pi)
    info = Information(np.array([[[precision]]]), np.array([[shift]]))
    np.testing.assert_allclose(log_z(info)[0], np.log(weight.sum() * (grid[1] - grid[0])), rtol=1e-10)


@pytest.mark.parametrize("observed", [1.0, 0.6])
def test_the_ratio_is_that_of_normal_densities(rng, observed):
    (left, right), model, values, mask = two_tables(rng, 6, observed=observed)
    found = pair_log_ratio(left, right)
    whole = model.loadings @ model.loadings.T + np.diag(model.noise)

    def log_density(value, seen):
        if not seen.any():
            return 0.0
        return multivariate_normal(model.offsets[seen], whole[np.ix_(seen, seen)]).logpdf(value[seen])

    nothing = np.zeros(9, dtype=bool)
    for i in range(6):
        for j in range(6):
            value = np.concatenate([values[i, :5], values[j, 5:]])
            first, second = nothing.copy(), nothing.copy()
            first[:5], second[5:] = mask[i, :5], mask[j, 5:]
            expected = log_density(value, first | second) - log_density(value, first) - log_density(value, second)
            np.testing.assert_allclose(found[i, j], expected, atol=1e-9)


def test_the_approximation_is_exact_when_rows_see_the_same_columns(rng):
    (left, right), _, _, _ = two_tables(rng, 30)
    np.testing.assert_allclose(approximate_log_ratio(left, right), pair_log_ratio(left, right), atol=1e-8)
    np.testing.assert_allclose(pair_log_ratio(left, right, exact_pairs=0), pair_log_ratio(left, right), atol=1e-8)


def test_the_approximation_is_close_when_they_do_not(rng):
    (left, right), _, _, _ = two_tables(rng, 60, columns=(20, 20), observed=0.6)
    exact, rough = pair_log_ratio(left, right), approximate_log_ratio(left, right)
    assert not np.allclose(exact, rough)
    assert np.corrcoef(np.diag(exact), np.diag(rough))[0, 1] > 0.9
    assert np.mean(rough.argmax(axis=1) == exact.argmax(axis=1)) > 0.9


def test_candidates_are_exact_and_others_below_them(rng):
    (left, right), _, _, _ = two_tables(rng, 60, columns=(20, 20), observed=0.6)
    exact = pair_log_ratio(left, right)
    some = pair_log_ratio(left, right, exact_pairs=0, candidates=5)
    rows, columns = best_candidates(approximate_log_ratio(left, right), 5)
    np.testing.assert_allclose(some[rows, columns], exact[rows, columns])
    listed = np.zeros(exact.shape, dtype=bool)
    listed[rows, columns] = True
    lowest = np.where(listed, some, np.inf).min(axis=1)
    assert np.all(np.where(listed, -np.inf, some).max(axis=1) <= lowest + 1e-12)


def test_forbidden_pairs_take_no_candidate_away(rng):
    (left, right), _, _, _ = two_tables(rng, 40, columns=(20, 20), observed=0.6)
    allowed = rng.random((40, 40)) < 0.2
    found = pair_log_ratio(left, right, allowed=allowed, exact_pairs=0, candidates=8)
    assert np.all(found[~allowed] == FORBIDDEN)
    exact = pair_log_ratio(left, right)
    best = np.where(allowed, exact, -np.inf).argmax(axis=1)
    some = allowed.any(axis=1)
    index = np.arange(40)
    np.testing.assert_allclose(found[index, best][some], exact[index, best][some])
    np.testing.assert_array_equal(pair_log_ratio(left, right, allowed=allowed), forbid(exact, allowed))


def test_chunks_change_nothing(rng):
    (left, right), _, _, _ = two_tables(rng, 10, observed=0.7)
    rows, columns = rng.integers(0, 10, (2, 23))
    once, often = (exact_log_ratio(left, right, rows, columns, chunk=chunk) for chunk in (1000, 4))
    np.testing.assert_allclose(once, often, rtol=1e-12)
    assert exact_log_ratio(left, right, rows[:0], columns[:0]).shape == (0,)


def test_the_expected_ratio_is_the_mean_over_right_pairs(rng):
    (left, right), _, _, _ = two_tables(rng, 20_000)
    index = np.arange(20_000)
    found = exact_log_ratio(left, right, index, index)
    expected = expected_log_ratio(left, right)
    np.testing.assert_allclose(found.mean(), expected.mean(), atol=4 * found.std() / np.sqrt(20_000))


def test_best_candidates_are_those_of_rows_and_columns(rng):
    score = rng.normal(size=(7, 9))
    pairs = set(zip(*(index.tolist() for index in best_candidates(score, 2)), strict=True))
    by_row = {(i, int(j)) for i in range(7) for j in np.argsort(score[i])[-2:]}
    by_column = {(int(i), j) for j in range(9) for i in np.argsort(score[:, j])[-2:]}
    assert pairs == by_row | by_column
    assert len(best_candidates(score, 100)[0]) == 63


@pytest.mark.parametrize("shape", [(6, 6), (4, 7), (7, 4)])
def test_couplings_give_the_smaller_side_a_partner(rng, shape):
    coupling = couple(3 * rng.normal(size=shape), max_iter=2000, tolerance=1e-9)
    smaller = min(shape)
    np.testing.assert_allclose(coupling.sum(axis=1), smaller / shape[0], atol=1e-7)
    np.testing.assert_allclose(coupling.sum(axis=0), smaller / shape[1], atol=1e-7)


def test_clear_pairs_are_coupled_and_others_left_alone():
    score = np.full((5, 4), -30.0)
    score[[0, 1, 2], [2, 0, 1]] = 30.0
    coupling = scaled(score, 3.0, fixed=True)[0]
    np.testing.assert_allclose(coupling.sum(axis=1), [1, 1, 1, 0, 0], atol=1e-3)
    np.testing.assert_allclose(coupling[[0, 1, 2], [2, 0, 1]], 1, atol=1e-3)


def test_nothing_is_coupled_when_nothing_fits():
    assert not scaled(np.full((3, 4), -np.inf), 1.0, fixed=True)[0].any()


def test_more_common_rows_make_a_pair_more_likely():
    odds = [prior_log_odds((100, 80), common) for common in (0.0, 10.0, 70.0, 80.0)]
    assert np.all(np.diff(odds) > 0)
    np.testing.assert_allclose(odds[1], np.log(10 / (90 * 70)))
