from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from keyless.likelihood.canonical import (
    MAX_CORRELATION,
    CanonicalModel,
    Matcher,
    best_permutation,
    cross_covariance,
    cross_fit,
    fit_model,
    grown,
    hardened,
)
from keyless.model.factors import whitened
from keyless.transport import sinkhorn


def pair(rng, n_rows=80, correlations=(0.95, 0.9, 0.9, 0.8), p=6, q=5):
    """Whitened factors of two tables with given canonical correlations, row i of one being row i of the other."""
    size = len(correlations)
    shared = rng.normal(size=(n_rows, size))
    rho = np.asarray(correlations)
    u = np.column_stack([shared, rng.normal(size=(n_rows, p - size))])
    v = np.column_stack(
        [rho * shared + np.sqrt(1 - rho**2) * rng.normal(size=(n_rows, size)), rng.normal(size=(n_rows, q - size))]
    )
    turn_u, turn_v = np.linalg.qr(rng.normal(size=(p, p)))[0], np.linalg.qr(rng.normal(size=(q, q)))[0]
    return whitened(u @ turn_u), whitened(v @ turn_v)


def test_log_ratios_are_those_of_normal_densities(rng):
    p, q = 3, 2
    cross = 0.5 * rng.uniform(-1, 1, size=(p, q))
    joint = multivariate_normal(cov=np.block([[np.eye(p), cross], [cross.T, np.eye(q)]]))
    u, v = rng.normal(size=(5, p)), rng.normal(size=(4, q))
    ratios = fit_model(cross).log_ratios(u, v)
    for i, j in itertools.product(range(5), range(4)):
        apart = multivariate_normal(cov=np.eye(p)).logpdf(u[i]) + multivariate_normal(cov=np.eye(q)).logpdf(v[j])
        assert np.isclose(ratios[i, j], joint.logpdf(np.concatenate([u[i], v[j]])) - apart, rtol=1e-5, atol=1e-5)


def test_information_is_the_mean_log_ratio_of_true_pairs(rng):
    u, v = pair(rng, n_rows=400)
    model = fit_model(cross_covariance(u, v, np.arange(400)))
    # On whitened rows the quadratic terms cancel exactly.
    assert np.isclose(np.mean(np.diag(model.log_ratios(u, v))), model.information, rtol=1e-4)


def test_single_precision_stays_single(rng):
    u, v = (part.astype(np.float32) for part in pair(rng))
    ratios = fit_model(cross_covariance(u, v, np.arange(80))).log_ratios(u, v)
    assert ratios.dtype == np.float32


def test_correlations_are_held_below_one(rng):
    u = whitened(rng.normal(size=(30, 3)))
    assert fit_model(cross_covariance(u, u, np.arange(30))).correlations.max() == MAX_CORRELATION


def test_rows_without_partner_do_not_count(rng):
    u, v = pair(rng)
    permutation = np.arange(80)
    permutation[:20] = -1
    np.testing.assert_allclose(cross_covariance(u, v, permutation), u[20:].T @ v[20:] / 60)


def test_best_permutation_is_the_best_of_all(rng):
    ratios = rng.normal(size=(5, 5))
    best = max(itertools.permutations(range(5)), key=lambda order: ratios[np.arange(5), order].sum())
    np.testing.assert_array_equal(best_permutation(ratios), best)


def test_best_permutation_never_uses_a_forbidden_pair(rng):
    ratios = rng.normal(size=(6, 6))
    allowed = rng.random((6, 6)) < 0.4
    allowed[2] = False
    permutation = best_permutation(ratios, allowed)
    assert permutation[2] == -1
    kept = permutation >= 0
    assert allowed[np.flatnonzero(kept), permutation[kept]].all()


@pytest.mark.parametrize("constrained", [False, True])
def test_the_coupling_has_unit_marginals_and_the_form_of_sinkhorn(rng, constrained):
    u, v = pair(rng, correlations=(0.6, 0.5))
    allowed = (rng.random((80, 80)) < 0.5) | np.eye(80, dtype=bool) if constrained else None
    cross = cross_covariance(u, v, np.arange(80))
    coupling = Matcher(u, v, allowed=allowed).coupling(cross, iterations=500)
    np.testing.assert_allclose(coupling.sum(axis=0), 1, atol=1e-9)
    np.testing.assert_allclose(coupling.sum(axis=1), 1, atol=1e-4)
    if allowed is not None:
        assert not coupling[~allowed].any()
    else:
        # log P − log_ratios must be a sum of a number per row and a number per column.
        gap = np.log(coupling) - fit_model(cross).log_ratios(u, v)
        gap -= gap.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(gap - gap.mean(axis=0), 0, atol=1e-8)


def test_a_step_returns_the_cross_covariance_and_bound_of_its_coupling(rng):
    u, v = pair(rng, correlations=(0.7, 0.6, 0.5))
    cross = cross_covariance(u, v, np.arange(80))
    one, other = Matcher(u, v, iterations=20), Matcher(u, v)
    coupling = other.coupling(cross, iterations=20)
    after, bound = one.step(cross)
    np.testing.assert_allclose(after, u.T @ coupling @ v / 80, atol=1e-12)
    direct = np.sum(coupling * (fit_model(cross).log_ratios(u, v) - np.log(80 * coupling))) / 80
    assert np.isclose(bound, direct, atol=1e-9)


