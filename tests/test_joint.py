"""Any number of tables linked together: the right answer, the laws, what the caller knows, odd tables, time limits."""

import time

import numpy as np
import pytest

from keyless.errors import InputError
from keyless.joint import JointLink, link_tables
from keyless.joint.knowledge import Knowledge, implied
from keyless.joint.linking import convincing, freedom_of_choice
from keyless.joint.matching import match
from keyless.joint.ordering import Arrangement, TableOrder
from keyless.likelihood import FORBIDDEN
from keyless.pairs.constraints import Constraints
from keyless.progress import Deadline


def standardised(values, mask):
    values = np.where(mask, values, 0.0)
    count = np.maximum(mask.sum(axis=0), 1)
    values = np.where(mask, values - values.sum(axis=0) / count, 0.0)
    spread = np.sqrt((values**2).sum(axis=0) / count)
    return np.where(spread > 0, values / np.where(spread > 0, spread, 1.0), 0.0)


def make_tables(seed, rows, columns, *, rank=3, noise=0.1, observed=1.0, entities=None):
    """Tables of one low-rank matrix; entities[t] = which entities table t has. truth[l][i] = row of table l + 1."""
    rng = np.random.default_rng(seed)
    entities = entities or [np.arange(rows)] * len(columns)
    whole = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, sum(columns)))
    whole += noise * rng.normal(size=whole.shape)
    seen = rng.random(whole.shape) < observed
    edges = np.cumsum([0, *columns])
    tables, places = [], []
    for t, known in enumerate(entities):
        order = rng.permutation(known)
        part = slice(edges[t], edges[t + 1])
        tables.append((standardised(whole[order, part], seen[order, part]), seen[order, part]))
        place = np.full(rows, -1)
        place[order] = np.arange(len(order))
        places.append((order, place))
    return tables, [place[places[0][0]] for _, place in places[1:]]


def wrong(found, truth):
    return sum(int((p != t).sum()) for p, t in zip(found.permutations, truth, strict=True))


@pytest.fixture(scope="module")
def three():
    """Three small tables with missing entries, their truth, and what was found."""
    tables, truth = make_tables(5, 40, (14, 9, 11), observed=0.8)
    return tables, truth, link_tables(tables)


@pytest.mark.parametrize("seed", [11, 12])
def test_the_papers_first_setting_is_solved(seed):
    tables, truth = make_tables(seed, 100, (40, 30, 30), rank=5, observed=0.4)
    found = link_tables(tables)
    assert wrong(found, truth) == 0
    assert found.model.rank == 5
    assert found.convincing
    assert found.status.converged
    assert not found.may_be_alone


def test_the_result_is_consistent(three):
    _, truth, found = three
    assert isinstance(found, JointLink)
    assert wrong(found, truth) == 0
    assert len(found.rows) == 3
    np.testing.assert_array_equal(found.rows[0], np.arange(40))
    for t, (permutation, coupling, log_ratio) in enumerate(
        zip(found.permutations, found.couplings, found.log_ratios, strict=True), start=1
    ):
        np.testing.assert_array_equal(found.rows[t], permutation)
        assert coupling.shape == log_ratio.shape == (40, 40)
        np.testing.assert_array_equal(coupling.argmax(axis=1), permutation)
        np.testing.assert_allclose(coupling.sum(axis=1), 1, atol=1e-3)
        assert log_ratio[np.arange(40), permutation].min() > np.median(log_ratio)
    assert found.model.loadings.shape[0] == 34
    assert 0.8 * found.expected_score < found.score < 1.3 * found.expected_score
    assert {frozenset(sum(start.pair, ())) for start in found.starts} >= {frozenset({0, 1}), frozenset({0, 1, 2})}
    assert all(np.isfinite(start.score) and start.name for start in found.starts)


