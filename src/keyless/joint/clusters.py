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

from keyless.joint.knowledge import Knowledge
from keyless.joint.matching import Match, match
from keyless.likelihood.pairs import exact_log_ratio, expected_log_ratio, pair_log_ratio
from keyless.model.factor_model import FactorModel, Information, fit, information, posterior
from keyless.pairs.constraints import Constraints

__all__ = [
    "Cluster",
    "Collection",
    "alone",
    "column_slices",
    "joint_score",
    "match_table",
    "merge",
    "overall_score",
    "realign",
    "refine",
    "refit",
    "rematch",
    "rest_and_own",
    "stack",
    "table_latents",
]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
ScoreTable = tuple[FloatArray, BoolArray]


FRAME_VARIANCES = (2.0, 0.5)
"""First rounds of refinement where rows may be alone: variance of a table's latent frame, times the rows it has."""


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


def table_latents(model: FactorModel, tables: Sequence[ScoreTable]) -> list[FloatArray]:
    """Return where each table by itself puts its rows among the latents of a model of all their columns."""
    return [
        posterior(information(model.columns(part), *table))[0]
        for part, table in zip(column_slices(tables), tables, strict=True)
    ]


def refit(collection: Collection, cluster: Cluster, *, max_iter: int = 10) -> Cluster:
    """Fit the joint model again, the matching held."""
    values, mask = stack(collection.of(cluster.members), cluster.rows)
    model, bound = fit(values, mask, cluster.model, max_iter=max_iter)
    return replace(cluster, model=model, evidence=bound)


def rest_and_own(collection: Collection, cluster: Cluster, position: int) -> tuple[Information, Information]:
    """Return what all other members say about each entity, and what each row of the member says about its own."""
    infos = _table_information(collection, cluster)
    others = [k for k in range(len(infos)) if k != position]
    return _total([infos[k].gathered(cluster.rows[k]) for k in others]), infos[position]


def match_table(
    collection: Collection, cluster: Cluster, position: int, *, may_be_alone: bool, blur: float = 0.0
) -> tuple[Cluster, Match, FloatArray]:
    """Match one member against all the others joined.

    Args:
        collection: the tables.
        cluster: the joined tables; entities that only the member in question knows are left out.
        position: which member.
        may_be_alone: whether rows may have no partner.
        blur: variance by which the member's latents may be off because its frame is not yet known well.

    Returns:
        The cluster without those entities, the match of its entities to the member's rows, and the log-ratios as the
        model gives them, forbidden pairs marked, known ones not raised.
    """
    others = [k for k in range(len(cluster.members)) if k != position]
    kept = np.flatnonzero(np.any([cluster.rows[k] >= 0 for k in others], axis=0))
    cluster = replace(cluster, rows=tuple(index[kept] for index in cluster.rows))
    rest, own = rest_and_own(collection, cluster, position)
    member = cluster.members[position]
    knowledge = Knowledge.between(
        collection.constraints,
        [cluster.members[k] for k in others],
        [cluster.rows[k] for k in others],
        (member,),
        (np.arange(len(own)),),
    )
    log_ratio = pair_log_ratio(rest, own.blurred(blur), allowed=knowledge.allowed)
    return cluster, match(knowledge.with_known(log_ratio), may_be_alone=may_be_alone), log_ratio


def rematch(
    collection: Collection, cluster: Cluster, position: int, *, may_be_alone: bool, blur: float = 0.0
) -> Cluster:
    """Match one member anew against all the others joined; rows left alone become entities of their own."""
    cluster, found, _ = match_table(collection, cluster, position, may_be_alone=may_be_alone, blur=blur)
    size = len(collection.tables[cluster.members[position]][0])
    single = np.setdiff1d(np.arange(size), found.permutation)
    nothing = np.full(len(single), -1)
    rows = tuple(
        np.concatenate([found.permutation, single] if k == position else [index, nothing])
        for k, index in enumerate(cluster.rows)
    )
    return replace(cluster, rows=rows)


