"""SoftImpute against the optimality conditions of its problem, closed forms, and the laws a user may rely on."""

import tracemalloc

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks

from keyless.arrays import to_numpy
from keyless.completion import SoftImpute
from keyless.errors import ConvergenceWarning, InputError
from keyless.paper.soft_impute import soft_impute

OFFSETS = ["none", "columns", "rows", "both"]
TIGHT = {"tolerance": 1e-14, "max_iter": 2000}


def problem(rows=60, columns=40, *, rank=3, noise=0.3, observed=0.5, seed=0):
    generator = np.random.default_rng(seed)
    signal = generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))
    values = signal + noise * generator.standard_normal(signal.shape)
    return values, generator.random(signal.shape) < observed


def with_missing(values, mask):
    return np.where(mask, values, np.nan)


def as_sparse(values, mask):
    rows, columns = np.nonzero(mask)
    return sparse.csr_array((values[mask], (rows, columns)), shape=mask.shape)


def objective(values, mask, estimate, penalty):
    nuclear = np.linalg.svd(estimate, compute_uv=False).sum()
    return 0.5 * np.sum((values - estimate)[mask] ** 2) + penalty * nuclear


def shrink(matrix, weight):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * np.maximum(values - weight, 0)) @ right


def assert_optimal(residual, estimate, penalty, precision=1e-5):
    """The residual is λ times a subgradient of the nuclear norm at the estimate."""
    assert np.linalg.norm(residual, 2) <= penalty * (1 + precision)
    left, values, right = np.linalg.svd(estimate)
    rank = int(np.sum(values > 1e-6 * penalty))
    assert np.allclose(left[:, :rank].T @ residual @ right[:rank].T, penalty * np.eye(rank), atol=precision * penalty)


# --- the function: a convex problem ----------------------------------------------------------------------------------


@pytest.mark.parametrize("observed", [0.15, 0.5, 0.9])
@pytest.mark.parametrize("penalty", [0.5, 3.0, 8.0])
@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
def test_optimality_conditions_and_duality_gap(shape, penalty, observed):
    values, mask = problem(*shape, observed=observed)
    found = soft_impute(values, mask, penalty, **TIGHT)
    estimate = found.estimate()
    residual = np.where(mask, values - estimate, 0)
    assert found.status.converged
    assert_optimal(residual, estimate, penalty)
    # Any matrix on Ω of spectral norm at most λ bounds the minimum from below.
    dual = residual * min(1, penalty / np.linalg.norm(residual, 2))
    lower = np.sum(dual * values) - 0.5 * np.sum(dual**2)
    upper = objective(values, mask, estimate, penalty)
    assert lower <= upper <= lower * (1 + 1e-5)


def test_agrees_with_plain_soft_impute():
    values, mask = problem()
    estimate = np.zeros_like(values)
    for _ in range(3000):
        estimate = shrink(np.where(mask, values, estimate), 2.0)
    found = soft_impute(values, mask, 2.0, **TIGHT).estimate()
    assert np.linalg.norm(found - estimate) <= 1e-5 * np.linalg.norm(estimate)


def test_no_perturbation_does_better():
    values, mask = problem()
    estimate = soft_impute(values, mask, 2.0, **TIGHT).estimate()
    best = objective(values, mask, estimate, 2.0)
    generator = np.random.default_rng(1)
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(5):
            assert objective(values, mask, estimate + size * generator.standard_normal(mask.shape), 2.0) > best
            outer = np.outer(generator.standard_normal(60), generator.standard_normal(40))
            assert objective(values, mask, estimate + size * outer, 2.0) > best


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("observed", [0.2, 0.6])
def test_objective_never_rises_and_is_the_one_defined(observed, rank):
    values, mask = problem(observed=observed)
    found = soft_impute(values, mask, 1.0, rank=rank, tolerance=1e-13, max_iter=2000)
    falls = -np.diff(found.objective)
    assert (falls >= -1e-13 * np.sum(values[mask] ** 2)).all()
    assert found.objective[-1] == pytest.approx(objective(values, mask, found.estimate(), 1.0), rel=1e-9)
    early = soft_impute(values, mask, 1.0, rank=rank, max_iter=2)
    assert not early.status.converged
    assert "max_iter" in early.status.advice
    assert objective(values, mask, early.estimate(), 1.0) <= early.objective[-1] * (1 + 1e-12)


