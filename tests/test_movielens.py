"""Ratings: splits without leaks, completions, links by shared films; numbers on MovieLens where it is there."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from keyless.errors import InputError
from keyless.lowrank import project_rank, threshold_singular_values
from keyless.metrics import foscttm
from keyless.paper.downloads import data_home
from keyless.paper.experiments.movielens import PAPER, _dense, honest, honest_rival, unaided
from keyless.paper.experiments.platforms import fill_alone, fill_joined, link_by_shared_films, shuffled_platforms
from keyless.paper.experiments.published import METHODS, as_published
from keyless.paper.experiments.ratings import (
    GENRES,
    Fit,
    Ratings,
    choose,
    complete,
    offsets,
    published_tables,
    rank_iterates,
    read_ratings,
    split_pairs,
    threshold_path,
)
from keyless.paper.experiments.shared_columns import shared_log_ratio

needs_data = pytest.mark.skipif(
    not (data_home() / "ml-100k" / "u.data").is_file(),
    reason="MovieLens is not there: set KEYLESS_DATA_HOME to a folder that holds ml-100k/",
)


@pytest.fixture(scope="module")
def little() -> Ratings:
    """40 users, 60 films, five genres that overlap."""
    rng = np.random.default_rng(0)
    taste = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 60)) + 0.5 * rng.standard_normal((40, 1)) + 3.5
    values = np.clip(np.round(taste), 1, 5) * (rng.random((40, 60)) < 0.5)
    films = {genre: np.sort(rng.permutation(60)[:25]) for genre in GENRES}
    return Ratings(values, films)


def test_a_split_is_one_draw_per_user_and_film(little):
    rated = little.values > 0
    train, test = split_pairs(rated, share=0.2, random_state=1)
    assert not (train & test).any()
    assert np.array_equal(train | test, rated)
    assert 0.15 < test.sum() / rated.sum() < 0.25


def test_offsets_minimise_their_objective():
    rng = np.random.default_rng(0)
    values, mask = rng.standard_normal((6, 5)) + 3, rng.random((6, 5)) < 0.7
    found = offsets(values, mask, rows=1.0, columns=2.0)
    assert np.linalg.matrix_rank(found - found.mean()) <= 2
    additive = np.add.outer(np.arange(6.0), np.arange(5.0))
    exact = offsets(additive, np.ones((6, 5), dtype=bool), rows=1e-9, columns=1e-9)
    assert np.allclose(exact, additive)


def test_completion_without_low_rank_part_is_the_offsets_within_the_scale(little):
    mask = little.values > 0
    found = complete(little.values, mask, Fit(3.0, 2.0, None))
    assert found.min() >= 1
    assert found.max() <= 5


def test_weights_are_chosen_on_the_training_part_alone(little):
    train, test = split_pairs(little.values > 0, share=0.2, random_state=0)
    seen = np.where(train, little.values, 0.0)
    other = np.where(test, 99.0, seen)  # what stands at test places must not matter
    assert choose(seen, train, random_state=0) == choose(other, train, random_state=0)


def test_shared_entries_identify_rows_and_nothing_is_said_without_columns():
    rng = np.random.default_rng(0)
    values, mask = rng.integers(1, 6, (30, 12)).astype(float), rng.random((30, 12)) < 0.7
    order = rng.permutation(30)
    for missingness in (True, False):
        found = shared_log_ratio((values, mask), (values[order], mask[order]), missingness=missingness)
        assert (found.argmax(axis=1) == np.argsort(order)).mean() > 0.9
    assert not shared_log_ratio((values[:, :0], mask[:, :0]), (values[:, :0], mask[:, :0])).any()
    with pytest.raises(InputError, match="columns of first"):
        shared_log_ratio((values, mask), (values[:, :3], mask[:, :3]))


def test_relabelling_rows_only_relabels_the_evidence():
    rng = np.random.default_rng(1)
    first = rng.integers(1, 6, (8, 5)).astype(float), rng.random((8, 5)) < 0.6
    second = rng.integers(1, 6, (9, 5)).astype(float), rng.random((9, 5)) < 0.6
    order = rng.permutation(9)
    found = shared_log_ratio(first, second)
    assert np.allclose(shared_log_ratio(first, (second[0][order], second[1][order])), found[:, order])
    assert found.shape == (8, 9)


def test_tables_are_really_shuffled_and_linked_by_shared_films(little):
    train, _ = split_pairs(little.values > 0, share=0.2, random_state=0)
    platforms, users = shuffled_platforms(little, train, random_state=0)
    found = link_by_shared_films(platforms)
    for genre, permutation in found.permutations.items():
        assert (users[genre] != np.arange(40)).mean() > 0.8
        assert (permutation == np.argsort(users[genre])).mean() > 0.9
    assert max(found.nearness({genre: np.argsort(users[genre]) for genre in found.permutations}).values()) < 0.05


def test_filling_by_the_true_order_beats_a_wrong_one(little):
    train, test = split_pairs(little.values > 0, share=0.2, random_state=0)
    platforms, users = shuffled_platforms(little, train, random_state=0)
    others = list(platforms.values)[1:]
    right = {genre: np.argsort(users[genre]) for genre in others}
    wrong = {genre: np.roll(order, 7) for genre, order in right.items()}
    nobody = {genre: np.full(40, -1) for genre in others}
    fit = Fit(3.0, 2.0, 2.0)

    def error(filled):
        gaps = []
        for genre, estimate in filled.items():
            cells = np.ix_(users[genre], little.films[genre])
            gaps.append((estimate - little.values[cells])[test[cells]])
        return np.sqrt(np.mean(np.concatenate(gaps) ** 2))

    by_right, by_wrong, apart = (
        error(fill_joined(platforms, p, random_state=0, fit=fit)) for p in (right, wrong, nobody)
    )
    assert by_right < apart
    assert by_right < by_wrong - 0.1
    assert {g: e.shape for g, e in fill_alone(platforms, random_state=0).items()} == {
        g: v.shape for g, v in platforms.values.items()
    }


def test_shared_evidence_is_the_sum_over_columns_of_single_log_ratios():
    rng = np.random.default_rng(2)
    first = rng.integers(1, 4, (5, 4)).astype(float), rng.random((5, 4)) < 0.6
    second = rng.integers(1, 4, (6, 4)).astype(float), rng.random((6, 4)) < 0.6
    agreement = 0.9
    seen = np.concatenate([first[1], second[1]])
    pooled = np.concatenate([first[0], second[0]])
    wanted = np.zeros((5, 6))
    for i in range(5):
        for j in range(6):
            for k in range(4):
                share = seen[:, k].mean()
                also = share * (1 - agreement) / (1 - share)  # so that the second table is observed as often
                here, there = first[1][i, k], second[1][j, k]
                same = agreement if here else also
                wanted[i, j] += np.log((same if there else 1 - same) / (share if there else 1 - share))
                if here and there:
                    common = np.clip((pooled[seen[:, k], k] == first[0][i, k]).mean(), 0.01, 0.99)
                    agree = first[0][i, k] == second[0][j, k]
                    wanted[i, j] += np.log((agreement if agree else 1 - agreement) / (common if agree else 1 - common))
    assert np.allclose(shared_log_ratio(first, second, agreement=agreement), wanted)


def test_published_splits_leak_and_honest_ones_do_not(little):
    tables = published_tables(little, 0)
    assert 0 not in np.concatenate(list(tables.films.values()))  # the first film is lost
    for genre in GENRES:
        assert not (tables.train[genre] & tables.test[genre]).any()
        assert np.array_equal(tables.train[genre] | tables.test[genre], tables.whole[genre] > 0)
    assert tables.leaked_share() > 0.5
    train, test = split_pairs(little.values > 0, share=0.2, random_state=0)
    one_split = type(tables)(
        {genre: little.values[:, films] for genre, films in little.films.items()},
        {genre: train[:, films] for genre, films in little.films.items()},
        {genre: test[:, films] for genre, films in little.films.items()},
        little.films,
    )
    assert one_split.leaked_share() == 0


def test_published_tables_keep_users_of_all_genres_only(little):
    values = little.values.copy()
    values[3, little.films["Action"]] = 0
    assert len(published_tables(Ratings(values, little.films), 0).whole["Drama"]) == 39


def test_released_iterates_are_those_of_the_named_operators():
    rng = np.random.default_rng(0)
    values, mask = 3 + rng.standard_normal((30, 20)), rng.random((30, 20)) < 0.6
    values = np.where(mask, values, 0.0)
    first, second = (found for found, _ in zip(rank_iterates(values, mask, 3, np.zeros((30, 20))), "12", strict=False))
    assert np.allclose(first, project_rank(values, 3), atol=1e-8)
    assert np.allclose(second, project_rank(np.where(mask, values, first), 3), atol=1e-8)
    seen = []

    def error(estimate):
        seen.append(estimate)
        return 1.0  # never better, so that the start remains

    assert not threshold_path(values, mask, error).any()
    levels = [*range(490, 49, -10), *range(49, 1, -1)]
    first_level = next(level for level in levels if level < np.linalg.norm(values, 2))
    assert np.allclose(seen[1], threshold_singular_values(values, first_level), atol=1e-8)


def test_separate_columns_differ_from_shared_ones(little):
    train, _ = split_pairs(little.values > 0, share=0.2, random_state=0)
    platforms, users = shuffled_platforms(little, train, random_state=0)
    # The same user's ratings of a film are equal in all tables; rows of different users tell the two ways apart.
    wrong = {genre: np.roll(np.argsort(users[genre]), 5) for genre in list(platforms.values)[1:]}
    together, apart = (
        fill_joined(platforms, wrong, random_state=0, fit=Fit(3.0, 2.0, 2.0), same_films=same) for same in (True, False)
    )
    both, here, there = np.intersect1d(little.films["Drama"], little.films["Comedy"], return_indices=True)
    drama, comedy = np.arange(40), wrong["Comedy"]
    assert len(both)
    assert np.allclose(together["Drama"][drama][:, here], together["Comedy"][comedy][:, there])
    assert not np.allclose(apart["Drama"][drama][:, here], apart["Comedy"][comedy][:, there])


def test_honest_scores_use_shared_films_and_beat_each_table_alone(little):
    found = honest(little, 0)
    assert found["Oracle"]["Total"] < found["SIR"]["Total"]
    assert found["keyless, shared films"]["Total"] < found["SIC"]["Total"]
    assert np.mean(list(found["keyless, shared films"]["links right"].values())) > 0.9


def test_published_choice_by_test_error(little):
    """Table by table it never ends above its start; by one iterate it may, but knowing the order it does not."""
    found = as_published(little, 0, ranks=(3,), steps=60)
    assert set(found) == set(METHODS) == set(PAPER)
    for scores in found.values():
        assert set(scores) == {*GENRES, "Total"}
    assert all(found["M³O"][genre] <= found["SIC"][genre] + 1e-12 for genre in GENRES)
    assert found["Oracle"]["Total"] < min(found["SIC"]["Total"], found["SIR"]["Total"])


@pytest.mark.parametrize(
    "method", ["M³O", *(pytest.param(method, marks=pytest.mark.slow) for method in ("MUS", "Baseline"))]
)
def test_honest_rivals_never_see_what_is_held_out(little, method):
    """Other test ratings change the scores and nothing else: links, and so what is filled, stay."""
    _, test = split_pairs(little.values > 0, share=0.2, random_state=0)
    other = Ratings(np.where(test, 6.0 - little.values, little.values), little.films)
    found, changed = (honest_rival(data, 0, method, ranks=(1, 2), steps=2) for data in (little, other))
    assert found["links right"] == changed["links right"]
    assert found["Total"] != changed["Total"]


@needs_data
def test_movielens_is_read_whole():
    ratings = read_ratings(data_home() / "ml-100k")
    assert ratings.values.shape == (943, 1682)
    assert np.count_nonzero(ratings.values) == 100_000
    assert [len(ratings.films[genre]) for genre in GENRES] == [505, 247, 725, 251, 251]
    with pytest.raises(InputError, match="must be some of"):
        read_ratings(data_home() / "ml-100k", genres=("Opera",))


@needs_data
def test_half_of_the_published_test_ratings_are_in_another_training_part():
    tables = published_tables(read_ratings(data_home() / "ml-100k"), 0)
    assert {len(whole) for whole in tables.whole.values()} == {930}
    # A film of m tables is in the training part of another one with probability 1 − 0.2^(m−1).
    count = np.bincount(np.concatenate(list(tables.films.values())))
    rated = {genre: (whole > 0).sum(axis=0) for genre, whole in tables.whole.items()}
    chances = [rated[genre] @ (1 - 0.2 ** (count[films] - 1.0)) for genre, films in tables.films.items()]
    expected = sum(chances) / sum(counts.sum() for counts in rated.values())
    assert abs(tables.leaked_share() - expected) < 0.01
    assert expected > 0.5


@pytest.mark.slow
@needs_data
def test_shared_films_identify_most_users():
    ratings = read_ratings(data_home() / "ml-100k")
    train, _ = split_pairs(ratings.values > 0, share=0.2, random_state=0)
    platforms, users = shuffled_platforms(ratings, train, random_state=0)
    found = link_by_shared_films(platforms)
    assert min((p == np.argsort(users[g])).mean() for g, p in found.permutations.items()) > 0.75


def test_a_search_that_ran_out_of_time_joins_nothing(little):
    found = unaided(little, 0, missingness=False, max_time=1e-6)
    assert found["verdict"] != "linked"
    assert "Total" not in found
    assert all(0 <= share <= 1 for share in found["FOSCTTM"].values())


def test_a_coupling_without_a_pair_ranks_all_rows_alike():
    assert foscttm(-_dense(sparse.csr_array((5, 5))), np.arange(5)) == 0.5
