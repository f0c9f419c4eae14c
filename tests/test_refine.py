"""Refining a matching: how well partners stand out by its definition, and known matchings found again."""

import numpy as np
import pytest
from scipy import sparse

from keyless.engine.refine import Matching, Refinement, identification
from keyless.maps.canonical import CanonicalModel, CrossFit, cross_fit
from keyless.model.factors import whitened
from keyless.pairs.limits import Limits


def looped(ratios, coupling, axes=(1, 0)):
    """The weighted mean over pairs of the log-probability of a partner among all that are possible, above a guess."""
    gained, weight = 0.0, 0.0
    for i, j in zip(*np.nonzero(coupling), strict=True):
        for axis in axes:
            rivals = ratios[i] if axis == 1 else ratios[:, j]
            rivals = rivals[np.isfinite(rivals)]
            share = np.exp(ratios[i, j]) / np.exp(rivals).sum()
            gained += coupling[i, j] * (np.log(share) + np.log(len(rivals)))
        weight += coupling[i, j]
    return gained / (len(axes) * weight)


@pytest.mark.parametrize("axes", [(1, 0), (1,), (0,)])
@pytest.mark.parametrize("forbidden", [0.0, 0.4])
def test_identification_is_what_a_double_loop_says(rng, axes, forbidden):
    ratios = 3 * rng.normal(size=(7, 9))
    ratios[rng.random((7, 9)) < forbidden] = -np.inf
    coupling = rng.uniform(size=(7, 9)) * np.isfinite(ratios)
    np.testing.assert_allclose(identification(ratios, coupling, axes=axes), looped(ratios, coupling, axes))


def test_constant_ratios_identify_nobody(rng):
    coupling = rng.uniform(size=(6, 8))
    np.testing.assert_allclose(identification(np.full((6, 8), 2.5), coupling), 0.0, atol=1e-12)
    assert identification(np.full((6, 8), 2.5), np.zeros((6, 8))) == 0.0


@pytest.mark.parametrize(("shape", "axes"), [((9, 9), (1, 0)), ((6, 11), (1,)), ((6, 11), (0,)), ((6, 11), (1, 0))])
def test_partners_that_stand_out_fully_have_the_logarithm_of_the_number_of_rows(rng, shape, axes):
    ratios = np.full(shape, -200.0)
    rows = np.arange(min(shape))
    columns = rng.permutation(shape[1])[: len(rows)]
    ratios[rows, columns] = 200.0
    coupling = np.zeros(shape)
    coupling[rows, columns] = rng.uniform(0.2, 1.0, len(rows))
    expected = np.mean([np.log(shape[axis]) for axis in axes])
    np.testing.assert_allclose(identification(ratios, coupling, axes=axes), expected)


def test_what_depends_on_one_row_alone_cancels(rng):
    ratios, coupling = 2 * rng.normal(size=(8, 6)), rng.uniform(size=(8, 6))
    rows, columns = 5 * rng.normal(size=(8, 1)), 5 * rng.normal(size=6)
    by_rows, by_columns = (identification(ratios, coupling, axes=(axis,)) for axis in (1, 0))
    np.testing.assert_allclose(identification(ratios + rows, coupling, axes=(1,)), by_rows)
    np.testing.assert_allclose(identification(ratios + columns, coupling, axes=(0,)), by_columns)
    assert abs(identification(ratios + columns, coupling, axes=(1,)) - by_rows) > 0.1
    np.testing.assert_allclose(identification(ratios, coupling), (by_rows + by_columns) / 2)
    np.testing.assert_allclose(identification(ratios, 7 * coupling), identification(ratios, coupling))


def test_rows_without_any_possible_pair_do_not_count(rng):
    ratios, coupling = rng.normal(size=(6, 6)), rng.uniform(size=(6, 6))
    ratios[2], ratios[:, 4], coupling[2], coupling[:, 4] = -np.inf, -np.inf, 0.0, 0.0
    rest = np.delete(np.delete(ratios, 2, axis=0), 4, axis=1)
    weight = np.delete(np.delete(coupling, 2, axis=0), 4, axis=1)
    np.testing.assert_allclose(identification(ratios, coupling), identification(rest, weight))


def matching_of(ratios, coupling, *, common=None):
    model = CanonicalModel(np.zeros(1), np.zeros(1), np.eye(1), np.eye(1), np.array([0.6]))
    common = float(coupling.sum()) if common is None else common
    standing = identification(ratios, coupling)
    return Matching(CrossFit.of_one(model, 1), np.zeros(len(ratios), dtype=int), coupling, common, ratios, standing, 1)


