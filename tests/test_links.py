"""The result: what it says, what it derives from a model that is known, and that all of it is saved."""

import json
import sys
import zipfile
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

import keyless
from hostile.making import drawn_factors
from keyless.datasets import make_shuffled_tables
from keyless.errors import CONVERGED, InputError
from keyless.evidence import Evidence
from keyless.links import Links, TableLink
from keyless.model.joint_model import JointModel
from keyless.model.scales import scale_table
from keyless.tables import read_tables

NAN = np.nan
UNKNOWN = r"^table: must be one of 'lab'; found '{}'\.$"


def by_hand(tables, permutations, *, shared=True, scales="identity", seed=0, verdict="linked"):
    """Links whose permutations and joint model are given, not found."""
    rng = np.random.default_rng(seed)
    read, _ = read_tables(tables)
    scaled = tuple(scale_table(table.block.values, table.block.mask, kind=scales)[1] for table in read)
    factors = drawn_factors(read, rng)
    found = {}
    for table, permutation in zip(read[1:], permutations, strict=True):
        coupling = rng.random((len(permutation), table.block.shape[0]))
        coupling /= 1.1 * coupling.sum(axis=1, keepdims=True)
        evidence = Evidence(verdict, 5.5, (1.0, 1.25), 3.0, 1.0, 3)
        margin = (
            np.linspace(0.5, np.inf, len(permutation)) if len(permutation) == 1 else np.arange(len(permutation)) / 7
        )
        found[table.name] = TableLink(np.asarray(permutation), rng.random(len(permutation)), margin, coupling, evidence)
    starts = ({"route": "pairs", "pair": ((0,), (1, 2)), "start": "signatures", "score": 2.5},)
    return Links(read, found, JointModel(factors, scaled, shared=shared), CONVERGED, {"route": "pairs"}, starts, 7)


def clinic_and_lab(kind=pd.DataFrame):
    clinic = {"name": ["ann", "bob", "eve"], "age": [30.0, NAN, 50.0], "ward": [1.5, 2.5, 0.5]}
    lab = {"age": [49.0, 31.0], "iron": [NAN, 8.0], "note": ["x", None]}
    return {"clinic": kind(clinic), "lab": kind(lab)}


@pytest.fixture(scope="module")
def data():
    return make_shuffled_tables(50, (12, 10, 8), rank=3, observed=0.85, random_state=4)


@pytest.fixture(scope="module")
def found(data):
    return keyless.link(data.tables, random_state=1)


@pytest.fixture(scope="module")
def framed():
    """Labelled pandas frames, a text column and a common name, ten rows of the reference without a partner."""
    data = make_shuffled_tables((50, 40), (12, 10), rank=3, observed=0.95, random_state=2)
    clinic, lab = (pd.DataFrame(table) for table in data.tables.values())
    clinic.columns = ["value", *(f"c{k}" for k in range(1, 12))]
    lab.columns = ["value", *(f"l{k}" for k in range(1, 10))]
    clinic.index = pd.Index([f"p{i}" for i in range(50)], name="patient")
    lab.index = pd.Index([f"s{i}" for i in range(40)])
    lab.insert(3, "tube", [f"tube {i}" for i in range(40)])
    links = keyless.link({"clinic": clinic, "lab": lab}, shared=None, random_state=0)
    return clinic, lab, data.truth["table1"], links


# --- matches, permutations, couplings --------------------------------------------------------------------------------


def test_one_match_per_reference_row_and_table(found):
    matches = found.matches
    assert isinstance(matches, pd.DataFrame)
    assert list(matches.columns) == ["reference_id", "table", "row_id", "probability", "margin"]
    assert len(matches) == 100
    for name in ("table1", "table2"):
        part = matches[matches["table"] == name]
        assert part["reference_id"].tolist() == list(range(50))
        assert part["row_id"].tolist() == found.permutations[name].tolist()
        np.testing.assert_array_equal(part["probability"], found.found[name].probability)
        np.testing.assert_array_equal(part["margin"], found.found[name].margin)
    assert matches["probability"].between(0, 1).all()
    assert matches["row_id"].dtype == "Int64"


