"""Link tables of many rows by one factor model of all their columns.

A map turns the latents of one table (the factors that its model gives its rows) onto those of another. Under the map
every row has few likely partners: the nearest rows in the space where distance is likelihood. The model of all columns
is fitted to sampled rows that are sure of their partner. All rows are matched by this model, and the rows that it was
not fitted to tell how good it is. Time and memory grow no faster than the number of rows (times a slowly growing factor
in the search for neighbours), and rows are worked on in shards, which are parts of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray
from keyless.cluster import LOCAL, OnDisk, current_workers, local_workers
from keyless.engine.forms import View
from keyless.engine.matches import matched as matched_rows
from keyless.engine.search import Search
from keyless.engine.unseen_rows import Tested, chance_score, tested
from keyless.errors import CONVERGED, InputError, Status
from keyless.maps.by_moments import from_moments
from keyless.maps.by_pairs import from_pairs
from keyless.maps.components import from_components
from keyless.maps.far_rows import from_far_rows
from keyless.maps.proposed import ProposedMap, confirmed_share
from keyless.maps.shared_columns import pairs_by_columns
from keyless.model.factor_model import FactorModel, padded
from keyless.model.moments import fit_rows
from keyless.model.positions import Entities, Places
from keyless.model.scored_tables import ScoredTable
from keyless.model.shards import sampled
from keyless.pairs.candidates import (
    Candidates,
    find_candidates,
    limited,
    permitted,
    sure_pairs,
)
from keyless.pairs.cells import CELL
from keyless.pairs.constraints import Constraints
from keyless.pairs.limits import Limits
from keyless.pairs.matching import Matched, match_listed
from keyless.pairs.overlooked import Fits, Overlooked, can_be_compared, left_over, with_overlooked
from keyless.pairs.posterior import FIRST_SHARE, largest, pair_places, prior_log_odds
from keyless.parallel import one_thread
from keyless.progress import Callback, Deadline, is_late, time_left
from keyless.saved.checkpoints import Checkpoints

__all__ = ["ColumnLink", "ColumnSearch"]

Stage = TypeVar("Stage")

_MODEL_ROWS = 20_000
"""The most rows that a model is fitted to. With more rows the errors of the model would not matter less."""

_GAP_ROWS = 10_000
"""The most rows that a model is fitted to where entries are missing: fitting takes longer then."""

_GROWN_ROWS = 1_000
"""How many rows of each table, those farthest from the middle, a map is grown on if no other proposed map is
promising."""

_LEFTOVER_ROUNDS = 10
"""How often, at the most, rows without match are compared with those of the other table, if every row must have a
partner."""

_ARRAYS_OF_A_CELL = 6
"""How many arrays, each rows of a cell × rank, the search for neighbours in a cell holds: both sides, their pieces and
an index. The workers of a cluster must have memory for so many."""

_ROUNDS = 8
_ENOUGH = 0.5
"""A model is fitted again, at most `_ROUNDS` times, until more than this share of sampled rows have surely found a
partner."""


@dataclass(frozen=True, eq=False)
class ColumnLink:
    """Tables linked to a reference, the first of them.

    Attributes:
        matched: per other table, its matches, every table matched against all the others joined.
        maps: per other table, the map it was found by.
        tests: per other table, how good its matches are for rows that the model was not fitted to.
        chance: per other table, the scores that the search reaches where there is nothing to find.
        model: factor model over the columns of all tables side by side.
        evaluations: how many distances were looked at.
        recall: share of sampled rows whose likeliest partner the search for neighbours found; the lowest of all
            searches.
        status: how the search ended.
    """

    matched: tuple[Matched, ...]
    maps: tuple[ProposedMap, ...]
    tests: tuple[Tested, ...]
    chance: tuple[tuple[float, ...], ...]
    model: FactorModel
    evaluations: int
    recall: float
    status: Status


class ColumnSearch:
    """One search for the links of large tables.

    Args:
        tables: the reference and the others.
        rank: the most factors there are; None: found from the data.
        every_row: whether every row of the smaller table has a partner; None: decided from the data.
        constraints: which rows may, must or must not be the same entity.
        shared: numbers of columns that measure the same thing, per pair of tables; only those of the reference with
            another table are used.
        thorough: whether a map is sought by canonical growth where nothing else finds one.
        comparisons: how often the link is destroyed and sought again, which tells what chance reaches.
        seed: of all random numbers.
        callback: called with stage, step, total and objective.
        deadline: when to stop and return the best so far.
        stages: keeps finished stages, so that a search that was cut off goes on where it was.
        device: the graphics card that computes, as `arrays.find_device` returns it; None: the processor computes.
    """

    def __init__(
        self,
        tables: Sequence[ScoredTable],
        *,
        rank: int | None = None,
        every_row: bool | None = None,
        constraints: Constraints | None = None,
        shared: Mapping[tuple[int, int], Sequence[tuple[int, int]]] | None = None,
        thorough: bool = True,
        comparisons: int = 1,
        seed: int = 0,
        callback: Callback | None = None,
        deadline: Deadline | None = None,
        stages: Checkpoints | None = None,
        device: Any = None,
    ) -> None:
        self.thorough, self.stages = thorough, stages or Checkpoints(None, "")
        # Rows in the memory of this process would have to be sent to other workers, which are meant for rows that they
        # can read from disk.
        on_disk = all(isinstance(table.values, OnDisk) for table in tables)
        self.workers = current_workers() if on_disk else LOCAL
        self.on_cluster = self.workers is not LOCAL
        if self.on_cluster and device is not None:
            raise InputError("device: must be 'cpu' where a cluster works; found a card of this machine.")
        self.workers = self.workers if self.on_cluster else local_workers(device)
        self.tables, self.every_row, self.constraints, self.seed = tuple(tables), every_row, constraints, seed
        self.shared = {} if shared is None else shared
        self.rank_given, self.largest_rank = rank is not None, 40 if rank is None else rank
        self.comparisons, self.callback, self.deadline = comparisons, callback, deadline
        self.rng = np.random.default_rng([seed, 71])
        self.evaluations, self.recall = 0, 1.0
        self.fitted = np.empty(0, dtype=np.int64)

    def link(self) -> ColumnLink:
        """Search, and return what was found."""
        self.check_workers()
        models = self.stage("models", self.models)
        rank = max(model.rank for model in models)
        alone = [
            Entities.alone(table, padded(model, rank), self.workers)
            for table, model in zip(self.tables, models, strict=True)
        ]
        joined, maps, found = alone[0], [], []
        chance: list[tuple[float, ...]] = []
        for number in range(1, len(self.tables)):
            proposed, joined, matched, nulls = self.join(joined, alone[number], number)
            maps.append(proposed)
            found.append(matched)
            chance.append(nulls)
            self.report("joins", number, len(self.tables) - 1, float(proposed.confirmed))
        if len(self.tables) > 2:
            found = [self.again(joined, number, *each) for number, each in enumerate(zip(found, maps, strict=True), 1)]
        matches = tuple(matched for matched, _ in found)
        return ColumnLink(
            matches,
            tuple(maps),
            tuple(test for _, test in found),
            tuple(chance),
            joined.model,
            self.evaluations,
            self.recall,
            self.status(maps, matches),
        )

    def stage(self, name: str, make: Callable[[], Stage]) -> Stage:
        """Return a stage that was kept, or make it. Its random numbers do not depend on the stages before it."""
        self.rng = np.random.default_rng([self.seed, 71, *name.encode()])
        return self.stages.stage(f"columns-{name}", make)

    def check_workers(self) -> None:
        """Refuse work that the workers of a cluster cannot do, before it begins."""
        if not self.on_cluster:
            return
        rows = min(max(len(table) for table in self.tables), CELL)
        self.workers.check(rows * self.largest_rank * 4 * _ARRAYS_OF_A_CELL)

    def models(self) -> tuple[FactorModel, ...]:
        """Return a model of each table by itself, from a sample of its rows."""
        models = []
        for number, table in enumerate(self.tables):
            rows = sampled(len(table), _MODEL_ROWS if table.complete else _GAP_ROWS, self.rng)
            scores = table.scores(self.rng.permutation(rows))
            models.append(fit_rows(*scores, rank=self.largest_rank, expired=self.expired))
            self.report("tables", number + 1, len(self.tables), float(models[-1].rank))
        return tuple(models)

    def join(
        self, left: Entities, right: Entities, number: int
    ) -> tuple[ProposedMap, Entities, tuple[Matched, Tested], tuple[float, ...]]:
        """Join one more table to the reference and the tables already joined to it."""
        rank = max(left.model.rank, right.model.rank)
        left, right = (replace(side, model=padded(side.model, rank)) for side in (left, right))
        places = left.positions(), right.positions()
        found = self.stage(f"map{number}", lambda: self.mapped(places, number, self.limits(left, number)))
        self.report("map", number, len(self.tables) - 1, found.confirmed)
        nulls: tuple[float, ...] = ()
        if self.thorough or found.promising:
            # A quick look that found nothing is followed by another search, and need not be compared with chance.
            nulls = self.stage(f"chance{number}", lambda: self.chance(places))
        rank = len(found.rotation)
        left, right = (replace(side, model=padded(side.model, rank)) for side in (left, right))
        right = replace(right, model=right.model.rotated(found.rotation))
        places = places[0].padded(rank), places[1].padded(rank).turned(found.rotation)
        if found.promising:
            both, self.fitted = self.stage(f"refit{number}", lambda: self.settled(left, right, places, number))
            left, right = (replace(side, model=model) for side, model in zip((left, right), both, strict=True))
            places = left.positions(), right.positions()
        if found.promising and not found.convincing:
            # Factors that only one table has spoil the map but not the model, which then finds the other rows.
            found = replace(found, confirmed=max(found.confirmed, confirmed_share(*places)))
        matched, test = self.matches(left, right, places, number, found)
        model = left.model.joined(right.model)
        joined = Entities((*left.tables, *right.tables), (*left.rows, matched.permutation), model, self.workers)
        return found, joined, (matched, test), nulls

    def settled(
        self, left: Entities, right: Entities, places: Places, number: int
    ) -> tuple[tuple[FactorModel, FactorModel], IntArray]:
        """Return models of both sides, fitted again until enough rows are sure, and the rows they were fitted to."""
        share = 0.0
        for _ in range(_ROUNDS):
            before = share
            left, right, share = self.refitted(left, right, places, number)
            if share > _ENOUGH or share < before + 0.01 or self.expired():
                break
            places = left.positions(), right.positions()
        return (left.model, right.model), self.fitted

    def mapped(self, places: Places, number: int, limits: Limits) -> ProposedMap:
        """Return the first proposed map that convinces, else the one that is confirmed by the most held-out rows."""
        best: ProposedMap | None = None
        for proposed in filter(None, self.proposals(places, number, limits)):
            best = proposed if best is None else _better(best, proposed)
            if best.convincing or self.expired():
                break
        if best is None:
            raise RuntimeError("no proposer gave a map")
        if self.thorough and not best.promising and not self.expired():
            grown = self.grown(places, limits)
            best = best if grown is None else _better(best, grown)
        return best

    def proposals(self, places: Places, number: int, limits: Limits) -> Iterator[ProposedMap | None]:
        """Yield maps by known pairs, components, shared columns, moments, and rows far out; None for no map."""
        yield self.by_pairs(places, limits.known, "known pairs")
        yield from_components(*places, rng=self.rng, expired=self.expired)
        yield self.by_pairs(places, self.similar(number), "shared columns")
        yield from_moments(*places, rng=self.rng, expired=self.expired)
        yield from_far_rows(*places, expired=self.expired)

    def by_pairs(self, places: Places, pairs: IntArray | None, name: str) -> ProposedMap | None:
        """Return the map that pairs of rows suggest; None where there are none."""
        return None if pairs is None or not len(pairs) else from_pairs(*places, pairs, name=name, rng=self.rng)

    def chance(self, places: Places) -> tuple[float, ...]:
        """Return the scores that the search reaches where there is nothing to find."""
        scores = []
        for repeat in range(self.comparisons):
            if self.expired():
                break
            score, evaluations = chance_score(*places, rng=self.rng, expired=self.expired)
            self.evaluations += evaluations
            scores.append(score)
            self.report("chance", repeat + 1, self.comparisons, score)
        return tuple(scores)

    def refitted(
        self, left: Entities, right: Entities, places: Places, number: int
    ) -> tuple[Entities, Entities, float]:
        """Fit one model to both sides, from a sample of rows that have surely found each other.

        Returns:
            Both sides with this model, and the share of sampled rows that were sure of their partner.
        """
        gaps = not (left.uniform and right.uniform)
        # Half of the rows at the most: the others tell how good the model is.
        rows = sampled(len(left), min(_GAP_ROWS if gaps else _MODEL_ROWS, len(left) // 2), self.rng)
        self.fitted, limits = rows, self.limits(left, number)
        found = self.candidates(left, right, places, parts=limits.parts(rows))
        odds = prior_log_odds(found.ratios.shape, FIRST_SHARE * min(found.ratios.shape))
        pairs = sure_pairs(found, rows, odds, limits)
        if len(pairs) <= 2 * left.model.rank:
            return left, right, 0.0
        (first, seen), (second, seen_too) = left.scores(pairs[:, 0]), right.scores(pairs[:, 1])
        values, mask = np.concatenate([first, second], axis=1), np.concatenate([seen, seen_too], axis=1)
        # Where tables have factors of their own, both together have more factors than either table.
        rank = min(
            left.model.rank + 5, self.largest_rank if self.rank_given else max(self.largest_rank, left.model.rank)
        )
        model = fit_rows(values, mask, rank=rank, start=left.model.joined(right.model), expired=self.expired)
        width = first.shape[1]
        left, right = (
            replace(side, model=model.columns(part))
            for side, part in ((left, slice(0, width)), (right, slice(width, None)))
        )
        return left, right, len(pairs) / len(rows)

    def again(
        self, joined: Entities, number: int, before: tuple[Matched, Tested], found: ProposedMap
    ) -> tuple[Matched, Tested]:
        """Match one table anew against all the others joined."""
        edges = np.cumsum([0, *(table.values.shape[1] for table in joined.tables)])
        own = slice(edges[number], edges[number + 1])
        others = [k for k in range(len(joined.tables)) if k != number]
        columns = np.concatenate([np.arange(edges[k], edges[k + 1]) for k in others])
        left = Entities(
            tuple(joined.tables[k] for k in others),
            tuple(joined.rows[k] for k in others),
            joined.model.columns(columns),
            self.workers,
        )
        right = Entities.alone(joined.tables[number], joined.model.columns(own), self.workers)
        if self.expired():
            return before
        return self.matches(left, right, (left.positions(), right.positions()), number, found)

    def matches(
        self,
        left: Entities,
        right: Entities,
        places: Places,
        number: int,
        proposed: ProposedMap,
    ) -> tuple[Matched, Tested]:
        """Match all rows of two sides; where the map is convincing, rows without match are compared again."""
        limits = self.limits(left, number)
        remaining = partial(time_left, self.deadline)

        def match(found: Candidates) -> Matched:
            ratios = limited(found.ratios, limits)
            return match_listed(ratios, every_row=self.every_row, remaining=remaining, workers=self.workers)

        found = self.stage(
            f"candidates{number}-{len(left.tables)}",
            lambda: self.candidates(left, right, places, parts=limits.parts(), further=True),
        )
        self.report("candidates", number, len(self.tables) - 1, found.ratios.nnz / max(len(left), 1))
        matched = match(found)
        for _ in range(_LEFTOVER_ROUNDS if proposed.convincing else 0):
            rows = np.flatnonzero(matched.permutation < 0)
            columns = _others(matched.permutation, len(right))
            nobody = not matched.every_row and len(columns) == len(right)
            if not (len(rows) and len(columns)) or nobody or self.expired():
                break
            found = found + self.candidates(left, right, places, parts=limits.parts(rows, columns), every=True)
            matched = match(found)
            # If every row has a partner, the search goes on until all partners are found, or a round finds no more.
            if not matched.every_row or np.count_nonzero(matched.permutation < 0) == len(rows):
                break
        told = np.union1d(self.fitted, limits.known[:, 0])
        test = tested(matched, places, fitted=told)
        if proposed.convincing and not matched.every_row and limits.groups is None and not self.expired():
            matched = self.with_left_over(left, right, places, matched, limits)
        return matched, test

    def with_left_over(
        self, left: Entities, right: Entities, places: Places, matched: Matched, limits: Limits
    ) -> Matched:
        """Return the matches with overlooked partners among rows without match."""
        rows, columns, some, partners = left_over(matched.permutation, len(right))
        if not can_be_compared(rows, columns, some):
            return matched
        asked = np.union1d(rows, some), np.union1d(columns, partners)
        forth = self.candidates(left, right, places, parts=[(asked[0], columns)], every=True).ratios
        back = self.candidates(right, left, (places[1], places[0]), parts=[(asked[1], rows)], every=True).ratios
        forth, back = permitted(forth, limits), permitted(back, limits, turned=True)
        listed = (Candidates(forth) + Candidates(back.T.tocsr())).ratios
        best = [largest(pair_places(each)[0], each.data, each.shape[0]) for each in (forth, back)]
        found = Overlooked(
            rows,
            columns,
            sparse.csr_array(listed[rows][:, columns]),
            Fits(best[0][rows], best[0][some]),
            Fits(best[1][columns], best[1][partners]),
        )
        permutation, pairs = with_overlooked(matched.permutation, matched.chances.pairs, found)
        matching = replace(matched.matching, permutation=permutation)
        return replace(
            matched, matching=matching, chances=replace(matched.chances, pairs=pairs, common=float(pairs.sum()))
        )

    def candidates(self, left: Entities, right: Entities, places: Places, **chosen: Any) -> Candidates:
        """Find candidates, and count how many distances are looked at."""
        found = find_candidates(left, right, places, seed=self.seed, **chosen)
        self.evaluations += found.evaluations
        self.recall = min(self.recall, found.recall)
        return found

    def grown(self, places: Places, limits: Limits) -> ProposedMap | None:
        """Propose a map by canonical growth on the rows farthest out."""
        rows = [np.sort(own.outermost(_GROWN_ROWS)) for own in places]
        if min(map(len, rows)) <= 2 * places[0].rank or not all(own.rows.moment.any() for own in places):
            return None
        left, right = (own.factors(index) for own, index in zip(places, rows, strict=True))
        with one_thread():
            search = Search([View("identity", left, right)], limits.some(*rows), deadline=self.deadline)
            permutation = matched_rows(search.run().matching.ratios, None, crowded=True)[0]
        pairs = np.stack([rows[0], np.append(rows[1], -1)[permutation]], axis=1)
        return self.by_pairs(places, pairs[pairs[:, 1] >= 0], "canonical growth")

    def similar(self, number: int) -> IntArray | None:
        """Return pairs of a reference row and a row of a table, k × 2, that are near by the columns that both have."""
        columns = self.shared.get((0, number))
        if not columns:
            return None
        pairs, evaluations = pairs_by_columns(
            (self.tables[0], self.tables[number]), columns, rng=self.rng, seed=self.seed, device=self.workers.device
        )
        self.evaluations += evaluations
        return pairs

    def limits(self, left: Entities, number: int) -> Limits:
        """Return which entities of one side and rows of a table may be the same, and which are known to be."""
        if self.constraints is None or self.constraints.trivial:
            return Limits((len(left), len(self.tables[number])))
        numbers = [self.tables.index(table) for table in left.tables]
        every = left.taken(slice(0, len(left))).rows
        rows = [np.arange(own.start, own.stop) if isinstance(own, slice) else np.asarray(own) for own in every]
        return Limits.between(self.constraints, (numbers, rows), ([number], [np.arange(len(self.tables[number]))]))

    def expired(self) -> bool:
        """Whether time is up."""
        return is_late(self.deadline)

    def report(self, stage: str, step: int, total: int, objective: float) -> None:
        """Tell the callback how far the search is."""
        if self.callback is not None:
            self.callback(stage, step, total, objective)

    def status(self, maps: Sequence[ProposedMap], matches: Sequence[Matched]) -> Status:
        """Say how the search ended."""
        if self.expired():
            return Status("max_time", "Stopped at the time limit with the best found so far. Raise the time limit.")
        if not all(found.convincing for found in maps):
            return Status(
                "unconvincing",
                "No map was found that rows without a part in it confirm. The tables may not describe the same "
                "entities or share too little; add columns or known pairs.",
            )
        if any(found.matching.gap > 1e-6 * max(len(found.permutation), 1) for found in matches):
            return Status(
                "max_iter",
                "So many rows are alike that they were assigned approximately; the gap to the best is in the choices.",
            )
        return CONVERGED


def _better(one: ProposedMap, other: ProposedMap) -> ProposedMap:
    """Return the map that more held-out rows confirm, with a record of what was tried for both."""
    best = max(one, other, key=lambda found: (found.convincing, found.confirmed))
    return replace(best, tried=one.tried + other.tried)


def _others(chosen: IntArray, size: int) -> IntArray:
    """Return the numbers below `size` that are not chosen."""
    free = np.ones(size, dtype=bool)
    free[chosen[chosen >= 0]] = False
    return np.flatnonzero(free)
