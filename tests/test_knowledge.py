"""What the caller says about rows and columns: labels, groups, known and forbidden pairs, shared columns."""

import numpy as np
import pandas as pd
import pytest

from keyless.errors import InputError
from keyless.knowledge import did_you_mean, read_constraints, shared_columns, start_couplings
from keyless.tables import read_tables
from ways import allowed

NAN = np.nan


def two(**options):
    clinic = pd.DataFrame({"age": [30.0, 40.0, 50.0], "sex": ["f", "m", None]}, index=["a", "b", "c"])
    lab = pd.DataFrame({"age": [50.0, 30.0], "sex": ["m", "f"], "iron": [1.0, 2.0]}, index=[101, 102])
    return read_tables({"clinic": options.get("clinic", clinic), "lab": options.get("lab", lab)})[0]


def three():
    columns = {"age": [1.0, 2.0], "weight": [3.0, 4.0]}
    return read_tables(
        {
            "clinic": pd.DataFrame(columns),
            "lab": pd.DataFrame({"age": [2.0, 1.0], "iron": [0.0, 1.0]}),
            "ward": pd.DataFrame({"iron": [5.0, 6.0], "mass": [1.0, 2.0]}),
        }
    )[0]


# --- pairs -----------------------------------------------------------------------------------------------------------

FORMS = {
    "list": [("a", 102), ("c", 101)],
    "lists": [["a", 102], ["c", 101]],
    "tuple": (("a", 102), ("c", 101)),
    "iterator": iter([("a", 102), ("c", 101)]),
    "array": np.array([("a", 102), ("c", 101)], dtype=object),
    "frame": pd.DataFrame({"left": ["a", "c"], "right": [102, 101]}, index=[7, 7]),
    "frame of floats": pd.DataFrame({"left": ["a", "c"], "right": [102.0, 101.0]}),
    "mapping": {"lab": [("a", 102), ("c", 101)]},
    "mapping to a frame": {"lab": pd.DataFrame({"left": ["a", "c"], "right": [102, 101]})},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["known_pairs", "forbid"])
def test_pairs_by_label_in_any_form(form, name):
    given = iter([("a", 102), ("c", 101)]) if form == "iterator" else FORMS[form]
    constraints = read_constraints(two(), **{name: given})
    found, other = constraints.known, constraints.forbidden
    if name == "forbid":
        found, other = other, found
    assert other == {}
    assert list(found) == [(0, 1)]
    np.testing.assert_array_equal(found[0, 1], [[0, 1], [2, 0]])
    assert constraints.sizes == (3, 2)


def test_rows_of_arrays_and_plain_frames_are_numbered_from_0():
    tables = read_tables([np.ones((3, 2)), pd.DataFrame({"x": [1.0, 2.0]})])[0]
    np.testing.assert_array_equal(
        read_constraints(tables, known_pairs=np.array([[2, 0], [0, 1]])).known[0, 1], [[2, 0], [0, 1]]
    )


def test_labels_are_not_positions():
    shuffled = pd.DataFrame({"x": [1.0, 2.0, 3.0]}, index=[2, 0, 1])
    cut = pd.DataFrame({"x": [1.0, 2.0, 3.0]}).iloc[1:]
    tables = read_tables({"shuffled": shuffled, "cut": cut})[0]
    np.testing.assert_array_equal(read_constraints(tables, known_pairs=[(2, 2)]).known[0, 1], [[0, 1]])
    with pytest.raises(InputError, match=r"cut has no row 0\.$"):
        read_constraints(tables, known_pairs=[(0, 0)])


