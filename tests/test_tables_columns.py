"""What a column counts as, why, and how to say otherwise."""

import datetime
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from keyless.errors import InputError
from keyless.tables import Reading, read_like, read_table, read_tables
from keyless.tables.column_use import MAX_LEVELS, identifies
from keyless.tables.saving import pack_table, unpack_table

NAN = np.nan


def use_of(entries, reading=None, name="c", **others):
    frame = pd.DataFrame({name: entries, "last": np.arange(len(entries)) / 3, **others})
    return read_table(frame, name="lab", reading=reading).uses[0]


SEXES = list("FMFFMM")


@pytest.mark.parametrize(
    ("entries", "kind", "columns"),
    [
        ([1.5, 2.0, NAN, 1.0, 2.0, 3.0], "number", ("c",)),
        ([1, 2, 3, 1, 2, 3], "integer", ("c",)),
        ([True, False, True, True, False, True], "boolean", ("c",)),
        (SEXES, "category", ("c=F",)),
        ([*SEXES[:5], None], "left out", ()),
        (list("abcabcabc"), "category", ("c=a", "c=b")),
        (pd.Categorical(SEXES), "category", ("c=F",)),
        (pd.Categorical([3, 1, 1, 3, 2, 2]), "category", ("c=1", "c=2")),
        (pd.Categorical(["lo", "hi", None, "lo", "hi", "lo"], ["lo", "mid", "hi"], ordered=True), "ordered", ("c",)),
        (pd.to_datetime(["2020-01-01", None, "2020-01-03", "2020-01-04", "2020-01-05", "2020-01-09"]), "date", ("c",)),
        ([datetime.date(2020, 1, day) for day in range(1, 7)], "date", ("c",)),
        (pd.to_timedelta([1, 2, 3, 4, 5, 6], unit="D"), "number", ("c",)),
        ([Decimal("1.5"), None, Decimal("2"), Decimal("3"), Decimal("3"), Decimal("4")], "number", ("c",)),
        (list("abcdef"), "id", ()),
        ([*"abcde", None], "left out", ()),
        ([7.0] * 6, "left out", ()),
        ([NAN] * 6, "left out", ()),
        ([None] * 6, "left out", ()),
        (["x"] * 6, "left out", ()),
        (["a long story " * 5, "x", "x"] * 4, "left out", ()),
        ([[1], [2], [3], [4], [5], [6]], "left out", ()),
        (["a", 1, "b", 2, "c", 3], "left out", ()),
    ],
)
def test_kinds(entries, kind, columns):
    use = use_of(entries)
    assert (use.kind, use.columns) == (kind, columns)
    assert use.reason


def test_the_numbers_of_each_kind():
    frame = pd.DataFrame(
        {
            "sex": ["F", "M", None, "F", "M", "M", "F"],
            "grade": pd.Categorical(["lo", "hi", None, "lo", "mid", "lo", "hi"], ["lo", "mid", "hi"], ordered=True),
            "seen": pd.to_datetime(["1970-01-02", None, "1970-01-01T12:00", *["1970-01-03"] * 4], format="ISO8601"),
            "city": pd.Categorical(["a", "b", "c", "a", "b", "c", None]),
            "x": np.arange(7.0),
        }
    )
    table = read_table(frame, name="lab")
    assert table.columns == ("sex=F", "grade", "seen", "city=a", "city=b", "x")
    values = np.where(table.block.mask, table.block.values, NAN)
    np.testing.assert_array_equal(values[:, 0], [1, 0, NAN, 1, 0, 0, 1])
    np.testing.assert_array_equal(values[:, 1], [0, 2, NAN, 0, 1, 0, 2])
    np.testing.assert_array_equal(values[:3, 2], [1, NAN, 0.5])
    np.testing.assert_array_equal(values[:, 3], [1, 0, 0, 1, 0, 0, NAN])
    np.testing.assert_array_equal(values[:, 4], [0, 1, 0, 0, 1, 0, NAN])


def test_rare_levels_are_pooled():
    entries = [f"common {k % 3}" for k in range(600)] + ["rare 1", "rare 2", "rare 2"]
    use = use_of(entries)
    assert use.columns == ("c=common 0", "c=common 1", "c=common 2")
    assert use.reason == "5 levels; 2 rare ones count as one"
    table = read_table(pd.DataFrame({"c": entries}), name="lab")
    # What the others leave is filled with the commonest of the rare ones.
    rebuilt = table.rebuilt(np.array([[0.1, 0.2, 0.1], [0.1, 0.8, 0.2]]), np.array([-1, -1]))
    assert rebuilt["c"].tolist() == ["rare 2", "common 1"]
    fresh = read_like(pd.DataFrame({"c": ["never seen", "common 0", None]}), like=table)
    assert fresh.block.values.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert fresh.block.mask[:, 0].tolist() == [True, True, False]


