"""Rows in folds: dealt along a number, each once, and back again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyless.maps.folds import Folds


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**31))
def test_every_row_is_in_one_fold_and_folds_are_equally_long_but_for_one_row(rows, count, seed):
    numbers = np.random.default_rng(seed).permutation(rows)
    folds = Folds.along(numbers, count)
    assert folds.count == min(rows, count)
    members = np.bincount(folds.of_rows, minlength=folds.count)
    assert members.sum() == rows
    assert set(members) <= {folds.size, folds.size - 1}
    assert len(set(folds.place.tolist())) == rows


@pytest.mark.parametrize("axis", [0, 1])
def test_folding_and_back_changes_nothing_and_empty_rows_are_zero(rng, axis):
    numbers = rng.normal(size=11)
    folds = Folds.along(numbers, 4)
    given_rows = rng.normal(size=(11, 3) if axis == 0 else (2, 11, 3))
    folded = folds.folded(given_rows, axis=axis)
    assert folded.shape == ((4, 3, 3) if axis == 0 else (2, 4, 3, 3))
    np.testing.assert_array_equal(folds.unfolded(folded, axis=axis), given_rows)
    np.testing.assert_allclose(folded.sum(), given_rows.sum())
    assert np.count_nonzero(folded) == given_rows.size
    for row in range(11):
        inside = folded[folds.of_rows[row]] if axis == 0 else folded[0, folds.of_rows[row]]
        wanted = given_rows[row] if axis == 0 else given_rows[0, row]
        assert any(np.array_equal(each, wanted) for each in inside)


def test_rows_are_dealt_along_the_numbers_whatever_their_order(rng):
    numbers = rng.normal(size=10)
    by_number = Folds.along(numbers, 3).of_rows[np.argsort(numbers)]
    assert by_number.tolist() == [0, 1, 2] * 3 + [0]
    order = rng.permutation(10)
    np.testing.assert_array_equal(Folds.along(numbers[order], 3).of_rows, Folds.along(numbers, 3).of_rows[order])
