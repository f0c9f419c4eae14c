"""Rows that differ by noise only: told from rows that differ, and matched with equal chances."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import keyless
from keyless.engine.forms import Form
from keyless.engine.refine import Refinement
from keyless.engine.replicates import averaged_over_replicates, differences_are_shared, replicate_weights
from keyless.model.factors import Factors, whitened
from keyless.pairs.limits import Limits

CORRELATION = 0.99


def measured(latent, rng):
    """Return rows of unit variance that share the given correlation with another measurement of the same latents."""
    return np.sqrt(CORRELATION) * latent + np.sqrt(1 - CORRELATION) * rng.normal(size=latent.shape)


def latents(kind, rng, *, rows=240, factors=5):
    """Return latent numbers of unit variance: all different, different in a crowd, or each of six rows in common."""
    latent = rng.normal(size=(rows, factors))
    if kind == "crowd":
        latent *= np.exp(0.7 * rng.normal(size=(rows, 1)))
    if kind == "replicates":
        latent = np.repeat(latent[: rows // 6], 6, axis=0)
    return whitened(latent)


@pytest.mark.parametrize("seed", range(3))
def test_replicates_are_told_from_rows_that_differ(seed):
    rng = np.random.default_rng(seed)
    correlations = np.full(5, CORRELATION)
    found = replicate_weights(measured(latents("replicates", rng), rng), correlations, np.inf)
    assert found is not None
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    group = np.arange(240) // 6
    same = group[:, None] == group[None, :]
    # Most of a row's weight is that of its group; nearly equal weights of six rows are 1/6 each.
    assert found[same].sum() / 240 > 0.95
    assert 1 / 6 - 0.01 < np.median(found.diagonal()) < 0.25
    for kind in ("different", "crowd"):
        assert replicate_weights(measured(latents(kind, rng), rng), correlations, np.inf) is None


@pytest.mark.parametrize("shared", [False, True])
def test_differences_that_partners_show_are_no_noise(shared):
    """Groups of rows that are near each other: by what they are, or by noise about one thing."""
    rng = np.random.default_rng(5)
    centres = np.repeat(latents("different", rng, rows=40), 6, axis=0)
    noise = np.sqrt(1 - CORRELATION)
    rows = centres + noise * rng.normal(size=(240, 5))
    partners = (rows if shared else centres) + noise * rng.normal(size=(240, 5))
    # Matched as well as can be, as a link would.
    cost = ((rows[:, None] - partners[None]) ** 2).sum(axis=2)
    found = partners[linear_sum_assignment(cost)[1]]
    weights = np.kron(np.eye(40), np.full((6, 6), 1 / 6))
    assert differences_are_shared(rows, found, weights, np.full(5, CORRELATION)) == shared


def test_rows_without_matched_replicates_are_left_as_they_are():
    places = np.random.default_rng(0).normal(size=(10, 3))
    assert differences_are_shared(places, places, np.eye(10), np.full(3, 0.9))


def form_of(kind, seed):
    rng = np.random.default_rng(seed)
    latent = latents(kind, rng)
    sides = [Factors(whitened(measured(latent, rng)), np.ones(5)) for _ in range(2)]
    limits = Limits((240, 240))
    matching = Refinement(sides[0].compact, sides[1].compact, limits=limits).run(
        np.eye(240, dtype=np.float32), rounds=2
    )
    return Form("auto", sides[0], sides[1], matching)


def test_ratios_of_rows_that_differ_stay():
    form = form_of("different", 0)
    assert averaged_over_replicates(form, limits=Limits((240, 240))) is form.matching.ratios


def test_ratios_of_replicates_are_weighted_means_of_pairs_that_may_be():
    form = form_of("replicates", 1)
    rng = np.random.default_rng(0)
    form.matching.ratios[rng.random((240, 240)) < 0.1] = -np.inf
    given, known = form.matching.ratios.copy(), np.array([[0, 3], [7, 7]])
    given[known[:, 0], known[:, 1]] = form.matching.ratios[known[:, 0], known[:, 1]] = 5.0
    found = averaged_over_replicates(form, limits=Limits((240, 240), known=known))
    model = form.matching.fit.whole
    weights = [
        replicate_weights(side, model.correlations, model.tail)
        for side in (model.left(form.left.compact), model.right(form.right.compact))
    ]
    for row, column in [(20, 21), (20, 22), (100, 5), (239, 239), *known.tolist()]:
        own = [np.eye(240)[row] if row in known[:, 0] else weights[0][row]]
        own.append(np.eye(240)[column] if column in known[:, 1] else weights[1][column])
        total = share = 0.0
        for i in np.flatnonzero(own[0]):
            for j in np.flatnonzero(own[1]):
                if np.isfinite(given[i, j]):
                    total += own[0][i] * own[1][j] * given[i, j]
                    share += own[0][i] * own[1][j]
        expected = total / share if np.isfinite(given[row, column]) else -np.inf
        np.testing.assert_allclose(found[row, column], expected, rtol=1e-4)
    assert (np.isfinite(found) == np.isfinite(given)).all()


def test_people_who_gave_the_same_answers_are_not_told_apart_by_noise():
    rng = np.random.default_rng(2)
    stated, right = [], []
    for _ in range(3):
        answers = np.column_stack([rng.choice(3, 200, p=rng.dirichlet([2, 2, 2])) for _ in range(5)]).astype(float)
        tables = [answers @ rng.normal(size=(5, width)) for width in (14, 12)]
        first, second = (table + 0.05 * table.std() * rng.normal(size=table.shape) for table in tables)
        order = rng.permutation(200)
        links = keyless.link({"a": first, "b": second[order]}, random_state=0)
        if links.evidence.belief < 0.99:
            continue
        stated.append(links.found["b"].probability.mean())
        right.append(np.mean(links.permutations["b"] == np.argsort(order)))
    assert stated
    # Of 200 rows or more the share right has a standard error of 0.035 or less.
    assert abs(np.mean(stated) - np.mean(right)) < 0.1
