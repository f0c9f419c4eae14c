"""Which pairs of two sides may be matched: against double loops over all pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keyless.pairs.constraints import Constraints
from keyless.pairs.limits import Limits


def pairs(*rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


@st.composite
def limited(draw):
    """Limits of small tables: groups, known and forbidden pairs, each or not."""
    shape = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    groups = None
    if draw(st.booleans()):
        groups = tuple(
            np.array(draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size)), dtype=np.int64) for size in shape
        )
    count = draw(st.integers(0, min(shape)))
    known = zip(*(draw(st.permutations(range(size)))[:count] for size in shape), strict=True)
    cells = st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1))
    forbidden = draw(st.lists(cells, max_size=8, unique=True))
    return Limits(shape, groups, pairs(*known), pairs(*forbidden))


def may_match(limits, i, j):
    """The definition, in words of one pair."""
    known = [tuple(pair) for pair in limits.known.tolist()]
    if (i, j) in known:
        return True
    if any(i == left or j == right for left, right in known) or [i, j] in limits.forbidden.tolist():
        return False
    if limits.groups is None:
        return True
    left, right = limits.groups[0][i], limits.groups[1][j]
    return bool(left < 0 or right < 0 or left == right)


def looped(limits):
    return np.array([[may_match(limits, i, j) for j in range(limits.shape[1])] for i in range(limits.shape[0])])


def dense(limits):
    mask = limits.mask()
    return np.ones(limits.shape, dtype=bool) if mask is None else mask


@given(limits=limited())
def test_the_mask_is_what_a_double_loop_says(limits):
    np.testing.assert_array_equal(dense(limits), looped(limits))
    assert (limits.mask() is None) == limits.trivial


@given(limits=limited(), data=st.data())
def test_listed_pairs_and_chosen_rows_are_judged_alike(limits, data):
    expected = looped(limits)
    listed = st.lists(st.tuples(*(st.integers(0, size - 1) for size in limits.shape)), max_size=10)
    rows, columns = pairs(*data.draw(listed)).T
    np.testing.assert_array_equal(limits.permits(rows, columns), expected[rows, columns])
    rows, columns = (
        np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=5)), dtype=np.int64) for size in limits.shape
    )
    mask = limits.mask(rows, columns)
    if limits.trivial:
        assert mask is None
    else:
        np.testing.assert_array_equal(mask, expected[np.ix_(rows, columns)])
        np.testing.assert_array_equal(limits.mask(rows=rows), expected[rows])
        np.testing.assert_array_equal(limits.mask(columns=columns), expected[:, columns])


@given(limits=limited())
def test_choices_count_the_right_rows_that_may_be_matched(limits):
    np.testing.assert_array_equal(limits.choices, looped(limits).sum(axis=1))


@given(limits=limited())
def test_the_pattern_stores_the_pairs_that_may_be_matched(limits):
    pattern = limits.pattern()
    np.testing.assert_array_equal(pattern.toarray(), looped(limits))
    assert pattern.dtype == bool
    assert pattern.nnz == looped(limits).sum()


@given(limits=limited(), data=st.data())
def test_parts_hold_every_pair_that_groups_leave_and_no_other(limits, data):
    rows = None
    if data.draw(st.booleans()):
        rows = np.array(sorted(data.draw(st.sets(st.integers(0, limits.shape[0] - 1)))), dtype=np.int64)
    found = []
    for part in limits.parts(rows):
        own, theirs = (
            np.arange(size) if chosen is None else chosen for chosen, size in zip(part, limits.shape, strict=True)
        )
        found += [(i, j) for i in own.tolist() for j in theirs.tolist()]
    by_groups = looped(Limits(limits.shape, limits.groups))
    chosen = range(limits.shape[0]) if rows is None else rows.tolist()
    expected = {(i, j) for i in chosen for j in range(limits.shape[1]) if by_groups[i, j]}
    assert len(found) == len(set(found))
    assert set(found) == expected


@given(limits=limited(), data=st.data())
def test_reordered_limits_say_the_same_of_the_same_rows(limits, data):
    rows, columns = (np.array(data.draw(st.permutations(range(size))), dtype=np.int64) for size in limits.shape)
    moved = limits.reordered(rows, columns)
    assert moved.shape == limits.shape
    np.testing.assert_array_equal(looped(moved), looped(limits)[np.ix_(rows, columns)])
    np.testing.assert_array_equal(dense(moved), dense(limits)[np.ix_(rows, columns)])
    known = {(int(rows[i]), int(columns[j])) for i, j in moved.known.tolist()}
    assert known == set(map(tuple, limits.known.tolist()))


def test_trivial_means_that_nothing_is_known():
    assert Limits((3, 2)).trivial
    assert not Limits((3, 2), known=pairs((0, 0))).trivial
    assert not Limits((3, 2), forbidden=pairs((0, 0))).trivial
    assert not Limits((3, 2), groups=(np.zeros(3, dtype=int), np.zeros(2, dtype=int))).trivial


def test_a_known_pair_counts_even_where_its_groups_differ():
    limits = Limits((2, 2), groups=(np.array([0, 1]), np.array([0, 1])), known=pairs((0, 1)))
    np.testing.assert_array_equal(limits.mask(), [[False, True], [False, False]])
    np.testing.assert_array_equal(limits.pattern().toarray(), [[False, True], [False, False]])
    np.testing.assert_array_equal(limits.choices, [1, 0])


@st.composite
def joined(draw):
    """Constraints of four tables and entities on two sides, with rows of two tables each, some without a row.

    Known pairs come from one correspondence of the entities, and rows of one entity have one group or none.
    """
    counts = [draw(st.integers(1, 4)) for _ in range(2)]
    numbers = draw(st.permutations(range(4)))
    labels = [[draw(st.integers(0, 2)) for _ in range(count)] for count in counts]
    sides, sizes, groups = [], [0] * 4, [None] * 4
    with_groups = draw(st.booleans())
    for side, count in enumerate(counts):
        members, rows = list(numbers[2 * side : 2 * side + 2]), []
        for member in members:
            some = draw(st.sets(st.integers(0, count - 1), min_size=1))
            present = sorted(some) if member != members[0] else list(range(count))
            order = draw(st.permutations(range(len(present))))
            index = np.full(count, -1, dtype=np.int64)
            index[present] = order
            rows.append(index)
            sizes[member] = len(present)
            if with_groups and draw(st.integers(0, 3)):
                groups[member] = np.full(len(present), -1, dtype=np.int64)
                for entity in present:
                    groups[member][index[entity]] = labels[side][entity] if draw(st.integers(0, 3)) else -1
        sides.append((members, rows))
    known_count = draw(st.integers(0, min(counts)))
    partners = set(zip(*(draw(st.permutations(range(count)))[:known_count] for count in counts), strict=True))
    known, forbidden = {}, {}
    for first, first_rows in zip(*sides[0], strict=True):
        for second, second_rows in zip(*sides[1], strict=True):
            key, sure, wrong = (min(first, second), max(first, second)), [], []
            for i, j in ((i, j) for i in range(counts[0]) for j in range(counts[1])):
                pair = int(first_rows[i]), int(second_rows[j])
                pair = pair if first < second else pair[::-1]
                if min(pair) < 0:
                    continue
                if (i, j) in partners and draw(st.booleans()):
                    sure.append(pair)
                elif (i, j) not in partners and draw(st.integers(0, 3)) == 0:
                    wrong.append(pair)
            if sure:
                known[key] = pairs(*sure)
            if wrong:
                forbidden[key] = pairs(*wrong)
    constraints = Constraints(
        sizes=tuple(sizes), groups=tuple(groups) if with_groups else (), known=known, forbidden=forbidden
    )
    return constraints, *sides


def said(constraints, name, sides, i, j):
    """Whether any two rows of a left and a right entity are a pair of that name."""
    for first, first_rows in zip(*sides[0], strict=True):
        for second, second_rows in zip(*sides[1], strict=True):
            pair = [int(first_rows[i]), int(second_rows[j])]
            listed = getattr(constraints, name).get((min(first, second), max(first, second)), pairs()).tolist()
            if min(pair) >= 0 and (pair if first < second else pair[::-1]) in listed:
                return True
    return False


def group_of(constraints, side, entity):
    """The group of any row of an entity that has one, −1 for none."""
    for member, rows in zip(*side, strict=True):
        group = constraints.groups[member] if constraints.groups else None
        if group is not None and rows[entity] >= 0 and group[rows[entity]] >= 0:
            return int(group[rows[entity]])
    return -1


@given(problem=joined())
def test_limits_between_entities_gather_what_is_known_of_their_rows(problem):
    constraints, *sides = problem
    left, right = sides
    limits = Limits.between(constraints, left, right)
    count, others = len(left[1][0]), len(right[1][0])
    assert limits.shape == (count, others)
    known = np.array([[said(constraints, "known", sides, i, j) for j in range(others)] for i in range(count)])
    for i in range(count):
        for j in range(others):
            own, other = group_of(constraints, left, i), group_of(constraints, right, j)
            expected = own < 0 or other < 0 or own == other
            expected &= not said(constraints, "forbidden", sides, i, j)
            expected &= not (known[i].any() or known[:, j].any())
            assert dense(limits)[i, j] == (known[i, j] or expected)
    np.testing.assert_array_equal(limits.choices, dense(limits).sum(axis=1))


def test_limits_between_two_whole_tables_are_those_of_the_constraints():
    constraints = Constraints(
        sizes=(4, 2, 3),
        groups=(np.array([0, 1, -1, 1]), None, np.array([1, 0, -1])),
        known={(0, 2): pairs((3, 1))},
        forbidden={(0, 2): pairs((2, 0), (2, 0), (1, 2))},
    )
    sides = [([number], [np.arange(constraints.sizes[number])]) for number in (0, 2)]
    limits, turned = Limits.between(constraints, *sides), Limits.between(constraints, *sides[::-1])
    expected = np.array([[False, False, True], [True, False, False], [False, False, True], [False, True, False]])
    np.testing.assert_array_equal(limits.mask(), expected)
    np.testing.assert_array_equal(turned.mask(), expected.T)
    np.testing.assert_array_equal(limits.choices, expected.sum(axis=1))
    np.testing.assert_array_equal(turned.choices, expected.sum(axis=0))


def test_limits_between_tables_of_which_nothing_is_known_are_trivial():
    sides = ([0], [np.arange(3)]), ([1], [np.arange(2)])
    assert Limits.between(None, *sides).trivial
    assert Limits.between(None, *sides).shape == (3, 2)
    assert Limits.between(Constraints(sizes=(3, 2)), *sides).trivial
    one_sided = Constraints(sizes=(3, 2), groups=(np.array([0, 1, 2]), None))
    assert Limits.between(one_sided, *sides).mask() is None
