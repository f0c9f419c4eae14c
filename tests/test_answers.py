"""Who else, where to cut, how good: against sums and counts written out by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from scipy.stats import binomtest

import keyless
from keyless.answers.distributions import distribution, soft_answers
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.evidence import Evidence
from keyless.links import TableLink

VERDICTS = ("linked", "uncertain", "unlinkable")


def table_link(rng, *, rows=12, columns=9, verdict="linked", empty=()):
    """A link with rows without a partner, rows without a coupling, and probabilities of their own."""
    coupling = rng.random((rows, columns)) ** 4
    coupling[rng.random(coupling.shape) < 0.3] = 0
    coupling /= np.maximum(coupling.sum(axis=1, keepdims=True) * rng.uniform(1, 1.5, (rows, 1)), 1e-9)
    coupling[list(empty)] = 0
    permutation = np.full(rows, -1)
    chosen = rng.permutation(rows)[: columns - 2]
    permutation[chosen] = rng.permutation(columns)[: len(chosen)]
    evidence = Evidence(verdict, 5.5, (1.0,), 3.0, 1.0, 3)
    return TableLink(permutation, rng.random(rows), np.zeros(rows), coupling, evidence)


# --- one distribution per row ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("seed", range(5))
def test_every_row_has_one_distribution(seed, verdict):
    link = table_link(np.random.default_rng(seed), verdict=verdict, empty=(0, 3))
    partners, nobody = distribution(link)
    assert partners.min() >= 0
    assert nobody.min() >= 0
    np.testing.assert_allclose(partners.sum(axis=1) + nobody, 1.0, atol=1e-12)
    matched = np.flatnonzero(link.permutation >= 0)
    np.testing.assert_allclose(partners[matched, link.permutation[matched]], link.probability[matched])
    alone = np.flatnonzero((link.permutation < 0) & (link.coupling.sum(axis=1) > 0))
    np.testing.assert_allclose(nobody[alone], link.probability[alone])
    before = link.coupling.copy()
    distribution(link)
    np.testing.assert_array_equal(link.coupling, before)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_sparse_and_dense_say_the_same(verdict):
    link = table_link(np.random.default_rng(7), verdict=verdict, empty=(2,))
    dense, nobody = distribution(link)
    thin, thin_nobody = distribution(replace(link, coupling=sparse.csr_array(link.coupling)))
    assert sparse.issparse(thin)
    np.testing.assert_allclose(thin.toarray(), dense)
    np.testing.assert_allclose(thin_nobody, nobody)


def test_others_share_what_is_left_in_proportion_to_the_coupling():
    evidence = Evidence("linked", 5.5, (1.0,), 3.0, 1.0, 3)
    coupling = np.array([[0.5, 0.2, 0.1], [0.3, 0.1, 0.1]])
    link = TableLink(np.array([0, -1]), np.array([0.6, 0.9]), np.zeros(2), coupling, evidence)
    partners, nobody = distribution(link)
    # 0.4 are left for 0.2, 0.1 and "nobody" 0.2; 0.1 for 0.3, 0.1 and 0.1.
    np.testing.assert_allclose(partners, [[0.6, 0.16, 0.08], [0.06, 0.02, 0.02]])
    np.testing.assert_allclose(nobody, [0.16, 0.9])
    blind = replace(link, evidence=replace(evidence, verdict="unlinkable"))
    np.testing.assert_allclose(distribution(blind)[0], [[0.6, 0.2, 0.2], [0.1 / 3] * 3])


def test_a_link_that_knows_its_distribution_is_taken_at_its_word():
    evidence = Evidence("linked", 5.5, (1.0,), 3.0, 1.0, 3)
    coupling, alone = np.array([[0.7, 0.1], [0.05, 0.15]]), np.array([0.2, 0.8])
    link = TableLink(np.array([0, -1]), np.array([0.7, 0.8]), np.zeros(2), coupling, evidence, alone=alone)
    partners, nobody = distribution(link)
    np.testing.assert_allclose(partners, coupling)
    np.testing.assert_allclose(nobody, alone)
    assert partners is not coupling


def test_weights_that_are_rounding_are_nobodys():
    evidence = Evidence("linked", 5.5, (1.0,), 3.0, 1.0, 3)
    coupling = np.array([[1.0, 5e-324], [1e-320, 1.0]])
    link = TableLink(np.array([0, 1]), np.array([0.999, 1.0]), np.zeros(2), coupling, evidence)
    partners, nobody = distribution(link)
    np.testing.assert_allclose(partners, [[0.999, 0.0], [0.0, 1.0]], atol=1e-12)
    np.testing.assert_allclose(nobody, [0.001, 0.0], atol=1e-12)


def test_seen_from_the_table_rows_sum_to_1_too():
    link = table_link(np.random.default_rng(3))
    partners, nobody = soft_answers(link, by_column=True)
    assert partners.shape == (9, 12)
    np.testing.assert_allclose(np.asarray(partners.sum(axis=1)).ravel() + nobody, 1.0)


# --- candidates ------------------------------------------------------------------------------------------------------


def test_candidates_are_the_largest_of_the_distribution(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    found = links.candidates(k=3)
    assert list(found.columns) == ["reference_id", "table", "rank", "row_id", "probability"]
    for name, link in links.found.items():
        partners, nobody = distribution(link)
        ids = np.array(links.tables[links._number(name)].row_ids)
        for i, label in enumerate(links.tables[0].row_ids):
            lines = found[(found["table"] == name) & (found["reference_id"] == label)]
            assert lines["rank"].tolist() == list(range(1, len(lines) + 1))
            assert lines["probability"].is_monotonic_decreasing
            assert lines["row_id"].isna().sum() == 1
            assert lines.loc[lines["row_id"].isna(), "probability"].item() == pytest.approx(nobody[i])
            real = lines[lines["row_id"].notna()]
            best = np.argsort(-partners[i], kind="stable")[:3]
            best = best[partners[i, best] > 0]
            assert real["row_id"].tolist() == ids[best].tolist()
            np.testing.assert_allclose(real["probability"], partners[i, best])
    everyone = links.candidates(k=999)
    np.testing.assert_allclose(everyone.groupby(["table", "reference_id"])["probability"].sum(), 1.0)
    assert set(links.candidates(table="watch")["table"]) == {"watch"}


def test_candidates_come_as_the_callers_frames(linked_by_hand):
    rng = np.random.default_rng(0)
    frames = {name: pl.DataFrame(rng.normal(size=(6, 3))) for name in "ab"}
    found = linked_by_hand(frames, [[0, 1, 2, 3, 4, -1]]).candidates(2)
    assert isinstance(found, pl.DataFrame)
    assert found["row_id"].null_count() == 6
    arrays = linked_by_hand([rng.normal(size=(6, 3)), rng.normal(size=(5, 3))], [[0, 1, 2, 3, 4, -1]]).candidates(1)
    assert arrays["row_id"].dtype == "Int64"


def test_bad_candidates_are_named(clinic_lab_and_watch):
    with pytest.raises(InputError, match=r"^k: must be a whole number of at least 1; found 0\.$"):
        clinic_lab_and_watch.candidates(0)
    with pytest.raises(InputError, match=r"^table: must be one of 'lab', 'watch'; found 'ward'\.$"):
        clinic_lab_and_watch.candidates(table="ward")


# --- threshold -------------------------------------------------------------------------------------------------------


def with_probability(links, probability, permutation=None):
    (name, link), *_ = links.found.items()
    permutation = np.arange(len(probability)) if permutation is None else np.asarray(permutation)
    coupling = np.zeros((len(permutation), len(permutation)))
    changed = replace(link, probability=np.asarray(probability), permutation=permutation, coupling=coupling)
    return replace(links, found={name: changed})


@pytest.fixture(scope="module")
def eight(linked_by_hand):
    rng = np.random.default_rng(0)
    return linked_by_hand({"a": rng.normal(size=(8, 3)), "b": rng.normal(size=(8, 3))}, [np.arange(8)])


@pytest.mark.parametrize("precision", [0.0, 0.5, 0.75, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_keeps_as_many_as_the_precision_allows(eight, seed, precision):
    probability = np.random.default_rng(seed).choice([0.2, 0.5, 0.7, 0.9, 0.97, 1.0], 8)
    found = with_probability(eight, probability).threshold(precision)
    # Every cut there could be, tried out.
    cuts = {cut: probability[probability >= cut] for cut in np.unique(probability)}
    good = [cut for cut, kept in cuts.items() if kept.mean() >= precision]
    if good:
        assert found.probability == min(good)
        assert found.rows == len(cuts[min(good)])
        assert found.precision == pytest.approx(cuts[min(good)].mean())
    else:
        assert (found.rows, found.probability) == (0, 1.0)
    assert found.of == 8
    joined = with_probability(eight, probability).joined(how="inner", min_probability=found.probability)
    assert len(joined) == found.rows


def test_rows_without_a_partner_are_no_matches(eight):
    links = with_probability(eight, [0.99, 0.9, 0.99, 0.99, 0.6, 0.6, 0.6, 0.6], [0, 1, -1, -1, -1, -1, -1, -1])
    assert links.threshold(0.94).rows == links.threshold(0.94).of == 2
    assert "2 of 2 matches remain" in repr(links.threshold(0.94))
    assert "none of 2 matches remain" in repr(links.threshold(1.0))


def test_bad_precision_is_named(eight):
    with pytest.raises(InputError, match=r"^precision: must lie between 0 and 1; found 95\.$"):
        eight.threshold(95)
    with pytest.raises(InputError, match=r"^table: must be one of 'b'; found 'c'\.$"):
        eight.threshold(table="c")


# --- score -----------------------------------------------------------------------------------------------------------


def test_the_score_counts_what_is_right(eight):
    links = with_probability(eight, [0.95, 0.95, 0.6, 0.4, 0.995, 0.3, 0.7, 0.9], [0, 1, 3, 2, 4, -1, -1, 5])
    # Known: 0–0, 1–1, 2–2 (matched to 3), 5–6 (not matched), 6 has nobody (right), 7 has nobody (matched to 5).
    score = links.score_against([(0, 0), (1, 1), (2, 2), (5, 6), (6, None), (7, None)])
    assert (score.precision.count, score.precision.of) == (2, 4)
    assert (score.recall.count, score.recall.of) == (2, 4)
    assert score.stated == pytest.approx((0.95 + 0.95 + 0.6 + 0.9) / 4)
    for rate in (score.precision, score.recall):
        exact = binomtest(rate.count, rate.of).proportion_ci(0.95, method="exact")
        assert (rate.low, rate.high) == pytest.approx((exact.low, exact.high))
    bands = score.calibration.set_index("from")
    assert bands.loc[0.9, ["rows", "right"]].tolist() == [3, pytest.approx(2 / 3)]
    assert bands.loc[0.5, ["rows", "right"]].tolist() == [1, 0]
    assert score.calibration_error == pytest.approx((3 * abs(2.8 / 3 - 2 / 3) + 0.6) / 4)
    stricter = links.score_against([(0, 0), (1, 1), (2, 2), (5, 6)], min_probability=0.9)
    assert (stricter.precision.count, stricter.precision.of, stricter.recall.of) == (2, 2, 4)


def test_forms_of_the_answer_are_the_same(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    scores = [
        links.score_against({name: permutation.copy() for name, permutation in links.permutations.items()}),
        links.score_against(links.matches),
        links.score_against({name: part[["reference_id", "row_id"]] for name, part in links.matches.groupby("table")}),
    ]
    for score in scores:
        assert score.precision.share == score.recall.share == 1.0
        assert (score.precision.of, score.recall.of) == (110, 110)


def test_probabilities_are_told_to_be_too_high_or_too_low(eight):
    pairs = [(i, i) for i in range(8)]
    assert "which agrees" in repr(with_probability(eight, np.full(8, 0.95)).score_against(pairs))
    assert "which is too low" in repr(with_probability(eight, np.full(8, 0.2)).score_against(pairs))
    wrong = [(i, (i + 1) % 8) for i in range(8)]
    assert "which is too high" in repr(with_probability(eight, np.full(8, 0.9)).score_against(wrong))
    nothing = repr(with_probability(eight, np.full(8, 0.9), np.full(8, -1)).score_against(pairs))
    assert "none to count" in nothing
    assert "nan" not in nothing


def test_bad_pairs_to_score_are_named(eight):
    with pytest.raises(InputError, match=r"^pairs: must name rows that exist; a has no row '3'\. Did you mean 3"):
        eight.score_against([("3", 3)])
    with pytest.raises(InputError, match=r"^pairs: must be pairs of ids, or for each of the 8 reference rows"):
        eight.score_against(np.arange(7))


def test_the_score_of_a_search_agrees_with_the_metrics():
    data = make_shuffled_tables((60, 50), (14, 12), rank=3, random_state=2)
    links = keyless.link(data.tables, random_state=0)
    truth, found = data.truth["table1"], links.permutations["table1"]
    score = links.score_against(truth)
    expected = keyless.metrics.link_scores(found, truth)
    assert (score.precision.share, score.recall.share) == pytest.approx((expected.precision, expected.recall))
    frame = pd.DataFrame({"reference_id": np.arange(60), "row_id": np.where(truth < 0, np.nan, truth)})
    assert links.score_against(frame).precision == score.precision


def test_a_result_full_of_nan_still_answers(hostile_links):
    name = next(iter(hostile_links.found))
    assert hostile_links.candidates()["probability"].between(0, 1).all()
    assert hostile_links.threshold().rows == 0
    assert len(hostile_links.joined(indicator=True, how="outer")) == len(hostile_links.tables[0].row_ids)
    assert np.isfinite(hostile_links.explain().ratio[name])
    assert len(repr(hostile_links.explain(hostile_links.tables[0].row_ids[0]))) < 3000