def test_complete_table_is_one_prox():
    values, mask = problem(observed=2.0)
    found = soft_impute(values, mask, 4.0, **TIGHT)
    assert np.allclose(found.estimate(), shrink(values, 4.0), atol=1e-9)
    assert np.allclose(found.singular_values, np.linalg.svd(shrink(values, 4.0), compute_uv=False)[: found.rank])
    assert found.nuclear_norm == pytest.approx(np.linalg.svd(shrink(values, 4.0), compute_uv=False).sum())


def test_rank_appears_below_the_largest_singular_value():
    values, mask = problem()
    largest = np.linalg.norm(np.where(mask, values, 0), 2)
    nothing = soft_impute(values, mask, largest * 1.001)
    assert nothing.rank == 0
    assert not nothing.estimate().any()
    assert soft_impute(values, mask, largest * 0.999).rank == 1


def test_a_rank_limit_is_kept_and_a_start_saves_sweeps():
    values, mask = problem(200, 80, rank=6)
    free = soft_impute(values, mask, 3.0)
    assert free.rank > 2
    assert soft_impute(values, mask, 3.0, rank=2).rank == 2
    warm = soft_impute(values, mask, 3.0, start=free.right)
    assert len(warm.objective) < len(free.objective)
    assert np.allclose(warm.estimate(), free.estimate(), atol=1e-2)
    odd = np.hstack([free.right, free.right[:, :1], np.zeros((80, 1))])  # dependent columns do no harm
    again = soft_impute(values, mask, 3.0, start=odd)
    assert np.allclose(again.estimate(), free.estimate(), atol=1e-2)


def test_a_start_is_no_trap():
    """A start orthogonal to the answer must not keep the rank from growing to it."""
    values, mask = problem()
    wanted = soft_impute(values, mask, 2.0, **TIGHT)
    blind = np.linalg.svd(wanted.right)[0][:, -2:]
    found = soft_impute(values, mask, 2.0, start=blind, **TIGHT)
    assert np.allclose(found.estimate(), wanted.estimate(), atol=1e-5)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 25), st.integers(1, 25), st.floats(0.1, 1.0), st.integers(0, 1000))
@pytest.mark.slow
def test_relabelling_and_transposing_only_relabel(rows, columns, observed, seed):
    values, mask = problem(rows, columns, observed=observed, seed=seed)
    generator = np.random.default_rng(seed)
    row_order, column_order = generator.permutation(rows), generator.permutation(columns)
    # The minimiser need not be unique, as in [[1, t], [t, 1]] with t missing; its observed entries and objective are.
    plain = soft_impute(values, mask, 1.0, **TIGHT).estimate()
    moved = soft_impute(values[row_order][:, column_order], mask[row_order][:, column_order], 1.0, **TIGHT).estimate()
    turned = soft_impute(values.T, mask.T, 1.0, **TIGHT).estimate().T
    least = objective(values, mask, plain, 1.0)
    for other in (moved[np.argsort(row_order)][:, np.argsort(column_order)], turned):
        assert objective(values, mask, other, 1.0) == pytest.approx(least, rel=1e-9, abs=1e-12)
        assert 0.5 * np.sum((other - plain)[mask] ** 2) <= 1e-9 * max(least, 1e-3)


