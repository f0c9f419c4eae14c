"""The factor model: what rows say about latents, EM that climbs, ranks found from the data."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from keyless.model.factor_model import (
    FactorModel,
    Information,
    drop_unsupported,
    em_step,
    fit,
    fit_at_rank,
    fit_table,
    information,
    initial_model,
    padded,
    posterior,
)
from keyless.model.moments import Moments, fit_moments


def plain_model(rng, columns, rank):
    """A model whose loadings are known exactly."""
    return FactorModel(
        loadings=rng.normal(size=(columns, rank)),
        offsets=rng.normal(size=columns),
        noise=rng.uniform(0.2, 1.0, columns),
        spread=np.zeros((columns, rank + 1, rank + 1)),
        shrinkage=np.ones(rank + 1),
    )


def low_rank_table(rng, rows, columns, rank, *, noise=0.1, observed=1.0):
    values = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    values += noise * rng.normal(size=values.shape)
    mask = rng.random(values.shape) < observed
    values = np.where(mask, values - values.mean(axis=0), 0.0)
    return values / np.sqrt((values**2).sum(axis=0) / np.maximum(mask.sum(axis=0), 1)), mask


def test_posterior_is_that_of_the_joint_normal(rng):
    model = plain_model(rng, 6, 2)
    mask = rng.random((5, 6)) < 0.6
    values = np.where(mask, rng.normal(size=(5, 6)), 0.0)
    means, covariance, log_z = posterior(information(model, values, mask))
    for i, seen in enumerate(mask):
        loadings, noise = model.loadings[seen], np.diag(model.noise[seen])
        joint = loadings @ loadings.T + noise
        gain = loadings.T @ np.linalg.inv(joint)
        deviation = values[i, seen] - model.offsets[seen]
        np.testing.assert_allclose(means[i], gain @ deviation)
        np.testing.assert_allclose(covariance[i], np.eye(2) - gain @ loadings)
        # log Z is the log-density of the row against one whose latents are held at 0.
        expected = multivariate_normal(model.offsets[seen], joint).logpdf(values[i, seen])
        expected -= multivariate_normal(model.offsets[seen], noise).logpdf(values[i, seen])
        np.testing.assert_allclose(log_z[i], expected)


def test_information_adds_up_over_columns(rng):
    model = plain_model(rng, 7, 3)
    values, mask = rng.normal(size=(4, 7)), np.ones((4, 7), dtype=bool)
    whole = information(model, values, mask)
    parts = [information(model.columns(part), values[:, part], mask[:, part]) for part in (slice(0, 2), slice(2, 7))]
    total = parts[0] + parts[1]
    np.testing.assert_allclose(total.precision, whole.precision)
    np.testing.assert_allclose(total.shift, whole.shift)


def test_missing_entries_say_nothing(rng):
    model = plain_model(rng, 5, 2)
    values = rng.normal(size=(3, 5))
    mask = np.ones((3, 5), dtype=bool)
    mask[:, 3] = False
    seen = information(model, np.where(mask, values, 0.0), mask)
    kept = np.array([0, 1, 2, 4])
    alone = information(model.columns(kept), values[:, kept], mask[:, kept])
    np.testing.assert_allclose(seen.precision, alone.precision)
    np.testing.assert_allclose(seen.shift, alone.shift)


def test_gathered_rows_without_partner_say_nothing(rng):
    info = Information(rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2)))
    found = info.gathered(np.array([2, -1, 0]))
    np.testing.assert_array_equal(found.shift, [info.shift[2], [0, 0], info.shift[0]])
    np.testing.assert_array_equal(found.precision[1], np.zeros((2, 2)))


@pytest.mark.parametrize("observed", [1.0, 0.5])
def test_no_step_of_em_lowers_the_evidence(rng, observed):
    values, mask = low_rank_table(rng, 60, 12, 3, noise=0.7, observed=observed)
    model = initial_model(values, mask, 5)
    bounds = []
    for _ in range(60):
        model, bound = em_step(values, mask, model, noise_prior_rows=0.0)
        bounds.append(bound)
    assert bounds[0] == -np.inf
    steps = np.diff(bounds[1:])
    assert steps.min() > -1e-8 * abs(bounds[-1])
    assert bounds[-1] - bounds[1] > 10


def test_the_evidence_stays_below_the_likelihood(rng):
    """It is a lower bound of log ∫ p(values | loadings) p(loadings); with almost certain loadings, of p(values)."""
    values, mask = low_rank_table(rng, 80, 8, 2, noise=0.5)
    model, bound = fit(values, mask, initial_model(values, mask, 4), max_iter=300, tolerance=1e-9)
    covariance = model.loadings @ model.loadings.T + np.diag(model.noise)
    best = multivariate_normal(model.offsets, covariance).logpdf(values).sum()
    assert best - 150 < bound < best


@pytest.mark.parametrize(
    ("rank", "columns", "observed", "noise"),
    [(2, 12, 1.0, 0.3), (3, 20, 0.7, 0.5), (5, 40, 0.5, 0.1), (8, 30, 1.0, 1.0)],
)
def test_the_rank_is_found(rng, rank, columns, observed, noise):
    values, mask = low_rank_table(rng, 150, columns, rank, noise=noise, observed=observed)
    assert fit_table(values, mask).rank == rank


def test_the_noise_is_found(rng):
    values, mask = low_rank_table(rng, 300, 20, 3, noise=0.0)
    noisy = values + 0.5 * rng.normal(size=values.shape)
    model = fit_table(noisy, mask)
    np.testing.assert_allclose(model.noise, 0.25, rtol=0.35)
    np.testing.assert_allclose(model.noise.mean(), 0.25, rtol=0.1)


def test_held_out_entries_are_predicted(rng):
    values, mask = low_rank_table(rng, 100, 30, 4, noise=0.1)
    seen = mask & (rng.random(mask.shape) < 0.6)
    kept = np.where(seen, values, 0.0)
    for model in (fit_table(kept, seen), fit_at_rank(kept, seen, 4)):
        means, _, _ = posterior(information(model, kept, seen))
        error = (values - means @ model.loadings.T - model.offsets)[~seen]
        assert np.mean(error**2) < 0.05


def test_at_a_given_rank_the_model_is_plain(rng):
    values, mask = low_rank_table(rng, 60, 10, 2)
    model = fit_at_rank(values, mask, 3, held_noise=0.02)
    assert model.rank == 3
    np.testing.assert_array_equal(model.noise, 0.02)
    np.testing.assert_array_equal(model.spread, 0.0)
    assert fit_at_rank(values[:, :2], mask[:, :2], 5).rank == 5


def test_empty_factors_change_nothing(rng):
    values, mask = low_rank_table(rng, 40, 10, 2)
    model = fit_table(values, mask)
    wide = padded(model, model.rank + 2)
    narrow_info, wide_info = (information(m, values, mask) for m in (model, wide))
    np.testing.assert_allclose(posterior(wide_info)[2], posterior(narrow_info)[2])
    assert drop_unsupported(wide).rank == model.rank


def test_a_rotation_turns_the_latents_only(rng):
    values, mask = low_rank_table(rng, 40, 10, 3, observed=0.8)
    model = fit_table(values, mask)
    rotation = np.linalg.qr(rng.normal(size=(model.rank, model.rank)))[0]
    straight, turned = (information(m, values, mask) for m in (model, model.rotated(rotation)))
    np.testing.assert_allclose(turned.shift, straight.rotated(rotation).shift)
    np.testing.assert_allclose(turned.precision, straight.rotated(rotation).precision, atol=1e-9)
    np.testing.assert_allclose(posterior(turned)[2], posterior(straight)[2])


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 1), (5, 2)])
def test_tiny_and_empty_tables_have_a_model(rng, shape):
    for mask in (np.ones(shape, dtype=bool), np.zeros(shape, dtype=bool)):
        values = np.where(mask, rng.normal(size=shape), 0.0)
        for model in (fit_table(values, mask), fit_table(np.zeros(shape), mask), fit_at_rank(values, mask, 2)):
            assert model.rank >= 1
            means, _, log_z = posterior(information(model, values, mask))
            assert np.isfinite(means).all()
            assert np.isfinite(log_z).all()


def test_pure_noise_has_one_factor_at_most(rng):
    values = rng.normal(size=(200, 10))
    assert fit_table(values, np.ones(values.shape, dtype=bool)).rank == 1


def test_mean_products_that_contradict_the_means_have_a_model():
    """Mean products over rows that have both columns may belong to no table that has the means of all rows."""
    rng = np.random.default_rng(0)
    values, mask = rng.normal(size=(600, 6)), np.ones((600, 6), dtype=bool)
    values[:, 1] = values[:, 0] + 0.05 * rng.normal(size=600)
    values[:, 2] = values[:, 0] + 0.05 * rng.normal(size=600)
    # Values at a limit are missing: what is left of a column has a mean of its own.
    mask[:, 1], mask[:, 2] = values[:, 1] > 0.3, values[:, 2] < -0.3
    moments = Moments.of(np.where(mask, values, 0.0), mask)
    apart = moments.second - np.outer(moments.mean, moments.mean)
    assert np.linalg.eigvalsh(apart)[0] > 0
    model = fit_moments(moments, rank=4)
    assert np.isfinite(model.loadings).all()
    assert (model.noise > 0).all()
