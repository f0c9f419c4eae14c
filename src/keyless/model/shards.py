"""Rows of numbers in shards, each of which is held by the worker that works on it.

All that a search asks of all rows is a sum over shards, the best few of the best rows of each shard, or a few rows by
number: neither a worker nor the process that searches holds all rows. Tables of up to `SHARD` rows are one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from keyless.arrays import FloatArray, IntArray, batches
from keyless.cluster import LOCAL, Workers

__all__ = ["BATCH", "SHARD", "Sharded", "edges_of", "in_batches", "sampled", "split"]


SHARD = 2**20
"""Most rows of a shard. The answer depends a little on this size, and never on the number of workers."""

BATCH = 32_768
"""Rows that are worked on at a time: enough for matrix products to be fast, few enough to stay in little memory."""


def edges_of(rows: int) -> IntArray:
    """Return where shards of equal size begin, and the number of rows."""
    count = max(1, -(-rows // SHARD))
    return np.linspace(0, rows, count + 1).astype(np.int64)


def split(rows: IntArray, edges: IntArray) -> list[IntArray]:
    """Return, per shard, the places in `rows` of the rows that it holds."""
    if len(edges) == 2:
        return [np.arange(len(rows))]
    shard = np.searchsorted(edges, rows, side="right") - 1
    order = np.argsort(shard, kind="stable")
    return np.split(order, np.searchsorted(shard[order], np.arange(1, len(edges) - 1)))


def sampled(size: int, count: int, rng: np.random.Generator) -> IntArray:
    """Return `count` row numbers drawn at random, in order; all row numbers if there are no more than that."""
    if size <= count:
        return np.arange(size)
    return np.sort(rng.choice(size, count, replace=False, shuffle=False))


@dataclass(frozen=True, eq=False)
class Sharded:
    """Rows × latents in shards.

    Attributes:
        shards: what stands for each shard's array of float32.
        edges: number of each shard's first row, and the number of rows.
        turn: what every row is multiplied with before it is looked at.
        workers: who holds them.
        sums: sums over all rows, computed once and used by all copies that `turned` makes.
    """

    shards: tuple[Any, ...]
    edges: IntArray
    turn: FloatArray
    workers: Workers
    sums: dict[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: FloatArray) -> Sharded:
        """Return an array of this process in shards."""
        edges = edges_of(len(rows))
        shards = tuple(rows[a:b] for a, b in pairwise(edges))
        return cls(shards, edges, np.eye(rows.shape[1]), LOCAL)

    def __len__(self) -> int:
        return int(self.edges[-1])

    @property
    def rank(self) -> int:
        """Number of latents."""
        return int(self.turn.shape[1])

    @property
    def moment(self) -> FloatArray:
        """Mean over rows of products of latents."""
        if "moment" not in self.sums:
            plain = replace(self, turn=np.eye(len(self.turn)))
            self.sums["moment"] = sum(plain.each(_products)) / max(len(self), 1)
        return self.turn.T @ self.sums["moment"] @ self.turn

    def turned(self, turn: FloatArray) -> Sharded:
        """Return the rows multiplied with a matrix; nothing is computed yet."""
        return replace(self, turn=self.turn @ turn)

    def start(self, function: Callable[..., Any], *each: Sequence[Any]) -> list[Any]:
        """Begin `function(shard, turn, first row, …)` for every shard.

        Args:
            function: a function of a module.
            each: sequences of further arguments, one entry per shard.
        """
        firsts = self.edges[:-1].tolist()
        rest = zip(*each, strict=True) if each else [()] * len(firsts)
        return [
            self.workers.start(function, shard, self.turn, first, *more)
            for shard, first, more in zip(self.shards, firsts, rest, strict=True)
        ]

    def each(self, function: Callable[..., Any], *each: Sequence[Any]) -> list[Any]:
        """Return `function(shard, turn, first row, …)` of every shard."""
        return self.workers.fetch(self.start(function, *each))

    def take(self, rows: IntArray) -> FloatArray:
        """Return some rows by number, in float64."""
        found = np.empty((len(rows), self.rank))
        places = split(rows, self.edges)
        used = [number for number, place in enumerate(places) if len(place)]
        parts = [self.workers.start(_taken, self.shards[k], self.turn, rows[places[k]] - self.edges[k]) for k in used]
        for number, part in zip(used, self.workers.fetch(parts), strict=True):
            found[places[number]] = part
        return found


def in_batches(shard: FloatArray, turn: FloatArray) -> Any:
    """Yield batches of a shard: the number of the first row, and the turned rows in float64."""
    for part in batches(len(shard), BATCH):
        yield part.start, shard[part].astype(np.float64) @ turn


def _products(shard: FloatArray, turn: FloatArray, _first: int) -> FloatArray:
    total = np.zeros((turn.shape[1], turn.shape[1]))
    for _, rows in in_batches(shard, turn):
        total += rows.T @ rows
    return total


def _taken(shard: FloatArray, turn: FloatArray, rows: IntArray) -> FloatArray:
    return np.asarray(shard[rows].astype(np.float64) @ turn)
