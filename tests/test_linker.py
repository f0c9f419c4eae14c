"""The front door: right answers, laws, what the caller knows, odd tables, time limits, and bad input."""

import inspect
import re
import signal
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import keyless
from keyless import Reading, TableLinker
from keyless.datasets import make_shuffled_tables
from keyless.engine import search
from keyless.errors import InputError
from keyless.pairs.stated import LEAST_TOLD
from ways import link_by

NAN = np.nan


@pytest.fixture(scope="module")
def data():
    """Complete, rank 3, noise 0.1: every row is told from every other by many nats."""
    return make_shuffled_tables(40, (14, 12), rank=3, random_state=0)


@pytest.fixture(scope="module")
def gaps():
    return make_shuffled_tables(50, (16, 14), rank=3, observed=0.8, random_state=10)


@pytest.fixture(scope="module")
def found(data):
    return keyless.link(data.tables, effort="quick", random_state=0)


@pytest.fixture(scope="module")
def found_gaps(gaps):
    return keyless.link(gaps.tables, random_state=0)


@pytest.fixture(scope="module")
def fitted(gaps):
    return TableLinker(random_state=0).fit(gaps.tables)


def linked(tables, **options):
    return keyless.link(tables, effort="quick", random_state=0, **options)


def assert_same_links(one, two):
    for name in one.permutations:
        np.testing.assert_array_equal(one.permutations[name], two.permutations[name])
        np.testing.assert_array_equal(one.coupling(name), two.coupling(name))
        np.testing.assert_array_equal(one.found[name].probability, two.found[name].probability)
        assert one.evidence_for(name) == two.evidence_for(name)
    for name in one.completed:
        np.testing.assert_array_equal(one.completed[name], two.completed[name])


# --- right answers ---------------------------------------------------------------------------------------------------


def test_the_right_rows_are_found(data, found):
    links = found
    np.testing.assert_array_equal(links.permutations["table1"], data.truth["table1"])
    assert links.evidence.verdict == "linked"
    assert links.status.converged
    assert links.choices["route"] == "pairs"
    assert (links.matches["probability"] > 0.5).all()
    # The margin is in favour of almost every match; only neighbours may be closer.
    assert (links.matches["margin"] > 0).mean() > 0.9
    assert links.seed == 0


def test_the_right_rows_are_found_among_gaps(gaps, found_gaps):
    np.testing.assert_array_equal(found_gaps.permutations["table1"], gaps.truth["table1"])
    assert found_gaps.evidence.verdict == "linked"
    assert found_gaps.choices["rank"] == 3
    assert not any(np.isnan(table).any() for table in found_gaps.completed.values())


@pytest.mark.soak
def test_several_tables_and_any_reference():
    data = make_shuffled_tables(40, (12, 11, 10), rank=3, observed=0.9, names=["a", "b", "c"], random_state=3)
    by_a = keyless.link(data.tables, effort="quick", random_state=0)
    by_b = keyless.link(data.tables, reference="b", effort="quick", random_state=0)
    for name in ("b", "c"):
        np.testing.assert_array_equal(by_a.permutations[name], data.truth[name])
    assert by_b.reference == "b"
    assert list(by_b.permutations) == ["a", "c"]
    back = np.argsort(data.truth["b"])
    np.testing.assert_array_equal(by_b.permutations["a"], back)
    np.testing.assert_array_equal(by_b.permutations["c"], data.truth["c"][back])


def test_what_was_chosen_is_told(found_gaps):
    assert found_gaps.choices["route"] == "pairs"
    assert set(found_gaps.choices["scales"]["table1"]) == {f"table1_{k}" for k in range(14)}
    assert set(found_gaps.choices["scales"]["table1"].values()) <= {"identity", "log", "sqrt"}
    assert found_gaps.choices["known_pairs"] == 0
    assert len(found_gaps.starts) >= 1


# --- the estimator ---------------------------------------------------------------------------------------------------


def test_the_function_and_the_estimator_agree(found_gaps, fitted):
    assert_same_links(fitted.links_, found_gaps)
    assert fitted.n_features_in_ == {"reference": 16, "table1": 14}


