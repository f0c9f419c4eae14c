"""Partners that were overlooked in crowded places: how many there are, and what that does to the probabilities."""

import numpy as np
import pytest
from scipy import sparse

from keyless.pairs.overlooked import Overlooked, overlooked_partners, with_overlooked
from keyless.pairs.posterior import Posterior


def chances_of(seed, shape=(7, 9)):
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=shape) ** 3
    share = weights / (weights.sum(axis=1, keepdims=True) + rng.exponential(size=(shape[0], 1)))
    share /= np.maximum(1.0, share.sum(axis=0))
    return Posterior(sparse.csr_array(share), float(share.sum()), 0.0)


def rows_without_partner(seed, *, missed):
    """Return probabilities and places: half of the rows crowded; a fifth is alone, and more seem so in the crowd.

    Args:
        seed: of all random numbers.
        missed: share of the partners in crowded places that were overlooked.
    """
    rng = np.random.default_rng(seed)
    rows = 2000
    places = rng.normal(size=(rows, 4)) * np.repeat([0.05, 1.0], rows // 2)[:, None]
    found = rng.random(rows) < 0.8
    overlooked = found & (rng.random(rows) < missed) & (np.arange(rows) < rows // 2)
    pairs = sparse.diags_array((found & ~overlooked).astype(float)).tocsr()
    return Posterior(sparse.csr_array(pairs), float(pairs.sum()), 0.0), places, int(overlooked.sum())


@pytest.mark.parametrize("missed", [0.0, 0.3])
def test_as_many_are_overlooked_as_seem_alone_in_crowds_beyond_other_places(missed):
    chances, places, truth = rows_without_partner(0, missed=missed)
    found = overlooked_partners(chances, (places, places))
    # Of 1,000 rows in either half a fifth is alone, with a standard error of 0.4 · √1000 = 13 each.
    assert abs(found.count - truth) < 3 * 13 * np.sqrt(2)
    # The narrow rows are crowded, but for a few at the rim of either half.
    assert found.crowded[0][:1000].mean() > 0.95
    assert found.crowded[0].mean() == pytest.approx(0.5, abs=0.001)


def test_fewer_rows_alone_in_crowds_are_no_overlooked_partners():
    chances, places, _ = rows_without_partner(1, missed=0.4)
    assert overlooked_partners(chances, (-places[::-1], places[::-1])).count == 0.0


def test_a_single_row_has_no_crowd():
    chances = Posterior(sparse.csr_array([[0.5]]), 0.5, 0.0)
    found = overlooked_partners(chances, (np.zeros((1, 2)), np.zeros((1, 2))))
    assert found.count == 0.0
    assert with_overlooked(chances, np.array([-1]), found, None) is chances


@pytest.mark.parametrize("allowed", [None, np.arange(63).reshape(7, 9) % 5 > 0])
def test_overlooked_partners_are_sought_among_crowded_rows_without_match(allowed):
    chances = chances_of(3)
    permutation = np.array([4, -1, 2, -1, -1, 0, -1])
    crowded = np.array([1, 1, 1, 0, 1, 0, 1], dtype=bool), np.array([0, 1, 0, 1, 0, 1, 1, 0, 1], dtype=bool)
    found = with_overlooked(chances, permutation, Overlooked(0.4, crowded), allowed)
    expected = chances.pairs.toarray()
    left, right = [1, 4, 6], [1, 3, 5, 6, 8]
    alone = chances.alone()[left], chances.alone(1)[right]
    for i, row in enumerate(left):
        for j, column in enumerate(right):
            if allowed is None or allowed[row, column]:
                expected[row, column] += 0.4 * alone[0][i] / alone[0].sum() * alone[1][j] / alone[1].sum()
    np.testing.assert_allclose(found.pairs.toarray(), expected, rtol=1e-12)
    assert found.common == pytest.approx(expected.sum())


def test_no_more_partners_are_overlooked_than_rows_seem_alone():
    chances = chances_of(4)
    everywhere = np.ones(7, dtype=bool), np.ones(9, dtype=bool)
    found = with_overlooked(chances, np.full(7, -1), Overlooked(1e9, everywhere), None)
    np.testing.assert_allclose(found.alone(), 0.0, atol=1e-12)
    assert found.pairs.sum(axis=0).max() <= 1 + 1e-12
    # Rows that are matched are not looked at.
    assert with_overlooked(chances, np.arange(7), Overlooked(3.0, everywhere), None) is chances