def test_permutations_put_tables_in_reference_order(data, found):
    assert list(found.permutations) == ["table1", "table2"]
    aligned = [data.complete["reference"]]
    for name, permutation in found.permutations.items():
        np.testing.assert_array_equal(permutation, data.truth[name])
        aligned.append(data.complete[name][permutation])
    # Rank 3 and noise 0.1: everything beyond the third singular value is noise, at most 0.1·(√50 + √30) and some.
    singular = np.linalg.svd(np.hstack(aligned), compute_uv=False)
    assert singular[3] < 0.1 * (np.sqrt(50) + np.sqrt(30)) * 1.3 < singular[2]


def test_couplings_are_probabilities_and_favour_the_matches(found):
    for name, permutation in found.permutations.items():
        coupling = found.coupling(name)
        assert coupling.shape == (50, 50)
        assert coupling.min() >= 0
        assert coupling.sum(axis=1).max() <= 1 + 1e-6
        assert coupling.sum(axis=0).max() <= 1 + 1e-3
        np.testing.assert_array_equal(coupling.argmax(axis=1), permutation)


def test_rows_without_a_partner_say_how_sure_that_is(framed):
    _, _, truth, links = framed
    np.testing.assert_array_equal(links.permutations["lab"], truth)
    alone = links.matches["row_id"].isna()
    np.testing.assert_array_equal(alone, truth < 0)
    assert alone.sum() == 10
    # Calibration may move probabilities, but not past one another.
    stated = (1 - links.coupling("lab").sum(axis=1))[truth < 0]
    order = np.argsort(stated, kind="stable")
    assert (np.diff(links.matches["probability"][alone].to_numpy()[order]) >= 0).all()
    assert (links.matches["probability"][alone] > 0.5).all()
    assert links.coupling("lab").sum(axis=1).max() <= 1 + 1e-6


def test_matches_use_the_callers_labels(framed):
    clinic, lab, truth, links = framed
    assert links.matches["reference_id"].tolist() == clinic.index.tolist()
    expected = [None if j < 0 else lab.index[j] for j in truth]
    assert [None if pd.isna(row) else row for row in links.matches["row_id"]] == expected


def test_whole_row_numbers_stay_whole_where_some_are_missing():
    links = by_hand(clinic_and_lab(), [[1, -1, 0]])
    assert links.matches["row_id"].dtype == "Int64"
    assert links.matches["row_id"].isna().tolist() == [False, True, False]
    assert links.matches["row_id"].dropna().tolist() == [1, 0]


def test_matches_are_of_the_callers_kind():
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    matches = by_hand(clinic_and_lab(arrow.table), [[1, -1, 0]]).matches
    assert isinstance(matches, arrow.Table)
    assert matches.column_names == ["reference_id", "table", "row_id", "probability", "margin"]
    assert matches["row_id"].to_pylist() == [1, None, 0]


def test_labels_of_different_types_become_text_where_a_column_holds_one():
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    tables = {
        "clinic": arrow.table({"x": [1.0, 2.0]}),
        "lab": pd.DataFrame({"y": [1.0, 2.0]}, index=["a", "b"]),
        "ward": arrow.table({"z": [1.0, 2.0]}),
    }
    matches = by_hand(tables, [[1, 0], [0, -1]]).matches
    assert matches["row_id"].to_pylist() == ["b", "a", "0", None]


# --- completed -------------------------------------------------------------------------------------------------------


def test_completed_keeps_what_was_observed_bit_for_bit(data, found):
    assert list(found.completed) == ["reference", "table1", "table2"]
    assert len(found.completed) == 3
    for name, table in data.tables.items():
        filled = found.completed[name]
        assert type(filled) is np.ndarray
        given = table[found.permutations.get(name, np.arange(50))]
        seen = ~np.isnan(given)
        assert filled[seen].tobytes() == given[seen].tobytes()
        assert np.isfinite(filled).all()
        errors = found.standard_errors[name]
        np.testing.assert_array_equal(errors[seen], 0.0)
        assert (errors[~seen] > 0).all()
        assert np.isfinite(errors).all()


def test_a_frame_comes_back_as_the_same_kind_of_frame(framed):
    clinic, lab, truth, links = framed
    for frame, rows in ((clinic, np.arange(50)), (lab, truth)):
        filled = links.completed["clinic" if frame is clinic else "lab"]
        assert isinstance(filled, pd.DataFrame)
        assert list(filled.columns) == list(frame.columns)
        pd.testing.assert_index_equal(filled.index, clinic.index)
        numbers = frame.drop(columns="tube", errors="ignore")
        given = np.where((rows >= 0)[:, None], numbers.to_numpy()[np.maximum(rows, 0)], NAN)
        seen = ~np.isnan(given)
        np.testing.assert_array_equal(filled[numbers.columns].to_numpy()[seen], given[seen])
        assert not filled[numbers.columns].isna().to_numpy().any()
    tubes = links.completed["lab"]["tube"]
    assert tubes[truth >= 0].tolist() == [f"tube {j}" for j in truth[truth >= 0]]
    assert tubes[truth < 0].isna().all()


