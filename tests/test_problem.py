"""Blocks, costs, gradients and placing against their definitions by loops, for tables and for patches."""

import itertools

import array_api_strict
import numpy as np
import pytest

from keyless.arrays import to_numpy
from keyless.block import Block
from keyless.errors import InputError
from keyless.paper.problem import PatchProblem, Problem, pair_cost, pair_gradient

NAN, INF = np.nan, np.inf
EPS = np.finfo(float).eps


@pytest.fixture(params=["numpy", "torch", "strict"])
def library(request):
    if request.param == "torch":
        return pytest.importorskip("torch", reason="torch is not installed")
    return {"numpy": np, "strict": array_api_strict}[request.param]


def draw_block(shape, seed, *, observed=0.6, library=np, dtype="float64", name="table"):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(dtype)
    return Block(library.asarray(values), library.asarray(rng.random(shape) < observed), name=name)


def loop_cost(rows, values, mask):
    """The definition, entry by entry: Σ over observed k of (rows[i, k] − values[j, k])²."""
    cost = np.zeros((len(rows), len(values)))
    for i, j in itertools.product(range(len(rows)), range(len(values))):
        for k in range(values.shape[1]):
            if mask[j, k]:
                cost[i, j] += (rows[i, k] - values[j, k]) ** 2
    return cost


def cost_bound(rows, values, eps=EPS):
    """Squares are multiplied out, so errors are relative to Σ (|row| + |value|)², not to the cost."""
    sums = (np.abs(rows)[:, None, :] + np.abs(values)[None]) ** 2
    return 2 * (rows.shape[1] + 3) * eps * sums.sum(axis=2)


def numerical_gradient(function, estimate, step=1.0):
    """Central differences; exact for quadratics but for rounding, whatever the step."""
    gradient = np.zeros_like(estimate)
    for index in np.ndindex(*estimate.shape):
        change = np.zeros_like(estimate)
        change[index] = step
        gradient[index] = (function(estimate + change) - function(estimate - change)) / (2 * step)
    return gradient


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_a_block_without_a_mask_is_all_observed(library):
    values = library.asarray([[1.0, 2.0, 3.0]])
    block = Block(values)
    assert block.values is values
    assert type(block.mask) is type(values)
    assert to_numpy(block.mask).dtype == bool
    assert to_numpy(block.mask).all()
    assert block.shape == (1, 3)
    assert all(type(size) is int for size in block.shape)
    assert block.name == "table"


def test_whatever_stands_under_the_mask_is_stored_as_zero(library):
    values = np.array([[1.0, NAN, INF], [-INF, 5.0, -0.5]])
    mask = np.array([[True, False, False], [False, True, False]])
    given = library.asarray(values.copy())
    block = Block(given, library.asarray(mask))
    np.testing.assert_array_equal(to_numpy(block.values), [[1, 0, 0], [0, 5, 0]])
    np.testing.assert_array_equal(to_numpy(block.mask), mask)
    np.testing.assert_array_equal(to_numpy(given), values)
    assert type(block.mask) is type(given)


def test_a_block_takes_lists_integers_and_masks_of_other_libraries(library):
    block = Block([[1, 2], [3, 4]], [[True, False], [True, True]])
    np.testing.assert_array_equal(block.values, [[1.0, 0.0], [3.0, 4.0]])
    assert block.values.dtype == np.float64
    block = Block(library.asarray([[1.0, 2.0]]), np.array([[False, True]]))
    np.testing.assert_array_equal(to_numpy(block.values), [[0.0, 2.0]])
    block = Block(np.array([[1.0, 2.0]]), library.asarray([[False, True]]))
    np.testing.assert_array_equal(block.values, [[0.0, 2.0]])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_block_keeps_the_dtype(library, dtype):
    block = draw_block((2, 3), 0, library=library, dtype=dtype)
    assert block.values.dtype == getattr(library, dtype)


def test_a_block_may_have_nothing_observed():
    block = Block(np.full((2, 2), NAN), np.zeros((2, 2), dtype=bool))
    np.testing.assert_array_equal(block.values, np.zeros((2, 2)))
    np.testing.assert_array_equal(pair_cost(np.ones((3, 2)), block), np.zeros((3, 2)))


