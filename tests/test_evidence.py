from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import keyless
from keyless.datasets import make_shuffled_tables
from keyless.engine import Crossing, Side, Task, link_pair
from keyless.engine.symmetry import mirrored_share
from keyless.errors import InputError
from keyless.evidence import Evidence, judge_pair, overall
from keyless.model.factors import whitened
from keyless.pairs.limits import Limits
from keyless.progress import Deadline


def tables(n_rows=80, columns=(20, 15), *, rank=4, noise=0.1, seed=0):
    data = make_shuffled_tables(n_rows, columns, rank=rank, noise=noise, random_state=seed)
    return data.tables["reference"], data.tables["table1"], data.truth["table1"]


def evidence(verdict="linked", score=8.0, nulls=(3.0, 3.2)):
    return Evidence(verdict, score, nulls, needed=4.0, sharpness=0.9, agreement=5)


def found(first, second, **options):
    return link_pair(Side(first), Side(second), Task(**options))


def judged(link, **options):
    return judge_pair(link, limits=Limits((len(link.permutation), link.pairs.shape[1])), **options)


@pytest.fixture(scope="module")
def linked():
    reference, table, truth = tables()
    return found(reference, table), truth


@pytest.fixture(scope="module")
def halved():
    """A link of so many rows that maps between factors tell halves of them apart, too."""
    reference, table, truth = tables(160)
    return found(reference, table), truth


@pytest.mark.parametrize("fixture", ["linked", "halved"])
def test_a_link_is_called_one(fixture, request):
    link, truth = request.getfixturevalue(fixture)
    verdict = judged(link)
    assert verdict.verdict == "linked"
    np.testing.assert_array_equal(link.permutation, truth)
    assert verdict.score == link.form.matching.identification
    assert max(verdict.null_scores) < verdict.score - 0.7
    assert np.isclose(verdict.needed, np.log(len(truth)))
    assert verdict.sharpness > 0.95
    assert link.crossings[0].halved