def realign(collection: Collection, cluster: Cluster, position: int) -> Cluster:
    """Move one member's latents onto those of the others, by the entities that both know; the matching is held.

    Tables that share only part of their entities have been centred and scaled over different ones, so their latents
    differ by an affine map. EM finds it slowly: the entities without a partner hold each table's own frame in place.

        argmin_{A, c} Σ_i |mean_i − K(A z_i + c)|² / v + |KA − K|² / w + |Kc|² / w

    with mean_i the member's own guess of the latents, K how much such guesses are shrunk, z_i that of the others, v the
    variance of mean_i given z_i, and w that of a frame estimated from as many rows as there are. What the member does
    not see stays as it is.
    """
    others = [k for k in range(len(cluster.members)) if k != position]
    infos = _table_information(collection, cluster)
    own_rows = cluster.rows[position]
    both = np.flatnonzero((own_rows >= 0) & np.any([cluster.rows[k] >= 0 for k in others], axis=0))
    rank = cluster.model.rank
    if len(both) <= rank:
        return cluster
    rest, _, _ = posterior(_total([infos[k].gathered(cluster.rows[k][both]) for k in others]))
    own, covariance, _ = posterior(infos[position][own_rows[both]])
    shrunk = np.eye(rank) - covariance.mean(axis=0)
    prior = np.concatenate([shrunk, np.zeros((rank, 1))], axis=1)
    design = np.concatenate([rest, np.ones((len(both), 1))], axis=1)
    variance = float(np.trace(shrunk @ covariance.mean(axis=0))) / rank
    sizes = [len(infos[position]), max(len(infos[k]) for k in others)]
    penalty = variance / sum(1 / size for size in sizes)
    system = design.T @ design + penalty * np.eye(rank + 1)
    change = np.linalg.solve(system, design.T @ (own - design @ prior.T)).T
    moved = np.linalg.solve(shrunk.T @ shrunk + 1e-3 * np.eye(rank), shrunk.T @ change)
    moved[:, :-1] += np.eye(rank)
    part = column_slices(collection.of(cluster.members))[position]
    model = cluster.model
    theirs = model.columns(part).moved(moved[:, :-1], moved[:, -1])
    columns = {name: getattr(model, name).copy() for name in ("loadings", "offsets", "spread")}
    for name, values in columns.items():
        values[part] = getattr(theirs, name)
    return replace(cluster, model=replace(model, **columns))


def refine(
    collection: Collection,
    cluster: Cluster,
    *,
    may_be_alone: bool,
    max_rounds: int = 8,
    expired: Callable[[], bool] = lambda: False,
) -> Cluster:
    """Refit and re-match every member in turn until nothing moves.

    Args:
        collection: the tables.
        cluster: where to start.
        may_be_alone: whether rows may have no partner.
        max_rounds: stop after so many rounds.
        expired: tells whether time is up; asked before each round.
    """
    cluster = refit(collection, cluster)
    # With two members, matching one against the other is the same as the other against the one.
    positions = range(len(cluster.members)) if len(cluster.members) > 2 else (1,)
    smallest = min(len(collection.tables[member][0]) for member in cluster.members)
    for turn in range(max_rounds):
        if expired():
            break
        before = cluster.pairing
        # Too sharp too soon, only rows near the middle find their partner, and they cannot say where the others are.
        blur = FRAME_VARIANCES[turn] / smallest if may_be_alone and turn < len(FRAME_VARIANCES) else 0.0
        for position in positions:
            cluster = rematch(collection, cluster, position, may_be_alone=may_be_alone, blur=blur)
            if may_be_alone:
                cluster = realign(collection, cluster, position)
        cluster = refit(collection, cluster)
        if not blur and cluster.pairing == before:
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


def overall_score(collection: Collection, cluster: Cluster) -> tuple[float, float]:
    """Return `joint_score` and what the model expects of it, each member against all others, averaged over entities."""
    scores = [joint_score(collection, cluster, (place,)) for place in range(len(cluster.members))]
    matched = sum(count for _, _, count in scores)
    if not matched:
        return 0.0, 0.0
    found, expected = (sum(score[k] * score[2] for score in scores if score[2]) / matched for k in (0, 1))
    return found, expected


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