def test_the_model_is_about_the_columns_as_given(three):
    """Latents from the reference alone must predict the other tables' entries, signs and order included."""
    tables, truth, found = three
    values = np.concatenate([tables[0][0], *(t[0][p] for t, p in zip(tables[1:], truth, strict=True))], axis=1)
    mask = np.concatenate([tables[0][1], *(t[1][p] for t, p in zip(tables[1:], truth, strict=True))], axis=1)
    model = found.model
    latents = np.linalg.lstsq(model.loadings, (values * mask - model.offsets).T, rcond=None)[0].T
    guess = latents @ model.loadings.T + model.offsets
    assert np.corrcoef(guess[mask], values[mask])[0, 1] > 0.9


def test_rows_only_relabel_the_answer(three):
    tables, _, found = three
    rng = np.random.default_rng(0)
    orders = [rng.permutation(40) for _ in tables]
    moved = link_tables([(v[order], m[order]) for (v, m), order in zip(tables, orders, strict=True)])
    for t in range(1, 3):
        expected = np.argsort(orders[t])[found.permutations[t - 1][orders[0]]]
        np.testing.assert_array_equal(moved.permutations[t - 1], expected)
        np.testing.assert_array_equal(moved.couplings[t - 1], found.couplings[t - 1][np.ix_(orders[0], orders[t])])
        np.testing.assert_array_equal(moved.log_ratios[t - 1], found.log_ratios[t - 1][np.ix_(orders[0], orders[t])])
    assert moved.score == found.score


def test_columns_and_their_signs_change_nothing(three):
    tables, _, found = three
    rng = np.random.default_rng(1)
    moved, where, start = [], [], 0
    for values, mask in tables:
        order = rng.permutation(values.shape[1])
        moved.append((values[:, order] * rng.choice([-1.0, 1.0], len(order)), mask[:, order]))
        where.append(start + order)
        start += len(order)
    again = link_tables(moved)
    for a, b in zip(again.couplings, found.couplings, strict=True):
        np.testing.assert_array_equal(a, b)
    columns = np.concatenate(where)
    np.testing.assert_array_equal(np.abs(again.model.loadings), np.abs(found.model.loadings[columns]))
    np.testing.assert_array_equal(again.model.noise, found.model.noise[columns])


@pytest.mark.parametrize(
    "order", [(0, 2, 1), *(pytest.param(order, marks=pytest.mark.slow) for order in [(1, 0, 2), (2, 1, 0), (1, 2, 0)])]
)
def test_the_order_of_tables_only_relabels_the_answer(three, order):
    tables, _, found = three
    moved = link_tables([tables[t] for t in order])
    np.testing.assert_array_equal(_entities(moved.rows), _entities([found.rows[t] for t in order]))
    assert moved.score == pytest.approx(found.score, rel=1e-12)
    assert moved.status == found.status
    if order[0] == 0:
        np.testing.assert_array_equal(moved.couplings[0], found.couplings[order[1] - 1])


@pytest.mark.parametrize("may_be_alone", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_laws_hold_where_links_are_uncertain(may_be_alone):
    """Everything moved at once, by rounding too, in problems where some rows are close to a tie."""
    if may_be_alone:
        tables, truth = make_tables(1, 120, (20, 20), rank=4, noise=0.2, entities=[np.arange(96), np.arange(24, 120)])
    else:
        tables, truth = make_tables(3, 50, (20, 15), noise=0.7)
    found = link_tables(tables)
    assert found.may_be_alone == may_be_alone
    assert wrong(found, truth) > 0
    rng = np.random.default_rng(2)
    orders, moved = [], []
    for values, mask in tables:
        rows, columns = rng.permutation(len(values)), rng.permutation(values.shape[1])
        signs = rng.choice([-1.0, 1.0], len(columns)) * (1 + 1e-14)
        moved.append((values[rows][:, columns] * signs, mask[rows][:, columns]))
        orders.append(rows)
    again = link_tables(moved[::-1])
    back = np.full(len(orders[0]), -1)
    partner = again.permutations[0]
    back[orders[0][partner[partner >= 0]]] = orders[1][partner >= 0]
    np.testing.assert_array_equal(back, found.permutations[0])


def _entities(rows):
    stacked = np.stack(rows, axis=1)
    return stacked[np.lexsort(stacked.T)]


def test_standard_order_survives_rounding_and_ties():
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=(12, 6)), 1)
    mask = rng.random(values.shape) < 0.8
    values = np.where(mask, values, 0.0)
    standard = TableOrder.of(values, mask).apply(values, mask)
    rows, columns = rng.permutation(12), rng.permutation(6)
    moved = (values * [1, -1, 1, -1, -1, 1])[rows][:, columns] + 1e-15, mask[rows][:, columns]
    again = TableOrder.of(*moved).apply(*moved)
    np.testing.assert_array_equal(again[0], standard[0])
    np.testing.assert_array_equal(again[1], standard[1])


