"""What the caller knows about single rows, carried over to entities made of rows of several tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from keyless.errors import InputError
from keyless.likelihood.pairs import forbid
from keyless.pairs.constraints import Constraints

__all__ = ["Knowledge", "implied"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_CERTAIN = 100.0
"""Log-ratio given, at the least, to pairs that are known to be the same entity."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Which entities of two sides may, and which must, be the same.

    Attributes:
        allowed: left × right; None when all pairs may be.
        known: left and right numbers of the pairs that must be.
    """

    allowed: BoolArray | None
    known: tuple[IntArray, IntArray]

    @classmethod
    def between(
        cls,
        constraints: Constraints | None,
        left_members: Sequence[int],
        left_rows: Sequence[IntArray],
        right_members: Sequence[int],
        right_rows: Sequence[IntArray],
    ) -> Knowledge:
        """Gather what is known about the rows that the entities of two sides are made of.

        Args:
            constraints: what the caller knows.
            left_members: numbers of the tables on the left.
            left_rows: for each of them, the row of every left entity, −1 where it has none.
            right_members: likewise on the right.
            right_rows: likewise on the right.
        """
        nothing = np.empty(0, dtype=np.int64)
        if constraints is None or constraints.trivial:
            return cls(None, (nothing, nothing))
        allowed: BoolArray | None = None
        left_known, right_known = [nothing], [nothing]
        for second, right_index in zip(right_members, right_rows, strict=True):
            part = constraints.allowed_for(left_members, left_rows, second)
            if part is not None:
                wide = part[:, np.maximum(right_index, 0)] | (right_index < 0)[None, :]
                allowed = wide if allowed is None else allowed & wide
            for first, left_index in zip(left_members, left_rows, strict=True):
                pairs = constraints.known.get((min(first, second), max(first, second)))
                if pairs is not None:
                    turned = pairs if first < second else pairs[:, ::-1]
                    here = _entity_of(left_index, constraints.sizes[first])[turned[:, 0]]
                    there = _entity_of(right_index, constraints.sizes[second])[turned[:, 1]]
                    both = (here >= 0) & (there >= 0)
                    left_known.append(here[both])
                    right_known.append(there[both])
        return cls(allowed, (np.concatenate(left_known), np.concatenate(right_known)))

    def with_known(self, log_ratio: FloatArray) -> FloatArray:
        """Return the log-ratios with known pairs certain and disallowed ones forbidden."""
        if not len(self.known[0]):
            return log_ratio
        raised = log_ratio.copy()
        raised[self.known] = np.maximum(raised[self.known], _CERTAIN)
        return forbid(raised, self.allowed)

    def chance(self, left: int, right: int) -> float:
        """Return about what log-likelihood ratio per row a wrong matching of the two sides reaches by choice alone.

        It grows with the logarithm of the number of rows to choose from.
        """
        smaller = float(min(left, right))
        if self.allowed is not None:
            choices = self.allowed.sum(axis=1 if left <= right else 0)
            smaller = min(smaller, float(np.exp(np.log(np.maximum(choices, 1)).mean())))
        return float(np.log(max(smaller, 2.0)))


def implied(constraints: Constraints) -> Constraints:
    """Return the constraints with what follows from them: a = b and b = c make a = c; a = b and b ≠ c make a ≠ c.

    Rows of unknown group take the group of the rows they are known to be the same as.
    """
    if not constraints.known:
        return constraints
    edges = np.cumsum([0, *constraints.sizes])
    table_of = np.repeat(np.arange(len(constraints.sizes)), constraints.sizes)

    def numbered(pairs: dict[tuple[int, int], IntArray]) -> IntArray:
        parts = [rows + edges[list(tables)][None, :] for tables, rows in pairs.items()]
        return np.concatenate([np.empty((0, 2), dtype=np.int64), *parts])

    links = numbered(dict(constraints.known))
    graph = sparse.coo_array((np.ones(len(links)), (links[:, 0], links[:, 1])), shape=(edges[-1], edges[-1]))
    _, label = csgraph.connected_components(graph, directed=False)
    order = np.argsort(label, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    known: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for group in (group for group in members if len(group) > 1):
        if len(set(table_of[group].tolist())) < len(group):
            raise InputError(
                "known_pairs: must not say that two rows of one table are one entity; taken together, these pairs do."
            )
        _add_pairs(known, group, group, table_of, edges)
    forbidden: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for first, second in numbered(dict(constraints.forbidden)).tolist():
        _add_pairs(forbidden, members[label[first]], members[label[second]], table_of, edges)
    return Constraints(
        sizes=constraints.sizes,
        groups=_spread_groups(constraints, members, edges),
        known={tables: np.unique(np.array(pairs), axis=0) for tables, pairs in known.items()},
        forbidden={tables: np.unique(np.array(pairs), axis=0) for tables, pairs in forbidden.items()},
    )


def _add_pairs(
    pairs: dict[tuple[int, int], list[tuple[int, int]]],
    first: IntArray,
    second: IntArray,
    table_of: IntArray,
    edges: IntArray,
) -> None:
    for one in first:
        for other in second:
            low, high = (one, other) if table_of[one] < table_of[other] else (other, one)
            tables = (int(table_of[low]), int(table_of[high]))
            if tables[0] < tables[1]:
                pairs.setdefault(tables, []).append((int(low - edges[tables[0]]), int(high - edges[tables[1]])))


def _spread_groups(constraints: Constraints, members: list[IntArray], edges: IntArray) -> tuple[IntArray | None, ...]:
    if not any(group is not None for group in constraints.groups):
        return constraints.groups
    labels = [
        np.full(size, -1) if group is None else np.asarray(group).copy()
        for group, size in zip(constraints.groups, constraints.sizes, strict=True)
    ]
    everything = np.concatenate(labels)
    for group in members:
        found = everything[group][everything[group] >= 0]
        if len(group) > 1 and len(found):
            everything[group] = np.where(everything[group] >= 0, everything[group], found[0])
    parts = [everything[low:high] for low, high in pairwise(edges)]
    return tuple(None if np.all(part < 0) else part for part in parts)


def _entity_of(rows: IntArray, size: int) -> IntArray:
    """Row of a table → number of its entity, −1 for none."""
    entity = np.full(size, -1, dtype=np.int64)
    present = np.flatnonzero(rows >= 0)
    entity[rows[present]] = present
    return entity
