"""One distribution per row: match, probability, second best and margin are read off it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from keyless.pairs.limits import Limits
from keyless.pairs.stated import LEAST_TOLD, stated, with_known_pairs


def drawn(seed, rows=6, columns=7):
    """A coupling whose rows sum to at most one, and a one-to-one matching."""
    rng = np.random.default_rng(seed)
    coupling = rng.random((rows, columns)) ** 4
    coupling /= coupling.sum(axis=1, keepdims=True) * rng.uniform(1.0, 2.0, size=(rows, 1))
    permutation = np.where(rng.random(rows) < 0.3, -1, rng.permutation(columns)[:rows])
    return coupling, permutation


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.0, 1.0), st.booleans())
def test_all_is_read_off_one_distribution(seed, belief, listed):
    coupling, permutation = drawn(seed)
    limits = Limits((6, 7))
    pairs = sparse.csr_array(coupling) if listed else coupling
    found = stated(permutation, pairs, limits=limits, belief=belief)
    dense = found.coupling.toarray() if listed else found.coupling
    # Every pair of the dense coupling was looked at, so nothing is left over.
    np.testing.assert_allclose(dense.sum(axis=1) + found.alone, 1.0, atol=1e-9)
    assert (dense >= 0).all()
    for row, match in enumerate(permutation):
        answers = [*dense[row], found.alone[row]]
        own = answers.pop(match if match >= 0 else 7)
        assert found.probability[row] == pytest.approx(own)
        assert found.probability[row] + max(answers) <= 1 + 1e-9
        expected = np.log(max(own, LEAST_TOLD)) - np.log(max(*answers, LEAST_TOLD))
        assert found.margin[row] == pytest.approx(expected)
        if own > 0.5:
            assert found.margin[row] > 0


def test_without_any_belief_a_row_is_a_guess():
    coupling, permutation = drawn(3, rows=8, columns=8)
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 2])
    others = np.array([0, 0, 0, 0, 1, 1, 1, 3])
    limits = Limits((8, 8), (groups, others))
    allowed = limits.mask()
    found = stated(permutation, np.where(allowed, coupling, 0.0), limits=limits, belief=0.0)
    np.testing.assert_allclose(found.coupling[:4, :4], 0.9 / 4)
    np.testing.assert_allclose(found.coupling[4:7, 4:7], 0.9 / 3)
    # Nobody may be the partner of the last row; of the others one in ten is taken to have none, as before any look.
    np.testing.assert_allclose(found.alone, [0.1] * 7 + [1.0])
    assert not found.coupling[~allowed].any()


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("belief", [0.0, 0.4, 1.0])
def test_known_pairs_are_certain_whatever_the_map(belief, listed):
    coupling, _ = drawn(5, rows=5, columns=6)
    limits = Limits((5, 6), known=np.array([[1, 4], [3, 0]]))
    coupling = np.where(limits.mask(), coupling, 0.0)
    # A search that took row 0 for the partner of the known column 4, and left row 3 alone.
    permutation = np.array([4, -1, 2, -1, 5])
    matches, pairs = with_known_pairs(permutation, sparse.csr_array(coupling) if listed else coupling, limits)
    assert matches.tolist() == [-1, 4, 2, 0, 5]
    found = stated(matches, pairs, limits=limits, belief=belief)
    dense = found.coupling.toarray() if listed else found.coupling
    for row, column in limits.known:
        assert found.probability[row] == dense[row, column] == 1.0
        assert found.alone[row] == 0.0
        assert dense[row].sum() == dense[:, column].sum() == 1.0
