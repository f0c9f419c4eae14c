"""Tables as users have them become blocks: NaN turns into the mask, names and dtypes follow."""

import array_api_strict
import numpy as np
import pytest

from keyless.arrays import to_numpy
from keyless.errors import InputError
from keyless.tables import to_block, to_problem

NAN, INF = np.nan, np.inf


@pytest.fixture(params=["numpy", "torch", "strict"])
def library(request):
    if request.param == "torch":
        return pytest.importorskip("torch", reason="torch is not installed")
    return {"numpy": np, "strict": array_api_strict}[request.param]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nan_becomes_the_mask(library, dtype):
    values = np.array([[1.0, NAN, -3.0], [NAN, 0.0, NAN]], dtype=dtype)
    given = library.asarray(values.copy())
    block = to_block(given, name="lab")
    assert type(block.values) is type(given)
    assert block.values.dtype == given.dtype
    np.testing.assert_array_equal(to_numpy(block.mask), [[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(to_numpy(block.values), [[1.0, 0.0, -3.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(to_numpy(given), values)
    assert block.name == "lab"


def test_nan_and_mask_are_the_same_thing_both_ways():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((20, 7))
    values[rng.random(values.shape) < 0.3] = NAN
    block = to_block(values)
    np.testing.assert_array_equal(np.where(block.mask, block.values, NAN), values)
    assert block.name == "table"


@pytest.mark.parametrize(
    ("table", "values", "mask"),
    [
        ([[1, 2]], [[1.0, 2.0]], [[True, True]]),
        ([[True, False]], [[1.0, 0.0]], [[True, True]]),
        ([[None, 2.0]], [[0.0, 2.0]], [[False, True]]),
        ([[NAN]], [[0.0]], [[False]]),
    ],
)
def test_lists_integers_and_none(table, values, mask):
    block = to_block(table)
    assert block.values.dtype == np.float64
    np.testing.assert_array_equal(block.values, values)
    np.testing.assert_array_equal(block.mask, mask)


def test_a_frame_of_numbers():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    block = to_block(pandas.DataFrame({"age": [30, 40], "weight": [NAN, 70.5]}))
    np.testing.assert_array_equal(block.values, [[30.0, 0.0], [40.0, 70.5]])
    np.testing.assert_array_equal(block.mask, [[True, False], [True, True]])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[1.0, 2.0], [INF, NAN]], r"^lab, row 1, column 0: must be a finite number; found an infinity"),
        ([["1.0"]], r"^lab: must hold real numbers; found dtype <U3"),
        (np.array([["n/a", 1.0]], dtype=object), r"^lab: must hold real numbers; found dtype object"),
        ([1.0, 2.0], r"^lab: must be a table with rows and columns \(2-D\); found 1-D"),
        (np.zeros((0, 3)), r"^lab: must have at least one row and one column; found shape \(0, 3\)"),
        (np.ones((1, 1)) * 1j, r"^lab: must hold real numbers; found dtype complex128"),
        (np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]]), r"^lab: must not be a masked array"),
    ],
)
def test_to_block_refuses(table, message):
    with pytest.raises(InputError, match=message):
        to_block(table, name="lab")


# --- problems --------------------------------------------------------------------------------------------------------


def test_tables_by_name_keep_their_names_and_order(library):
    tables = {name: library.asarray([[float(i), NAN]]) for i, name in enumerate(["clinic", "lab", "ward"])}
    problem = to_problem(tables)
    assert problem.reference.name == "clinic"
    assert [block.name for block in problem.blocks] == ["lab", "ward"]
    assert [float(block.values[0, 0]) for block in (problem.reference, *problem.blocks)] == [0.0, 1.0, 2.0]
    assert not to_numpy(problem.reference.mask)[0, 1]
    assert problem.shape == (1, 6)