def test_other_frames_come_back_too():
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    links = by_hand(clinic_and_lab(arrow.table), [[1, -1, 0]])
    lab = links.completed["lab"]
    assert isinstance(lab, arrow.Table)
    assert lab.column_names == ["age", "iron", "note"]
    assert lab["note"].to_pylist() == [None, None, "x"]
    assert lab["age"].to_pylist()[::2] == [31.0, 49.0]
    assert lab["iron"].to_pylist()[0] == 8.0
    assert isinstance(links.joined(), arrow.Table)


def test_what_is_handed_out_is_the_callers_to_change():
    links = by_hand([np.array([[1.0, NAN], [2.0, 3.0]]), np.array([[5.0], [6.0]])], [[1, 0]])
    before = links.completed["reference"].copy()
    links.completed["reference"][:] = 0.0
    links.standard_errors["reference"][:] = -1.0
    np.testing.assert_array_equal(links.completed["reference"], before)
    assert links.standard_errors["reference"].min() == 0.0


def conditional(model, values, observed):
    """Mean and standard deviation of all entries of one row given the observed ones: the textbook formula."""
    covariance = model.loadings @ model.loadings.T + np.diag(model.noise)
    seen, missing = np.flatnonzero(observed), np.flatnonzero(~observed)
    gain = covariance[np.ix_(missing, seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
    mean = values.copy()
    mean[missing] = model.offsets[missing] + gain @ (values[seen] - model.offsets[seen])
    variance = np.zeros(len(values))
    variance[missing] = np.diag(covariance[np.ix_(missing, missing)] - gain @ covariance[np.ix_(seen, missing)])
    return mean, np.sqrt(variance)


@pytest.mark.parametrize("shared", [True, False])
def test_filled_entries_are_conditional_means_and_errors_their_standard_deviations(shared):
    rng = np.random.default_rng(5)
    tables = {"a": rng.normal(size=(6, 4)), "b": rng.normal(size=(5, 3)), "c": rng.normal(size=(6, 2))}
    for table in tables.values():
        table[rng.random(table.shape) < 0.4] = NAN
    tables["a"][0] = NAN
    permutations = [np.array([4, 0, -1, 2, 1, 3]), np.array([5, 4, 3, 2, 1, 0])]
    links = by_hand(tables, permutations, shared=shared)
    rows = [np.arange(6), *permutations]
    scales = [scale for part in links.model.scales for scale in part]
    centres, spreads = np.array([s.centre for s in scales]), np.array([s.spread for s in scales])
    whole = np.hstack(
        [np.where((index >= 0)[:, None], table[index], NAN) for table, index in zip(tables.values(), rows, strict=True)]
    )
    scores, edges = (whole - centres) / spreads, [0, 4, 7, 9]
    filled = np.hstack(list(links.completed.values()))
    errors = np.hstack(list(links.standard_errors.values()))
    for i in range(6):
        parts = [slice(0, 9)] if shared else [slice(low, high) for low, high in pairwise(edges)]
        for part in parts:
            seen = np.isfinite(scores[i, part])
            mean, deviation = conditional(links.model.factors.columns(part), np.nan_to_num(scores[i, part]), seen)
            np.testing.assert_allclose(filled[i, part], mean * spreads[part] + centres[part], atol=1e-9)
            np.testing.assert_allclose(errors[i, part], deviation * spreads[part], atol=1e-9)


def test_a_column_without_entries_is_filled_without_any_certainty():
    links = by_hand([np.array([[1.0, NAN], [2.0, NAN]]), np.array([[5.0], [6.0]])], [[1, 0]])
    assert np.isfinite(links.completed["reference"]).all()
    np.testing.assert_array_equal(links.standard_errors["reference"], [[0.0, np.inf], [0.0, np.inf]])


@pytest.mark.parametrize("scale", ["identity", pytest.param("log", marks=pytest.mark.slow)])
def test_standard_errors_are_calibrated(scale):
    """z = (truth − filled) / error of 900 held-out entries.

    Their spread is 1 up to sampling, 1/√(2·900) ≈ 2.4%, and up to errors of the noise of 40 columns, each estimated
    from 125 entries: √(2/125)/2 ≈ 6%, averaging out over columns. Loadings taken for certain add about rank/n = 3%, on
    the log scale curvature another few per cent. Five standard errors and these: within 20%.
    """
    data = make_shuffled_tables(150, (22, 18), rank=5, observed=0.85, random_state=6)
    bend = np.exp if scale == "log" else np.asarray
    tables = {name: bend(table / 3) for name, table in data.tables.items()}
    links = keyless.link(tables, effort="quick", random_state=0)
    np.testing.assert_array_equal(links.permutations["table1"], data.truth["table1"])
    z = []
    for name, table in data.complete.items():
        rows = links.permutations.get(name, np.arange(150))
        errors = links.standard_errors[name]
        z.append(((bend(table[rows] / 3) - links.completed[name])[errors > 0]) / errors[errors > 0])
    z = np.concatenate(z)
    assert len(z) == sum(int(np.isnan(table).sum()) for table in tables.values())
    assert 0.8 < z.std() < 1.2
    assert abs(z.mean()) < 5 / np.sqrt(len(z)) + 0.05


# --- joined ----------------------------------------------------------------------------------------------------------


def test_joined_is_all_columns_side_by_side(data, found):
    joined = found.joined()
    assert isinstance(joined, pd.DataFrame)
    extra = [f"{name}_{what}" for name in ("table1", "table2") for what in ("id", "probability")]
    numbers = joined.drop(columns=extra)
    assert list(numbers) == [f"{name}_{k}" for name, table in data.tables.items() for k in range(table.shape[1])]
    np.testing.assert_array_equal(numbers.to_numpy(), np.hstack(list(found.completed.values())))
    for name, permutation in found.permutations.items():
        assert joined[f"{name}_id"].tolist() == permutation.tolist()
        np.testing.assert_array_equal(joined[f"{name}_probability"], found.found[name].probability)
    assert joined.index.tolist() == list(range(50))


def test_joined_says_whose_column_it_is_where_a_name_occurs_twice(framed):
    clinic, _, truth, links = framed
    joined = links.joined()
    assert joined.shape == (50, 12 + 2 + 11)
    assert list(joined.columns)[:2] == ["clinic.value", "c1"]
    assert list(joined.columns)[12:18] == ["lab_id", "lab_probability", "lab.value", "l1", "l2", "tube"]
    pd.testing.assert_index_equal(joined.index, clinic.index)
    # Nothing is made up for rows without a partner.
    expected = links.completed["lab"]["value"].where(truth >= 0)
    pd.testing.assert_series_equal(joined["lab.value"], expected, check_names=False)
    everyone = links.joined(fill="all")["lab.value"]
    pd.testing.assert_series_equal(everyone, links.completed["lab"]["value"], check_names=False)
    np.testing.assert_array_equal(joined["clinic.value"], links.completed["clinic"]["value"])
    assert joined["tube"].notna().tolist() == (truth >= 0).tolist()


def test_joined_with_columns_named_by_numbers():
    tables = {"a": pd.DataFrame(np.eye(2)), "b": pd.DataFrame(np.eye(2))}
    assert list(by_hand(tables, [[0, 1]]).joined().columns) == ["a.0", "a.1", "b_id", "b_probability", "b.0", "b.1"]


# --- evidence --------------------------------------------------------------------------------------------------------


def test_evidence_is_per_table_and_overall_the_weakest(found):
    assert found.evidence_for("table1").verdict == found.evidence_for("table2").verdict == "linked"
    weakest = min((found.evidence_for(name) for name in found.permutations), key=lambda evidence: evidence.excess)
    assert found.evidence == weakest
    # Every row carries nearly all it takes to single it out of 50, and chance carries far less.
    assert max(found.evidence.null_scores) < 0.5 * found.evidence.needed
    assert 0.95 * found.evidence.needed < found.evidence.score <= found.evidence.needed
    assert found.evidence.needed == pytest.approx(np.log(50))


def test_one_unlinkable_table_makes_the_whole_unlinkable():
    links = by_hand([np.eye(2), np.eye(2), np.eye(2)], [[0, 1], [1, 0]])
    doubtful = by_hand([np.eye(2), np.eye(2), np.eye(2)], [[0, 1], [1, 0]], verdict="unlinkable")
    links.found["table2"] = doubtful.found["table2"]
    assert links.evidence.verdict == "unlinkable"
    assert links.evidence_for("table1").verdict == "linked"
    assert "table2: unlinkable; 2 of 2 rows matched" in repr(links)
    assert repr(links).startswith("Links to 'reference' (2 rows): unlinkable")


def test_an_unlinkable_table_promises_no_right_matches():
    assert "expected right" in repr(by_hand([np.eye(2), np.eye(2)], [[0, 1]]))
    assert "expected right" not in repr(by_hand([np.eye(2), np.eye(2)], [[0, 1]], verdict="unlinkable"))


@pytest.mark.parametrize("name", ["clinic", "nonsense"])
def test_unknown_tables_are_named(name):
    links = by_hand(clinic_and_lab(), [[1, -1, 0]])
    for ask in (links.coupling, links.evidence_for):
        with pytest.raises(InputError, match=UNKNOWN.format(name)):
            ask(name)


def test_unknown_tables_to_fill_are_named():
    links = by_hand(clinic_and_lab(), [[1, -1, 0]])
    for mapping in (links.completed, links.standard_errors):
        with pytest.raises(InputError, match=r"^table: must be one of 'clinic', 'lab'; found 'nonsense'\.$"):
            mapping["nonsense"]
        assert "lab" in mapping
        assert "nonsense" not in mapping


# --- new rows --------------------------------------------------------------------------------------------------------


def log_density(model, values):
    seen = np.isfinite(values)
    if not seen.any():
        return 0.0
    covariance = model.loadings @ model.loadings.T + np.diag(model.noise)
    return multivariate_normal.logpdf(values[seen], model.offsets[seen], covariance[np.ix_(seen, seen)])


def test_new_rows_are_placed_by_bayes_rule():
    """A new row is the entity of reference row j, or a stranger: densities of a Gaussian, priors ½/n each and ½."""
    rng = np.random.default_rng(3)
    tables = {"a": rng.normal(size=(5, 4)), "b": rng.normal(size=(5, 3)), "c": rng.normal(size=(5, 2))}
    tables["a"][1, 2] = tables["c"][0, 1] = NAN
    permutations = [np.array([4, 0, -1, 2, 1]), np.array([3, 4, 2, 1, 0])]
    links = by_hand(tables, permutations)
    rows = np.array([[0.3, NAN, -1.0], [0.5, 0.1, 2.0]])
    placed = links.place(rows, table="b", candidates=5)
    assert list(placed.columns) == ["row", "reference_id", "probability"]
    assert placed["row"].tolist() == [0] * 6 + [1] * 6

    def scores(number, table, index):
        scaled = np.column_stack([s.apply(c) for s, c in zip(links.model.scales[number], table.T, strict=True)])
        return np.where((index >= 0)[:, None], scaled[index], NAN)

    known = np.hstack([scores(0, tables["a"], np.arange(5)), scores(2, tables["c"], permutations[1])])
    fresh = scores(1, rows, np.arange(2))
    factors = links.model.factors
    others, own = factors.columns([0, 1, 2, 3, 7, 8]), factors.columns([4, 5, 6])
    for i in range(2):
        same = [
            log_density(factors, np.concatenate([entity[:4], fresh[i], entity[4:]]))
            - log_density(others, entity)
            - log_density(own, fresh[i])
            for entity in known
        ]
        weight = np.exp(same)
        expected = weight / (5 + weight.sum())
        lines = placed[placed["row"] == i]
        nobody = lines["reference_id"].isna()
        assert lines[nobody]["probability"].item() == pytest.approx(5 / (5 + weight.sum()))
        lines = lines[~nobody]
        assert lines["reference_id"].tolist() == np.argsort(-expected).tolist()
        np.testing.assert_allclose(lines["probability"], np.sort(expected)[::-1], rtol=1e-6)


def test_placing_takes_labels_and_few_candidates():
    links = by_hand(clinic_and_lab(), [[1, -1, 0]])
    rows = pd.DataFrame({"age": [40.0], "iron": [3.0], "note": ["z"]}, index=["new"])
    placed = links.place(rows, table="lab", candidates=2)
    assert placed["row"].tolist() == ["new"] * 3  # two candidates and nobody
    everyone = links.place(rows, table="lab", candidates=99)
    assert len(everyone) == 4
    assert everyone["probability"].sum() == pytest.approx(1.0)
    assert len(links.place(np.array([[40.0, NAN], [NAN, NAN]]), table="lab", candidates=1)) == 4
    assert len(links.place(pd.DataFrame({"age": [1.0], "ward": [2.0]}), table="clinic")) == 4


def test_rows_to_place_may_lack_columns():
    links = by_hand(clinic_and_lab(), [[1, -1, 0]])
    with_gap = links.place(pd.DataFrame({"age": [40.0], "iron": [NAN]}), table="lab", candidates=3)
    without = links.place(pd.DataFrame({"note": ["x"], "age": [40.0]}), table="lab", candidates=3)
    pd.testing.assert_frame_equal(with_gap, without)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (np.ones((1, 2)), {"table": "ward"}, r"^table: must be one of 'clinic', 'lab'; found 'ward'\.$"),
        (np.ones((1, 3)), {"table": "lab"}, r"^rows: must have 2 columns, as lab has; found 3\.$"),
        (
            pd.DataFrame({"note": ["x"]}),
            {"table": "lab"},
            r"^rows: must have at least one of the columns of lab, age, iron\.$",
        ),
        (np.ones((1, 2)), {"table": "lab", "candidates": 0}, r"^candidates: must be a whole number of at least 1"),
        (np.ones(2), {"table": "lab"}, r"^lab: must be a table with rows and columns"),
    ],
)
def test_bad_new_rows_are_named(rows, options, message):
    with pytest.raises(InputError, match=message):
        by_hand(clinic_and_lab(), [[1, -1, 0]]).place(rows, **options)


