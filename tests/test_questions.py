"""Questions: which rows are asked for, and the link that starts from an earlier one with answers."""

from dataclasses import replace
from functools import partial
from itertools import product
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import keyless
from keyless.answers.answering import options_with
from keyless.answers.questions import design, settled_rows
from keyless.errors import InputError
from keyless.linking import Linking


def linked(tables, **options):
    return keyless.link(tables, random_state=0, **options)


def mirrored(seed=3, shapes=8):
    """Tables whose rows come in all mirror images of two factors, and the truth."""
    rng = np.random.default_rng(seed)
    signs = np.array(list(product((-1.0, 1.0), repeat=2)))
    points = (rng.normal(size=(shapes, 1, 2)) * signs).reshape(-1, 2)
    order = rng.permutation(len(points))
    first, second = (points @ rng.normal(size=(2, width)) for width in (6, 5))
    first, second = (table + 0.01 * rng.normal(size=table.shape) for table in (first, second))
    return {"a": first, "b": second[order]}, np.argsort(order)


@pytest.fixture(scope="module")
def symmetric():
    tables, truth = mirrored()
    return linked(tables), truth


@pytest.fixture(scope="module")
def strangers():
    """A link of tables that have nothing in common; ids are text."""
    rng = np.random.default_rng(5)
    tables = {
        "clinic": pd.DataFrame(rng.normal(size=(20, 4)), index=[f"P{i}" for i in range(20)], columns=list("uvwx")),
        "lab": pd.DataFrame(rng.normal(size=(18, 3)), index=[f"S{i}" for i in range(18)], columns=list("abc")),
    }
    return linked(
        tables,
        known_pairs=[("P3", "S10"), ("P17", "S2")],
        forbid=[("P1", "S1")],
        scales="identity",
        rank=2,
        effort="quick",
    )


def test_a_good_link_needs_no_answers(linked_by_hand):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 3))
    links = linked_by_hand({"a": values, "b": values}, [np.arange(12)], coupling=0.9995 * np.eye(12))
    for question in links.questions(3):
        # Whoever reviews a row is not told how likely its match is: that is in the candidates.
        assert question.why == "No answer is needed: even the least certain row that is left, this one, is nearly sure."
        assert question.candidates[0][2] > 0.999
        assert question.expected.endswith("the verdict stays linked.")


def test_where_entities_repeat_the_option_is_named_not_the_map(linked_by_hand):
    rng = np.random.default_rng(0)
    tables = {"visits": rng.normal(size=(12, 3)), "people": rng.normal(size=(6, 3))}
    links = linked_by_hand(tables, [np.r_[np.arange(6), np.full(6, -1)]], verdict="uncertain")
    found = links.found["people"]
    evidence = replace(found.evidence, doubt="repeats", repeated="left")
    for question in replace(links, found={"people": replace(found, evidence=evidence)}).questions(3):
        assert "map" not in question.why
        assert "the verdict stays uncertain whatever the answers are" in question.expected
        assert "link again with repeats='visits'" in question.expected


@pytest.fixture(scope="module")
def easy():
    tables, truth = keyless.datasets.make_shuffled_tables(40, (10, 8), rank=3, noise=0.02, random_state=1)
    return linked(tables), truth["table1"]


def told(links, kind="known"):
    return {name: sorted(map(tuple, pairs)) for name, pairs in links.choices["told"].get(kind, {}).items()}


# --- which rows ------------------------------------------------------------------------------------------------------


def test_a_design_raises_the_determinant_most_at_each_step(rng):
    scores, begun = rng.normal(size=(30, 4)), rng.normal(size=(2, 4))
    chosen = design(scores, 6, begun=begun).tolist()
    assert len(set(chosen)) == 6
    known = np.eye(4) + begun.T @ begun
    for best in chosen:
        gains = [np.linalg.slogdet(known + np.outer(row, row))[1] for row in scores]
        left = [gain for row, gain in enumerate(gains) if row not in chosen[: chosen.index(best)]]
        assert gains[best] == pytest.approx(max(left))
        known = known + np.outer(scores[best], scores[best])


def test_a_design_chooses_no_row_twice(rng):
    assert sorted(design(rng.normal(size=(3, 2)), 9, begun=np.empty((0, 2)))) == [0, 1, 2]