@pytest.mark.slow
def test_tables_of_different_sizes_leave_strangers_alone():
    entities = [np.arange(0, 120), np.arange(20, 150), np.arange(0, 140)]
    tables, truth = make_tables(7, 150, (20, 15, 15), rank=4, noise=0.2, entities=entities)
    found = link_tables(tables)
    assert found.may_be_alone
    assert found.convincing
    assert wrong(found, truth) <= 1
    assert len(found.rows[0]) in range(149, 153)
    np.testing.assert_array_equal(found.rows[0][:120], np.arange(120))
    assert np.all(found.rows[0][120:] == -1)
    for index, (values, _) in zip(found.rows, tables, strict=True):
        np.testing.assert_array_equal(np.sort(index[index >= 0]), np.arange(len(values)))
    for coupling in found.couplings:
        assert coupling.sum(axis=1).max() <= 1 + 1e-9
        assert coupling.sum(axis=0).max() <= 1 + 1e-9
    alone = truth[0] < 0
    assert found.couplings[0][alone].sum(axis=1).max() < 0.5


def test_strangers_are_noticed_where_sizes_agree():
    entities = [np.arange(0, 120), np.arange(30, 150)]
    tables, truth = make_tables(1, 150, (20, 20), rank=4, entities=entities)
    found = link_tables(tables)
    assert found.may_be_alone
    assert wrong(found, truth) <= 1
    assert not link_tables(make_tables(1, 60, (20, 20), rank=4)[0]).may_be_alone


def test_unequal_sizes_without_strangers_match_the_smaller_side():
    entities = [np.arange(50), np.arange(40)]
    tables, truth = make_tables(2, 50, (20, 20), rank=4, entities=entities)
    found = link_tables(tables, may_be_alone=False)
    assert (found.permutations[0] >= 0).sum() == 40
    assert not found.may_be_alone
    assert found.couplings[0].sum(axis=0).max() <= 1 + 1e-9
    assert wrong(found, truth) == 0


@pytest.mark.parametrize("may_be_alone", [None, pytest.param(True, marks=pytest.mark.slow)])
def test_unrelated_tables_do_not_convince(may_be_alone):
    tables = [make_tables(seed, 40, (10,))[0][0] for seed in (1, 2)]
    assert not link_tables(tables, may_be_alone=may_be_alone, deadline=Deadline(1.5)).convincing


@pytest.mark.slow
def test_the_status_says_so_when_nothing_convinces():
    tables = [make_tables(seed, 8, (1,), rank=1)[0][0] for seed in (1, 2)]
    found = link_tables(tables)
    assert not found.convincing
    assert found.status.reason == "unconvincing"
    assert found.status.advice


def test_few_matches_of_many_rows_are_no_evidence():
    """Picking 13 of 40 rows at will, a wrong join scores as much as twice the logarithm of the rows."""
    freedom = freedom_of_choice((40, 40), 13, 4)
    assert freedom > 8
    assert not convincing(7.7, 0, 8.0, rank=4, chance=np.log(40), freedom=freedom, matched=13 / 40, may_be_alone=True)
    assert convincing(12.0, 0, 12.5, rank=4, chance=np.log(40), freedom=freedom, matched=13 / 40, may_be_alone=True)
    assert freedom_of_choice((40, 40), 40, 4) < freedom
    assert freedom_of_choice((40, 40), 0, 4) == np.inf