@pytest.mark.slow
def test_fitting_again_gives_the_same(gaps, found_gaps):
    linker = TableLinker(random_state=0)
    for _ in range(2):
        assert linker.fit(gaps.tables, None) is linker
        assert_same_links(linker.links_, found_gaps)


def test_parameters_can_be_read_set_and_cloned():
    pairs = pd.DataFrame({"left": [0], "right": [3]})
    linker = TableLinker(known_pairs=pairs, random_state=4, effort="quick")
    parameters = linker.get_params()
    assert parameters["known_pairs"] is pairs
    assert set(parameters) == set(TableLinker.__init__.__kwdefaults__)
    copy = clone(linker)
    assert copy is not linker
    assert (copy.random_state, copy.effort) == (4, "quick")
    pd.testing.assert_frame_equal(copy.known_pairs, pairs)
    assert copy.set_params(partners="all", rank=2) is copy
    assert (copy.partners, copy.rank, linker.partners) == ("all", 2, "auto")
    with pytest.raises(ValueError, match="nonsense"):
        linker.set_params(nonsense=1)
    with pytest.raises(TypeError, match="nonsense"):
        keyless.link([], nonsense=1)


def test_options_are_those_of_the_function():
    given = inspect.signature(keyless.link).parameters.values()
    options = {one.name: one.default for one in given if one.kind is one.KEYWORD_ONLY}
    assert options == TableLinker.__init__.__kwdefaults__


@pytest.mark.slow
def test_fitting_changes_no_parameter_and_no_table(data):
    tables = {name: table.copy() for name, table in data.tables.items()}
    linker = TableLinker(effort="quick", random_state=0)
    before = linker.get_params()
    linker.fit(tables)
    assert linker.get_params() == before
    for name, table in tables.items():
        np.testing.assert_array_equal(table, data.tables[name])


def test_an_estimator_must_be_fitted_first(data):
    with pytest.raises(NotFittedError):
        TableLinker().transform(data.tables["table1"], table="table1")
    with pytest.raises(NotFittedError):
        TableLinker().score(data.tables)


@pytest.mark.slow
def test_transform_places_new_rows_at_their_entities():
    data = make_shuffled_tables(50, (16, 14), rank=3, random_state=5)
    table, truth = data.tables["table1"], data.truth["table1"]
    linker = TableLinker(effort="quick", random_state=0).fit([data.tables["reference"], table[:40]])
    kept = np.where(truth < 40, truth, -1)
    np.testing.assert_array_equal(linker.links_.permutations["table1"], kept)
    placed = linker.transform(table[40:], table="table1", candidates=3)
    assert placed["row"].tolist() == np.repeat(np.arange(10), 3 + 1).tolist()
    best = placed.groupby("row").head(1)
    place = np.argsort(truth)
    np.testing.assert_array_equal(best["reference_id"], place[40:])
    # 50 rows and a stranger as likely as all of them; each true row carries about 9 nats, log 50 of them needed.
    assert (best["probability"] > 0.5).mean() >= 0.8
    assert (placed.groupby("row")["reference_id"].count() == 3).all()
    assert (placed.groupby("row")["probability"].sum() <= 1 + 1e-9).all()
    assert placed.groupby("row")["probability"].apply(lambda p: p.is_monotonic_decreasing).all()
    # Rows of the reference itself are placed too, by what the other tables know of them: those that have a partner.
    back = linker.transform(data.tables["reference"], table="reference", candidates=1).dropna()
    matched = kept >= 0
    assert (back["reference_id"].to_numpy()[matched] == np.flatnonzero(matched)).mean() > 0.95


@pytest.mark.slow
def test_transform_knows_strangers():
    data = make_shuffled_tables(50, (16, 14), rank=3, random_state=5)
    linker = TableLinker(effort="quick", random_state=0).fit(data.tables)
    own = linker.transform(data.tables["table1"], table="table1", candidates=50)
    other = make_shuffled_tables(50, (16, 14), rank=3, random_state=6).tables["table1"]
    strange = linker.transform(other, table="table1", candidates=50)
    for frame in (own, strange):
        np.testing.assert_allclose(frame.groupby("row")["probability"].sum(), 1.0)
    known, unknown = (frame.dropna().groupby("row")["probability"].sum() for frame in (own, strange))
    assert known.median() > 0.9
    assert unknown.median() < 0.5


