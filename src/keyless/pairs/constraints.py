"""What the caller knows: which rows may, must or must not be the same entity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from keyless.arrays import IntArray
from keyless.errors import InputError

__all__ = ["Constraints"]

Pairs = Mapping[tuple[int, int], IntArray]


@dataclass(frozen=True, eq=False)
class Constraints:
    """Knowledge about pairs of rows; tables are numbered, the reference is 0.

    Attributes:
        sizes: number of rows of each table.
        groups: per table, a group label for each row (None where the table has none); rows match inside a group only.
            −1 stands for an unknown group, which may match any.
        known: per pair of tables (first < second), k × 2 row numbers that are sure to be the same entity.
        forbidden: likewise, row numbers that are sure not to be the same entity.
        shares: whether several rows of the reference may have the same partner.

    A known pair counts even where its groups differ.
    """

    sizes: tuple[int, ...]
    groups: tuple[IntArray | None, ...] = ()
    known: Pairs = field(default_factory=dict)
    forbidden: Pairs = field(default_factory=dict)
    shares: bool = False

    def __post_init__(self) -> None:
        for name, pairs in (("known_pairs", self.known), ("forbid", self.forbidden)):
            for (first, second), rows in pairs.items():
                self._check(name, rows, (self.sizes[first], self.sizes[second]))
                once = rows.T[: 1 if self.shares else 2].tolist() if name == "known_pairs" else []
                twice = next((row for column in once for row, times in Counter(column).items() if times > 1), None)
                if twice is not None:
                    raise InputError(
                        f"known_pairs: must name each row at most once; row {twice}, counted from 0, has two partners."
                    )
        for pair, rows in self.known.items():
            both = set(map(tuple, rows.tolist())) & set(map(tuple, self.forbidden.get(pair, np.empty((0, 2))).tolist()))
            if both:
                raise InputError(f"forbid: must not name a known pair; rows {min(both)} are in both.")

    @property
    def trivial(self) -> bool:
        """Whether nothing is known."""
        return not (self.known or self.forbidden or any(group is not None for group in self.groups))

    @staticmethod
    def _check(name: str, rows: IntArray, sizes: tuple[int, int]) -> None:
        if rows.ndim != 2 or rows.shape[1] != 2:
            raise InputError(f"{name}: must be pairs (reference row, table row); found shape {rows.shape}.")
        if rows.size and (rows.min() < 0 or np.any(rows.max(axis=0) >= sizes)):
            raise InputError(
                f"{name}: must name rows that exist, with numbers from 0 to below {sizes[0]} and {sizes[1]}; "
                f"found numbers from {rows.min()} to {rows.max()}."
            )
