"""Models that never saw a row judge it; simulations know the answer."""

import numpy as np
import pytest

from keyless.calibration import calibrate_joint
from keyless.datasets import make_shuffled_tables
from keyless.joint import held_out, link_tables
from keyless.joint.clusters import Cluster, Collection, realign, rest_and_own
from keyless.joint.held_out import held_out_log_ratios, held_out_score
from keyless.joint.simulation import Simulation
from keyless.model.factor_model import FactorModel, Information, information, posterior
from keyless.model.scales import scale_table


def scored(tables):
    scores = []
    for table in tables.values():
        mask = ~np.isnan(table)
        scores.append((scale_table(np.nan_to_num(table), mask, kind="auto")[0], mask))
    return scores


def random_model(rng, columns, rank):
    roots = rng.normal(size=(columns, rank + 1, rank + 1))
    return FactorModel(
        loadings=rng.normal(size=(columns, rank)),
        offsets=rng.normal(size=columns),
        noise=rng.uniform(0.1, 0.5, columns),
        spread=0.01 * roots @ np.swapaxes(roots, 1, 2),
        shrinkage=np.ones(rank + 1),
    )


def test_a_moved_model_says_the_same_in_other_words():
    rng = np.random.default_rng(0)
    model = random_model(rng, 6, 3)
    transform, shift, latent = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3)
    moved = model.moved(transform, shift)
    before = model.loadings @ (transform @ latent + shift) + model.offsets
    np.testing.assert_allclose(moved.loadings @ latent + moved.offsets, before)
    # The spread of what a column shows is the same, too.
    old, new = np.append(transform @ latent + shift, 1.0), np.append(latent, 1.0)
    np.testing.assert_allclose(new @ moved.spread @ new, old @ model.spread @ old)


def test_blurred_information_is_that_of_noisier_latents():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(5, 3, 3))
    info = Information(root @ np.swapaxes(root, 1, 2) + 0.1 * np.eye(3), rng.normal(size=(5, 3)))
    blurred = info.blurred(0.3)
    for i in range(5):
        covariance = np.linalg.inv(info.precision[i]) + 0.3 * np.eye(3)
        np.testing.assert_allclose(blurred.precision[i], np.linalg.inv(covariance), atol=1e-10)
        mean = np.linalg.solve(info.precision[i], info.shift[i])
        np.testing.assert_allclose(np.linalg.solve(blurred.precision[i], blurred.shift[i]), mean, atol=1e-8)
    assert info.blurred(0.0) is info


def test_realigning_finds_an_affine_frame():
    """A table's latents are moved; from true pairs alone the frame is found, and rows agree again."""
    rng = np.random.default_rng(2)
    latents = rng.normal(size=(60, 2))
    loadings = [rng.normal(size=(8, 2)), rng.normal(size=(7, 2))]
    tables = [latents @ part.T + 0.02 * rng.normal(size=(60, len(part))) for part in loadings]
    collection = Collection(tuple((table, np.ones(table.shape, dtype=bool)) for table in tables))
    exact = FactorModel(np.concatenate(loadings), np.zeros(15), np.full(15, 4e-4), np.zeros((15, 3, 3)), np.ones(3))
    moved = exact.columns(slice(8, 15)).moved(np.array([[1.1, 0.1], [-0.1, 0.9]]), np.array([0.2, -0.1]))
    rows = (np.arange(60), np.arange(60))
    start = Cluster((0, 1), rows, exact.columns(slice(0, 8)).joined(moved))

    def disagreement(cluster):
        rest, own = rest_and_own(collection, cluster, 1)
        return float(np.abs(posterior(rest)[0] - posterior(own)[0]).max())

    assert disagreement(start) > 0.3
    assert disagreement(realign(collection, start, 1)) < 0.06


def test_too_few_pairs_say_nothing_about_the_frame():
    rng = np.random.default_rng(3)
    collection = Collection(tuple((rng.normal(size=(9, 4)), np.ones((9, 4), dtype=bool)) for _ in range(2)))
    rows = (np.array([0, 1, *[-1] * 7, *range(2, 9)]), np.array([0, 1, *range(2, 9), *[-1] * 7]))
    cluster = Cluster((0, 1), rows, random_model(rng, 8, 3))
    assert realign(collection, cluster, 1) is cluster


