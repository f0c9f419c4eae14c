"""The joint factor model of linked tables, in the units of the tables: fills what is missing and says how well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keyless.arrays import BoolArray, FloatArray, IntArray, NumpyArray, batches
from keyless.block import Block
from keyless.model.factor_model import FactorModel, Information, information, posterior
from keyless.model.scales import Scale

__all__ = ["JointModel"]


_CELLS_AT_A_TIME = 2**20
"""Rows are looked at in batches. The rank × rank matrices of a batch, or its entries, are about so many numbers."""


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

    def __repr__(self) -> str:
        widths = " + ".join(f"{len(scales):,}" for scales in self.scales)
        how = "each table is filled from all" if self.shared else "each table is filled alone"
        return f"JointModel: {self.factors.rank} factors of {widths} columns; {how}"

    def table_factors(self, index: int) -> FactorModel:
        """Return the model as one table sees it."""
        edges = np.cumsum([0, *(len(scales) for scales in self.scales)])
        return self.factors.columns(slice(int(edges[index]), int(edges[index + 1])))

    def scores(self, index: int, block: Block, *, rows: IntArray | None = None) -> FloatArray:
        """Return a table's standard scores, 0 where missing.

        Args:
            index: number of the table.
            block: the table.
            rows: the rows wanted, −1 for one that is missing altogether; None: all.
        """
        return self._seen(index, block, rows)[0]

    def _seen(self, index: int, block: Block, rows: IntArray | None) -> tuple[FloatArray, BoolArray]:
        """Standard scores of some rows, and which are observed."""
        values, mask = block.values, block.mask
        if rows is not None:
            taken = np.maximum(rows, 0)
            values, mask = values[taken], mask[taken] & (rows >= 0)[:, None]
        scores = np.zeros(values.shape)
        for k, scale in enumerate(self.scales[index]):
            seen = mask[:, k]
            scores[seen, k] = scale.apply(values[seen, k])
        return scores, mask

    def information(self, index: int, block: Block, *, rows: IntArray | None = None) -> Information:
        """Return what each row of a table says about its entity's factors.

        That is a matrix of rank × rank for each row: of many rows, ask for some at a time. Where the same columns are
        observed in all of them it is the same matrix, held once.

        Args:
            index: number of the table.
            block: the table.
            rows: the rows wanted, −1 for one of which nothing is known; None: all.
        """
        model = self.table_factors(index)
        scores, mask = self._seen(index, block, rows)
        if len(mask) < 2 or not (not any(mask.strides) or (mask == mask[:1]).all()):
            return information(model, scores, mask)
        alike = information(model, np.zeros((1, mask.shape[1])), mask[:1])
        # The shift is linear in the scores, which are 0 where nothing is observed.
        shift = scores @ (model.loadings / model.noise[:, None]) + alike.shift
        return Information(np.broadcast_to(alike.precision, (len(mask), *alike.precision.shape[1:])), shift)

    def entity_information(
        self, blocks: Sequence[Block], rows: Sequence[IntArray], *, without: int | None = None
    ) -> Information:
        """Return what the tables together say about the entity of each reference row.

        Args:
            blocks: the tables, the reference first.
            rows: for each, the row that belongs to each reference row, −1 for none. Of many reference rows, give some
                at a time.
            without: number of a table to leave out.
        """
        return _total([self.information(t, blocks[t], rows=rows[t]) for t in range(len(blocks)) if t != without])

    def factors_of(self, blocks: Sequence[Block], rows: Sequence[IntArray]) -> FloatArray:
        """Return the factors of the entity of each reference row: rows × rank.

        Args:
            blocks: the tables, the reference first.
            rows: for each, the row that belongs to each reference row, −1 for none.
        """
        made = np.empty((len(rows[0]), self.factors.rank))
        for part in self.parts(len(rows[0])):
            some = [index[part] for index in rows]
            # Tables that are not linked say nothing about the reference's entities.
            known = (
                self.entity_information(blocks, some) if self.shared else self.information(0, blocks[0], rows=some[0])
            )
            made[part] = _posterior(known)[0]
        return made

    def complete(self, blocks: Sequence[Block], rows: Sequence[IntArray]) -> list[tuple[FloatArray, FloatArray]]:
        """Fill every table in reference order.

        Args:
            blocks: the tables, the reference first.
            rows: for each, the row that belongs to each reference row, −1 for none.

        Returns:
            Per table, the values (observed ones untouched) and the standard error of each (0 where observed).
        """
        made = [
            (np.asarray(block.values[np.maximum(index, 0)], dtype=np.float64), np.zeros((len(index), block.shape[1])))
            for block, index in zip(blocks, rows, strict=True)
        ]
        for t, places, values, errors, missing in self._gaps(blocks, rows, range(len(blocks))):
            for whole, part in zip(made[t], (values, errors), strict=True):
                whole[places] = np.where(missing, part, whole[places])
        return made

    def gaps(self, number: int, blocks: Sequence[Block], rows: Sequence[IntArray]) -> FloatArray:
        """Return what one table is filled with, in reference order: 0 where an entry is observed.

        Rows in which nothing is missing take no memory; the others are held in the table's own type of numbers.

        Args:
            number: of the table.
            blocks: the tables, the reference first.
            rows: for each, the row that belongs to each reference row, −1 for none.
        """
        return self._one(number, blocks, rows, errors=False)

    def gap_errors(self, number: int, blocks: Sequence[Block], rows: Sequence[IntArray]) -> FloatArray:
        """Return the standard errors of what `gaps` returns: 0 where an entry is observed."""
        return self._one(number, blocks, rows, errors=True)

    def parts(self, count: int) -> Iterator[slice]:
        """Return rows to be looked at together, so that no array of all rows × rank × rank is ever made."""
        size = max(self.factors.rank**2, len(self.factors.loadings), 1)
        return batches(count, max(_CELLS_AT_A_TIME // size, 64))

    def _one(self, number: int, blocks: Sequence[Block], rows: Sequence[IntArray], *, errors: bool) -> NumpyArray:
        # Zeros that nobody writes to take no memory.
        whole = np.zeros((len(rows[number]), blocks[number].shape[1]), dtype=blocks[number].values.dtype)
        for _, places, values, deviations, missing in self._gaps(blocks, rows, [number]):
            whole[places] = np.where(missing, deviations if errors else values, 0.0)
        return whole

    def _gaps(
        self, blocks: Sequence[Block], rows: Sequence[IntArray], tables: Sequence[int]
    ) -> Iterator[tuple[int, IntArray, FloatArray, FloatArray, BoolArray]]:
        """Yield table, reference rows, values, standard errors and what is missing, for rows with a missing entry."""
        for part in self.parts(len(rows[0])):
            missing = {}
            for t in tables:
                index = rows[t][part]
                missing[t] = ~(blocks[t].mask[np.maximum(index, 0)] & (index >= 0)[:, None])
            lacking = {t: np.flatnonzero(unseen.any(axis=1)) for t, unseen in missing.items()}
            shared = self._entities(blocks, rows, part, list(lacking.values())) if self.shared else None
            for t, places in lacking.items():
                if not places.size:
                    continue
                if shared is None:
                    known = _posterior(self.information(t, blocks[t], rows=rows[t][part][places]))
                else:
                    known = shared[0][places], shared[1][places if len(shared[1]) > 1 else slice(None)]
                yield t, part.start + places, *self._fill(t, *known), missing[t][places]

    def _entities(
        self, blocks: Sequence[Block], rows: Sequence[IntArray], part: slice, lacking: Sequence[IntArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Means and covariances of the entities of some reference rows; only those that lack an entry are computed."""
        places = np.unique(np.concatenate(lacking))
        means = np.zeros((part.stop - part.start, self.factors.rank))
        if not places.size:
            return means, np.zeros((1, self.factors.rank, self.factors.rank))
        found, covariance = _posterior(self.entity_information(blocks, [index[part][places] for index in rows]))
        means[places] = found
        if len(covariance) == 1:
            return means, covariance
        spread = np.zeros((len(means), *covariance.shape[1:]))
        spread[places] = covariance
        return means, spread

    def _fill(self, index: int, means: FloatArray, covariance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Values of all columns of a table and their standard errors, from what is known of the factors."""
        model = self.table_factors(index)
        scores = means @ model.loadings.T + model.offsets
        uncertainty = np.einsum("nab,ka,kb->nk", covariance, model.loadings, model.loadings, optimize=True)
        deviation = np.broadcast_to(np.sqrt(uncertainty + model.noise), scores.shape)
        values, errors = np.empty(scores.shape), np.empty(scores.shape)
        for k, scale in enumerate(self.scales[index]):
            values[:, k] = scale.undo(scores[:, k])
            errors[:, k] = scale.slope(scores[:, k]) * deviation[:, k]
        return values, errors


def _is_alike(info: Information) -> bool:
    """Tell whether all rows have the same precision, held once."""
    return len(info) > 1 and info.precision.strides[0] == 0


def _total(parts: Sequence[Information]) -> Information:
    """What independent rows say together; a precision that is held once for all rows stays so."""
    shift = sum((part.shift for part in parts[1:]), start=parts[0].shift)
    if all(map(_is_alike, parts)):
        precision = sum((part.precision[0] for part in parts[1:]), start=parts[0].precision[0])
        return Information(np.broadcast_to(precision, parts[0].precision.shape), shift)
    precision = sum((part.precision for part in parts[1:]), start=parts[0].precision)
    return Information(precision, shift)


def _posterior(info: Information) -> tuple[FloatArray, FloatArray]:
    """Means and covariances of the factors; one covariance where it is the same for all rows."""
    if not _is_alike(info):
        means, covariance, _ = posterior(info)
        return means, covariance
    _, covariance, _ = posterior(info[:1])
    return info.shift @ covariance[0], covariance
