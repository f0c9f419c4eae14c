"""One wide table: against pandas' own merge on ids that the answer is known by."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from keyless.errors import InputError

NAN = np.nan


def clinic_and_lab():
    """Four patients and four samples; the clinic has an id column, the lab an index."""
    rng = np.random.default_rng(0)
    clinic = pd.DataFrame(
        {
            "patient": ["ann", "bob", "eve", "joe"],
            "age": pd.array([30, None, 50, 41], dtype="Int64"),
            "weight": [60.5, 71.0, NAN, 80.25],
            "size": rng.normal(170, 9, 4),
        }
    )
    lab = pd.DataFrame(
        {
            "iron": [1.5, NAN, 8.0, 4.0],
            "visits": [3, 1, 4, 1],
            "note": ["x", None, "z", "w"],
            "size": [1.0, 2.0, 5.0, 4.0],
        },
        index=pd.Index(["s1", "s2", "s3", "s4"], name="tube"),
    )
    return {"clinic": clinic, "lab": lab}


PERMUTATION = [2, -1, 0, 3]  # s2 is nobody's


@pytest.fixture(scope="module")
def links(linked_by_hand):
    coupling = np.full((4, 4), 0.01)
    coupling[[0, 2, 3], [2, 0, 3]] = [0.9, 0.4, 0.99]
    return linked_by_hand(clinic_and_lab(), [PERMUTATION], coupling=coupling, rank=2)


def merged(how):
    """What pandas makes of it when it is told who is who."""
    tables = clinic_and_lab()
    clinic = tables["clinic"].assign(key=["s3", "none", "s1", "s4"])
    whole = clinic.merge(tables["lab"].reset_index(), how=how, left_on="key", right_on="tube", suffixes=("_c", "_l"))
    return whole.drop(columns="key")


@pytest.mark.parametrize("how", ["left", "inner"])
def test_without_filling_it_is_pandas_merge(links, how):
    joined = links.joined(how=how, fill=False, suffixes=("_c", "_l"))
    expected = merged(how)
    assert joined["lab_id"].fillna("nobody").tolist() == expected["tube"].fillna("nobody").tolist()
    for column in ("patient", "age", "weight", "size_c", "iron", "visits", "note", "size_l"):
        ours, theirs = joined[column], expected[column]
        np.testing.assert_array_equal(ours.isna(), theirs.isna(), err_msg=column)
        assert ours.dropna().tolist() == theirs.dropna().tolist(), column
    assert joined["visits"].dtype == ("Int64" if how == "left" else "int64")


def test_outer_also_has_the_rows_that_are_nobodys_partner(links):
    joined = links.joined(how="outer", fill=False, indicator=True)
    assert joined["patient"].tolist()[:4] == ["ann", "bob", "eve", "joe"]
    assert joined["patient"].isna().tolist() == [False] * 4 + [True]
    assert joined["lab_id"].fillna("").tolist() == ["s3", "", "s1", "s4", "s2"]
    assert joined["_merge"].tolist() == ["both", "left_only", "both", "both", "right_only"]
    assert joined["lab_probability"].isna().tolist() == [False, True, False, False, True]
    assert joined["visits"].tolist()[-1] == 1
    assert len(merged("outer")) == len(joined)


def test_unlikely_matches_are_left_out(links):
    joined = links.joined(min_probability=0.5, indicator=True)
    assert joined["_merge"].tolist() == ["both", "left_only", "left_only", "both"]
    assert joined["visits"].isna().tolist() == [False, True, True, False]
    assert links.joined(how="inner", min_probability=0.5)["patient"].tolist() == ["ann", "joe"]
    assert links.joined(how="inner", min_probability=1.0).shape[0] == 0
    # The gap of eve's weight is filled by what her own row says, not by the sample that was refused.
    full, cut = links.joined()["weight"], joined["weight"]
    assert full[2] != cut[2]
    assert full[[0, 1, 3]].tolist() == cut[[0, 1, 3]].tolist()


def test_only_what_is_there_is_filled_unless_asked(links):
    joined = links.joined(indicator=True)
    assert joined["_filled"].tolist() == ["", "age", "weight", ""]
    assert joined["iron"].isna().tolist() == [False, True, False, False]
    assert joined["age"].notna().all()
    everyone = links.joined(fill="all", indicator=True)
    assert everyone["iron"].notna().all()
    assert everyone["_filled"].tolist() == ["", "age, iron, visits, lab.size", "weight", ""]
    assert everyone["note"].isna().tolist() == [False, True, False, False]  # free text is never made up
    kept = links.joined(fill=False, indicator=True)
    assert kept["_filled"].tolist() == [""] * 4
    assert kept["weight"].isna().tolist() == [False, False, True, False]


def test_the_index_of_the_reference_is_kept(linked_by_hand):
    tables = clinic_and_lab()
    turned = linked_by_hand({"lab": tables["lab"], "clinic": tables["clinic"]}, [[2, -1, 0, 3]], rank=2)
    assert turned.joined().index.tolist() == ["s1", "s2", "s3", "s4"]
    assert turned.joined().index.name == "tube"
    assert turned.joined(how="inner").index.tolist() == ["s1", "s3", "s4"]
    outer = turned.joined(how="outer").index
    assert outer[:4].tolist() == ["s1", "s2", "s3", "s4"]
    assert outer.isna().tolist() == [False] * 4 + [True]
    assert turned.joined()["clinic_id"].fillna("").tolist() == ["eve", "", "ann", "joe"]
    numbered = linked_by_hand(
        {"lab": tables["lab"].set_axis([7, 8, 9, 5]), "clinic": tables["clinic"]}, [[2, -1, 0, 3]]
    )
    assert numbered.joined(how="outer").index.dropna().tolist() == [7, 8, 9, 5]


def test_other_frames_arrays_and_records(linked_by_hand):
    tables = clinic_and_lab()
    frames = {"clinic": pl.from_pandas(tables["clinic"]), "lab": pl.from_pandas(tables["lab"].reset_index())}
    joined = linked_by_hand(frames, [PERMUTATION], rank=2).joined(how="outer", fill=False, indicator=True)
    assert isinstance(joined, pl.DataFrame)
    assert joined["lab_id"].to_list() == ["s3", None, "s1", "s4", "s2"]
    assert joined["visits"].to_list() == [4, None, 3, 1, 1]
    assert joined["lab_probability"].null_count() == 2
    arrays = {"a": np.arange(8).reshape(4, 2), "b": np.array([[1.5, NAN], [2.0, 3.0], [0.0, 1.0], [9.0, 5.0]])}
    plain = linked_by_hand(arrays, [PERMUTATION], rank=1).joined(how="outer", fill=False)
    assert plain["a_0"].tolist()[:4] == [0, 2, 4, 6]
    assert plain["a_0"].isna().tolist() == [False] * 4 + [True]
    assert plain["b_id"].tolist()[:1] == [2]
    assert plain["b_1"].isna().tolist() == [False, True, True, False, False]
    records = {"a": tables["clinic"].to_dict("records"), "b": tables["lab"].to_dict("records")}
    lines = linked_by_hand(records, [PERMUTATION], rank=1).joined(how="inner")
    assert [line["b_id"] for line in lines] == [2, 0, 3]


def test_columns_that_are_called_the_same(links, linked_by_hand):
    assert {"clinic.size", "lab.size"} <= set(links.joined().columns)
    assert {"size", "size_lab"} <= set(links.joined(suffixes={"lab": "_lab"}).columns)
    assert {"size_1", "size_2"} <= set(links.joined(suffixes=("_1", "_2")).columns)
    tables = clinic_and_lab()
    tables["clinic"]["lab_id"] = [1.0, 2.0, 3.0, 5.0]
    assert "_lab_id" in linked_by_hand(tables, [PERMUTATION], rank=2).joined().columns


def test_several_tables(clinic_lab_and_watch):
    joined = clinic_lab_and_watch.joined(how="inner", indicator=True)
    assert len(joined) == 50
    assert {"lab_id", "watch_id", "_merge_lab", "_merge_watch"} <= set(joined.columns)
    outer = clinic_lab_and_watch.joined(how="outer", min_probability=1.0)
    assert len(outer) == 60 + 60 + 50
    assert outer["lab_id"].notna().sum() == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "right"}, r"^how: must be 'left', 'inner' or 'outer'; found 'right'\.$"),
        ({"fill": "some"}, r"^fill: must be True, False or 'all'; found 'some'\.$"),
        ({"min_probability": 95}, r"^min_probability: must lie between 0 and 1; found 95\.$"),
        ({"suffixes": ("_x",)}, r"^suffixes: must be 2 texts, one per table, or a mapping; found \('_x',\)\.$"),
        ({"suffixes": ("", "")}, r"^suffixes: must make all column names different; 'size' would occur 2 times\.$"),
        ({"suffixes": {"ward": "_x"}}, r"^suffixes: must name some of the tables 'clinic', 'lab'; found 'ward'\.$"),
    ],
)
def test_options_that_cannot_be_meant_so(links, options, message):
    with pytest.raises(InputError, match=message):
        links.joined(**options)
