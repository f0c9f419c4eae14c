from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError
from keyless.likelihood.canonical import Candidate, Matcher, cross_covariance
from keyless.model.factors import principal_factors
from keyless.progress import Deadline
from keyless.search import PairLink, SearchOptions, link_two_tables
from keyless.search.beams import beam_search
from keyless.search.population import agreement, diverse, offspring, ranked

SMALL = SearchOptions(spaces=4, beam_width=6, beam_steps=4, carried=4, parents=3, rounds=1, attempts=1)


def tables(n_rows=60, columns=(20, 15), *, rank=4, noise=0.1, seed=0):
    data = make_shuffled_tables(n_rows, columns, rank=rank, noise=noise, random_state=seed)
    return data.tables["reference"], data.tables["table1"], data.truth["table1"]


def same_search(one: PairLink, two: PairLink):
    np.testing.assert_array_equal(one.permutation, two.permutation)
    assert one.starts == two.starts
    assert (one.score, one.scales, one.rank) == (two.score, two.scales, two.rank)


@pytest.mark.parametrize("seed", range(5))
def test_low_rank_tables_are_linked_without_a_wrong_row(seed):
    reference, table, truth = tables(100, (60, 40), rank=5, noise=0.1, seed=seed)
    link = link_two_tables(reference, table)
    np.testing.assert_array_equal(link.permutation, truth)
    assert link.settled
    assert link.status.converged
    assert link.score > 2 * np.log(100)


def test_breast_cancer_means_and_errors_find_their_worst():
    values = load_breast_cancer().data
    order = np.random.default_rng(0).permutation(len(values))
    link = link_two_tables(values[:, :20], values[order, 20:])
    assert np.mean(order[link.permutation] == np.arange(len(values))) >= 0.99
    assert link.settled


@pytest.mark.slow
def test_breast_cancer_means_find_most_of_their_worst():
    values = load_breast_cancer().data
    order = np.random.default_rng(0).permutation(len(values))
    link = link_two_tables(values[:, :10], values[order, 20:])
    assert np.mean(order[link.permutation] == np.arange(len(values))) >= 0.78
    assert link.scales == "auto"


def test_relabelling_a_table_only_relabels_the_permutation(rng):
    reference, table, _ = tables()
    link = link_two_tables(reference, table)
    rows, columns = rng.permutation(60), rng.permutation(60)
    moved = link_two_tables(reference[rows], table[columns])
    np.testing.assert_array_equal(columns[moved.permutation], link.permutation[rows])
    assert np.isclose(moved.score, link.score)
    np.testing.assert_allclose(moved.log_ratios, link.log_ratios[np.ix_(rows, columns)], atol=1e-6)
    np.testing.assert_allclose(moved.coupling, link.coupling[np.ix_(rows, columns)], atol=1e-6)


@pytest.mark.parametrize("positive", [False, True])
def test_order_units_and_signs_of_columns_do_not_matter(rng, positive):
    reference, table, truth = tables(noise=0.3)
    if positive:
        reference, table = np.exp(reference / 3), np.exp(table / 3)
    link = link_two_tables(reference, table)
    other = []
    for values in (reference, table):
        size = values.shape[1]
        other.append(values[:, rng.permutation(size)] * rng.choice([-1.0, 1.0], size) * rng.uniform(0.01, 100, size))
    changed = link_two_tables(*other)
    np.testing.assert_array_equal(changed.permutation, link.permutation)
    assert np.mean(link.permutation == truth) > 0.95
    assert np.isclose(changed.score, link.score, rtol=1e-4)


def test_a_curved_scale_is_seen_through():
    reference, table, truth = tables(noise=0.05)
    assert np.mean(link_two_tables(np.exp(reference), table).permutation == truth) > 0.95


@pytest.mark.parametrize("noise", [0.1, 2.5])
def test_the_same_seed_gives_the_same_answer_however_many_work(noise):
    reference, table, _ = tables(40, noise=noise)
    one = link_two_tables(reference, table, options=SMALL, seed=3)
    same_search(one, link_two_tables(reference, table, options=SMALL, seed=3))
    same_search(one, link_two_tables(reference, table, options=SMALL, seed=3, n_jobs=2))
    assert one.seed == 3


def test_the_result_hangs_together():
    reference, table, truth = tables(noise=0.5)
    link = link_two_tables(reference, table)
    n_rows = len(truth)
    assert sorted(link.permutation) == list(range(n_rows))
    np.testing.assert_allclose(link.coupling.sum(axis=0), 1, atol=1e-6)
    np.testing.assert_allclose(link.coupling.sum(axis=1), 1, atol=2e-3)
    assert link.rank == (link.reference_factors.rank, link.table_factors.rank)
    u, v = link.reference_factors.scores, link.table_factors.scores
    np.testing.assert_allclose(u.T @ u / n_rows, np.eye(link.rank[0]), atol=1e-9)
    rho = link.model.correlations
    matched = np.sum((u @ link.model.reference_directions - v[link.permutation] @ link.model.table_directions) ** 2)
    assert matched < 2 * n_rows * rho.size
    assert np.isclose(link.objective, -np.mean(link.log_ratios[np.arange(n_rows), link.permutation]))
    assert {start.stage for start in link.starts} <= {"starts", "curved beam", "beam", "breeding", "polishing"}
    assert max(start.score for start in link.starts) <= link.score + 1


