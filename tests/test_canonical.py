"""Canonical pairs of directions: against densities of scipy, double loops and canonical correlations by definition."""

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import sqrtm
from scipy.stats import multivariate_normal, multivariate_t

from keyless.maps.canonical import (
    CanonicalModel,
    Coupled,
    PairSums,
    cross_fit,
    fit_tail,
    heavy_tailed,
    information,
)


def made_up(rng, size, *, tail=np.inf, correlations=None):
    """A model with as many directions as factors, and the centre and covariance of the left and right factors."""
    directions = [rng.normal(size=(size, size)) + 2 * np.eye(size) for _ in range(2)]
    rho = np.sort(rng.uniform(0.1, 0.95, size))[::-1] if correlations is None else correlations
    centres = [rng.normal(size=size) for _ in range(2)]
    model = CanonicalModel(*centres, *directions, rho, tail)
    # x = Dᵀ(u − centre) has unit variance, and x and y of partners have covariance ρ.
    back = [np.linalg.inv(direction.T) for direction in directions]
    whole = np.block(
        [[back[0] @ back[0].T, back[0] * rho @ back[1].T], [(back[0] * rho @ back[1].T).T, back[1] @ back[1].T]]
    )
    return model, np.concatenate(centres), whole


def log_density(points, centre, covariance, tail):
    if np.isinf(tail):
        return multivariate_normal(centre, covariance).logpdf(points)
    return multivariate_t(centre, covariance * (tail - 2) / tail, df=tail).logpdf(points)


def by_densities(left, right, centre, covariance, tail):
    """The log-likelihood ratio of left row i with right row i."""
    size = left.shape[1]
    return (
        log_density(np.hstack([left, right]), centre, covariance, tail)
        - log_density(left, centre[:size], covariance[:size, :size], tail)
        - log_density(right, centre[size:], covariance[size:, size:], tail)
    )


@pytest.mark.parametrize("tail", [np.inf, 4.0, 7.5, 150.0])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ratios_are_those_of_densities(rng, size, tail):
    model, centre, covariance = made_up(rng, size, tail=tail)
    left, right = 2 * rng.normal(size=(7, size)), 2 * rng.normal(size=(5, size))
    rows, columns = np.repeat(np.arange(7), 5), np.tile(np.arange(5), 7)
    expected = by_densities(left[rows], right[columns], centre, covariance, tail).reshape(7, 5)
    np.testing.assert_allclose(model.log_ratios(left, right), expected, rtol=1e-9, atol=1e-9)
    listed = model.pair_log_ratios(left[rows], right[columns])
    np.testing.assert_allclose(listed.reshape(7, 5), expected, rtol=1e-9, atol=1e-9)


def test_single_precision_is_enough(rng):
    for tail in (np.inf, 10.0):
        model, centre, covariance = made_up(rng, 3, tail=tail)
        left, right = (rng.normal(size=(6, 3)).astype(np.float32) for _ in range(2))
        found = np.diag(model.log_ratios(left, right))
        np.testing.assert_allclose(found, by_densities(left, right, centre, covariance, tail), rtol=1e-4, atol=2e-3)
    assert made_up(rng, 3)[0].log_ratios(left, right).dtype == np.float32


def test_thin_matrices_carry_row_and_column_numbers_in_their_last_columns(rng):
    model, _, _ = made_up(rng, 3)
    left, right = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    first, second = model.bilinear(left, right)
    assert first.shape == (6, 5)
    assert second.shape == (4, 5)
    np.testing.assert_allclose(first @ second.T, model.log_ratios(left, right))
    rows, columns = rng.normal(size=6), rng.normal(size=4)
    first[:, -2] += rows
    second[:, -1] += columns
    np.testing.assert_allclose(first @ second.T, model.log_ratios(left, right) + rows[:, None] + columns)


