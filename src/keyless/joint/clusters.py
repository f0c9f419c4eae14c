"""Tables joined so far: one factor model over all of them, every table re-matched against all the others.

A table is matched against what the *others* say about each entity, never against itself, and the reference is moved
like any other: where several tables agree among themselves on a common mistake, only moving them together, that is
moving the remaining one, can undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from keyless.constraints import Constraints
from keyless.embedding.factor_model import FactorModel, Information, fit, information
from keyless.joint.knowledge import Knowledge
from keyless.joint.matching import Match, match
from keyless.likelihood.pairs import exact_log_ratio, expected_log_ratio, pair_log_ratio

__all__ = [
    "Cluster",
    "Collection",
    "alone",
    "column_slices",
    "joint_score",
    "match_table",
    "merge",
    "refine",
    "refit",
    "rematch",
    "stack",
]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
ScoreTable = tuple[FloatArray, BoolArray]


@dataclass(frozen=True, eq=False)
class Collection:
    """The tables to link, and what the caller knows about their rows.

    Attributes:
        tables: standard scores (0 where missing) and masks.
        constraints: which rows may, must or must not be the same entity; None when nothing is known.
    """

    tables: tuple[ScoreTable, ...]
    constraints: Constraints | None = None

    def of(self, members: Sequence[int]) -> list[ScoreTable]:
        """Return some of the tables."""
        return [self.tables[member] for member in members]


@dataclass(frozen=True, eq=False)
class Cluster:
    """Tables already joined.

    Attributes:
        members: numbers of the tables, in the order of everything else here.
        rows: per member, the row of every entity, −1 where it has none.
        model: factor model over the members' columns side by side.
        evidence: lower bound of the log-likelihood of all observed entries under it.
        settled: whether refinement ended because nothing moved any more.
    """

    members: tuple[int, ...]
    rows: tuple[IntArray, ...]
    model: FactorModel
    evidence: float = -np.inf
    settled: bool = True

    @property
    def entities(self) -> int:
        """Number of entities."""
        return len(self.rows[0])

    @property
    def pairing(self) -> bytes:
        """The matching itself, whatever the order of entities."""
        entities = np.stack(self.rows, axis=1)
        return entities[np.lexsort(entities.T)].tobytes()


def alone(member: int, rows: int, model: FactorModel) -> Cluster:
    """Return a table that has not been joined to any other."""
    return Cluster((member,), (np.arange(rows),), model)


def stack(tables: Sequence[ScoreTable], rows: Sequence[IntArray]) -> ScoreTable:
    """Return the tables side by side in the order of entities; missing where an entity has no row."""
    values, masks = [], []
    for (value, mask), index in zip(tables, rows, strict=True):
        seen = mask[np.maximum(index, 0)] & (index >= 0)[:, None]
        values.append(np.where(seen, value[np.maximum(index, 0)], 0.0))
        masks.append(seen)
    return np.concatenate(values, axis=1), np.concatenate(masks, axis=1)


def column_slices(tables: Sequence[ScoreTable]) -> list[slice]:
    """Return where each table's columns are when the tables stand side by side."""
    edges = np.cumsum([0, *(value.shape[1] for value, _ in tables)]).tolist()
    return [slice(low, high) for low, high in pairwise(edges)]


def refit(collection: Collection, cluster: Cluster, *, max_iter: int = 10) -> Cluster:
    """Fit the joint model again, the matching held."""
    values, mask = stack(collection.of(cluster.members), cluster.rows)
    model, bound = fit(values, mask, cluster.model, max_iter=max_iter)
    return replace(cluster, model=model, evidence=bound)


def match_table(
    collection: Collection, cluster: Cluster, position: int, *, strangers: bool
) -> tuple[Cluster, Match, FloatArray]:
    """Match one member against all the others joined.

    Args:
        collection: the tables.
        cluster: the joined tables; entities that only the member in question knows are left out.
        position: which member.
        strangers: whether rows may have no partner.

    Returns:
        The cluster without those entities, the match of its entities to the member's rows, and the log-ratios as the
        model gives them, forbidden pairs marked, known ones not raised.
    """
    others = [k for k in range(len(cluster.members)) if k != position]
    kept = np.flatnonzero(np.any([cluster.rows[k] >= 0 for k in others], axis=0))
    cluster = replace(cluster, rows=tuple(index[kept] for index in cluster.rows))
    infos = _table_information(collection, cluster)
    own = infos[position]
    member = cluster.members[position]
    knowledge = Knowledge.between(
        collection.constraints,
        [cluster.members[k] for k in others],
        [cluster.rows[k] for k in others],
        (member,),
        (np.arange(len(own)),),
    )
    rest = _total([infos[k].gathered(cluster.rows[k]) for k in others])
    log_ratio = pair_log_ratio(rest, own, allowed=knowledge.allowed)
    return cluster, match(knowledge.with_known(log_ratio), strangers=strangers), log_ratio


