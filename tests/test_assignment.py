"""Matchings against brute force over all of them, dense and sparse, and the laws they obey."""

import itertools

import array_api_strict
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from keyless.arrays import to_numpy
from keyless.assignment import assign, costs, from_coupling, inverse
from keyless.errors import InputError
from keyless.transport import sinkhorn

INF = np.inf


@pytest.fixture(params=["numpy", "torch", "strict"])
def library(request):
    if request.param == "torch":
        return pytest.importorskip("torch", reason="torch is not installed")
    return {"numpy": np, "strict": array_api_strict}[request.param]


@pytest.fixture
def only_sparse(monkeypatch):
    """Send every component, however small, to the solver for large ones."""
    monkeypatch.setattr(costs, "_DENSE_CELLS", 0)


def all_matchings(rows, columns):
    """Every one-to-one matching, partial ones included: row → column or −1."""
    for choice in itertools.product(range(-1, columns), repeat=rows):
        used = [column for column in choice if column >= 0]
        if len(set(used)) == len(used):
            yield choice


def value(cost, permutation, unmatched_cost=None):
    """What is to be minimised: (pairs not made, cost of those made), or their sum at a price."""
    made = [cost[i, j] for i, j in enumerate(permutation) if j >= 0]
    apart = min(cost.shape) - len(made)
    return (apart, sum(made)) if unmatched_cost is None else (0, sum(made) + unmatched_cost * apart)


def best_value(cost, unmatched_cost=None):
    rows, columns = cost.shape
    if unmatched_cost is None and np.isfinite(cost).all():
        # Then every complete matching is allowed, and there are fewer of them.
        table = cost if rows <= columns else cost.T
        rows, columns = table.shape
        return 0, min(
            sum(table[i, j] for i, j in enumerate(order)) for order in itertools.permutations(range(columns), rows)
        )
    allowed = (m for m in all_matchings(*cost.shape) if all(j < 0 or np.isfinite(cost[i, j]) for i, j in enumerate(m)))
    return min(value(cost, matching, unmatched_cost) for matching in allowed)


def assert_best(cost, permutation, unmatched_cost=None):
    found = to_numpy(permutation)
    assert found.dtype == np.int64
    assert found.shape == (cost.shape[0],)
    matched = found[found >= 0]
    assert (found >= -1).all()
    assert (found < cost.shape[1]).all()
    assert len(set(matched)) == len(matched)
    assert np.isfinite(cost[np.flatnonzero(found >= 0), matched]).all()
    pairs, total = value(cost, found, unmatched_cost)
    best_pairs, best_total = best_value(cost, unmatched_cost)
    assert pairs == best_pairs
    scale = np.abs(cost[np.isfinite(cost)]).max(initial=0.0) + abs(unmatched_cost or 0.0)
    # Prices of forbidden pairs may be 2·n·scale; sums of n costs beside them are rounded relative to that.
    assert abs(total - best_total) <= 16 * max(cost.shape) ** 2 * scale * np.finfo(float).eps


def as_candidates(cost):
    """The allowed pairs of a dense cost, zeros stored."""
    rows, columns = np.nonzero(np.isfinite(cost))
    return sparse.coo_array((cost[rows, columns], (rows, columns)), shape=cost.shape)


def draw(shape, seed, *, forbidden=0.0, kind="real"):
    rng = np.random.default_rng(seed)
    cost = rng.standard_normal(shape) if kind == "real" else rng.integers(-2, 3, shape).astype(float)
    cost[rng.random(shape) < forbidden] = INF
    return cost


# --- brute force -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (2, 2), (5, 5), (6, 6), (3, 6), (6, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_cheapest_complete_matching(shape, seed):
    for kind in ("real", "ties"):
        cost = draw(shape, seed, kind=kind)
        assert_best(cost, assign(cost))
        assert_best(cost, assign(as_candidates(cost)))


SMALL = st.tuples(
    st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.6, 0.9])
)


