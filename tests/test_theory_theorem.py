"""Theorem 1 as printed, the examples that refute it, and the exact minimisers against plain loops."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from keyless.errors import InputError
from keyless.paper import theory

SEARCHES = [theory.minimise_rank, theory.minimise_nuclear_norm]


def nuclear(matrix):
    return np.linalg.svd(matrix, compute_uv=False).sum()


def low_rank(generator, rows, columns, rank):
    return generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))


@st.composite
def small_tables(draw, *, most_rows):
    """Two tables of small whole numbers, so with ties, zeros and low ranks; not both zero."""
    rows, entries = draw(st.integers(1, most_rows)), st.integers(-3, 3)
    reference, table = (draw(arrays(float, (rows, draw(st.integers(1, 4))), elements=entries)) for _ in range(2))
    if not (reference.any() or table.any()):
        reference[0, 0] = 1.0
    return reference, table


# --- Theorem 1 --------------------------------------------------------------------------------------------------------


def plain_constants(reference, table):
    """ε₁, ε₂ and ε₃ by loops over singular triplets, trying both signs."""
    left, right = (np.linalg.svd(matrix, full_matrices=False)[:2] for matrix in (reference, table))
    ranks = [np.linalg.matrix_rank(matrix) for matrix in (reference, table)]
    first, second, third = 0.0, 0.0, math.inf
    for index in range(np.linalg.matrix_rank(np.hstack([reference, table]))):
        values = [side[1][index] if index < rank else 0.0 for side, rank in zip((left, right), ranks, strict=True)]
        first = max(first, abs(values[0] - values[1]))
    for index in range(min(ranks)):
        u, v = left[0][:, index], right[0][:, index]
        second = max(second, min(np.linalg.norm(u - v), np.linalg.norm(u + v)))
        for vector in (u, v):
            for row, other in itertools.permutations(range(len(vector)), 2):
                third = min(third, abs(vector[row] - vector[other]))
    return first, second, third


def test_constants_follow_their_definitions():
    generator = np.random.default_rng(21)
    for rows, wide, narrow, rank in [
        (1, 1, 1, 1),
        (2, 1, 1, 1),
        (7, 3, 2, 2),
        (9, 4, 4, 3),
        (3, 5, 4, 3),
        (6, 3, 1, 3),
    ]:
        joint = low_rank(generator, rows, wide + narrow, rank)
        reference, table = joint[:, :wide], joint[:, wide:]
        constants = theory.assumption_constants(reference, table)
        found = constants.singular_value_gap, constants.singular_vector_gap, constants.entry_gap
        assert found == pytest.approx(plain_constants(reference, table))
        norms = nuclear(reference), nuclear(table)
        assert (constants.nuclear_sum, constants.nuclear_larger) == pytest.approx((sum(norms), max(norms)))
        assert constants.rank == min(rows, rank)
        assert constants.common_rank == min(rows, rank, wide, narrow)
        assert constants.size == max(rows, wide + narrow)


def test_constants_known_by_construction_whatever_the_signs():
    generator = np.random.default_rng(22)
    basis = np.linalg.qr(generator.standard_normal((12, 6)))[0]
    angle = 0.1
    turned = math.cos(angle) * basis[:, :3] + math.sin(angle) * basis[:, 3:]
    for _ in range(20):
        rights = [np.linalg.qr(generator.standard_normal((4, 3)))[0] for _ in range(2)]
        signs = generator.choice([-1.0, 1.0], size=3)
        reference = basis[:, :3] @ np.diag([5.0, 3.0, 2.0]) @ rights[0].T
        table = turned @ np.diag(signs * [4.5, 3.2, 2.0]) @ rights[1].T
        constants = theory.assumption_constants(reference, table)
        assert constants.singular_value_gap == pytest.approx(0.5)
        assert constants.singular_vector_gap == pytest.approx(2 * math.sin(angle / 2))
        assert (constants.rank, constants.common_rank, constants.size) == (6, 3, 12)


def test_one_table_zero_or_repeated_rows():
    empty = theory.assumption_constants([[3.0], [4.0]], [[0.0], [0.0]])
    assert (empty.singular_value_gap, empty.singular_vector_gap) == (pytest.approx(5.0), 0.0)
    assert (empty.common_rank, empty.rank, empty.entry_gap) == (0, 1, math.inf)
    assert not theory.printed_theorem_bound(empty, noise=0.0).conditions_met
    generator = np.random.default_rng(23)
    for _ in range(50):
        joint = low_rank(generator, 20, 6, 2)
        joint[4] = joint[1]
        claim = theory.printed_theorem_bound(theory.assumption_constants(joint[:, :3], joint[:, 3:]), noise=0.0)
        assert claim.bound == math.inf
        assert claim.unmet[-1] == "ε₃ must be above 0; found 0: a singular vector has two equal entries."


@settings(derandomize=True, deadline=None, max_examples=60)
@given(small_tables(most_rows=6))
def test_first_lemma_holds(case):
    """‖M‖* ≤ D/√2 + (√2+1)ε₁r + ε₂N: the paper's first lemma is true, so the constants must satisfy it."""
    reference, table = case
    constants = theory.assumption_constants(reference, table)
    limit = constants.nuclear_sum / math.sqrt(2) + constants.singular_vector_gap * constants.nuclear_larger
    limit += (math.sqrt(2) + 1) * constants.singular_value_gap * constants.rank
    assert nuclear(np.hstack([reference, table])) <= limit * (1 + 1e-12)


