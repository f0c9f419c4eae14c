"""Completion of large sparse tables: the same answer as from dense ones, in memory of the size of what is observed."""

import tracemalloc

import array_api_strict
import numpy as np
import pytest
from scipy import sparse

from keyless.arrays import to_numpy
from keyless.completion import SoftImpute, observed, sweeps
from keyless.errors import InputError
from keyless.paper.soft_impute import soft_impute

OFFSETS = ["none", "columns", "rows", "both"]
TIGHT = {"tolerance": 1e-14, "max_iter": 2000}


def ratings(rows=300, columns=60, *, share=0.3, level=0.0, seed=0):
    """Signal of rank 3 plus noise: all values, the mask, and the observed entries as CSR."""
    generator = np.random.default_rng(seed)
    signal = generator.standard_normal((rows, 3)) @ generator.standard_normal((3, columns))
    values = signal + 0.3 * generator.standard_normal((rows, columns)) + level
    mask = generator.random((rows, columns)) < share
    return values, mask, sparse.csr_array((values[mask], np.nonzero(mask)), shape=mask.shape)


def random_table(rows, columns, per_row, *, dtype=np.float32, seed=0):
    """A CSR table with about this many entries in each row."""
    generator = np.random.default_rng(seed)
    places = np.unique(generator.integers(rows * columns, size=rows * per_row))
    values = generator.standard_normal(len(places)).astype(dtype)
    return sparse.csr_array((values, (places // columns, places % columns)), shape=(rows, columns))


def peak_bytes(job):
    tracemalloc.start()
    job()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def assert_minimum(values, mask, estimate, penalty):
    """The residual is λ times a subgradient of the nuclear norm at the estimate."""
    residual = np.where(mask, values - estimate, 0)
    left, singular, right = np.linalg.svd(estimate)
    rank = int(np.sum(singular > 1e-6 * penalty))
    assert np.linalg.norm(residual, 2) <= penalty * (1 + 1e-5)
    assert np.allclose(left[:, :rank].T @ residual @ right[:rank].T, penalty * np.eye(rank), atol=1e-5 * penalty)


# --- the same answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_a_sparse_matrix_needs_no_mask(make, share):
    values, mask, thin = ratings(120, 40, share=share)
    found = soft_impute(make(thin), None, 3.0, **TIGHT)
    wanted = soft_impute(values, mask, 3.0, **TIGHT)
    assert found.rank == wanted.rank > 0
    assert np.allclose(found.estimate(), wanted.estimate(), atol=1e-5)
    assert found.objective[-1] == pytest.approx(wanted.objective[-1], rel=1e-10)
    assert_minimum(values, mask, found.estimate(), 3.0)


def test_stored_zeros_repeats_and_nan_mean_the_same_in_both_doors():
    rows, columns = [0, 0, 1, 1, 2, 2, 3], [0, 0, 0, 1, 0, 1, 1]
    repeated = sparse.coo_array(([1.0, 1.0, 4.0, 2.0, 6.0, np.nan, 0.0], (rows, columns)), shape=(4, 2))
    values = np.array([[2.0, 9.0], [4.0, 2.0], [6.0, 9.0], [9.0, 0.0]])
    wanted = soft_impute(values, values < 9, 0.1, **TIGHT).estimate()
    assert np.allclose(soft_impute(repeated, None, 0.1, **TIGHT).estimate(), wanted, atol=1e-6)
    model = SoftImpute(scale=False, penalty=0.1, offsets="none", **TIGHT).fit(repeated)
    assert np.allclose(model.estimate_at(np.arange(4)[:, None], np.arange(2)), wanted, atol=1e-6)


@pytest.mark.parametrize("offsets", OFFSETS)
def test_sparse_and_dense_choose_alike(offsets):
    """The same held-out entries, hence the same path; far levels, so that taking them off late must be exact."""
    values, mask, thin = ratings(share=0.6, level=50.0)  # above a quarter, the dense table is swept as it is
    settings = {"offsets": offsets, "rank": 3, "tolerance": 1e-10, "max_iter": 1000}
    dense = SoftImpute(scale=False, **settings).fit(np.where(mask, values, np.nan))
    found = SoftImpute(scale=False, **settings).fit(thin)
    assert found.penalty_ == pytest.approx(dense.penalty_, rel=1e-6)
    assert np.allclose(found.path_["validation_error"], dense.path_["validation_error"], rtol=1e-3)
    places = np.arange(300)[:, None], np.arange(60)
    assert np.allclose(found.estimate_at(*places), dense.estimate_at(*places), atol=1e-3)


@pytest.mark.parametrize("offsets", OFFSETS)
def test_float32_entries_are_summed_in_float64(offsets):
    _, _, thin = ratings(level=1000.0)
    single = thin.astype(np.float32)
    settings = {"penalty": 3.0, "rank": 4, "offsets": offsets}
    found, wanted = (
        SoftImpute(scale=False, **settings).fit(single),
        SoftImpute(scale=False, **settings).fit(single.astype(np.float64)),
    )
    assert np.allclose(found.objective_, wanted.objective_, rtol=1e-12)  # in float32 the levels alone err by 1e-7
    assert found.row_factors_.dtype == found.column_factors_.dtype == found.estimate_at(0, 0).dtype == np.float32
    places = np.arange(300)[:, None], np.arange(60)
    assert np.allclose(found.estimate_at(*places), wanted.estimate_at(*places), rtol=2e-6)
    function = soft_impute(single, None, 3.0, rank=4)
    assert function.left.dtype == function.singular_values.dtype == np.float32
    double = soft_impute(single.astype(np.float64), None, 3.0, rank=4)
    assert np.allclose(function.estimate(), double.estimate(), rtol=1e-5, atol=1e-2)


def test_the_mean_of_a_long_float32_column():
    """Summed one by one in float32, these means would be off in the fifth digit."""
    generator = np.random.default_rng(0)
    columns = (1000 + generator.random((150_000, 3))).astype(np.float32)
    model = SoftImpute(scale=False, penalty=1e9).fit(sparse.csr_array(columns))
    assert model.rank_ == 0
    assert np.allclose(model.column_offsets_, columns.mean(axis=0, dtype=np.float64), rtol=1.2e-7)


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 200])
def test_the_size_of_chunks_does_not_matter(chunk, monkeypatch):
    _, _, thin = ratings(60, 30, level=5.0)
    thin = sparse.vstack([thin, sparse.csr_array((3, 30)), thin[:1], sparse.csr_array((2, 30))], format="csr")
    wanted = SoftImpute(scale=False, rank=2, offsets="both").fit(thin)
    monkeypatch.setattr(observed, "_CHUNK", chunk)
    found = SoftImpute(scale=False, rank=2, offsets="both").fit(thin)
    assert np.allclose(found.path_["validation_error"], wanted.path_["validation_error"], rtol=1e-9)
    for name in ("row_offsets_", "column_offsets_", "singular_values_"):
        assert np.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("change", ["int64 indices", "unsorted", "read-only"])
def test_the_caller_keeps_his_table(change):
    _, _, thin = ratings()
    wanted = soft_impute(thin, None, 3.0).estimate()
    parts = [thin.data.copy(), thin.indices.copy(), thin.indptr.copy()]
    if change == "unsorted":
        for first, last in zip(thin.indptr[:-1], thin.indptr[1:], strict=True):
            parts[0][first:last], parts[1][first:last] = thin.data[first:last][::-1], thin.indices[first:last][::-1]
    other = sparse.csr_array(tuple(parts), shape=thin.shape)
    if change == "int64 indices":
        other.indices, other.indptr = other.indices.astype(np.int64), other.indptr.astype(np.int64)
    for array in (other.data, other.indices, other.indptr):
        array.flags.writeable = False
    before = [array.copy() for array in (other.data, other.indices, other.indptr)]
    assert np.array_equal(soft_impute(other, None, 3.0).estimate(), wanted)
    SoftImpute(scale=False, penalty=3.0).fit(other)
    for array, copy in zip((other.data, other.indices, other.indptr), before, strict=True):
        assert np.array_equal(array, copy)


# --- long tables start from a part of their rows ---------------------------------------------------------------------


def test_copies_of_a_table_have_its_minimiser():
    """The law behind the start: f copies, λ·√f, and the right factor grows by f^¼."""
    _, _, thin = ratings(100, 30)
    one = soft_impute(thin, None, 3.0, **TIGHT)
    many = soft_impute(sparse.vstack([thin] * 16, format="csr"), None, 12.0, **TIGHT)
    assert np.allclose(many.estimate(), np.tile(one.estimate(), (16, 1)), atol=1e-5)
    assert np.allclose(np.abs(many.right), 2 * np.abs(one.right), atol=1e-4)


@pytest.mark.slow
def test_the_start_from_a_part_saves_sweeps_and_moves_nothing(monkeypatch):
    values, mask, thin = ratings(1500, 25)
    plain = soft_impute(thin, None, 8.0, **TIGHT)
    quick = soft_impute(thin, None, 8.0)
    estimators = [SoftImpute(scale=False, penalty=8.0, offsets="both", **TIGHT).fit(thin)]
    monkeypatch.setattr(sweeps, "_LONG", 100)  # parts of parts: 1500, 150, 15 rows
    helped = soft_impute(thin, None, 8.0, **TIGHT)
    assert not np.array_equal(helped.left, plain.left)
    assert_minimum(values, mask, helped.estimate(), 8.0)
    assert np.allclose(helped.estimate(), plain.estimate(), atol=1e-5)
    assert len(soft_impute(thin, None, 8.0).objective) < len(quick.objective)
    estimators.append(SoftImpute(scale=False, penalty=8.0, offsets="both", **TIGHT).fit(thin))
    one, two = (model.estimate_at(np.arange(1500)[:, None], np.arange(25)) for model in estimators)
    assert np.allclose(one, two, atol=1e-5)


def test_the_start_is_rescaled_to_the_whole(monkeypatch):
    """So its first objective is near the last; 1.4 times it were the factor, 1.07 were the penalty not rescaled."""
    values, mask, thin = ratings(1500, 25)
    values = values + np.linspace(-4, 4, 1500)[:, None]
    tilted = sparse.csr_array((values[mask], np.nonzero(mask)), shape=mask.shape)
    monkeypatch.setattr(sweeps, "_LONG", 1000)
    fits = [soft_impute(thin, None, 8.0).objective]
    fits += [
        SoftImpute(scale=False, penalty=8.0, offsets=offsets).fit(tilted).objective_ for offsets in ("rows", "both")
    ]
    for objective in fits:
        assert objective[0] < 1.04 * objective[-1]


def test_a_rank_limit_holds_from_the_start_on(monkeypatch):
    _, _, thin = ratings(1500, 25)
    plain = soft_impute(thin, None, 5.0, rank=2, **TIGHT)
    monkeypatch.setattr(sweeps, "_LONG", 100)
    helped = soft_impute(thin, None, 5.0, rank=2, **TIGHT)
    assert helped.rank == 2
    assert helped.objective[-1] == pytest.approx(plain.objective[-1], rel=1e-6)
    assert np.array_equal(helped.left, soft_impute(thin, None, 5.0, rank=2, **TIGHT).left)


# --- single entries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch", "strict"])
def test_entries_of_the_estimate(kind, monkeypatch):
    convert = np.asarray
    if kind == "torch":
        convert = pytest.importorskip("torch", reason="torch is not installed").asarray
    if kind == "strict":
        convert = array_api_strict.asarray
    values, mask, _ = ratings()
    found = soft_impute(convert(values), convert(mask), 3.0, max_iter=5)
    monkeypatch.setattr(observed, "_CHUNK", 50)
    rows, columns = np.random.default_rng(1).integers([[300], [60]], size=(2, 200))
    at = found.estimate_at(rows, columns)
    assert type(at) is type(found.left)
    assert np.allclose(to_numpy(at), to_numpy(found.estimate())[rows, columns], atol=1e-12)
    assert found.estimate_at([[0], [299]], [0, 59, 1]).shape == (2, 3)
    assert found.estimate_at(np.empty(0, dtype=int), 0).shape == (0,)
    with pytest.raises(InputError, match="columns: must be whole numbers from 0 to 59"):
        found.estimate_at(0, 60)


@pytest.mark.parametrize("offsets", OFFSETS)
def test_entries_of_new_rows_are_those_of_transform(offsets):
    _, mask, thin = ratings(level=4.0)
    model = SoftImpute(scale=False, penalty=3.0, offsets=offsets).fit(thin[:200])
    rows, columns = np.nonzero(~mask[200:])
    filled = model.transform(thin[200:])
    assert np.allclose(model.estimate_at(rows, columns, X=thin[200:]), filled[rows, columns], atol=1e-12)
    assert np.allclose(
        model.estimate_at(np.arange(200), 5), model.estimate_at(np.arange(200), 5, X=thin[:200]), atol=1e-12
    )
    with pytest.raises(InputError, match="rows: must be whole numbers from 0 to 99"):
        model.estimate_at(100, 0, X=thin[200:])


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_of_the_size_of_the_dense_table_or_of_entries_times_rank(monkeypatch):
    thin = random_table(20_000, 2_000, 40)
    monkeypatch.setattr(observed, "_CHUNK", 100_000)  # what must not be there would else hide among the chunks
    start = np.random.default_rng(1).standard_normal((2_000, 20))
    places = np.repeat(np.arange(20_000), np.diff(thin.indptr)), thin.indices
    found = []

    def job():
        found.append(soft_impute(thin, None, 0.1, start=start, rank=20, max_iter=2))
        found.append(found[0].estimate_at(*places))

    peak = peak_bytes(job)
    assert found[0].rank == 20
    assert found[1].shape == (thin.nnz,)
    assert peak < 0.5 * thin.nnz * 20 * 8
    assert peak < 0.2 * 20_000 * 2_000 * 8


@pytest.mark.filterwarnings("ignore::keyless.errors.ConvergenceWarning")
@pytest.mark.parametrize("offsets", ["columns", pytest.param("both", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_entries_are_held_once(offsets, monkeypatch):
    """Beside the caller's table: one residual in float64, while the rank grows, and flags."""
    thin = random_table(2_000, 2_000, 600)
    monkeypatch.setattr(observed, "_CHUNK", 50_000)
    model = SoftImpute(scale=False, penalty=1.0, rank=2, max_iter=6, tolerance=1e-3, offsets=offsets)
    assert peak_bytes(lambda: model.fit(thin)) < 12 * thin.nnz


# --- how trouble is told ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "mask", "message"),
    [
        (sparse.csr_array(np.ones((4, 3))), np.ones((4, 3), dtype=bool), "mask: must be None for a sparse matrix"),
        (np.ones((4, 3)), None, "mask: must be given"),
        (sparse.csr_array(np.ones((4, 3), dtype=complex)), None, "values: must be a table of numbers"),
        (sparse.csr_array((0, 3)), None, "at least one row and one column"),
        (sparse.csr_array(np.array([[1.0, np.inf]])), None, "values: must hold finite numbers; found an infinity"),
    ],
)
def test_the_function_explains_bad_sparse_input(values, mask, message):
    with pytest.raises(InputError, match=message):
        soft_impute(values, mask, 1.0)


def test_whole_numbers_and_empty_sparse_tables():
    counts = sparse.csr_array(np.arange(12).reshape(4, 3))
    assert soft_impute(counts, None, 1.0).left.dtype == np.float64
    nothing = soft_impute(sparse.csr_array((4, 3)), None, 1.0)
    assert nothing.rank == 0
    assert not nothing.estimate_at([0, 3], [0, 2]).any()
