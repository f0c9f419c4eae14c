"""Rows that match inside groups: groups give the map, their sizes say how many partners there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import keyless
from keyless.engine import Side, Task, link_many_rows, tells_by_groups
from keyless.engine.groups import exchanged, group_map, shared_groups, sharpened_by
from keyless.engine.listed import listed_identification, listed_sharpness, mutual_first_choices
from keyless.engine.matches import sharpness
from keyless.engine.refine import identification
from keyless.model.factors import principal_factors
from keyless.pairs.limits import Limits


def teams(rng, *, rows=1200, groups=120, noise=0.8, effect=0.5):
    """Two tables of five common factors, each group with an effect of its own; row i of both is one entity."""
    labels = np.sort(rng.integers(groups, size=rows))
    latent = rng.normal(size=(rows, 5)) + effect * rng.normal(size=(groups, 5))[labels]
    one, two = (latent @ rng.normal(size=(5, columns)) + noise * rng.normal(size=(rows, columns)) for columns in (9, 7))
    return one, two, labels


def shuffled(rng, table, labels):
    order = rng.permutation(len(table))
    return table[order], labels[order], np.argsort(order)


def test_means_of_groups_give_the_map():
    rng = np.random.default_rng(0)
    one, two, labels = teams(rng)
    two, others, truth = shuffled(rng, two, labels)
    left, right = principal_factors(one), principal_factors(two)
    limits = Limits((len(one), len(two)), (labels, others))
    found = group_map(left, right, limits).whole
    # Canonical pairs of the true partners, by the singular values of whitened tables.
    centred = [side - side.mean(axis=0) for side in (left.scores, right.scores[truth])]
    true = np.linalg.svd(np.linalg.qr(centred[0])[0].T @ np.linalg.qr(centred[1])[0])
    forth = np.linalg.qr(centred[0])[0] @ true[0][:, :5]
    told = found.left(left.scores)
    # What the map looks at is the space that the partners have in common.
    projected = forth @ (forth.T @ told[:, :5])
    assert np.sum(projected**2) > 0.9 * np.sum((told[:, :5] - told[:, :5].mean(axis=0)) ** 2)


@pytest.mark.parametrize("gone", [0.0, 0.15])
def test_rows_in_groups_are_linked_with_honest_probabilities(gone):
    rng = np.random.default_rng(1)
    one, two, labels = teams(rng, rows=3000, groups=250)
    kept = [np.flatnonzero(rng.random(len(one)) >= gone) for _ in range(2)]
    order = rng.permutation(kept[1])
    place = np.full(len(two), -1)
    place[order] = np.arange(len(order))
    truth = place[kept[0]]
    limits = Limits((len(kept[0]), len(order)), (labels[kept[0]], labels[order]))
    assert tells_by_groups(limits)
    link = link_many_rows(Side(one[kept[0]]), Side(two[order]), Task(limits, comparisons=1))
    right = link.permutation == truth
    matched = link.permutation >= 0
    # A model fitted on the truth places 0.87 of the rows when none is gone.
    assert right[matched].mean() > 0.8
    # The bar is the one the product promises for tables in groups.
    assert abs(link.probability[matched].mean() - right[matched].mean()) < 0.05
    assert link.every_row == (gone == 0.0)
    assert link.crossings[0].excess > link.crossings[0].clear
    groups = limits.groups
    assert (groups[0][matched] == groups[1][link.permutation[matched]]).all()


@pytest.mark.soak
def test_strangers_of_the_same_groups_are_refused():
    rng = np.random.default_rng(2)
    one, two, labels = teams(rng, rows=3000, groups=100)
    first = rng.random(len(one)) < 0.5
    two, others, _ = shuffled(rng, two[~first], labels[~first])
    limits = Limits((int(first.sum()), len(two)), (labels[first], others))
    link = link_many_rows(Side(one[first]), Side(two), Task(limits, comparisons=1))
    assert link.crossings[0].excess < link.crossings[0].clear
    tables = {
        "a": {f"a{k}": column for k, column in enumerate(one[first].T)} | {"team": labels[first]},
        "b": {f"b{k}": column for k, column in enumerate(two.T)} | {"team": others},
    }
    pandas = pytest.importorskip("pandas")
    frames = {name: pandas.DataFrame(columns) for name, columns in tables.items()}
    links = keyless.link(frames, within="team", random_state=0, max_time=60)
    assert links.evidence.verdict != "linked"


def test_exchanged_groups_bring_nobody_together():
    rng = np.random.default_rng(3)
    labels = rng.integers(40, size=400), rng.integers(40, size=380)
    limits = Limits((400, 380), labels)
    apart = exchanged(limits).pattern()
    together = limits.pattern()
    assert apart.multiply(together).nnz == 0
    # Groups meet groups of nearly their size, so about as many pairs are offered.
    assert abs(apart.nnz - together.nnz) < 0.1 * together.nnz
    assert len(shared_groups(limits)) == 40


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_sizes_of_groups_tell_how_many_have_a_partner(seed, lost_left, lost_right):
    rng = np.random.default_rng(seed)
    labels = rng.integers(400, size=6000)
    left, right = rng.random(6000) >= lost_left, rng.random(6000) >= lost_right
    limits = Limits((int(left.sum()), int(right.sum())), (labels[left], labels[right]))
    common = limits.common_by_groups()
    # The moment estimate of 400 groups has a standard error of about 0.05 of the rows.
    assert abs(common - np.sum(left & right)) < 0.2 * 6000


def test_sizes_tell_nothing_where_groups_are_few_or_unknown():
    rng = np.random.default_rng(4)
    few = rng.integers(5, size=100)
    assert Limits((100, 100), (few, few)).common_by_groups() is None
    unknown = np.where(rng.random(100) < 0.1, -1, np.arange(100) % 20)
    assert Limits((100, 100), (unknown, unknown)).common_by_groups() is None
    same = np.arange(100) % 20
    assert Limits((100, 100), (same, same)).common_by_groups() == 100


def test_ratios_are_made_as_sharp_as_they_are():
    rng = np.random.default_rng(5)
    # One partner among ten rows, log-likelihood ratios of N(0, 1) against N(2, 1): 2x − 2; ten rows of another group.
    values = rng.normal(size=(4000, 20))
    values[np.arange(4000), rng.integers(10, size=4000)] += 2.0
    ratios = 2 * values - 2
    never = np.full(4000, -50.0)
    for scale in (0.7, 1.0, 1.6):
        own, other = (sparse.csr_array(scale * part) for part in (ratios[:, :10], ratios[:, 10:]))
        assert sharpened_by(own, other, never) == pytest.approx(1 / scale, rel=0.1)


def test_a_head_start_is_the_prior_of_a_smaller_choice():
    labels = np.array([0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1])
    limits = Limits((5, 5), labels)
    np.testing.assert_allclose(limits.head_start(np.array([0, 2]), np.array([1, 4])), np.log([5 / 2, 5 / 3]))
    assert not Limits((5, 5)).head_start(np.array([0]), np.array([1])).any()
    flipped = Limits((2, 3), (np.array([0, 1]), np.array([1, 1, 0])), known=np.array([[0, 2]])).flipped
    assert flipped.shape == (3, 2)
    assert flipped.known.tolist() == [[2, 0]]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000))
def test_listed_pairs_are_judged_like_all_pairs(seed):
    rng = np.random.default_rng(seed)
    ratios = rng.normal(size=(7, 9)) * 3
    coupling = rng.random((7, 9))
    listed, weights = sparse.csr_array(ratios), sparse.csr_array(coupling)
    limits = Limits((7, 9))
    assert listed_identification(listed, weights, limits) == pytest.approx(identification(ratios, coupling))
    permutation = np.where(rng.random(7) < 0.3, -1, rng.permutation(9)[:7])
    assert listed_sharpness(listed, permutation) == pytest.approx(sharpness(ratios, permutation))
    mutual = sum(
        ratios[i, j] == ratios[i].max() and ratios[i, j] == ratios[:, j].max() for i in range(7) for j in range(9)
    )
    assert mutual_first_choices(listed) == mutual