@pytest.mark.parametrize("tail", [3.0, 5.0, 30.0])
@pytest.mark.parametrize("sizes", [(2, 2), (1, 4), (5, 3)])
def test_heavy_tails_are_those_of_the_t_distribution(rng, sizes, tail):
    """For the identity as covariance of all numbers, nothing else depends on the rows."""
    left, right = 3 * rng.normal(size=(8, sizes[0])), 3 * rng.normal(size=(8, sizes[1]))
    lengths = [np.sum(part**2, axis=1) for part in (left, right)]
    expected = (
        log_density(np.hstack([left, right]), np.zeros(sum(sizes)), np.eye(sum(sizes)), tail)
        - log_density(left, np.zeros(sizes[0]), np.eye(sizes[0]), tail)
        - log_density(right, np.zeros(sizes[1]), np.eye(sizes[1]), tail)
    )
    np.testing.assert_allclose(heavy_tailed(sum(lengths), *lengths, sizes, tail), expected, atol=1e-10)


def test_tails_of_many_degrees_are_normal(rng):
    joint, left, right = rng.uniform(0, 9, (3, 20))
    np.testing.assert_allclose(
        heavy_tailed(joint, left, right, (3, 2), 1e9), 0.5 * (left + right - joint), rtol=1e-5, atol=1e-6
    )


def test_information_is_the_mutual_information_of_partners(rng):
    model, centre, covariance = made_up(rng, 3)
    parts = covariance[:3, :3], covariance[3:, 3:], covariance
    left, right, both = (multivariate_normal(np.zeros(len(part)), part).entropy() for part in parts)
    np.testing.assert_allclose(model.information, left + right - both)
    assert information(np.zeros(4)) == 0
    drawn = multivariate_normal(centre, covariance).rvs(40_000, random_state=rng)
    found = model.pair_log_ratios(drawn[:, :3], drawn[:, 3:])
    np.testing.assert_allclose(found.mean(), model.information, atol=4 * found.std() / 200)


def test_factors_beyond_those_of_the_model_do_not_matter(rng):
    model, _, _ = made_up(rng, 3)
    left, right = rng.normal(size=(5, 7)), rng.normal(size=(5, 4))
    np.testing.assert_allclose(model.log_ratios(left, right), model.log_ratios(left[:, :3], right[:, :3]))


def looped_sums(left, right, coupling):
    """Σ w·(1, u, v, u·uᵀ, v·vᵀ, u·vᵀ) over all pairs."""
    sums = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    for i, u in enumerate(left):
        for j, v in enumerate(right):
            for k, part in enumerate((1.0, u, v, np.outer(u, u), np.outer(v, v), np.outer(u, v))):
                sums[k] = sums[k] + coupling[i, j] * part
    return sums


def coupled_rows(rng, shape=(9, 7), sizes=(3, 2)):
    left, right = (rng.normal(size=(count, size)) for count, size in zip(shape, sizes, strict=True))
    return left, right, rng.uniform(0, 1, shape) * (rng.random(shape) < 0.6)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_sums_are_those_of_a_double_loop(rng, kind):
    left, right, coupling = coupled_rows(rng)
    sums = Coupled.by_matrix(left, right, kind(coupling)).sums()
    expected = looped_sums(left, right, coupling)
    for found, part in zip(vars(sums).values(), expected, strict=True):
        np.testing.assert_allclose(found, part)
    weight, u, v, uu, vv, uv = expected
    centred = uu / weight - np.outer(u, u) / weight**2, vv / weight - np.outer(v, v) / weight**2
    for found, part in zip(sums.centred(), (*centred, uv / weight - np.outer(u, v) / weight**2), strict=True):
        np.testing.assert_allclose(found, part, atol=1e-12)


def test_sums_of_parts_add_up_and_are_taken_off_again(rng):
    left, right, coupling = coupled_rows(rng)
    first, second = (Coupled.by_matrix(left[part], right, coupling[part]).sums() for part in (slice(0, 4), slice(4, 9)))
    both = PairSums(*looped_sums(left, right, coupling))
    for sums, expected in (((first + second), both), ((both - first), second)):
        for found, part in zip(vars(sums).values(), vars(expected).values(), strict=True):
            np.testing.assert_allclose(found, part, atol=1e-12)


def test_partners_in_order_and_leading_factors(rng):
    left, right = rng.normal(size=(8, 4)), rng.normal(size=(8, 3))
    sums = Coupled.of_pairs(left, right).leading(2, 3).sums()
    for found, part in zip(vars(sums).values(), looped_sums(left[:, :2], right, np.eye(8)), strict=True):
        np.testing.assert_allclose(found, part, atol=1e-12)