@pytest.mark.parametrize("n_rows", [80, pytest.param(160, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_unrelated_tables_are_not_called_linked(seed, n_rows):
    one, _, _ = tables(n_rows, seed=seed)
    _, two, _ = tables(n_rows, seed=seed + 50)
    assert judged(found(one, two, generations=4)).verdict == "unlinkable"


@pytest.mark.parametrize(
    "n_rows", [pytest.param(80, marks=pytest.mark.slow), pytest.param(160, marks=pytest.mark.soak)]
)
def test_different_people_with_the_same_columns_are_not_called_linked(rng, n_rows):
    latent, loadings = rng.exponential(size=(2 * n_rows, 4)), rng.normal(size=(4, 30))
    values = latent @ loadings + 0.3 * rng.normal(size=(2 * n_rows, 30))
    assert judged(found(values[:n_rows, :15], values[n_rows:, 15:], generations=4)).verdict != "linked"


@pytest.mark.parametrize(
    "n_rows",
    [
        pytest.param(48, marks=pytest.mark.slow),
        pytest.param(90, marks=pytest.mark.slow),
        pytest.param(150, marks=pytest.mark.soak),
    ],
)
def test_rows_that_are_numbered_in_both_tables_are_not_called_linked(rng, n_rows):
    """The numbers agree row by row, and nothing else does."""
    sides = [rng.normal(size=(n_rows, 6)) @ rng.normal(size=(6, columns)) for columns in (18, 14)]
    counted = [np.column_stack([np.arange(n_rows), side + rng.normal(size=side.shape)]) for side in sides]
    assert judged(found(*counted)).verdict != "linked"


@pytest.mark.slow
def test_relabelling_relabels_the_matches_and_changes_no_verdict(linked, rng):
    link, _ = linked
    reference, table, _ = tables()
    rows, columns = rng.permutation(80), rng.permutation(80)
    moved = found(reference[rows], table[columns])
    np.testing.assert_array_equal(moved.permutation, np.argsort(columns)[link.permutation[rows]])
    np.testing.assert_allclose(moved.probability, link.probability[rows])
    assert judged(moved) == judged(link)


def test_the_verdict_asks_for_all_of_it(halved):
    whole, _ = halved
    own = whole.crossings[0].same
    # Where partners stand out fully, being above chance is enough; at chance nothing is.
    assert judged(replace(whole, crossings=(Crossing(own, own - 0.3, 0.1),))).verdict == "linked"
    assert judged(replace(whole, crossings=(Crossing(own, own - 0.1, 0.1),))).verdict == "unlinkable"
    matching = replace(whole.form.matching, identification=0.8 * np.log(160))
    link = replace(whole, form=replace(whole.form, matching=matching))
    refused = judged(replace(link, crossings=(Crossing(own, own - 0.3, 0.1),)))
    assert refused.verdict == "unlinkable"
    # Less than a guess is worth, of 160 rows: the order of candidates is kept, and nothing is stated by it.
    assert 0 < refused.belief < 0.2 / 160
    assert judged(replace(link, crossings=(Crossing(own, own - 0.3, 0.6),))).verdict == "uncertain"
    # Pairs that searches of half the rows find again prove a link that is little above chance.
    assert judged(replace(link, crossings=(Crossing(own, own - 0.4, 0.6),))).verdict == "linked"
    doubted = judged(replace(link, crossings=(Crossing(own, own - 0.9, 0.1),)))
    assert doubted.verdict == "uncertain"
    # Half of the pairs of right maps are found again: a fifth of that is a fifth of the belief.
    assert doubted.belief == pytest.approx(0.1 / 0.5)
    assert judged(replace(link, crossings=(Crossing(own, own - 0.9, 0.6),))).verdict == "linked"
    # What directions say about each other counts as much as how well partners stand out.
    borne_out = Crossing(own, own - 0.3, 0.6, borne_out=2.0, borne_out_by_chance=1.0)
    assert judged(replace(link, crossings=(borne_out,))).verdict == "linked"
    assert judged(replace(link, crossings=(borne_out,))).corroboration == np.log(2.1 / 1.1)
    contrary = Crossing(own, own - 2.0, 0.6, borne_out=1.0, borne_out_by_chance=1.5)
    assert judged(replace(link, crossings=(contrary,))).verdict == "uncertain"
    # A counter of rows is found again, too: where directions contradict each other, that proves nothing.
    assert judged(replace(link, crossings=(contrary,))).belief <= 0.5
    # One split just above chance, found again by nobody, and one below chance: there is nothing to be uncertain about.
    doubtful = Crossing(own, own - 0.05, 0.1), Crossing(own, own + 0.01)
    assert judged(replace(link, crossings=doubtful)).verdict == "unlinkable"
    assert judged(replace(link, sharpness=0.4)).verdict == "uncertain"


@pytest.mark.parametrize(("excess", "verdict"), [(0.1, "unlinkable"), (0.3, "linked")])
def test_shuffled_factors_do_not_tell_clusters_so_partners_must_also_stand_out_more(linked, excess, verdict):
    link, _ = linked
    own = link.form.matching.identification
    crossing = Crossing(own, own - excess, borne_out=9.0, borne_out_by_chance=1.0, halved=False, clear=1.1)
    assert judged(replace(link, crossings=(crossing,))).verdict == verdict


def test_without_time_for_chance_nothing_is_certain():
    reference, table, _ = tables()
    verdict = judged(found(reference, table, deadline=Deadline(0)))
    assert verdict.null_scores == ()
    assert verdict.verdict == "uncertain"
    assert verdict.excess == verdict.score


@pytest.mark.slow
def test_fewer_choices_need_less():
    reference, table, truth = tables()
    groups = np.arange(80) // 8
    limits = Limits((80, 80), groups=(groups, groups[np.argsort(truth)]))
    link = link_pair(Side(reference), Side(table), Task(limits))
    np.testing.assert_array_equal(link.permutation, truth)
    assert np.isclose(judge_pair(link, limits=limits).needed, np.log(8))


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5, 8, 12])
def test_tiny_tables_are_never_called_linked_by_chance(n_rows, rng):
    link = found(rng.normal(size=(n_rows, 3)), rng.normal(size=(n_rows, 2)))
    assert judged(link).verdict == "unlinkable"
    assert np.all(np.isfinite(link.probability))


def test_tables_that_say_nothing_are_unlinkable():
    link = found(np.ones((20, 2)), np.zeros((20, 3)))
    assert judged(link).verdict == "unlinkable"
    assert np.all(np.isfinite(link.probability))


def test_overall_is_as_weak_as_the_weakest():
    strong, weak, none = evidence(), evidence(score=6.0), evidence("unlinkable", score=20.0)
    assert overall([strong, weak]) is weak
    assert overall([strong, none, weak]) is none
    assert overall([strong]) is strong
    with pytest.raises(InputError, match="at least one"):
        overall([])


def mirror_images(rng, *, shapes=15, rank=3):
    """Latents in all mirror images: no method can tell which correspondence is right."""
    signs = np.array(list(product((-1.0, 1.0), repeat=rank)))
    latents = (rng.normal(size=(shapes, 1, rank)) * signs).reshape(-1, rank)
    tables = [latents @ rng.normal(size=(rank, width)) for width in (12, 10)]
    return [table + 0.02 * rng.normal(size=table.shape) for table in tables]


def test_what_comes_in_mirror_images_is_not_linked():
    rng = np.random.default_rng(3)
    first, second = mirror_images(rng)
    order = rng.permutation(len(second))
    tables = {"a": first, "b": second[order]}
    links = keyless.link(tables, effort="quick", random_state=0)
    assert links.evidence.verdict == "uncertain"
    assert links.evidence.mirrored > 0.9
    truth = np.argsort(order)
    pairs = [(row, int(truth[row])) for row in (1, 20, 45, 70, 100)]
    told = keyless.link(tables, known_pairs=pairs, effort="quick", random_state=0)
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