@pytest.fixture
def constants():
    return theory.AssumptionConstants(
        singular_value_gap=0.1,
        singular_vector_gap=0.05,
        entry_gap=0.2,
        rank=3,
        common_rank=2,
        nuclear_sum=10.0,
        nuclear_larger=6.0,
        size=5,
    )


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.02])
def test_printed_bound_solves_the_inequality_it_comes_from(constants, noise):
    """The supplement's (@) with equality: D/(√(2 − Hε₃²/2) + √T·ε₂) = D/√2 + (√2+1)ε₁r + ε₂N + 2√(DLσ)."""
    claim = theory.printed_theorem_bound(constants, noise=noise)
    assert claim.conditions_met
    left = 10 / (math.sqrt(2 - claim.bound * 0.2**2 / 2) + math.sqrt(2) * 0.05)
    right = 10 / math.sqrt(2) + (math.sqrt(2) + 1) * 0.1 * 3 + 0.05 * 6 + 2 * math.sqrt(10 * 5 * noise)
    assert left == pytest.approx(right)


def test_printed_probability(constants):
    assert theory.printed_theorem_bound(constants, noise=0.0).probability == 1.0
    noise = 10 / (8 * 5 * math.log(4))  # D/8Lσ = log 4
    assert theory.printed_theorem_bound(constants, noise=noise).probability == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("field", "inside", "outside", "message"),
    [
        ("singular_value_gap", 0.83, 0.84, r"ε₁ must be at most D/4r = 0\.8333; found 0\.84\."),
        ("singular_vector_gap", 0.249, 0.251, r"ε₂ must be at most 1/\(2√\(2T\)\) = 0\.25; found 0\.251\."),
        ("nuclear_larger", 141.4, 141.5, r"ε₂ must be at most √2·D/2N = 0\.04997; found 0\.05\."),
        ("entry_gap", 1e-200, 0.0, r"ε₃ must be above 0; found 0: a singular vector has two equal entries\."),
    ],
)
def test_each_condition_is_checked(constants, field, inside, outside, message):
    values = vars(constants)
    assert theory.printed_theorem_bound(
        theory.AssumptionConstants(**values | {field: inside}), noise=0.0
    ).conditions_met
    claim = theory.printed_theorem_bound(theory.AssumptionConstants(**values | {field: outside}), noise=0.0)
    assert not claim.conditions_met
    assert len(claim.unmet) == 1
    assert re.fullmatch(message, claim.unmet[0])


def test_noise_condition_and_bad_noise(constants):
    assert theory.printed_theorem_bound(constants, noise=0.025).conditions_met  # D/16L²
    claim = theory.printed_theorem_bound(constants, noise=0.026)
    assert claim.unmet == ("noise must be at most D/16L² = 0.025; found 0.026.",)
    with pytest.raises(InputError, match=r"noise: must be zero or a positive number; found -0\.1\."):
        theory.printed_theorem_bound(constants, noise=-0.1)


def test_printed_lemma_is_right_at_the_identity(constants):
    assert theory.printed_lemma_bound(constants, 0) == pytest.approx(math.sqrt(2) + math.sqrt(2) * 0.05)
    with pytest.raises(InputError, match=r"displacement: must be zero or a positive number; found -2\."):
        theory.printed_lemma_bound(constants, -2)


