"""Known pairs that were left out tell whether the map is right, and how often its first choices are."""

from dataclasses import replace

import numpy as np
import pytest

import keyless
from keyless.engine import Side, foretold
from keyless.engine.foretold import FEWEST_KNOWN, Foretold
from keyless.engine.forms import Form, searched_views
from keyless.engine.search import Search
from keyless.pairs.limits import Limits

ROWS, KNOWN = 90, 14


def tables(seed, *, related=True):
    """Return two views of normal traits, each with traits of its own: hard to link without help."""
    rng = np.random.default_rng(seed)
    traits = rng.normal(size=(2 * ROWS, 5))
    one, two = (
        np.column_stack([traits + 0.15 * rng.normal(size=traits.shape), rng.normal(size=(2 * ROWS, 3))])
        @ rng.normal(size=(8, columns))
        for columns in (14, 12)
    )
    order = rng.permutation(ROWS)
    second = two[:ROWS] if related else two[ROWS:]
    return {"a": one[:ROWS], "b": second[order]}, np.argsort(order)


def some(truth, seed):
    rows = np.random.default_rng(seed).permutation(ROWS)[:KNOWN]
    return [(int(row), int(truth[row])) for row in rows]


@pytest.mark.slow
def test_a_map_that_foretells_known_pairs_is_believed():
    given, truth = tables(3)
    links = keyless.link(given, known_pairs=some(truth, 0), random_state=0)
    assert links.evidence.foretold < 1e-3
    assert links.evidence.verdict == "linked"
    # Known pairs prove the map, so that one comparison with chance is enough.
    assert len(links.evidence.null_scores) == 1
    found = links.permutations["b"]
    assert np.mean(found == truth) > 0.9
    others = np.setdiff1d(np.flatnonzero(found >= 0), [row for row, _ in some(truth, 0)])
    stated, right = links.found["b"].probability[others], found[others] == truth[others]
    # Cautious is allowed, boasting is not: three standard errors above the share right at the most.
    assert stated.mean() < right.mean() + 3 * np.sqrt(0.25 / KNOWN)


@pytest.mark.slow
def test_pairs_told_of_other_entities_prove_nothing():
    given, truth = tables(4, related=False)
    links = keyless.link(given, known_pairs=some(truth, 0), random_state=0)
    assert links.evidence.foretold > 1e-3
    assert links.evidence.verdict != "linked"


@pytest.mark.slow
def test_few_known_pairs_are_all_told_to_the_search():
    given, truth = tables(5)
    links = keyless.link(given, known_pairs=some(truth, 0)[: FEWEST_KNOWN - 1], effort="quick", random_state=0)
    assert links.evidence.foretold == 1.0


@pytest.mark.parametrize(("pairs", "first", "stated"), [(10, 10, 0.9), (10, 3, 0.9), (40, 20, 0.5), (0, 0, 0.7)])
def test_probabilities_are_scaled_to_the_share_of_right_first_choices(pairs, first, stated):
    expected = min(1.0, (first + 2 * stated) / (pairs + 2) / stated)
    assert Foretold(pairs, first, pairs * stated, 0.0).belief(stated) == pytest.approx(expected)


def test_searches_that_were_told_less_do_not_vouch_for_what_the_link_states():
    # Of ten rows whose first choices had the probability 0.3 three are right; the link states 0.8 of its matches.
    assert Foretold(10, 3, 10 * 0.3, 0.0).belief(0.8) == pytest.approx((3 + 1.6) / (8 + 1.6))
    # Rows that were asked for because they lie far out are easier than others.
    assert Foretold(10, 9, 10 * 0.95, 0.0).belief(0.8) == pytest.approx((9 + 1.6) / (9.5 + 1.6))


def test_searches_that_find_another_map_prove_nothing_about_this_one():
    assert Foretold(10, 10, 10.0, 1e-12, agreement=0.9).proven
    assert not Foretold(10, 10, 10.0, 1e-12, agreement=0.05).proven
    assert not Foretold(10, 1, 10.0, 0.2, agreement=0.9).proven