# --- score -----------------------------------------------------------------------------------------------------------


def test_the_score_is_r_squared_of_entries_newly_seen():
    rng = np.random.default_rng(2)
    full = {"a": rng.normal(size=(6, 3)), "b": rng.normal(size=(5, 2))}
    seen = {name: np.where(rng.random(table.shape) < 0.3, NAN, table) for name, table in full.items()}
    permutation = np.array([4, 0, -1, 2, 1, 3])
    links = by_hand(seen, [permutation])
    errors = total = 0.0
    for name, rows in (("a", np.arange(6)), ("b", permutation)):
        truth, filled = full[name][rows], links.completed[name]
        fresh = np.isnan(seen[name][rows]) & (rows >= 0)[:, None]
        number = ["a", "b"].index(name)
        for k, scale in enumerate(links.model.scales[number]):
            errors += np.sum(((truth - filled)[fresh[:, k], k] / scale.spread) ** 2)
            total += np.sum(((truth[fresh[:, k], k] - scale.centre) / scale.spread) ** 2)
    assert links.held_out_score(full) == pytest.approx(1 - errors / total)
    # Filling one table only is scored on that table only; a perfect answer scores 1.
    assert links.held_out_score({"a": full["a"]}) != pytest.approx(1 - errors / total)
    inverse = np.full(5, -1)
    inverse[permutation[permutation >= 0]] = np.flatnonzero(permutation >= 0)
    perfect = {"a": links.completed["a"], "b": links.completed["b"][inverse]}
    assert links.held_out_score(perfect) == pytest.approx(1.0)


