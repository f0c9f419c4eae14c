"""The best matching of sparse gains against a dense solver, its proof, and what it needs in time and memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from keyless.assignment import OneToOne, assign, best_matching, chains, market
from keyless.errors import InputError
from keyless.progress import Deadline

INF = np.inf


@pytest.fixture(params=["as it is", "small blocks", "sifted rows"])
def way(request, monkeypatch):
    """Small problems take every way that large ones do."""
    if request.param == "small blocks":
        monkeypatch.setattr(market, "_BLOCK", 3)
    elif request.param == "sifted rows":
        monkeypatch.setattr(chains, "_FEW", 0)


def table_of(gains):
    """The gains as a dense table, where not to make a pair gains 0."""
    return np.maximum(gains.toarray().astype(float), 0.0)


def most(gains):
    table = table_of(gains)
    return table[linear_sum_assignment(-table)].sum()


def rounding(gains):
    """How far sums of the gains may be apart."""
    return 64 * sum(gains.shape) * np.finfo(float).eps * max(table_of(gains).max(initial=0.0), np.finfo(float).tiny)


def assert_feasible(gains, found):
    assert isinstance(found, OneToOne)
    assert found.permutation.dtype == np.int64
    assert found.permutation.shape == (gains.shape[0],)
    rows = np.flatnonzero(found.permutation >= 0)
    columns = found.permutation[rows]
    assert (found.permutation >= -1).all()
    assert np.unique(columns).size == columns.size
    made = gains.tocsr()[rows, columns]
    made = made.toarray() if sparse.issparse(made) else np.asarray(made)
    assert (made > 0).all()  # a pair that is not stored would be 0
    assert found.gain == pytest.approx(made.sum(dtype=float), abs=rounding(gains))
    assert found.gap == found.bound - found.gain
    assert found.gap >= 0


def assert_best(gains, found):
    assert_feasible(gains, found)
    assert found.gain == pytest.approx(most(gains), abs=rounding(gains))
    assert found.gap <= rounding(gains)


def random_gains(shape, seed, *, density=0.5, kind="real", dtype=np.float64):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal(shape) + 0.5
    if kind == "ties":
        table = np.round(table)
    elif kind == "equal":
        table = np.ones(shape)
    rows, columns = np.nonzero(rng.random(shape) < density)
    # Stored zeros and negative gains are candidates that must not be used.
    return sparse.csr_array((table[rows, columns].astype(dtype), (rows, columns)), shape=shape)


def crowd(n_rows, n_columns, candidates, seed):
    """Rows with a few random candidates and random gains: nearly all of them in one component."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(n_rows), candidates)
    columns = rng.integers(0, n_columns, rows.size)
    return sparse.coo_array((rng.random(rows.size), (rows, columns)), shape=(n_rows, n_columns)).tocsr()


def standing_out(n_rows, seed, *, doubtful=0.0):
    """Rows whose true column gains most, but for a part that may be anywhere; five candidates each."""
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, n_rows, (n_rows, 5))
    columns[:, 0] = rng.permutation(n_rows)
    values = 2 * rng.random((n_rows, 5))
    values[:, 0] += np.where(rng.random(n_rows) < doubtful, 0.0, 8.0)
    return sparse.coo_array(
        (values.ravel(), (np.repeat(np.arange(n_rows), 5), columns.ravel())), shape=(n_rows, n_rows)
    ).tocsr()


PROBLEMS = st.builds(
    random_gains,
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.integers(0, 2**32 - 1),
    density=st.sampled_from([0.0, 0.15, 0.3, 0.6, 1.0]),
    kind=st.sampled_from(["real", "ties", "equal"]),
    dtype=st.sampled_from([np.float64, np.float32]),
)


# --- the best, and a proof of it -------------------------------------------------------------------------------------


@settings(max_examples=400)
@given(PROBLEMS)
@example(sparse.csr_array((3, 2)))
@example(sparse.csr_array(-np.ones((2, 3))))
@example(sparse.csr_array(np.ones((1, 1))))
def test_finds_what_a_dense_solver_finds(gains):
    assert_best(gains, best_matching(gains))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["real", "ties", "equal"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (12, 12), (8, 20), (20, 8), (60, 60)])
def test_every_way_finds_the_best(shape, kind):
    for seed in range(6):
        for density in (0.1, 0.3, 1.0):
            gains = random_gains(shape, seed, density=density, kind=kind)
            assert_best(gains, best_matching(gains))


