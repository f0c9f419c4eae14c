"""Predictions of either table's factors: held to definitions written out, and to what they are for."""

import numpy as np
import pytest
from scipy import optimize, stats

from keyless.engine import refine
from keyless.engine.refine import Refinement, SmoothRefinement, averaged, identification, smoothed
from keyless.maps import regression
from keyless.maps.regression import KERNELS, Kernel, Regression
from keyless.model.factors import Factors, principal_factors, whitened
from keyless.pairs.limits import Limits


def some_factors(rng, rows=40, rank=6):
    strengths = np.linspace(2.0, 0.5, rank)
    return Factors(whitened(rng.normal(size=(rows, rank))), strengths)


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_of_features_are_the_kernel(rng, kernel):
    factors = some_factors(rng)
    features = regression._features(factors, kernel)
    straight, smooth = (factors.scores * factors.strengths**power for power in (0.5, kernel.power))
    distances = np.array([[np.sum((one - two) ** 2) for two in smooth] for one in smooth])
    width = 2 * kernel.width * np.median(distances[distances > 0])
    likeness = kernel.straight * straight @ straight.T / np.mean(np.sum(straight**2, axis=1))
    likeness += (1 - kernel.straight) * np.exp(-distances / width)
    # Features of next to no variance are left out.
    np.testing.assert_allclose(features @ features.T, likeness, atol=3e-3)


def test_a_row_is_predicted_as_if_its_pairs_were_not_there(rng, monkeypatch):
    monkeypatch.setattr(regression, "_RIDGES", (0.3,))
    features, targets = rng.normal(size=(25, 4)), rng.normal(size=(30, 3))
    coupling = rng.random((25, 30)) * (rng.random((25, 30)) < 0.2)
    coupling[7] = 0.0
    found = regression._predicted(features, targets, coupling)
    weight = coupling.sum(axis=1)
    wanted = np.divide(coupling @ targets, weight[:, None], out=np.zeros((25, 3)), where=weight[:, None] > 0)
    centre = weight @ wanted / weight.sum()
    for row in range(25):
        others = np.delete(np.arange(25), row)
        scaled = features[others] * weight[others, None]
        slopes = np.linalg.solve(scaled.T @ features[others] + 0.3 * np.eye(4), scaled.T @ (wanted[others] - centre))
        np.testing.assert_allclose(found.means[row], features[row] @ slopes + centre, atol=1e-9)


@pytest.mark.parametrize("tail", [3.0, 20.0])
def test_densities_are_those_of_the_multivariate_t(rng, tail):
    points = rng.normal(size=(5, 4))
    # Covariance I: the scale of the distribution is smaller than that.
    expected = stats.multivariate_t(np.zeros(4), np.eye(4) * (tail - 2) / tail, df=tail).logpdf(points)
    np.testing.assert_allclose(regression._log_density(np.sum(points**2, axis=1), 4, tail), expected, rtol=1e-9)


def test_weights_let_partners_stand_out_most(rng):
    rows = np.arange(60)
    sides = [rng.normal(size=(60, 60)).astype(np.float32) + gain * np.eye(60, dtype=np.float32) for gain in (3.0, 1.5)]

    def lost(weights):
        ratios = weights[0] * sides[0] + weights[1] * sides[1]
        return -identification(ratios, np.eye(60))

    best = optimize.minimize(lost, (0.5, 0.5), method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8})
    np.testing.assert_allclose(regression._weights(sides, (rows, rows)), best.x, atol=0.02)


def test_relabelled_rows_have_relabelled_ratios(rng):
    left, right = some_factors(rng), some_factors(rng)
    order = rng.permutation(40)
    coupling = 0.9 * np.eye(40) + 0.0025
    plain = Regression([(left, right)]).ratios(coupling, 4)
    turned = Regression([(left, right.rows(order))]).ratios(coupling[:, order], 4)
    np.testing.assert_allclose(turned, plain[:, order], rtol=1e-3, atol=1e-2)


