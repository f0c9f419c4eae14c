"""Ratings of films by genre: tables of the same users, and completions whose weights are chosen on training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import BoolArray, FloatArray
from keyless.errors import InputError
from keyless.lowrank import SVD, truncated_svd
from keyless.paper.soft_impute import soft_impute

__all__ = [
    "GENRES",
    "Fit",
    "Published",
    "Ratings",
    "choose",
    "complete",
    "offsets",
    "published_tables",
    "rank_iterates",
    "read_ratings",
    "soft_path",
    "split_pairs",
    "threshold_path",
]

IntArray = NDArray[np.intp]

GENRES = ("Comedy", "Romance", "Drama", "Action", "Thriller")
_PENALTIES = tuple(float(weight) for weight in np.geomspace(24, 9, 6))
_RIDGES = ((2.0, 1.0), (3.0, 2.0), (5.0, 3.0), (8.0, 3.0))
_RANK, _SWEEPS, _TOLERANCE, _TURNS = 25, 40, 1e-4, 2


@dataclass(frozen=True, eq=False)
class Ratings:
    """Users × films, 0 where not rated, and the films of each genre; a film may have several.

    Attributes:
        values: ratings from 1 to 5.
        films: column numbers by genre.
    """

    values: FloatArray
    films: Mapping[str, IntArray]

    @property
    def all_films(self) -> IntArray:
        """Films of any of the genres, each once."""
        return np.unique(np.concatenate(list(self.films.values())))


def read_ratings(folder: Path, *, genres: Sequence[str] = GENRES) -> Ratings:
    """Read MovieLens 100K.

    Args:
        folder: where `u.data`, `u.item` and `u.genre` are.
        genres: tables to make.
    """
    lines = (folder / "u.genre").read_text(encoding="latin-1").splitlines()
    number = {name: int(index) for name, _, index in (line.partition("|") for line in lines) if index}
    unknown = [genre for genre in genres if genre not in number]
    if unknown:
        raise InputError(f"genres: must be some of {', '.join(number)}; found {', '.join(unknown)}.")
    items = [line.split("|") for line in (folder / "u.item").read_text(encoding="latin-1").splitlines() if line]
    flags = np.array([[int(flag) for flag in item[5:]] for item in items])
    triples = np.loadtxt(folder / "u.data", dtype=np.intp)[:, :3]
    values = np.zeros((int(triples[:, 0].max()), len(items)))
    values[triples[:, 0] - 1, triples[:, 1] - 1] = triples[:, 2]
    return Ratings(values, {genre: np.flatnonzero(flags[:, number[genre]]) for genre in genres})


def split_pairs(rated: BoolArray, *, share: float, random_state: int) -> tuple[BoolArray, BoolArray]:
    """Split ratings into a part kept and a part held out; one draw per (user, film), whatever tables the film is in.

    Args:
        rated: True where there is a rating.
        share: of the ratings held out.
        random_state: seed.
    """
    held = np.zeros(rated.shape, dtype=bool)
    users, films = np.nonzero(rated)
    chosen = np.random.default_rng(random_state).random(len(users)) < share
    held[users[chosen], films[chosen]] = True
    return rated & ~held, held


def offsets(values: FloatArray, mask: BoolArray, *, rows: float, columns: float) -> FloatArray:
    """Return level + row + column offsets: argmin Σ_mask (x − m − r_i − c_k)² + rows·‖r‖² + columns·‖c‖².

    Args:
        values: the table.
        mask: True where observed.
        rows: weight on squared row offsets.
        columns: weight on squared column offsets.
    """
    level = float(values[mask].mean()) if mask.any() else 0.0
    rest = np.where(mask, values - level, 0.0)
    by_row, by_column = mask.sum(axis=1) + rows, mask.sum(axis=0) + columns
    row, column = np.zeros(len(values)), np.zeros(values.shape[1])
    for _ in range(15):
        column = (rest.sum(axis=0) - row @ mask) / by_column
        row = (rest.sum(axis=1) - mask @ column) / by_row
    return np.asarray(level + row[:, None] + column)


@dataclass(frozen=True)
class Fit:
    """Weights of a completion: ridges on row and column offsets, and λ; no low-rank part where λ is None."""

    rows: float
    columns: float
    penalty: float | None


def _path(values: FloatArray, mask: BoolArray, fit: Fit, penalties: Sequence[float]) -> Iterator[FloatArray]:
    """Yield the completion for each λ, offsets and low-rank part fitted by turns."""
    low, start = np.zeros(values.shape), None
    rank = min(_RANK, *values.shape)
    for penalty in penalties:
        for _ in range(_TURNS):
            base = offsets(np.where(mask, values - low, 0.0), mask, rows=fit.rows, columns=fit.columns)
            rest = np.where(mask, values - base, 0.0)
            found = soft_impute(rest, mask, penalty, start=start, rank=rank, max_iter=_SWEEPS, tolerance=_TOLERANCE)
            start = found.right if found.rank else None
            low = np.asarray(found.estimate())
        yield np.clip(base + low, 1, 5)


def complete(values: FloatArray, mask: BoolArray, fit: Fit) -> FloatArray:
    """Return offsets and the soft-thresholded rest, within 1 and 5.

    Args:
        values: the table.
        mask: True where observed.
        fit: weights.
    """
    if fit.penalty is None:
        return np.clip(offsets(values, mask, rows=fit.rows, columns=fit.columns), 1, 5)
    *_, last = _path(values, mask, fit, [p for p in _PENALTIES if p > fit.penalty * 1.0001] + [fit.penalty])
    return last


def choose(values: FloatArray, mask: BoolArray, *, random_state: int, folds: int = 2) -> Fit:
    """Return the weights whose completion errs least on tenths of the observed entries, held out in turn.

    Args:
        values: the table.
        mask: True where observed.
        random_state: seed of the tenths.
        folds: how many of the ten tenths to hold out.
    """
    rows, columns = np.nonzero(mask)
    part = np.random.default_rng(random_state).integers(0, 10, len(rows))
    errors: dict[Fit, float] = {}
    halves = []
    for fold in range(folds):
        held = np.zeros(mask.shape, dtype=bool)
        held[rows[part == fold], columns[part == fold]] = True
        halves.append((mask & ~held, held))

    def note(fit: Fit, estimate: FloatArray, held: BoolArray) -> None:
        errors[fit] = errors.get(fit, 0.0) + float(((estimate - values)[held] ** 2).sum())

    for kept, held in halves:
        for ridge_rows, ridge_columns in _RIDGES:
            fit = Fit(ridge_rows, ridge_columns, None)
            note(fit, complete(values, kept, fit), held)
    plain = min(errors, key=lambda fit: errors[fit])
    for kept, held in halves:
        for penalty, estimate in zip(_PENALTIES, _path(values, kept, plain, _PENALTIES), strict=True):
            note(Fit(plain.rows, plain.columns, penalty), estimate, held)
    return min(errors, key=lambda fit: errors[fit])


@dataclass(frozen=True, eq=False)
class Published:
    """Tables of the published protocol, all with the users in the same, true order, and a split drawn per table.

    Attributes:
        whole: by genre, all ratings, users × films, 0 where not rated.
        train: by genre, True where a rating may be seen.
        test: by genre, True where a rating is held out.
        films: by genre, the number of each column's film.
    """

    whole: Mapping[str, FloatArray]
    train: Mapping[str, BoolArray]
    test: Mapping[str, BoolArray]
    films: Mapping[str, IntArray]

    @property
    def values(self) -> dict[str, FloatArray]:
        """By genre, the training ratings, 0 elsewhere."""
        return {genre: np.where(self.train[genre], whole, 0.0) for genre, whole in self.whole.items()}

    def squared_errors(self, genre: str, estimate: FloatArray) -> FloatArray:
        """Return the squared error of every test rating of a table.

        Args:
            genre: of the table.
            estimate: of all its entries.
        """
        held = self.test[genre]
        return np.asarray((estimate[held] - self.whole[genre][held]) ** 2)

    def leaked_share(self) -> float:
        """Return the share of test ratings that stand in the training part of another table, as the same film."""
        size = max(int(films.max()) for films in self.films.values()) + 1
        leaked = total = 0
        for genre, held in self.test.items():
            elsewhere = np.zeros((len(held), size), dtype=bool)
            for other, train in self.train.items():
                if other != genre:
                    elsewhere[:, self.films[other]] |= train
            leaked += int((held & elsewhere[:, self.films[genre]]).sum())
            total += int(held.sum())
        return leaked / max(total, 1)


def published_tables(ratings: Ratings, random_state: int, *, share: float = 0.2) -> Published:
    """Return the tables as the released preparation makes them, then split table by table.

    The first film is lost (read as a heading), and only users with a rating in every genre stay.

    Args:
        ratings: all ratings.
        random_state: seed of the splits.
        share: of the ratings of each table held out.
    """
    films = {genre: numbers[numbers > 0] for genre, numbers in ratings.films.items()}
    stay = np.all([(ratings.values[:, numbers] > 0).any(axis=1) for numbers in films.values()], axis=0)
    values = ratings.values[stay]
    films = {genre: numbers[(values[:, numbers] > 0).any(axis=0)] for genre, numbers in films.items()}
    rng = np.random.default_rng(random_state)
    whole, train, test = {}, {}, {}
    for genre, numbers in films.items():
        whole[genre] = values[:, numbers]
        seed = int(rng.integers(1 << 30))
        train[genre], test[genre] = split_pairs(whole[genre] > 0, share=share, random_state=seed)
    return Published(whole, train, test, films)


def threshold_path(
    values: FloatArray, mask: BoolArray, error: Callable[[FloatArray], float], *, patience: int = 5, quiet: int = 8
) -> FloatArray:
    """Return the best iterate of filling from zeros by singular values above a falling λ: the released completion.

    Args:
        values: the table, 0 where not observed.
        mask: True where observed.
        error: what an iterate is judged by; the published protocol takes the test error.
        patience: iterates without improvement before λ falls.
        quiet: values of λ at which the rank has risen and the error has not fallen before the path ends; the released
            one goes on to λ = 1, while the rank only grows, and the error with it.
    """
    best, estimate = np.zeros(values.shape), np.zeros(values.shape)
    lowest, penalty, width, idle, rank = error(best), 500.0, 1, 0, 0
    right: FloatArray | None = None
    while penalty > 2 and idle < quiet:
        penalty -= 10 if penalty > 50 else 1
        stalled, kept = 0, 0
        while stalled < patience:
            found, width = _above(np.where(mask, values, estimate), penalty, width, right)
            right = found.right
            kept = int((found.singular_values > penalty).sum())
            if not kept:
                break  # λ is still above all of them, and the next iterate would be the same
            estimate = np.asarray((found.left[:, :kept] * found.singular_values[:kept]) @ found.right[:, :kept].T)
            now = error(estimate)
            stalled = 0 if now < 0.99999 * lowest else stalled + 1
            if stalled == 0:
                lowest, best, rank = now, estimate, kept
        idle = idle + 1 if kept > rank > 0 else 0
    return best


def _above(matrix: FloatArray, penalty: float, width: int, right: FloatArray | None) -> tuple[SVD, int]:
    """Return leading triplets, one of them below λ (or some above it might be missed), and how many that took."""
    while True:
        found = _leading(matrix, min(width, *matrix.shape), right)
        if float(found.singular_values[-1]) <= penalty or width >= min(matrix.shape):
            return found, width
        width, right = width + 4, found.right


def rank_iterates(values: FloatArray, mask: BoolArray, rank: int, start: FloatArray) -> Iterator[FloatArray]:
    """Yield the iterates of filling what is missing and projecting to a rank, without end.

    Args:
        values: the table.
        mask: True where observed.
        rank: of the iterates.
        start: the first estimate.
    """
    estimate, right = start, None
    while True:
        found = _leading(np.where(mask, values, estimate), min(rank, *values.shape), right)
        estimate, right = np.asarray(found.dense()), found.right
        yield estimate


def soft_path(values: FloatArray, mask: BoolArray, penalties: Sequence[float]) -> Iterator[FloatArray]:
    """Yield Soft-Impute's completion for each λ, the one before as the start; no offsets, as the paper has it.

    Args:
        values: the table.
        mask: True where observed.
        penalties: λ, falling.
    """
    start = None
    for penalty in penalties:
        found = soft_impute(values, mask, penalty, start=start, max_iter=20, tolerance=1e-4)
        start = found.right if found.rank else None
        yield np.asarray(found.estimate())


def _leading(matrix: FloatArray, rank: int, start: FloatArray | None) -> SVD:
    """Return leading triplets from a warm start; iterates change little, so that two power steps follow them."""
    return truncated_svd(matrix, rank, start=start, max_iter=3)