def test_several_tables_take_pairs_by_table():
    constraints = read_constraints(three(), known_pairs={"ward": [(1, 0)]}, forbid={"lab": [(0, 0)], "ward": []})
    np.testing.assert_array_equal(constraints.known[0, 2], [[1, 0]])
    np.testing.assert_array_equal(constraints.forbidden[0, 1], [[0, 0]])
    assert constraints.forbidden[0, 2].shape == (0, 2)
    assert allowed(constraints, 0, 2).tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize("name", ["known_pairs", "forbid"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("z", 101)], r"must name rows that exist; clinic has no row 'z'\.$"),
        (
            [("a", "101")],
            r"must name rows that exist; lab has no row '101'\. Did you mean 101, which is a number\?$",
        ),
        (
            [(101, "a")],
            r"must name rows that exist; clinic has no row 101\. lab has: each pair is \(id in the reference, "
            r"id in the other table\)\.$",
        ),
        ([("a", None)], r"must name rows that exist; lab has no row None\.$"),
        ([("a", NAN)], r"must name rows that exist; lab has no row None\.$"),
        ([("a", 101, 1.0)], r"must be pairs \(reference id, row id\); found an entry that is not a pair\.$"),
        ([1, 2], r"must be pairs \(reference id, row id\); found an entry that is not a pair\.$"),
        (["ab"], r"must be pairs \(reference id, row id\); found an entry that is not a pair\.$"),
        (5, r"must be pairs \(reference id, row id\); found 5\.$"),
        ("ab", r"must be pairs \(reference id, row id\); found 'ab'\.$"),
        (pd.DataFrame({"x": [1]}), r"must have two columns, reference id and row id; found 1\.$"),
        ({"ward": [("a", 101)]}, r"must name one of 'lab'; found 'ward'\.$"),
        (
            {"clinic": [("a", "b")]},
            r"must be listed under the other table, 'lab'; 'clinic' is the reference\. Each pair is \(id in the "
            r"reference, id in the other table\)\.$",
        ),
    ],
)
def test_bad_pairs_are_named(name, given, message):
    with pytest.raises(InputError, match=rf"^{name}: {message}"):
        read_constraints(two(), **{name: given})


@pytest.mark.parametrize(
    ("given", "known", "advice"),
    [
        (1, ["00001", "00002"], " Did you mean '00001', which is text?"),
        ("00002", ["1", "2"], " Did you mean '2'?"),
        ("0", [0, 5], " Did you mean 0, which is a number?"),
        (" P7 ", ["p7"], " Did you mean 'p7'?"),
        ("3.0", [3], " Did you mean 3, which is a number?"),
        ("patient-17", ["patient-11", "patient_17"], " Did you mean 'patient_17'?"),
        ("10", ["01", "0"], ""),
        ("z", ["a", "b"], ""),
    ],
)
def test_ids_that_look_the_same_to_a_person_are_proposed(given, known, advice):
    assert did_you_mean(given, known) == advice


def test_a_part_of_earlier_matches_is_taken_as_pairs():
    lines = pd.DataFrame(
        {"reference_id": [0, 1, 1], "table": ["ward", "lab", "ward"], "row_id": [1, 0, 0], "probability": 0.5}
    )
    constraints = read_constraints(three(), known_pairs=lines)
    np.testing.assert_array_equal(constraints.known[0, 1], [[1, 0]])
    np.testing.assert_array_equal(constraints.known[0, 2], [[0, 1], [1, 0]])


def test_pairs_of_several_tables_must_say_which():
    with pytest.raises(
        InputError,
        match=r"^known_pairs: must say which table each pair is of, as \{table name: pairs\}, for several tables\.$",
    ):
        read_constraints(three(), known_pairs=[(0, 0)])


def test_a_label_that_several_rows_have_is_refused():
    clinic = pd.DataFrame({"age": [1.0, 2.0, 3.0]}, index=["a", "b", "a"])
    with pytest.raises(InputError, match=r"^known_pairs: must name one row each; clinic has 2 rows 'a'\.$"):
        read_constraints(two(clinic=clinic), known_pairs=[("a", 101)])
    np.testing.assert_array_equal(read_constraints(two(clinic=clinic), known_pairs=[("b", 101)]).known[0, 1], [[1, 0]])


def test_a_label_that_is_no_single_value_is_refused():
    with pytest.raises(InputError, match=r"known_pairs: must be pairs .* of single values"):
        read_constraints(two(), known_pairs=[(["a"], 101)])


def test_nothing_said_is_trivial():
    assert read_constraints(two()).trivial


# --- groups ----------------------------------------------------------------------------------------------------------


def test_rows_match_inside_a_group_and_a_missing_label_matches_any():
    constraints = read_constraints(two(), within="sex")
    np.testing.assert_array_equal(allowed(constraints, 0, 1), [[False, True], [True, False], [True, True]])