def test_settled_rows_are_counted_answer_by_answer(rng):
    partners = rng.dirichlet(np.full(6, 0.5), size=5)[:, :5] * (rng.random((5, 5)) < 0.8)
    for row, gain in enumerate(settled_rows(sparse.csr_array(partners))):
        expected = 1 - partners[row].max()
        for answer, chance in enumerate(partners[row]):
            for other in set(range(5)) - {row}:
                without = np.delete(partners[other], answer) / (1 - partners[other, answer])
                expected += chance * (without.max() - partners[other].max())
        assert gain == pytest.approx(expected)


def test_without_a_map_it_is_said_why_a_row_is_asked_for(strangers):
    asked = strangers.questions(4)
    assert [question.kind for question in asked] == ["map"] * 4
    assert len({question.row for question in asked}) == 4
    first = asked[0]
    assert (first.table, first.row_id) == ("lab", f"P{first.row}")
    assert "Which row of 'lab' is" in repr(first)
    assert first.why in repr(first)
    assert first.expected in repr(first)
    # Nothing is known of their partners.
    assert all(question.candidates == () for question in asked)


def test_without_a_map_rows_far_from_the_mean_are_asked_for_but_no_outliers(linked_by_hand):
    rng = np.random.default_rng(3)
    factors = rng.normal(size=(60, 3))
    factors -= factors.mean(axis=0)
    whitened = factors @ np.linalg.inv(np.linalg.cholesky(factors.T @ factors / 60)).T
    far = np.linalg.norm(whitened, axis=1)
    tables = {name: factors @ rng.normal(size=(3, 8)) + 0.01 * rng.normal(size=(60, 8)) for name in "ab"}
    links = linked_by_hand(tables, [np.full(60, -1)], verdict="unlinkable")
    asked = [question.row for question in links.questions(6)]
    assert np.median(far[asked]) > np.quantile(far, 0.7)
    assert far[asked].max() <= np.quantile(far, 0.9)
    # They differ from each other: no two lie in nearly the same direction.
    directions = whitened[asked[:3]] / far[asked[:3], None]
    assert np.abs(np.triu(directions @ directions.T, 1)).max() < 0.8
    # Outliers are asked for when no other row is left, and after these.
    order = np.argsort(far)
    rest = [question.row for question in links.questions(5, skip=order[:50].tolist())]
    assert set(rest[:4]) == set(order[50:54].tolist())
    assert rest[4] in order[54:]
    # Asking for more rows does not change which come first.
    assert [question.row for question in links.questions(58)][:6] == asked


def test_the_same_rows_are_asked_for_in_whatever_order_they_come(rng):
    tables = {"a": rng.normal(size=(16, 4)), "b": rng.normal(size=(15, 3))}
    order = rng.permutation(16)
    before, after = (linked({**tables, "a": a}, max_time=0.2).questions(4) for a in (tables["a"], tables["a"][order]))
    assert [question.row for question in before] == [int(order[question.row]) for question in after]


