"""New rows and values carried over: against links that knew the rows from the start, and sums written out."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import keyless
from keyless.answers.distributions import distribution
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError


@pytest.fixture(scope="module")
def data():
    """Fifty entities, all in both tables, clear enough that every row is found."""
    return make_shuffled_tables(50, (16, 14), rank=3, observed=0.97, random_state=5)


@pytest.fixture(scope="module")
def framed(data):
    reference = pd.DataFrame(data.tables["reference"]).add_prefix("r").set_axis([f"p{i}" for i in range(50)])
    table = pd.DataFrame(data.tables["table1"]).add_prefix("t").set_axis([f"s{i}" for i in range(50)])
    table["kind"] = pd.Categorical(np.where(np.arange(50) % 2, "odd", "even"))
    table["count"] = np.arange(50) * 3
    return reference, table


@pytest.fixture(scope="module")
def links(framed):
    reference, table = framed
    return keyless.link({"a": reference, "b": table.iloc[:40]}, effort="quick", random_state=0)


# --- add -------------------------------------------------------------------------------------------------------------


def test_added_rows_find_their_places(data, framed, links):
    _, table = framed
    more = links.add("b", table.iloc[40:])
    np.testing.assert_array_equal(more.permutations["b"], data.truth["table1"])
    before = links.permutations["b"] >= 0
    np.testing.assert_array_equal(more.found["b"].probability[before], links.found["b"].probability[before])
    assert (more.found["b"].probability[~before] > 0.5).mean() > 0.8
    partners, nobody = distribution(more.found["b"])
    np.testing.assert_allclose(partners.sum(axis=1) + nobody, 1.0)
    assert partners.shape == (50, 50)
    pd.testing.assert_frame_equal(more.tables[1].native, table)
    assert more.evidence == links.evidence
    assert more.choices["added"] == {"b": 10}
    assert (links.permutations["b"] >= 0).sum() == 40  # what there was is as it was
    assert more.joined(how="inner").shape[0] == 50
    assert more.completed["b"]["kind"].tolist() == table["kind"].iloc[data.truth["table1"]].tolist()


def test_rows_may_be_added_to_the_reference(data, framed):
    reference, table = framed
    part = keyless.link({"a": reference.iloc[:40], "b": table}, effort="quick", random_state=0)
    more = part.add("a", reference.iloc[40:])
    np.testing.assert_array_equal(more.permutations["b"], data.truth["table1"])
    assert more.tables[0].row_ids == tuple(reference.index)
    assert more.matches["reference_id"].tolist() == reference.index.tolist()
    assert more.joined().index.equals(reference.index)


def test_strangers_stay_alone(links, framed):
    other = make_shuffled_tables(50, (16, 14), rank=3, random_state=77).tables["table1"]
    strange = pd.DataFrame(other).add_prefix("t").set_axis([f"x{i}" for i in range(50)])
    more = links.add("b", strange)
    fresh = more.permutations["b"][more.permutations["b"] >= 40]
    assert len(fresh) <= 2
    assert more.tables[1].block.shape == (90, len(links.tables[1].columns))
    assert len(framed[1]) == 50


def test_added_rows_may_lack_columns_and_come_in_parts(data, framed, links):
    _, table = framed
    more = links.add("b", table.iloc[40:45].drop(columns=["count", "t3"]))
    more = more.add("b", table.iloc[45:])
    assert (more.permutations["b"] == data.truth["table1"]).mean() > 0.95
    assert more.tables[1].native["count"].isna().sum() == 5
    assert more.tables[1].native["count"].dtype == "Int64"
    assert more.choices["added"] == {"b": 10}


@pytest.mark.parametrize(
    "kind",
    ["array", "records", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("integers", "sparse", "polars"))],
)
def test_every_kind_of_table_grows(data, kind):
    reference, table = data.tables["reference"], data.tables["table1"]
    if kind in ("integers", "sparse"):
        table = data.complete["table1"]  # neither can say that an entry is missing beside zeros

    def make(part):
        if kind == "array":
            return part
        if kind == "integers":
            return np.round(100 * part).astype(np.int32)
        if kind == "sparse":
            return sparse.csr_array(part)
        frame = pd.DataFrame(part).add_prefix("t")
        return pl.from_pandas(frame) if kind == "polars" else frame.to_dict("records")

    links = keyless.link([reference, make(table[:40])], effort="quick", random_state=0)
    more = links.add("table1", make(table[40:]))
    assert (more.permutations["table1"] == data.truth["table1"]).mean() > 0.95
    assert more.tables[1].block.shape == (50, 14)
    completed = more.completed["table1"]
    assert type(completed) is type(make(table))
    if kind == "integers":
        np.testing.assert_array_equal(completed, make(table)[more.permutations["table1"]])


@pytest.mark.slow
def test_groups_hold_for_added_rows(framed):
    reference, table = framed
    rng = np.random.default_rng(0)
    truth = make_shuffled_tables(50, (16, 14), rank=3, observed=0.97, random_state=5).truth["table1"]
    ward = rng.choice(["north", "south"], 50)
    reference = reference.assign(ward=ward)
    there = np.empty(50, dtype=object)
    there[truth] = ward
    table = table.assign(ward=there)
    links = keyless.link({"a": reference, "b": table.iloc[:45]}, within="ward", effort="quick", random_state=0)
    wrong = table.iloc[45:].assign(ward=np.where(table["ward"].iloc[45:] == "north", "south", "north"))
    placed = links.add("b", wrong).permutations["b"]
    rows = np.flatnonzero(placed >= 45)
    assert all(ward[row] == wrong["ward"].iloc[placed[row] - 45] for row in rows)
    right = links.add("b", table.iloc[45:]).permutations["b"]
    assert (right == truth).mean() > 0.95


def test_bad_rows_to_add_are_named(links, framed, linked_by_hand):
    _, table = framed
    with pytest.raises(
        InputError, match=r"^rows: must be new rows of b, with ids of their own; it has a row 's3' already\.$"
    ):
        links.add("b", table.iloc[3:5])
    with pytest.raises(InputError, match=r"^table: must be one of 'a', 'b'; found 'c'\.$"):
        links.add("c", table)
    rng = np.random.default_rng(0)
    apart = linked_by_hand([rng.normal(size=(6, 3)), rng.normal(size=(6, 3))], [np.arange(6)], verdict="unlinkable")
    with pytest.raises(
        InputError, match=r"^add: must be called on tables that were linked; the verdict on these is 'unlinkable'\."
    ):
        apart.add("table1", rng.normal(size=(2, 3)))


# --- transfer --------------------------------------------------------------------------------------------------------


def test_labels_are_weighed_by_all_partners(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    found = links.transfer("clinic", "ward", to="watch")
    assert len(found) == 50
    partners, _ = distribution(links.found["watch"])
    weights = partners.T / np.maximum(partners.sum(axis=0), 1.0)[:, None]
    ward = links.tables[0].native["ward"].to_numpy()
    for j in range(50):
        sums = {name: weights[j, ward == name].sum() for name in ("north", "south", "east")}
        best = max(sums, key=sums.get)
        assert found["value"].iloc[j] == best
        assert found["probability"].iloc[j] == pytest.approx(sums[best])
    assert found["row_id"].tolist() == list(links.tables[2].row_ids)
    assert found.index.equals(links.tables[2].native.index)


def test_numbers_are_expected_values_with_their_spread(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    found = links.transfer("lab", "assay 1")
    partners, nobody = distribution(links.found["lab"])
    values = links.tables[1].native["assay 1"].to_numpy()
    seen = ~np.isnan(values)
    for i in range(60):
        weight = partners[i, seen]
        mean = np.average(values[seen], weights=weight)
        assert found["value"].iloc[i] == pytest.approx(mean)
        spread = np.sqrt(np.average((values[seen] - mean) ** 2, weights=weight))
        assert found["standard_deviation"].iloc[i] == pytest.approx(spread, abs=1e-5)
        assert found["probability"].iloc[i] == pytest.approx(weight.sum())
    np.testing.assert_allclose(found["nobody"], nobody)


def test_free_text_goes_over_too(clinic_lab_and_watch):
    found = clinic_lab_and_watch.transfer("clinic", "note", to="lab")
    likeliest = distribution(clinic_lab_and_watch.found["lab"])[0].argmax(axis=0)
    assert found["value"].tolist() == [f"seen by nurse {i} at noon" for i in likeliest]


def test_nobody_has_no_value(linked_by_hand):
    rng = np.random.default_rng(0)
    tables = {"a": rng.normal(size=(4, 3)), "b": pd.DataFrame(rng.normal(size=(3, 2)), columns=["x", "y"])}
    tables["b"]["label"] = ["one", "two", None]
    coupling = np.array([[0.9, 0, 0], [0, 0, 0.5], [0, 0, 0], [0.2, 0.6, 0.1]])
    links = linked_by_hand(tables, [[0, 2, -1, 1]], coupling=coupling)
    found = links.transfer("b", "label")
    assert found["value"].tolist() == ["one", None, None, "two"]
    assert found["probability"].tolist() == pytest.approx([0.9, 0.0, 0.0, 0.6])
    assert found["nobody"].tolist() == pytest.approx([0.1, 0.5, 1.0, 0.1])


def test_bad_transfers_are_named(clinic_lab_and_watch):
    with pytest.raises(
        InputError, match=r"^table, to: one of the two must be the reference, 'clinic', and the other another"
    ):
        clinic_lab_and_watch.transfer("lab", "assay 1", to="watch")
    with pytest.raises(InputError, match=r"^table: must be one of 'clinic', 'lab', 'watch'; found 'ward'\.$"):
        clinic_lab_and_watch.transfer("ward", "x")
    with pytest.raises(InputError, match=r"^lab: must have a column 'iron'"):
        clinic_lab_and_watch.transfer("lab", "iron")
