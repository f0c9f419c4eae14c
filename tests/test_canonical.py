"""Canonical pairs of directions: against densities of scipy, double loops and canonical correlations by definition."""

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import sqrtm
from scipy.stats import multivariate_normal, multivariate_t

from keyless.maps.canonical import (
    AllPairs,
    CanonicalModel,
    CrossFit,
    ListedPairs,
    cross_fit,
    fit_tail,
    heavy_tailed,
    information,
    left_out,
    singular_vectors,
    whitening,
)
from keyless.maps.folds import Folds


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


def partners(left, right, folds=1):
    """The fit to partners in the same order, row i in fold i modulo their number."""
    return cross_fit(left, right, sparse.eye_array(len(left), format="csr"), Folds.along(np.arange(len(left)), folds))


def test_ratios_fold_by_fold_are_those_of_each_model(rng):
    models = [made_up(rng, 3, correlations=np.array([0.9, 0.5, 0.2]))[0] for _ in range(4)]
    stacked = [np.stack([getattr(model, name) for model in models]) for name in ("left_directions", "right_directions")]
    for tail in (np.inf, 6.0):
        fit = CrossFit(*stacked, models[0]).with_tail(tail)
        left, right = rng.normal(size=(4, 5, 3)), rng.normal(size=(7, 3))
        found = fit.log_ratios(left, right)
        for rows, model, ratios in zip(left, fit.models, found, strict=True):
            np.testing.assert_allclose(ratios, model.log_ratios(rows, right), rtol=1e-9, atol=1e-9)


def test_one_model_for_all_folds(rng):
    model = made_up(rng, 3)[0]
    fit = CrossFit.of_one(model, 3)
    left, right = rng.normal(size=(3, 5, 3)), rng.normal(size=(7, 3))
    np.testing.assert_allclose(fit.log_ratios(left, right), [model.log_ratios(rows, right) for rows in left])
    assert len(fit.models) == 3


@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (7, 4), (1, 3)])
def test_singular_vectors_are_those_of_a_decomposition(rng, shape):
    matrices = rng.normal(size=(2, 3, *shape))
    left, right = singular_vectors(matrices)
    expected = np.linalg.svd(matrices, compute_uv=False)
    products = left.mT @ matrices @ right
    # Squares of values are exact to rounding of the largest square.
    np.testing.assert_allclose(
        np.diagonal(products, axis1=-2, axis2=-1) ** 2, expected**2, atol=1e-13 * expected.max() ** 2
    )
    for vectors in (left, right):
        np.testing.assert_allclose(vectors.mT @ vectors - np.eye(min(shape)), 0.0, atol=1e-7)
    empty = singular_vectors(np.zeros((1, *shape)))
    assert all(np.isfinite(each).all() for each in empty)


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


def looped(left, right, coupling, rows):
    """Mean and covariance of u and v over pairs of the given left rows, as a double loop has them."""
    pairs = [(np.concatenate([left[i], right[j]]), coupling[i, j]) for i in rows for j in range(len(right))]
    weight = sum(each for _, each in pairs)
    mean = sum(each * both for both, each in pairs) / weight
    return mean, sum(each * np.outer(both - mean, both - mean) for both, each in pairs) / weight


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_directions_are_canonical_over_the_pairs_of_all_other_folds(rng, kind):
    """They have unit variance over these pairs and correlate only with each other, by definition of canonical pairs."""
    left, right = rng.normal(size=(22, 3)), rng.normal(size=(17, 2))
    coupling = rng.uniform(0, 1, (22, 17)) * (rng.random((22, 17)) < 0.6)
    folds = Folds.along(np.arange(22), 4)
    couplings = (
        AllPairs.of(folds.folded(coupling)[None])
        if kind == "dense"
        else ListedPairs.of(sparse.csr_array(coupling), folds, np.float64)
    )
    found = left_out(folds.folded(left), right, couplings, whole=True, ridge=1e-12)
    assert found.left.shape == (1, 5, 3, 2)
    mean, _ = looped(left, right, coupling, range(22))
    np.testing.assert_allclose(np.concatenate([centre[0] for centre in found.centres]), mean)
    for fold in range(5):
        _, covariance = looped(left, right, coupling, [i for i in range(22) if fold == 4 or i % 4 != fold])
        one, two = found.left[0, fold], found.right[0, fold]
        np.testing.assert_allclose(one.T @ covariance[:3, :3] @ one, np.eye(2), atol=1e-8)
        np.testing.assert_allclose(two.T @ covariance[3:, 3:] @ two, np.eye(2), atol=1e-8)
        cross = one.T @ covariance[:3, 3:] @ two
        np.testing.assert_allclose(cross, np.diag(np.diag(cross)), atol=1e-8)
        assert np.all(np.diff(np.diag(cross)) <= 1e-9)