def test_the_score_is_close_to_1_where_noise_is_low(gaps, found_gaps, fitted):
    """Noise 0.1 in entries of variance 3.01: at best 1 − 0.01/3.01 ≈ 0.997 of what was missing can be known."""
    score = fitted.score(gaps.complete)
    assert 0.985 < score < 1
    assert score == found_gaps.held_out_score(gaps.complete)
    assert score == fitted.score(list(gaps.complete.values()))
    shuffled = {name: np.where(np.isnan(gaps.tables[name]), -table, table) for name, table in gaps.complete.items()}
    assert fitted.score(shuffled) < 0


# --- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer(data, found):
    assert_same_links(linked(data.tables), found)
    generator = keyless.link(data.tables, effort="quick", random_state=np.random.default_rng(3))
    again = keyless.link(data.tables, effort="quick", random_state=generator.seed)
    assert_same_links(generator, again)
    assert keyless.link(data.tables, effort="quick", random_state=np.int64(5)).seed == 5


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_number_of_cores(data, found, monkeypatch):
    monkeypatch.setattr(search, "workers", lambda: 3)
    assert_same_links(linked(data.tables), found)


@pytest.mark.parametrize(
    "law", ["rows", "units", *(pytest.param(law, marks=pytest.mark.slow) for law in ("columns", "signs", "offsets"))]
)
def test_only_the_rows_matter_and_not_how_they_are_written(data, found, law):
    rng = np.random.default_rng(11)
    permutation = found.permutations["table1"]
    changed, expected = {}, permutation
    for name, table in data.tables.items():
        order = rng.permutation(40)
        width = table.shape[1]
        if law == "rows":
            changed[name] = table[order]
            expected = expected[order] if name == "reference" else np.argsort(order)[expected]
        elif law == "columns":
            changed[name] = table[:, rng.permutation(width)]
        elif law == "units":
            changed[name] = table * 10.0 ** rng.integers(-6, 7, width)
        elif law == "signs":
            changed[name] = table * rng.choice([-1.0, 1.0], width)
        else:
            # Columns have both signs before and after, so that they stay on their scale.
            changed[name] = table + rng.uniform(-0.5, 0.5, width)
    links = linked(changed)
    np.testing.assert_array_equal(links.permutations["table1"], expected)
    assert links.evidence.verdict == found.evidence.verdict
    # Sums in another order: couplings agree to rounding, carried through an iteration.
    old, new = (np.sort(one.found["table1"].probability) for one in (found, links))
    np.testing.assert_allclose(new, old, atol=0.02)


def test_exchanging_reference_and_table_turns_the_answer_round(data, found):
    links = linked(data.tables, reference="table1")
    assert links.reference == "table1"
    np.testing.assert_array_equal(links.permutations["reference"], np.argsort(found.permutations["table1"]))


@pytest.mark.slow
def test_bent_columns_are_straightened(data, found):
    bent = {name: np.exp(table / 2) for name, table in data.tables.items()}
    links = linked(bent)
    np.testing.assert_array_equal(links.permutations["table1"], found.permutations["table1"])
    assert {*links.choices["scales"]["table1"].values()} == {"log"}
    fixed = linked(bent, scales="log")
    np.testing.assert_array_equal(fixed.permutations["table1"], links.permutations["table1"])


# --- what the caller knows -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_known_pairs_are_kept_even_where_the_data_say_otherwise(seed):
    data = make_shuffled_tables(40, (14, 12), rank=3, random_state=seed)
    truth = data.truth["table1"]
    wrong = [(0, int(truth[1])), (1, int(truth[0]))]
    links = linked(data.tables, known_pairs=wrong, max_time=20)
    assert links.permutations["table1"][:2].tolist() == [truth[1], truth[0]]
    assert (links.permutations["table1"][2:] == truth[2:]).mean() > 0.9
    assert links.evidence.verdict == "uncertain"
    # There is no alternative to a known pair.
    # As sure as can be told: nothing else has any probability.
    np.testing.assert_allclose(links.matches["margin"][:2], -np.log(LEAST_TOLD), atol=1e-3)
    assert links.choices["known_pairs"] == 2
    assert links.coupling("table1")[0, truth[0]] == 0


