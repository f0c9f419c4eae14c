"""Several rows of one entity: noticed, never linked in silence, and matched many to one when asked for."""

import numpy as np
import pytest
from scipy import sparse

import keyless
from keyless.datasets import make_shuffled_tables
from keyless.engine import best_rivals, repeated_side, shared_partners
from keyless.engine.repeats import seem_repeated
from keyless.pairs.limits import Limits
from keyless.report import render


def repeated(times, *, rows=160, noise=0.15, seed=0):
    """Return a table that has every entity `times` times, one that has it once, and the partner of each row."""
    made = make_shuffled_tables(rows, (16, 12), rank=4, noise=0.1, random_state=seed)
    rng = np.random.default_rng(seed)
    entity = rng.permutation(np.repeat(np.arange(rows), times))
    many = np.asarray(made.tables["reference"])[entity]
    many = many + noise * many.std(axis=0) * rng.normal(size=many.shape)
    return {"visits": many, "people": np.asarray(made.tables["table1"])}, made.truth["table1"][entity]


@pytest.mark.parametrize("reference", ["visits", pytest.param("people", marks=pytest.mark.slow)])
def test_without_being_told_such_tables_are_not_linked_in_silence(reference):
    tables, _ = repeated(3)
    links = keyless.link(tables, reference=reference, random_state=0)
    assert (links.evidence.verdict, links.evidence.doubt, links.repeated) == ("uncertain", "repeats", "visits")
    assert "repeats=&#39;visits&#39;" in render(links)
    assert "seems to hold several rows of one entity" in links._repr_html_()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"repeats": "visits"}, marks=pytest.mark.slow),
        pytest.param({"repeats": "auto", "reference": "people"}, marks=pytest.mark.soak),
    ],
)
def test_every_row_gets_its_own_partner(options, tmp_path):
    tables, truth = repeated(3)
    links = keyless.link(tables, random_state=0, **options)
    assert (links.evidence.verdict, links.reference, links.repeated) == ("linked", "visits", None)
    found = links.permutations["people"]
    right = (found == truth)[found >= 0]
    assert np.mean(found == truth) > 0.9
    stated = links.matches["probability"].to_numpy()[found >= 0]
    # Four standard errors of the number of right ones.
    assert abs(right.sum() - stated.sum()) < 4 * np.sqrt(np.sum(stated * (1 - stated)) + 1)
    assert len(links.joined()) == len(truth)
    links.save(tmp_path / "run.keyless")
    np.testing.assert_array_equal(keyless.load(tmp_path / "run.keyless").permutations["people"], found)
    assert "visits" in render(links)


@pytest.mark.parametrize(
    ("rows", "noise"),
    [(60, 0.0), pytest.param(100, 0.0, marks=pytest.mark.slow), pytest.param(100, 0.3, marks=pytest.mark.slow)],
)
def test_few_entities_and_exact_copies_are_linked_when_told(rows, noise):
    tables, truth = repeated(3, rows=rows, noise=noise)
    links = keyless.link(tables, repeats="visits", random_state=0)
    assert links.evidence.verdict == "linked"
    found = links.permutations["people"]
    assert np.mean((found == truth)[found >= 0]) > 0.85


def test_exact_copies_are_noticed():
    tables, _ = repeated(3, rows=60, noise=0.0)
    links = keyless.link(tables, random_state=0)
    assert (links.evidence.verdict, links.evidence.doubt, links.repeated) == ("uncertain", "repeats", "visits")


def test_rows_that_fit_a_taken_partner_seem_repeated():
    ratios = np.full((6, 4), -9.0)
    ratios[[0, 1, 2, 3], [0, 1, 2, 3]] = 9.0
    ratios[4, 1] = 8.0
    permutation = np.array([0, 1, 2, 3, -1, -1])
    left, right = seem_repeated(ratios, permutation)
    assert left.tolist() == [False, False, False, False, True, False]
    assert not right.any()
    nobody = seem_repeated(ratios, np.full(6, -1))
    assert not nobody[0].any()
    assert not nobody[1].any()


@pytest.mark.slow
def test_rows_without_a_partner_are_no_repeats():
    made = make_shuffled_tables(120, (16, 12), rank=4, noise=0.1, overlap=0.6, random_state=1)
    links = keyless.link(made.tables, random_state=0)
    assert links.evidence.verdict == "linked"
    assert links.repeated is None
    assert keyless.link(made.tables, repeats="auto", random_state=0).reference == "reference"


def test_known_pairs_may_name_a_partner_twice():
    tables, truth = repeated(2)
    rows = np.flatnonzero(truth == truth[0])
    pairs = [(int(row), int(truth[row])) for row in rows]
    links = keyless.link(tables, repeats="visits", known_pairs=pairs, random_state=0)
    np.testing.assert_array_equal(links.permutations["people"][rows], truth[rows])
    np.testing.assert_array_equal(links.found["people"].probability[rows], 1.0)
    with pytest.raises(keyless.InputError, match="at most once"):
        keyless.link(tables, known_pairs=pairs)


def test_the_repeated_table_is_the_reference():
    tables, _ = repeated(2, rows=20)
    with pytest.raises(keyless.InputError, match="repeats: must be the same table as reference"):
        keyless.link(tables, reference="people", repeats="visits")
    with pytest.raises(keyless.InputError, match=r"^repeats: must be 'auto' or one of .*'people'.*; found 'nobody'\.$"):
        keyless.link(tables, repeats="nobody")


@pytest.mark.parametrize("listed", [False, True])
def test_probabilities_follow_from_the_formula(rng, listed):
    ratios = rng.normal(0, 4, size=(30, 12))
    limits = Limits(ratios.shape)
    found = shared_partners(sparse.csr_array(ratios) if listed else ratios, limits=limits, every_row=None)
    pairs = found.pairs.toarray() if listed else found.pairs
    share = pairs.sum() / len(ratios)
    for row in range(30):
        weights = share / 12 * np.exp(ratios[row])
        np.testing.assert_allclose(pairs[row], weights / (1 - share + weights.sum()), rtol=1e-3, atol=1e-9)
    best = pairs.argmax(axis=1)
    np.testing.assert_array_equal(found.permutation, np.where(pairs.max(axis=1) >= 0.5, best, -1))
    everybody = shared_partners(ratios, limits=limits, every_row=True)
    np.testing.assert_allclose(everybody.pairs.sum(axis=1), 1.0)
    np.testing.assert_array_equal(everybody.permutation, ratios.argmax(axis=1))


def test_rivals_are_the_best_of_all_others(rng):
    ratios = rng.normal(size=(6, 5))
    permutation = np.array([3, -1, 0, 1, -1, 4])
    dense, listed = best_rivals(ratios, permutation), best_rivals(sparse.csr_array(ratios), permutation)
    for row in range(6):
        assert dense[0][row] == max(ratios[row, k] for k in range(5) if k != permutation[row])
    for column in range(5):
        assert dense[1][column] == max(ratios[k, column] for k in range(6) if permutation[k] != column)
    np.testing.assert_array_equal(dense[0], listed[0])
    np.testing.assert_array_equal(dense[1], listed[1])


def test_as_many_stolen_partners_as_mistakes_explain_are_no_repeats():
    """Rows whose partner another row holds: without mistakes they are repeats, with as many mistakes they are not."""
    permutation = np.concatenate([np.arange(100), np.full(20, -1)])
    rivals = np.concatenate([np.zeros(100), np.full(20, 9.0)]), np.zeros(100)
    assert repeated_side(permutation, np.ones(120), rivals) == "left"
    assert repeated_side(permutation, np.full(120, 0.8), rivals) == ""