@settings(max_examples=150)
@given(SMALL, st.sampled_from(["real", "ties"]), st.sampled_from([None, -1.5, -0.5, 0.0, 0.5, 1.0, 10.0]))
@example((3, 3, 0, 1.0), "real", None)
@example((3, 3, 0, 1.0), "real", 1.0)
def test_makes_as_many_pairs_as_possible_or_as_many_as_pay(small, kind, unmatched_cost):
    rows, columns, seed, forbidden = small
    cost = draw((rows, columns), seed, forbidden=forbidden, kind=kind)
    assert_best(cost, assign(cost, unmatched_cost=unmatched_cost), unmatched_cost)
    assert_best(cost, assign(as_candidates(cost), unmatched_cost=unmatched_cost), unmatched_cost)


@pytest.mark.usefixtures("only_sparse")
@pytest.mark.parametrize("unmatched_cost", [None, -0.5, 0.0, 0.7, 10.0])
@pytest.mark.parametrize("shape", [(4, 4), (2, 5), (5, 2), (1, 3)])
def test_large_components_are_solved_alike(shape, unmatched_cost):
    for seed, forbidden, kind in itertools.product(range(4), [0.0, 0.5], ["real", "ties", "equal"]):
        cost = draw(shape, seed, forbidden=forbidden)
        if kind == "ties":
            cost = np.round(cost)
        elif kind == "equal":  # then nothing but the number of pairs tells matchings apart
            cost = np.where(np.isfinite(cost), 0.5, INF)
        assert_best(cost, assign(as_candidates(cost), unmatched_cost=unmatched_cost), unmatched_cost)


@pytest.mark.usefixtures("only_sparse")
def test_large_components_really_take_the_other_way(monkeypatch):
    calls = []
    solve = costs.csgraph.min_weight_full_bipartite_matching

    def counted(*arguments):
        calls.append(arguments)
        return solve(*arguments)

    monkeypatch.setattr(costs.csgraph, "min_weight_full_bipartite_matching", counted)
    assign(as_candidates(draw((4, 4), 0)))
    assert len(calls) == 1


def test_large_components_agree_with_dense_ones_beyond_brute_force(monkeypatch):
    rng = np.random.default_rng(5)
    cost = rng.random((60, 45))
    cost[rng.random(cost.shape) < 0.9] = INF
    for unmatched_cost in (None, 0.4):
        monkeypatch.setattr(costs, "_DENSE_CELLS", 1_000_000)
        wanted = [
            assign(cost, unmatched_cost=unmatched_cost),
            assign(as_candidates(cost), unmatched_cost=unmatched_cost),
        ]
        monkeypatch.setattr(costs, "_DENSE_CELLS", 0)
        found = assign(as_candidates(cost), unmatched_cost=unmatched_cost)
        for one in wanted:  # random reals have one best matching
            np.testing.assert_array_equal(found, one)
        assert -1 in found


def test_components_are_put_back_where_they_belong(monkeypatch):
    """Two components that interleave, a lonely pair, a lonely row and a lonely column."""
    cost = np.full((6, 6), INF)
    cost[np.ix_([0, 3], [1, 4])] = [[1, 5], [2, 9]]
    cost[np.ix_([2, 5], [0, 3])] = [[7, 1], [1, 7]]
    cost[4, 2] = 3
    np.testing.assert_array_equal(assign(cost), [4, -1, 3, 1, 2, 0])
    sizes = []
    solve = costs._assign_component

    def counted(rows, columns, costs, shape, unmatched_cost):
        sizes.append(shape)
        return solve(rows, columns, costs, shape, unmatched_cost)

    monkeypatch.setattr(costs, "_assign_component", counted)
    np.testing.assert_array_equal(assign(as_candidates(cost)), [4, -1, 3, 1, 2, 0])
    assert sizes == [(2, 2), (2, 2)]


# --- pairs before costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e9, 1e30])
def test_more_pairs_win_over_any_cost_whatever_the_units(scale, library, monkeypatch):
    """Three rows share two columns; the cheap matchings of two rows would leave a pair unmade."""
    cost = scale * np.array([[0.0, 1.0, INF], [INF, 1000.0, INF], [0.5, INF, INF]])
    cost[0, 0] = -1000 * scale
    assert best_value(cost)[0] == 1
    assert_best(cost, assign(library.asarray(cost)))
    assert_best(cost, assign(as_candidates(cost)))
    monkeypatch.setattr(costs, "_DENSE_CELLS", 0)
    assert_best(cost, assign(as_candidates(cost)))


