"""Joining clusters of tables, the most convincing pair first, until all tables are one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln

from keyless.alignment.latents import Alignment, alignments, distinct, expected_score
from keyless.joint.clusters import Cluster, Collection, joint_score, match_table, merge, refine, refit, rematch, stack
from keyless.joint.knowledge import Knowledge
from keyless.joint.matching import match
from keyless.joint.watch import Start, Watch
from keyless.model.factor_model import (
    FactorModel,
    Information,
    fit,
    fit_at_rank,
    information,
    initial_model,
    padded,
)

__all__ = [
    "PairLink",
    "Task",
    "complete",
    "convincing",
    "decide_alone",
    "finish",
    "freedom_of_choice",
    "link_all",
    "link_pair",
]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
SketchKind = Literal["fitted", "common", "held"]

_MOST_ALIGNMENTS = 80
"""Per way of seeing two clusters. Where there is something to find it takes fewer; without a limit, telling that there
is nothing takes minutes."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be linked, where to start, and who watches.

    Attributes:
        collection: the tables.
        couplings: per pair of tables (first < second), a coupling to try before others.
        watch: progress, time limit and record.
        largest_rank: the most factors a model may have.
        thorough: whether to look again, and long, where no join convinces.
    """

    collection: Collection
    couplings: Mapping[tuple[int, int], FloatArray]
    watch: Watch
    largest_rank: int = 40
    thorough: bool = True

    def knowledge(self, first: Cluster, second: Cluster) -> Knowledge:
        """Return what is known about the entities of two clusters."""
        return Knowledge.between(self.collection.constraints, first.members, first.rows, second.members, second.rows)

    def given(self, first: Cluster, second: Cluster) -> list[FloatArray]:
        """Return the couplings to try first, carried over to the entities of two clusters."""
        found = []
        for a, left in zip(first.members, first.rows, strict=True):
            for b, right in zip(second.members, second.rows, strict=True):
                coupling = self.couplings.get((min(a, b), max(a, b)))
                if coupling is not None:
                    turned = coupling if a < b else coupling.T
                    both = (left >= 0)[:, None] & (right >= 0)[None, :]
                    found.append(np.where(both, turned[np.ix_(np.maximum(left, 0), np.maximum(right, 0))], 0.0))
        return found


@dataclass(frozen=True, eq=False)
class PairLink:
    """Two clusters joined.

    Attributes:
        cluster: the result.
        score: mean log-likelihood ratio per entity that both know.
        convincing: whether the score is what a right join reaches.
    """

    cluster: Cluster
    score: float
    convincing: bool


def convincing(
    score: float,
    alignment_score: float,
    expected: float,
    *,
    rank: int,
    chance: float,
    freedom: float,
    matched: float,
    may_be_alone: bool,
) -> bool:
    """Tell whether a join is the right one.

    Wrong ones reach about log n per row, and a little per factor, by chance, and fall short of what the models
    themselves forecast. When rows may have no partner, the matched ones are a choice of the best, so more is asked of
    them, and that they be many.

    Args:
        score: mean log-ratio per matched entity after refinement.
        alignment_score: the same before refinement, soft.
        expected: what the two sides' models forecast for it.
        rank: number of factors of the models.
        chance: about what a wrong join reaches, see `Knowledge.chance`.
        freedom: what choosing the best of all partial matchings and rotations can add, see `freedom_of_choice`.
        matched: matched share of the smaller side.
        may_be_alone: whether rows may have no partner.
    """
    if may_be_alone:
        return matched >= 0.3 and score >= max(0.95 * expected, 1.5 * chance, 1.25 * freedom)
    refined = score >= max(0.8 * expected, 1.3 * chance + 0.3 * rank)
    return refined or alignment_score >= 0.85 * expected >= 0.8 * chance


def freedom_of_choice(sizes: tuple[int, int], matched: int, rank: int) -> float:
    """Return the log of the number of partial matchings and of distinct maps between latents, per matched entity.

    A wrong join that is the best of so many scores about this by luck.
    """
    if not matched:
        return np.inf
    left, right = sizes
    choices = gammaln(left + 1) + gammaln(right + 1)
    choices -= gammaln(left - matched + 1) + gammaln(right - matched + 1) + gammaln(matched + 1)
    return float(choices + rank**2 * np.log(max(matched, 2))) / matched


@dataclass(frozen=True, eq=False)
class _Sketch:
    """One way of seeing a cluster's latents: its model, and each entity's information under it."""

    model: FactorModel
    info: Information


def _sketch(collection: Collection, cluster: Cluster, rank: int, kind: SketchKind) -> _Sketch:
    """`fitted`: the cluster's own model; `common`, `held`: `fit_at_rank`, its noise estimated or held low."""
    values, mask = stack(collection.of(cluster.members), cluster.rows)
    if kind == "fitted":
        model = padded(cluster.model, rank)
    else:
        model = fit_at_rank(values, mask, rank, held_noise=0.01 if kind == "held" else None)
    return _Sketch(model, information(model, values, mask))


