"""The joint factor model of linked tables, in the units of the tables: fills what is missing and says how well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.embedding.factor_model import FactorModel, Information, information, posterior
from keyless.embedding.scales import Scale
from keyless.problem import Block

__all__ = ["JointModel"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class JointModel:
    """One factor model over the columns of all tables, each column on its own scale.

    Attributes:
        factors: loadings, offsets and noise of every column, on standard scores.
        scales: per table, the scale of each column.
        shared: whether rows of different tables are taken for the same entity; False: every table is filled alone.
    """

    factors: FactorModel
    scales: tuple[tuple[Scale, ...], ...]
    shared: bool = True

    def table_factors(self, index: int) -> FactorModel:
        """Return the model as one table sees it."""
        edges = np.cumsum([0, *(len(scales) for scales in self.scales)])
        return self.factors.columns(slice(int(edges[index]), int(edges[index + 1])))

    def scores(self, index: int, block: Block) -> FloatArray:
        """Return a table's standard scores, 0 where missing."""
        scores = np.zeros(block.shape)
        for k, scale in enumerate(self.scales[index]):
            seen = block.mask[:, k]
            scores[seen, k] = scale.apply(block.values[seen, k])
        return scores

    def information(self, index: int, block: Block) -> Information:
        """Return what each row of a table says about its entity's factors."""
        return information(self.table_factors(index), self.scores(index, block), block.mask)

    def entity_information(
        self, blocks: Sequence[Block], rows: Sequence[IntArray], *, without: int | None = None
    ) -> Information:
        """Return what the tables together say about the entity of each reference row.

        Args:
            blocks: the tables, the reference first.
            rows: for each, the row that belongs to each reference row, −1 for none.
            without: number of a table to leave out.
        """
        parts = [
            _gathered(self.information(t, block), index)
            for t, (block, index) in enumerate(zip(blocks, rows, strict=True))
            if t != without
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def complete(self, blocks: Sequence[Block], rows: Sequence[IntArray]) -> list[tuple[FloatArray, FloatArray]]:
        """Fill every table in reference order.

        Args:
            blocks: the tables, the reference first.
            rows: for each, the row that belongs to each reference row, −1 for none.

        Returns:
            Per table, the values (observed ones untouched) and the standard error of each (0 where observed).
        """
        if self.shared:
            parts = [self.entity_information(blocks, rows)] * len(blocks)
        else:
            parts = [
                _gathered(self.information(t, block), index)
                for t, (block, index) in enumerate(zip(blocks, rows, strict=True))
            ]
        return [
            self._fill(t, block, index, parts[t]) for t, (block, index) in enumerate(zip(blocks, rows, strict=True))
        ]

    def _fill(self, index: int, block: Block, rows: IntArray, known: Information) -> tuple[FloatArray, FloatArray]:
        model = self.table_factors(index)
        means, covariance, _ = posterior(known)
        scores = means @ model.loadings.T + model.offsets
        uncertainty = np.einsum("nab,ka,kb->nk", covariance, model.loadings, model.loadings, optimize=True)
        deviation = np.sqrt(uncertainty + model.noise)
        taken, present = np.maximum(rows, 0), rows >= 0
        observed = block.mask[taken] & present[:, None]
        values, errors = np.empty(scores.shape), np.empty(scores.shape)
        for k, scale in enumerate(self.scales[index]):
            values[:, k] = scale.undo(scores[:, k])
            errors[:, k] = scale.slope(scores[:, k]) * deviation[:, k]
        values[observed] = block.values[taken][observed]
        errors[observed] = 0.0
        return values, errors


def _gathered(info: Information, rows: IntArray) -> Information:
    """Information per reference row; nothing where it has no row."""
    present = rows >= 0
    taken = info[np.maximum(rows, 0)]
    return Information(taken.precision * present[:, None, None], taken.shift * present[:, None])