def test_bad_tables_to_score_are_named():
    links = by_hand(clinic_and_lab(), [[1, -1, 0]])
    with pytest.raises(InputError, match=r"^tables: must have a value for an entry that was missing when"):
        links.held_out_score(clinic_and_lab())
    with pytest.raises(InputError, match=r"^tables: must be some of 'clinic', 'lab'; found 'ward'\.$"):
        links.held_out_score({"ward": np.ones((2, 2))})
    with pytest.raises(InputError, match=r"^lab: must have shape \(2, 2\), as linked; found \(3, 2\)\.$"):
        links.held_out_score({"lab": np.ones((3, 2))})


def test_tables_to_score_may_come_in_order():
    links = by_hand([np.array([[1.0, NAN], [2.0, 3.0], [0.0, 1.0]]), np.array([[5.0], [6.0], [9.0]])], [[1, 0, 2]])
    full = [np.array([[1.0, 2.5], [2.0, 3.0], [0.0, 1.0]]), np.array([[5.0], [6.0], [9.0]])]
    assert links.held_out_score(full) == links.held_out_score({"reference": full[0]})


# --- files -----------------------------------------------------------------------------------------------------------


def assert_same(one, two, full):
    """Everything public is equal."""
    assert repr(one) == repr(two)
    assert one.reference == two.reference
    assert (one.status, one.seed, one.choices, one.starts) == (two.status, two.seed, two.choices, two.starts)
    assert one.evidence == two.evidence
    assert list(one.permutations) == list(two.permutations)
    for name in one.permutations:
        np.testing.assert_array_equal(one.permutations[name], two.permutations[name])
        np.testing.assert_array_equal(one.coupling(name), two.coupling(name))
        np.testing.assert_array_equal(one.found[name].margin, two.found[name].margin)
        assert one.evidence_for(name) == two.evidence_for(name)
    pd.testing.assert_frame_equal(one.matches, two.matches)
    pd.testing.assert_frame_equal(one.joined(), two.joined(), check_names=False)
    for name in one.completed:
        assert type(one.completed[name]) is type(two.completed[name])
        if isinstance(one.completed[name], pd.DataFrame):
            pd.testing.assert_frame_equal(one.completed[name], two.completed[name], check_names=False)
        else:
            np.testing.assert_array_equal(one.completed[name], two.completed[name])
        np.testing.assert_array_equal(one.standard_errors[name], two.standard_errors[name])
    assert one.held_out_score(full) == two.held_out_score(full)
    for before, after in zip(one.tables, two.tables, strict=True):
        assert before.columns == after.columns
        assert before.all_columns == after.all_columns
        assert before.left_out == after.left_out
        assert before.row_ids == after.row_ids
        assert before.indexed == after.indexed