@pytest.mark.parametrize("kind", ["torch", "strict"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_same_answer_from_every_library(kind, dtype):
    if kind == "torch":
        convert = pytest.importorskip("torch", reason="torch is not installed").asarray
    else:
        convert = array_api_strict.asarray
    values, mask = problem(observed=0.5)
    values = values.astype(dtype)
    wanted = soft_impute(values, mask, 2.0, tolerance=1e-12)
    found = soft_impute(convert(values), convert(mask), 2.0, tolerance=1e-12)
    assert type(found.left) is type(convert(values))
    assert found.right.dtype == convert(values).dtype
    assert wanted.left.dtype == wanted.singular_values.dtype == dtype
    assert np.allclose(to_numpy(found.estimate()), wanted.estimate(), atol=1e-9 if dtype is np.float64 else 1e-5)


def test_what_lies_outside_the_mask_is_not_looked_at():
    values, mask = problem()
    wanted = soft_impute(values, mask, 2.0).estimate()
    for other in (np.nan, np.inf, 1e300):
        assert np.array_equal(soft_impute(np.where(mask, values, other), mask, 2.0).estimate(), wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"penalty": 0.0}, "penalty: must be a positive number; found 0.0"),
        ({"penalty": "1"}, "penalty: must be a number"),
        ({"rank": 0}, "rank: must be a whole number of at least 1"),
        ({"rank": 5}, "rank: must be at most 3"),
        ({"mask": np.ones((3, 3), dtype=bool)}, "mask: must have the shape of values"),
        ({"values": np.full((4, 3), np.nan)}, "values, row 0, column 0"),
        ({"values": np.ones(3)}, "2-D"),
        ({"start": np.ones((4, 1))}, "one row per column, 3; found 4"),
        ({"max_iter": 0}, "max_iter"),
        ({"tolerance": -1.0}, "tolerance"),
    ],
)
def test_function_explains_bad_input(change, message):
    arguments = {"values": np.ones((4, 3)), "mask": np.ones((4, 3), dtype=bool), "penalty": 1.0} | change
    with pytest.raises(InputError, match=message):
        soft_impute(arguments.pop("values"), arguments.pop("mask"), arguments.pop("penalty"), **arguments)


# --- the estimator ---------------------------------------------------------------------------------------------------


