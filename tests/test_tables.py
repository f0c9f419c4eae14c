"""Tables as users have them become blocks: NaN turns into the mask, names and dtypes follow."""

import array_api_strict
import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pytest

from keyless.arrays import to_numpy
from keyless.errors import InputError
from keyless.paper.problem import to_block, to_problem
from keyless.tables import frame_like, read_table, read_tables, with_missingness

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
        (np.ones((3, 2)), {}, r"^tables: must be two or more, in a list or by name; found one ndarray"),
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


# --- tables as the caller has them -----------------------------------------------------------------------------------


def frames(kind):
    """Make frames of one kind from columns; skips where its library is missing."""
    if kind == "pandas":
        return pd.DataFrame
    if kind == "polars":
        return pytest.importorskip("polars", reason="polars is not installed").DataFrame
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed").table


@pytest.fixture(params=["pandas", "polars", "pyarrow"])
def frame(request):
    return frames(request.param)


COLUMNS = {"name": ["ann", "bob", None], "age": [30, 40, None], "iron": [1.5, None, -2.0], "ill": [True, True, False]}


def test_frames_of_every_kind_read_alike(frame):
    table = read_table(frame(COLUMNS), name="lab")
    assert table.columns == ("age", "iron", "ill")
    assert table.left_out == ("name",)
    assert table.name == "lab"
    assert table.row_ids == (0, 1, 2)
    assert table.all_columns == tuple(COLUMNS)
    np.testing.assert_array_equal(table.block.mask, [[True, True, True], [True, False, True], [False, True, True]])
    np.testing.assert_array_equal(table.block.values, [[30.0, 1.5, 1.0], [40.0, 0.0, 1.0], [0.0, -2.0, 0.0]])
    assert table.block.values.dtype == np.float64
    names = table.column("name")
    assert names[:2] == ["ann", "bob"]
    assert names[2] is None or np.isnan(names[2])  # columns of text in pandas 3 hold NaN where None was given
    assert type(table.rebuilt(table.block.values, np.arange(3))) is type(frame(COLUMNS))


def test_rebuilding_puts_rows_in_order_and_other_columns_with_them(frame):
    table = read_table(frame({"name": ["ann", "bob", "eve"], "x": [1.0, 2.0, 3.0]}), name="lab")
    values = np.array([[30.0], [10.0], [99.0], [20.0]])
    rebuilt = table.rebuilt(values, np.array([2, 0, -1, 1]))
    assert type(rebuilt) is type(frame({"x": [1.0]}))
    plain = nw.from_native(rebuilt, eager_only=True)
    assert plain.columns == ["name", "x"]
    names = [None if name != name else name for name in plain["name"].to_list()]  # noqa: PLR0124
    assert names == ["eve", "ann", None, "bob"]
    # What was observed is as it was given, whatever the model says; what has no row is filled.
    assert plain["x"].to_list() == [3.0, 1.0, 99.0, 2.0]


def test_frames_of_the_callers_kind_are_made(frame):
    table = read_table(frame({"x": [1.0]}), name="lab")
    made = frame_like(table, {"a": [1, 2], "b": ["u", None]})
    assert type(made) is type(frame({"x": [1.0]}))
    plain = nw.from_native(made, eager_only=True)
    assert plain["a"].to_list() == [1, 2]
    assert plain["b"].to_list()[0] == "u"
    assert plain["b"].null_count() == 1


def test_for_arrays_frames_are_pandas_and_tables_arrays():
    table = read_table(np.ones((2, 3)), name="lab")
    assert table.native is None
    assert table.columns == table.all_columns == ("lab_0", "lab_1", "lab_2")
    assert isinstance(frame_like(table, {"a": [1]}), pd.DataFrame)
    values = np.arange(6.0).reshape(2, 3)
    rebuilt = table.rebuilt(values, np.array([1, -1]))
    np.testing.assert_array_equal(rebuilt, [[1.0, 1.0, 1.0], [3.0, 4.0, 5.0]])
    assert not np.shares_memory(rebuilt, values)
    assert not np.shares_memory(rebuilt, table.block.values)
    np.testing.assert_array_equal(table.marked(np.array([1, -1])), [[False] * 3, [True] * 3])
    with_gap = read_table(np.array([[1.0], [NAN]]), name="lab").column("lab_0")
    assert with_gap[0] == 1.0
    assert np.isnan(with_gap[1])