def test_the_reference_may_be_chosen():
    tables = {"clinic": [[0.0]], "lab": [[1.0], [1.5]], "ward": [[2.0]]}
    problem = to_problem(tables, reference="lab")
    assert problem.reference.name == "lab"
    assert problem.reference.shape == (2, 1)
    assert [block.name for block in problem.blocks] == ["clinic", "ward"]
    assert [block.values[0, 0] for block in problem.blocks] == [0.0, 2.0]
    assert list(tables) == ["clinic", "lab", "ward"]


def test_tables_in_order_are_given_names():
    for tables in ([[[0.0]], [[1.0]], [[2.0]]], iter([[[0.0]], [[1.0]], [[2.0]]]), np.arange(3.0).reshape(3, 1, 1)):
        problem = to_problem(tables)
        assert problem.reference.name == "reference"
        assert [block.name for block in problem.blocks] == ["table1", "table2"]
        assert [block.values[0, 0] for block in problem.blocks] == [1.0, 2.0]
    assert to_problem([[[0.0]], [[1.0]]], reference="table1").reference.values[0, 0] == 1.0


def test_mixed_dtypes_meet_at_the_widest(library):
    narrow = library.asarray(np.array([[1.0, NAN]], dtype=np.float32))
    wide = library.asarray(np.array([[3.0, 4.0]]))
    for tables in ((narrow, wide), (wide, narrow), (narrow, wide, narrow)):
        problem = to_problem(tables)
        for block, table in zip((problem.reference, *problem.blocks), tables, strict=True):
            assert type(block.values) is type(table)
            assert block.values.dtype == library.float64
            np.testing.assert_array_equal(to_numpy(block.mask), ~np.isnan(to_numpy(table)))
            np.testing.assert_array_equal(to_numpy(block.values), np.nan_to_num(to_numpy(table)))
        assert [block.name for block in (problem.reference, *problem.blocks)] == ["reference", "table1", "table2"][
            : len(tables)
        ]
    only = to_problem([narrow, narrow])
    assert only.reference.values.dtype == library.float32
    assert narrow.dtype == library.float32


def test_integers_join_floats():
    problem = to_problem([np.ones((1, 1), dtype=np.float32), np.ones((1, 1), dtype=np.int8)])
    assert problem.reference.values.dtype == problem.blocks[0].values.dtype == np.float64
    problem = to_problem([np.ones((1, 1), dtype=np.float16), np.ones((1, 1), dtype=np.float32)])
    assert problem.reference.values.dtype == problem.blocks[0].values.dtype == np.float32


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ({"clinic": [[1.0]]}, {}, r"^tables: must be at least two; found 1\.$"),
        ([], {}, r"^tables: must be at least two; found 0\.$"),
        ({}, {"reference": "lab"}, r"^tables: must be at least two; found 0\.$"),
        (
            {"clinic": [[1.0]], "lab": [[1.0]]},
            {"reference": "ward"},
            r"^reference: must be one of the tables, 'clinic', 'lab'; found 'ward'\.$",
        ),
        ({"clinic": [[1.0]], "lab": [[INF]]}, {}, r"^lab, row 0, column 0: must be a finite number"),
        ({"clinic": [[1.0]], "lab": [["x"]]}, {}, r"^lab: must hold real numbers"),
        ([[[1.0]], [1.0]], {}, r"^table1: must be a table with rows and columns"),
        (np.ones((3, 2)), {}, r"^reference: must be a table with rows and columns"),
    ],
)
def test_to_problem_refuses(tables, options, message):
    with pytest.raises(InputError, match=message):
        to_problem(tables, **options)


def test_tables_of_two_libraries_are_refused():
    tables = {"clinic": np.ones((1, 1)), "lab": array_api_strict.ones((1, 1))}
    message = (
        r"^lab: must be of the same kind as clinic, numpy\.ndarray; found array_api_strict.*Convert one of them\.$"
    )
    with pytest.raises(InputError, match=message):
        to_problem(tables)