def test_several_columns_make_a_group_and_one_missing_makes_it_unknown():
    left = pd.DataFrame({"sex": ["f", "f", "m"], "ward": [1, 2, 2]})
    right = pd.DataFrame({"ward": [2.0, NAN, 1.0], "sex": ["f", "m", "f"], "x": [0.0, 1.0, 2.0]})
    constraints = read_constraints(two(clinic=left, lab=right), within=["sex", "ward"])
    np.testing.assert_array_equal(
        allowed(constraints, 0, 1), [[False, True, True], [True, True, False], [False, True, False]]
    )


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["u", None, "v"]),
        pd.Series(["u", None, "v"], dtype="string"),
        pd.Series(["u", None, "v"], dtype="category"),
        pd.Series([1, None, 2], dtype="Int64"),
        pd.Series([1.0, NAN, 2.0]),
        pd.Series([True, None, False], dtype="boolean"),
        pd.Series(pd.to_datetime(["2020-01-01", None, "2021-01-01"])),
    ],
    ids=lambda column: str(column.dtype),
)
def test_groups_of_every_type(column):
    frame = pd.DataFrame({"group": column, "x": [1.0, 2.0, 3.0]})
    constraints = read_constraints(two(clinic=frame, lab=frame.iloc[::-1]), within="group")
    # Rows are (u, missing, v) and (v, missing, u).
    np.testing.assert_array_equal(
        allowed(constraints, 0, 1), [[False, True, True], [True, True, True], [True, True, False]]
    )


def test_groups_of_whole_numbers_floats_and_times_of_any_unit_agree():
    times = pd.to_datetime(["2020-01-01", "2021-01-01"])
    left = pd.DataFrame({"k": [1, 2], "t": times.as_unit("ns")})
    right = pd.DataFrame({"k": [2.0, 1.0], "t": times[::-1].as_unit("s")})
    for within in ("k", "t", ["k", "t"]):
        constraints = read_constraints(two(clinic=left, lab=right), within=within)
        np.testing.assert_array_equal(allowed(constraints, 0, 1), [[False, True], [True, False]])


def test_groups_of_arrays_go_by_the_names_arrays_get():
    tables = read_tables({"t": np.array([[1.0, 5.0], [2.0, 6.0]]), "u": np.array([[2.0], [NAN]])})[0]
    with pytest.raises(InputError, match=r"^u: must have a column 't_0'; found 'u_0'\.$"):
        read_constraints(tables, within="t_0")


def test_a_column_that_some_table_lacks_is_named():
    with pytest.raises(InputError, match=r"^clinic: must have a column 'iron'; found 'age', 'sex'\.$"):
        read_constraints(two(), within="iron")


# --- shared columns --------------------------------------------------------------------------------------------------


def test_shared_columns_by_name_by_list_and_by_mapping():
    clinic, lab = two()
    assert shared_columns(clinic, lab, "auto") == [(0, 0)]
    assert shared_columns(clinic, lab, ["age"]) == [(0, 0)]
    assert shared_columns(clinic, lab, {"age": "iron"}) == [(0, 1)]
    assert shared_columns(lab, clinic, {"iron": "age"}) == [(1, 0)]
    assert shared_columns(clinic, lab, None) == []
    assert shared_columns(clinic, lab, []) == []


def test_arrays_share_nothing_unless_told():
    left, right = read_tables([np.ones((2, 2)), np.ones((2, 3))])[0]
    assert shared_columns(left, right, "auto") == []
    assert shared_columns(left, right, {"reference_1": "table1_2"}) == [(1, 2)]


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (["sex"], r"^shared: must name numeric columns; clinic has no such column 'sex'\.$"),
        (["iron"], r"^shared: must name numeric columns; clinic has no such column 'iron'\.$"),
        ({"age": "mass"}, r"^shared: must name numeric columns; lab has no such column 'mass'\.$"),
        ("age", r"^shared: must be 'auto', None, a list of column names or a mapping; found 'age'\.$"),
    ],
)
def test_bad_shared_columns_are_named(shared, message):
    with pytest.raises(InputError, match=message):
        shared_columns(*two(), shared)
    tables = two()
    with pytest.raises(InputError, match=message):
        start_couplings(tables, read_constraints(tables), shared)


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        ("auto", {(0, 1), (1, 2)}),
        (["age"], {(0, 1)}),
        (["age", "iron"], {(0, 1), (1, 2)}),
        ({"weight": "mass"}, {(0, 2)}),
        (None, set()),
    ],
)
def test_of_several_tables_those_that_have_the_column_share_it(shared, expected):
    tables = three()
    found = start_couplings(tables, read_constraints(tables), shared)
    assert set(found) == expected
    assert all([name for name, _ in named] == ["shared columns"] for named in found.values())