def test_kept_potentials_lead_to_the_same_coupling(rng):
    u, v = (part.astype(np.float32) for part in pair(rng, correlations=(0.7, 0.6, 0.5)))
    cross = cross_covariance(u, v, np.arange(80))
    warm = Matcher(u, v)
    for _ in range(40):
        warm.step(cross)
    cold = Matcher(u, v).coupling(cross, iterations=300)
    np.testing.assert_allclose(warm.coupling(cross, iterations=1), cold, atol=1e-4)


def test_a_small_cross_speaks_of_leading_factors_and_covers_all(rng):
    u, v = pair(rng)
    after, _ = Matcher(u, v).step(cross_covariance(u, v, np.arange(80))[:2, :3])
    assert after.shape == (6, 5)


def test_potentials_far_off_are_given_up(rng):
    u, v = (part.astype(np.float32) for part in pair(rng))
    matcher = Matcher(u, v)
    cross = cross_covariance(u, v, np.arange(80))
    for sign in (1, -1, 1, -1):
        after, bound = matcher.step(sign * cross)
        assert np.isfinite(bound)
        assert np.isfinite(after).all()


def test_growing_from_a_poor_coupling_finds_the_rows(rng):
    u, v = (part.astype(np.float32) for part in pair(rng, n_rows=150, correlations=(0.99, 0.98, 0.97, 0.96, 0.95)))
    order = rng.permutation(150)
    truth = np.argsort(order)
    start = truth.copy()
    wrong = rng.permutation(150)[:100]
    start[wrong] = start[np.roll(wrong, 1)]
    found = grown(u, v[order], cross_covariance(u, v[order], start), origin="two thirds wrong")
    assert np.mean(found.permutation == truth) > 0.9
    assert found.origin == "two thirds wrong"
    np.testing.assert_allclose(found.hard, cross_covariance(u, v[order], found.permutation), atol=1e-6)


def test_hardening_the_truth_keeps_it_and_scores_it(rng):
    u, v = pair(rng, correlations=(0.99, 0.99, 0.99, 0.99))
    found = hardened(u, v, cross_covariance(u, v, np.arange(80)))
    assert np.mean(found.permutation == np.arange(80)) > 0.95
    assert found.score > np.log(80)
    assert found.confidence.mean() > 0


def test_cross_fit_never_sees_the_held_rows(rng):
    u, v = pair(rng)
    before = cross_fit(u, v, np.arange(80))
    for fold in (0, 7):
        held = before.folds == fold
        changed = v.copy()
        changed[held] = rng.normal(size=changed[held].shape)
        after = cross_fit(u, changed, np.arange(80))
        # Scales come from all held-out projections; directions must be the same.
        directions = [m.table_maps[fold] / np.linalg.norm(m.table_maps[fold], axis=0) for m in (before, after)]
        np.testing.assert_allclose(*directions, atol=1e-9)
        assert not np.allclose(before.table_maps[fold - 1], after.table_maps[fold - 1], rtol=0.01)


def test_cross_fitted_ratios_of_matches_stand_in_the_full_table(rng):
    u, v = pair(rng)
    permutation = rng.permutation(80)
    fit = cross_fit(u, v[np.argsort(permutation)], permutation)
    ratios = fit.log_ratios()
    np.testing.assert_allclose(fit.match_ratios(permutation), ratios[np.arange(80), permutation], atol=1e-9)


def test_cross_fitting_sees_through_overfitting(rng):
    """A matching chosen to fit 12 by 12 factors of unrelated tables looks good to itself, less so to rows held out."""
    u, v = whitened(rng.normal(size=(60, 12))), whitened(rng.normal(size=(60, 12)))
    found = hardened(u, v, cross_covariance(u, v, np.arange(60)))
    fitted = fit_model(found.hard).information
    assert found.score < fitted / 2
    honest_u, honest_v = pair(rng, n_rows=60, correlations=(0.95,) * 5, p=12, q=12)
    assert cross_fit(honest_u, honest_v, np.arange(60)).information > found.score


def test_unpaired_rows_are_left_out_of_the_cross_fit(rng):
    u, v = pair(rng)
    permutation = np.arange(80)
    permutation[::4] = -1
    fit = cross_fit(u, v, permutation)
    assert not fit.match_ratios(permutation)[::4].any()
    assert fit.match_ratios(permutation)[1::4].mean() > 1


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5])
def test_tiny_tables(n_rows, rng):
    u = rng.normal(size=(n_rows, 1)).astype(np.float32)
    found = grown(u, u, cross_covariance(u, u, np.arange(n_rows)))
    assert sorted(found.permutation) == list(range(n_rows))
    assert np.isfinite(found.score)


def test_the_model_without_pairs_says_nothing():
    nothing = CanonicalModel(np.zeros((2, 0)), np.zeros((3, 0)), np.zeros(0))
    assert nothing.information == 0
    assert not nothing.log_ratios(np.ones((4, 2)), np.ones((5, 3))).any()


def test_a_warmer_matcher_is_the_coupling_of_cooler_ratios():
    """Temperature T and log-ratios L give the coupling of L / T."""
    rng = np.random.default_rng(8)
    reference, table = (rng.normal(size=(12, 3)) for _ in range(2))
    cross = 0.6 * np.eye(3)
    found = Matcher(reference, table, temperature=2.5).coupling(cross, iterations=500)
    ratios = fit_model(cross).log_ratios(reference, table)
    expected = sinkhorn(-ratios, epsilon=2.5, tolerance=1e-12, max_iter=10_000).coupling
    np.testing.assert_allclose(found, expected, atol=1e-8)