def test_couplings_are_fitted_each_by_itself(rng):
    left, right = rng.normal(size=(20, 4)), rng.normal(size=(15, 3))
    folds = Folds.along(np.arange(20), 4)
    couplings = folds.folded(rng.uniform(0, 1, (3, 20, 15)), axis=1)
    together = left_out(folds.folded(left), right, AllPairs.of(couplings))
    for number in range(3):
        alone = left_out(folds.folded(left), right, AllPairs.of(couplings[number : number + 1]))
        np.testing.assert_allclose(together.correlations[number], alone.correlations[0], atol=1e-10)
        np.testing.assert_allclose(np.abs(together.left[number]), np.abs(alone.left[0]), atol=1e-8)


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
    fit = cross_fit(left, right, sparse.eye_array(400, format="csr"), Folds.along(np.arange(400), 1), ridge=1e-12)
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
    one = cross_fit(left, right, kind(coupling), Folds.along(np.arange(60), 1))
    two = partners(left[rows], right[columns])
    np.testing.assert_allclose(one.whole.correlations, two.whole.correlations, rtol=1e-8)
    np.testing.assert_allclose(one.whole.log_ratios(left, right), two.whole.log_ratios(left, right), atol=1e-6)


def unit(directions):
    return directions / np.linalg.norm(directions, axis=0)


def test_a_fold_is_judged_by_directions_that_have_not_seen_it(rng):
    right = rng.uniform(-1, 1, (200, 3))
    left = np.hstack([right, np.zeros((200, 1))]) + np.array([0.2, 0.5, 0.9, 1.0]) * rng.uniform(-1, 1, (200, 4))
    folds = [np.arange(k, 200, 4) for k in range(4)]
    before = partners(left, right, 4)
    changed = left.copy()
    changed[folds[1]] += 0.3 * rng.uniform(-1, 1, (50, 4))
    after = partners(changed, right, 4)
    assert len(before.whole.correlations) == len(after.whole.correlations) == 3
    for name in ("left_directions", "right_directions"):
        same, others = (
            [np.sum(unit(getattr(before.models[k], name)) * unit(getattr(after.models[k], name)), axis=0) for k in part]
            for part in ([1], [0, 2, 3])
        )
        np.testing.assert_allclose(np.abs(same), 1.0, atol=1e-12)
        assert np.abs(others).min() < 1 - 1e-6
    alone = partners(*(np.delete(side, folds[1], axis=0) for side in (left, right)))
    np.testing.assert_allclose(
        np.abs(np.sum(unit(alone.whole.left_directions) * unit(before.models[1].left_directions), axis=0)), 1, atol=1e-9
    )


def test_correlations_are_those_of_rows_left_out(rng):
    """Random pairs of many factors correlate in any sample, but not in the next."""
    left, right = rng.normal(size=(160, 20)), rng.normal(size=(160, 20))
    seen = partners(left, right)
    unseen = partners(left, right, 4)
    assert seen.information > 1.0
    assert unseen.information < 0.15
    assert len(unseen.whole.correlations) <= 4


def test_left_out_correlations_near_those_of_the_population(rng):
    model, centre, covariance = made_up(rng, 3, correlations=np.array([0.9, 0.6, 0.3]))
    drawn = multivariate_normal(centre, covariance).rvs(8000, random_state=rng)
    left, right = drawn[:, :3], drawn[:, 3:]
    fit = partners(left, right, 4)
    np.testing.assert_allclose(fit.whole.correlations, [0.9, 0.6, 0.3], atol=0.03)
    assert all(len(each.correlations) == 3 for each in fit.models)
    np.testing.assert_allclose(fit.information, model.information, atol=0.06)


def test_pairs_without_any_relation_or_spread_have_no_directions(rng):
    left, right = rng.normal(size=(400, 2)), rng.normal(size=(400, 2))
    left[:, 1] = 1.0
    fit = partners(left, np.zeros((400, 2)), 4)
    assert fit.information == 0
    np.testing.assert_array_equal(fit.whole.log_ratios(left, right), 0.0)


def test_with_tail_changes_tails_alone(rng):
    left, right = bounded(rng, 60)
    fit = partners(left, right, 2)
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


def test_a_covariance_that_is_not_definite_leaves_the_others_as_they_are():
    rng = np.random.default_rng(12)
    points = rng.normal(size=(3, 20, 4))
    covariances = points.mT @ points / 20
    alone = whitening(covariances)
    covariances[1] = np.diag([1.0, 1.0, 1.0, -0.01])
    together = whitening(covariances)
    np.testing.assert_array_equal(together[[0, 2]], alone[[0, 2]])
    assert np.isfinite(together[1]).all()


def test_sparse_couplings_of_any_format_are_the_same():
    rng = np.random.default_rng(13)
    coupling = sparse.random_array((12, 12), density=0.3, rng=rng, format="csr")
    folds = Folds.along(rng.normal(size=12), 3)
    rows, columns = (ListedPairs.of(each, folds, np.float64) for each in (coupling, coupling.tocsc()))
    for one, two in zip(rows.parts, columns.parts, strict=True):
        np.testing.assert_array_equal(one.toarray(), two.toarray())