@parametrize_with_checks([SoftImpute()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [SoftImpute(penalty=1.0, offsets="both"), SoftImpute(offsets="none", rank=1), SoftImpute(scale=False)]
)
def test_scikit_learn_contract_of_other_options(estimator, check):
    check(estimator)


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("observed", [0.2, 0.6])
def test_optimality_with_offsets(offsets, observed):
    values, mask = problem(observed=observed)
    values = values + 3 + np.linspace(0, 5, 40) + np.linspace(-4, 4, 60)[:, None]
    model = SoftImpute(scale=False, penalty=2.0, offsets=offsets, **TIGHT).fit(with_missing(values, mask))
    estimate = model.row_factors_ @ model.column_factors_.T
    residual = np.where(mask, values - estimate - model.row_offsets_[:, None] - model.column_offsets_, 0)
    assert_optimal(residual, estimate, 2.0)
    if offsets in ("columns", "both"):
        assert np.allclose(residual.sum(axis=0), 0, atol=1e-5)
    if offsets in ("rows", "both"):
        assert np.allclose(residual.sum(axis=1), 0, atol=1e-5)
    assert np.allclose(model.singular_values_, np.linalg.svd(estimate, compute_uv=False)[: model.rank_], rtol=1e-9)
    assert np.allclose(model.components_ @ model.components_.T, np.eye(model.rank_), atol=1e-9)
    assert (np.diff(model.objective_) <= 1e-13 * np.sum(values[mask] ** 2)).all()


@pytest.mark.parametrize("offsets", OFFSETS)
def test_complete_table_has_a_closed_form(offsets):
    values, _ = problem()
    values = values + np.linspace(0, 5, 40) + np.linspace(-4, 4, 60)[:, None]
    level = np.zeros_like(values)
    if offsets in ("columns", "both"):
        level = level + values.mean(axis=0)
    if offsets in ("rows", "both"):
        level = level + (values - level).mean(axis=1)[:, None]
    model = SoftImpute(scale=False, penalty=4.0, offsets=offsets, **TIGHT).fit(values)
    found = model.estimate_at(np.arange(60)[:, None], np.arange(40))
    assert np.allclose(found, level + shrink(values - level, 4.0), atol=1e-8)


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("max_iter", [2, 500])
@pytest.mark.filterwarnings("ignore::keyless.errors.ConvergenceWarning")
def test_transforming_the_fitted_rows_gives_the_fit(offsets, max_iter):
    values, mask = problem()
    table = with_missing(values, mask)
    model = SoftImpute(scale=False, penalty=2.0, offsets=offsets, max_iter=max_iter)
    filled = model.fit_transform(table)
    assert np.array_equal(filled, model.transform(table))
    assert np.array_equal(filled[mask], values[mask])
    assert not np.isnan(filled).any()
    missing = np.nonzero(~mask)
    assert np.allclose(filled[missing], model.estimate_at(*missing), atol=1e-12)


def test_a_new_row_is_the_ridge_fit_to_the_column_factors():
    values, mask = problem()
    model = SoftImpute(scale=False, penalty=2.0, offsets="columns").fit(with_missing(values, mask)[:50])
    factors, level = model.column_factors_, model.column_offsets_
    filled = model.transform(with_missing(values, mask)[50:])
    for row, seen, found in zip(values[50:], mask[50:], filled, strict=True):
        near = factors[seen]
        weight = np.linalg.solve(near.T @ near + 2.0 * np.eye(model.rank_), near.T @ (row - level)[seen])
        assert np.allclose(found[~seen], (factors @ weight + level)[~seen], atol=1e-9)


@pytest.mark.parametrize("offsets", OFFSETS)
def test_sparse_and_dense_tables_agree(offsets):
    values, mask = problem(observed=0.4)
    values[mask & (values < -1)] = 0.0  # stored zeros are observations
    thin = as_sparse(values, mask)
    assert thin.nnz == mask.sum()
    dense = SoftImpute(scale=False, penalty=1.0, offsets=offsets, **TIGHT).fit_transform(with_missing(values, mask))
    model = SoftImpute(scale=False, penalty=1.0, offsets=offsets, **TIGHT)
    assert np.allclose(model.fit_transform(thin), dense, atol=1e-4)
    for other in (sparse.coo_matrix(thin), thin.tocsc()):
        assert np.allclose(model.transform(other), dense, atol=1e-4)
    chosen = SoftImpute(scale=False, offsets=offsets).fit_transform(thin)
    assert np.array_equal(chosen[mask], values[mask])


def test_sparse_tables_with_repeats_and_stored_nan():
    rows, columns, data = [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 0, 1], [1.0, 1.0, 4.0, 2.0, 6.0, np.nan]
    repeated = sparse.coo_array((data, (rows, columns)), shape=(3, 2))
    plain = np.array([[2.0, np.nan], [4.0, 2.0], [6.0, np.nan]])
    model = SoftImpute(scale=False, penalty=0.1, offsets="none", **TIGHT)
    assert np.allclose(model.fit_transform(repeated), model.fit_transform(plain), atol=1e-6)
    assert repeated.nnz == 6


def test_a_sparse_fit_never_forms_the_dense_table():
    generator = np.random.default_rng(0)
    rows, columns = generator.integers(20_000, size=60_000), generator.integers(3_000, size=60_000)
    thin = sparse.csr_array((generator.standard_normal(60_000), (rows, columns)), shape=(20_000, 3_000))
    model = SoftImpute(scale=False, penalty=6.0, rank=3, max_iter=20, tolerance=1e-3)
    tracemalloc.start()
    model.fit(thin)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * 3_000  # an eighth of the dense table
    assert model.estimate_at([0, 19_999], [0, 2_999]).shape == (2,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_dtype_and_memory_of_the_caller(dtype):
    values, mask = problem()
    table = with_missing(values, mask)
    if dtype is np.int64:
        table = np.round(values * 3)
    table = table.astype(dtype)
    wide = np.repeat(table, 2, axis=1)[:, ::2]
    wide.flags.writeable = False
    before = wide.copy()
    model = SoftImpute(scale=False, penalty=2.0)
    filled = model.fit_transform(wide)
    assert filled.dtype == (np.float32 if dtype is np.float32 else np.float64)
    assert np.array_equal(wide, before, equal_nan=True)
    assert np.allclose(filled, model.fit_transform(table), atol=1e-5)
    if dtype is np.float32:
        assert model.components_.dtype == model.estimate_at(0, 0).dtype == np.float32
        exact = SoftImpute(scale=False, penalty=2.0).fit_transform(table.astype(np.float64))
        assert np.allclose(filled, exact, atol=1e-4)


# --- awkward tables --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:SoftImpute. no entry of column")
@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("penalty", [None, 0.5])
def test_rows_and_columns_without_any_entry(offsets, penalty):
    values, mask = problem(observed=0.7)
    values = values + np.linspace(0, 5, 40)
    mask[7], mask[:, 11] = False, False
    model = SoftImpute(scale=False, penalty=penalty, offsets=offsets)
    filled = model.fit_transform(with_missing(values, mask))
    assert np.isfinite(filled).all()
    # Nothing observed leaves M at zero there, so only offsets remain; an unknown offset is the mean of the known.
    known_rows, known_columns = np.arange(60) != 7, np.arange(40) != 11
    if offsets == "none":
        assert np.allclose(filled[7], 0, atol=1e-14)
        assert np.allclose(filled[:, 11], 0, atol=1e-14)
    if offsets == "columns":
        assert np.allclose(filled[7], model.column_offsets_)
        assert np.allclose(filled[:, 11], model.column_offsets_[known_columns].mean())
    if offsets == "rows":
        assert np.allclose(filled[7], model.row_offsets_[known_rows].mean())
        assert np.allclose(filled[known_rows, 11], model.row_offsets_[known_rows])
    if offsets == "both":
        assert np.allclose(filled[7, known_columns], model.column_offsets_[known_columns])
        assert model.row_offsets_.mean() == pytest.approx(0, abs=1e-6)


@pytest.mark.filterwarnings("ignore:SoftImpute. no entry of column")
@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("penalty", [None, 0.5])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (2, 1)])
def test_tiny_tables(shape, penalty, offsets):
    values = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    model = SoftImpute(scale=False, penalty=penalty, offsets=offsets)
    assert np.array_equal(model.fit_transform(values), values)
    if values.size > 1:
        values[0, 0] = np.nan
        assert np.isfinite(model.fit_transform(values)).all()