@pytest.mark.parametrize("power", [-60, 0, 60])
@pytest.mark.parametrize("cells", [0, 1_000_000])
def test_the_units_of_the_cost_do_not_matter(power, cells, monkeypatch):
    """Powers of two are exact, so the same matching must come out of every scale, with and without forbidden pairs."""
    monkeypatch.setattr(costs, "_DENSE_CELLS", cells)
    for seed in range(10):
        for forbidden in (0.0, 0.5, 0.8):
            cost = draw((6, 6), seed, forbidden=forbidden)
            scaled = np.where(np.isfinite(cost), 2.0**power * np.where(np.isfinite(cost), cost, 0), INF)
            np.testing.assert_array_equal(assign(scaled), assign(cost))
            np.testing.assert_array_equal(assign(as_candidates(scaled)), assign(as_candidates(cost)))


@pytest.mark.parametrize("cells", [0, 1_000_000])
def test_a_pair_more_is_made_even_where_it_costs_more_than_any_pair(cells, monkeypatch):
    """Row 0 must give up its best column for row 1: dearer by twice the whole span of the costs."""
    monkeypatch.setattr(costs, "_DENSE_CELLS", cells)
    cost = np.array([[0.0, 1.0, INF], [1.0, INF, INF], [INF, 1.0, INF]])
    assert best_value(cost)[0] == 1
    chain = np.array([[0.0, 1.0], [1.0, INF]])
    for whole in (cost, chain, chain - 100, chain + 100):
        assert_best(whole, assign(whole))
        assert_best(whole, assign(as_candidates(whole)))


@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
@pytest.mark.parametrize("cells", [0, 1_000_000])
def test_adding_a_constant_to_every_cost_changes_nothing(shift, cells, monkeypatch):
    """All matchings compared have the same number of pairs."""
    monkeypatch.setattr(costs, "_DENSE_CELLS", cells)
    for seed in range(20):
        cost = draw((5, 6), seed, forbidden=0.7)
        np.testing.assert_array_equal(assign(cost + shift), assign(cost))
        np.testing.assert_array_equal(assign(as_candidates(cost + shift)), assign(as_candidates(cost)))


def test_one_huge_cost_does_not_drown_the_others():
    """Beside 10¹⁷, sums round to multiples of 16; the differences of the small costs must still decide."""
    cost = np.array([[-1e17, INF, INF], [INF, 2.0, 1.0], [INF, 1.0, 2.0]])
    np.testing.assert_array_equal(assign(cost), [0, 2, 1])
    np.testing.assert_array_equal(assign(np.abs(cost)), [0, 2, 1])


def test_float32_costs_are_added_up_in_double_precision():
    """−10⁸ beside 1 and 2: in float32 a shift by the lowest cost would make the last two equal."""
    cost = np.array(
        [[-1e8, INF, INF, INF], [INF, 2.0, 1.0, INF], [INF, 1.0, 2.0, INF], [0.0, INF, INF, INF]], np.float32
    )
    np.testing.assert_array_equal(assign(cost), [0, 2, 1, -1])
    np.testing.assert_array_equal(assign(cost, unmatched_cost=1e8), [0, 2, 1, -1])


def test_unmatched_cost_is_the_price_of_a_pair_apart():
    cost = np.array([[0.1, 7.0], [9.0, 8.0]])
    np.testing.assert_array_equal(assign(cost), [0, 1])
    np.testing.assert_array_equal(assign(cost, unmatched_cost=7.9), [0, -1])
    np.testing.assert_array_equal(assign(cost, unmatched_cost=8.1), [0, 1])
    np.testing.assert_array_equal(assign(cost, unmatched_cost=0.05), [-1, -1])
    np.testing.assert_array_equal(assign(-cost, unmatched_cost=-8.5), [-1, 0])
    np.testing.assert_array_equal(assign(-cost, unmatched_cost=-6.5), [1, 0])