@pytest.mark.slow
def test_known_pairs_are_kept_where_nothing_can_be_linked():
    rng = np.random.default_rng(11)
    tables = {"a": rng.normal(size=(40, 5)), "b": rng.normal(size=(35, 4))}
    links = keyless.link(tables, known_pairs=[(3, 30), (17, 2)], random_state=0)
    assert links.evidence.verdict != "linked"
    assert links.permutations["b"][[3, 17]].tolist() == [30, 2]
    np.testing.assert_array_equal(links.found["b"].probability[[3, 17]], 1.0)
    np.testing.assert_array_equal(links.found["b"].alone[[3, 17]], 0.0)


def test_forbidden_pairs_are_never_made(data):
    truth = data.truth["table1"]
    links = linked(data.tables, forbid=[(0, int(truth[0])), (5, int(truth[5]))])
    found = links.permutations["table1"]
    assert found[0] != truth[0]
    assert found[5] != truth[5]
    assert links.coupling("table1")[[0, 5], truth[[0, 5]]].tolist() == [0, 0]
    others = np.setdiff1d(np.arange(40), [0, 5])
    assert (found[others] == truth[others]).mean() > 0.9


@pytest.mark.slow
def test_rows_match_inside_their_group_only():
    """The tables share nothing, so that groups would be crossed if they could."""
    rng = np.random.default_rng(4)
    group = np.repeat(["a", "b", "c", "d"], 10)
    one, two = rng.normal(size=(40, 4)), rng.normal(size=(40, 4))
    order = rng.permutation(40)
    left = pd.DataFrame(one, columns=list("pqrs")).assign(ward=group)
    right = pd.DataFrame(two[order], columns=list("tuvw")).assign(ward=group[order])
    right.loc[3, "ward"] = None
    options = {"partners": "all", "max_time": 3}
    links = linked({"left": left, "right": right}, within="ward", **options)
    free = linked({"left": left, "right": right}, **options)
    for result, inside in ((links, True), (free, False)):
        permutation = result.permutations["right"]
        matched = permutation >= 0
        # One row has an unknown group and may push one other out of its own.
        assert matched.sum() >= 38
        wards = right["ward"].to_numpy()[permutation[matched]]
        crossed = [pair for pair in zip(group[matched], wards, strict=True) if pd.notna(pair[1]) and pair[0] != pair[1]]
        assert bool(crossed) is not inside
    # One of about ten instead of one of forty.
    assert links.evidence.needed < free.evidence.needed


def test_a_row_that_nobody_may_match_is_surely_alone(data):
    truth = data.truth["table1"]
    left = pd.DataFrame(data.tables["reference"]).assign(ward="a")
    left.loc[6, "ward"] = "b"
    right = pd.DataFrame(data.tables["table1"]).assign(ward="a")
    links = linked({"left": left, "right": right}, within="ward", shared=None, max_time=20)
    assert links.permutations["right"][6] == -1
    assert links.matches["probability"][6] == 1.0
    others = np.arange(40) != 6
    assert (links.permutations["right"][others] == truth[others]).mean() > 0.9


def test_groups_labels_and_gaps_together():
    data = make_shuffled_tables(40, (9, 8), rank=3, observed=0.9, random_state=8)
    truth = data.truth["table1"]
    group = np.random.default_rng(0).integers(0, 4, 40)
    left = pd.DataFrame(data.tables["reference"], index=[f"p{i}" for i in range(40)]).assign(ward=group.astype(str))
    right = pd.DataFrame(data.tables["table1"], index=[f"s{i}" for i in range(40)])
    right["ward"] = group.astype(str)[np.argsort(truth)]
    pairs = [("p0", f"s{truth[0]}"), ("p7", f"s{truth[7]}")]
    links = keyless.link(
        {"left": left, "right": right}, within="ward", known_pairs=pairs, shared=None, effort="quick", random_state=0
    )
    np.testing.assert_array_equal(links.permutations["right"], truth)
    assert links.choices["left_out"] == {"left": ["ward"], "right": ["ward"]}
    assert links.choices["start_couplings"] == {"left–right": ["known pairs"]}
    assert links.evidence.verdict == "linked"