def test_strength_is_identification_times_the_root_of_the_number_of_pairs(rng):
    ratios, coupling = rng.normal(size=(5, 5)), rng.uniform(size=(5, 5))
    found = matching_of(ratios, coupling, common=3.7)
    np.testing.assert_allclose(found.strength, looped(ratios, coupling) * np.sqrt(3.7))
    np.testing.assert_allclose(found.information, -0.5 * np.log(1 - 0.36))


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_the_surest_rows_are_those_that_stand_out_most(rng, share):
    """A row counts by the mean of log-probabilities among all rows, both ways, and the logarithm of its weight."""
    rows, columns = 12, 10
    ratios = (3 * rng.normal(size=(rows, columns))).astype(np.float32)
    ratios[rng.random(ratios.shape) < 0.2] = -np.inf
    coupling = (rng.uniform(size=ratios.shape) * np.isfinite(ratios)).astype(np.float32)
    coupling /= coupling.sum(axis=1, keepdims=True) * rng.uniform(1, 5, (rows, 1)).astype(np.float32)
    scores = []
    for i in range(rows):
        gained = 0.0
        for j in np.flatnonzero(coupling[i]):
            own = np.exp(np.float64(ratios[i, j]))
            both = own / np.exp(ratios[i].astype(float)).sum(), own / np.exp(ratios[:, j].astype(float)).sum()
            gained += coupling[i, j] * np.log(both).sum()
        scores.append(gained / coupling[i].sum() + np.log(coupling[i].sum()))
    found = matching_of(ratios, coupling, common=8.0).surest(share)
    kept = np.argsort(scores)[::-1][: int(share * 8.0)]
    expected = np.zeros_like(coupling)
    expected[kept] = coupling[kept]
    np.testing.assert_array_equal(found, expected)


def test_clear_rows_are_surer_than_doubtful_ones_and_at_least_two_are_kept():
    ratios = np.full((6, 6), -10.0)
    np.fill_diagonal(ratios, 10.0)
    ratios[4:, 4:] = 10.0
    coupling = np.eye(6)
    coupling[4:, 4:] = 0.5
    found = matching_of(ratios, coupling).surest(0.67)
    np.testing.assert_array_equal(found, np.diag([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]))
    assert np.count_nonzero(matching_of(ratios, coupling).surest(0.01).sum(axis=1)) == 2


def two_tables(rng, sizes, common, *, rank=6, noise=0.1):
    """Whitened factors of two tables that share entities, the right row of each left row (−1: none), the coupling."""
    own = np.arange(common, sizes[0]), np.arange(sizes[0], sizes[0] + sizes[1] - common)
    entities = [rng.permutation(np.concatenate([np.arange(common), rest])) for rest in own]
    latent = rng.normal(size=(sum(sizes), rank))
    sides = [
        whitened(
            latent[each] @ np.linalg.qr(rng.normal(size=(rank, rank)))[0] + noise * rng.normal(size=(len(each), rank))
        )
        for each in entities
    ]
    place = {int(entity): j for j, entity in enumerate(entities[1])}
    truth = np.array([place.get(int(entity), -1) for entity in entities[0]])
    coupling = np.zeros(sizes, dtype=np.float32)
    rows = np.flatnonzero(truth >= 0)
    coupling[rows, truth[rows]] = 1.0
    return *(side.astype(np.float32) for side in sides), truth, coupling


def spoilt(rng, coupling, *, share=0.3):
    """The same coupling, with random partners for a share of the rows and for all that have none."""
    found = coupling.copy()
    moved = (rng.random(len(found)) < share) | (found.sum(axis=1) == 0)
    found[moved] = np.eye(found.shape[1], dtype=found.dtype)[rng.integers(0, found.shape[1], int(moved.sum()))]
    return found


def check_matching(found, truth, common):
    matched = np.flatnonzero(truth >= 0)
    assert np.mean(found.coupling.argmax(axis=1)[matched] == truth[matched]) > 0.95
    assert found.coupling[matched, truth[matched]].mean() > 0.8
    np.testing.assert_allclose(found.common, common, rtol=0.1)
    assert max(found.coupling.sum(axis=0).max(), found.coupling.sum(axis=1).max()) < 1 + 1e-4


@pytest.mark.parametrize(("sizes", "common"), [((150, 150), 150), ((160, 130), 100), ((110, 170), 90)])
def test_a_known_matching_is_found_again_and_rows_without_partner_are_left_alone(rng, sizes, common):
    strangers = []
    # Of twenty rows without partner one or two happen to be near some row, in one draw more than in another.
    for _ in range(5):
        left, right, truth, coupling = two_tables(rng, sizes, common)
        found = Refinement(left, right, limits=Limits(sizes)).run(spoilt(rng, coupling), rounds=25)
        check_matching(found, truth, common)
        strangers += found.coupling[truth < 0].sum(axis=1).tolist()
        np.testing.assert_allclose(found.identification, identification(found.ratios, found.coupling))
        assert 1 <= found.rounds <= 25
        assert found.information > np.log(min(sizes))
    assert common == min(sizes) or np.mean(strangers) < 0.25