@pytest.mark.parametrize("example", theory.counterexamples(), ids=["sign", "cross-terms", "strict"])
def test_counterexamples_meet_the_conditions_and_break_the_lemma(example):
    constants = theory.assumption_constants(example.reference, example.table)
    claim = theory.printed_theorem_bound(constants, noise=0.0)
    assert claim.conditions_met
    assert claim.probability == 1.0
    assert claim.bound < 2  # no permutation displaces a single row: the claim is that none is wrong
    moved = theory.displacement(example.permutation)
    exact = theory.polar_norm(example.reference, example.table, example.permutation)
    left, right = (np.linalg.svd(matrix, full_matrices=False) for matrix in (example.reference, example.table))
    factors = np.hstack([left[0] @ left[2], (right[0] @ right[2])[example.permutation]])
    assert exact == pytest.approx(np.linalg.norm(factors, 2))
    assert exact > theory.printed_lemma_bound(constants, moved) + 0.03


def test_sign_counterexample_ties_with_the_truth():
    example = theory.counterexamples()[0]
    np.testing.assert_array_equal(example.reference, [[1], [-1]])
    np.testing.assert_array_equal(example.table, example.reference)
    assert theory.minimise_nuclear_norm(example.reference, example.table).permutations.tolist() == [[0, 1], [1, 0]]
    constants = theory.assumption_constants(example.reference, example.table)
    assert theory.printed_theorem_bound(constants, noise=0.0).bound == pytest.approx(0, abs=1e-12)


def test_cross_term_counterexample_is_built_as_described():
    example = theory.counterexamples()[1]
    np.testing.assert_array_equal(example.table, example.reference)
    np.testing.assert_allclose(np.linalg.norm(example.reference, axis=0), [1.0001, 1.0], rtol=1e-12)
    first, second = (example.reference / np.linalg.norm(example.reference, axis=0)).T
    np.testing.assert_allclose(first / first[0], [1, 2, 4, -0.5])
    np.testing.assert_allclose(second, first[[1, 0, 3, 2]])
    assert first @ second == pytest.approx(0, abs=1e-15)
    assert theory.cycles(example.permutation) == ((0, 1), (2, 3))
    assert theory.polar_norm(example.reference, example.table, example.permutation) == pytest.approx(math.sqrt(2))


def test_cross_term_counterexample_fails_under_little_noise():
    """The printed theorem promises no wrong row with probability 1 − 2·exp(−D/8Lσ), one up to 10⁻⁵⁰⁰⁰⁰."""
    example = theory.counterexamples()[1]
    noise = 1e-6
    claim = theory.printed_theorem_bound(theory.assumption_constants(example.reference, example.table), noise=noise)
    assert claim.conditions_met
    assert claim.bound < 2
    assert claim.probability == 1.0
    generator = np.random.default_rng(24)
    wrong = []
    for _ in range(20):
        reference, table = (x + noise * generator.standard_normal(x.shape) for x in (example.reference, example.table))
        wrong.append(theory.displacement(theory.minimise_nuclear_norm(reference, table).permutation))
    assert set(wrong) == {0, 4}


def test_strict_counterexample_prefers_the_wrong_order():
    example = theory.counterexamples()[2]
    result = theory.minimise_nuclear_norm(example.reference, example.table)
    assert result.permutations.tolist() == [[1, 0]]
    assert result.value < nuclear(np.hstack([example.reference, example.table])) - 0.009


# --- Exact minimisers -------------------------------------------------------------------------------------------------


def plain_minimum(reference, table, measure):
    """All minimising orders and the value, by a loop over itertools.permutations."""
    scores = {
        order: measure(np.hstack([reference, table[list(order)]]))
        for order in itertools.permutations(range(len(reference)))
    }
    value = min(scores.values())
    return value, [list(order) for order, score in scores.items() if score <= value * (1 + 1e-12)]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(small_tables(most_rows=4))
def test_minimisers_equal_a_plain_loop_with_ties(case):
    reference, table = case
    for function, measure in [(theory.minimise_rank, np.linalg.matrix_rank), (theory.minimise_nuclear_norm, nuclear)]:
        result = function(reference, table)
        value, ties = plain_minimum(reference, table, measure)
        assert result.value == pytest.approx(value)
        assert result.permutations.tolist() == ties
        assert result.permutation.tolist() == ties[0]


@pytest.mark.parametrize(("wide", "narrow"), [(1, 1), (3, 2), (9, 2), (7, 8)])
def test_minimisers_equal_a_plain_loop_on_real_numbers(wide, narrow):
    generator = np.random.default_rng(25)
    reference, table = generator.standard_normal((5, wide)), generator.standard_normal((5, narrow))
    result = theory.minimise_nuclear_norm(reference, table)
    value, ties = plain_minimum(reference, table, nuclear)
    assert result.value == pytest.approx(value, rel=1e-13)
    assert result.permutations.tolist() == ties