def test_shared_columns_help_where_nothing_else_does():
    """Unrelated columns but for two that both tables measure, with noise of 1%."""
    rng = np.random.default_rng(6)
    common = rng.normal(size=(40, 2))
    order = rng.permutation(40)
    left = pd.DataFrame(np.hstack([common, rng.normal(size=(40, 3))]), columns=["u", "v", "a", "b", "c"])
    noisy = common + 0.01 * rng.normal(size=(40, 2))
    right = pd.DataFrame(np.hstack([noisy, rng.normal(size=(40, 2))])[order], columns=["u", "v", "d", "e"])
    links = keyless.link({"left": left, "right": right}, effort="quick", random_state=0, max_time=30)
    assert (order[links.permutations["right"]] == np.arange(40)).mean() > 0.9
    assert links.choices["start_couplings"] == {"left–right": ["shared columns"]}


def test_unequal_tables_leave_rows_without_a_partner():
    data = make_shuffled_tables((50, 42), (16, 14), rank=3, overlap=0.9, random_state=12)
    links = keyless.link(data.tables, effort="quick", random_state=0)
    truth, found = data.truth["table1"], links.permutations["table1"]
    assert (truth < 0).sum() == 12
    assert (found == truth).mean() > 0.95
    probability = links.matches["probability"].to_numpy()
    assert ((probability >= 0) & (probability <= 1)).all()
    # The stated number of right answers is near the true one: a sum of 50 nearly sure events.
    assert abs(probability.sum() - (found == truth).sum()) < 5
    assert links.evidence.verdict == "linked"
    # What is needed is stated per row that could be matched, of which three quarters or more are.
    assert 0.7 * np.log(50) < links.evidence.needed <= np.log(50)


@pytest.mark.parametrize("seed", [13, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (14, 15))])
def test_strangers_may_be_allowed_among_equally_many_rows(seed):
    data = make_shuffled_tables((40, 40), (16, 14), rank=3, overlap=0.75, random_state=seed)
    links = keyless.link(data.tables, partners="some", effort="quick", random_state=0)
    truth = data.truth["table1"]
    assert links.choices["route"] == "pairs"
    assert (links.permutations["table1"] == truth).mean() > 0.9


def test_everyone_has_a_partner_where_the_caller_says_so():
    data = make_shuffled_tables((40, 40), (16, 14), rank=3, overlap=0.75, random_state=14)
    links = keyless.link(data.tables, partners="all", effort="quick", random_state=0, max_time=3)
    assert sorted(links.permutations["table1"]) == list(range(40))


@pytest.mark.slow
def test_which_entries_are_missing_may_count():
    """Entries are missing by a rule both tables follow, so that the pattern tells who it is."""
    rng = np.random.default_rng(2)
    latent = rng.normal(size=(60, 3))
    values = [latent @ rng.normal(size=(3, width)) + 0.1 * rng.normal(size=(60, width)) for width in (14, 12)]
    hidden = [latent @ rng.normal(size=(3, width)) > 1.5 for width in (14, 12)]
    order = rng.permutation(60)
    left = np.where(hidden[0], NAN, values[0])
    right = np.where(hidden[1], NAN, values[1])[order]
    links = keyless.link([left, right], reading=Reading(missingness=True), effort="quick", random_state=0)
    assert links.choices["missingness"] is True
    assert any(name.endswith("is observed") for name in links.choices["scales"]["table1"])
    assert (order[links.permutations["table1"]] == np.arange(60)).mean() > 0.9
    assert links.completed["reference"].shape == (60, 14)
    assert links.standard_errors["table1"].shape == (60, 12)
    assert links.joined().shape == (60, 28)
    placed = links.place(right[:2], table="table1", candidates=1).dropna()
    assert placed["reference_id"].tolist() == order[:2].tolist()
    assert len(links.place(np.where(np.isnan(right[:2]), 0.0, right[:2]), table="table1", candidates=1)) == 4
    assert links.held_out_score([values[0], values[1][order]]) > 0