def test_one_column_is_filled_with_its_mean():
    column = np.array([[1.0], [2.0], [np.nan], [6.0]])
    assert SoftImpute(scale=False, penalty=1.0).fit_transform(column)[2, 0] == pytest.approx(3.0)
    assert SoftImpute(scale=False, **TIGHT).fit_transform(column)[2, 0] == pytest.approx(3.0)


@pytest.mark.parametrize("penalty", [None, 0.1])
def test_constant_columns_stay_constant(penalty):
    values, mask = problem()
    values[:, 4], values[:, 9] = 5.0, 0.0
    filled = SoftImpute(scale=False, penalty=penalty, **TIGHT).fit_transform(with_missing(values, mask))
    assert np.allclose(filled[:, 4], 5.0, atol=1e-4)
    assert np.allclose(filled[:, 9], 0.0, atol=1e-4)
    same = np.where(mask, 7.0, np.nan)
    assert np.allclose(SoftImpute(scale=False, penalty=penalty).fit_transform(same), 7.0)
    assert np.allclose(SoftImpute(scale=False, penalty=penalty, offsets="both").fit_transform(same), 7.0)
    assert not SoftImpute(scale=False, penalty=penalty, offsets="none").fit_transform(np.where(mask, 0.0, np.nan)).any()


def test_duplicate_rows_are_filled_alike():
    values, mask = problem()
    table = with_missing(values, mask)
    twice = np.vstack([table, table])
    filled = SoftImpute(scale=False).fit_transform(twice)
    assert np.allclose(filled[:60], filled[60:], atol=1e-10)


# --- choosing penalty and rank ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_choice_recovers_rank_and_beats_simple_fills():
    values, mask = problem(300, 60, rank=4, noise=0.2, observed=0.6)
    values = values + np.linspace(-5, 5, 60)
    model = SoftImpute(scale=False)
    filled = model.fit_transform(with_missing(values, mask))
    error = np.sqrt(np.mean((filled - values)[~mask] ** 2))
    assert model.rank_ == 4
    assert error < 1.25 * 0.2  # the noise itself cannot be filled; 1.0 would be knowing the signal
    convex = SoftImpute(scale=False, penalty=model.penalty_).fit_transform(with_missing(values, mask))
    assert error <= np.sqrt(np.mean((convex - values)[~mask] ** 2))


def test_choice_does_not_invent_structure_in_noise():
    generator = np.random.default_rng(0)
    values, mask = generator.standard_normal((200, 50)), generator.random((200, 50)) < 0.7
    filled = SoftImpute(scale=False).fit_transform(with_missing(values, mask))
    assert np.sqrt(np.mean((filled - values)[~mask] ** 2)) < 1.03


