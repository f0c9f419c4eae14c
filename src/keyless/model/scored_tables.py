"""Tables too large to copy: standard scores are made from the values as they are needed, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from keyless.arrays import Array, BoolArray, FloatArray, IntArray, array_like, batches, namespace, on_device
from keyless.cluster import OnDisk
from keyless.model.scales import Scale, ScaleName, choose_scale
from keyless.model.shards import BATCH, sampled

__all__ = ["ScoredTable"]


@dataclass(frozen=True, eq=False)
class ScoredTable:
    """A table as given, and the scales of its columns.

    Attributes:
        values: rows × columns, of any float type: an array, or `OnDisk`.
        mask: True where observed; likewise.
        scales: of the columns.
    """

    values: Any
    mask: Any
    scales: tuple[Scale, ...]

    @classmethod
    def scaled(
        cls, values: Any, mask: Any, *, kinds: Sequence[ScaleName], rng: np.random.Generator, sample: int = 20_000
    ) -> ScoredTable:
        """Choose the scales by a sample of rows; numbers in a file are read from there, by whoever needs them.

        Args:
            values: rows × columns.
            mask: True where observed.
            kinds: of scale, for each column.
            rng: draws the sample.
            sample: how many rows.
        """
        values = OnDisk.behind(values) or values
        if any(mask.strides):
            mask = OnDisk.behind(mask) or mask
        rows = sampled(len(values), sample, rng)
        some, seen = np.asarray(values[rows], dtype=np.float64), np.asarray(mask[rows], dtype=bool)
        scales = tuple(choose_scale(some[seen[:, k], k], kind=kind) for k, kind in enumerate(kinds))
        return cls(values, mask, scales)

    def __len__(self) -> int:
        return len(self.values)

    def __getstate__(self) -> dict[str, Any]:
        # A mask that is one True for all entries must not become one True per entry on its way to another process.
        return self.__dict__ | {"mask": None if self.complete else self.mask}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["mask"] is None:
            state = state | {"mask": np.broadcast_to(np.True_, state["values"].shape)}
        self.__dict__.update(state)

    @cached_property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        if isinstance(self.mask, np.ndarray) and 0 in self.mask.strides:
            return bool(self.mask[:1, :1].all())
        return all(bool(self.mask[part].all()) for part in batches(len(self), BATCH))

    def scores(self, rows: slice | IntArray) -> tuple[FloatArray, BoolArray]:
        """Return standard scores (0 where missing) and mask of some rows."""
        values, mask = np.asarray(self.values[rows], dtype=np.float64), np.asarray(self.mask[rows], dtype=bool)
        if self.plain is not None:
            # By far the commonest case: all columns are scaled at once.
            scores = (values - self.plain[0]) / self.plain[1]
        else:
            scores = np.empty(values.shape)
            for k, scale in enumerate(self.scales):
                scores[:, k] = scale.apply(np.where(mask[:, k], values[:, k], scale.centre))
        # Scores of rows outside the sample could be of any size.
        np.clip(scores, -self.largest, self.largest, out=scores)
        return (scores if self.complete else np.where(mask, scores, 0.0)), mask

    @cached_property
    def plain(self) -> tuple[FloatArray, FloatArray] | None:
        """Centres and spreads of the columns, where that is all that their scales are."""
        if not all(scale.kind == "identity" and scale.spread for scale in self.scales):
            return None
        return np.array([scale.centre for scale in self.scales]), np.array([scale.spread for scale in self.scales])

    @property
    def largest(self) -> float:
        """The largest score that a column can have if it is scaled by all of its rows: √rows."""
        return float(np.sqrt(len(self.values)))

    def scores_on(self, rows: slice | IntArray, device: Any) -> Array:
        """Return standard scores of some rows on a device; nothing may be missing, and all scales must be plain.

        Args:
            rows: numbers of the rows.
            device: as `arrays.find_device` has it.
        """
        assert self.plain is not None  # the caller has asked
        values = on_device(np.asarray(self.values[rows]), device)
        xp = namespace(values)
        values = xp.astype(values, xp.float64)
        centre, spread = (array_like(part, values) for part in self.plain)
        return xp.clip((values - centre) / spread, -self.largest, self.largest)
