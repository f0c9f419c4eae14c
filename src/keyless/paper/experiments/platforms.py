"""The same users on several platforms: tables in unknown order, methods that fill them, and scores by genre."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import BoolArray, FloatArray
from keyless.assignment import assign
from keyless.metrics import foscttm
from keyless.paper.experiments.ratings import Fit, Ratings, choose, complete
from keyless.paper.experiments.shared_columns import shared_log_ratio

__all__ = ["Platforms", "SharedLink", "fill_alone", "fill_joined", "link_by_shared_films", "shuffled_platforms"]

IntArray = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Platforms:
    """What a method may see: per genre the training ratings of its films, rows in an order of its own.

    Attributes:
        values: by genre, users × films, 0 where not known; the first genre is the reference.
        masks: by genre, True where known.
        films: by genre, the number of each column's film.
    """

    values: Mapping[str, FloatArray]
    masks: Mapping[str, BoolArray]
    films: Mapping[str, IntArray]


def shuffled_platforms(
    ratings: Ratings, train: BoolArray, *, random_state: int, reference: str = "Drama"
) -> tuple[Platforms, dict[str, IntArray]]:
    """Return the tables, rows of all but the reference shuffled, and for each table the user of each of its rows.

    Args:
        ratings: all ratings.
        train: True where a rating may be seen.
        random_state: seed of the orders.
        reference: genre whose rows stay.
    """
    rng = np.random.default_rng(random_state)
    users = {reference: np.arange(len(train))}
    users |= {genre: rng.permutation(len(train)) for genre in ratings.films if genre != reference}
    values, masks = {}, {}
    for genre, order in users.items():
        cells = np.ix_(order, ratings.films[genre])
        masks[genre] = train[cells]
        values[genre] = np.where(masks[genre], ratings.values[cells], 0.0)
    return Platforms(values, masks, {genre: ratings.films[genre] for genre in users}), users


def fill_alone(platforms: Platforms, *, random_state: int) -> dict[str, FloatArray]:
    """Complete each table alone, weights chosen on its training ratings: SIC.

    Args:
        platforms: the tables.
        random_state: seed of the validation parts.
    """
    found = {}
    for genre, values in platforms.values.items():
        mask = platforms.masks[genre]
        found[genre] = complete(values, mask, choose(values, mask, random_state=random_state, folds=3))
    return found


def fill_joined(
    platforms: Platforms,
    permutations: Mapping[str, IntArray],
    *,
    random_state: int,
    fit: Fit | None = None,
    same_films: bool = True,
) -> dict[str, FloatArray]:
    """Complete all tables as one: linked rows are one user.

    Args:
        platforms: the tables.
        permutations: per genre but the reference, its row for each reference row, −1 for none; a row that nobody has
            is a user of its own.
        random_state: seed of the validation parts.
        fit: weights of the completion; None: chosen on the training ratings.
        same_films: films of the same number are one column; else the tables stand side by side, as for a method that
            is not told of common films.

    Returns:
        By genre, in the order of its own rows.
    """
    reference, *others = platforms.values
    users = len(platforms.values[reference])
    rows = {reference: np.arange(users)}
    for genre in others:
        owner = np.full(len(platforms.values[genre]), -1, dtype=np.intp)
        linked = permutations[genre] >= 0
        owner[permutations[genre][linked]] = np.flatnonzero(linked)
        alone = owner < 0
        owner[alone] = users + np.arange(int(alone.sum()))
        users += int(alone.sum())
        rows[genre] = owner
    columns, width = _columns(platforms, same_films=same_films)
    values, mask = np.zeros((users, width)), np.zeros((users, width), dtype=bool)
    for genre, seen in platforms.masks.items():
        at_row, at_column = np.nonzero(seen)
        cells = rows[genre][at_row], columns[genre][at_column]
        values[cells], mask[cells] = platforms.values[genre][seen], True
    chosen = choose(values, mask, random_state=random_state) if fit is None else fit
    estimate = complete(values, mask, chosen)
    return {genre: estimate[np.ix_(rows[genre], columns[genre])] for genre in platforms.values}


def _columns(platforms: Platforms, *, same_films: bool) -> tuple[dict[str, IntArray], int]:
    """Return for each table where its columns stand among those of all, and how many these are."""
    if same_films:
        films = np.unique(np.concatenate(list(platforms.films.values())))
        return {genre: np.searchsorted(films, numbers) for genre, numbers in platforms.films.items()}, len(films)
    edges = np.cumsum([0, *(len(numbers) for numbers in platforms.films.values())])
    places = {genre: edges[k] + np.arange(len(numbers)) for k, (genre, numbers) in enumerate(platforms.films.items())}
    return places, int(edges[-1])


@dataclass(frozen=True, eq=False)
class SharedLink:
    """Links from shared films.

    Attributes:
        permutations: best partner of each reference row, every row used.
        margins: nats between a match and the best alternative of either row.
        log_ratios: evidence for all pairs.
    """

    permutations: dict[str, IntArray]
    margins: dict[str, FloatArray]
    log_ratios: dict[str, FloatArray]

    def sure(self, least: float = 3.0) -> dict[str, IntArray]:
        """Return the permutations with −1 where the margin is not above `least`."""
        return {
            genre: np.where(self.margins[genre] > least, permutation, -1)
            for genre, permutation in self.permutations.items()
        }

    def nearness(self, truth: Mapping[str, IntArray]) -> dict[str, float]:
        """Return FOSCTTM by genre."""
        return {genre: foscttm(-ratio, truth[genre]) for genre, ratio in self.log_ratios.items()}


def link_by_shared_films(platforms: Platforms, *, rounds: int = 6, least: float = 3.0) -> SharedLink:
    """Match every table to all others joined, by the films both have, until settled or `rounds` are over.

    A row counts as joined only where its match has a margin: evidence from a wrong match would outweigh the right one.

    Args:
        platforms: the tables.
        rounds: passes over the tables.
        least: margin, in nats; the default is odds of twenty to one.
    """
    reference, *others = platforms.values
    pairs = {(a, b): _pair(platforms, a, b) for a in platforms.values for b in others if a != b}
    placed: dict[str, IntArray] = {reference: np.arange(len(platforms.values[reference]))}
    joined = {reference: np.ones(len(platforms.values[reference]), dtype=bool)}
    margins: dict[str, FloatArray] = {}
    ratios: dict[str, FloatArray] = {}
    for _ in range(rounds):
        before = dict(placed)
        for genre in others:
            total = np.zeros((len(platforms.values[reference]), len(platforms.values[genre])))
            for other, order in placed.items():
                if other != genre:
                    total[joined[other]] += pairs[other, genre][order[joined[other]]]
            permutation = np.asarray(assign(-total), dtype=np.intp)
            rows = np.arange(len(permutation))
            rest = total.copy()
            rest[rows, permutation] = -np.inf
            rival = np.maximum(rest.max(axis=1), rest.max(axis=0)[permutation])
            placed[genre], margins[genre], ratios[genre] = permutation, total[rows, permutation] - rival, total
            joined[genre] = margins[genre] > least
        if all(genre in before and np.array_equal(before[genre], placed[genre]) for genre in others):
            break
    return SharedLink({genre: placed[genre] for genre in others}, margins, ratios)


def _pair(platforms: Platforms, first: str, second: str) -> FloatArray:
    _, left, right = np.intersect1d(platforms.films[first], platforms.films[second], return_indices=True)
    return shared_log_ratio(
        (platforms.values[first][:, left], platforms.masks[first][:, left]),
        (platforms.values[second][:, right], platforms.masks[second][:, right]),
    )