# --- what the caller knows


def pairs_of(rows, partners):
    return np.stack([np.asarray(rows), np.asarray(partners)], axis=1)


@pytest.mark.parametrize("may_be_alone", [False, True])
def test_forbidden_pairs_are_never_matched(may_be_alone):
    tables, truth = make_tables(4, 60, (25, 20), rank=4, noise=0.3)
    banned = np.arange(0, 60, 30)
    constraints = Constraints((60, 60), forbidden={(0, 1): pairs_of(banned, truth[0][banned])})
    found = link_tables(tables, may_be_alone=may_be_alone, constraints=constraints)
    assert np.all(found.permutations[0][banned] != truth[0][banned])
    assert np.all(found.couplings[0][banned, truth[0][banned]] == 0)
    assert np.all(found.log_ratios[0][banned, truth[0][banned]] == FORBIDDEN)
    others = np.setdiff1d(np.arange(60), banned)
    assert np.mean(found.permutations[0][others] == truth[0][others]) > 0.85


@pytest.mark.parametrize("may_be_alone", [False, True])
def test_known_pairs_are_matched_even_against_the_evidence(may_be_alone):
    tables, truth = make_tables(4, 100, (25, 20), rank=5, noise=0.3)
    rows = np.array([1, 2])
    partners = truth[0][np.array([2, 1])]
    constraints = Constraints((100, 100), known={(0, 1): pairs_of(rows, partners)})
    found = link_tables(tables, may_be_alone=may_be_alone, constraints=constraints)
    np.testing.assert_array_equal(found.permutations[0][rows], partners)
    others = np.setdiff1d(np.arange(100), rows)
    assert np.mean(found.permutations[0][others] == truth[0][others]) > 0.9


def test_groups_are_kept():
    """Groups settle what noise leaves open, and are never crossed."""
    tables, truth = make_tables(3, 50, (20, 15), noise=0.7)
    groups = np.arange(50) % 10
    other = np.empty(50, dtype=np.int64)
    other[truth[0]] = groups
    constraints = Constraints((50, 50), groups=(groups, other))
    free, bound = link_tables(tables), link_tables(tables, constraints=constraints)
    np.testing.assert_array_equal(other[bound.permutations[0]], groups)
    assert wrong(bound, truth) < 0.5 * wrong(free, truth)


def test_three_tables_keep_every_pairwise_constraint():
    tables, truth = make_tables(5, 80, (20, 15, 15))
    known = {(0, 1): pairs_of([3, 4], truth[0][[4, 3]]), (0, 2): pairs_of([3], truth[1][[4]])}
    forbidden = {(1, 2): pairs_of(truth[0][10:12], truth[1][10:12])}
    constraints = Constraints((80, 80, 80), known=known, forbidden=forbidden)
    found = link_tables(tables, constraints=constraints)
    np.testing.assert_array_equal(found.permutations[0][[3, 4]], truth[0][[4, 3]])
    assert found.permutations[1][3] == truth[1][4]
    second, third = found.rows[1], found.rows[2]
    both = set(zip(second.tolist(), third.tolist(), strict=True))
    assert not both & set(map(tuple, forbidden[1, 2].tolist()))
    assert wrong(found, truth) < 16


def test_a_row_with_no_allowed_partner_stays_alone():
    tables, truth = make_tables(4, 20, (12, 10))
    constraints = Constraints((20, 20), forbidden={(0, 1): pairs_of([7] * 20, range(20))})
    found = link_tables(tables, may_be_alone=False, constraints=constraints)
    assert found.permutations[0][7] == -1
    assert found.couplings[0][7].sum() == 0
    assert np.mean(np.delete(found.permutations[0] == truth[0], 7)) > 0.8