@pytest.mark.parametrize("shape", [(400, 400), (500, 250), (250, 500)])
@pytest.mark.parametrize("candidates", [2, 5, 20])
def test_finds_the_best_of_a_crowd(shape, candidates):
    gains = crowd(*shape, candidates, seed=candidates)
    assert_best(gains, best_matching(gains))


def test_finds_the_best_along_a_line():
    """Neighbours on a line push each other along: long chains of moves."""
    rng = np.random.default_rng(3)
    here, there = np.sort(rng.random((2, 300)), axis=1) * 300
    gains = sparse.csr_array(np.maximum(8 - np.abs(here[:, None] - there), 0))
    assert_best(gains, best_matching(gains))


@settings(max_examples=150)
@given(PROBLEMS)
def test_without_time_the_bound_still_holds(gains):
    found = best_matching(gains, max_time=1e-9)
    assert_feasible(gains, found)
    assert found.bound >= most(gains) - rounding(gains)
    assert found.gain <= most(gains) + rounding(gains)
    # No pair of a row and a column that are both alone would gain anything.
    table = table_of(gains)
    columns_alone = np.setdiff1d(np.arange(gains.shape[1]), found.permutation)
    assert not table[np.ix_(found.permutation < 0, columns_alone)].any()


def test_without_time_a_crowd_has_a_gap():
    gains = crowd(2000, 2000, 5, seed=0)
    best = best_matching(gains)
    found = best_matching(gains, max_time=1e-9)
    assert_feasible(gains, found)
    assert found.gap > 0.01 * best.gain
    assert found.gain < best.gain < found.bound
    assert found.gain > 0.8 * best.gain
    assert best.gap <= rounding(gains)


@pytest.mark.parametrize("max_steps", [1, 100, 10**9])
def test_a_crowd_within_so_many_steps(max_steps):
    """The same every time, with a gap that holds; with enough steps the best."""
    gains = crowd(600, 600, 5, seed=2)
    best = most(gains)
    found, again = (best_matching(gains, max_steps=max_steps) for _ in range(2))
    assert_feasible(gains, found)
    np.testing.assert_array_equal(found.permutation, again.permutation)
    assert found.gain <= best + rounding(gains)
    assert found.bound >= best - rounding(gains)
    assert found.gain > 0.8 * best
    assert (found.gap <= rounding(gains)) == (max_steps == 10**9)


def test_rows_left_over_are_placed_at_a_small_loss():
    """What the approximate method loses is within its step for each row, and shrinks with it."""
    gains = crowd(500, 500, 5, seed=1)
    best = most(gains)
    gaps = []
    for step in (0.2, 0.05, 0.01):
        hurried = market.Market(gains)
        assert hurried.auction(np.arange(500), Deadline(), step=step).size == 0
        assert hurried.gain() <= best + rounding(gains)
        assert hurried.bound() >= best - rounding(gains)
        gaps.append(hurried.bound() - hurried.gain())
        assert gaps[-1] <= 500 * step
    assert gaps == sorted(gaps, reverse=True)


def test_a_search_that_is_stopped_changes_nothing(monkeypatch):
    monkeypatch.setattr(chains, "_PATIENCE", 1)
    gains = crowd(300, 200, 5, seed=2)
    stopped = market.Market(gains)
    waiting = stopped.auction(np.arange(300), Deadline())
    assert waiting.size > 10
    before = stopped.permutation(), stopped.bound()
    late = Deadline()
    late.stop()
    np.testing.assert_array_equal(stopped.place(waiting, late), waiting)
    chain = chains.Chains(
        indptr=gains.indptr,
        columns=gains.indices,
        gains=gains.data,
        prices=stopped._prices,
        owners=stopped._owners,
        pairs=stopped._pairs,
    )
    assert not all(chain.place(row, late) for row in waiting.tolist()[:1])
    np.testing.assert_array_equal(stopped.permutation(), before[0])
    assert stopped.bound() == before[1]
    assert stopped.place(waiting, Deadline()).size == 0
    assert stopped.gain() == pytest.approx(most(gains), abs=rounding(gains))


