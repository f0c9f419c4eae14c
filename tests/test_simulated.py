"""Tables drawn from a fitted map: partners are where the map has them, and what is stated of them is what holds."""

import numpy as np
import pytest
from scipy import sparse

from keyless.engine.forms import Form
from keyless.engine.matches import matched
from keyless.engine.refine import Refinement
from keyless.engine.simulated import drawn_partners, power_on_drawn_tables, tempered
from keyless.model.factors import Factors, whitened
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import Posterior


def form_of_normal_rows(seed, *, rows, factors, correlation, shared):
    """Return the form that true partners give, and the truth: `shared` of the factors correlate."""
    rng = np.random.default_rng(seed)
    left = rng.normal(size=(rows, factors))
    right = rng.normal(size=(rows, factors))
    right[:, :shared] = correlation * left[:, :shared] + np.sqrt(1 - correlation**2) * right[:, :shared]
    turned = right @ np.linalg.qr(rng.normal(size=(factors, factors)))[0]
    order = rng.permutation(rows)
    sides = [Factors(whitened(side), np.ones(factors)) for side in (left, turned[order])]
    truth = np.argsort(order)
    matching = Refinement(sides[0].compact, sides[1].compact, limits=Limits((rows, rows))).run(
        np.eye(rows, dtype=np.float32)[truth], rounds=8
    )
    return Form("auto", sides[0], sides[1], matching), truth


def test_drawn_partners_correlate_as_the_map_has_it():
    form, _ = form_of_normal_rows(0, rows=2000, factors=6, correlation=0.8, shared=3)
    model, rng = form.matching.fit.whole, np.random.default_rng(1)
    partners = rng.permutation(2000)
    drawn = drawn_partners(model, form.left.compact, form.right.compact, partners, rng)
    x, y = model.left(form.left.compact), model.right(drawn[partners])
    found = [np.corrcoef(x[:, k], y[:, k])[0, 1] for k in range(len(model.correlations))]
    # The standard error of a correlation of 0.8 among 2,000 rows is (1 − 0.64)/√2000 = 0.008.
    np.testing.assert_allclose(found, model.correlations, atol=4 * 0.008 + 0.01)
    # Along all other directions, and for rows without a left row, right rows are what they were.
    rest = np.linalg.qr(model.right_directions, mode="complete")[0][:, len(found) :]
    mine, theirs = drawn @ rest, form.right.compact @ rest
    np.testing.assert_allclose(np.sort(mine, axis=0), np.sort(theirs, axis=0), atol=1e-4)


def test_rows_without_left_row_stay_among_the_right_ones():
    form, _ = form_of_normal_rows(2, rows=200, factors=5, correlation=0.9, shared=3)
    partners = np.full(200, -1)
    partners[:50] = np.arange(100, 150)
    drawn = drawn_partners(
        form.matching.fit.whole, form.left.compact, form.right.compact, partners, np.random.default_rng(0)
    )
    others = np.setdiff1d(np.arange(200), np.arange(100, 150))
    given = {tuple(row) for row in form.right.compact.round(4).tolist()}
    assert all(tuple(row) in given for row in drawn[others].round(4).tolist())


def stated_and_right(seeds, **tables):
    """Return the mean stated probability, before and after drawing, and the share that is right."""
    found = []
    for seed in seeds:
        form, truth = form_of_normal_rows(seed, **tables)
        matches, chances, _ = matched(form.matching.ratios, True, crowded=True)
        power = power_on_drawn_tables(form, matches, every_row=True)
        held_back = tempered(chances, power)
        found.append([one.answers(matches).mean() for one in (chances, held_back)] + [np.mean(matches == truth)])
    return np.mean(found, axis=0)


def test_maps_of_many_rows_and_few_factors_are_left_as_they_are():
    before, after, right = stated_and_right(range(30, 34), rows=300, factors=8, correlation=0.95, shared=6)
    # Of 1,200 rows: a standard error of the share right of 0.007.
    assert abs(before - right) < 0.025
    assert abs(after - before) < 0.02


def test_maps_of_few_rows_and_many_factors_are_held_back():
    before, after, right = stated_and_right(range(30, 36), rows=160, factors=24, correlation=0.8, shared=14)
    # Of 960 rows: a standard error of the share right of 0.016; drawings differ by as much again.
    assert before - right > 0.08
    assert abs(after - right) < 0.06


def chances_of(seed, *, alone):
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(7, 9)) ** 3
    share = weights / (weights.sum(axis=1, keepdims=True) + (rng.exponential(size=(7, 1)) if alone else 0.0))
    share /= np.maximum(1.0, share.sum(axis=0))
    return Posterior(sparse.csr_array(share), float(share.sum()), 0.0)


@pytest.mark.parametrize("power", [0.3, 0.7])
def test_tempered_answers_follow_their_definition(power):
    chances = chances_of(0, alone=True)
    found = tempered(chances, power)
    for row, given in enumerate(chances.pairs.toarray()):
        answers = np.append(given, chances.alone()[row]) ** power
        expected = answers / answers.sum()
        # Columns that would be wanted by more than one row are divided by what they are wanted.
        assert (found.pairs.toarray()[row] <= expected[:-1] + 1e-12).all()
    raised = np.hstack([chances.pairs.toarray(), chances.alone()[:, None]]) ** power
    raised /= raised.sum(axis=1, keepdims=True)
    wanted = np.maximum(1.0, raised[:, :-1].sum(axis=0))
    np.testing.assert_allclose(found.pairs.toarray(), raised[:, :-1] / wanted, rtol=1e-12)


@pytest.mark.parametrize("alone", [False, True])
def test_power_one_changes_nothing_and_rows_without_doubt_stay(alone):
    chances = chances_of(1, alone=alone)
    np.testing.assert_allclose(tempered(chances, 1.0).pairs.toarray(), chances.pairs.toarray(), atol=1e-12)
    certain = Posterior(sparse.csr_array(np.eye(4)), 4.0, 0.0)
    np.testing.assert_allclose(tempered(certain, 0.3).pairs.toarray(), np.eye(4), atol=1e-12)