def _sketch_plan(first: Cluster, second: Cluster) -> list[tuple[SketchKind, int]]:
    """Which sketches to try, in order: own models when the ranks agree, else models at the larger rank.

    A scarce table's rank is found too small more often than too large, and one factor too many does little harm.
    """
    rank = max(first.model.rank, second.model.rank)
    plan: list[tuple[SketchKind, int]] = [("common", rank), ("common", rank + 1), ("held", rank), ("common", rank + 2)]
    return [("fitted", rank), *plan] if first.model.rank == second.model.rank else plan


def link_pair(
    task: Task, first: Cluster, second: Cluster, *, may_be_alone: bool | None, thorough: bool, spare: int = 5
) -> PairLink:
    """Find the join of two clusters of the largest joint evidence; stop at the first convincing one.

    Args:
        task: the tables.
        first: one cluster.
        second: the other.
        may_be_alone: whether rows may have no partner; None: every row is given one first, and where that does not
            convince, rows may stay alone.
        thorough: also kick local optima, see the tables in several ways, and join more than the best alignments.
        spare: how many of the best alignments are joined when thorough.
    """
    search = _PairSearch(task, first, second, may_be_alone)
    plan = [(kind, rank) for kind, rank in _sketch_plan(first, second) if rank <= task.largest_rank]
    best: PairLink | None = None
    for kind, rank in plan if thorough else plan[:1]:
        for link in search.links(kind, rank, rounds=3 if thorough else 0, spare=spare if thorough else 0):
            if best is None or link.cluster.evidence > best.cluster.evidence:
                best = link
            if link.convincing:
                return link
            if task.watch.expired():
                return best
    if best is None:
        raise RuntimeError("no alignment was tried")
    return best


class _PairSearch:
    """The search for the right join of two clusters."""

    def __init__(self, task: Task, first: Cluster, second: Cluster, may_be_alone: bool | None) -> None:
        self.task, self.first, self.second = task, first, second
        self.choices = (False, True) if may_be_alone is None else (may_be_alone,)
        self.knowledge = task.knowledge(first, second)
        self.given = task.given(first, second)
        self.smaller = min(first.entities, second.entities)
        self.chance = self.knowledge.chance(first.entities, second.entities)

    def freedom(self, matched: int, rank: int) -> float:
        """`freedom_of_choice`, less where few pairs are allowed."""
        share = self.chance / float(np.log(max(self.smaller, 2)))
        return share * freedom_of_choice((self.first.entities, self.second.entities), matched, rank)

    def links(self, kind: SketchKind, rank: int, *, rounds: int, spare: int) -> Iterator[PairLink]:
        """Yield joins: of every alignment that beats those before it, then of the best `spare` others."""
        views = [_sketch(self.task.collection, cluster, rank, kind) for cluster in (self.first, self.second)]
        expected = expected_score(views[0].info, views[1].info)
        if expected < 0.5 * self.chance:
            # Seen this way, even the right rows would agree less than wrong ones do by chance.
            rounds = 0
        seen: list[Alignment] = []
        joined: list[Alignment] = []
        found_next = alignments(
            views[0].info, views[1].info, allowed=self.knowledge.allowed, given=self.given, rounds=rounds
        )
        for found in islice(found_next, _MOST_ALIGNMENTS):
            name = found.start if kind == "fitted" else f"{found.start}, {kind} rank {rank}"
            self.task.watch.record(Start((self.first.members, self.second.members), name, found.score))
            seen.append(found)
            if not joined or found.score > joined[-1].score + 1e-3:
                joined.append(found)
                yield self._join(found, views, expected)
            elif self.task.watch.expired():
                return
        for found in distinct(seen)[:spare]:
            if found not in joined:
                yield self._join(found, views, expected)

    def _join(self, found: Alignment, views: Sequence[_Sketch], expected: float) -> PairLink:
        model = views[0].model.joined(views[1].model.rotated(found.rotation))
        log_ratio = self.knowledge.with_known(found.log_ratio)
        links: list[PairLink] = []
        for may_be_alone in self.choices:
            partner = match(log_ratio, may_be_alone=may_be_alone).permutation
            start = merge(self.first, self.second, partner, model)
            cluster = refine(self.task.collection, start, may_be_alone=may_be_alone, expired=self.task.watch.expired)
            score, _, matched = joint_score(self.task.collection, cluster, range(len(self.first.members)))
            sure = convincing(
                score,
                found.score,
                expected,
                rank=views[0].model.rank,
                chance=self.chance,
                freedom=self.freedom(matched, cluster.model.rank),
                matched=matched / self.smaller,
                may_be_alone=may_be_alone,
            )
            links.append(PairLink(cluster, score, sure))
            if sure:
                return links[-1]
        return links[0]