def test_a_listed_start_is_as_good_as_a_dense_one(rng):
    left, right, truth, coupling = two_tables(rng, (120, 100), 80)
    start = spoilt(rng, coupling)
    refinement = Refinement(left, right, limits=Limits((120, 100)))
    one, two = refinement.fitted(start), refinement.fitted(sparse.csr_array(start))
    np.testing.assert_allclose(two.whole.correlations, one.whole.correlations, rtol=1e-4)
    assert two.whole.tail == one.whole.tail
    check_matching(refinement.run(start, rounds=25), truth, 80)


def test_pairs_that_must_not_be_are_not_matched(rng):
    left, right, truth, coupling = two_tables(rng, (120, 120), 100)
    matched = np.flatnonzero(truth >= 0)
    forbidden = np.stack([matched[:10], truth[matched[:10]]], axis=1)
    known = np.stack([matched[10:13], truth[matched[10:13]]], axis=1)
    limits = Limits((120, 120), known=known, forbidden=forbidden)
    found = Refinement(left, right, limits=limits).run(coupling, rounds=25)
    np.testing.assert_array_equal(np.isneginf(found.ratios), ~limits.mask())
    np.testing.assert_array_equal(found.coupling[~limits.mask()], 0.0)
    rest = matched[10:]
    assert np.mean(found.coupling.argmax(axis=1)[rest] == truth[rest]) > 0.95


def test_rows_are_judged_by_the_map_that_has_not_seen_their_pairs(rng):
    left, right, _, coupling = two_tables(rng, (80, 80), 80, noise=0.3)
    refinement = Refinement(left, right, limits=Limits((80, 80)), folds=4)
    fold = refinement.folds.of_rows
    assert np.bincount(fold).tolist() == [20, 20, 20, 20]
    fit = refinement.fitted(coupling)
    same = cross_fit(left, right, coupling, refinement.folds).with_tail(fit.whole.tail)
    found = refinement.ratios(fit)
    assert found.shape == (80, 80)
    for i in range(80):
        model = same.models[fold[i]]
        expected = model.pair_log_ratios(np.repeat(left[i : i + 1], 80, axis=0).astype(float), right.astype(float))
        np.testing.assert_allclose(found[i], expected, rtol=1e-3, atol=2e-2)


def test_few_pairs_use_few_factors(rng):
    left, right, _, coupling = two_tables(rng, (80, 80), 80, rank=8)
    refinement = Refinement(left, right, limits=Limits((80, 80)))
    few = coupling.copy()
    few[24:] = 0.0
    assert refinement.fitted(coupling).whole.left_directions.shape[0] == 8
    assert refinement.fitted(few).whole.left_directions.shape[0] == 3
    assert np.isinf(refinement.fitted(coupling, heavy_tails=False).whole.tail)


def test_a_map_with_other_folds_is_used_whole(rng):
    left, right, _, coupling = two_tables(rng, (60, 60), 60)
    four, eight = (Refinement(left, right, limits=Limits((60, 60)), folds=count) for count in (4, 8))
    fit = four.fitted(coupling)
    assert four.in_folds(fit) is fit
    ratios = eight.ratios(eight.in_folds(fit))
    np.testing.assert_allclose(ratios, fit.whole.log_ratios(left, right), rtol=1e-3, atol=1e-2)


def test_heavy_tails_are_noticed(rng):
    latent = rng.normal(size=(400, 4)) / np.sqrt(rng.chisquare(4.0, size=(400, 1)) / 4.0)
    left, right = (latent + 0.3 * latent.std() * rng.normal(size=(400, 4)) for _ in range(2))
    normal = rng.normal(size=(400, 4))
    tails = []
    for one, two in ((left, right), (normal, normal + 0.3 * rng.normal(size=(400, 4)))):
        refinement = Refinement(whitened(one), whitened(two), limits=Limits((400, 400)))
        tails.append(refinement.fitted(np.eye(400)).whole.tail)
    assert tails[0] <= 20
    assert tails[1] >= 50


def test_a_run_needs_a_round(rng):
    left, right, _, coupling = two_tables(rng, (40, 40), 40)
    refinement = Refinement(left, right, limits=Limits((40, 40)))
    assert refinement.run(coupling, rounds=1).rounds == 1
    with pytest.raises(RuntimeError, match="no round"):
        refinement.run(coupling, rounds=0)


@pytest.mark.parametrize(("told", "against"), [([0, 1, 2], False), ([5, 6, 7], True), ([0, 1, 7], False)])
def test_known_pairs_speak_for_or_against_a_coupling(rng, told, against):
    shared = rng.normal(size=(80, 3))
    left, right = (whitened(shared + 0.1 * rng.normal(size=shared.shape)).astype(np.float32) for _ in range(2))
    # Row i is the partner of row i; rows 5 to 7 are said to have partners that they do not have.
    claimed = np.array([[row, row if row < 5 else row + 30] for row in told])
    refinement = Refinement(left, right, limits=Limits((80, 80), known=claimed))
    assert refinement.contradicted(np.eye(80)) is against
    assert Refinement(left, right, limits=Limits((80, 80))).contradicted(np.eye(80)) is False