@pytest.mark.parametrize("count", [KNOWN, 40])
def test_agreement_is_the_share_of_rows_with_the_same_first_choice(count):
    given, truth = tables(3)
    left, right = Side(given["a"]), Side(given["b"])
    place = np.argsort(left.order), np.argsort(right.order)
    known = np.array(
        [(place[0][row], place[1][truth[row]]) for row in np.random.default_rng(0).permutation(ROWS)[:count]]
    )
    limits = Limits((ROWS, ROWS), known=known)
    form = Search([searched_views(left, right)[0]], limits, generations=1).run()
    found = foretold.foretold_by_others(form, limits=limits)
    assert found.proven
    assert found.agreement > 0.8
    # The same pairs, but a link whose rows prefer other partners.
    ratios = form.matching.ratios.copy()
    unknown = np.setdiff1d(np.arange(ROWS), known[:, 0])
    ratios[unknown] = np.roll(ratios[unknown], 1, axis=1)
    other = replace(form, matching=replace(form.matching, ratios=ratios))
    found = foretold.foretold_by_others(other, limits=limits)
    assert found.chance < 1e-3
    assert found.agreement < 0.1
    assert not found.proven


@pytest.mark.parametrize("scales", ["auto", "rank"])
def test_known_pairs_are_foretold_on_the_scales_of_the_link(scales, monkeypatch):
    """Another kind of scales has another map, of which known pairs say nothing."""
    given, truth = tables(6)
    left, right = Side(given["a"]), Side(given["b"])
    place = np.argsort(left.order), np.argsort(right.order)
    known = np.array([(place[0][row], place[1][column]) for row, column in some(truth, 0)])
    limits = Limits((ROWS, ROWS), known=known)
    views = searched_views(left, right)
    (own,) = (view for view in views if view.scales == scales)
    searched = []

    class Noted(Search):
        def __init__(self, views, *arguments, **options):
            searched.append([view.scales for view in views])
            super().__init__(views, *arguments, **options)

    monkeypatch.setattr(foretold, "Search", Noted)
    form = Form(scales, own.left, own.right, Search([own], limits, generations=1).run().matching, searched=tuple(views))
    foretold.foretold_by_others(form, limits=limits)
    assert searched
    assert all(each == [scales] for each in searched)


def test_rows_far_out_are_always_told(monkeypatch):
    """They are foretold by maps that place hardly any other row, so foretelling them proves nothing."""
    given, truth = tables(6)
    left, right = Side(given["a"]), Side(given["b"])
    (view, *_) = searched_views(left, right)
    partner = np.argsort(right.order)[truth[left.order]]
    distance = np.sum(view.left.compact**2, axis=1)
    farthest, ordinary = np.argsort(distance)[-3:], np.argsort(distance)[30:36]
    known = np.array([(row, partner[row]) for row in (*ordinary, *farthest)])
    limits = Limits((ROWS, ROWS), known=known)
    told = []

    class Noted(Search):
        def __init__(self, views, limits, **options):
            told.append(limits.known)
            super().__init__(views, limits, **options)

    monkeypatch.setattr(foretold, "Search", Noted)
    form = Search([view], limits, generations=1).run()
    found = foretold.foretold_by_others(form, limits=limits)
    assert 3 <= found.pairs <= len(ordinary)
    assert len(told) == found.pairs
    for pairs in told:
        assert set(farthest) <= set(pairs[:, 0])


def test_only_rows_far_out_prove_nothing():
    given, truth = tables(6)
    left, right = Side(given["a"]), Side(given["b"])
    (view, *_) = searched_views(left, right)
    partner = np.argsort(right.order)[truth[left.order]]
    farthest = np.argsort(np.sum(view.left.compact**2, axis=1))[-5:]
    limits = Limits((ROWS, ROWS), known=np.array([(row, partner[row]) for row in farthest]))
    form = Search([view], limits, generations=1).run()
    assert foretold.foretold_by_others(form, limits=limits) == Foretold()


@pytest.mark.slow
def test_a_map_that_known_pairs_lead_to_is_not_lost_among_others():
    """Wrong candidates have higher scores than the right one, until that is refined."""
    rng = np.random.default_rng(20_000)
    rows, width = 150, (30, 28)
    active = np.where(rng.random((rows, 1)) < 0.2, 1.0, 0.15)
    common = active * rng.normal(size=(rows, 6))
    common /= common.std()
    first, second = (
        common @ rng.normal(size=(6, columns))
        + 3 * rng.normal(size=(rows, 10)) @ rng.normal(size=(10, columns))
        + 0.03 * 6**0.5 * rng.normal(size=(rows, columns))
        for columns in width
    )
    order = rng.permutation(rows)
    truth = np.argsort(order)
    some = np.random.default_rng(20_001).permutation(rows)[:5]
    pairs = [(int(row), int(truth[row])) for row in some]
    links = keyless.link({"a": first, "b": second[order]}, known_pairs=pairs, random_state=0)
    assert links.evidence.verdict == "linked"
    assert np.mean(links.permutations["b"] == truth) > 0.9