def bounded(rng, rows, *, noise=0.5, sizes=(4, 3)):
    """Left and right factors of the same entities, none of them far out, so that no row is pulled in."""
    latent = rng.uniform(-1, 1, (rows, 3))
    return tuple(latent @ rng.normal(size=(3, size)) + noise * rng.uniform(-1, 1, (rows, size)) + 5.0 for size in sizes)


def test_one_fold_has_the_canonical_correlations_by_definition(rng):
    """The singular values of Σ_uu^(−½) Σ_uv Σ_vv^(−½)."""
    left, right = bounded(rng, 400)
    whole = np.cov(np.hstack([left, right]).T, bias=True)
    white = [np.linalg.inv(sqrtm(part).real) for part in (whole[:4, :4], whole[4:, 4:])]
    expected = np.linalg.svd(white[0] @ whole[:4, 4:] @ white[1], compute_uv=False)
    fit = cross_fit([Coupled.of_pairs(left, right)], ridge=1e-12)
    np.testing.assert_allclose(fit.whole.correlations, expected[expected > 2 / np.sqrt(400)], rtol=1e-6)
    x, y = fit.whole.left(left), fit.whole.right(right)
    size = len(fit.whole.correlations)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(x.T @ x / 400, np.eye(size), atol=1e-6)
    np.testing.assert_allclose(y.T @ y / 400, np.eye(size), atol=1e-6)
    np.testing.assert_allclose(x.T @ y / 400, np.diag(fit.whole.correlations), atol=1e-6)
    np.testing.assert_allclose(fit.information, -0.5 * np.log(1 - fit.whole.correlations**2).sum())


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_weights_on_pairs_count_as_often_as_they_say(rng, kind):
    """A coupling with whole numbers is the same as a list with each pair repeated."""
    left, right = bounded(rng, 60)
    coupling = 3.0 * np.eye(60)
    coupling[rng.integers(0, 60, 40), rng.integers(0, 60, 40)] += 1.0
    rows, columns = (np.repeat(place, coupling[np.nonzero(coupling)].astype(int)) for place in np.nonzero(coupling))
    one = cross_fit([Coupled.by_matrix(left, right, kind(coupling))])
    two = cross_fit([Coupled.of_pairs(left[rows], right[columns])])
    np.testing.assert_allclose(one.whole.correlations, two.whole.correlations, rtol=1e-8)
    np.testing.assert_allclose(one.whole.log_ratios(left, right), two.whole.log_ratios(left, right), atol=1e-6)


def unit(directions):
    return directions / np.linalg.norm(directions, axis=0)


def test_a_fold_is_judged_by_directions_that_have_not_seen_it(rng):
    right = rng.uniform(-1, 1, (200, 3))
    left = np.hstack([right, np.zeros((200, 1))]) + np.array([0.2, 0.5, 0.9, 1.0]) * rng.uniform(-1, 1, (200, 4))
    folds = [np.arange(k, 200, 4) for k in range(4)]
    before = cross_fit([Coupled.of_pairs(left[rows], right[rows]) for rows in folds])
    changed = left.copy()
    changed[folds[1]] += 0.3 * rng.uniform(-1, 1, (50, 4))
    after = cross_fit([Coupled.of_pairs(changed[rows], right[rows]) for rows in folds])
    assert len(before.whole.correlations) == len(after.whole.correlations) == 3
    for name in ("left_directions", "right_directions"):
        same, others = (
            [np.sum(unit(getattr(before.models[k], name)) * unit(getattr(after.models[k], name)), axis=0) for k in part]
            for part in ([1], [0, 2, 3])
        )
        np.testing.assert_allclose(np.abs(same), 1.0, atol=1e-12)
        assert np.abs(others).min() < 1 - 1e-6
    alone = cross_fit([Coupled.of_pairs(*(np.delete(side, folds[1], axis=0) for side in (left, right)))])
    np.testing.assert_allclose(
        np.abs(np.sum(unit(alone.whole.left_directions) * unit(before.models[1].left_directions), axis=0)), 1, atol=1e-9
    )


def test_correlations_are_those_of_rows_left_out(rng):
    """Random pairs of many factors correlate in any sample, but not in the next."""
    left, right = rng.normal(size=(160, 20)), rng.normal(size=(160, 20))
    seen = cross_fit([Coupled.of_pairs(left, right)])
    unseen = cross_fit([Coupled.of_pairs(left[k::4], right[k::4]) for k in range(4)])
    assert seen.information > 1.0
    assert unseen.information < 0.15
    assert len(unseen.whole.correlations) <= 4


