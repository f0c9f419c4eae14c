"""Pairs of tables for the verdict: unrelated ones, linkable ones, and one that needs a few known pairs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from sklearn import datasets

from keyless.datasets import make_shuffled_tables
from linking_rivals import nats_per_row

Tables = dict[str, Any]


def unrelated(count: int, first_seed: int) -> Iterator[tuple[str, Tables]]:
    """Yield pairs of tables about different things: drawn apart, with equal marginals, and halves of real tables."""
    kinds = (_drawn_apart, _equal_marginals, _gaps, _real_halves)
    for i in range(count):
        yield kinds[i % len(kinds)](np.random.default_rng(first_seed + i), i // len(kinds))


def _sizes(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "n_rows": int(rng.integers(60, 201)),
        "column_counts": (int(rng.integers(10, 31)), int(rng.integers(10, 31))),
        "rank": int(rng.integers(3, 9)),
        "noise": float(rng.uniform(0.1, 0.5)),
    }


def _drawn_apart(rng: np.random.Generator, _: int) -> tuple[str, Tables]:
    settings = _sizes(rng)
    first, second = (make_shuffled_tables(**settings, random_state=int(rng.integers(2**31))) for _ in range(2))
    return "drawn apart", {"a": first.tables["reference"], "b": second.tables["table1"]}


def _gaps(rng: np.random.Generator, _: int) -> tuple[str, Tables]:
    settings = {**_sizes(rng), "observed": 0.8}
    first, second = (make_shuffled_tables(**settings, random_state=int(rng.integers(2**31))) for _ in range(2))
    return "drawn apart, 80% observed", {"a": first.tables["reference"], "b": second.tables["table1"]}


def _equal_marginals(rng: np.random.Generator, _: int) -> tuple[str, Tables]:
    """Two tables that follow the same loadings, of other entities, every column with the very same set of values."""
    settings = _sizes(rng)
    rows, width, rank = settings["n_rows"], settings["column_counts"][0], settings["rank"]
    loadings = rng.normal(size=(rank, width))
    first, second = (
        rng.normal(size=(rows, rank)) @ loadings + settings["noise"] * rng.normal(size=(rows, width)) for _ in range(2)
    )
    ranks = np.argsort(np.argsort(second, axis=0), axis=0)
    return "equal marginals", {"a": first, "b": np.take_along_axis(np.sort(first, axis=0), ranks, axis=0)}


def _real_halves(rng: np.random.Generator, number: int) -> tuple[str, Tables]:
    """Some rows of a real table in some of its columns, and other rows in the other columns."""
    loaders = (datasets.load_breast_cancer, datasets.load_wine, datasets.load_diabetes, datasets.load_digits)
    loader = loaders[number % len(loaders)]
    data = loader().data
    data = data[:, data.std(axis=0) > 0]
    rows, columns = rng.permutation(len(data))[:300], rng.permutation(data.shape[1])
    half, wide = len(rows) // 2, data.shape[1] // 2
    name = loader.__name__.removeprefix("load_").replace("_", " ")
    return (
        f"{name}, other rows",
        {"a": data[np.ix_(rows[:half], columns[:wide])], "b": data[np.ix_(rows[half : 2 * half], columns[wide:])]},
    )


def linkable(count: int, first_seed: int) -> Iterator[tuple[Any, float]]:
    """Yield problems whose true matches carry between 2 and 3 times log n nats a row, and how many they do."""
    for i in range(count):
        rng = np.random.default_rng(first_seed + i)
        settings = {**_sizes(rng), "observed": 1.0 if i % 2 else 0.8}
        wanted = float(rng.uniform(2, 3) * np.log(settings["n_rows"]))
        seed, low, high = int(rng.integers(2**31)), 1e-3, 10.0
        for _ in range(30):
            settings["noise"] = float(np.sqrt(low * high))
            made = make_shuffled_tables(**settings, random_state=seed)
            low, high = (settings["noise"], high) if nats_per_row(made) > wanted else (low, settings["noise"])
        made = make_shuffled_tables(**{**settings, "noise": low}, random_state=seed)
        yield made, nats_per_row(made)


def mirrored(first_seed: int, *, rank: int = 3, shapes: int = 15) -> tuple[Tables, Any]:
    """Return tables whose entities come in all mirror images, so that nothing in them tells left from right.

    The answer is determined only up to 2**rank mirrorings: no method can know which, unless told of a few pairs.
    """
    rng = np.random.default_rng(first_seed)
    signs = np.array(list(product((-1.0, 1.0), repeat=rank)))
    latents = (rng.normal(size=(shapes, 1, rank)) * signs).reshape(-1, rank)
    order = rng.permutation(len(latents))
    first, second = (latents @ rng.normal(size=(rank, width)) for width in (12, 10))
    first, second = (table + 0.02 * rng.normal(size=table.shape) for table in (first, second))
    return {"a": first, "b": second[order]}, np.argsort(order)
