from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import keyless
from keyless.calibration import Calibration, calibrate, match_probabilities
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.evidence import Evidence, judge, null_search, overall
from keyless.likelihood.canonical import mirrored_share
from keyless.model.factors import principal_factors, whitened
from keyless.progress import Deadline
from keyless.search import SearchOptions, link_two_tables

SMALL = SearchOptions(spaces=4, beam_width=6, beam_steps=4, carried=4, parents=3, rounds=1, attempts=1)


def tables(n_rows=80, columns=(20, 15), *, rank=4, noise=0.1, seed=0):
    data = make_shuffled_tables(n_rows, columns, rank=rank, noise=noise, random_state=seed)
    return data.tables["reference"], data.tables["table1"], data.truth["table1"]


def evidence(verdict="linked", score=8.0, nulls=(3.0, 3.2)):
    return Evidence(verdict, score, nulls, needed=4.0, sharpness=0.9, agreement=5)


@pytest.fixture(scope="module")
def linked():
    reference, table, truth = tables()
    return link_two_tables(reference, table), truth


@pytest.fixture(scope="module")
def noisy():
    """Links that are right for most rows, not for all; begun near the truth, which is not what is tested here."""
    options = SearchOptions(spaces=1, beams=False, rounds=0)
    found = []
    for seed in range(4):
        reference, table, truth = tables(150, (30, 25), rank=5, noise=1.0, seed=seed)
        near = np.eye(150)[:, np.argsort(truth)]
        found.append((link_two_tables(reference, table, options=options, start_couplings=[("near", near)]), truth))
    return found


def test_a_link_is_called_one(linked):
    link, _ = linked
    verdict = judge(link)
    assert verdict.verdict == "linked"
    assert verdict.score == link.score
    assert len(verdict.null_scores) == 3
    assert max(verdict.null_scores) < 0.6 * verdict.score
    assert verdict.needed == np.log(80)
    assert verdict.sharpness > 0.95
    assert verdict.agreement == link.agreement


@pytest.mark.parametrize("seed", range(3))
def test_unrelated_tables_are_not_called_linked(seed):
    one, _, _ = tables(seed=seed)
    _, two, _ = tables(seed=seed + 50)
    verdict = judge(link_two_tables(one, two, options=SMALL), repeats=2)
    assert verdict.verdict == "unlinkable"


def test_different_people_with_the_same_columns_are_not_called_linked(rng):
    latent, loadings = rng.exponential(size=(160, 4)), rng.normal(size=(4, 30))
    values = latent @ loadings + 0.3 * rng.normal(size=(160, 30))
    verdict = judge(link_two_tables(values[:80, :15], values[80:, 15:], options=SMALL), repeats=2)
    assert verdict.verdict != "linked"


def test_relabelling_changes_no_verdict(linked, rng):
    link, _ = linked
    rows, columns = rng.permutation(80), rng.permutation(80)
    back = np.argsort(columns)
    moved = replace(
        link,
        permutation=back[link.permutation[rows]],
        reference_factors=link.reference_factors.rows(rows),
        table_factors=link.table_factors.rows(columns),
    )
    assert judge(moved, repeats=1) == judge(link, repeats=1)


def test_the_verdict_asks_for_all_of_it(linked):
    link, _ = linked
    assert judge(replace(link, settled=False), repeats=1).verdict == "uncertain"
    assert judge(replace(link, score=3.0), repeats=1).verdict == "unlinkable"
    shuffled = np.roll(link.permutation, 1)
    assert judge(replace(link, permutation=shuffled), repeats=1).verdict == "uncertain"


def test_without_time_for_nulls_nothing_is_certain(linked):
    link, _ = linked
    verdict = judge(link, deadline=Deadline(0))
    assert verdict.null_scores == ()
    assert verdict.verdict == "uncertain"
    assert verdict.excess == verdict.score


def test_null_scores_do_not_see_the_link(linked, rng):
    link, _ = linked
    apart = principal_factors(rng.normal(size=(80, link.rank[1])))
    real = null_search(link.reference_factors, link.table_factors, repeats=2)
    none = null_search(link.reference_factors, apart, repeats=2)
    assert abs(np.mean(real) - np.mean(none)) < 0.5
    assert real == null_search(link.reference_factors, link.table_factors, repeats=2, n_jobs=2)


def test_fewer_choices_need_less():
    reference, table, truth = tables()
    groups = np.arange(80) // 8
    allowed = groups[:, None] == groups[np.argsort(truth)][None, :]
    link = link_two_tables(reference, table, allowed=allowed)
    assert np.isclose(judge(link, repeats=1).needed, np.log(8))


def test_overall_is_as_weak_as_the_weakest():
    strong, weak, none = evidence(), evidence(score=6.0), evidence("unlinkable", score=20.0)
    assert overall([strong, weak]) is weak
    assert overall([strong, none, weak]) is none
    assert overall([strong]) is strong
    with pytest.raises(InputError, match="at least one"):
        overall([])


def test_a_calibration_is_monotone_and_the_plain_one_changes_nothing():
    stated = np.linspace(0.01, 0.99, 30)
    np.testing.assert_allclose(Calibration()(stated), stated)
    assert np.all(np.diff(Calibration(0.7, 1.0)(stated)) > 0)
    assert Calibration(1.0, 2.0)(0.5) > 0.5


def calibration_error(probability, right):
    bins = np.minimum((probability * 10).astype(int), 9)
    inside = [bins == k for k in range(10) if np.any(bins == k)]
    return sum(part.mean() * abs(probability[part].mean() - right[part].mean()) for part in inside)


