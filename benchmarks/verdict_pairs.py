"""Pairs of tables for the verdict: what is true of each is known, and the kinds are those that people have.

Entities have latent traits z. A table sees each trait with its own error, mixes what it sees into columns, and adds
traits of its own. The information that true partners share is set exactly: along each of k traits the two tables'
views of an entity correlate by ρ, with −k/2·log(1 − ρ²) nats.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

TRAITS = 6
"""Traits that the tables share."""

OWN_TRAITS = 3
"""Traits that only one of the tables shows, in every third pair. With normal traits they make a map hard to find."""

COLUMNS = (18, 14)
NOISE = 0.05
"""Noise of single columns: it takes next to nothing from what the tables share."""

MANY_ROWS = 4000
"""Rows from which a pair counts as large; few pairs are."""


@dataclass(frozen=True)
class Pair:
    """Two tables of which the truth is known.

    Attributes:
        kind: what is special about them.
        tables: by name.
        truth: the row of the second table for each row of the first, −1 for none.
        nats: information that true partners share, per row, as a multiple of log n; 0 where nothing is to be found, or
            where it is not known.
    """

    kind: str
    tables: dict[str, Any]
    truth: np.ndarray[Any, np.dtype[np.int64]]
    nats: float = 0.0


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return rng.normal(size=shape)


def _clusters(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    centres = 2.0 * rng.normal(size=(5, shape[1]))
    found = centres[rng.integers(5, size=shape[0])] + rng.normal(size=shape)
    return np.asarray((found - found.mean(axis=0)) / found.std(axis=0))


def _heavy_tails(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return np.asarray(rng.standard_t(4, size=shape) / np.sqrt(2.0))


def _skewed(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return np.asarray((rng.exponential(size=shape) - 1.0) * np.where(np.arange(shape[1]) % 2, 1.0, -1.0))


TRAIT_LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], FloatArray]] = {
    "normal": _normal,
    "clusters": _clusters,
    "heavy tails": _heavy_tails,
    "skewed": _skewed,
}

COLUMN_KINDS = ("plain", "atoms", "trend", "coarse column", "counter", "time stamps", "gaps", "unequal", "counts")
"""What is done to the columns; "unequal" means that either table lacks some entities."""


def _views(rng: np.random.Generator, traits: FloatArray, correlation: float) -> tuple[FloatArray, FloatArray]:
    """Return two views of traits that correlate by so much, along each trait."""
    share = np.sqrt(correlation)
    return tuple(share * traits + np.sqrt(1 - correlation) * rng.normal(size=traits.shape) for _ in range(2))  # type: ignore[return-value]


def _mixed(rng: np.random.Generator, view: FloatArray, columns: int, own_traits: int = 0) -> FloatArray:
    own = rng.normal(size=(len(view), own_traits))
    together = np.column_stack([view, own])
    loadings = rng.normal(size=(together.shape[1], columns))
    return np.asarray(together @ loadings + NOISE * rng.normal(size=(len(view), columns)))


def synthetic(number: int, *, related: bool, nats: float, first_seed: int) -> Pair:
    """Return a pair of tables of the same entities, or of other entities of the same population.

    Args:
        number: of the pair; kinds take turns.
        related: whether the tables are about the same entities.
        nats: information that partners share, as a multiple of log n.
        first_seed: seed of the pair numbered 0.
    """
    rng = np.random.default_rng(first_seed + number)
    law = list(TRAIT_LAWS)[number % len(TRAIT_LAWS)]
    kind = COLUMN_KINDS[(number // len(TRAIT_LAWS)) % len(COLUMN_KINDS)]
    rows = int(np.exp(rng.uniform(np.log(40), np.log(1500))))
    if number % 50 == 7:
        rows = int(np.exp(rng.uniform(np.log(MANY_ROWS), np.log(20_000))))
    correlation = float(np.sqrt(1.0 - np.exp(-2.0 * nats * np.log(rows) / TRAITS)))
    traits = TRAIT_LAWS[law](rng, (2 * rows, TRAITS))
    # One population and one way of measuring; the second half of it are other entities.
    views = _views(rng, traits, correlation)
    own = OWN_TRAITS if rng.random() < 1 / 3 else 0
    whole = [_mixed(rng, view, columns, own) for view, columns in zip(views, COLUMNS, strict=True)]
    first, second = np.arange(rows), np.arange(rows) if related else np.arange(rows, 2 * rows)
    if kind == "unequal":
        first, second = first[: round(0.9 * rows)], second[round(0.2 * rows) :]
    tables = [pd.DataFrame(table[part]) for table, part in zip(whole, (first, second), strict=True)]
    for table, letter in zip(tables, "ab", strict=True):
        table.columns = [f"{letter}{k}" for k in range(table.shape[1])]
        _with_kind(rng, table, kind, letter)
    if kind == "coarse column":
        cut = np.digitize(traits[:, 0], np.quantile(traits[:, 0], (0.25, 0.5, 0.75)))
        for table, part in zip(tables, (first, second), strict=True):
            table["site"] = cut[part]
    order = rng.permutation(len(second))
    place = {int(entity): at for at, entity in enumerate(second[order])}
    truth = np.array([place.get(int(entity), -1) for entity in first])
    shuffled = tables[1].iloc[order].reset_index(drop=True)
    if kind == "counter":
        # Numbers of rows as they stand in the file, which say nothing about entities.
        tables[0].insert(0, "line", np.arange(len(first)))
        shuffled.insert(0, "line", np.arange(len(second)))
    if kind == "time stamps":
        for table, letter in ((tables[0], "a"), (shuffled, "b")):
            table.insert(0, f"taken_{letter}", 1.6e9 + 60.0 * np.arange(len(table)) + rng.uniform(0, 30, len(table)))
    kind = f"{kind}, own traits" if own else kind
    return Pair(f"{law}, {kind}", {"a": tables[0], "b": shuffled}, truth, nats if related else 0.0)


def _with_kind(rng: np.random.Generator, table: pd.DataFrame, kind: str, letter: str) -> None:
    if kind == "atoms":
        for name in table.columns[::3]:
            table[name] = np.where(table[name] < table[name].quantile(0.4), table[name].quantile(0.4), table[name])
    elif kind == "trend":
        table[f"{letter}_trend"] = np.linspace(0, 5, len(table)) + rng.normal(size=len(table))
    elif kind == "gaps":
        table.mask(pd.DataFrame(rng.random(table.shape) < 0.1, columns=table.columns), inplace=True)
    elif kind == "counts":
        for name in table.columns[::2]:
            table[name] = rng.poisson(np.exp(1.5 + 0.4 * table[name].clip(-6, 6)))


def _real_tables() -> list[tuple[str, FloatArray, FloatArray]]:
    """Return real tables in two parts: those of scikit-learn, and the real pairs of the data folder."""
    found = []
    for name in ("breast_cancer", "wine", "diabetes", "digits", "iris"):
        data = getattr(datasets, f"load_{name}")().data
        data = data[:, data.std(axis=0) > 0]
        found.append((name.replace("_", " "), data[:, ::2], data[:, 1::2]))
    home = os.environ.get("KEYLESS_DATA_HOME")
    for path in sorted(Path(home, "pairs").glob("*.npz")) if home else ():
        with np.load(path) as stored:
            found.append((path.stem, stored["X"].astype(float), stored["Y"].astype(float)))
    return found


def real_strangers(number: int, *, first_seed: int) -> Pair:
    """Return the left part of some rows of a real table and the right part of other rows."""
    tables = _real_tables()
    name, left, right = tables[number % len(tables)]
    rng = np.random.default_rng(first_seed + number)
    rows = rng.permutation(len(left))[:1000]
    half = len(rows) // 2
    return Pair(name, {"a": left[rows[:half]], "b": right[rows[half:]]}, np.full(half, -1))


GONE = ((0.0, 0.0), (0.05, 0.0), (0.05, 0.05), (0.2, 0.2))
"""Shares of the rows that the first and the second part of a real table lack; they take turns."""

PARTNERS = (
    "breast cancer",
    "digits",
    "AquaticTox_Lcalc_QuickProp",
    "AquaticTox_moe2D_QuickProp",
    "NCI60_hgu133p2_hgu95",
)
"""Real tables of which most rows can be placed."""


def real_partners(number: int, *, first_seed: int) -> Pair:
    """Return both parts of a real table, some rows of either gone."""
    tables = [each for each in _real_tables() if each[0] in PARTNERS]
    name, left, right = tables[number % len(tables)]
    gone = GONE[number // len(tables) % len(GONE)]
    rng = np.random.default_rng(first_seed + number)
    entities = rng.permutation(len(left))[:1000]
    first, second = (rng.permutation(entities)[: round((1 - share) * len(entities))] for share in gone)
    place = {int(entity): at for at, entity in enumerate(second)}
    truth = np.array([place.get(int(entity), -1) for entity in first])
    return Pair(f"{name}, {gone[0]:.0%} and {gone[1]:.0%} gone", {"a": left[first], "b": right[second]}, truth)


def selected(number: int, *, first_seed: int) -> Pair:
    """Return tables of which one leaves out the low quarter of a trait, the other the high quarter."""
    rng = np.random.default_rng(first_seed + number)
    rows = int(rng.integers(150, 600))
    traits = TRAIT_LAWS[list(TRAIT_LAWS)[number % len(TRAIT_LAWS)]](rng, (rows, TRAITS))
    nats = 2.0
    views = _views(rng, traits, float(np.sqrt(1.0 - np.exp(-2.0 * nats * np.log(rows) / TRAITS))))
    low, high = np.quantile(traits[:, 0], (0.25, 0.75))
    kept = np.flatnonzero(traits[:, 0] >= low), rng.permutation(np.flatnonzero(traits[:, 0] <= high))
    tables = {
        name: _mixed(rng, view, columns)[part]
        for name, view, columns, part in zip("ab", views, COLUMNS, kept, strict=True)
    }
    place = {int(entity): at for at, entity in enumerate(kept[1])}
    return Pair("selected", tables, np.array([place.get(int(entity), -1) for entity in kept[0]]), nats)