def test_what_was_saved_comes_back(data, found, tmp_path):
    found.save(tmp_path / "run.keyless")
    again = keyless.load(str(tmp_path / "run.keyless"))
    assert_same(found, again, data.complete)
    rows = data.complete["table1"][:3]
    pd.testing.assert_frame_equal(found.place(rows, table="table1"), again.place(rows, table="table1"))


def test_frames_labels_and_text_come_back(framed, tmp_path):
    clinic, _, _, links = framed
    links.save(tmp_path / "run.keyless")
    again = keyless.load(tmp_path / "run.keyless")
    assert_same(links, again, {"clinic": clinic.fillna(0.0)})
    again.save(tmp_path / "again.keyless")
    assert_same(again, keyless.load(tmp_path / "again.keyless"), {"clinic": clinic.fillna(0.0)})


@pytest.mark.parametrize("scales", ["auto", "log", "sqrt", "rank"])
def test_every_scale_comes_back(scales, tmp_path):
    rng = np.random.default_rng(1)
    full = [np.exp(rng.normal(size=(20, 3))), np.exp(rng.normal(size=(20, 2)))]
    seen = [np.where(rng.random(table.shape) < 0.2, NAN, table) for table in full]
    links = by_hand(seen, [rng.permutation(20)], scales=scales)
    links.save(tmp_path / "run.keyless")
    assert_same(links, keyless.load(tmp_path / "run.keyless"), full)