# --- laws ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(PROBLEMS, st.integers(0, 2**32 - 1))
def test_relabelling_rows_and_columns_changes_no_total(gains, seed):
    rng = np.random.default_rng(seed)
    rows, columns = (rng.permutation(size) for size in gains.shape)
    found = best_matching(gains)
    relabelled = best_matching(gains[rows][:, columns])
    turned = best_matching(gains.T.tocsr())
    for other in (relabelled, turned):
        assert other.gain == pytest.approx(found.gain, abs=rounding(gains))
        assert (other.components, other.largest) == (found.components, found.largest)


def test_relabelling_relabels_the_permutation():
    """Random reals have one best matching."""
    gains = crowd(200, 150, 4, seed=4)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(200), rng.permutation(150)
    relabelled = best_matching(gains[rows][:, columns]).permutation
    there = np.append(columns, -1)[relabelled]
    np.testing.assert_array_equal(there, best_matching(gains).permutation[rows])


@pytest.mark.parametrize("power", [-200, -60, 60, 200])
def test_the_units_of_the_gains_do_not_matter(power):
    """Powers of two are exact, so the same matching must come out of every scale."""
    gains = crowd(100, 80, 4, seed=5)
    np.testing.assert_array_equal(best_matching(gains * 2.0**power).permutation, best_matching(gains).permutation)


def test_one_huge_gain_does_not_drown_the_others():
    gains = sparse.csr_array([[1e17, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 2.5]])
    np.testing.assert_array_equal(best_matching(gains).permutation, [0, 2, 1])


def test_equals_assign_at_a_price():
    """A pair apart costs 1: what a pair gains is what it saves."""
    rng = np.random.default_rng(6)
    cost = rng.random((40, 30)) * 2
    keep = rng.random(cost.shape) < 0.2
    candidates = sparse.csr_array(np.where(keep, cost, 0.0))
    savings = sparse.csr_array(np.where(keep, 1.0 - cost, 0.0))
    np.testing.assert_array_equal(assign(candidates, unmatched_cost=1.0), best_matching(savings).permutation)


# --- components ------------------------------------------------------------------------------------------------------


def test_counts_components_with_more_than_one_pair():
    pairs = [(0, 0), (1, 0), (2, 3), (3, 3), (3, 4), (4, 6), (5, 7)]
    rows, columns = np.transpose(pairs)
    gains = sparse.csr_array((np.ones(len(pairs)), (rows, columns)), shape=(7, 8))
    found = best_matching(gains)
    assert (found.components, found.largest) == (2, 3)
    assert found.gain == 5


def test_pairs_that_gain_nothing_connect_nothing():
    gains = sparse.csr_array([[1.0, 0.0], [-1.0, 2.0]])
    found = best_matching(gains)
    assert (found.components, found.largest) == (0, 0)
    np.testing.assert_array_equal(found.permutation, [0, 1])
    zero = sparse.csr_array((np.array([1.0, 0.0, 2.0]), ([0, 1, 1], [0, 0, 1])), shape=(2, 2))
    assert zero.nnz == 3
    assert best_matching(zero).components == 0


def test_chains_run_through_pairs_that_looked_settled():
    """Row 2 pushes row 1 away from its best, and row 1 pushes row 0: three pairs instead of two."""
    gains = sparse.csr_array([[5.0, 4.0, 0.0], [0.0, 5.0, 4.0], [3.0, 0.0, 0.0]])
    found = best_matching(gains)
    np.testing.assert_array_equal(found.permutation, [1, 2, 0])
    assert found.gain == 11
    assert found.gap == 0


# --- kinds of input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
def test_every_sparse_layout_and_the_old_matrices(layout):
    table = np.array([[5.0, 4.0, 0.0], [4.5, 1.0, 0.0], [0.0, 0.0, -2.0]])
    for kind in (sparse.coo_array, sparse.coo_matrix):
        np.testing.assert_array_equal(best_matching(kind(table).asformat(layout)).permutation, [1, 0, -1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, np.uint16, np.bool_, np.longdouble])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_every_kind_of_number(dtype, index):
    rng = np.random.default_rng(7)
    gains = sparse.csr_array(np.where(rng.random((9, 7)) < 0.4, rng.integers(1, 9, (9, 7)), 0).astype(dtype))
    gains.indices, gains.indptr = gains.indices.astype(index), gains.indptr.astype(index)
    assert_best(gains, best_matching(gains))