def curved(rng, rows=300):
    """Tables of the same rows: what the second shows is a curved function of what the first does."""
    latent = rng.normal(size=(rows, 4))
    bent = np.column_stack([latent**2, latent[:, [0]] * latent[:, 1:3], latent[:, :1]])
    tables = latent @ rng.normal(size=(4, 8)), bent @ rng.normal(size=(7, 9))
    return tuple(principal_factors(table + 0.05 * rng.normal(size=table.shape)) for table in tables)


def test_curved_relations_are_seen_that_no_map_has(rng):
    left, right = curved(rng)
    pairs = np.eye(300, dtype=np.float32)
    by_map = Refinement(left.compact, right.compact, limits=Limits((300, 300))).judged(pairs)[1]
    predicted = Regression([(left, right)]).ratios(pairs, 8)
    assert identification(by_map, pairs) < 0.5 * np.log(300) < 0.8 * np.log(300) < identification(predicted, pairs)
    assert np.mean(predicted.argmax(axis=1) == np.arange(300)) > 0.8


def test_straight_relations_stay_as_the_map_has_them_where_that_is_stronger(rng):
    latent = rng.normal(size=(200, 3))
    tables = [latent @ rng.normal(size=(3, 6)) + 0.3 * rng.normal(size=(200, 6)) for _ in range(2)]
    left, right = (principal_factors(table) for table in tables)
    sides, limits = (left.compact, right.compact), Limits((200, 200))
    by_map = Refinement(*sides, limits=limits).run(np.eye(200, dtype=np.float32), rounds=8)
    assert smoothed(by_map, [(left, right)], limits=limits, by_map=sides).strength >= by_map.strength


@pytest.mark.parametrize("refined", [smoothed, averaged])
def test_pairs_that_must_not_be_stay_impossible(rng, refined):
    left, right = curved(rng, rows=120)
    labels = np.arange(120) % 2
    limits = Limits((120, 120), (labels, labels))
    sides = left.compact, right.compact
    by_map = Refinement(*sides, limits=limits).run(np.eye(120, dtype=np.float32), rounds=1, common=119.0)
    found = refined(by_map, [(left, right)], limits=limits, by_map=sides)
    assert np.all(np.isneginf(found.ratios[labels[:, None] != labels]))
    assert found.coupling[labels[:, None] != labels].max() == 0


def test_averaged_ratios_are_the_weighted_mean_of_all_rounds(rng, monkeypatch):
    left, right = curved(rng, rows=120)
    rounds, judge = [], SmoothRefinement.predicted_ratios

    def recorded(self, coupling, targets):
        rounds.append((targets, judge(self, coupling, targets)))
        return rounds[-1][1]

    monkeypatch.setattr(SmoothRefinement, "predicted_ratios", recorded)
    sides, limits = (left.compact, right.compact), Limits((120, 120))
    by_map = Refinement(*sides, limits=limits).run(np.eye(120, dtype=np.float32), rounds=1, common=119.0)
    found = averaged(by_map, [(left, right)], limits=limits, by_map=sides)
    newest = refine._NEWEST
    weights = [newest * (1 - newest) ** age for age in range(len(rounds))][::-1]
    weights[0] = (1 - newest) ** (len(rounds) - 1)
    assert sum(weights) == pytest.approx(1.0)
    mean = sum(weight * ratios.astype(float) for weight, (_, ratios) in zip(weights, rounds, strict=True))
    np.testing.assert_allclose(found.ratios, mean, rtol=1e-3, atol=1e-3)
    # Every number of factors has its turn as often as the others.
    assert len({sum(each == targets for each, _ in rounds) for targets in refine._AVERAGED_TARGETS}) == 1
    assert found.predicted
    assert not by_map.predicted


def test_a_table_in_which_nothing_varies_predicts_nothing():
    empty = Factors(np.zeros((30, 1)), np.ones(1))
    ratios = Regression([(empty, empty)], kernels=(Kernel(0.5, 0.5, 0.5),)).ratios(np.eye(30), 1)
    assert np.isfinite(ratios).all()
    np.testing.assert_allclose(ratios, ratios[0, 0], atol=1e-4)