def test_columns_named_by_numbers_and_odd_labels_come_back(tmp_path):
    times = pd.to_datetime(["2020-01-01", "2021-01-01"])
    tables = {
        "a": pd.DataFrame({0: [1.0, NAN], 1: ["u", None]}, index=[5, 3]),
        "b": pd.DataFrame({"t": times, "x": [1.0, 2.0]}, index=times),
    }
    links = by_hand(tables, [[1, 0]])
    links.save(tmp_path / "run.keyless")
    again = keyless.load(tmp_path / "run.keyless")
    assert list(again.completed["a"].columns) == [0, 1]
    pd.testing.assert_frame_equal(again.completed["a"], links.completed["a"])
    assert again.matches["row_id"].tolist() == times[::-1].tolist()
    assert again.completed["b"]["t"].tolist() == times[::-1].tolist()
    pd.testing.assert_frame_equal(again.completed["b"], links.completed["b"])


@pytest.mark.parametrize("kind", ["polars", "lazy", "pyarrow", "records"])
def test_other_frames_come_back_as_what_they_were(kind, tmp_path):
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    make = {
        "polars": polars.DataFrame,
        "lazy": polars.LazyFrame,
        "pyarrow": arrow.table,
        "records": lambda columns: [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ],
    }[kind]
    links = by_hand(clinic_and_lab(make), [[1, -1, 0]])
    links.save(tmp_path / "run.keyless")
    again = keyless.load(tmp_path / "run.keyless")
    for name in ("clinic", "lab"):
        before, after = links.completed[name], again.completed[name]
        assert type(before) is type(after) is type(make({"x": [1.0]}))
        if kind == "lazy":
            before, after = before.collect(), after.collect()
        assert (before == after) if kind == "records" else before.equals(after)
    assert type(links.matches) is type(again.matches) is type(make({"x": [1.0]}))