def rematch(collection: Collection, cluster: Cluster, position: int, *, strangers: bool) -> Cluster:
    """Match one member anew against all the others joined; rows left alone become entities of their own."""
    cluster, found, _ = match_table(collection, cluster, position, strangers=strangers)
    size = len(collection.tables[cluster.members[position]][0])
    single = np.setdiff1d(np.arange(size), found.permutation)
    nothing = np.full(len(single), -1)
    rows = tuple(
        np.concatenate([found.permutation, single] if k == position else [index, nothing])
        for k, index in enumerate(cluster.rows)
    )
    return replace(cluster, rows=rows)


def refine(
    collection: Collection,
    cluster: Cluster,
    *,
    strangers: bool,
    max_rounds: int = 8,
    expired: Callable[[], bool] = lambda: False,
) -> Cluster:
    """Refit and re-match every member in turn until nothing moves.

    Args:
        collection: the tables.
        cluster: where to start.
        strangers: whether rows may have no partner.
        max_rounds: stop after so many rounds.
        expired: tells whether time is up; asked before each round.
    """
    cluster = refit(collection, cluster)
    # With two members, matching one against the other is the same as the other against the one.
    positions = range(len(cluster.members)) if len(cluster.members) > 2 else (1,)
    for _ in range(max_rounds):
        if expired():
            break
        before = cluster.pairing
        for position in positions:
            cluster = rematch(collection, cluster, position, strangers=strangers)
        cluster = refit(collection, cluster)
        if cluster.pairing == before:
            return replace(cluster, settled=True)
    return replace(cluster, settled=False)


def merge(first: Cluster, second: Cluster, partner: IntArray, model: FactorModel) -> Cluster:
    """Return two clusters as one.

    Args:
        first: one cluster.
        second: the other.
        partner: for each entity of the first, the one of the second it is the same as, −1 for none.
        model: factor model of the first's columns, then the second's.
    """
    single = np.setdiff1d(np.arange(second.entities), partner)
    rows = [np.concatenate([index, np.full(len(single), -1)]) for index in first.rows]
    for index in second.rows:
        matched = np.where(partner >= 0, index[np.maximum(partner, 0)], -1)
        rows.append(np.concatenate([matched, index[single]]))
    return Cluster(first.members + second.members, tuple(rows), model)


def joint_score(collection: Collection, cluster: Cluster, chosen: Sequence[int]) -> tuple[float, float, int]:
    """Score how well some members and the others agree on the entities that both sides know.

    Pairs the caller knows to be the same count only where there are no others: they say nothing about the search.

    Args:
        collection: the tables.
        cluster: the joined tables.
        chosen: positions of the members on one side.

    Returns:
        The mean log-likelihood ratio under the joint model (−∞ without entities), the mean that the model expects, and
        the number of entities.
    """
    infos = _table_information(collection, cluster)
    sides = (list(chosen), [k for k in range(len(infos)) if k not in chosen])
    present = [np.any([cluster.rows[k] >= 0 for k in side], axis=0) for side in sides]
    both = np.flatnonzero(present[0] & present[1])
    if not len(both):
        return -np.inf, 0.0, 0
    scored = _without_known(collection, cluster, sides, both)
    first, second = (_total([infos[k].gathered(cluster.rows[k][scored]) for k in side]) for side in sides)
    index = np.arange(len(scored))
    found = exact_log_ratio(first, second, index, index)
    return float(found.mean()), float(expected_log_ratio(first, second).mean()), len(both)


def _without_known(
    collection: Collection, cluster: Cluster, sides: tuple[list[int], list[int]], entities: IntArray
) -> IntArray:
    """Leave out entities whose two sides are known to be the same, unless that leaves none."""
    members, rows = cluster.members, cluster.rows
    (left, _) = Knowledge.between(
        collection.constraints,
        [members[k] for k in sides[0]],
        [rows[k] for k in sides[0]],
        [members[k] for k in sides[1]],
        [rows[k] for k in sides[1]],
    ).known
    others = np.setdiff1d(entities, left)
    return others if len(others) else entities


def _table_information(collection: Collection, cluster: Cluster) -> list[Information]:
    tables = collection.of(cluster.members)
    parts = column_slices(tables)
    return [information(cluster.model.columns(part), *table) for part, table in zip(parts, tables, strict=True)]


def _total(parts: Sequence[Information]) -> Information:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