def test_labels_become_tuples_and_are_counted():
    block = Block(np.ones((2, 3)), columns=["a", "b", "c"], row_ids=(i for i in (10, 20)))
    assert block.columns == ("a", "b", "c")
    assert block.row_ids == (10, 20)
    assert Block(np.ones((2, 1)), row_ids=np.array([7, 8])).row_ids == (7, 8)
    with pytest.raises(InputError, match=r"^lab, columns: must hold 3 labels; found 2\.$"):
        Block(np.ones((2, 3)), name="lab", columns=["a", "b"])
    with pytest.raises(InputError, match=r"^lab, row_ids: must hold 2 labels; found 3\.$"):
        Block(np.ones((2, 3)), name="lab", row_ids=range(3))


def test_a_block_is_frozen():
    with pytest.raises(AttributeError):
        Block(np.ones((1, 1))).values = np.zeros((1, 1))


OBSERVED = np.ones((2, 2), dtype=bool)


@pytest.mark.parametrize(
    ("values", "mask", "message"),
    [
        ([[1.0, 2.0], [NAN, 1.0]], None, r"^lab, row 1, column 0: must be a finite number; found NaN"),
        ([[1.0, INF], [1.0, 1.0]], None, r"^lab, row 0, column 1: must be a finite number; found an infinity"),
        ([[1.0, NAN], [1.0, 1.0]], OBSERVED, r"^lab, row 0, column 1: must be a finite number; found NaN"),
        ([[1.0, 1.0], [1.0, -INF]], OBSERVED, r"^lab, row 1, column 1: must be a finite number; found an infinity"),
        ([[1.0, 1.0, 1.0]], OBSERVED, r"^lab, mask: must have the shape of the values, \(1, 3\); found \(2, 2\)"),
        (np.ones((2, 2)), OBSERVED[0], r"^lab, mask: must have the shape of the values, \(2, 2\); found \(2,\)"),
        (np.ones((2, 2)), np.ones((2, 2)), r"^lab, mask: must hold True and False; found dtype float64\. Write"),
        (np.ones((2, 2)), [[1, 0], [0, 1]], r"^lab, mask: must hold True and False; found dtype int64"),
        (np.ones((2, 2)), [[True], [True, False]], r"^lab, mask: must be an array; its rows have different lengths"),
        (np.ones(2), None, r"^lab: must be a table with rows and columns"),
        (np.ones((0, 2)), None, r"^lab: must have at least one row and one column"),
        (np.ones((0, 2)), np.ones((0, 2), dtype=bool), r"^lab: must have at least one row and one column"),
        ([["a", "b"]], None, r"^lab: must hold real numbers"),
    ],
)
def test_a_block_refuses(values, mask, message):
    with pytest.raises(InputError, match=message):
        Block(np.asarray(values), mask, name="lab")


# --- cost and gradient -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("observed", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 6, 3), (6, 4, 3), (5, 5, 1)])
def test_pair_cost_is_its_definition(sizes, observed):
    n, m, width = sizes
    block = draw_block((m, width), 1, observed=observed)
    rows = 3 * np.random.default_rng(2).standard_normal((n, width))
    before = rows.copy()
    found = pair_cost(rows, block)
    wanted = loop_cost(rows, block.values, block.mask)
    assert found.shape == (n, m)
    assert (np.abs(found - wanted) <= cost_bound(rows, block.values)).all()
    np.testing.assert_array_equal(rows, before)


def test_pair_cost_of_the_block_itself_vanishes_on_the_diagonal():
    block = draw_block((5, 4), 3, observed=1.0)
    cost = pair_cost(block.values, block)
    assert (np.abs(np.diag(cost)) <= np.diag(cost_bound(block.values, block.values))).all()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 6, 3), (6, 4, 3)])
