"""Where rows stand among the latents: one short vector per row, all that is kept of a table while it is linked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from keyless.arrays import BoolArray, FloatArray, IntArray, SingleArray, array_like, batches, on_device, to_numpy
from keyless.cluster import LOCAL, Workers
from keyless.model.factor_model import FactorModel, Information, information, posterior
from keyless.model.factors import Factors, principal_factors
from keyless.model.latents import Latents, whitening
from keyless.model.scored_tables import ScoredTable
from keyless.model.shards import BATCH, Sharded, edges_of, in_batches
from keyless.progress import check_time

__all__ = ["Entities", "Places", "Positions", "rows_at_a_time"]

_OUTER = 8_192
"""Rows far out that are found at once: enough for three sets of rows that a map is sought with and confirmed by."""

_IN_MEMORY, _ON_DEVICE = 4_096, 2**14
"""Rows with gaps that are worked on at a time, by the processor and by a graphics card. With 40 factors they take a
gigabyte on the card."""


def rows_at_a_time(device: Any) -> int:
    """Return how many rows with gaps are worked on at a time on a device; None: by the processor."""
    return _IN_MEMORY if device is None else _ON_DEVICE


@dataclass(frozen=True, eq=False)
class Entities:
    """One table, or several already joined, and what each entity's rows say about its latents.

    Attributes:
        tables: the tables.
        rows: per table, the row of every entity, −1 where it has none. None: row i is that of entity i; a slice: the
            entities have these rows, in order.
        model: factor model over the tables' columns side by side.
        workers: who works on the shards of rows.
    """

    tables: tuple[ScoredTable, ...]
    rows: tuple[IntArray | slice | None, ...]
    model: FactorModel
    workers: Workers = LOCAL

    @classmethod
    def alone(cls, table: ScoredTable, model: FactorModel, workers: Workers = LOCAL) -> Entities:
        """Return a table by itself."""
        return cls((table,), (None,), model, workers)

    def __len__(self) -> int:
        first = self.rows[0]
        if isinstance(first, slice):
            return int(first.stop - first.start)
        return len(self.tables[0]) if first is None else len(first)

    def taken(self, entities: slice | IntArray) -> Entities:
        """Return some entities by themselves, with their own rows alone, as they are sent to a worker."""
        return replace(self, rows=tuple(_some(rows, entities) for rows in self.rows), workers=LOCAL)

    @cached_property
    def uniform(self) -> bool:
        """Whether every entity is seen in the same columns, so that all have the same precision."""
        return all(table.complete for table in self.tables) and all(
            not isinstance(rows, np.ndarray) or bool((rows >= 0).all()) for rows in self.rows
        )

    @property
    def simple(self) -> bool:
        """Whether this is one table as given, on plain scales."""
        return len(self.tables) == 1 and self.rows[0] is None and self.tables[0].plain is not None

    def scores(self, entities: slice | IntArray) -> tuple[FloatArray, Any]:
        """Return standard scores and mask of some entities, the tables side by side."""
        values, masks = [], []
        for table, rows in zip(self.tables, self.rows, strict=True):
            index = _some(rows, entities)
            if isinstance(index, slice) or index.min(initial=0) >= 0:
                score, mask = table.scores(index)
            else:
                score, mask = table.scores(np.maximum(index, 0))
                mask = mask & (index >= 0)[:, None]
                score = np.where(mask, score, 0.0)
            values.append(score)
            masks.append(mask)
        return np.concatenate(values, axis=1), np.concatenate(masks, axis=1)

    def information(self, entities: slice | IntArray, device: Any = None) -> Information:
        """Return what is known of some entities, exactly, in arrays of a device; None: of the processor."""
        scores, mask = self.scores(entities)
        if device is not None:
            scores, mask = on_device(scores, device), on_device(mask, device)
        return information(self.model, scores, mask)

    def positions(self) -> Positions:
        """Return where all entities stand."""
        edges = edges_of(len(self))
        parts, turn = [self.taken(slice(a, b)) for a, b in pairwise(edges.tolist())], np.eye(self.model.rank)
        device = self.workers.device
        if self.uniform:
            scores, mask = self.scores(slice(0, 1))
            single = information(self.model, scores, mask)
            covariance = np.linalg.inv(single.precision[0] + np.eye(self.model.rank))
            linear = (self.model.loadings / self.model.noise[:, None]) @ covariance
            first = posterior(single)[0][0] - scores[0] @ linear
            device = device if self.simple else None
            shards = [self.workers.start(_linear_means, part, linear, first, device) for part in parts]
            return Positions(Sharded(tuple(shards), edges, turn, self.workers), single.precision[0])
        both = [self.workers.start(_exact_means, part, device) for part in parts]
        shards = [self.workers.start(itemgetter(0), found) for found in both]
        total = sum(self.workers.fetch([self.workers.start(itemgetter(1), found) for found in both]))
        return Positions(Sharded(tuple(shards), edges, turn, self.workers), total / len(self))


def _some(rows: IntArray | slice | None, entities: slice | IntArray) -> slice | IntArray:
    """Return the rows of some entities."""
    if rows is None:
        return entities
    if not isinstance(rows, slice):
        return rows[entities]
    if isinstance(entities, slice):
        return slice(rows.start + entities.start, rows.start + entities.stop)
    return np.asarray(rows.start + entities)


def _linear_means(side: Entities, linear: FloatArray, first: FloatArray, device: Any) -> SingleArray:
    """Return the posterior means of entities that all have the same precision."""
    means = np.empty((len(side), linear.shape[1]), dtype=np.float32)
    for part in batches(len(means), BATCH):
        if device is None:
            means[part] = side.scores(part)[0] @ linear + first
        else:
            scores = side.tables[0].scores_on(_some(side.rows[0], part), device)
            means[part] = to_numpy(scores @ array_like(linear, scores)) + first
    return means


def _exact_means(side: Entities, device: Any) -> tuple[SingleArray, FloatArray]:
    """Return the posterior means of entities, and the sum of their precisions."""
    rank = side.model.rank
    means, total = np.empty((len(side), rank), dtype=np.float32), np.zeros((rank, rank))
    for part in batches(len(means), rows_at_a_time(device)):
        info = side.information(part, device)
        total += to_numpy(info.precision.sum(axis=0))
        means[part] = to_numpy(posterior(info)[0])
    return means, total


@dataclass(frozen=True, eq=False)
class Positions:
    """Posterior means of all entities' latents, and the average precision of what is known of the latents.

    Attributes:
        rows: entities × rank, in shards.
        precision: rank × rank.
    """

    rows: Sharded
    precision: FloatArray

    @classmethod
    def of(cls, means: FloatArray, precision: FloatArray) -> Positions:
        """Return the positions of means that this process holds."""
        return cls(Sharded.of(means), precision)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rank(self) -> int:
        """Number of latents."""
        return self.rows.rank

    @cached_property
    def whitening(self) -> FloatArray:
        """The matrix that rows are multiplied with to have unit second moment."""
        return whitening(self.rows.moment)

    def latents(self, rows: IntArray) -> Latents:
        """Return some entities as the search for a first correspondence wants them, all with the average precision."""
        means = self.rows.take(rows)
        precision = np.broadcast_to(self.precision, (len(rows), self.rank, self.rank))
        info = Information(precision, means @ (self.precision + np.eye(self.rank)))
        return Latents(info, means, means @ self.whitening)

    def factors(self, rows: IntArray) -> Factors:
        """Return some entities as canonical growth wants them: whitened factors, the strongest first."""
        means = self.rows.take(rows)
        means = means - means.mean(axis=0)
        return principal_factors(means[:, means.any(axis=0)])

    def turned(self, rotation: FloatArray) -> Positions:
        """Return the positions in terms of `latent @ rotation`."""
        return Positions(self.rows.turned(rotation), rotation.T @ self.precision @ rotation)

    def padded(self, rank: int) -> Positions:
        """Return the positions with latents that nothing is known of appended up to `rank`."""
        extra = rank - self.rank
        if extra <= 0:
            return self
        return Positions(self.rows.turned(np.eye(self.rank, rank)), np.pad(self.precision, (0, extra)))

    def marginal(self, directions: FloatArray) -> Positions:
        """Return what is known of some directions by themselves, given as orthonormal columns."""
        covariance = directions.T @ np.linalg.inv(self.precision + np.eye(self.rank)) @ directions
        precision = np.linalg.inv(covariance) - np.eye(directions.shape[1])
        return Positions(self.rows.turned(directions), precision)

    def outermost(self, count: int, *, skip: int = 0, among: BoolArray | None = None) -> IntArray:
        """Return the entities farthest out, all directions alike, the farthest first.

        Args:
            count: how many.
            skip: how many of them to leave out first.
            among: True for the entities that count; None: all.
        """
        if among is not None:
            return self._far_out(count + skip, among)[skip:]
        if count + skip > len(self._outer):
            return self._far_out(count + skip, None)[skip:]
        return self._outer[skip : count + skip]

    @cached_property
    def _outer(self) -> IntArray:
        """The rows farthest out, more than are asked for most of the time."""
        return self._far_out(_OUTER, None)

    def _far_out(self, count: int, among: BoolArray | None) -> IntArray:
        white = self.rows.turned(self.whitening)
        allowed = [None if among is None else among[a:b] for a, b in pairwise(white.edges.tolist())]
        parts = white.each(partial(_outermost, count=count), allowed)
        rows, distance = (np.concatenate(part) for part in zip(*parts, strict=True))
        return np.asarray(rows[np.argsort(-distance, kind="stable")][:count])

    def scattered(self, directions: FloatArray, rng: np.random.Generator) -> Positions:
        """Return the positions with the values along every direction dealt anew to the entities: no partners are left.

        Values stay in their shard.

        Args:
            directions: orthonormal columns; the values along all other directions become 0.
            rng: deals the values.
        """
        turn = self.whitening @ directions
        along = self.rows.turned(turn)
        # One number is drawn, however many shards there are: what is drawn later does not depend on their number.
        shards = along.start(partial(_dealt, seed=int(rng.integers(2**63))))
        back = np.asarray(np.linalg.pinv(turn), dtype=np.float64)
        return Positions(Sharded(tuple(shards), along.edges, back, along.workers), self.precision)


Places = tuple[Positions, Positions]
"""Where the rows of two tables stand."""


def _outermost(
    shard: FloatArray, turn: FloatArray, first: int, among: BoolArray | None, *, count: int
) -> tuple[IntArray, SingleArray]:
    """Return the rows of a shard that are farthest out, by number, and how far."""
    distance, turn = np.empty(len(shard), dtype=np.float32), turn.astype(np.float32)
    for part in batches(len(shard), BATCH):
        distance[part] = np.square(shard[part] @ turn).sum(axis=1)
    chosen = np.arange(len(shard)) if among is None else np.flatnonzero(among)
    if count < len(chosen):
        chosen = np.sort(chosen[np.argpartition(-distance[chosen], count - 1)[:count]])
    return first + chosen, distance[chosen]


def _dealt(shard: FloatArray, turn: FloatArray, first: int, *, seed: int) -> FloatArray:
    """Return the turned rows of a shard with every column shuffled by itself."""
    rng = np.random.default_rng([seed, first])
    # Each column lies in one piece of memory: shuffling numbers that lie apart takes several times as long.
    columns = np.empty((turn.shape[1], len(shard)), dtype=np.float32)
    for start, rows in in_batches(shard, turn):
        columns[:, start : start + len(rows)] = rows.T
    for column in columns:
        check_time()
        rng.shuffle(column)
    return np.ascontiguousarray(columns.T)
