"""Which pairs of rows of two sides may be matched, and which are known to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse

from keyless.arrays import BoolArray, IntArray, NumpyArray
from keyless.pairs.constraints import Constraints

__all__ = ["Limits", "Part"]

Part = tuple[IntArray | None, IntArray | None]
"""Left rows, and the right rows among which their partners are sought; None: all."""

_NO_PAIRS = np.empty((0, 2), dtype=np.int64)

_GROUPS_THAT_TELL = 10
"""Groups that both tables must have for the sizes of groups to tell how many rows have a partner."""


@dataclass(frozen=True, eq=False)
class Limits:
    """What the caller knows about pairs of a left and a right row.

    A row of a known pair matches its partner and nobody else, even where their groups differ.

    Attributes:
        shape: number of left rows and of right rows.
        groups: group labels of the left and of the right rows, −1 where unknown; rows match inside a group only, and
            rows of unknown group may match any row. None: there are no groups.
        known: k × 2 rows that are the same entity.
        forbidden: k × 2 rows that are not the same entity.
        shares: whether several left rows may have the same right row.
    """

    shape: tuple[int, int]
    groups: tuple[IntArray, IntArray] | None = None
    known: IntArray = field(default_factory=lambda: _NO_PAIRS)
    forbidden: IntArray = field(default_factory=lambda: _NO_PAIRS)
    shares: bool = False

    @classmethod
    def between(
        cls,
        constraints: Constraints | None,
        left: tuple[Sequence[int], Sequence[IntArray]],
        right: tuple[Sequence[int], Sequence[IntArray]],
    ) -> Limits:
        """Return what is known about entities of two sides, each made of rows of some tables.

        Args:
            constraints: what the caller knows about rows of the tables.
            left: numbers of the tables on the left and, for each, the row of every entity, −1 where it has none.
            right: likewise on the right.
        """
        shape = len(left[1][0]), len(right[1][0])
        if constraints is None or constraints.trivial:
            return cls(shape)
        labels = [_labels(constraints, *side) for side in (left, right)]
        groups = None if labels[0] is None or labels[1] is None else (labels[0], labels[1])
        found = {}
        for name in ("known", "forbidden"):
            parts = [_NO_PAIRS]
            for first, first_rows in zip(*left, strict=True):
                for second, second_rows in zip(*right, strict=True):
                    pairs = getattr(constraints, name).get((min(first, second), max(first, second)))
                    if pairs is None:
                        continue
                    turned = pairs if first < second else pairs[:, ::-1]
                    own = _entity_of(first_rows, constraints.sizes[first])[turned[:, 0]]
                    other = _entity_of(second_rows, constraints.sizes[second])[turned[:, 1]]
                    both = (own >= 0) & (other >= 0)
                    parts.append(np.stack([own[both], other[both]], axis=1))
            found[name] = np.unique(np.concatenate(parts), axis=0)
        return cls(shape, groups, found["known"], found["forbidden"])

    @classmethod
    def of_tables(cls, constraints: Constraints | None, number: int, sizes: Sequence[int]) -> Limits:
        """Return what is known about all rows of the reference and of another table.

        Args:
            constraints: what the caller knows about rows of the tables.
            number: of the other table.
            sizes: rows of each table, the reference first.
        """
        if constraints is None:
            return cls((sizes[0], sizes[number]))
        return cls.between(constraints, ([0], [np.arange(sizes[0])]), ([number], [np.arange(sizes[number])]))

    @property
    def trivial(self) -> bool:
        """Whether every pair may be matched and none is known."""
        return self.groups is None and not len(self.known) and not len(self.forbidden)

    def permits(self, rows: IntArray, columns: IntArray) -> BoolArray:
        """Return which of the listed pairs may be matched."""
        found = np.ones(len(rows), dtype=bool)
        if self.groups is not None:
            left, right = self.groups[0][rows], self.groups[1][columns]
            found &= (left == right) | (left < 0) | (right < 0)
        pair = rows * self.shape[1] + columns
        if len(self.forbidden):
            found &= ~np.isin(pair, self.forbidden[:, 0] * self.shape[1] + self.forbidden[:, 1])
        if len(self.known):
            found &= ~(np.isin(rows, self.known[:, 0]) | np.isin(columns, self.known[:, 1]))
            found |= np.isin(pair, self.known[:, 0] * self.shape[1] + self.known[:, 1])
        return found

    def mask(self, rows: IntArray | None = None, columns: IntArray | None = None) -> BoolArray | None:
        """Return which pairs of some rows may be matched, left × right rows; None where all may.

        Args:
            rows: left rows; None: all.
            columns: right rows; None: all.
        """
        if self.trivial:
            return None
        rows = np.arange(self.shape[0]) if rows is None else rows
        columns = np.arange(self.shape[1]) if columns is None else columns
        left, right = (index.ravel() for index in np.meshgrid(rows, columns, indexing="ij"))
        return self.permits(left, right).reshape(len(rows), len(columns))

    def some(self, rows: IntArray, columns: IntArray) -> Limits:
        """Return the limits of some left and some right rows."""
        shape = len(rows), len(columns)
        if self.trivial:
            return Limits(shape)
        groups = None if self.groups is None else (self.groups[0][rows], self.groups[1][columns])
        parts = []
        for pairs in (self.known, self.forbidden):
            places = [np.full(size, -1, dtype=np.int64) for size in self.shape]
            places[0][rows], places[1][columns] = np.arange(shape[0]), np.arange(shape[1])
            moved = np.stack([places[0][pairs[:, 0]], places[1][pairs[:, 1]]], axis=1)
            parts.append(moved[(moved >= 0).all(axis=1)])
        return Limits(shape, groups, parts[0], parts[1])

    def reordered(self, rows: IntArray, columns: IntArray) -> Limits:
        """Return the same limits for rows in another order.

        Args:
            rows: the left row that stands at each place of the new order.
            columns: likewise of the right rows.
        """
        if self.trivial:
            return self
        places = np.argsort(rows), np.argsort(columns)
        groups = None if self.groups is None else (self.groups[0][rows], self.groups[1][columns])
        moved = (
            np.stack([places[0][pairs[:, 0]], places[1][pairs[:, 1]]], axis=1) for pairs in (self.known, self.forbidden)
        )
        known, forbidden = moved
        return Limits(self.shape, groups, known, forbidden)

    @cached_property
    def choices(self) -> IntArray:
        """How many right rows each left row may be matched to."""
        count = np.full(self.shape[0], self.shape[1], dtype=np.int64)
        free = np.ones(self.shape[1], dtype=bool)
        free[self.known[:, 1]] = False
        if self.groups is None:
            count[:] = free.sum()
        else:
            left, right = self.groups
            labels, members = np.unique(right[free], return_counts=True)
            anybody = int(members[labels < 0].sum())
            # With a label that no row has, there is always one to compare with.
            labels, members = np.append(-2, labels[labels >= 0]), np.append(0, members[labels >= 0])
            place = np.minimum(np.searchsorted(labels, left), len(labels) - 1)
            own = np.where(labels[place] == left, members[place], 0)
            count = np.where(left < 0, free.sum(), own + anybody)
        if len(self.forbidden):
            # Pairs that could not be matched anyway are not subtracted.
            without = Limits(self.shape, self.groups, self.known)
            pairs = np.unique(self.forbidden, axis=0)
            possible = without.permits(pairs[:, 0], pairs[:, 1])
            np.subtract.at(count, pairs[possible, 0], 1)
        count[self.known[:, 0]] = 1
        return count

    @cached_property
    def flipped(self) -> Limits:
        """The same limits with left and right exchanged."""
        groups = None if self.groups is None else (self.groups[1], self.groups[0])
        return Limits((self.shape[1], self.shape[0]), groups, self.known[:, ::-1], self.forbidden[:, ::-1])

    def head_start(self, rows: IntArray, columns: IntArray) -> NumpyArray:
        """Return by how many nats the limits raise the prior log-odds of listed pairs.

        Where a row may be matched to few others, each of them is likelier to be its partner than one of all rows would
        be.
        """
        if self.trivial:
            return np.zeros(len(rows))
        fewer = np.maximum(self.choices[rows], self.flipped.choices[columns])
        return np.log(max(self.shape) / np.maximum(fewer, 1))

    def head_starts(self) -> NumpyArray | float:
        """Return `head_start` of all pairs, left × right rows; a single 0 where it is 0 for all of them."""
        if self.trivial:
            return 0.0
        places = (place.ravel() for place in np.indices(self.shape))
        return self.head_start(*places).reshape(self.shape).astype(np.float32)

    def common_by_groups(self) -> float | None:
        """Return how many rows have a partner, as the sizes of groups tell; None where they do not tell.

        If entities were lost from either table at random, the two sizes of a group differ by chance. The more entities
        were lost, the more they differ. With ratio κ = left rows / right rows, the squares of e = left/√κ − right·√κ
        add up to (left + right)·(1 − 2κρ/(1+κ)), where ρ is the share of left rows whose partner the right table holds.
        """
        if self.groups is None or any(bool((labels < 0).any()) for labels in self.groups):
            return None
        labels, place = np.unique(np.concatenate(self.groups), return_inverse=True)
        left, right = (
            np.bincount(part, minlength=len(labels)).astype(np.float64) for part in np.split(place, [self.shape[0]])
        )
        both = (left > 0) & (right > 0)
        if both.sum() < _GROUPS_THAT_TELL:
            return None
        left, right = left[both], right[both]
        ratio = left.sum() / right.sum()
        squares = np.sum((left / np.sqrt(ratio) - right * np.sqrt(ratio)) ** 2)
        share = (1 - squares / (left.sum() + right.sum())) * (1 + ratio) / (2 * ratio)
        return float(np.clip(share * left.sum(), 1.0, np.minimum(left, right).sum()))

    def parts(self, rows: IntArray | None = None, columns: IntArray | None = None) -> list[Part]:
        """Return left rows and the right rows among which their partners are, group by group; None stands for all.

        Args:
            rows: left rows that matter; None: all.
            columns: right rows that matter; None: all.
        """
        if self.groups is None:
            return [(rows, columns)]
        left, right = self.groups
        rows = np.arange(len(left)) if rows is None else rows
        columns = np.arange(len(right)) if columns is None else columns
        members = dict(_by_label(columns, right[columns]))
        anybody = members.get(-1, np.empty(0, dtype=np.int64))
        found: list[Part] = []
        for label, own in _by_label(rows, left[rows]):
            theirs = np.sort(np.concatenate([members.get(label, anybody[:0]), anybody])) if label >= 0 else columns
            if len(theirs):
                found.append((own, theirs))
        return found

    def pattern(self) -> sparse.csr_array:
        """Return all pairs that may be matched, stored as True; meant for groups that leave few pairs."""
        index, columns = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for part in self.parts():
            own, theirs = (
                np.arange(size) if chosen is None else chosen for chosen, size in zip(part, self.shape, strict=True)
            )
            index.append(np.repeat(own, len(theirs)))
            columns.append(np.tile(theirs, len(own)))
        rows, others = np.concatenate([*index, self.known[:, 0]]), np.concatenate([*columns, self.known[:, 1]])
        kept = self.permits(rows, others)
        data = np.ones(int(kept.sum()), dtype=bool)
        return sparse.csr_array((data, (rows[kept], others[kept])), shape=self.shape)


def _labels(constraints: Constraints, members: Sequence[int], rows: Sequence[IntArray]) -> IntArray | None:
    """Return the group of every entity: that of any of its rows which has one."""
    found: IntArray | None = None
    for member, index in zip(members, rows, strict=True):
        group = constraints.groups[member] if constraints.groups else None
        if group is not None:
            own = np.where(index >= 0, group[np.maximum(index, 0)], -1)
            found = own if found is None else np.where(found >= 0, found, own)
    return found


def _entity_of(rows: IntArray, size: int) -> IntArray:
    """Return the number of the entity of each row of a table, −1 for none."""
    entity = np.full(size, -1, dtype=np.int64)
    present = np.flatnonzero(rows >= 0)
    entity[rows[present]] = present
    return entity


def _by_label(rows: IntArray, labels: IntArray) -> list[tuple[int, IntArray]]:
    """Return the rows of each label."""
    if not len(rows):
        return []
    order = np.argsort(labels, kind="stable")
    found, first = np.unique(labels[order], return_index=True)
    return list(zip(found.tolist(), np.split(rows[order], first[1:]), strict=True))