def test_left_out_correlations_near_those_of_the_population(rng):
    model, centre, covariance = made_up(rng, 3, correlations=np.array([0.9, 0.6, 0.3]))
    drawn = multivariate_normal(centre, covariance).rvs(8000, random_state=rng)
    left, right = drawn[:, :3], drawn[:, 3:]
    fit = cross_fit([Coupled.of_pairs(left[k::4], right[k::4]) for k in range(4)])
    np.testing.assert_allclose(fit.whole.correlations, [0.9, 0.6, 0.3], atol=0.03)
    assert all(len(each.correlations) == 3 for each in fit.models)
    np.testing.assert_allclose(fit.information, model.information, atol=0.06)


def test_pairs_without_any_relation_or_spread_have_no_directions(rng):
    left, right = rng.normal(size=(400, 2)), rng.normal(size=(400, 2))
    left[:, 1] = 1.0
    fit = cross_fit([Coupled.of_pairs(left[k::4], np.zeros((100, 2))) for k in range(4)])
    assert fit.information == 0
    np.testing.assert_array_equal(fit.whole.log_ratios(left, right), 0.0)


def test_with_tail_changes_tails_alone(rng):
    left, right = bounded(rng, 60)
    fit = cross_fit([Coupled.of_pairs(left[k::2], right[k::2]) for k in range(2)])
    heavy = fit.with_tail(6.0)
    assert {model.tail for model in (*heavy.models, heavy.whole)} == {6.0}
    assert heavy.information == fit.information
    np.testing.assert_array_equal(heavy.whole.left(left), fit.whole.left(left))


def positions(rng, rho, rows, tail):
    """Positions of partners along the directions, drawn from the t distribution of unit variance."""
    size = len(rho)
    covariance = np.block([[np.eye(size), np.diag(rho)], [np.diag(rho), np.eye(size)]])
    if np.isinf(tail):
        drawn = multivariate_normal(np.zeros(2 * size), covariance).rvs(rows, random_state=rng)
    else:
        drawn = multivariate_t(np.zeros(2 * size), covariance * (tail - 2) / tail, tail, seed=rng).rvs(rows)
    return drawn[:, :size], drawn[:, size:], covariance


@pytest.mark.parametrize("tail", [4.0, 6.0, 20.0, np.inf])
def test_the_tail_is_the_likeliest_of_those_tried(rng, tail):
    rho = np.array([0.9, 0.5, 0.2])
    model = CanonicalModel(np.zeros(3), np.zeros(3), np.eye(3), np.eye(3), rho)
    left, right, covariance = positions(rng, rho, 3000, tail)
    tried = (4.0, 6.0, 10.0, 20.0, 50.0, 150.0, np.inf)
    likelihoods = [log_density(np.hstack([left, right]), np.zeros(6), covariance, each).sum() for each in tried]
    found = fit_tail(model, left, right)
    assert found == tried[int(np.argmax(likelihoods))]
    assert found >= 150 if np.isinf(tail) else abs(np.log(found / tail)) < 0.8


def test_few_pairs_are_taken_for_normal(rng):
    model = CanonicalModel(np.zeros(1), np.zeros(1), np.eye(1), np.eye(1), np.array([0.5]))
    left, right, _ = positions(rng, np.array([0.5]), 19, 3.0)
    assert fit_tail(model, left, right) == np.inf
    nothing = CanonicalModel(np.zeros(1), np.zeros(1), np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(0))
    assert fit_tail(nothing, np.zeros((50, 0)), np.zeros((50, 0))) == np.inf


def test_lighter_tails_than_normal_are_taken_for_normal(rng):
    rho = np.array([0.9, 0.2])
    model = CanonicalModel(np.zeros(2), np.zeros(2), np.eye(2), np.eye(2), rho)
    drawn = rng.normal(size=(500, 4))
    drawn *= 2 / np.linalg.norm(drawn, axis=1, keepdims=True)
    left = drawn[:, :2]
    assert fit_tail(model, left, rho * left + np.sqrt(1 - rho**2) * drawn[:, 2:]) == np.inf