def test_a_category_has_few_columns():
    use = use_of([f"{k % 30:02d}" for k in range(300)])
    assert len(use.columns) == MAX_LEVELS
    assert "rare ones count as one" in use.reason


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("id", [3, 1, 2], True),
        ("patient_id", [300, 100, 200], True),
        ("PatientID", [300, 100, 200], True),
        ("patientId", [1, 2, 3], True),
        ("patient id", [1, 2, 3], True),
        ("Unnamed: 0", [0, 1, 2], True),
        ("index", [0, 1, 2], True),
        ("index", [0, 2, 1], False),
        ("body mass index", [20, 21, 22], False),
        ("id", [1, 1, 2], False),
        ("acid", [1, 2, 3], False),
        ("fluid", [1, 2, 3], False),
        ("age", [1, 2, 3], False),
        ("id", [1], False),
        ("id", [1.0, NAN, 2.0], False),
    ],
)
def test_whole_numbers_that_are_ids(name, values, expected):
    assert identifies(name, np.array(values, dtype=float)) is expected


def test_ids_name_the_rows():
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0], "patient_id": [12, 11, 10], "tube": ["a", "b", "c"]})
    table = read_table(frame, name="lab")
    assert table.row_ids == (12, 11, 10)
    assert table.id_column == "patient_id"
    assert [use.kind for use in table.uses] == ["number", "id", "left out"]
    assert table.uses[1].reason == "whole numbers, all different, and named like an id; it names the rows"
    named = read_table(frame, name="lab", reading=Reading(id="tube"))
    assert named.row_ids == ("a", "b", "c")
    indexed = read_table(frame.set_axis(["p", "q", "r"], axis=0), name="lab")
    assert indexed.row_ids == ("p", "q", "r")
    assert indexed.id_column is None


def test_an_id_that_is_named_wins_over_an_index():
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0], "tube": ["a", "b", "c"]}, index=[3, 5, 9])
    table = read_table(frame, name="lab", reading=Reading(id="tube"))
    assert table.row_ids == ("a", "b", "c")
    assert table.id_column == "tube"
    assert table.rebuilt(table.block.values, np.arange(3), index=table.index).equals(frame)
    again = unpack_table(*pack_table(table))
    assert again.row_ids == table.row_ids
    assert read_like(frame.iloc[1:], like=table).row_ids == ("b", "c")


def test_each_table_may_have_an_id_of_its_own():
    clinic = pd.DataFrame({"number": [7, 5, 6], "x": [1.0, 2.0, 4.0]})
    lab = pd.DataFrame({"y": [1.0, 2.0, 4.0], "number": [1, 2, 2], "tube": [30, 10, 20]})
    tables, _ = read_tables({"clinic": clinic, "lab": lab}, reading=Reading(id=("clinic:number", "lab:tube")))
    assert [table.id_column for table in tables] == ["number", "tube"]
    assert [table.row_ids for table in tables] == [(7, 5, 6), (30, 10, 20)]
    assert Reading(id=None) == Reading() == Reading(id=[])
    with pytest.raises(InputError, match=r"^id: must name a column of clinic or lab; found 'lab:test'"):
        read_tables({"clinic": clinic, "lab": lab}, reading=Reading(id=("clinic:number", "lab:test")))
    with pytest.raises(InputError, match=r"^lab: must have one id column; id names 'number' and 'tube'"):
        read_table(lab, name="lab", reading=Reading(id=("number", "tube")))