# --- nothing to find -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unrelated_noise_is_not_linked():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(40, 10)), rng.normal(size=(40, 9))]
    links = keyless.link(tables, random_state=0)
    assert links.evidence.verdict != "linked"
    assert not links.model.shared or links.evidence.verdict == "uncertain"


@pytest.mark.slow
def test_unrelated_structure_is_not_linked():
    """Both of rank 3, but of different people."""
    one, two = (make_shuffled_tables(40, (12, 10), rank=3, random_state=seed).tables for seed in (1, 2))
    links = keyless.link([one["reference"], two["table1"]], random_state=0)
    assert links.evidence.verdict != "linked"


@pytest.mark.slow
def test_known_pairs_alone_are_no_evidence():
    rng = np.random.default_rng(1)
    tables = [rng.normal(size=(40, 10)), rng.normal(size=(40, 9))]
    pairs = [(i, i) for i in range(6)]
    links = keyless.link(tables, known_pairs=pairs, random_state=0)
    assert links.permutations["table1"][:6].tolist() == list(range(6))
    assert links.evidence.verdict != "linked"


# --- odd tables ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_tiny_tables_have_an_answer_but_prove_nothing(rows):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        links = keyless.link([rng.normal(size=(rows, 4)), rng.normal(size=(rows, 5))], random_state=0)
        assert sorted(links.permutations["table1"][links.permutations["table1"] >= 0]) == list(range(rows))
        assert links.evidence.verdict != "linked"
        assert len(links.matches) == rows
        assert np.isfinite(links.joined().to_numpy(dtype=float)).all()


def test_columns_and_rows_that_say_nothing_do_no_harm(gaps):
    tables = {name: table.copy() for name, table in gaps.tables.items()}
    truth = gaps.truth["table1"]
    tables["reference"][:, 3] = 7.0
    tables["table1"][:, 0] = -2.0
    tables["table1"][:, 5] = NAN
    tables["reference"][4] = NAN
    tables["table1"][truth[9]] = NAN
    tables["reference"][20] = tables["reference"][21]
    tables["table1"][truth[20]] = tables["table1"][truth[21]]
    links = keyless.link(tables, effort="quick", random_state=0, max_time=60)
    found = links.permutations["table1"]
    clear = np.setdiff1d(np.arange(50), [4, 9, 20, 21])
    assert (found[clear] == truth[clear]).mean() > 0.9
    assert set(found[[20, 21]]) == set(truth[[20, 21]])
    for name in tables:
        assert np.isfinite(links.completed[name]).all()
    assert (links.completed["reference"][:, 3] == 7.0).all()
    assert (links.standard_errors["reference"][:, 3] == 0.0).all()
    assert np.isinf(links.standard_errors["table1"][:, 5]).all()
    assert links.completed["table1"][:, 0].tolist() == [-2.0] * 50


@pytest.mark.slow
def test_constant_tables_say_nothing_at_all():
    links = keyless.link([np.ones((6, 3)), np.full((6, 2), -4.0)], random_state=0)
    assert links.evidence.verdict == "unlinkable"
    np.testing.assert_array_equal(links.completed["table1"], -4.0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(20, 1), (4, 30)])
def test_narrow_and_wide_tables(shape):
    rng = np.random.default_rng(3)
    links = keyless.link([rng.normal(size=shape), rng.normal(size=shape)], random_state=0, max_time=10)
    assert links.evidence.verdict != "linked"
    assert len(links.matches) == shape[0]


@pytest.mark.slow
def test_nothing_is_known_of_a_table():
    links = keyless.link([np.full((5, 2), NAN), np.eye(5)], random_state=0, max_time=10)
    assert links.evidence.verdict == "unlinkable"
    assert np.isfinite(links.completed["reference"]).all()


# --- time and progress -----------------------------------------------------------------------------------------------