@pytest.mark.parametrize(
    ("shared", "count"), [(["weight"], 1), (["sugar"], 0), ({"age": "sugar"}, 0), (["age", "sugar"], 0)]
)
def test_a_column_that_no_two_of_several_tables_have_is_named(shared, count):
    tables = three()
    with pytest.raises(
        InputError, match=rf"^shared: must name numeric columns of two tables; '\w+' is in {count} of them\.$"
    ):
        start_couplings(tables, read_constraints(tables), shared)


def test_known_pairs_make_a_coupling_of_their_own():
    tables = two()
    constraints = read_constraints(tables, known_pairs=[("a", 102)])
    found = start_couplings(tables, constraints, None)
    (name, coupling), *more = found[0, 1]
    assert (name, more) == ("known pairs", [])
    np.testing.assert_array_equal(coupling, [[0, 1], [0, 0], [0, 0]])
    assert [name for name, _ in start_couplings(tables, constraints, "auto")[0, 1]] == ["known pairs", "shared columns"]
    assert start_couplings(tables, read_constraints(tables, known_pairs=[]), None) == {}


@pytest.mark.parametrize("rows", [40, 30])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_rows_close_in_shared_columns_are_coupled(rows, noise):
    """Three shared columns, noise 0.02 of a standard deviation: 40 points in 3-D are about 0.5 apart at the nearest."""
    rng = np.random.default_rng(8)
    left = np.exp(rng.normal(size=(40, 3)) / 2)
    order = rng.permutation(40)[:rows]
    right = left[order] * np.exp(noise * rng.normal(size=(rows, 3)))
    names = ["age", "iron", "mass"]
    tables = read_tables(
        {"clinic": pd.DataFrame(left, columns=names), "lab": pd.DataFrame(right, columns=names).assign(x=0.5)}
    )[0]
    ((_, coupling),) = start_couplings(tables, read_constraints(tables), "auto")[0, 1]
    assert coupling.shape == (40, rows)
    assert (coupling >= 0).all()
    assert np.isfinite(coupling).all()
    # Sinkhorn stops at a tolerance of 0.01.
    assert coupling.sum(axis=0).max() < 1.05
    assert coupling.sum(axis=1).max() < 1.05
    np.testing.assert_array_equal(coupling.argmax(axis=0), order)
    assert coupling[order, np.arange(rows)].sum() > 0.5 * coupling.sum()


def test_a_missing_shared_entry_says_nothing():
    rng = np.random.default_rng(9)
    left = rng.normal(size=(30, 4))
    right = left.copy()
    right[0] = NAN
    frames = [pd.DataFrame(values, columns=list("abcd")) for values in (left, right)]
    tables = read_tables(frames)[0]
    ((_, coupling),) = start_couplings(tables, read_constraints(tables), "auto")[0, 1]
    assert np.isfinite(coupling).all()
    np.testing.assert_array_equal(coupling.argmax(axis=1)[1:], np.arange(1, 30))


def test_a_shared_column_without_entries_does_not_matter():
    frames = [
        pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [NAN] * 3}),
        pd.DataFrame({"a": [4.0, 1.0, 2.0], "b": [NAN] * 3}),
    ]
    tables = read_tables(frames)[0]
    ((_, coupling),) = start_couplings(tables, read_constraints(tables), "auto")[0, 1]
    np.testing.assert_array_equal(coupling.argmax(axis=1), [1, 2, 0])


def test_a_row_without_shared_entries_is_nobodys_best_partner():
    """It is as far from everyone as strangers are, so that all of the mass stays with those who are close."""
    rng = np.random.default_rng(10)
    left = rng.normal(size=(30, 4))
    right = np.vstack([left + 0.02 * rng.normal(size=left.shape), np.full((1, 4), NAN)])
    tables = read_tables([pd.DataFrame(values, columns=list("abcd")) for values in (left, right)])[0]
    ((_, coupling),) = start_couplings(tables, read_constraints(tables), "auto")[0, 1]
    assert np.trace(coupling) > 0.9 * 30