def test_a_right_matching_keeps_its_score_and_a_wrong_one_does_not():
    made = make_shuffled_tables(80, (10, 9), rank=4, noise=0.3, random_state=0)
    scores, truth = scored(made.tables), made.truth["table1"]
    rows = np.arange(80)
    right = held_out_log_ratios(scores, (rows, truth), rank=6)[0]
    wrong_order = np.random.default_rng(0).permutation(80)
    wrong = held_out_log_ratios(scores, (rows, wrong_order), rank=6)[0]
    assert held_out_score(right, rows, truth) > np.log(80)
    assert held_out_score(wrong, rows, wrong_order) < 0.5
    assert (right.argmax(axis=1) == truth).mean() > 0.9


def test_the_model_of_a_fold_has_not_seen_its_rows(monkeypatch):
    """What an entity's own values are changes nothing in the model it is judged by."""
    monkeypatch.setattr(held_out, "_folds", lambda values, *_: np.arange(len(values)) % 5)
    made = make_shuffled_tables(40, (8, 7), rank=2, noise=0.2, random_state=1)
    scores, truth = scored(made.tables), made.truth["table1"]
    rows = np.arange(40)
    before = held_out_log_ratios(scores, (rows, truth), rank=3)[0]
    (reference, mask), other = scores
    changed = reference.copy()
    changed[5] = 3.0
    after = held_out_log_ratios([(changed, mask), other], (rows, truth), rank=3)[0]
    same_fold = [i for i in range(40) if i % 5 == 0 and i != 5]
    np.testing.assert_array_equal(after[same_fold], before[same_fold])
    assert not np.allclose(after[5], before[5])
    assert not np.allclose(after[6], before[6])


def test_one_strange_row_does_not_decide():
    ratios = np.full((10, 10), -1.0)
    np.fill_diagonal(ratios, 5.0)
    ratios[3, 3] = -1e6
    rows = np.arange(10)
    assert held_out_score(ratios, rows, rows) == pytest.approx((9 * 5.0 - np.log(10)) / 10)


def test_a_single_row_proves_nothing():
    scores = [(np.ones((1, 3)), np.ones((1, 3), dtype=bool))] * 2
    (ratios,) = held_out_log_ratios(scores, (np.array([0]), np.array([0])), rank=1)
    assert ratios.tolist() == [[0.0]]


@pytest.mark.parametrize("overlap", [1.0, 0.8])
def test_simulations_of_an_easy_link_are_linked(overlap):
    made = make_shuffled_tables((50, 45), (14, 12), rank=3, noise=0.1, overlap=overlap, random_state=2)
    scores = scored(made.tables)
    link = link_tables(scores)
    simulated = Simulation(scores, link).run(seed=0)
    ((stated, right),) = simulated.matches
    assert stated.shape == right.shape == (50,)
    assert right.mean() > 0.95
    assert ((stated >= 0) & (stated <= 1)).all()
    assert simulated.score == pytest.approx(link.score, abs=1.5)


def test_a_simulation_keeps_what_is_missing():
    """Information about simulated rows is what the same gaps leave."""
    made = make_shuffled_tables(40, (12, 10), rank=2, noise=0.2, observed=0.6, random_state=3)
    scores = scored(made.tables)
    link = link_tables(scores)
    ((_, right),) = Simulation(scores, link).run(seed=1).matches
    assert right.mean() > 0.8
    assert information(link.model.columns(slice(0, 12)), *scores[0]).precision.shape == (40, 2, 2)


def test_calibration_of_easy_matches_leaves_them_sure():
    made = make_shuffled_tables(60, (14, 12), rank=3, noise=0.1, random_state=4)
    scores = scored(made.tables)
    (calibration,) = calibrate_joint(scores, link_tables(scores), seed=0)
    assert calibration(np.array([1.0]))[0] > 0.98