@pytest.mark.parametrize("cells", [0, 1_000_000])
def test_a_pair_that_saves_nothing_is_not_made(cells, monkeypatch):
    monkeypatch.setattr(costs, "_DENSE_CELLS", cells)
    cost = np.ones((3, 3))
    for given_cost in (cost, as_candidates(cost)):
        np.testing.assert_array_equal(assign(given_cost, unmatched_cost=1.0), [-1, -1, -1])
        assert sorted(assign(given_cost, unmatched_cost=1.0 + 1e-12)) == [0, 1, 2]


def test_when_nothing_is_allowed_nothing_is_matched():
    cost = np.full((2, 3), INF)
    for unmatched_cost in (None, 1.0, -1.0):
        np.testing.assert_array_equal(assign(cost, unmatched_cost=unmatched_cost), [-1, -1])
        np.testing.assert_array_equal(assign(sparse.csr_array((2, 3)), unmatched_cost=unmatched_cost), [-1, -1])


# --- potentials ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(SMALL, st.sampled_from([None, 0.3]), st.sampled_from([1e-6, 1.0, 50.0]))
def test_potentials_do_not_change_what_is_best(small, unmatched_cost, size):
    rows, columns, seed, forbidden = small
    cost = draw((rows, columns), seed, forbidden=forbidden)
    rng = np.random.default_rng(seed)
    potentials = (size * rng.standard_normal(rows), size * rng.standard_normal(columns))
    found = assign(cost, potentials=potentials, unmatched_cost=unmatched_cost)
    # Subtracting rounds relative to the potentials; random costs differ by far more than 50 · 2⁻⁵².
    np.testing.assert_array_equal(found, assign(cost, unmatched_cost=unmatched_cost))


def test_potentials_do_not_choose_who_stays_apart():
    """Where not all can be matched, a shifted cost would favour one partial matching over another."""
    np.testing.assert_array_equal(assign(np.array([[1.0], [2.0]]), potentials=([0.0, 5.0], [0.0])), [0, -1])
    np.testing.assert_array_equal(assign(np.array([[1.0, 2.0]]), potentials=([0.0], [0.0, 5.0])), [0])
    cost = np.array([[1.0, 2.0], [INF, INF]])
    np.testing.assert_array_equal(assign(cost, potentials=([0.0, 0.0], [0.0, 5.0])), [0, -1])


def test_potentials_of_sinkhorn_fit(library):
    cost = library.asarray(draw((12, 12), 1))
    potentials = sinkhorn(cost, epsilon=0.01, max_iter=200).potentials
    found = assign(cost, potentials=potentials)
    np.testing.assert_array_equal(to_numpy(found), to_numpy(assign(cost)))


# --- kinds of input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_answer_is_of_the_library_of_the_cost(library, dtype):
    cost = library.asarray(draw((4, 5), 3, forbidden=0.2).astype(dtype))
    before = to_numpy(cost).copy()
    for unmatched_cost in (None, 0.1):
        found = assign(cost, unmatched_cost=unmatched_cost)
        assert type(found) is type(cost)
        assert found.dtype == library.int64
        np.testing.assert_array_equal(to_numpy(found), assign(before, unmatched_cost=unmatched_cost))
    np.testing.assert_array_equal(to_numpy(cost), before)


def test_takes_integers_lists_views_read_only_and_half_precision():
    base = np.array([[4, 1, 3], [2, 0, 5], [3, 2, 2]])
    read_only = base * 1.0
    read_only.flags.writeable = False
    wide = np.zeros((6, 6))
    wide[::2, 1::2] = base
    for cost in (
        base,
        base.tolist(),
        base.astype(np.uint8),
        base.astype(np.float16),
        read_only,
        wide[::2, 1::2],
        base > 2,
    ):
        assert_best(np.asarray(cost, dtype=float), assign(cost))
    torch = pytest.importorskip("torch", reason="torch is not installed")
    np.testing.assert_array_equal(assign(torch.asarray(base, dtype=torch.bfloat16)), assign(base))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