def test_what_follows_from_known_pairs_is_known():
    constraints = implied(
        Constraints(
            (3, 3, 3),
            groups=(np.array([5, -1, -1]), None, np.array([-1, -1, 6])),
            known={(0, 1): pairs_of([0], [1]), (1, 2): pairs_of([1], [2])},
            forbidden={(0, 2): pairs_of([2], [2])},
        )
    )
    np.testing.assert_array_equal(constraints.known[0, 2], [[0, 2]])
    np.testing.assert_array_equal(constraints.forbidden[0, 1], [[2, 1]])
    assert constraints.groups[1] is not None
    assert constraints.groups[1][1] == 5
    with pytest.raises(InputError, match="two rows of one table are one entity; taken together, these pairs do"):
        implied(
            Constraints(
                (3, 3, 3),
                known={(0, 1): pairs_of([0], [1]), (1, 2): pairs_of([1], [2]), (0, 2): pairs_of([1], [2])},
            )
        )


def test_knowledge_of_entities_is_that_of_their_rows():
    constraints = Constraints((3, 3, 2), known={(0, 2): pairs_of([1], [0])}, forbidden={(1, 2): pairs_of([0], [1])})
    rows = (np.array([0, 1, 2, -1]), np.array([2, -1, 0, 1]))
    knowledge = Knowledge.between(constraints, (0, 1), rows, (2,), (np.arange(2),))
    np.testing.assert_array_equal(knowledge.allowed, [[0, 1], [1, 0], [0, 0], [1, 1]])
    assert [index.tolist() for index in knowledge.known] == [[1], [0]]
    assert Knowledge.between(None, (0, 1), rows, (2,), (np.arange(2),)).allowed is None
    turned = Knowledge.between(constraints, (2,), (np.arange(2),), (0, 1), rows)
    np.testing.assert_array_equal(turned.allowed, knowledge.allowed.T)


def test_given_couplings_are_tried_first():
    tables, truth = make_tables(8, 60, (10, 10), noise=0.3)
    coupling = np.zeros((60, 60))
    coupling[np.arange(60), truth[0]] = 1.0
    for key, given in (((0, 1), coupling), ((1, 0), coupling.T)):
        found = link_tables(tables, start_couplings={key: given})
        assert found.starts[0].name.startswith("given")
        assert wrong(found, truth) <= 2


def test_the_arrangement_carries_couplings_over():
    tables, _ = make_tables(8, 20, (3, 9))
    arrangement = Arrangement.of(tables)
    assert arrangement.tables == (1, 0)
    given = np.random.default_rng(0).random((20, 20))
    placed = arrangement.couplings({(0, 1): given})[0, 1]
    assert placed[4, 7] == given[arrangement.orders[1].rows[7], arrangement.orders[0].rows[4]]


# --- matching


def test_matching_without_strangers_is_the_assignment(rng):
    log_ratio = rng.normal(size=(5, 7))
    found = match(log_ratio, may_be_alone=False)
    assert len(set(found.permutation.tolist())) == 5
    log_ratio[2] = FORBIDDEN
    found = match(log_ratio, may_be_alone=False)
    assert found.permutation[2] == -1
    assert found.coupling()[2].sum() == 0


def test_matching_with_strangers_estimates_how_many_are_common():
    rng = np.random.default_rng(0)
    log_ratio = rng.normal(-8, 2, size=(50, 60))
    log_ratio[np.arange(30), np.arange(30)] = 12.0
    found = match(log_ratio, may_be_alone=True)
    np.testing.assert_array_equal(found.permutation, np.where(np.arange(50) < 30, np.arange(50), -1))
    assert found.common == pytest.approx(30, abs=1.5)


# --- time, progress, odd input


def test_a_deadline_returns_the_best_so_far():
    tables, _ = make_tables(3, 100, (30, 25, 20), rank=5, noise=1.5)
    began = time.monotonic()
    found = link_tables(tables, deadline=Deadline(0))
    assert time.monotonic() - began < 5
    assert found.status.reason == "max_time"
    assert found.status.advice
    for permutation in found.permutations:
        assert len(set(permutation.tolist())) == 100


def test_a_distant_deadline_changes_nothing(three):
    tables, _, found = three
    again = link_tables(tables, deadline=Deadline(1000))
    assert again.status == found.status
    np.testing.assert_array_equal(again.couplings[0], found.couplings[0])