def test_choices_can_be_overridden():
    frame = pd.DataFrame(
        {"code": [1, 2, 3, 1, 2, 3], "text": ["1.5", "2", "NA", "4", "5", "6"], "x": [1.0, 2, 3, 4, 5, 6]}
    )
    reading = Reading(as_category=("code",), as_number=("lab:text",), drop=("x",))
    table = read_table(frame, name="lab", reading=reading)
    assert table.columns == ("code=1", "code=2", "text")
    assert [use.reason for use in table.uses] == ["named in as_category", "named in as_number", "named in drop"]
    there = read_table(frame, name="lab", reading=replace(reading, door="command line"))
    assert [use.reason for use in there.uses] == ["named in --as-category", "named in --as-number", "named in --drop"]
    assert table.block.mask[:, 2].tolist() == [True, True, False, True, True, True]
    rebuilt = table.rebuilt(np.array([[0.9, 0.0, 2.25]]), np.array([-1]))
    assert rebuilt["code"].tolist() == [1]
    assert rebuilt["text"].tolist() == ["2.2"]
    levels = pd.DataFrame({"g": pd.Categorical([10, 20, 30, 10]), "x": [1.0, 2, 3, 4]})
    marked = read_table(levels, name="lab", reading=Reading(as_number=("g",)))
    assert marked.block.values[:, 0].tolist() == [10.0, 20.0, 30.0, 10.0]
    assert marked.rebuilt(np.array([[24.0, 0.0]]), np.array([-1]))["g"].tolist() == [20]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ("nope",)}, r"^drop: must name a column of a or b; found 'nope'\. There are 'x', 'y', 'z'\.$"),
        ({"id": "b:x"}, r"^id: must name a column of a or b; found 'b:x'"),
        ({"as_number": ("c:x",)}, r"^as_number: must name a column of a or b; found 'c:x'"),
        (
            {"drop": ("x",), "as_number": ("a:x",)},
            r"^a, column 'x': must be named in one option; found drop and as_number",
        ),
        (
            {"as_number": ("y",)},
            r"^a, column 'y', row 0: 'u' is not a number\. Name it missing with Reading\(missing=\(\*MISSING, 'u'\)\)",
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    tables = {"a": pd.DataFrame({"x": [1.0, 2.0], "y": ["u", "v"]}), "b": pd.DataFrame({"z": [1.0, 2.0]})}
    with pytest.raises(InputError, match=message):
        read_tables(tables, reading=Reading(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decimal": ";"}, r"^decimal: must be '\.' or ','"),
        ({"layout": "tall"}, r"^layout: must be one of 'wide', 'long'; found 'tall'"),
        ({"unstored": 0}, r"^unstored: must be one of"),
        ({"encoding": "klingon"}, r"^encoding: must be an encoding that Python knows; found 'klingon'"),
        ({"max_line": 0}, r"^max_line: must be a whole number of at least 1"),
        ({"max_memory": 0.5}, r"^max_memory: must be a whole number"),
        ({"id": 3}, r"^id: must be text; found \(3,\)"),
        ({"drop": (3,)}, r"^drop: must be text"),
    ],
)
def test_wrong_readings_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Reading(**options)


def test_lists_and_single_names_are_taken():
    assert Reading(drop="x").drop == ("x",)
    assert Reading(missing=["-"]).missing == ("-",)


def test_a_level_must_not_have_the_name_of_a_column():
    frame = pd.DataFrame({"c": list("abab") * 2, "c=a": np.arange(8.0)})
    with pytest.raises(InputError, match=r"^lab: must have different names; 'c=a' is a column and a level"):
        read_table(frame, name="lab")


def test_dates_whose_day_and_month_look_alike_are_left_out(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_text("d,e,x\n" + "".join(f"0{i}/02/2020,{i + 12}/02/2020,{i}\n" for i in range(1, 9)), encoding="utf-8")
    table = read_table(path, name="lab")
    assert [use.kind for use in table.uses] == ["left out", "date", "integer"]
    assert "day and month cannot be told apart" in table.uses[0].reason
    assert table.rebuilt(np.array([[18302.2, 1.0]]), np.array([-1]))["e"].tolist() == ["10/02/2020"]


def test_new_rows_are_read_as_the_table_was():
    frame = pd.DataFrame(
        {
            "sex": list("FMFFMM"),
            "ill": [True, False] * 3,
            "grade": pd.Categorical(["lo", "hi"] * 3, ["lo", "hi"], ordered=True),
            "seen": pd.to_datetime([f"2020-01-0{i}" for i in range(1, 7)]),
            "x": np.arange(6.0),
        }
    )
    table = read_table(frame, name="lab")
    fresh = read_like(frame.iloc[[4]].astype({"x": "Int64"}), like=table)
    np.testing.assert_array_equal(fresh.block.values, table.block.values[[4]])
    assert fresh.row_ids == (4,)
    records = [{"sex": None, "ill": False, "grade": "hi", "seen": None, "x": 2, "more": 1}]
    fresh = read_like(records, like=table)
    assert fresh.block.mask.tolist() == [[False, True, True, False, True]]
    assert fresh.block.values.tolist() == [[0.0, 0.0, 1.0, 0.0, 2.0]]
    fresh = read_like(frame.drop(columns="sex"), like=table)
    assert not fresh.block.mask[:, 0].any()
    with pytest.raises(
        InputError, match=r"^rows: must have at least one of the columns of lab, sex=F, ill, grade, seen"
    ):
        read_like(pd.DataFrame({"other": [1.0]}), like=table)
    with pytest.raises(InputError, match=r"^rows: must be at least one; found none\.$"):
        read_like(frame.iloc[:0], like=table)
    with pytest.raises(InputError, match=r"^lab, column 'x', row 0: must be a finite number; found an infinity"):
        read_like(frame.iloc[[0]].assign(x=np.inf), like=table)
