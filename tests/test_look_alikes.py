"""Rows that fit each other without being one entity: how often they do is told by rows whose partners are hidden."""

import numpy as np
import pytest
from scipy import sparse

from keyless.engine.matches import matched
from keyless.pairs.look_alikes import chance_fit, less_chance_fit


def partly_overlapping(seed, *, entities=400, apart=0.15, gone=0.25, rank=6, noise=0.2):
    """Return log-likelihood ratios of rows taken for normal, and the truth.

    Entities come in pairs of twins, so far apart that their distance is less than that of two measurements of one of
    them; ∞: there are no twins.
    """
    rng = np.random.default_rng(seed)
    family = np.repeat(rng.normal(size=(entities // 2, rank)), 2, axis=0)
    own = rng.normal(size=family.shape)
    latent = own if np.isinf(apart) else family + apart * own
    latent /= latent.std(axis=0)
    kept = [np.sort(rng.permutation(entities)[: round((1 - gone) * entities)]) for _ in range(2)]
    left, right = (latent[rows] + noise * rng.normal(size=(len(rows), rank)) for rows in kept)
    x, y = left / np.sqrt(1 + noise**2), right / np.sqrt(1 + noise**2)
    rho = 1 / (1 + noise**2)
    lengths = rho**2 * ((x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1))
    ratios = (2 * rho * x @ y.T - lengths) / (2 * (1 - rho**2)) - 0.5 * rank * np.log(1 - rho**2)
    truth = np.where(np.isin(kept[0], kept[1]), np.searchsorted(kept[1], kept[0]), -1)
    return ratios, truth


def stated_and_right(ratios, truth, **how):
    permutation, chances, _ = matched(ratios, None, **how)
    rows = permutation >= 0
    return float(chances.answers(permutation)[rows].mean()), float((permutation == truth)[rows].mean())


def test_stated_probabilities_hold_where_rows_have_twins():
    plain, allowed = [], []
    for seed in range(6):
        ratios, truth = partly_overlapping(seed)
        plain.append(stated_and_right(ratios, truth))
        allowed.append(stated_and_right(ratios, truth, crowded=True))
    (stated, right), (before, right_before) = np.mean(allowed, axis=0), np.mean(plain, axis=0)
    # 6 × some 250 matches: a standard error of the share right of 0.01.
    assert before - right_before > 0.06
    assert abs(stated - right) < 0.04
    assert right > right_before


def test_nothing_is_taken_off_where_strangers_fit_badly():
    ratios, truth = partly_overlapping(1, apart=np.inf, noise=0.05)
    rows, columns = chance_fit(ratios, truth)
    # Partners are at 15 nats and more; what the odds of the best of them lose must not put any in doubt.
    own = ratios[truth >= 0, truth[truth >= 0]]
    left = own - rows[truth >= 0] - columns[truth[truth >= 0]]
    assert np.quantile(left, 0.05) > 8.0


def best_by_loops(ratios, row):
    """Return fit and crowd of a row's best candidate, by their definitions."""
    n, m = ratios.shape
    column = int(np.argmax(ratios[row]))
    if ratios[row, column] <= 0:
        return 0.0, 0.0
    others = [
        sum(np.exp(ratios[row, j]) for j in range(m) if j != column and ratios[row, j] > 0) / (m - 1),
        sum(np.exp(ratios[i, column]) for i in range(n) if i != row and ratios[i, column] > 0) / (n - 1),
    ]
    crowd = sum(0.5 * max(np.log(mean), 0.0) for mean in others if mean > 0)
    return max(ratios[row, column] - crowd, 0.0), crowd


def test_best_candidates_follow_their_definition():
    from keyless.pairs.look_alikes import _best, _likelier_than_any

    ratios = partly_overlapping(2, entities=60)[0]
    rows, columns, values = _likelier_than_any(ratios)
    found = _best(rows, columns, values, ratios.shape)
    expected = np.array([best_by_loops(ratios, row) for row in range(len(ratios))])
    np.testing.assert_allclose(np.column_stack([found.fit, found.crowd]), expected, atol=1e-9)


def test_listed_and_all_pairs_give_the_same():
    ratios, truth = partly_overlapping(3)
    listed = sparse.csr_array(np.where(ratios > -5, ratios, 0.0))
    for dense, sparsely in zip(chance_fit(ratios, truth), chance_fit(listed, truth), strict=True):
        np.testing.assert_allclose(sparsely, dense, atol=1e-9)
    there = less_chance_fit(listed, listed, truth).toarray()
    stored = listed.toarray() != 0
    np.testing.assert_allclose(there[stored], less_chance_fit(ratios, ratios, truth)[stored], atol=1e-9)


def test_order_of_rows_does_not_matter():
    ratios, truth = partly_overlapping(4)
    order = np.random.default_rng(0).permutation(len(ratios))
    rows, columns = chance_fit(ratios, truth)
    shuffled = chance_fit(ratios[order], truth[order])
    np.testing.assert_allclose(shuffled[0], rows[order], atol=1e-8)
    np.testing.assert_allclose(shuffled[1], columns, atol=1e-8)


@pytest.mark.parametrize("matches", [np.full(5, -1), np.arange(5)])
def test_none_or_all_matched_leaves_finite_numbers(matches):
    ratios = np.random.default_rng(5).normal(size=(5, 5))
    for found in chance_fit(ratios, matches):
        assert np.isfinite(found).all()
        assert (found >= 0).all()