def test_progress_is_reported(three):
    tables, _, found = three
    seen = []
    link_tables(tables, callback=lambda *report: seen.append(report))
    assert [report[:3] for report in seen if report[0] == "tables"] == [("tables", k, 3) for k in (1, 2, 3)]
    assert [report[:3] for report in seen if report[0] == "joins"] == [("joins", k, 2) for k in (1, 2)]
    assert len([report for report in seen if report[0] == "starts"]) == len(found.starts)
    assert all(np.isfinite(objective) for *_, objective in seen)


@pytest.mark.parametrize("may_be_alone", [None, True, False])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 3), (3, 5), (4, 2), (3, 4, 5)])
def test_few_rows_are_no_trouble(sizes, may_be_alone):
    rng = np.random.default_rng(0)
    tables = [(rng.normal(size=(rows, 3)), np.ones((rows, 3), dtype=bool)) for rows in sizes]
    found = link_tables(tables, may_be_alone=may_be_alone, deadline=Deadline(0.5))
    for permutation, rows in zip(found.permutations, sizes[1:], strict=True):
        assert len(permutation) == sizes[0]
        partners = permutation[permutation >= 0]
        assert len(set(partners.tolist())) == len(partners)
        assert partners.max(initial=-1) < rows


def odd_tables(kind):
    tables, _ = make_tables(9, 20, (6, 5), rank=2, observed=0.8)
    (first, first_mask), (second, second_mask) = tables
    if kind == "empty rows":
        first_mask[[3, 7]] = False
        second_mask[4] = False
    elif kind == "empty columns":
        first_mask[:, 2] = False
        second_mask[:, :4] = False
    elif kind == "empty table":
        second_mask[:] = False
    elif kind == "constant columns":
        first[:, 1], second[:, :] = 0.0, 0.0
    elif kind == "duplicate rows":
        first[5:], first_mask[5:] = first[0], first_mask[0]
        second[[1, 2]], second_mask[[1, 2]] = second[0], second_mask[0]
    elif kind == "one column":
        first, first_mask = first[:, :1], first_mask[:, :1]
    elif kind == "the same table":
        second, second_mask = first.copy(), first_mask.copy()
    elif kind == "signs":
        first, second = np.sign(first), np.sign(second)
    return [(np.where(m, v, 0.0), m) for v, m in ((first, first_mask), (second, second_mask))]


@pytest.mark.parametrize(
    "kind",
    [
        "empty rows",
        "empty columns",
        "empty table",
        "constant columns",
        "duplicate rows",
        "one column",
        "the same table",
        "signs",
    ],
)
def test_odd_tables_are_no_trouble(kind):
    for may_be_alone in (None, True):
        found = link_tables(odd_tables(kind), may_be_alone=may_be_alone, deadline=Deadline(0.4))
        assert np.isfinite(found.score)
        assert np.isfinite(found.couplings[0]).all()
        assert np.isfinite(found.model.loadings).all()
        partners = found.permutations[0][found.permutations[0] >= 0]
        assert len(set(partners.tolist())) == len(partners)
    if kind == "the same table":
        np.testing.assert_array_equal(found.permutations[0], np.arange(20))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": 1}, "at least two"),
        ({"mask": np.ones((2, 2), dtype=bool)}, "mask: must be booleans of shape"),
        ({"mask": np.ones((4, 2))}, "mask: must be booleans"),
        ({"constraints": Constraints((4, 5))}, "constraints: must be about tables"),
        ({"start_couplings": {(0, 0): np.ones((4, 4))}}, "two different tables"),
        ({"start_couplings": {(0, 1): np.ones((4, 3))}}, "must be 4 × 4"),
    ],
)
def test_bad_input_is_refused_with_advice(change, message):
    table = np.arange(8.0).reshape(4, 2), change.pop("mask", np.ones((4, 2), dtype=bool))
    with pytest.raises(InputError, match=message):
        link_tables([table] * change.pop("tables", 2), **change)
