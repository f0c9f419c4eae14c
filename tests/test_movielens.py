"""Ratings: splits without leaks, completions, links by shared films; numbers on MovieLens where it is there."""

from __future__ import annotations

import numpy as np
import pytest

from keyless.downloads import data_home
from keyless.errors import InputError
from keyless.experiments.movielens import PAPER, as_published, honest
from keyless.experiments.platforms import fill_alone, fill_joined, link_by_shared_films, shuffled_platforms
from keyless.experiments.ratings import GENRES, Fit, Ratings, choose, complete, offsets, read_ratings, split_pairs
from keyless.likelihood.shared import shared_log_ratio

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


def test_both_protocols_run_on_little_data(little):
    found = honest(little, 0)
    assert found["Oracle"]["Total"] < found["SIR"]["Total"]
    assert np.mean(list(found["keyless, shared films"]["links right"].values())) > 0.9
    for method in PAPER:
        assert set(as_published(little, 0, method, steps=3)) == {*GENRES, "Total"}


@needs_data
def test_movielens_is_read_whole():
    ratings = read_ratings(data_home() / "ml-100k")
    assert ratings.values.shape == (943, 1682)
    assert np.count_nonzero(ratings.values) == 100_000
    assert [len(ratings.films[genre]) for genre in GENRES] == [505, 247, 725, 251, 251]
    with pytest.raises(InputError, match="must be some of"):
        read_ratings(data_home() / "ml-100k", genres=("Opera",))


@needs_data
def test_shared_films_identify_most_users():
    ratings = read_ratings(data_home() / "ml-100k")
    train, _ = split_pairs(ratings.values > 0, share=0.2, random_state=0)
    platforms, users = shuffled_platforms(ratings, train, random_state=0)
    found = link_by_shared_films(platforms)
    assert min((p == np.argsort(users[g])).mean() for g, p in found.permutations.items()) > 0.75