def test_every_sparse_layout_and_the_old_matrices(layout):
    cost = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [5.0, 4.0, 0.0]])
    stored = np.where(cost == 0, INF, cost)
    for kind in (sparse.coo_array, sparse.coo_matrix):
        found = assign(kind(cost).asformat(layout))
        if layout in ("bsr", "dia"):  # these store zeros of their own
            assert found.shape == (3,)
        else:
            assert_best(stored, found)


def test_stored_zeros_are_candidates():
    data, rows, columns = [0.0, 0.0, 1.0], [0, 1, 1], [1, 1, 0]
    candidates = sparse.coo_array((data, (rows, columns)), shape=(2, 2))
    np.testing.assert_array_equal(assign(candidates), [1, 0])
    np.testing.assert_array_equal(assign(candidates, unmatched_cost=0.5)[[0]], [1])
    lone = sparse.coo_array(([0.0], ([1], [0])), shape=(2, 2))
    np.testing.assert_array_equal(assign(lone), [-1, 0])


def test_duplicates_are_summed_as_everywhere_in_scipy():
    """100 + 100 is dearer than 120, also where the stored integers could not hold the sum."""
    for dtype in (np.int8, np.int64, np.float32, np.float64):
        stored = np.array([100, 100, 120], dtype=dtype)
        candidates = sparse.coo_array((stored, ([0, 0, 0], [0, 0, 1])), shape=(1, 2))
        np.testing.assert_array_equal(assign(candidates), [1])
        assert candidates.nnz == 3  # and the caller's are left alone


def test_sparse_input_is_not_modified():
    candidates = sparse.csr_array(draw((4, 4), 0))
    before = candidates.copy()
    assign(candidates, unmatched_cost=0.2)
    np.testing.assert_array_equal(candidates.toarray(), before.toarray())
    np.testing.assert_array_equal(candidates.indices, before.indices)


# --- couplings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (3, 6), (6, 3)])
def test_from_coupling_carries_the_most_weight(shape, library):
    weight = np.random.default_rng(2).random(shape)
    coupling = library.asarray(weight)
    found = from_coupling(coupling)
    assert type(found) is type(coupling)
    assert_best(-weight, found)
    np.testing.assert_array_equal(to_numpy(coupling), weight)


@pytest.mark.parametrize(
    ("coupling", "message"),
    [
        ([[np.nan, 1.0]], r"coupling, row 0, column 0: must be a finite number; found NaN"),
        ([[1.0, INF]], r"coupling, row 0, column 1: must be a finite number; found an infinity"),
        ([1.0], r"coupling: must be a table with rows and columns"),
    ],
)
def test_from_coupling_refuses(coupling, message):
    with pytest.raises(InputError, match=message):
        from_coupling(np.array(coupling))


# --- inverse ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 8).flatmap(
        lambda n: st.tuples(st.permutations(range(n)), st.lists(st.booleans(), min_size=n, max_size=n))
    )
)
def test_inverse_points_back(drawn):
    order, keep = drawn
    permutation = np.where(keep, order, -1) if order else np.empty(0, dtype=int)
    back = inverse(permutation)
    assert back.shape == permutation.shape
    for row, column in enumerate(permutation):
        assert column == -1 or back[column] == row
    assert np.count_nonzero(back >= 0) == np.count_nonzero(permutation >= 0)
    np.testing.assert_array_equal(inverse(back), permutation)


def test_inverse_of_unequal_sizes():
    np.testing.assert_array_equal(inverse([3, 0], size=5), [1, -1, -1, 0, -1])
    np.testing.assert_array_equal(inverse([-1, 1, -1, 0], size=2), [3, 1])
    np.testing.assert_array_equal(inverse([]), [])
    np.testing.assert_array_equal(inverse([], size=2), [-1, -1])
    assert inverse([0]).dtype == np.int64


