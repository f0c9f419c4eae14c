"""The theory against plain definitions, random matrices and the paper's own examples."""

from __future__ import annotations

import doctest
import itertools
import math

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyless.errors import InputError
from keyless.paper import theory

PAPER = [2, 0, 1, 4, 3, 5]  # the paper's (1,2,3,4,5,6) -> (3,1,2,5,4,6), counted from 0
seeded = settings(derandomize=True, deadline=None, max_examples=60)
orders = st.integers(0, 9).flatmap(lambda rows: st.permutations(range(rows)))


# --- Plain definitions ------------------------------------------------------------------------------------------------


def plain_displacement(order):
    count = 0
    for row in range(len(order)):
        if order[row] != row:
            count += 1
    return count


def plain_cycle_number(order):
    """Classes of "reachable by applying the permutation", those of one row left out."""
    classes = set()
    for row in range(len(order)):
        reached, place = {row}, order[row]
        while place != row:
            reached.add(place)
            place = order[place]
        if len(reached) > 1:
            classes.add(frozenset(reached))
    return len(classes)


def matrix_of(order):
    """P with (P·B)[i] = B[order[i]]."""
    matrix = np.zeros((len(order), len(order)))
    for row, source in enumerate(order):
        matrix[row, source] = 1.0
    return matrix


def order_with_cycles(lengths, rows, generator):
    """A permutation with cycles of the given lengths on randomly chosen rows."""
    chosen = generator.permutation(rows)
    order = np.arange(rows)
    start = 0
    for length in lengths:
        cycle = chosen[start : start + length]
        order[cycle] = np.roll(cycle, -1)
        start += length
    return order


def polar_factor(matrix):
    """U·Vᵀ as A·(AᵀA)^(−1/2) on the row space of A."""
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    kept = values > 1e-9 * max(values.max(), 1e-300)
    return matrix @ (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T


def nuclear(matrix):
    return np.linalg.svd(matrix, compute_uv=False).sum()


def low_rank(generator, rows, columns, rank, draw="standard_normal"):
    draws = getattr(generator, draw)
    return draws((rows, rank)) @ draws((rank, columns))


def test_examples_in_docstrings_run():
    result = doctest.testmod(theory)
    assert result.attempted > 0
    assert result.failed == 0


def test_public_names_exist():
    assert all(hasattr(theory, name) for name in theory.__all__)


# --- Permutations -----------------------------------------------------------------------------------------------------


def test_paper_example():
    assert theory.cycles(PAPER) == ((0, 2, 1), (3, 4), (5,))  # (132)(45)(6)
    assert theory.cycle_number(PAPER) == 2
    assert theory.displacement(PAPER) == 5


@pytest.mark.parametrize(
    ("order", "number", "moved"), [([], 0, 0), ([0], 0, 0), ([0, 1], 0, 0), ([1, 0], 1, 2), ([1, 2, 0], 1, 3)]
)
def test_small_permutations(order, number, moved):
    assert theory.cycle_number(order) == number
    assert theory.displacement(order) == moved
    assert sum(map(len, theory.cycles(order))) == len(order)


@seeded
@given(orders)
def test_counts_follow_their_definitions(order):
    number, moved = theory.cycle_number(order), theory.displacement(order)
    assert number == plain_cycle_number(order)
    assert moved == plain_displacement(order)
    assert 2 * number <= moved
    assert moved > number or order == sorted(order)


@seeded
@given(orders)
def test_cycles_rebuild_the_permutation(order):
    rebuilt = {}
    for cycle in theory.cycles(order):
        rebuilt.update(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
    assert [rebuilt[row] for row in range(len(order))] == order


@seeded
@given(orders, st.randoms(use_true_random=False))
def test_counts_do_not_depend_on_row_names(order, random):
    names = list(range(len(order)))
    random.shuffle(names)
    renamed = [0] * len(order)
    inverse = [0] * len(order)
    for row, target in enumerate(order):
        renamed[names[row]] = names[target]
        inverse[target] = row
    for other in (renamed, inverse):
        assert theory.cycle_number(other) == theory.cycle_number(order)
        assert theory.displacement(other) == theory.displacement(order)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, array_api_strict.asarray, tuple])