def test_forbidden_pairs_are_never_matched(rng):
    reference, table, truth = tables(noise=0.5)
    allowed = rng.random((60, 60)) < 0.7
    allowed[np.arange(60), truth] = True
    allowed[:5, :] = True
    allowed[np.arange(5), truth[:5]] = False
    link = link_two_tables(reference, table, allowed=allowed)
    kept = link.permutation >= 0
    assert allowed[np.flatnonzero(kept), link.permutation[kept]].all()
    assert np.mean(link.permutation[5:] == truth[5:]) > 0.85
    assert np.isneginf(link.log_ratios[~allowed]).all()
    assert not link.coupling[~allowed].any()


def test_a_row_that_may_match_nothing_stays_alone():
    reference, table, truth = tables()
    allowed = np.ones((60, 60), dtype=bool)
    allowed[7] = False
    link = link_two_tables(reference, table, allowed=allowed)
    assert link.permutation[7] == -1
    assert np.mean(np.delete(link.permutation == truth, 7)) > 0.95
    assert np.isfinite(link.coupling).all()
    assert np.isfinite(link.objective)


def test_groups_make_hard_tables_easy():
    reference, table, truth = tables(noise=2.5, rank=3)
    groups = np.arange(60) // 3
    allowed = groups[:, None] == groups[np.argsort(truth)][None, :]
    free = link_two_tables(reference, table, options=SMALL)
    held = link_two_tables(reference, table, options=SMALL, allowed=allowed)
    assert np.mean(held.permutation == truth) > max(0.6, np.mean(free.permutation == truth))


def test_a_given_coupling_is_tried_first():
    reference, table, truth = tables()
    coupling = np.full((60, 60), 0.5 / 60)
    coupling[np.arange(60), truth] += 0.5
    link = link_two_tables(reference, table, start_couplings=[("known pairs", coupling)])
    assert link.starts[0].name == "known pairs"
    assert link.starts[0].score > np.log(60)


def test_a_good_coupling_rescues_a_search_with_poor_starts():
    reference, table, truth = tables(150, (30, 25), rank=5, noise=1.0, seed=2)
    weak = SearchOptions(spaces=1, beams=False, rounds=0)
    coupling = np.eye(150)[:, np.argsort(truth)]
    assert np.mean(link_two_tables(reference, table, options=weak).permutation == truth) < 0.3
    found = link_two_tables(reference, table, options=weak, start_couplings=[("known pairs", coupling)])
    assert np.mean(found.permutation == truth) > 0.6


def test_missing_entries_are_filled_first(rng):
    reference, table, truth = tables(100, (40, 30), noise=0.1)
    masks = [rng.random(values.shape) < 0.8 for values in (reference, table)]
    spoilt = [np.where(mask, values, np.nan) for mask, values in zip(masks, (reference, table), strict=True)]
    link = link_two_tables(*spoilt, reference_mask=masks[0], table_mask=masks[1])
    assert np.mean(link.permutation == truth) > 0.95


def test_a_second_attempt_adds_other_candidates():
    reference, table = np.random.default_rng(1).normal(size=(2, 60, 10))
    once = link_two_tables(reference, table, options=SMALL)
    twice = link_two_tables(reference, table, options=replace(SMALL, attempts=2))
    # Polishing comes last; before it, the second search begins as the first did.
    same = [start for start in once.starts if start.stage != "polishing"]
    assert twice.starts[: len(same)] == tuple(same)
    assert len(twice.starts) > 1.5 * len(same)
    assert twice.score >= max(start.score for start in same) - 0.5


def test_progress_is_reported():
    reference, table, _ = tables()
    seen = []
    link = link_two_tables(reference, table, callback=lambda *report: seen.append(report))
    assert seen[0][:2] == ("starts", 1)
    assert all(1 <= step <= total for _, step, total, _ in seen)
    assert len(seen) == len(link.starts)
    assert seen[-1][3] == max(start.score for start in link.starts)


def test_a_deadline_in_the_past_still_gives_an_answer():
    reference, table, _ = tables(noise=2.5)
    link = link_two_tables(reference, table, deadline=Deadline(0))
    assert link.status.reason == "max_time"
    assert len(link.starts) == 1
    assert sorted(link.permutation) == list(range(60))