@pytest.mark.parametrize(("rows", "rank"), [(2, 1), (3, 1), (5, 1), (7, 1), (8, 1), (8, 2)])
def test_rank_recovers_the_order_of_noiseless_tables(rows, rank):
    """By Proposition 2 every other order has a higher rank."""
    generator = np.random.default_rng(26)
    joint = low_rank(generator, rows, 7, rank)
    shuffle = generator.permutation(rows)
    result = theory.minimise_rank(joint[:, :4], joint[:, 4:][shuffle])
    assert result.value == rank
    assert isinstance(result.value, int)
    assert result.permutations.tolist() == [np.argsort(shuffle).tolist()]
    np.testing.assert_array_equal(joint[:, 4:][shuffle][result.permutation], joint[:, 4:])


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_units_do_not_matter(scale):
    joint = low_rank(np.random.default_rng(30), 5, 5, 1)
    reference, table = joint[:, :2], joint[:, 2:] + 0.1
    for function in SEARCHES:
        before, after = function(reference, table), function(scale * reference, scale * table)
        assert after.permutations.tolist() == before.permutations.tolist()
    before, after = (theory.assumption_constants(unit * reference, unit * table) for unit in (1.0, scale))
    assert (after.rank, after.common_rank) == (before.rank, before.common_rank) == (2, 1)
    assert after.singular_vector_gap == pytest.approx(before.singular_vector_gap)
    assert after.singular_value_gap == pytest.approx(scale * before.singular_value_gap)


@pytest.mark.parametrize("rows", [2, 3, 6, 8])
def test_nuclear_norm_of_two_positive_columns_is_least_when_both_are_sorted_alike(rows):
    """‖[a, b]‖*² = ‖a‖² + ‖b‖² + 2√(‖a‖²‖b‖² − ⟨a, b⟩²): the rearrangement inequality names the minimiser."""
    generator = np.random.default_rng(27)
    reference, table = generator.random((2, rows))
    expected = np.empty(rows, dtype=int)
    expected[np.argsort(reference)] = np.argsort(table)
    result = theory.minimise_nuclear_norm(reference[:, None], table[:, None])
    assert result.permutations.tolist() == [expected.tolist()]


def test_nuclear_norm_recovers_the_order_of_equal_tables_with_noise():
    generator = np.random.default_rng(28)
    same = generator.random((7, 2))
    shuffle = generator.permutation(7)
    noisy = same + 1e-3 * generator.standard_normal(same.shape)
    result = theory.minimise_nuclear_norm(same, noisy[shuffle])
    assert result.permutation.tolist() == np.argsort(shuffle).tolist()


@pytest.mark.parametrize("function", SEARCHES)
def test_relabelling_a_table_relabels_its_permutations(function):
    generator = np.random.default_rng(29)
    joint = low_rank(generator, 5, 5, 1)
    joint[1] = joint[3]  # twins: two orders fit equally well
    reference, table = joint[:, :2], joint[:, 2:]
    shuffle = generator.permutation(5)
    before, after = function(reference, table), function(reference, table[shuffle])
    assert len(before.permutations) == 2
    assert {tuple(shuffle[order]) for order in after.permutations} == {tuple(order) for order in before.permutations}


@pytest.mark.parametrize("function", SEARCHES)
def test_searches_of_one_row_and_of_zeros(function):
    assert function([[2.0]], [[3.0]]).permutations.tolist() == [[0]]
    nothing = function(np.zeros((3, 2)), np.zeros((3, 1)))
    assert nothing.value == 0
    assert len(nothing.permutations) == 6


def test_tolerances_of_the_searches():
    reference, table = np.array([[1.0], [2.0]]), np.array([[1.0], [2.001]])
    assert theory.minimise_rank(reference, table).value == 2
    loose = theory.minimise_rank(reference, table, tolerance=0.01)
    assert (loose.value, loose.permutations.tolist()) == (1, [[0, 1]])
    assert len(theory.minimise_nuclear_norm(reference, table).permutations) == 1
    assert len(theory.minimise_nuclear_norm(reference, table, tolerance=1.0).permutations) == 2


@pytest.mark.parametrize("function", SEARCHES)
def test_searches_refuse_many_rows(function):
    rows = np.arange(9.0)[:, None]
    with pytest.raises(
        InputError, match=r"reference: must have at most 8 rows to try all orders; found 9\. Take fewer\."
    ):
        function(rows, rows)