def test_the_time_limit_is_kept_and_told():
    """Without a limit these unrelated tables, far more rows than elsewhere here, take minutes."""
    one, two = (make_shuffled_tables(120, (20, 18), rank=4, random_state=seed).tables for seed in (1, 2))
    tables = [one["reference"], two["table1"]]
    begin = time.monotonic()
    links = keyless.link(tables, random_state=0, max_time=0.5)
    assert time.monotonic() - begin < 10
    assert links.status.reason == "max_time"
    assert links.status.advice
    partners = links.permutations["table1"]
    assert len(set(partners[partners >= 0])) == np.count_nonzero(partners >= 0)
    assert links.evidence.verdict != "linked"
    assert np.isfinite(links.matches["probability"]).all()


def test_progress_is_told_as_stage_step_total_and_objective(data, found):
    told = []
    links = linked(data.tables, callback=lambda *parts: told.append(parts))
    assert told
    for stage, step, total, objective in told:
        assert isinstance(stage, str)
        assert isinstance(step, int)
        assert isinstance(total, int)
        assert isinstance(float(objective), float)
        assert step >= 0
        assert total == 0 or step <= total
    # Watching changes nothing.
    assert_same_links(links, found)


def test_an_error_in_the_callback_is_the_callers(data):
    def stop(*_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        linked(data.tables, callback=stop)


def test_nothing_is_printed_and_nothing_warned(data, capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        linked(data.tables)
    assert not caught
    assert capsys.readouterr() == ("", "")


# --- bad input -------------------------------------------------------------------------------------------------------

TWO = {"clinic": np.arange(12.0).reshape(4, 3), "lab": np.arange(8.0).reshape(4, 2) % 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": {"age": "log"}}, "scales: must name columns that are used as numbers; found 'age'."),
        ({"scales": {"clinic_0": "cube"}}, "scales, column 'clinic_0': must be one of 'auto',"),
        ({"effort": "magic"}, "effort: must be one of 'quick', 'normal', 'thorough'; found 'magic'."),
        ({"scales": "cube"}, "scales: must be one of 'auto', 'identity', 'log', 'sqrt', 'rank'; found 'cube'."),
        ({"partners": False}, "partners: must be one of 'auto', 'all', 'some'; found False."),
        ({"repeats": ["a", "b"]}, "repeats: must be None, 'auto' or the name of one table; found ['a', 'b']"),
        ({"max_time": 0}, "max_time: must be a positive number; found 0."),
        ({"max_time": "1"}, "max_time: must be a number; found '1'."),
        ({"random_state": "x"}, "random_state: must be None, a whole number from 0 or a numpy Generator; found 'x'."),
        ({"random_state": -1}, "random_state: must be None, a whole number from 0 or a numpy Generator; found -1."),
        ({"random_state": 1.0}, "random_state: must be None, a whole number from 0 or a numpy Generator; found 1.0."),
        ({"reference": "ward"}, "reference: must be one of the tables, 'clinic', 'lab'; found 'ward'."),
        ({"known_pairs": [(0, 9)]}, "known_pairs: must name rows that exist; lab has no row 9."),
        ({"known_pairs": [(0, 1), (0, 2)]}, "known_pairs: must name each row at most once"),
        ({"forbid": {"ward": []}}, "forbid: must name one of 'lab'; found 'ward'."),
        ({"known_pairs": [(1, 2)], "forbid": [(1, 2)]}, "forbid: must not name a known pair; rows (1, 2) are in both."),
        ({"within": "sex"}, "within: must name a column of clinic or lab; found 'sex'."),
        ({"shared": "names"}, "shared: must be 'auto', None, a list of column names or a mapping; found 'names'."),
        ({"shared": ["age"]}, "shared: must name numeric columns; clinic has no such column 'age'."),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        keyless.link(TWO, **options)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([], "tables: must be at least two; found 0."),
        ({"clinic": np.ones((2, 2))}, "tables: must be at least two; found 1."),
        ({"clinic": np.ones((2, 2)), "lab": np.ones(2)}, "lab: must be a table with rows and columns (2-D)"),
        ({"clinic": [["a"]], "lab": np.ones((1, 1))}, "clinic: must hold real numbers"),
        (np.ones((3, 2)), "tables: must be two or more, in a list or by name; found one ndarray."),
        (None, "tables: must be two or more, in a list or by name"),
    ],
)
def test_bad_tables_are_named(tables, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        keyless.link(tables)
    with pytest.raises(InputError, match="^" + re.escape(message)):
        TableLinker().fit(tables)


@pytest.mark.slow
def test_the_rank_can_be_set(data):
    links = keyless.link(data.tables, rank=2, effort="quick", random_state=0, max_time=10)
    assert links.choices["rank"] <= 2


def test_a_callback_can_stop_the_run(data):
    calls = []

    def stop(stage, *_):
        calls.append(stage)
        return True

    links = keyless.link(data.tables, callback=stop, random_state=0)
    assert links.status.reason == "stopped"
    assert links.evidence.verdict != "linked"
    assert links.permutations["table1"].shape == data.truth["table1"].shape
    assert len(calls) < 20


def test_progress_is_recorded(found):
    links = found
    stages = [record["stage"] for record in links.history]
    assert {"search", "chance", "matched"} <= set(stages)
    seconds = [record["seconds"] for record in links.history]
    assert seconds == sorted(seconds)


def test_canonical_correlations_fall(found):
    correlations = found.found["table1"].correlations
    assert (np.diff(correlations) <= 0).all()
    assert correlations[0] > 0.95
    assert (correlations >= 0).all()
    assert (correlations <= 1).all()


@pytest.mark.slow
def test_matches_of_unlinkable_tables_are_guesses():
    rng = np.random.default_rng(5)
    links = link_by(
        "pairs",
        [rng.normal(size=(40, 4)), rng.normal(size=(40, 4))],
        effort="quick",
        random_state=0,
    )
    assert links.evidence.verdict != "linked"
    matched, probability = links.matches["row_id"].notna(), links.matches["probability"]
    assert matched.any()
    assert (probability[matched] <= (0.5 if links.evidence.verdict == "uncertain" else 1 / 40)).all()
    # Of rows that are left over nothing is known: without a map, one row in ten has no partner, as before any search.
    assert (probability[~matched] <= 0.1 + 1e-9).all()


@pytest.mark.slow
def test_scales_may_be_given_by_column(data):
    right = pd.DataFrame(np.exp(data.tables["table1"]), columns=[f"r{k}" for k in range(12)])
    scales = {f"right:r{k}": "log" for k in range(6)} | {"r11": "rank"}
    tables = {"left": data.tables["reference"], "right": right}
    links = keyless.link(tables, scales=scales, effort="quick", random_state=0)
    chosen = links.choices["scales"]["right"]
    assert [chosen[f"r{k}"] for k in range(6)] == ["log"] * 6
    assert chosen["r11"] == "rank"
    np.testing.assert_array_equal(links.permutations["right"], data.truth["table1"])


@pytest.mark.slow
def test_rows_without_a_partner_are_noticed_among_equally_many():
    """Complete tables of equal size that share four fifths of their entities: nobody said so."""
    made = make_shuffled_tables(60, (18, 15), rank=4, noise=0.05, overlap=0.8, random_state=6)
    links = keyless.link(made.tables, effort="quick", random_state=0)
    assert links.choices["route"] == "pairs"
    assert links.evidence.verdict == "linked"
    assert (links.permutations["table1"] == made.truth["table1"]).mean() > 0.95
    everyone = keyless.link(made.tables, partners="all", effort="quick", random_state=0, max_time=10)
    assert sorted(everyone.permutations["table1"]) == list(range(60))


def test_what_was_set_is_recorded(data, found_gaps):
    links = keyless.link(data.tables, rank=4, partners="all", shared=None, effort="quick", random_state=0)
    assert links.choices["set"] == {"partners": "all", "rank": 4, "effort": "quick"}
    assert found_gaps.choices["set"] == {}


@pytest.fixture
def interruptible():
    """Python's own answer to Ctrl-C: processes that a shell starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_returns_the_best_so_far(data):
    stages = []

    def press(stage, *_):
        if not stages:
            signal.raise_signal(signal.SIGINT)
        stages.append(stage)

    links = keyless.link(data.tables, callback=press, random_state=0)
    assert links.status.reason == "stopped"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_interrupts(data):
    def press(*_):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        keyless.link(data.tables, callback=press, random_state=0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