def test_calibrated_probabilities_are_right_as_often_as_they_say(noisy):
    right = np.concatenate([link.permutation == truth for link, truth in noisy])
    stated = [match_probabilities(link) for link, _ in noisy]
    calibrated = [match_probabilities(link, calibration=calibrate(link)) for link, _ in noisy]
    assert 0.8 < right.mean() < 0.97
    assert calibration_error(np.concatenate(stated), right) > 0.1
    assert calibration_error(np.concatenate(calibrated), right) < 0.05
    for before, after in zip(stated, calibrated, strict=True):
        assert np.all(np.diff(after[np.argsort(before)]) >= 0)


def test_stated_probabilities_stand_in_the_coupling(noisy):
    link, _ = noisy[0]
    expected = link.coupling[np.arange(150), link.permutation]
    np.testing.assert_allclose(match_probabilities(link), np.minimum(expected, 1))


def test_sure_links_are_called_sure_and_calibration_is_deterministic(linked):
    link, truth = linked
    calibration = calibrate(link)
    assert calibration == calibrate(link)
    assert calibration.slope > 0
    assert np.all(link.permutation == truth)
    assert match_probabilities(link, calibration=calibration).mean() > 0.97


def test_rows_without_partner_have_no_probability(linked):
    link, _ = linked
    allowed = np.ones((80, 80), dtype=bool)
    allowed[3] = False
    permutation = link.permutation.copy()
    permutation[3] = -1
    alone = replace(link, permutation=permutation, allowed=allowed)
    assert match_probabilities(alone)[3] == 0
    assert np.isfinite(calibrate(alone).intercept)
    assert judge(alone, repeats=1).verdict == "linked"


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5, 8, 12])
def test_tiny_tables_are_never_called_linked_by_chance(n_rows, rng):
    link = link_two_tables(rng.normal(size=(n_rows, 3)), rng.normal(size=(n_rows, 2)), options=SMALL)
    assert judge(link, repeats=2).verdict == "unlinkable"
    assert np.all(np.isfinite(match_probabilities(link, calibration=calibrate(link))))


def test_tables_that_say_nothing_are_unlinkable():
    link = link_two_tables(np.ones((20, 2)), np.zeros((20, 3)), options=SMALL)
    assert judge(link, repeats=1).verdict == "unlinkable"
    assert np.all(np.isfinite(match_probabilities(link, calibration=calibrate(link))))


def mirror_images(rng, *, shapes=15, rank=3):
    """Latents in all mirror images: no method can tell which correspondence is right."""
    signs = np.array(list(product((-1.0, 1.0), repeat=rank)))
    latents = (rng.normal(size=(shapes, 1, rank)) * signs).reshape(-1, rank)
    tables = [latents @ rng.normal(size=(rank, width)) for width in (12, 10)]
    return [table + 0.02 * rng.normal(size=table.shape) for table in tables]


@pytest.mark.parametrize("method", ["joint", "pairs"])
def test_what_comes_in_mirror_images_is_not_linked(method):
    rng = np.random.default_rng(3)
    first, second = mirror_images(rng)
    order = rng.permutation(len(second))
    tables = {"a": first, "b": second[order]}
    links = keyless.link(tables, method=method, options=SMALL, null_searches=1, random_state=0)
    assert links.evidence.verdict == "uncertain"
    assert links.evidence.mirrored > 0.9
    truth = np.argsort(order)
    pairs = [(row, int(truth[row])) for row in (1, 20, 45, 70, 100)]
    told = keyless.link(tables, method=method, known_pairs=pairs, options=SMALL, null_searches=1, random_state=0)
    assert told.evidence.verdict == "linked"
    assert (told.permutations["b"] == truth).mean() > 0.9


def test_a_mirror_image_of_an_ordinary_link_is_worse():
    rng = np.random.default_rng(4)
    latents = rng.normal(size=(100, 4))
    sides = [whitened(latents + 0.1 * rng.normal(size=latents.shape)) for _ in range(2)]
    assert mirrored_share(*sides) < 0.7


@pytest.mark.parametrize("spokes", [3, 4, 5])
def test_a_wheel_looks_the_same_from_every_spoke(spokes):
    rng = np.random.default_rng(6)
    turns = np.exp(2j * np.pi * np.arange(spokes) / spokes)
    points = ((rng.normal(size=30) + 1j * rng.normal(size=30))[:, None] * turns).ravel()
    latents = np.column_stack([points.real, points.imag])
    sides = [whitened(latents + 0.005 * rng.normal(size=latents.shape)) for _ in range(2)]
    assert mirrored_share(*sides) > 0.9


def test_a_symmetric_cloud_is_its_own_mirror_image():
    rng = np.random.default_rng(5)
    half = rng.normal(size=(50, 4))
    latents = np.concatenate([half, -half])
    sides = [whitened(latents + 0.02 * rng.normal(size=latents.shape)) for _ in range(2)]
    assert mirrored_share(*sides) > 0.9


def test_groups_rule_mirror_images_out():
    rng = np.random.default_rng(5)
    half = rng.normal(size=(50, 4))
    latents = np.concatenate([half, -half])
    sides = [whitened(latents + 0.02 * rng.normal(size=latents.shape)) for _ in range(2)]
    half_of = np.arange(100) // 50
    assert mirrored_share(*sides, allowed=half_of[:, None] == half_of) < 0.5