def test_the_path_records_what_was_chosen():
    values, mask = problem(150, 40)
    model = SoftImpute(scale=False, n_penalties=12).fit(with_missing(values, mask))
    best = np.argmin(model.path_["validation_error"])
    assert model.penalty_ == model.path_["penalty"][best]
    assert model.rank_ <= model.path_["rank_limit"][best]
    assert (model.path_["rank"] <= model.path_["rank_limit"]).all()
    limited = SoftImpute(scale=False, rank=2).fit(with_missing(values, mask))
    assert limited.rank_ <= 2
    assert set(limited.path_["rank_limit"]) == {2}
    assert (np.diff(limited.path_["penalty"]) < 0).all()
    assert len(SoftImpute(scale=False, penalty=1.0).fit(with_missing(values, mask)).path_["penalty"]) == 0


def test_the_choice_moves_with_units_and_levels():
    values, mask = problem(100, 30)
    table = with_missing(values, mask)
    filled = SoftImpute(scale=False).fit_transform(table)
    level = np.linspace(-3, 3, 30)
    assert np.allclose(SoftImpute(scale=False).fit_transform(1000 * table + level), 1000 * filled + level, atol=1e-6)


def test_results_depend_on_the_seed_alone():
    values, mask = problem(100, 30)
    table = with_missing(values, mask)
    one, two = (SoftImpute(scale=False, random_state=3).fit(table) for _ in range(2))
    assert np.array_equal(one.row_factors_, two.row_factors_)
    other = SoftImpute(scale=False, random_state=4).fit(table)
    assert not np.array_equal(one.path_["validation_error"][:3], other.path_["validation_error"][:3])


# --- how trouble is told ---------------------------------------------------------------------------------------------


def test_stopping_early_is_said():
    values, mask = problem(observed=0.3)
    model = SoftImpute(scale=False, penalty=0.1, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        model.fit(with_missing(values, mask))
    assert model.status_.reason == "max_iter"
    assert "tolerance" in model.status_.advice
    assert model.n_iter_ == 2
    assert SoftImpute(scale=False, penalty=2.0).fit(with_missing(values, mask)).status_.converged


@pytest.mark.parametrize(
    ("options", "table", "message"),
    [
        ({"penalty": -1.0}, None, "penalty: must be a positive number; found -1.0"),
        ({"rank": 0}, None, "rank: must be a whole number of at least 1; found 0"),
        ({"rank": 9}, None, "rank: must be at most 3; found 9"),
        ({"offsets": "column"}, None, "offsets: must be one of none, columns, rows, both; found 'column'"),
        ({"validation_fraction": 1.0}, None, "validation_fraction: must be between 0 and 1"),
        ({"n_penalties": 0}, None, "n_penalties"),
        ({"max_iter": 1.5}, None, "max_iter: must be a whole number"),
        ({"tolerance": 0}, None, "tolerance"),
        ({"random_state": "seed"}, None, "random_state"),
        ({}, np.full((4, 3), np.nan), "at least one observed entry"),
        ({}, sparse.csr_array((4, 3)), "at least one observed entry"),
        ({}, np.array([[1.0, 2.0], [np.inf, 3.0]]), "X, row 1, column 0"),
        ({}, sparse.csr_array(np.array([[1.0, np.inf]])), "infinity"),
        ({}, np.ones(4), "Expected 2D array"),
        ({}, np.ones((4, 3), dtype=complex), "Complex"),
        ({}, np.array([["a", "b"], ["c", "d"]], dtype=object), "could not convert"),
    ],
)
def test_estimator_explains_bad_input(options, table, message):
    with pytest.raises(InputError, match=message):
        SoftImpute(scale=False, **options).fit(np.arange(12.0).reshape(4, 3) if table is None else table)


def test_reading_entries_out_of_range():
    model = SoftImpute(scale=False, penalty=1.0).fit(np.arange(12.0).reshape(4, 3))
    assert model.estimate_at(0, 0).shape == ()
    assert model.estimate_at([[0], [3]], [0, 2]).shape == (2, 2)
    with pytest.raises(InputError, match="rows: must be whole numbers from 0 to 3"):
        model.estimate_at(4, 0)
    with pytest.raises(InputError, match="columns: must be whole numbers from 0 to 2"):
        model.estimate_at(0, -1)
    with pytest.raises(InputError, match="rows"):
        model.estimate_at(0.5, 0)