def test_frames_of_a_library_that_has_gone_come_back_as_pandas(tmp_path, monkeypatch):
    polars = pytest.importorskip("polars")
    links = by_hand(clinic_and_lab(polars.DataFrame), [[1, -1, 0]])
    links.save(tmp_path / "run.keyless")
    before = links.completed["lab"]["age"].to_list()
    monkeypatch.setitem(sys.modules, "polars", None)
    again = keyless.load(tmp_path / "run.keyless")
    assert isinstance(again.completed["lab"], pd.DataFrame)
    assert again.completed["lab"]["age"].tolist() == before


def test_filled_marks_what_was_filled():
    links = by_hand(clinic_and_lab(), [[1, -1, 0]])
    marks = links.filled["lab"]
    assert list(links.filled) == ["clinic", "lab"]
    assert marks.dtypes.map(str).eq("bool").all()
    assert marks["age"].tolist() == [False, True, False]
    assert marks["iron"].tolist() == [False, True, True]
    assert not marks["note"].any()
    assert not links.completed["lab"][["age", "iron"]].isna().to_numpy().any()
    arrays = by_hand([np.array([[1.0, NAN], [2.0, 3.0]]), np.array([[5], [6]])], [[1, -1]])
    np.testing.assert_array_equal(arrays.filled["reference"], [[False, True], [False, False]])
    np.testing.assert_array_equal(arrays.filled["table1"], [[False], [True]])
    assert arrays.completed["table1"].dtype == np.int64


def test_factors_are_what_entries_are_filled_from():
    links = by_hand([np.array([[1.0, NAN], [2.0, 3.0], [0.0, 1.0]]), np.array([[5.0], [6.0], [9.0]])], [[1, 0, 2]])
    assert links.factors.shape == (3, 2)
    model, scale = links.model.table_factors(0), links.model.scales[0][1]
    score = links.factors[0] @ model.loadings[1] + model.offsets[1]
    assert links.completed["reference"][0, 1] == pytest.approx(float(scale.undo(np.array(score))))
    alone = by_hand([np.eye(3), np.eye(3)], [[1, 0, 2]], shared=False)
    assert alone.factors.shape == (3, 2)


@pytest.mark.parametrize("damage", ["array", "column", "scale", "evidence", "shape"])
def test_a_result_that_does_not_fit_together_is_refused(damage, tmp_path):
    path = tmp_path / "run.keyless"
    by_hand(clinic_and_lab(), [[1, -1, 0]]).save(path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    header = json.loads(members["links.json"])
    if damage == "array":
        del members["arrays/1.coupling.npy"]
    elif damage == "column":
        header["document"]["tables"][0]["columns"].pop()
    elif damage == "scale":
        header["document"]["tables"][0]["scales"][0]["bend"] = 3
    elif damage == "evidence":
        header["document"]["evidence"]["lab"] = None
    else:
        members["arrays/0.mask.npy"] = members["arrays/1.mask.npy"]
    members["links.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(InputError, match=r"run\.keyless: must be a saved keyless result; a part of it is missing"):
        keyless.load(path)


def test_every_part_shows_itself_in_a_few_words(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    parts = [links, links.evidence, links.model, links.model.factors, links.model.scales[0][0], links.status]
    parts += [links.completed, links.filled, links.standard_errors, links.tables, links.tables[0], links.found]
    parts += [links.tables[0].block, links.tables[0].uses[0], links.threshold(precision=0.9), keyless.TableLinker()]
    parts += [links.explain("P-1000").pairs["lab"], keyless.tables.Reading(), keyless.SoftImpute()]
    for part in parts:
        assert len(repr(part)) < 600, type(part)
        assert "array(" not in repr(part)
    width = len(links.tables[0].columns)
    assert repr(links.model) == f"JointModel: 4 factors of {width} + 6 + 5 columns; each table is filled from all"
    # An explanation is an answer to read: eight columns of each link.
    assert len(repr(links.explain("P-1000")).splitlines()) <= 2 * 10