def test_pair_gradient_is_the_gradient(sizes):
    n, m, width = sizes
    block = draw_block((m, width), 1)
    rng = np.random.default_rng(2)
    rows, coupling = rng.standard_normal((n, width)), rng.random((n, m))
    found = pair_gradient(rows, coupling, block)
    by_hand = np.zeros((n, width))
    for i, j, k in itertools.product(range(n), range(m), range(width)):
        if block.mask[j, k]:
            by_hand[i, k] += 2 * coupling[i, j] * (rows[i, k] - block.values[j, k])
    np.testing.assert_allclose(found, by_hand, rtol=0, atol=1e-13)
    numerical = numerical_gradient(lambda x: (coupling * loop_cost(x, block.values, block.mask)).sum(), rows)
    np.testing.assert_allclose(found, numerical, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_library_gives_the_numbers_of_numpy(library, dtype):
    eps = np.finfo(dtype).eps
    block, plain = draw_block((6, 4), 1, library=library, dtype=dtype), draw_block((6, 4), 1)
    rng = np.random.default_rng(2)
    rows, coupling = rng.standard_normal((5, 4)), rng.random((5, 6))
    ours = [library.asarray(array.astype(dtype)) for array in (rows, coupling)]
    cost, gradient = pair_cost(ours[0], block), pair_gradient(*ours, block)
    for found in (cost, gradient):
        assert type(found) is type(block.values)
        assert found.dtype == block.values.dtype
    assert (np.abs(to_numpy(cost) - pair_cost(rows, plain)) <= 4 * cost_bound(rows, plain.values, eps)).all()
    # A sum of 6 products of numbers of size 1 by 4, in that precision.
    np.testing.assert_allclose(to_numpy(gradient), pair_gradient(rows, coupling, plain), rtol=0, atol=200 * eps)


# --- tables side by side ---------------------------------------------------------------------------------------------


def draw_problem(library=np, *, rows=(4, 4, 6, 3), dtype="float64"):
    widths = (2, 3, 1, 4)
    reference, *blocks = (
        draw_block((n, k), seed, library=library, dtype=dtype, name=f"t{seed}")
        for seed, (n, k) in enumerate(zip(rows, widths, strict=True))
    )
    return Problem(reference, tuple(blocks))


def test_split_cuts_columns_and_join_undoes_it(library):
    problem = draw_problem(library)
    estimate = library.asarray(np.arange(40.0).reshape(4, 10))
    assert problem.shape == (4, 10)
    assert problem.places == (4, 4, 4)
    reference, parts = problem.split(estimate)
    whole = to_numpy(estimate)
    np.testing.assert_array_equal(to_numpy(reference), whole[:, :2])
    for part, (left, right) in zip(parts, [(2, 5), (5, 6), (6, 10)], strict=True):
        np.testing.assert_array_equal(to_numpy(part), whole[:, left:right])
    joined = problem.join(reference, parts)
    assert type(joined) is type(estimate)
    np.testing.assert_array_equal(to_numpy(joined), whole)


def test_costs_are_those_of_the_parts(library):
    problem = draw_problem(library)
    estimate = np.random.default_rng(9).standard_normal((4, 10))
    costs = problem.costs(library.asarray(estimate))
    assert [tuple(cost.shape) for cost in costs] == [(4, 4), (4, 6), (4, 3)]
    for cost, block, (left, right) in zip(costs, problem.blocks, [(2, 5), (5, 6), (6, 10)], strict=True):
        values, mask = to_numpy(block.values), to_numpy(block.mask)
        wanted = loop_cost(estimate[:, left:right], values, mask)
        assert (np.abs(to_numpy(cost) - wanted) <= cost_bound(estimate[:, left:right], values)).all()


def test_the_gradient_is_that_of_the_stated_objective(library):
    problem, plain = draw_problem(library), draw_problem()
    rng = np.random.default_rng(3)
    estimate = rng.standard_normal((4, 10))
    couplings = [rng.random((4, block.shape[0])) for block in plain.blocks]

    def objective(x):
        misfit = ((x[:, :2] - plain.reference.values)[plain.reference.mask] ** 2).sum()
        parts = (x[:, 2:5], x[:, 5:6], x[:, 6:])
        costs = [loop_cost(part, block.values, block.mask) for part, block in zip(parts, plain.blocks, strict=True)]
        return misfit + sum((coupling * cost).sum() for coupling, cost in zip(couplings, costs, strict=True))

    found = problem.gradient(library.asarray(estimate), [library.asarray(coupling) for coupling in couplings])
    assert type(found) is type(problem.reference.values)
    # Sums of about 10² in the objective, rounded and subtracted.
    np.testing.assert_allclose(to_numpy(found), numerical_gradient(objective, estimate), rtol=0, atol=1e-11)


def test_the_misfit_of_the_reference_sees_observed_entries_only(library):
    values = library.asarray([[1.0, 2.0], [3.0, 4.0]])
    reference = Block(values, library.asarray([[True, False], [True, True]]))
    problem = Problem(reference, (Block(values),))
    part = library.asarray([[2.0, 100.0], [3.0, 6.0]])
    np.testing.assert_array_equal(to_numpy(problem.reference_residual(part)), [[1.0, 0.0], [0.0, 2.0]])
    assert problem.reference_misfit(part) == 5.0
    assert isinstance(problem.reference_misfit(part), float)


def test_place_puts_rows_where_the_permutation_says(library):
    problem = draw_problem(library)
    permutations = [[3, 1, 0, 2], [5, -1, 0, 4], [-1, 2, 0, -1]]
    placed = problem.place(permutations)
    assert placed.shape == (4, 10)
    assert type(placed.values) is type(problem.reference.values)
    values, mask = np.zeros((4, 10)), np.zeros((4, 10), dtype=bool)
    values[:, :2], mask[:, :2] = to_numpy(problem.reference.values), to_numpy(problem.reference.mask)
    for permutation, block, left in zip(permutations, problem.blocks, (2, 5, 6), strict=True):
        for i, j in enumerate(permutation):
            for k in range(block.shape[1]):
                if j >= 0:
                    values[i, left + k] = to_numpy(block.values)[j, k]
                    mask[i, left + k] = to_numpy(block.mask)[j, k]
    np.testing.assert_array_equal(to_numpy(placed.values), values)
    np.testing.assert_array_equal(to_numpy(placed.mask), mask)
    again = problem.place([library.asarray(permutation) for permutation in permutations])
    np.testing.assert_array_equal(to_numpy(again.values), values)


def test_placing_the_right_order_undoes_a_shuffle():
    rng = np.random.default_rng(4)
    table, order = rng.standard_normal((7, 3)), rng.permutation(7)
    problem = Problem(Block(table), (Block(table[order]),))
    placed = problem.place([np.argsort(order)])
    np.testing.assert_array_equal(placed.values, np.hstack([table, table]))


@pytest.mark.parametrize(
    ("permutations", "message"),
    [
        ([[0, 1, 2]], r"^permutations: must be one per table, 2; found 1\.$"),
        ([[0, 1], [0, 1, 2]], r"^a, permutation: must hold 3 numbers; found 2\.$"),
        ([[0, 1, 3], [0, 1, 2]], r"^a, permutation, position 2: must be from 0 to 2, or -1 for no partner; found 3"),
        ([[0, 1, 2], [0, -2, 1]], r"^b, permutation, position 1: must be from 0 to 4, or -1 for no partner; found -2"),
        ([[0.0, 1.0, 2.0], [0, 1, 2]], r"^a, permutation: must be a 1-D array of whole numbers"),
        ([[[0, 1, 2]], [0, 1, 2]], r"^a, permutation: must be a 1-D array of whole numbers; found 2-D"),
    ],
)
def test_place_refuses(permutations, message):
    blocks = (Block(np.ones((3, 1)), name="a"), Block(np.ones((5, 1)), name="b"))
    with pytest.raises(InputError, match=message):
        Problem(Block(np.ones((3, 2))), blocks).place(permutations)


def test_require_square_names_the_table_that_is_not():
    draw_problem(rows=(4, 4, 4, 4)).require_square()
    with pytest.raises(InputError, match=r"^t2: must have as many rows as the reference has, 4; found 6\. "):
        draw_problem().require_square()


def test_a_problem_needs_tables_of_one_kind(library):
    with pytest.raises(InputError, match=r"^blocks: must hold at least one table besides the reference; found none\.$"):
        Problem(Block(np.ones((1, 1))), ())
    with pytest.raises(InputError, match=r"^lab: must be of the same kind as clinic \(ndarray, float64\); found .*32"):
        Problem(
            Block(np.ones((1, 1)), name="clinic"),
            (Block(np.ones((2, 2))), Block(library.asarray(np.ones((1, 1), np.float32)), name="lab")),
        )
    assert Problem(Block(np.ones((1, 1))), [Block(np.ones((1, 1)))]).blocks[0].shape == (1, 1)


# --- patches ---------------------------------------------------------------------------------------------------------

LAYOUTS = [
    # height, width, patch height, patch width, shuffled
    (4, 4, 2, 2, (0, 1, 2, 3)),
    (4, 6, 2, 2, (5, 0, 3)),
    (6, 4, 3, 2, (2, 1)),
    (6, 10, 2, 5, (0, 2, 5, 3)),
    (3, 5, 3, 5, (0,)),
    (2, 3, 1, 1, (5, 4, 3, 2, 1, 0)),
    (5, 4, 1, 4, (4, 0, 2)),
]


def patch(matrix, number, height, width):
    """The patch of that number, counted row by row over the grid."""
    across = matrix.shape[1] // width
    top, left = height * (number // across), width * (number % across)
    return matrix[top : top + height, left : left + width]


def draw_patches(layout, library=np, seed=0, observed=0.7):
    height, width, patch_height, patch_width, shuffled = layout
    rng = np.random.default_rng(seed)
    image, mask = rng.standard_normal((height, width)), rng.random((height, width)) < observed
    block = Block(library.asarray(image), library.asarray(mask), name="face")
    return PatchProblem(block, (patch_height, patch_width), shuffled), np.where(mask, image, 0), mask


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patches_are_numbered_row_by_row(layout, library):
    problem, image, mask = draw_patches(layout, library)
    _, _, height, width, shuffled = layout
    (block,) = problem.blocks
    assert block.shape == (len(shuffled), height * width)
    for row, number in enumerate(shuffled):
        np.testing.assert_array_equal(to_numpy(block.values)[row], patch(image, number, height, width).ravel())
        np.testing.assert_array_equal(to_numpy(block.mask)[row], patch(mask, number, height, width).ravel())
    known = mask.copy()
    for number in shuffled:
        patch(known, number, height, width)[:] = False
    np.testing.assert_array_equal(to_numpy(problem.reference.mask), known)
    np.testing.assert_array_equal(to_numpy(problem.reference.values), np.where(known, image, 0))
    assert problem.shape == image.shape
    assert problem.places == (len(shuffled),)
    problem.require_square()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patches_split_and_join(layout, library):
    problem, *_ = draw_patches(layout, library)
    height, width, patch_height, patch_width, shuffled = layout
    estimate = np.arange(float(height * width)).reshape(height, width)
    reference, parts = problem.split(library.asarray(estimate))
    np.testing.assert_array_equal(to_numpy(reference), estimate)
    for row, number in enumerate(shuffled):
        np.testing.assert_array_equal(
            to_numpy(parts[0])[row], patch(estimate, number, patch_height, patch_width).ravel()
        )
    np.testing.assert_array_equal(to_numpy(problem.join(reference, parts)), estimate)
    # What is joined over the patches comes from the parts, and only there.
    other = to_numpy(problem.join(reference, [library.asarray(to_numpy(parts[0]) + 1000.0)]))
    wanted = estimate.copy()
    for number in shuffled:
        patch(wanted, number, patch_height, patch_width)[:] += 1000.0
    np.testing.assert_array_equal(other, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patch_costs_and_gradient_are_their_definitions(layout, library):
    problem, image, mask = draw_patches(layout, library)
    height, width, patch_height, patch_width, shuffled = layout
    rng = np.random.default_rng(1)
    estimate, coupling = rng.standard_normal((height, width)), rng.random((len(shuffled), len(shuffled)))

    def cost_of(x):
        cost = np.zeros((len(shuffled), len(shuffled)))
        for (i, place), (j, source) in itertools.product(enumerate(shuffled), repeat=2):
            difference = patch(x, place, patch_height, patch_width) - patch(image, source, patch_height, patch_width)
            cost[i, j] = (difference**2)[patch(mask, source, patch_height, patch_width)].sum()
        return cost

    known = mask.copy()
    for number in shuffled:
        patch(known, number, patch_height, patch_width)[:] = False

    def objective(x):
        return ((x - image)[known] ** 2).sum() + (coupling * cost_of(x)).sum()

    (cost,) = problem.costs(library.asarray(estimate))
    np.testing.assert_allclose(to_numpy(cost), cost_of(estimate), rtol=0, atol=1e-13 * image.size)
    gradient = problem.gradient(library.asarray(estimate), [library.asarray(coupling)])
    assert type(gradient) is type(problem.image.values)
    np.testing.assert_allclose(to_numpy(gradient), numerical_gradient(objective, estimate), rtol=0, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_placing_the_true_permutation_restores_the_image(layout, library):
    height, width, patch_height, patch_width, shuffled = layout
    rng = np.random.default_rng(2)
    image, mask = rng.standard_normal((height, width)), rng.random((height, width)) < 0.7
    # What stood at place order[j] is moved to place j; so the right row for place order[j] is j.
    order = rng.permutation(len(shuffled))
    moved, moved_mask = image.copy(), mask.copy()
    for place, source in enumerate(order):
        for whole, old in ((moved, image), (moved_mask, mask)):
            patch(whole, shuffled[place], patch_height, patch_width)[:] = patch(
                old, shuffled[source], patch_height, patch_width
            )
    block = Block(library.asarray(moved), library.asarray(moved_mask))
    problem = PatchProblem(block, (patch_height, patch_width), shuffled)
    placed = problem.place([np.argsort(order)])
    np.testing.assert_array_equal(to_numpy(placed.mask), mask)
    np.testing.assert_array_equal(to_numpy(placed.values), np.where(mask, image, 0))
    nothing = problem.place([[-1] * len(shuffled)])
    np.testing.assert_array_equal(to_numpy(nothing.mask), to_numpy(problem.reference.mask))
    unmoved = problem.place([np.arange(len(shuffled))])
    np.testing.assert_array_equal(to_numpy(unmoved.values), np.where(moved_mask, moved, 0))


def test_patch_numbers_may_come_in_any_container():
    image = Block(np.arange(16.0).reshape(4, 4))
    for shuffled in ([1, 2], np.array([1, 2], dtype=np.uint8), range(1, 3), iter((1, 2))):
        problem = PatchProblem(image, [np.int64(2), 2], shuffled)
        assert problem.shuffled == (1, 2)
        assert problem.patch_shape == (2, 2)
        np.testing.assert_array_equal(problem.blocks[0].values, [[2, 3, 6, 7], [8, 9, 12, 13]])


@pytest.mark.parametrize(
    ("patch_shape", "shuffled", "message"),
    [
        ((3, 2), (0,), r"^patch_shape: must divide the matrix, 4 × 6; found 3 × 2\.$"),
        ((2, 4), (0,), r"^patch_shape: must divide the matrix, 4 × 6; found 2 × 4\.$"),
        ((0, 2), (0,), r"^patch_shape: must divide the matrix, 4 × 6; found 0 × 2\.$"),
        ((-2, 2), (0,), r"^patch_shape: must divide the matrix, 4 × 6; found -2 × 2\.$"),
        ((8, 6), (0,), r"^patch_shape: must divide the matrix"),
        ((2.0, 2.0), (0,), r"^patch_shape: must be whole numbers; found \(2\.0, 2\.0\)\.$"),
        (2, (0,), r"^patch_shape: must be whole numbers; found 2\.$"),
        ((2, 2, 2), (0,), r"^patch_shape: must be 2 whole numbers; found 3\.$"),
        ((2, 2), (), r"^shuffled: must be different patch numbers from 0 to 5, at least one; found \(\)\.$"),
        ((2, 2), (0, 6), r"^shuffled: must be different patch numbers from 0 to 5.*found \(0, 6\)"),
        ((2, 2), (-1, 0), r"^shuffled: must be different patch numbers from 0 to 5.*found \(-1, 0\)"),
        ((2, 2), (1, 1), r"^shuffled: must be different patch numbers from 0 to 5.*found \(1, 1\)"),
        ((2, 2), (0.5, 1.0), r"^shuffled: must be whole numbers; found \(0\.5, 1\.0\)\.$"),
        ((2, 2), 3, r"^shuffled: must be whole numbers; found 3\.$"),
    ],
)
def test_patches_that_cannot_be_cut_are_refused(patch_shape, shuffled, message):
    with pytest.raises(InputError, match=message):
        PatchProblem(Block(np.ones((4, 6))), patch_shape, shuffled)