def test_duplicates_are_summed_and_the_input_is_left_alone():
    data, indices = np.array([2.0, 3.0, -1.0, 4.0]), np.array([1, 0, 1, 0])
    gains = sparse.csr_array((data, indices, np.array([0, 3, 4])), shape=(2, 2))
    for array in (data, indices, gains.indptr):
        array.flags.writeable = False
    np.testing.assert_array_equal(best_matching(gains).permutation, [1, 0])
    assert gains.nnz == 4
    tidy = sparse.csr_array([[1.0, -2.0], [3.0, 0.5]])
    before = tidy.copy()
    for array in (tidy.data, tidy.indices, tidy.indptr):
        array.flags.writeable = False
    assert best_matching(tidy).gain == 3
    assert (tidy != before).nnz == 0


@pytest.mark.parametrize(
    ("gains", "message"),
    [
        (np.eye(2), r"gains: must be a scipy.sparse array, .* found ndarray\. Wrap it in scipy.sparse.csr_array"),
        ([[1.0]], r"gains: must be a scipy.sparse array, .* found list"),
        (sparse.csr_array((0, 3)), r"gains: must have at least one row and one column; found shape \(0, 3\)"),
        (sparse.csr_array([[1j]]), r"gains: must hold real numbers; found dtype complex128"),
        (sparse.csr_array([[0.0, 1.0], [0.0, np.nan]]), r"gains, row 1, column 1: must be a finite.*found nan"),
        (sparse.csr_array([[INF, 1.0]]), r"gains, row 0, column 0: must be a finite number; found inf"),
        (sparse.csr_array([[-INF, 1.0]]), r"gains, row 0, column 0: must be a finite number; found -inf"),
    ],
)
def test_refuses_gains_that_are_none(gains, message):
    with pytest.raises(InputError, match=message):
        best_matching(gains)


@pytest.mark.parametrize("max_time", [0, -1.0, np.nan, "long"])
def test_refuses_a_time_that_is_none(max_time):
    with pytest.raises(InputError, match="max_time: must be"):
        best_matching(sparse.eye_array(2).tocsr(), max_time=max_time)


# --- at scale --------------------------------------------------------------------------------------------------------


def test_a_row_that_stands_out_is_settled_in_the_first_round(monkeypatch):
    """Nothing is left to place one by one, however many rows there are."""

    def none(*_):
        raise AssertionError("a row was placed by itself")

    monkeypatch.setattr(chains.Chains, "place", none)
    gains = standing_out(50_000, seed=0)
    found = best_matching(gains)
    assert found.gap <= 1e-9 * found.gain
    assert np.count_nonzero(found.permutation >= 0) == 50_000


def test_few_rows_are_placed_one_by_one_and_by_short_chains(monkeypatch):
    """The work grows with the doubt, not with the size: counted, not timed."""
    found_chains = []
    search = chains.Chains._search

    def counted(self, row, deadline):
        found_chains.append(search(self, row, deadline))
        return found_chains[-1]

    monkeypatch.setattr(chains.Chains, "_search", counted)
    gains = standing_out(50_000, seed=1, doubtful=0.05)
    found = best_matching(gains)
    assert found.gap <= 1e-9 * found.gain
    assert 0 < len(found_chains) < 0.05 * 50_000
    assert sum(len(chain.passed) for chain in found_chains) < 50_000


def test_small_components_are_not_visited_one_by_one(monkeypatch):
    """Of 100,000 components of up to three rows and columns, the auction settles all but a few."""
    placed = []
    place = market.Market.place
    monkeypatch.setattr(
        market.Market,
        "place",
        lambda self, rows, deadline, **limits: (placed.append(rows.size), place(self, rows, deadline, **limits))[1],
    )
    rng = np.random.default_rng(8)
    group = np.repeat(np.arange(100_000), 4)
    rows, columns = 3 * group + rng.integers(0, 3, (2, group.size))
    gains = sparse.coo_array((rng.random(group.size), (rows, columns)), shape=(300_000, 300_000)).tocsr()
    found = best_matching(gains)
    assert found.gap <= 1e-9 * found.gain
    assert found.components > 50_000
    assert found.largest <= 4
    assert sum(placed) < 10_000


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_is_a_small_multiple_of_the_pairs(dtype):
    gains = standing_out(200_000, seed=2, doubtful=0.02).astype(dtype)
    gains.sum_duplicates()
    tracemalloc.start()
    try:
        found = best_matching(gains)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.gap <= 1e-9 * found.gain
    assert peak < 80 * gains.nnz