def test_a_deadline_stops_a_long_search():
    reference, table = np.random.default_rng(0).normal(size=(2, 200, 12))
    begun = time.monotonic()
    link = link_two_tables(reference, table, deadline=Deadline(1.0))
    assert time.monotonic() - begun < 4
    assert link.status.reason == "max_time"


def test_unrelated_tables_do_not_settle_and_say_so():
    reference, table = np.random.default_rng(1).normal(size=(2, 60, 10))
    link = link_two_tables(reference, table, options=SMALL)
    assert not link.settled
    assert link.status.reason == "max_iter"
    assert "candidates" in link.status.advice


@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5, 6, 7, 8])
def test_tiny_tables(n_rows, rng):
    link = link_two_tables(rng.normal(size=(n_rows, 3)), rng.normal(size=(n_rows, 2)), options=SMALL)
    assert sorted(link.permutation) == list(range(n_rows))
    assert np.isfinite(link.score)
    assert np.isfinite(link.coupling).all()


@pytest.mark.parametrize("n_rows", [3, 12, 40])
def test_constant_columns_and_copies_of_rows(n_rows, rng):
    reference = np.column_stack([np.repeat(rng.normal(size=(n_rows // 3 + 1, 3)), 3, axis=0)[:n_rows], np.ones(n_rows)])
    link = link_two_tables(reference, reference[rng.permutation(n_rows)] * 2, options=SMALL)
    assert sorted(link.permutation) == list(range(n_rows))
    assert np.isfinite(link.coupling).all()


def test_a_table_that_says_nothing(rng):
    link = link_two_tables(np.ones((20, 2)), rng.normal(size=(20, 3)), options=SMALL)
    assert sorted(link.permutation) == list(range(20))
    assert link.score == 0


def test_bad_input_is_refused(rng):
    values = rng.normal(size=(9, 3))
    with pytest.raises(InputError, match="table: must have as many rows as the reference, 9; found 8"):
        link_two_tables(values, values[:8])
    with pytest.raises(InputError, match="allowed: must have one entry per pair"):
        link_two_tables(values, values, allowed=np.ones((9, 8), dtype=bool))
    with pytest.raises(InputError, match="guess: must hold finite weights"):
        link_two_tables(values, values, start_couplings=[("guess", -np.ones((9, 9)))])
    with pytest.raises(InputError, match="scales: must be one of"):
        link_two_tables(values, values, scales="cube")
    with pytest.raises(InputError, match="reference, row 0, column 0"):
        link_two_tables(np.full((9, 2), np.nan), values)
    with pytest.raises(InputError, match="table_mask: must have the shape"):
        link_two_tables(values, values, table_mask=np.ones((9, 2), dtype=bool))
    with pytest.raises(InputError, match="beam_ranks"):
        SearchOptions(beam_ranks=(4, 2))
    with pytest.raises(InputError, match="rounds"):
        SearchOptions(rounds=-1)


def candidate(permutation, score=0.0):
    cross = np.eye(2, dtype=np.float32)
    return Candidate(np.asarray(permutation), cross, cross, score, np.arange(len(permutation), dtype=float))


def test_agreement_counts_those_like_the_first():
    same = np.arange(10)
    nearly = same.copy()
    nearly[:3] = nearly[[1, 2, 0]]
    assert agreement([candidate(same), candidate(nearly), candidate(same[::-1])]) == 2


def test_diverse_keeps_the_best_of_each_kind():
    one, other = np.arange(10), np.arange(10)[::-1]
    kept = diverse([candidate(one, 1.0), candidate(one, 3.0), candidate(other, 2.0)], 5)
    assert [c.score for c in kept] == [3.0, 2.0]
    assert [c.score for c in ranked([candidate(one, 1.0), candidate(one, 3.0)])] == [3.0, 1.0]


def test_offspring_come_from_the_confident_half(rng):
    u, v = rng.normal(size=(2, 10, 2)).astype(np.float32)
    parent = candidate(rng.permutation(10))
    seeds = {name: cross for name, cross, _ in offspring([parent], u, v, rng)}
    assert len(seeds) == 4
    sure = np.arange(5, 10)
    expected = u[sure].T @ v[parent.permutation[sure]] / 5
    np.testing.assert_allclose(seeds["confident half"], expected, rtol=1e-5)


def test_a_beam_finds_the_map_of_highest_bound(rng):
    reference, table, truth = tables(100, (30, 20), rank=4, noise=0.3)
    u, v = (principal_factors(values).compact[:, :4].copy() for values in (reference, table))
    _, right = Matcher(u, v, iterations=30).step(cross_covariance(u, v, truth))
    pool = beam_search(u, v, [], width=12, ranks=(2, 3, 4), rng=rng)
    assert pool[0][0] >= 0.98 * right
    assert [bound for bound, _ in pool] == sorted((bound for bound, _ in pool), reverse=True)
    coupling = Matcher(u, v).coupling(pool[0][1])
    assert np.mean(np.argmax(coupling, axis=1) == truth) > 0.8
