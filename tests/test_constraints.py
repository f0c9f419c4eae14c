"""What may be the same entity: against double loops over all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyless.errors import InputError
from keyless.pairs.constraints import Constraints
from ways import allowed


def pairs(*rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


@st.composite
def problems(draw):
    """Two or three tables with groups, known and forbidden pairs that do not contradict each other."""
    sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=3)))
    groups = ()
    if draw(st.booleans()):
        groups = tuple(
            None
            if draw(st.integers(0, 3)) == 0
            else np.array(draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)))
            for n in sizes
        )
    known, forbidden = {}, {}
    for second in range(1, len(sizes)):
        both = min(sizes[0], sizes[second])
        count = draw(st.integers(0, both))
        left = draw(st.permutations(range(sizes[0])))[:count]
        right = draw(st.permutations(range(sizes[second])))[:count]
        sure = list(zip(left, right, strict=True))
        if draw(st.booleans()):
            known[0, second] = pairs(*sure)
        cells = st.tuples(st.integers(0, sizes[0] - 1), st.integers(0, sizes[second] - 1))
        wrong = [cell for cell in draw(st.lists(cells, max_size=6)) if cell not in sure]
        if draw(st.booleans()):
            forbidden[0, second] = pairs(*wrong)
    return Constraints(sizes=sizes, groups=groups, known=known, forbidden=forbidden)


def may_match(constraints, first, second, i, j):
    """The definition, in words of one pair."""
    known = [tuple(row) for row in constraints.known.get((first, second), pairs()).tolist()]
    if (i, j) in known:
        return True
    if any(i == left or j == right for left, right in known):
        return False
    if [i, j] in constraints.forbidden.get((first, second), pairs()).tolist():
        return False
    if constraints.groups:
        left, right = constraints.groups[first], constraints.groups[second]
        if left is not None and right is not None and left[i] >= 0 and right[j] >= 0:
            return bool(left[i] == right[j])
    return True


@given(constraints=problems())
def test_allowed_is_what_a_double_loop_says(constraints):
    for second in range(1, len(constraints.sizes)):
        for first in range(second):
            expected = [
                [may_match(constraints, first, second, i, j) for j in range(constraints.sizes[second])]
                for i in range(constraints.sizes[first])
            ]
            found, turned = allowed(constraints, first, second), allowed(constraints, second, first)
            if found is None:
                assert turned is None
                assert np.all(expected)
            else:
                np.testing.assert_array_equal(found, expected)
                np.testing.assert_array_equal(turned, np.transpose(expected))


def test_unknown_groups_may_match_any():
    constraints = Constraints(sizes=(3, 3), groups=(np.array([0, 1, -1]), np.array([1, -1, 2])))
    np.testing.assert_array_equal(
        allowed(constraints, 0, 1), [[False, True, False], [True, True, False], [True, True, True]]
    )


def test_a_known_pair_takes_both_rows_off_the_market():
    constraints = Constraints(sizes=(3, 2), known={(0, 1): pairs((2, 0))})
    np.testing.assert_array_equal(allowed(constraints, 0, 1), [[False, True], [False, True], [True, False]])


def test_a_known_pair_counts_even_where_its_groups_differ():
    constraints = Constraints(sizes=(2, 2), groups=(np.array([0, 1]), np.array([0, 1])), known={(0, 1): pairs((0, 1))})
    np.testing.assert_array_equal(allowed(constraints, 0, 1), [[False, True], [False, False]])


@pytest.mark.parametrize(
    ("constraints", "trivial"),
    [
        (Constraints(sizes=(2, 2)), True),
        (Constraints(sizes=(2, 2), groups=(None, None)), True),
        (Constraints(sizes=(2, 2), groups=(None, np.zeros(2, dtype=int))), False),
        (Constraints(sizes=(2, 2), known={(0, 1): pairs((0, 0))}), False),
        (Constraints(sizes=(2, 2), forbidden={(0, 1): pairs((0, 0))}), False),
    ],
)
def test_trivial_means_that_nothing_is_known(constraints, trivial):
    assert constraints.trivial is trivial


@pytest.mark.parametrize(
    ("known", "forbidden", "message"),
    [
        (
            [(0, 0), (0, 1)],
            [],
            r"^known_pairs: must name each row at most once; row 0, counted from 0, has two partners\.$",
        ),
        (
            [(0, 1), (2, 1)],
            [],
            r"^known_pairs: must name each row at most once; row 1, counted from 0, has two partners\.$",
        ),
        ([(3, 0)], [], r"^known_pairs: must name rows that exist, .* below 3 and 2; found numbers from 0 to 3\.$"),
        ([(0, 2)], [], r"^known_pairs: must name rows that exist, .* below 3 and 2; found numbers from 0 to 2\.$"),
        ([], [(-1, 0)], r"^forbid: must name rows that exist, .* below 3 and 2; found numbers from -1 to 0\.$"),
        ([(0, 1), (2, 0)], [(1, 1), (2, 0)], r"^forbid: must not name a known pair; rows \(2, 0\) are in both\.$"),
    ],
)
def test_contradictions_are_refused(known, forbidden, message):
    with pytest.raises(InputError, match=message):
        Constraints(sizes=(3, 2), known={(0, 1): pairs(*known)}, forbidden={(0, 1): pairs(*forbidden)})


def test_pairs_must_be_pairs():
    with pytest.raises(
        InputError, match=r"^forbid: must be pairs \(reference row, table row\); found shape \(1, 3\)\.$"
    ):
        Constraints(sizes=(3, 2), forbidden={(0, 1): np.array([[0, 1, 1]])})