def test_permutations_of_any_kind(kind):
    order = np.asarray(PAPER, dtype=kind) if isinstance(kind, type) and kind is not tuple else kind(PAPER)
    assert theory.cycles(order) == ((0, 2, 1), (3, 4), (5,))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 3, 1], r"permutation, position 1: must name each row from 0 to 2 once; found 3\. Leave out"),
        ([1, -1, 0], r"permutation, position 1: must name each row from 0 to 2 once; found -1\."),
        ([0, 1, 1, 3], r"permutation, position 2: must name each row from 0 to 3 once; found 1 again\."),
        ([0.0, 1.0], r"permutation: must hold whole numbers; found dtype float64\. Convert it"),
        ([True, False], r"permutation: must hold whole numbers; found dtype bool\."),
        ([[0, 1]], r"permutation: must be a 1-D array of row numbers; found shape \(1, 2\)\."),
        ([[0], [1, 2]], r"permutation: must be a 1-D array of row numbers; found rows of unequal length\."),
        (3, r"permutation: must be a 1-D array of row numbers; found shape \(\)\."),
    ],
)
@pytest.mark.parametrize("function", [theory.cycles, theory.cycle_number, theory.displacement])
def test_what_is_no_permutation_is_refused(function, order, message):
    with pytest.raises(InputError, match=message):
        function(order)


# --- Rank -------------------------------------------------------------------------------------------------------------


@seeded
@given(orders.filter(len))
def test_excess_is_the_rank_of_the_shuffle(order):
    """H − C = rank(P − I), the step on which Proposition 1 rests; here with rank, r_A, r_B too large to matter."""
    rows = len(order)
    change = np.linalg.matrix_rank(matrix_of(order) - np.eye(rows))
    assert theory.displacement(order) - theory.cycle_number(order) == change
    bound = theory.rank_bound(1, [order], block_ranks=[1, 1], columns=[rows, rows])
    assert bound == min(rows, 2, 1 + change)


def test_proposition_1_holds_for_all_orders_of_six_rows():
    generator = np.random.default_rng(11)
    for shared, alone_a, alone_b in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (0, 1, 1), (1, 1, 2)]:
        common = generator.standard_normal((6, shared))
        sides = [np.hstack([common, generator.standard_normal((6, alone))]) for alone in (alone_a, alone_b)]
        reference, table = (side @ generator.standard_normal((side.shape[1], 4)) for side in sides)
        ranks = [np.linalg.matrix_rank(matrix) for matrix in (reference, table)]
        rank = np.linalg.matrix_rank(np.hstack([reference, table]))
        assert (rank, *ranks) == (shared + alone_a + alone_b, shared + alone_a, shared + alone_b)
        every = list(itertools.permutations(range(6)))
        joint = np.stack([np.hstack([reference, table[list(order)]]) for order in every])
        for order, found in zip(every, np.linalg.matrix_rank(joint), strict=True):
            assert found <= theory.rank_bound(rank, [order], block_ranks=ranks, columns=[4, 4])


@pytest.mark.parametrize("columns", [(3, 2, 2), (4, 4, 4, 4)])
def test_corollary_holds_for_several_tables(columns):
    generator = np.random.default_rng(12)
    for _ in range(200):
        rows, rank = int(generator.integers(2, 15)), int(generator.integers(1, 3))
        tables = np.split(low_rank(generator, rows, sum(columns), rank), np.cumsum(columns)[:-1], axis=1)
        shuffles = []
        for _ in tables[1:]:
            moved = int(generator.integers(2, rows + 1)) if generator.random() < 0.7 else 0
            shuffles.append(order_with_cycles([moved] if moved else [], rows, generator))
        shuffled = [tables[0], *(table[order] for table, order in zip(tables[1:], shuffles, strict=True))]
        ranks = [np.linalg.matrix_rank(table) for table in tables]
        true_rank = np.linalg.matrix_rank(np.hstack(tables))
        bound = theory.rank_bound(true_rank, shuffles, block_ranks=ranks, columns=columns)
        assert np.linalg.matrix_rank(np.hstack(shuffled)) <= bound


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([2], [2], 3 + 1 + 1),  # r + Σ (H − C), each swap adds one direction
        ([2, 3], [2], 3 + 3 + 1),
        ([30], [29], 3 * 3),  # r_A + r_B1 + r_B2
    ],
)
def test_corollary_is_attained(first, second, expected):
    generator = np.random.default_rng(18)
    tables = np.split(low_rank(generator, 30, 12, 3), 3, axis=1)
    shuffles = [order_with_cycles(lengths, 30, generator) for lengths in (first, second)]
    joint = np.hstack([tables[0], tables[1][shuffles[0]], tables[2][shuffles[1]]])
    assert np.linalg.matrix_rank(joint) == expected
    assert theory.rank_bound(3, shuffles, block_ranks=[3, 3, 3], columns=[4, 4, 4]) == expected


