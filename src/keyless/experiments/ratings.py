"""Ratings of films by genre: tables of the same users, and completions whose weights are chosen on training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keyless.completion import soft_impute
from keyless.errors import InputError

__all__ = ["GENRES", "Fit", "Ratings", "choose", "complete", "offsets", "read_ratings", "split_pairs"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
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
