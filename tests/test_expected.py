"""How many matches are expected right, and the interval of that number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyless.pairs.expected import expected_right

PROBABILITIES = st.lists(st.floats(0.0, 1.0), max_size=50).map(np.array)


@given(PROBABILITIES)
def test_the_interval_holds_the_sum_of_the_probabilities(probability):
    found = expected_right(probability)
    assert found.of == len(probability)
    assert found.count == pytest.approx(probability.sum())
    assert 0.0 <= found.low <= found.count + 1e-9 <= found.high + 1e-6 <= len(probability) + 1e-5


def test_what_is_certain_has_no_interval():
    found = expected_right(np.array([1.0, 1.0, 0.0]))
    assert (found.low, found.count, found.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("off", [-1.0, -0.5, 0.0, 0.5, 1.0])
def test_it_holds_the_truth_in_19_of_20_cases_though_all_odds_are_off(off):
    """Matches are right with odds that differ from those stated by up to a nat, all in one direction."""
    rng = np.random.default_rng(4)
    inside = []
    for _ in range(400):
        odds = rng.normal(2.0, 2.0, size=100)
        right = rng.random(100) < 1 / (1 + np.exp(-(odds + off)))
        found = expected_right(1 / (1 + np.exp(-odds)))
        inside.append(found.low <= right.sum() <= found.high)
    assert np.mean(inside) >= 0.95


def test_in_words():
    assert str(expected_right(np.full(1000, 0.9))) == "900 (742 to 973)"
