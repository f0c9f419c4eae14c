"""Low-rank operators against their definitions by a full SVD, their optimality, and the laws a prox obeys."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from keyless import lowrank
from keyless.arrays import to_numpy
from keyless.errors import InputError
from keyless.lowrank import (
    SparsePlusLowRank,
    leading_svd,
    nuclear_norm,
    project_rank,
    prox_nuclear,
    threshold_singular_values,
    truncated_svd,
)

SHAPES = [(1, 1), (1, 6), (6, 1), (7, 5), (5, 7), (40, 30), (30, 90), (200, 64)]


def draw(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def with_spectrum(rows, columns, spectrum, seed=0):
    """A matrix of known singular values, and its factors."""
    size = len(spectrum)
    left = np.linalg.qr(draw((rows, size), seed))[0]
    right = np.linalg.qr(draw((columns, size), seed + 1))[0]
    return (left * spectrum) @ right.T, left, right


def by_definition(matrix, change):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * change(values)) @ right


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-300)


@pytest.fixture(params=["numpy", "torch", "strict"])
def library(request):
    if request.param == "torch":
        return pytest.importorskip("torch", reason="torch is not installed").asarray
    return {"numpy": np.asarray, "strict": array_api_strict.asarray}[request.param]


# --- the operators are what they say ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.1, 0.5, 1.5])
def test_operators_match_their_definition(shape, fraction):
    matrix = draw(shape)
    largest = np.linalg.norm(matrix, 2)
    weight = fraction * largest
    soft = by_definition(matrix, lambda values: np.maximum(values - weight, 0))
    hard = by_definition(matrix, lambda values: np.where(values > weight, values, 0))
    assert np.linalg.norm(prox_nuclear(matrix, weight) - soft) <= 1e-12 * largest * min(shape)
    assert np.linalg.norm(threshold_singular_values(matrix, weight) - hard) <= 1e-12 * largest * min(shape)
    for rank in {1, (1 + min(shape)) // 2, min(shape)}:
        wanted = by_definition(matrix, lambda values, rank=rank: np.where(np.arange(len(values)) < rank, values, 0))
        assert relative(project_rank(matrix, rank), wanted) <= 1e-11
    assert nuclear_norm(matrix) == pytest.approx(np.linalg.svd(matrix, compute_uv=False).sum(), rel=1e-12)


@pytest.mark.parametrize("decay", [1e-1, 1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("shape", [(120, 50), (50, 120)])
def test_gram_and_full_svd_agree_whatever_the_condition(shape, decay):
    """The Gram matrix squares the condition number; where that would show, the full SVD must take over."""
    matrix, _, _ = with_spectrum(*shape, np.geomspace(1, decay, 40))
    for weight in np.geomspace(2, decay / 3, 12):
        soft = by_definition(matrix, lambda values, weight=weight: np.maximum(values - weight, 0))
        assert np.linalg.norm(prox_nuclear(matrix, weight) - soft, 2) <= 1e-10
        middle = weight * 1.07
        hard = by_definition(matrix, lambda values, middle=middle: np.where(values > middle, values, 0))
        assert np.linalg.norm(threshold_singular_values(matrix, middle) - hard, 2) <= 1e-10
    for rank in (1, 5, 20, 40):
        wanted = by_definition(matrix, lambda values, rank=rank: np.where(np.arange(len(values)) < rank, values, 0))
        assert np.linalg.norm(project_rank(matrix, rank) - wanted, 2) <= 1e-10


def test_both_routes_are_taken():
    matrix = draw((120, 50))
    assert lowrank._gram_svd(matrix, 1.0, 50) is not None
    assert lowrank._gram_svd(with_spectrum(120, 50, np.geomspace(1, 1e-6, 40))[0], 1e-5, 50) is None


@pytest.mark.parametrize("scale", [1e-160, 1e-30, 1.0, 1e30, 1e160])
def test_scale_does_not_matter(scale):
    """Squares of very large or very small numbers overflow; the result must not."""
    matrix = draw((60, 40))
    wanted = by_definition(matrix, lambda values: np.maximum(values - 3, 0))
    assert relative(prox_nuclear(matrix * scale, 3 * scale) / scale, wanted) <= 1e-12


def test_zero_and_repeated_rows():
    assert not prox_nuclear(np.zeros((40, 30)), 1.0).any()
    assert leading_svd(np.zeros((40, 30))).rank == 0
    repeated = np.tile(draw((1, 30)), (40, 1))
    assert leading_svd(repeated, above=1e-6).rank == 1
    assert relative(project_rank(repeated, 3), repeated) <= 1e-12


def test_factors_give_the_result_and_its_norm():
    matrix = draw((90, 45))
    factors = leading_svd(matrix, above=6.0).shrunk(6.0)
    result = prox_nuclear(matrix, 6.0)
    assert relative(factors.dense(), result) <= 1e-13
    assert factors.nuclear_norm == pytest.approx(np.linalg.svd(result, compute_uv=False).sum(), rel=1e-11)
    assert np.allclose(factors.left.T @ factors.left, np.eye(factors.rank), atol=1e-11)
    assert np.allclose(factors.right.T @ factors.right, np.eye(factors.rank), atol=1e-11)


# --- laws ------------------------------------------------------------------------------------------------------------

matrices = st.tuples(st.integers(1, 35), st.integers(1, 35), st.integers(0, 10_000)).map(
    lambda key: draw(key[:2], key[2]) * np.exp(draw(1, key[2]))
)
weights = st.floats(1e-3, 20)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(matrices, weights, st.integers(0, 1000))
def test_prox_minimises_its_objective(matrix, weight, seed):
    """No perturbation of the result does better, and the subgradient condition holds."""
    result = prox_nuclear(matrix, weight)

    def objective(candidate):
        nuclear = np.linalg.svd(candidate, compute_uv=False).sum()
        return 0.5 * np.sum((candidate - matrix) ** 2) + weight * nuclear

    best = objective(result)
    for size in (1e-3, 1e-1, 1.0):
        assert objective(result + size * draw(matrix.shape, seed)) >= best - 1e-9 * max(1, best)
    dual = matrix - result  # in weight · ∂‖result‖_*
    assert np.linalg.norm(dual, 2) <= weight * (1 + 1e-9)
    nuclear = np.linalg.svd(result, compute_uv=False).sum()
    assert np.sum(dual * result) == pytest.approx(weight * nuclear, rel=1e-8, abs=1e-9 * max(1, best))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(matrices, weights, st.integers(0, 1000))
def test_prox_is_firmly_non_expansive(matrix, weight, seed):
    other = matrix + 0.3 * draw(matrix.shape, seed)
    gap = prox_nuclear(matrix, weight) - prox_nuclear(other, weight)
    assert np.sum(gap**2) <= np.sum(gap * (matrix - other)) + 1e-9 * np.sum(matrix**2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(matrices, weights)
def test_moreau_decomposition(matrix, weight):
    """What the prox leaves is the projection onto the spectral-norm ball, computed here on its own."""
    ball = by_definition(matrix, lambda values: np.minimum(values, weight))
    assert np.linalg.norm(prox_nuclear(matrix, weight) + ball - matrix) <= 1e-10 * np.linalg.norm(matrix)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(matrices, weights, st.integers(0, 1000))
def test_operators_commute_with_rotations_and_relabelling(matrix, weight, seed):
    rows, columns = matrix.shape
    turn = np.linalg.qr(draw((rows, rows), seed))[0]
    order = np.random.default_rng(seed).permutation(columns)
    threshold = min(weight, np.linalg.norm(matrix, 2) * 0.9)  # stay clear of ties at the threshold
    for apply in (
        lambda moved: prox_nuclear(moved, weight),
        lambda moved: project_rank(moved, 1),
    ):
        moved = apply((turn @ matrix)[:, order])
        assert np.linalg.norm(moved - (turn @ apply(matrix))[:, order]) <= 1e-8 * np.linalg.norm(matrix)
    found = leading_svd(turn @ matrix, above=threshold).singular_values
    wanted = leading_svd(matrix[:, order], above=threshold).singular_values
    assert np.allclose(found, wanted, rtol=1e-10)


def test_projection_is_idempotent_and_best():
    matrix = draw((60, 40))
    result = project_rank(matrix, 4)
    assert relative(project_rank(result, 4), result) <= 1e-12
    assert np.linalg.matrix_rank(result) == 4
    for seed in range(5):
        rival = draw((60, 4), seed) @ draw((4, 40), seed + 50)
        assert np.linalg.norm(matrix - result) <= np.linalg.norm(matrix - rival)


# --- one source, every library ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(12, 9), (70, 40), (400, 150)])
def test_same_answer_from_every_library(library, dtype, shape):
    spectrum = np.concatenate([[40.0, 30.0, 25.0], np.linspace(4, 1, min(shape) - 3)])
    matrix = with_spectrum(*shape, spectrum)[0].astype(dtype)
    ours = library(matrix)
    precision = 1e-10 if dtype is np.float64 else 2e-5
    weight = float(0.3 * np.linalg.norm(matrix, 2))
    exact = matrix.astype(np.float64)
    for result, wanted in (
        (prox_nuclear(ours, weight), by_definition(exact, lambda values: np.maximum(values - weight, 0))),
        (
            threshold_singular_values(ours, weight),
            by_definition(exact, lambda values: np.where(values > weight, values, 0)),
        ),
        (project_rank(ours, 3), by_definition(exact, lambda values: np.where(np.arange(len(values)) < 3, values, 0))),
        (
            truncated_svd(ours, 3, tolerance=precision / 10).dense(),
            by_definition(exact, lambda values: np.where(np.arange(len(values)) < 3, values, 0)),
        ),
    ):
        assert type(result) is type(ours)
        assert result.dtype == ours.dtype
        assert np.linalg.norm(to_numpy(result) - wanted) <= precision * np.linalg.norm(matrix)
    assert isinstance(nuclear_norm(ours), float)
    assert np.array_equal(to_numpy(ours), matrix)


def test_awkward_memory_is_fine():
    base = draw((140, 90))
    wanted = prox_nuclear(base[::2, ::-3].copy(), 2.0)
    view = base[::2, ::-3]
    view.flags.writeable = False
    assert np.allclose(prox_nuclear(view, 2.0), wanted, atol=1e-12)
    assert np.allclose(prox_nuclear(np.asfortranarray(view), 2.0), wanted, atol=1e-12)
    assert prox_nuclear([[3, 0], [0, 1]], 1).tolist() == [[2.0, 0.0], [0.0, 0.0]]


# --- truncated SVD ---------------------------------------------------------------------------------------------------


def table_and_operators():
    """A sparse table too large for the exact route, as each kind of operator, with its dense form."""
    generator = np.random.default_rng(0)
    thin = sparse.random_array((600, 250), density=0.05, rng=generator, format="csr")
    left, right = draw((600, 4)), draw((250, 4), 1)
    return thin, SparsePlusLowRank(thin, left, right), thin.toarray() + left @ right.T


def test_truncated_svd_of_sparse_plus_low_rank():
    thin, operator, dense = table_and_operators()
    left, values, right = np.linalg.svd(dense, full_matrices=False)
    found = truncated_svd(operator, 4)
    assert found.status.converged
    assert np.allclose(found.singular_values, values[:4], rtol=1e-10)
    assert relative(found.dense(), (left[:, :4] * values[:4]) @ right[:4]) <= 1e-6
    assert np.allclose(found.left.T @ found.left, np.eye(4), atol=1e-12)
    assert np.allclose(found.right.T @ found.right, np.eye(4), atol=1e-12)
    only = truncated_svd(thin, 2, tolerance=1e-8, max_iter=1000)
    assert np.allclose(only.singular_values, np.linalg.svd(thin.toarray(), compute_uv=False)[:2], rtol=1e-10)
    assert relative(truncated_svd(dense, 4).dense(), found.dense()) <= 1e-6


def test_operator_products():
    _, operator, dense = table_and_operators()
    block = draw((250, 3))
    assert np.allclose(operator @ block, dense @ block)
    assert np.allclose(operator.T @ (operator @ block), dense.T @ dense @ block)
    assert np.allclose(operator.T.toarray(), dense.T)
    assert operator.shape == (600, 250)
    assert operator.dtype == np.float64


def test_truncated_svd_is_exact_when_small_and_at_full_rank():
    small = draw((30, 20))
    values = np.linalg.svd(small, compute_uv=False)
    assert np.allclose(truncated_svd(small, 7).singular_values, values[:7], rtol=1e-13)
    assert np.allclose(truncated_svd(sparse.csr_array(small), 7).singular_values, values[:7], rtol=1e-13)
    thin = draw((15_000, 4))
    assert np.allclose(truncated_svd(thin, 4).singular_values, np.linalg.svd(thin, compute_uv=False), rtol=1e-12)


def test_truncated_svd_is_deterministic_and_uses_its_start():
    _, operator, _ = table_and_operators()
    one, two = truncated_svd(operator, 3), truncated_svd(operator, 3)
    assert np.array_equal(one.left, two.left)
    assert np.array_equal(one.singular_values, two.singular_values)
    cold = truncated_svd(operator, 3, max_iter=2)
    warm = truncated_svd(operator, 3, start=one.right, max_iter=2)
    assert not cold.status.converged
    assert "max_iter" in cold.status.advice
    assert warm.status.converged
    assert np.allclose(warm.singular_values, one.singular_values, rtol=1e-10)


def test_truncated_svd_of_a_low_rank_matrix_below_the_rank_asked_for():
    matrix, _, _ = with_spectrum(400, 200, np.asarray([5.0, 2.0]))
    found = truncated_svd(matrix, 4)
    assert np.allclose(found.singular_values, [5, 2, 0, 0], atol=1e-12)
    assert relative(found.dense(), matrix) <= 1e-12
    assert not truncated_svd(np.zeros((400, 200)), 2).singular_values.any()


def test_float32_operators_stay_float32():
    thin, operator, _ = table_and_operators()
    light = SparsePlusLowRank(
        thin.astype(np.float32), operator.left.astype(np.float32), operator.right.astype(np.float32)
    )
    found = truncated_svd(light, 4, tolerance=1e-4)
    assert found.left.dtype == found.singular_values.dtype == np.float32
    assert np.allclose(found.singular_values, truncated_svd(operator, 4).singular_values, rtol=1e-5)
    counted = sparse.csr_array(np.eye(300, 200, dtype=np.int64) * 3)
    assert truncated_svd(counted, 1).singular_values[0] == pytest.approx(3.0)


# --- what is refused, and how ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prox_nuclear(np.eye(3), -1.0), "zero or a positive number; found -1.0"),
        (lambda: threshold_singular_values(np.eye(3), float("nan")), "zero or a positive number"),
        (lambda: project_rank(np.eye(3), 0), "at least 1; found 0"),
        (lambda: project_rank(np.eye(3), 4), "at most 3; found 4"),
        (lambda: project_rank(np.eye(3), 1.5), "whole number; found 1.5"),
        (lambda: truncated_svd(np.eye(3), 4), "at most 3"),
        (lambda: prox_nuclear(np.ones(3), 1.0), "2-D"),
        (lambda: prox_nuclear(np.ones((0, 3)), 1.0), "empty"),
        (lambda: prox_nuclear(np.array([[1.0, np.nan]]), 1.0), "row 0, column 1"),
        (lambda: prox_nuclear(np.array([[1.0], [np.inf]]), 1.0), "row 1, column 0"),
        (lambda: nuclear_norm(np.ones((2, 2), dtype=complex)), "real numbers"),
        (lambda: nuclear_norm(np.array([["a", "b"]])), "real numbers"),
        (lambda: nuclear_norm(np.array([["a", 1]], dtype=object)), "not numbers"),
        (lambda: SparsePlusLowRank(np.eye(3), np.ones((3, 1)), np.ones((3, 1))), "scipy sparse"),
        (lambda: SparsePlusLowRank(sparse.eye_array(3), np.ones((2, 1)), np.ones((3, 1))), r"\(2, 1\)"),
        (lambda: truncated_svd(sparse.csr_array(np.full((300, 200), np.nan)), 1), "finite"),
        (lambda: truncated_svd(draw((300, 200)), 2, start=np.ones((5, 1))), "one row per column"),
        (lambda: truncated_svd(draw((300, 200)), 2, tolerance=0.0), "tolerance: must be a positive number"),
        (lambda: truncated_svd(draw((300, 200)), 2, random_state="x"), "random_state"),
    ],
)
def test_bad_input_is_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()
