"""Where rows stand among the latents: one short vector per row, all that is kept of a table while it is linked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from keyless.alignment.latents import Latents, whitening
from keyless.arrays import batches
from keyless.landmarks.scores import BATCH, LargeTable
from keyless.model.factor_model import FactorModel, Information, information, posterior

__all__ = ["Cloud", "Side"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Side:
    """One table, or several already joined, and what each entity's rows say about its latents.

    Attributes:
        tables: the tables.
        rows: per table, the row of every entity, −1 where it has none; None where they are in order.
        model: factor model over the tables' columns side by side.
    """

    tables: tuple[LargeTable, ...]
    rows: tuple[IntArray | None, ...]
    model: FactorModel

    @classmethod
    def alone(cls, table: LargeTable, model: FactorModel) -> Side:
        """Return a table by itself."""
        return cls((table,), (None,), model)

    def __len__(self) -> int:
        first = self.rows[0]
        return len(self.tables[0]) if first is None else len(first)

    @cached_property
    def uniform(self) -> bool:
        """Whether every entity is seen in the same columns, so that all have the same precision."""
        return all(table.complete for table in self.tables) and all(
            rows is None or bool((rows >= 0).all()) for rows in self.rows
        )

    def scores(self, entities: slice | IntArray) -> tuple[FloatArray, Any]:
        """Return standard scores and mask of some entities, the tables side by side."""
        values, masks = [], []
        for table, rows in zip(self.tables, self.rows, strict=True):
            index = entities if rows is None else rows[entities]
            if isinstance(index, slice) or index.min(initial=0) >= 0:
                score, mask = table.scores(index)
            else:
                score, mask = table.scores(np.maximum(index, 0))
                mask = mask & (index >= 0)[:, None]
                score = np.where(mask, score, 0.0)
            values.append(score)
            masks.append(mask)
        return np.concatenate(values, axis=1), np.concatenate(masks, axis=1)

    def information(self, entities: IntArray) -> Information:
        """Return what is known of some entities, exactly."""
        return information(self.model, *self.scores(entities))

    def cloud(self) -> Cloud:
        """Return where all entities stand."""
        means = np.empty((len(self), self.model.rank), dtype=np.float32)
        if self.uniform:
            scores, mask = self.scores(slice(0, 1))
            single = information(self.model, scores, mask)
            covariance = np.linalg.inv(single.precision[0] + np.eye(self.model.rank))
            linear = (self.model.loadings / self.model.noise[:, None]) @ covariance
            first = posterior(single)[0][0] - scores[0] @ linear
            for part in batches(len(self), BATCH):
                means[part] = self.scores(part)[0] @ linear + first
            return Cloud(means, single.precision[0])
        total = np.zeros((self.model.rank, self.model.rank))
        for part in batches(len(self), 4_096):
            info = information(self.model, *self.scores(part))
            total += info.precision.sum(axis=0)
            means[part] = posterior(info)[0]
        return Cloud(means, total / len(self))


@dataclass(frozen=True, eq=False)
class Cloud:
    """Posterior means of all entities' latents, and the average precision of what they rest on.

    Attributes:
        means: entities × rank.
        precision: rank × rank.
    """

    means: FloatArray
    precision: FloatArray

    def __len__(self) -> int:
        return len(self.means)

    @property
    def rank(self) -> int:
        """Number of latents."""
        return int(self.means.shape[1])

    @cached_property
    def whitening(self) -> FloatArray:
        """What `means @ whitening` has unit second moment with."""
        total = np.zeros((self.rank, self.rank))
        for part in batches(len(self), BATCH):
            some = self.means[part].astype(np.float64)
            total += some.T @ some
        return whitening(total / max(len(self), 1))

    @cached_property
    def distance(self) -> FloatArray:
        """How far out each entity is, all directions alike."""
        found = np.empty(len(self), dtype=np.float32)
        turn = self.whitening.astype(np.float32)
        for part in batches(len(self), BATCH):
            found[part] = np.square(self.means[part] @ turn).sum(axis=1)
        return found

    def shift(self, rows: Any) -> FloatArray:
        """Return the shifts of some entities as if all had the average precision, their means kept."""
        return np.asarray(self.means[rows].astype(np.float64) @ (self.precision + np.eye(self.rank)))

    def information(self, rows: IntArray) -> Information:
        """Return what is known of some entities, all with the average precision."""
        return Information(np.broadcast_to(self.precision, (len(rows), self.rank, self.rank)), self.shift(rows))

    def latents(self, rows: IntArray) -> Latents:
        """Return some entities as the search for a first correspondence wants them."""
        means = self.means[rows].astype(np.float64)
        return Latents(self.information(rows), means, means @ self.whitening)

    def turned(self, rotation: FloatArray) -> Cloud:
        """Return the cloud in terms of `latent @ rotation`."""
        return Cloud(self.means @ rotation.astype(np.float32), rotation.T @ self.precision @ rotation)

    def padded(self, rank: int) -> Cloud:
        """Return the cloud with latents that nothing is known of appended up to `rank`."""
        extra = rank - self.rank
        if extra <= 0:
            return self
        return Cloud(np.pad(self.means, ((0, 0), (0, extra))), np.pad(self.precision, (0, extra)))

    def marginal(self, directions: FloatArray) -> Cloud:
        """Return what is known of some directions by themselves, given as orthonormal columns."""
        covariance = directions.T @ np.linalg.inv(self.precision + np.eye(self.rank)) @ directions
        precision = np.linalg.inv(covariance) - np.eye(directions.shape[1])
        return Cloud(self.means @ directions.astype(np.float32), precision)

    def outermost(self, count: int, *, skip: int = 0) -> IntArray:
        """Return the entities farthest out, the farthest first, after leaving out `skip` of them."""
        most = min(count + skip, len(self))
        far = np.argpartition(-self.distance, most - 1)[:most]
        return far[np.argsort(-self.distance[far], kind="stable")][skip:]

    def scattered(self, directions: FloatArray, rng: np.random.Generator) -> Cloud:
        """Return the cloud with the values along every direction dealt anew to the entities: nothing is left to find.

        Args:
            directions: orthonormal columns; what is beside them is 0.
            rng: deals.
        """
        turn = self.whitening @ directions
        means = np.empty((len(self), directions.shape[1]), dtype=np.float32)
        for k, direction in enumerate(turn.T):
            means[:, k] = rng.permutation(self.means @ direction.astype(np.float32))
        return Cloud(means @ np.linalg.pinv(turn).astype(np.float32), self.precision)
