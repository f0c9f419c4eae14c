"""The search for a map: candidates are judged, kept and crossed, and the answer does not depend on how many work."""

import numpy as np
import pytest

from keyless.engine import Side, search
from keyless.engine.forms import View, searched_views
from keyless.engine.search import Search
from keyless.model.factors import principal_factors
from keyless.pairs.limits import Limits
from keyless.progress import Deadline

ROWS = 150


def views(rng, *, rows=ROWS, common=8, noise=0.8):
    """Two tables of the same rows in the same order, and noise."""
    shared = rng.normal(size=(rows, common))
    tables = [shared @ rng.normal(size=(common, 20)) + noise * rng.normal(size=(rows, 20)) for _ in range(2)]
    return [View("auto", *map(principal_factors, tables))]


def half_right(rng, share=1 / 3):
    """A coupling that is right in a part of the rows; the others are exchanged with each other."""
    partners, wrong = np.arange(ROWS), rng.permutation(ROWS)[: round((1 - share) * ROWS)]
    partners[wrong] = rng.permutation(wrong)
    return np.eye(ROWS, dtype=np.float32)[partners]


def test_crossed_candidates_lead_to_a_map_that_is_right_in_more_rows_than_either(rng):
    searched = Search(views(rng), Limits((ROWS, ROWS)))
    for number in range(3):
        searched._take(f"candidate {number}", searched.among[0].judged(half_right(rng)))
    parents = [float(np.mean(one.choice == np.arange(ROWS))) for one in searched.pool]
    searched._cross()
    assert np.mean(searched.pool[0].choice == np.arange(ROWS)) > max(parents) + 0.2
    # Children are no first maps: what parents agree about is no second witness for it.
    assert len(searched.choices) == 3


def test_a_pair_of_candidates_is_crossed_once(rng, monkeypatch):
    searched = Search(views(rng), Limits((ROWS, ROWS)))
    crossed = []
    monkeypatch.setattr(search, "_grown", lambda maps: crossed.append(len(maps)) or [])
    for number in range(4):
        searched._take(f"candidate {number}", searched.among[0].judged(half_right(rng)))
    for _ in range(3):
        searched._cross()
    assert crossed == [6, 0, 0]


def test_of_candidates_that_are_alike_the_best_is_kept(rng):
    searched = Search(views(rng), Limits((ROWS, ROWS)))
    rows = searched.among[0]
    good, better = (rows.judged(rows.growth.again(half_right(rng, 0.8), steps=steps)) for steps in (1, 6))
    assert good.agrees(better.choice, search._LIKE)
    for one in (good, better, good):
        searched._keep(one)
    assert searched.pool == [max((good, better), key=lambda one: one.score)]


def test_what_known_pairs_say_counts_for_more_than_the_score(rng):
    known = np.stack([np.arange(0, ROWS, 10)] * 2, axis=1)
    searched = Search(views(rng), Limits((ROWS, ROWS), known=known))
    rows = searched.among[0]
    turned = np.roll(np.eye(ROWS, dtype=np.float32), 1, axis=1)
    wrong, right = rows.judged(turned), rows.judged(half_right(rng, 0.8))
    assert wrong.contradicted
    assert not right.contradicted
    wrong.score = 10.0
    searched._take("wrong", wrong)
    assert not searched.stands_out
    assert not searched.convincing
    searched._take("right", right)
    assert searched.pool[0] is right


def test_all_sizes_of_first_maps_come_before_any_is_tried_again(rng):
    both = [*views(rng), *views(rng)]
    plan = Search(both, Limits((ROWS, ROWS)))._plan()
    sizes = [size for size, _ in plan]
    several = sorted(set(sizes))
    assert sizes[: len(several)] == several
    for size in several:
        # Each of them on both kinds of scales.
        assert len({id(view) for each, view in plan if each == size}) == 2


def test_the_mean_coupling_is_of_all_candidates(rng):
    searched = Search(views(rng), Limits((ROWS, ROWS)))
    couplings = [half_right(rng) for _ in range(3)]
    for number, coupling in enumerate(couplings):
        searched._take(f"candidate {number}", searched.among[0].judged(coupling))
    np.testing.assert_allclose(searched.mean_coupling, np.mean(couplings, axis=0), rtol=1e-6)
    searched.sampled = True
    assert searched.mean_coupling is None