@pytest.mark.parametrize(
    ("rank", "ranks", "columns", "expected"),
    [
        (2, [2, 2], [9, 9], 4),  # r_A + r_B
        (3, [3, 3], [3, 3], 6),  # m, which never lies below r_A + r_B
        (5, [5, 5], [9, 9], 6),  # n
    ],
)
def test_each_term_of_the_bound_can_bind(rank, ranks, columns, expected):
    assert theory.rank_bound(rank, [[1, 2, 3, 4, 5, 0]], block_ranks=ranks, columns=columns) == expected


@pytest.mark.parametrize("draw", ["standard_normal", "random", "standard_exponential"])
@pytest.mark.parametrize(("rows", "rank"), [(2, 1), (3, 1), (8, 2), (18, 3), (33, 4)])
def test_proposition_2_holds_for_controlled_cycle_types(rows, rank, draw):
    generator = np.random.default_rng(13)
    types = [[], [2], [rows], [2] * (rows // 2)]
    types += [[length] for length in range(3, min(rows, 7))]
    types += [[3] * (rows // 3), [2, 3], [2, rows - 2], [2, 2, 3], [rows - 1]]
    for lengths in types:
        if sum(lengths) > rows or 1 in lengths or 0 in lengths:
            continue
        order = order_with_cycles(lengths, rows, generator)
        assert theory.displacement(order) == sum(lengths)
        assert theory.cycle_number(order) == len(lengths)
        joint = low_rank(generator, rows, 2 * rank + 3, rank, draw)
        reference, table = joint[:, : rank + 1], joint[:, rank + 1 :]
        found = np.linalg.matrix_rank(np.hstack([reference, table[order]]))
        expected = min(2 * rank, rank + sum(lengths) - len(lengths))
        assert found == expected
        assert theory.generic_rank(rank, order, columns=(rank + 1, rank + 2)) == expected


def test_proposition_2_holds_for_random_orders():
    generator = np.random.default_rng(14)
    for _ in range(200):
        rows = int(generator.integers(2, 40))
        rank = int(generator.integers(1, math.isqrt(rows // 2) + 1))
        order = generator.permutation(rows)
        joint = low_rank(generator, rows, 2 * rank, rank)
        found = np.linalg.matrix_rank(np.hstack([joint[:, :rank], joint[:, rank:][order]]))
        assert theory.generic_rank(rank, order, columns=(rank, rank)) == found


@pytest.mark.parametrize("rows", range(1, 80))
def test_generic_rank_knows_where_it_holds(rows):
    order = np.arange(rows)
    for rank in range(1, 8):
        if rank <= math.sqrt(rows / 2) or math.isclose(rank, math.sqrt(rows / 2)):
            assert theory.generic_rank(rank, order) == rank
        else:
            with pytest.raises(
                InputError, match=rf"rank: must be at most √\(n/2\) = .* for {rows} rows .*; found {rank}"
            ):
                theory.generic_rank(rank, order)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.generic_rank(2, range(8), columns=(2, 1)), r"number of columns of each table; found 2\."),
        (lambda: theory.generic_rank(2, range(8), columns=(2, 2, 2)), r"columns: must be two numbers.*; found 3\."),
        (lambda: theory.generic_rank(2, range(8), columns=4), r"columns: must be a list of whole numbers.*; found 4\."),
        (lambda: theory.generic_rank(0, range(8)), r"rank: must be a whole number of at least 1; found 0\."),
        (lambda: theory.generic_rank(1.5, range(8)), r"rank: must be a whole number; found 1\.5\."),
    ],
)
def test_generic_rank_refuses(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("rank", "permutations", "block_ranks", "columns", "message"),
    [
        (1, [[0, 1]], [1], [2, 2], r"must each have an entry for the reference.*found 1 and 2 entries for 1 perm"),
        (1, [], [1], [2], r"\(at least one\); found 1 and 1 entries for 0 permutations\."),
        (1, [0, 1], [1, 1], [2, 2], r"permutations\[0\]: must be a 1-D array.*Pass one per table\."),
        (1, [[0, 1], [0]], [1, 1, 1], [2, 2, 2], r"permutations\[1\]: must have one entry per row, 2; found 1\."),
        (
            1,
            [[0, 1]],
            [2, 1],
            [2, 2],
            r"block_ranks: each must be at most the rank .*found \[2, 1\] for rank 1, 2 rows",
        ),
        (2, [[0, 1]], [2, 1], [1, 2], r"block_ranks: each must be at most .* and \[1, 2\] columns\."),
        (3, [[0, 1, 2]], [1, 1], [2, 2], r"together they must be at least the rank.*found \[1, 1\] for rank 3"),
        (3, [[0, 1]], [2, 2], [2, 2], r"rank must be at most the number of rows; found .* for rank 3, 2 rows"),
        (1, [[0, 1]], [1, "x"], [2, 2], r"block_ranks\[1\]: must be a whole number; found 'x'\."),
        (1, [[0, 1]], [1, 1], [2, 0], r"columns\[1\]: must be a whole number of at least 1; found 0\."),
    ],
)
def test_rank_bound_refuses(rank, permutations, block_ranks, columns, message):
    with pytest.raises(InputError, match=message):
        theory.rank_bound(rank, permutations, block_ranks=block_ranks, columns=columns)


# --- Nuclear norm -----------------------------------------------------------------------------------------------------


@st.composite
def small_tables(draw):
    """Two tables of small whole numbers (so with ties, zeros and low ranks), not both zero, and a shuffle."""
    rows = draw(st.integers(1, 6))
    tables = []
    for _ in range(2):
        columns = draw(st.integers(1, 4))
        entries = draw(st.lists(st.integers(-3, 3), min_size=rows * columns, max_size=rows * columns))
        tables.append(np.array(entries, dtype=float).reshape(rows, columns))
    if not (tables[0].any() or tables[1].any()):
        tables[0][0, 0] = 1.0
    return tables[0], tables[1], draw(st.permutations(range(rows)))


@seeded
@given(small_tables())
def test_nuclear_norm_inequalities_hold(case):
    reference, table, order = case
    bounds = theory.nuclear_norm_bounds(reference, table, order)
    shuffled = matrix_of(order) @ table
    norms = nuclear(reference), nuclear(table)
    rounding = 1e-12 * sum(norms)
    assert bounds.original == pytest.approx(nuclear(np.hstack([reference, table])))
    assert bounds.permuted == pytest.approx(nuclear(np.hstack([reference, shuffled])))
    assert bounds.upper == pytest.approx(sum(norms))
    assert bounds.upper >= bounds.permuted - rounding
    assert bounds.permuted >= bounds.lower - rounding
    assert bounds.lower >= bounds.lowest - rounding
    assert bounds.lowest * math.sqrt(2) == pytest.approx(bounds.upper)
    assert bounds.lower * bounds.polar_norm == pytest.approx(bounds.upper)
    assert bounds.change_limit == pytest.approx(min(norms) / max(norms))
    assert bounds.change == pytest.approx((bounds.permuted - bounds.original) / bounds.original)
    assert abs(bounds.change) <= bounds.change_limit + 1e-12
    assert 1 <= bounds.polar_norm <= math.sqrt(2)


@seeded
@given(small_tables())
def test_polar_norm_is_the_spectral_norm_of_the_polar_factors(case):
    reference, table, order = case
    factors = np.hstack([polar_factor(reference), matrix_of(order) @ polar_factor(table)])
    assert theory.polar_norm(reference, table, order) == pytest.approx(np.linalg.norm(factors, 2), rel=1e-7)


def test_bounds_are_attained():
    """Orthogonal columns reach the upper bound and polar norm 1; equal tables reach the lowest and √2."""
    reference, table = np.array([[1.0], [0.0]]), np.array([[2.0], [0.0]])
    apart = theory.nuclear_norm_bounds(reference, table, [1, 0])
    assert (apart.permuted, apart.upper, apart.lower, apart.polar_norm) == pytest.approx((3.0, 3.0, 3.0, 1.0))
    same = np.random.default_rng(15).standard_normal((5, 2))
    equal = theory.nuclear_norm_bounds(same, same, range(5))
    assert (equal.permuted, equal.lower) == pytest.approx((equal.lowest, equal.lowest))
    assert equal.polar_norm == pytest.approx(math.sqrt(2))


def test_a_zero_table_changes_nothing():
    bounds = theory.nuclear_norm_bounds([[3.0], [4.0]], [[0.0], [0.0]], [1, 0])
    assert (bounds.change, bounds.change_limit, bounds.polar_norm) == (0.0, 0.0, 1.0)
    assert bounds.lower == bounds.permuted == bounds.upper == pytest.approx(5.0)


def test_tolerance_drops_weak_directions():
    reference = np.array([[1.0, 0.0], [0.0, 1e-3]])
    table = np.array([[0.0], [1.0]])
    assert theory.polar_norm(reference, table, [0, 1]) == pytest.approx(math.sqrt(2))
    assert theory.polar_norm(reference, table, [0, 1], tolerance=0.01) == pytest.approx(1.0)


def test_single_precision_rounding_is_not_rank():
    generator = np.random.default_rng(16)
    joint = low_rank(generator, 8, 8, 1)
    reference, table = joint[:, :4].astype(np.float32), joint[:, 4:].astype(np.float32)
    assert theory.assumption_constants(reference, table).rank == 1
    assert theory.minimise_rank(reference[:5], table[:5]).value == 1
    strict = theory.assumption_constants(array_api_strict.asarray(reference), array_api_strict.asarray(table))
    assert strict == theory.assumption_constants(reference, table)


def test_predicted_increase():
    assert theory.predicted_nuclear_increase(0, 1) == 1.0
    assert theory.predicted_nuclear_increase(50, 100) == pytest.approx(1 / math.sqrt(0.75))
    assert theory.predicted_nuclear_increase(7, 7) == pytest.approx(math.sqrt(2))
    rises = [theory.predicted_nuclear_increase(moved, 30) for moved in range(31)]
    assert rises == sorted(set(rises))


@pytest.mark.parametrize("moved", range(0, 17, 4))
def test_predicted_increase_is_the_lower_bound_where_moved_rows_decorrelate(moved):
    """Signs + + − − around each 4-cycle give ⟨u, Pu⟩ = 1 − H/n exactly; two equal columns then have a known norm."""
    rows = 16
    column = np.resize([1.0, 1.0, -1.0, -1.0], rows)[:, None]
    order = np.arange(rows)
    order[:moved] = np.arange(moved).reshape(-1, 4)[:, [1, 2, 3, 0]].ravel()
    assert theory.displacement(order) == moved
    bounds = theory.nuclear_norm_bounds(column, column, order)
    assert bounds.lower / bounds.original == pytest.approx(theory.predicted_nuclear_increase(moved, rows))
    cosine = 1 - moved / rows
    assert bounds.permuted / bounds.original == pytest.approx(math.sqrt(1 + math.sqrt(1 - cosine**2)))


@pytest.mark.parametrize(
    ("moved", "rows", "message"),
    [
        (3, 2, r"displacement: must be at most the number of rows, 2; found 3\."),
        (-1, 2, r"displacement: must be zero or a positive number; found -1\."),
        (0, 0, r"rows: must be a whole number of at least 1; found 0\."),
    ],
)
def test_predicted_increase_refuses(moved, rows, message):
    with pytest.raises(InputError, match=message):
        theory.predicted_nuclear_increase(moved, rows)


PAIRWISE = [
    lambda a, b: theory.nuclear_norm_bounds(a, b, range(len(a))),
    lambda a, b: theory.polar_norm(a, b, range(len(a))),
    theory.assumption_constants,
]
SEARCHES = [theory.minimise_rank, theory.minimise_nuclear_norm]


@pytest.mark.parametrize("function", PAIRWISE + SEARCHES)
@pytest.mark.parametrize(
    ("reference", "table", "message"),
    [
        ([[1.0], [2.0]], [[1.0]], r"table: must have the 2 rows of the reference; found 1\."),
        ([[1.0], [math.nan]], [[1.0], [2.0]], r"reference, row 1, column 0: must be a finite number; found NaN"),
        ([[1.0]], [1.0], r"table: must be a table with rows and columns \(2-D\); found 1-D"),
        (np.zeros((0, 2)), np.zeros((0, 2)), r"reference: must have at least one row and one column; .*\(0, 2\)"),
    ],
)
def test_bad_tables_are_refused(function, reference, table, message):
    with pytest.raises(InputError, match=message):
        function(reference, table)


@pytest.mark.parametrize("function", PAIRWISE)
def test_two_zero_tables_are_refused(function):
    with pytest.raises(InputError, match=r"reference, table: must not both be zero; found only zeros\."):
        function(np.zeros((3, 2)), np.zeros((3, 1)))


def test_other_bad_arguments_are_refused():
    rows = [[1.0], [2.0]]
    with pytest.raises(InputError, match=r"permutation: must have one entry per row, 2; found 3\."):
        theory.polar_norm(rows, rows, [0, 1, 2])
    for function in (theory.assumption_constants, *SEARCHES):
        with pytest.raises(InputError, match=r"tolerance: must be zero or a positive number; found -1\."):
            function(rows, rows, tolerance=-1)