def test_inverse_is_of_the_library_of_the_permutation(library):
    permutation = library.asarray([2, -1, 0])
    found = inverse(permutation)
    assert type(found) is type(permutation)
    assert found.dtype == library.int64
    np.testing.assert_array_equal(to_numpy(found), [2, -1, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 0],), r"permutation: must use each column at most once; rows 0 and 1 both point to column 0"),
        (([0, 2],), r"permutation, position 1: must be from 0 to 1, or -1 for no partner; found 2"),
        (([0, -2],), r"permutation, position 1: must be from 0 to 1, or -1 for no partner; found -2"),
        (([0.0, 1.0],), r"permutation: must be a 1-D array of whole numbers; found 1-D of dtype float64"),
        (([True, False],), r"permutation: must be a 1-D array of whole numbers; found 1-D of dtype bool"),
        (([[0, 1]],), r"permutation: must be a 1-D array of whole numbers; found 2-D"),
        ((3,), r"permutation: must be a 1-D array of whole numbers; found 0-D"),
        (([[0], [1, 2]],), r"permutation: must be a 1-D array of whole numbers; its rows have different lengths"),
    ],
)
def test_inverse_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        inverse(*arguments)


def test_inverse_refuses_a_size_that_is_none():
    with pytest.raises(InputError, match=r"size: must be a whole number of at least 1; found -1"):
        inverse([0], size=-1)
    with pytest.raises(InputError, match=r"position 0: must be from 0 to 1, or -1 for no partner; found 2"):
        inverse([2], size=2)


# --- what cannot be used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (np.array([[0.0, np.nan]]), r"cost, row 0, column 1: must be a finite number; found NaN"),
        (np.array([[0.0], [-INF]]), r"cost, row 1, column 0: must be .*; found minus infinity"),
        (np.zeros((0, 0)), r"cost: must have at least one row and one column; found shape \(0, 0\)"),
        (np.zeros((2, 0)), r"cost: must have at least one row and one column; found shape \(2, 0\)"),
        (np.zeros(2), r"cost: must be a table with rows and columns \(2-D\); found 1-D"),
        (np.zeros((1, 1)) + 1j, r"cost: must hold real numbers; found dtype complex128"),
        (np.array([["x"]]), r"cost: must hold real numbers; found dtype <U1"),
        (sparse.csr_array((0, 3)), r"cost: must have at least one row and one column; found shape \(0, 3\)"),
        (sparse.coo_array(np.ones(3)), r"cost: must have at least one row and one column; found shape \(3,\)"),
        (sparse.csr_array([[0.0, 1j]]), r"cost: must hold real numbers; found dtype complex128"),
        (sparse.csr_array([[0.0, 1.0], [0.0, np.nan]]), r"cost, row 1, column 1: must be a finite.*found nan\. Leave"),
        (sparse.csr_array([[0.0, 0.0], [INF, 1.0]]), r"cost, row 1, column 0: must be a finite number; found inf"),
    ],
)
def test_refuses_a_cost_that_is_none(cost, message):
    with pytest.raises(InputError, match=message):
        assign(cost)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unmatched_cost": np.nan}, r"unmatched_cost: must be a finite number; found nan"),
        ({"unmatched_cost": INF}, r"unmatched_cost: must be a finite number; found inf"),
        ({"unmatched_cost": "high"}, r"unmatched_cost: must be a number; found 'high'"),
        ({"potentials": ([0.0], [0.0, 0.0])}, r"potentials: must have 2 and 3 entries.*\(1,\) and \(2,\)"),
        ({"potentials": ([0.0, np.nan], [0.0] * 3)}, r"potentials: must be finite"),
        ({"potentials": ([0.0, 0.0], [0.0, 0.0, INF])}, r"potentials: must be finite"),
        ({"potentials": ([0.0, 0.0],)}, r"potentials: must be a pair"),
        ({"potentials": 1.0}, r"potentials: must be a pair"),
        ({"potentials": (["a", "b"], [0.0] * 3)}, r"potentials: must hold real numbers"),
        ({"potentials": ([0.0], [0.0]), "unmatched_cost": 1.0}, r"potentials: must have 2 and 3 entries"),
    ],
)
def test_refuses_options_that_make_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        assign(np.ones((2, 3)), **options)


def test_refuses_potentials_with_sparse_costs():
    with pytest.raises(InputError, match=r"potentials: must be left out when the cost is sparse"):
        assign(sparse.eye_array(2), potentials=([0.0, 0.0], [0.0, 0.0]))