def test_text_in_a_column_of_objects_stays_in_one():
    frame = pd.DataFrame({"x": [1.0, 2.0], "note": pd.Series(["new", None], dtype=object)})
    made = read_table(frame, name="lab").rebuilt(np.array([[2.0], [1.0]]), np.array([1, 0]))
    assert made["note"].dtype == object
    assert made["note"].tolist() == [None, "new"]


def test_a_frame_in_narwhals_clothes():
    given = pd.DataFrame({"x": [1.0, 2.0]}, index=["a", "b"])
    table = read_table(nw.from_native(given), name="lab")
    assert table.native is given
    assert table.row_ids == ("a", "b")


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "int8", "float32", "bool", "uint64", "Float32"])
def test_every_type_of_number_in_pandas(dtype):
    entries = [1, 0, 1, 0] if dtype[0].islower() and dtype != "boolean" else [1, None, 1, 0]
    table = read_table(pd.DataFrame({"x": pd.array(entries, dtype=dtype)}), name="lab")
    np.testing.assert_array_equal(table.block.mask[:, 0], [entry is not None for entry in entries])
    np.testing.assert_array_equal(table.block.values[:, 0], [1.0, 0.0, 1.0, 0.0])


def test_columns_named_by_numbers_keep_their_names():
    given = pd.DataFrame({0: [1.0, NAN], 1: ["u", "v"], 7: [3, 4]})
    table = read_table(given, name="lab")
    assert table.columns == ("0", "7")
    assert table.left_out == ("1",)
    assert table.column("1") == ["u", "v"]
    rebuilt = table.rebuilt(np.array([[5.0, 3.0], [1.0, 4.0]]), np.array([1, 0]))
    pd.testing.assert_frame_equal(rebuilt, pd.DataFrame({0: [5.0, 1.0], 1: ["v", "u"], 7: [4, 3]}))


def test_columns_named_on_several_levels():
    given = pd.DataFrame(np.eye(2), columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]))
    table = read_table(given, name="lab")
    pd.testing.assert_frame_equal(table.rebuilt(np.eye(2), np.arange(2)), given)


def test_categories_and_times_stay_what_they_are():
    given = pd.DataFrame(
        {"c": pd.Categorical(["u", "v"]), "t": pd.to_datetime(["2020-01-01", "2021-01-01"]), "x": [1.0, 2.0]}
    )
    table = read_table(given, name="lab")
    # Categories that are all different tell rows apart and nothing else; dates are numbers.
    assert table.left_out == ("c",)
    assert table.columns == ("t", "x")
    rebuilt = table.rebuilt(np.full((3, 2), 10000.4), np.array([1, 0, -1]))
    assert rebuilt.dtypes.tolist() == given.dtypes.tolist()
    pd.testing.assert_frame_equal(rebuilt.iloc[[1, 0]].reset_index(drop=True), given)
    assert pd.isna(rebuilt.loc[2, "c"])
    assert rebuilt.loc[2, "t"] == pd.Timestamp("1997-05-19")


@pytest.mark.parametrize(
    ("index", "indexed", "row_ids"),
    [
        (None, False, (0, 1, 2)),
        (pd.RangeIndex(3), False, (0, 1, 2)),
        (pd.RangeIndex(1, 4), True, (1, 2, 3)),
        (["a", "b", "c"], True, ("a", "b", "c")),
        ([2, 0, 1], True, (2, 0, 1)),
        (pd.MultiIndex.from_tuples([(1, "a"), (1, "b"), (2, "a")]), True, ((1, "a"), (1, "b"), (2, "a"))),
    ],
)
def test_a_pandas_index_gives_the_row_labels(index, indexed, row_ids):
    table = read_table(pd.DataFrame({"x": [1.0, 2.0, 3.0]}, index=index), name="lab")
    assert table.indexed is indexed
    assert table.row_ids == row_ids
    assert (table.index is None) is not indexed