def own_factors_louder(seed, *, rows=120, common=4, own=4, times=4.0):
    """Tables in which the factors that each has for itself are the strongest, and the common factors."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(rows, common))
    tables = {}
    for name, width in (("a", 24), ("b", 20)):
        private = times * rng.normal(size=(rows, own)) @ rng.normal(size=(own, width))
        tables[name] = shared @ rng.normal(size=(common, width)) + private + 0.2 * rng.normal(size=(rows, width))
    return tables, shared


@pytest.mark.parametrize("seed", range(3))
def test_rows_asked_for_spread_over_common_factors_though_own_ones_are_louder(seed):
    tables, shared = own_factors_louder(seed)
    rows = [question.row for question in linked(tables, max_time=0.2).questions(10)]
    rng = np.random.default_rng(seed)

    def spread(some):
        return np.linalg.slogdet(np.eye(shared.shape[1]) + shared[some].T @ shared[some])[1]

    by_chance = [spread(rng.choice(len(shared), 10, replace=False)) for _ in range(500)]
    assert spread(rows) > np.quantile(by_chance, 0.95)
    # Rows that are far out in the table as it stands, where own factors are loudest, would do no better than chance.
    loudest = np.argsort(-np.sum((tables["a"] - tables["a"].mean(axis=0)) ** 2, axis=1))[:10]
    assert spread(rows) > spread(loudest)


def test_no_row_is_asked_for_again_once_it_is_answered(strangers):
    first = strangers.questions(1)[0].row_id
    known = {first, "P3", "P17"}
    assert len(known) == 3
    after = strangers.answer([(first, "S3")])
    assert {question.row_id for question in after.questions(100)} == {f"P{i}" for i in range(20)} - known


def test_known_rows_and_rows_passed_over_are_not_asked_for(strangers):
    every = {question.row_id for question in strangers.questions(100)}
    assert every == {f"P{i}" for i in range(20)} - {"P3", "P17"}
    first = strangers.questions(1)[0].row_id
    assert {question.row_id for question in strangers.questions(100, skip=[first])} == every - {first}
    assert strangers.questions(3, skip=strangers.tables[0].row_ids) == []


def test_an_answer_settles_a_symmetry(symmetric):
    links, truth = symmetric
    assert links.evidence.ambiguous
    first = links.questions(1)[0]
    assert first.kind == "symmetry"
    # A mirror image of a row far from both mirror planes is another row.
    positions = np.linalg.svd(links.tables[0].block.values, full_matrices=False)[0][:, :2]
    assert np.abs(positions[first.row]).min() > np.median(np.abs(positions).min(axis=1))
    after = links.answer([(first.row_id, int(truth[first.row]))])
    assert after.evidence.verdict == "linked"
    np.testing.assert_array_equal(after.permutations["b"], truth)


def test_images_of_a_map_that_is_not_clear_of_chance_are_not_told_apart(symmetric):
    links, _ = symmetric
    found = links.found["b"]
    unclear = replace(found, evidence=replace(found.evidence, belief=0.2))
    assert {question.kind for question in replace(links, found={"b": unclear}).questions(3)} == {"map"}


@pytest.mark.soak
def test_no_answer_makes_a_wrong_mirror_image_linked(symmetric):
    links, truth = symmetric
    verdicts = []
    for row in range(0, len(truth), 4):
        after = links.answer([(row, int(truth[row]))])
        verdicts.append(after.evidence.verdict)
        assert after.evidence.verdict != "linked" or np.mean(after.permutations["b"] == truth) > 0.9
    assert verdicts.count("linked") >= 4


def test_look_alikes_are_asked_for_once_a_group(easy):
    links, _ = easy
    # Rows 0 to 3 are likely partners of each other, 4 and 5 too, 6 is in some doubt, all others are sure.
    partners = np.eye(40)
    partners[:4, :4], partners[4:6, 4:6] = 0.25, 0.5
    partners[6, 6] = 0.95
    partners[7, 7] = 0.0  # surely nobody's partner
    link = links.found["table1"]
    doubtful = replace(
        link,
        coupling=partners,
        alone=1 - partners.sum(axis=1),
        permutation=np.arange(40),
        probability=partners.diagonal(),
        evidence=replace(link.evidence, verdict="uncertain", doubt="rows"),
    )
    asked = replace(links, found={"table1": doubtful}).questions(5)
    assert {question.kind for question in asked} == {"look-alikes"}
    # Of four that are alike three must be told, of two one.
    assert sorted(question.row < 4 for question in asked) == [False, False, True, True, True]
    assert sum(question.row in (4, 5) for question in asked) == 1
    assert asked[-1].row == 6
    assert [chance for *_, chance in asked[0].candidates] == [0.25] * 4


@pytest.mark.soak
def test_several_tables_take_turns():
    made = keyless.datasets.make_shuffled_tables(30, (8, 7, 6), rank=3, noise=0.02, random_state=2)
    links = linked(made.tables)
    assert {question.table for question in links.questions(2)} == {"table1", "table2"}
    assert [question.table for question in links.questions(3, table="table2")] == ["table2"] * 3
    answered = links.answer([("table2", 0, int(made.truth["table2"][0]))])
    assert told(answered) == {"table2": [(0, made.truth["table2"][0])]}


# --- answers ---------------------------------------------------------------------------------------------------------


def test_what_was_known_and_set_is_kept(strangers, tmp_path):
    assert told(strangers) == {"lab": [(3, 10), (17, 2)]}
    strangers.save(tmp_path / "run.keyless")
    for links in (strangers, keyless.load(tmp_path / "run.keyless")):
        after = links.answer([("P5", "S7")], [("P6", "S8")])
        assert told(after) == {"lab": [(3, 10), (5, 7), (17, 2)]}
        assert told(after, "forbidden") == {"lab": [(1, 1), (6, 8)]}
        assert after.permutations["lab"][[3, 5, 17]].tolist() == [10, 7, 2]
        assert after.choices["set"] == strangers.choices["set"]
        assert after.seed == strangers.seed
        assert {*after.choices["scales"]["lab"].values()} == {"identity"}


@pytest.mark.slow
def test_an_answer_is_the_same_as_linking_with_all_pairs(symmetric):
    links, truth = symmetric
    pairs = [(row, int(truth[row])) for row in (1, 2, 6)]
    after = links.answer(pairs[:1]).answer(pairs[1:])
    anew = linked({table.name: table.block.values for table in links.tables}, known_pairs=pairs)
    np.testing.assert_array_equal(after.permutations["b"], anew.permutations["b"])
    assert after.evidence.verdict == anew.evidence.verdict


def test_a_later_answer_replaces_an_earlier_one(strangers):
    after = strangers.answer([("P3", "S11"), ("P1", "S1")], [("P17", "S2")])
    assert told(after) == {"lab": [(1, 1), (3, 11)]}
    assert told(after, "forbidden") == {"lab": [(17, 2)]}
    moved = after.answer([("P9", "S11")])
    assert told(moved) == {"lab": [(1, 1), (9, 11)]}


@pytest.mark.parametrize(
    "pairs",
    [
        [("P5", "S7")],
        [("lab", "P5", "S7")],
        {"lab": [("P5", "S7")]},
        pd.DataFrame({"reference_id": ["P5"], "table": ["lab"], "row_id": ["S7"]}),
    ],
)
def test_answers_come_in_the_forms_of_known_pairs(strangers, pairs):
    assert told(strangers.answer(pairs))["lab"] == [(3, 10), (5, 7), (17, 2)]


@pytest.mark.slow
def test_the_search_begins_from_a_map_that_was_believed(easy, strangers):
    links, truth = easy
    with mock.patch("keyless.linking.Linking", partial(Linking, way="pairs")):
        after = links.answer([(0, int(truth[0]))])
        against = links.answer([(0, int(truth[1])), (1, int(truth[0]))])
        guess = strangers.answer([])
    # Where answers contradict the map, another one is sought.
    assert not any(start["start"].startswith("earlier link") for start in against.starts)
    assert links.evidence.believed
    assert after.starts[0]["start"].startswith("earlier link")
    np.testing.assert_array_equal(after.permutations["table1"], truth)
    assert not any(start["start"].startswith("earlier link") for start in guess.starts)


def test_rows_of_one_entity_have_one_partner(strangers):
    twice = [("P5", "S7"), ("P6", "S7")]
    repeating = replace(strangers, choices={**strangers.choices, "set": {"repeats": "clinic"}})
    assert options_with(repeating, twice, None).known_pairs == {"lab": [("P3", "S10"), ("P17", "S2"), *twice]}


def test_progress_is_reported_and_can_be_stopped(strangers):
    stages = []
    stopped = strangers.answer([], callback=lambda stage, *_: bool(stages.append(stage)) or True)
    assert stages
    assert stopped.status.reason == "stopped"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda links: links.questions(0), "k: must be"),
        (lambda links: links.questions(table="clinic"), "table: must be one of 'lab'; found 'clinic'."),
        (lambda links: links.questions(skip="P1"), "skip: must be a list of ids of reference rows; found 'P1'."),
        (lambda links: links.questions(skip=["P99"]), "skip: must be the id of a row of clinic"),
        (lambda links: links.answer([("P99", "S1")]), "pairs: must name rows that exist; clinic has no row 'P99'."),
        (lambda links: links.answer([("P5", None)]), "pairs: must name a row of lab in every pair"),
        (lambda links: links.answer([("P5", "S7"), ("P5", "S8")]), "once; row 'P5' of clinic has two partners."),
        (lambda links: links.answer([("P5", "S7"), ("P6", "S7")]), "once; row 'S7' of lab has two partners."),
        (
            lambda links: links.answer([("P5", "S7")], [("P5", "S7")]),
            "not_pairs: must not name a pair that pairs names, too; found ('P5', 'S7').",
        ),
        (lambda links: links.answer([("ward", "P5", "S7")]), "pairs: must name one of 'lab'; found 'ward'."),
        (
            lambda links: replace(links, choices={"set": {"bogus": 1}}).answer([]),
            "answer: must start from a link that this version of keyless made; this one has the option 'bogus'",
        ),
    ],
)
def test_what_cannot_be_asked_or_answered_is_said(strangers, call, message):
    with pytest.raises(InputError) as error:
        call(strangers)
    assert message in str(error.value)
