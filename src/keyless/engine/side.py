"""One table as the engine sees it: factors of its rows, on every kind of scale that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import BoolArray, IntArray, NumpyArray, as_matrix, to_numpy
from keyless.errors import InputError
from keyless.model.detection_limits import expected_scores
from keyless.model.factor_model import fit_table, information, posterior
from keyless.model.factors import Factors, principal_factors
from keyless.model.scales import ScaleName, kinds_of_columns, scale_table

__all__ = ["MAX_RANK", "Side", "sums_of_groups"]

MAX_RANK = 40
"""The most factors of a table while a map is sought; more of them slow every step and rarely help to find it."""


class Side:
    """One table, with its rows in an order that depends only on their content.

    So the order in which the caller gave them cannot matter.

    Args:
        values: rows × columns.
        mask: True where observed; None: everything is.
        scales: how columns are scaled.
        max_rank: the most factors while a map is sought.
        leading: columns that are made factors of their own, however small a part of the table they are: columns that
            the other table measures, too.
        chosen: scales of some columns, used where all other columns get the scale on which they look most normal
            (`"auto"`).
        name: of the table, for messages.
    """

    def __init__(
        self,
        values: Any,
        mask: Any = None,
        *,
        scales: ScaleName = "auto",
        max_rank: int = MAX_RANK,
        leading: Sequence[int] = (),
        chosen: Mapping[int, ScaleName] = MappingProxyType({}),
        name: str = "table",
    ) -> None:
        partly = mask is not None
        table = to_numpy(as_matrix(values, name=name, allow_missing=partly, allow_infinite=partly))
        observed = np.ones(table.shape, dtype=bool) if mask is None else to_numpy(mask).astype(bool)
        if observed.shape != table.shape:
            raise InputError(
                f"{name}: its mask must have the shape of its values, {table.shape}; found {observed.shape}."
            )
        self.mask: BoolArray = observed
        self.values = np.asarray(as_matrix(np.where(observed, table, 0.0), name=name), dtype=np.float64)
        self.scales, self.max_rank, self.leading = scales, max_rank, tuple(leading)
        self.chosen = dict(chosen)
        self._filled: dict[str, NumpyArray] = {}
        self._factors: dict[tuple[str, int], Factors] = {}
        self.order: IntArray = self.factors().row_order
        self.values, self.mask = self.values[self.order], self.mask[self.order]
        # Computed anew from rows in this order, so that not even rounding depends on the order they came in.
        self._filled, self._factors = {}, {}

    def __len__(self) -> int:
        """How many rows the table has."""
        return len(self.values)

    def some(self, rows: IntArray) -> tuple[Side, IntArray]:
        """Return some rows as a table of their own, and which row stands at each place of that table's order."""
        side = Side(
            self.values[rows],
            self.mask[rows],
            scales=self.scales,
            max_rank=self.max_rank,
            leading=self.leading,
            chosen=self.chosen,
        )
        return side, rows[side.order]

    def shuffled(self, rng: np.random.Generator) -> Side:
        """Return a table of which every factor has its rows permuted on its own; gaps and noise stay."""
        scores, mask = self.scores()
        model = fit_table(scores, mask, largest_rank=self.max_rank)
        means = posterior(information(model, scores, mask))[0]
        mixed = np.column_stack([rng.permutation(factor) for factor in means.T])
        return Side(scores + (mixed - means) @ model.loadings.T, mask, scales="identity", max_rank=self.max_rank)

    def scores(self) -> tuple[NumpyArray, BoolArray]:
        """Return the columns on their scales, 0 where missing, and which entries are observed."""
        return self._scaled(self.scales), self.mask

    def _scaled(self, kind: ScaleName) -> NumpyArray:
        kinds = kinds_of_columns(kind, self.values.shape[1], self.chosen)
        return scale_table(self.values, self.mask, kind=kinds)[0]

    def factors(
        self, scales: ScaleName | None = None, max_rank: int | None = None, *, groups: IntArray | None = None
    ) -> Factors:
        """Return the principal factors on a kind of scale.

        Args:
            scales: the kind; None: as set.
            max_rank: the most factors; None: as set.
            groups: labels of the rows, from 0; what rows of a group have in common is left out. None: nothing is left
                out.
        """
        kind, rank = self.scales if scales is None else scales, self.max_rank if max_rank is None else max_rank
        if (kind, rank) not in self._factors or groups is not None:
            if kind not in self._filled:
                self._filled[kind] = _filled(self._scaled(kind), self.mask)
            if groups is not None:
                within = _without_means(self._filled[kind], groups)
                return principal_factors(within, max_rank=rank, leading=self.leading)
            self._factors[kind, rank] = principal_factors(self._filled[kind], max_rank=rank, leading=self.leading)
        return self._factors[kind, rank]


def _without_means(scores: NumpyArray, groups: IntArray) -> NumpyArray:
    """Return the scores less the mean of their group."""
    _, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(scores - (sums_of_groups(scores, place, len(count)) / count[:, None])[place])


def sums_of_groups(scores: NumpyArray, place: IntArray, count: int) -> NumpyArray:
    """Return the sum of the rows of each of `count` groups, given the number of each row's group."""
    members = sparse.csr_array((np.ones(len(place)), (place, np.arange(len(place)))), shape=(count, len(place)))
    return np.asarray(members @ scores)


def _filled(scores: NumpyArray, mask: BoolArray) -> NumpyArray:
    """Return standard scores with missing entries replaced by what a factor model of the table expects there."""
    if mask.all() or not mask.any() or not scores[mask].any():
        return scores
    return np.where(mask, scores, expected_scores(scores, mask, largest_rank=MAX_RANK))