def link_all(task: Task, clusters: Sequence[Cluster], *, may_be_alone: bool | None) -> tuple[Cluster, bool]:
    """Join clusters, the most convincing pair first, until one is left.

    Returns:
        The cluster, and whether every join was convincing.
    """
    links: dict[tuple[tuple[int, ...], tuple[int, ...]], PairLink] = {}
    remaining = list(clusters)
    sure = True
    while len(remaining) > 1:
        pairs = {(a.members, b.members): (a, b) for k, a in enumerate(remaining) for b in remaining[k + 1 :]}
        for key, (first, second) in pairs.items():
            hurried = any(other in links for other in pairs) and task.watch.expired()
            if key not in links and not hurried:
                links[key] = link_pair(task, first, second, may_be_alone=may_be_alone, thorough=False)
        ranked = _ranked(links, pairs)
        if task.thorough and not links[ranked[0]].convincing:
            for key in ranked:
                if task.watch.expired():
                    break
                links[key] = link_pair(task, *pairs[key], may_be_alone=may_be_alone, thorough=True)
                if links[key].convincing:
                    break
            ranked = _ranked(links, pairs)
        best = ranked[0]
        sure = sure and links[best].convincing
        if may_be_alone is None and any(np.any(index < 0) for index in links[best].cluster.rows):
            may_be_alone = True
        remaining = [cluster for cluster in remaining if cluster not in pairs[best]] + [links[best].cluster]
        task.watch.report("joins", len(clusters) - len(remaining), len(clusters) - 1, links[best].score)
    return remaining[0], sure


def _ranked(
    links: Mapping[tuple[tuple[int, ...], tuple[int, ...]], PairLink], pairs: Mapping[Any, Any]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    tried = [key for key in pairs if key in links]
    return sorted(tried, key=lambda key: (links[key].convincing, links[key].score), reverse=True)


def decide_alone(task: Task, cluster: Cluster) -> tuple[Cluster, bool]:
    """Decide for equal sizes: all have a partner unless, with everyone given one, some clearly have none."""
    whole = cluster if all(np.all(index >= 0) for index in cluster.rows) else complete(task, cluster)
    if not _has_rows_alone(task.collection, whole):
        return whole, False
    if whole is cluster:
        cluster = refine(task.collection, cluster, may_be_alone=True, expired=task.watch.expired)
    return cluster, True


def complete(task: Task, cluster: Cluster) -> Cluster:
    """Give every row a partner: entities of the first member only, every other member matched fully to the rest."""
    kept = cluster.rows[0] >= 0
    cluster = replace(cluster, rows=tuple(index[kept] for index in cluster.rows))
    for position in range(1, len(cluster.members)):
        cluster = rematch(task.collection, cluster, position, may_be_alone=False)
    return refine(task.collection, cluster, may_be_alone=False, max_rounds=3, expired=task.watch.expired)


def _has_rows_alone(collection: Collection, cluster: Cluster, *, sure: float = 0.99) -> bool:
    """Whether more rows than chance allows (two, or one in 200) have, with probability `sure` each, no partner."""
    for position, member in enumerate(cluster.members):
        _, found, _ = match_table(collection, cluster, position, may_be_alone=True)
        single = int((found.coupling(max_iter=100, tolerance=1e-3).sum(axis=0) < 1.0 - sure).sum())
        if single > max(2, len(collection.tables[member][0]) / 200):
            return True
    return False


def finish(task: Task, cluster: Cluster, *, may_be_alone: bool) -> Cluster:
    """Bring the members into order, and refine once more from a fresh model whose rank is found anew."""
    order = np.argsort(cluster.members)
    tables = task.collection.of(cluster.members)
    starts = np.cumsum([0, *(values.shape[1] for values, _ in tables)])
    columns = np.concatenate([np.arange(starts[k], starts[k + 1]) for k in order])
    cluster = replace(
        cluster,
        members=tuple(cluster.members[k] for k in order),
        rows=tuple(cluster.rows[k] for k in order),
        model=cluster.model.columns(columns),
    )
    if task.watch.expired():
        return cluster
    cluster = refit(task.collection, cluster, max_iter=60)
    values, mask = stack(task.collection.of(cluster.members), cluster.rows)
    fresh, bound = fit(
        values, mask, initial_model(values, mask, min(cluster.model.rank + 5, task.largest_rank)), max_iter=60
    )
    if fresh.rank == cluster.model.rank and bound <= cluster.evidence + 1.0:
        return cluster
    start = replace(cluster, model=fresh)
    again = refine(task.collection, start, may_be_alone=may_be_alone, expired=task.watch.expired)
    again = refit(task.collection, again, max_iter=60)
    return again if again.evidence > cluster.evidence else cluster