def test_the_right_pairs_have_the_highest_score(rng):
    rows = Search(views(rng), Limits((ROWS, ROWS))).among[0]
    right = rows.judged(np.eye(ROWS, dtype=np.float32)).score
    assert right > rows.judged(half_right(rng)).score + 0.5
    assert rows.judged(rng.permutation(np.eye(ROWS, dtype=np.float32))).score < 0.3
    assert right <= np.log(ROWS)


@pytest.mark.parametrize("count", [1, 3])
def test_the_answer_does_not_depend_on_the_number_of_workers(monkeypatch, count):
    sides = views(np.random.default_rng(3))
    expected = Search(sides, Limits((ROWS, ROWS)), generations=2).run()
    monkeypatch.setattr(search, "workers", lambda: count)
    monkeypatch.setattr(search, "_LARGE_KERNEL", 1)
    found = Search(sides, Limits((ROWS, ROWS)), generations=2).run()
    np.testing.assert_array_equal(found.matching.coupling, expected.matching.coupling)


def test_without_generations_only_what_is_given_is_refined(rng):
    start = half_right(rng, 0.6)
    told = []
    searched = Search(views(rng), Limits((ROWS, ROWS)), starts=[("given", start)], generations=0)
    searched.callback = lambda *step: told.append(step[:2])
    form = searched.run()
    assert {one.name for one in searched.tried} == {"given", "given, all factors"}
    assert told == [("search", 0)]
    assert np.mean(form.matching.ratios.argmax(axis=1) == np.arange(ROWS)) > 0.9


def test_what_is_given_is_tried_though_time_is_up(rng):
    start = np.eye(ROWS, dtype=np.float32)
    searched = Search(views(rng), Limits((ROWS, ROWS)), starts=[("given", start)], deadline=Deadline(0))
    form = searched.run()
    assert {one.name for one in searched.tried} == {"given, all factors"}
    assert np.mean(form.matching.ratios.argmax(axis=1) == np.arange(ROWS)) > 0.9


def test_the_table_with_more_rows_may_stand_on_either_side(rng):
    """Rows without partner are judged on neither side: the score is that of the rows that have one."""
    (view,) = views(rng, rows=2 * ROWS)
    few = np.arange(ROWS)
    right = np.eye(2 * ROWS, dtype=np.float32)[:, few]
    scores = []
    for shape, coupling in (((2 * ROWS, ROWS), right), ((ROWS, 2 * ROWS), right.T)):
        sides = [
            principal_factors(side.scores[:size]) for side, size in zip((view.left, view.right), shape, strict=True)
        ]
        rows = Search([View("auto", *sides)], Limits(shape)).among[0]
        scores.append(rows.judged(np.ascontiguousarray(coupling)).score)
        assert len(rows.judged(np.ascontiguousarray(coupling)).choice) == ROWS
    assert min(scores) > 0.7 * np.log(2 * ROWS)
    assert abs(scores[0] - scores[1]) < 0.3


def test_a_start_that_couples_nothing_is_no_trouble(rng):
    searched = Search(views(rng), Limits((ROWS, ROWS)), starts=[("empty", np.zeros((ROWS, ROWS)))], generations=0)
    assert searched.run().matching.ratios.shape == (ROWS, ROWS)


def test_normal_rows_are_found_by_moments():
    """Clouds of 500 normal rows look alike under every turn; the moments of the same rows do not."""
    rng = np.random.default_rng(5)
    latent, order = rng.normal(size=(500, 5)), rng.permutation(500)
    tables = [latent @ rng.normal(size=(5, 20)) + 0.4 * rng.normal(size=(500, 20)) for _ in range(2)]
    sides = Side(tables[0]), Side(tables[1][order])
    searched = Search(searched_views(*sides), Limits((500, 500)))
    form = searched.run()
    partners = order[sides[1].order[form.matching.ratios.argmax(axis=1)]]
    assert np.mean(partners == sides[0].order) > 0.9
    best = max(searched.tried, key=lambda one: one.score)
    assert best.name.startswith("moments")


def test_of_many_rows_those_farthest_out_are_searched():
    rng = np.random.default_rng(0)
    factors = principal_factors(rng.standard_t(3, size=(3_000, 12)))
    rows = search.outermost(factors)
    assert len(rows) == search._MOST_ROWS
    distance = np.sum(factors.scores[:, :8] ** 2, axis=1)
    assert distance[rows].min() >= np.sort(distance)[-search._MOST_ROWS]
    few = principal_factors(rng.normal(size=(50, 5)))
    np.testing.assert_array_equal(search.outermost(few), np.arange(50))