def test_the_result_may_have_an_index():
    table = read_table(pd.DataFrame({"x": [1.0, 2.0]}), name="lab")
    index = pd.Index(["p", "q"], name="patient")
    rebuilt = table.rebuilt(np.array([[3.0], [4.0]]), np.arange(2), index=index)
    pd.testing.assert_index_equal(rebuilt.index, index)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            pd.DataFrame({"x": ["a"]}),
            r"^lab: must have at least one row and one column of numbers, categories or dates whose entries differ; fo",
        ),
        (pd.DataFrame({"x": np.zeros(0)}), r"^lab: must have at least one row and one column of numbers; found shape"),
        (pd.DataFrame(), r"^lab: must have at least one row and one column of numbers; found shape \(0, 0\)\.$"),
        (pd.DataFrame([[1.0, 2.0]], columns=["x", "x"]), r"^lab: must have different column names; 'x' occurs twice"),
        (pd.DataFrame({1: [1.0], "1": [2.0]}), r"^lab: must have different column names, as text; '1' occurs twice"),
        (pd.DataFrame({"y": [1, 2], "x": [1.0, INF]}), r"^lab, column 'x', row 1: must be a finite number; found"),
        (pd.Series([1.0, 2.0]), r"^lab: must be a table with rows and columns \(2-D\); found 1-D"),
        ("lab.csv", r"^lab\.csv: must be a file; there is none at 'lab\.csv'\.$"),
    ],
)
def test_read_table_refuses(table, message):
    with pytest.raises(InputError, match=message):
        read_table(table, name="lab")


def test_read_tables_puts_the_reference_first():
    given = {"clinic": np.ones((2, 1)), "lab": pd.DataFrame({"x": [1.0]}), "ward": [[1.0, 2.0]]}
    tables, reference = read_tables(given, reference="lab")
    assert reference == "lab"
    assert [table.name for table in tables] == ["lab", "clinic", "ward"]
    assert [table.block.shape for table in tables] == [(1, 1), (2, 1), (1, 2)]
    assert read_tables(given)[1] == "clinic"
    assert [table.name for table in read_tables(iter(given.values()))[0]] == ["reference", "table1", "table2"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (None, r"^tables: must be two or more, in a list or by name; found one NoneType\. Example: "),
        ("ab", r"^tables: must be two or more, in a list or by name; found one str\. Example: "),
        (pd.DataFrame({"x": [1.0]}), r"^tables: must be two or more, .*; found one DataFrame\. Example: "),
        ([[[1.0]]], r"^tables: must be at least two; found 1\.$"),
        ({1: [[1.0]], "1": [[2.0]], 2: [[3.0]]}, r"^tables: must have different names as text; found 1, '1', 2\.$"),
    ],
)
def test_read_tables_refuses(tables, message):
    with pytest.raises(InputError, match=message):
        read_tables(tables)


# --- missingness -----------------------------------------------------------------------------------------------------


def test_what_is_sometimes_missing_gets_a_column_that_says_when():
    table = read_table(np.array([[1.0, NAN, NAN], [2.0, 5.0, NAN], [3.0, NAN, NAN]]), name="t")
    wide = with_missingness(table)
    assert wide.columns == ("t_0", "t_1", "t_2", "t_1 is observed")
    np.testing.assert_array_equal(wide.block.values[:, 3], [0.0, 1.0, 0.0])
    assert wide.block.mask[:, 3].all()
    np.testing.assert_array_equal(wide.block.values[:, :3], table.block.values)
    np.testing.assert_array_equal(wide.block.mask[:, :3], table.block.mask)
    assert table.block.shape == (3, 3)


def test_new_rows_get_the_columns_of_the_table_they_are_of():
    table = read_table(np.array([[1.0, NAN], [2.0, 5.0]]), name="t")
    complete = with_missingness(read_table(np.array([[3.0, 4.0]]), name="t"), like=table)
    assert complete.columns == ("t_0", "t_1", "t_1 is observed")
    np.testing.assert_array_equal(complete.block.values, [[3.0, 4.0, 1.0]])
    other = with_missingness(read_table(np.array([[NAN, 4.0], [1.0, 2.0]]), name="t"), like=table)
    assert other.columns == ("t_0", "t_1", "t_1 is observed")


def test_complete_tables_stay_as_they_are():
    table = read_table(np.ones((2, 2)), name="t")
    assert with_missingness(table).columns == table.columns
