"""Look for the map between two tables from nothing: first couplings, grown by alternation, the best of them refined.

Clusters that correspond come first, then maps by moments: they cost least, and are all but right or of no use. Maps by
moments only climb, with each row coupled by what other rows say. Other couplings are rougher. From each of them growth
takes two ways, since each finds maps that the other misses: all rows speak for their own pairs while few factors are
used, or while all factors are; then each row is coupled by what other rows say. Where partners do not stand out fully
by then, candidates are bred from, since each of them is right in other rows: first by maps of what two of them agree
about, then by predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from keyless.engine.breeding import bred, can_be_bettered
from keyless.engine.refine import FIRST_ROUNDS, MOST_ROUNDS, Matching, Refinement, identification, smoothed
from keyless.maps.alternation import Alternation
from keyless.maps.clusters import MOST_PROPOSED, Blocks, blocks_of_clusters, grown_in_blocks
from keyless.maps.moments import MOST_MAPS, moment_maps
from keyless.maps.seeds import grown_from
from keyless.maps.signatures import SPACES, coupled_by_map, first_couplings
from keyless.model.factors import Factors
from keyless.pairs.limits import Limits
from keyless.parallel import in_turn, workers
from keyless.progress import Callback, Deadline, cut_short, is_late
from keyless.sizes import TELLING_ROWS

__all__ = ["STANDS_OUT", "Search", "Start", "outermost"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

_FIRST_FACTORS = 6
"""Leading factors that growth begins with."""

_FEW_FACTORS = 12
"""Factors up to which the first way grows."""

_GROWTH_STEPS = 40
"""Steps of growth in which all rows speak for their own pairs."""

_RISING, _LEVEL = 10, 4
"""Steps of a climb in which factors are added, and steps with all of them at its end."""

_ROWS_PER_FACTOR = 8
"""A climb uses at most one factor for so many rows of the smaller table."""

_SEED_FACTORS = (1.0, 1.25, 1.6)
"""Leading factors, as multiples of those that stand out of the noise, with which a map grows from known pairs.

Weak factors are missed by the count, and the map grows only with nearly all factors and little else."""

_AGREEING = 3
"""Candidates that must have found the same correspondence before a search ends early."""

_SAME = 0.5
"""Share of rows with the same partner from which two candidates count as one correspondence."""

_REFINED = 4
"""Distinct candidates that are refined, the most informative first."""

_LIKE = 0.8
"""Share of rows with the same partner from which two candidates that may be bred from count as one."""

_LOOKED_AT = 24
"""Candidates that are refined, the most informative; the best of them are bred from. What a map may become shows only
when it is refined: where tables leave out opposite ends of a trait, the right one was the 13th to 17th before that."""

_PARENTS, _CHILDREN, _GENERATIONS, _FRUITLESS = 12, 36, 4, 2
"""Candidates of most information that are crossed, children of a generation, the most generations, and how many in a
row may bring no more information. Two views of 600 digits whose common factors are weak in both went from 0.05 right to
0.97 in three generations of 1.8 s of processor time each (benchmarks/bench_real.py, pairs of `weak`)."""

_PAIRS_CROSSED = 6e7
"""Pairs of rows of all children together: four generations of 600 rows, one of 1,000."""

_CROSSING_STEPS = 8
"""Steps of a child's climb, all with all factors: with few factors first, it forgets what its parents agree about."""

_PLENTY = 12
"""Rows for each factor from which candidates that convince are not bred from: of such tables they are right but for
rows that cannot be told apart."""

STANDS_OUT = 0.85
"""Part of log(rows) nats by which partners stand out in a link that ends the search at once.

Wrong links reach 0.6 to 0.75 of it on real tables of 100 to 1,000 rows."""


_SAYS_SOMETHING = 0.1
"""Part of log(rows) nats by which partners must stand out where candidates agree: maps without a factor agree, too."""

_MOST_ROWS = 1000
"""Rows of each table that a map is sought on; all rows refine it. The work grows with their square."""

_PAIRS_AFFORDED, _FEWEST_SPACES = 1e6, 4
"""Pairs of rows in all spaces together, and the fewest spaces: 4 to 10 of them for 500 to 300 rows."""

_LEADING = 8
"""Factors by which it is told how far out a row is."""

_PAIRS_AT_A_TIME = 5e5
"""Pairs of rows of couplings that are worked on together: some of them take hardly longer than one of few rows, and
many of them would leave the processor's cache."""


@dataclass(frozen=True)
class Start:
    """How a candidate came to be.

    Attributes:
        name: of its first coupling and of the way it grew.
        score: how well partners stand out among all rows, in nats above a guess; see `identification`.
    """

    name: str
    score: float


class _Proposal(NamedTuple):
    """A coupling that may lead to the map.

    Attributes:
        name: where it comes from.
        coupling: left × right rows.
        factors: leading factors of either table that it is a map of, with which a climb begins; None: it is rough and
            has to grow in all ways.
        blocks: clusters that correspond, inside which it grows; None: rows of all clusters are coupled.
    """

    name: str
    coupling: FloatArray
    factors: int | None = None
    blocks: Blocks | None = None


@dataclass(eq=False)
class _Candidate:
    """A coupling that was reached, and what it was judged by.

    Attributes:
        name: what it was reached from.
        coupling: left × right rows.
        choice: per left row, the right row it prefers.
        information: what left-out rows show of its map, in nats per row.
        score: how well partners stand out among all rows, in nats above a guess; see `identification`.
        members: how many candidates found this correspondence.
        refined: what it becomes when it is refined.
        contradicted: whether known pairs speak against it.
    """

    name: str
    coupling: FloatArray
    choice: IntArray
    information: float
    score: float
    members: int = 1
    refined: Matching | None = None
    contradicted: bool = False

    def agrees(self, other: _Candidate, share: float) -> bool:
        """Tell whether both prefer the same partner for at least this share of rows."""
        return float(np.mean(self.choice == other.choice)) >= share


@dataclass
class Search:
    """A search for the map between the factors of two tables.

    Attributes:
        left: factors of the left table.
        right: factors of the right table.
        limits: which pairs may be matched.
        starts: named couplings that are tried before all others.
        spaces: in how many spaces first couplings are sought; None: as many as the number of rows affords.
        breed: whether candidates may be bred from.
        deadline: when the best so far is returned.
        callback: called after every batch of proposals with the stage, the proposals so far, the most there may be, and
            the highest score.
        tried: how the candidates came to be.
        bred: whether candidates were bred from.
    """

    left: Factors
    right: Factors
    limits: Limits
    starts: Sequence[tuple[str, FloatArray]] = ()
    spaces: int | None = None
    breed: bool = True
    deadline: Deadline | None = None
    callback: Callback | None = None
    tried: list[Start] = field(default_factory=list)
    bred: bool = False

    def __post_init__(self) -> None:
        self.rows = outermost(self.left), outermost(self.right)
        left, right = (side.compact[rows] for side, rows in zip((self.left, self.right), self.rows, strict=True))
        self.allowed = self.limits.mask(*self.rows)
        self.alternation = Alternation(left, right, allowed=self.allowed, deadline=self.deadline)
        self.sampled = (len(left), len(right)) != self.limits.shape
        among = self.limits.some(*self.rows) if self.sampled else self.limits
        self.refinement = Refinement(left, right, limits=among)
        self.most_nats = float(np.log(max(len(left), len(right))))
        rows = min(len(left), len(right))
        self.top = max(_FIRST_FACTORS, min(max(left.shape[1], right.shape[1]), rows // _ROWS_PER_FACTOR))
        if self.spaces is None:
            self.spaces = int(np.clip(_PAIRS_AFFORDED / (len(left) * len(right)), _FEWEST_SPACES, len(SPACES)))
        self.at_a_time = max(1, int(_PAIRS_AT_A_TIME / (len(left) * len(right))))
        self.reached: list[_Candidate] = []
        self.pool: list[_Candidate] = []

    @property
    def convincing(self) -> bool:
        """Whether partners stand out clearly, or enough candidates found the correspondence that stands out most."""
        best = self._best() if self.reached else None
        if best is None or best.refined is None or best.contradicted:
            return False
        nats, most = best.refined.identification, self.most_nats
        return nats >= STANDS_OUT * most or (best.members >= _AGREEING and nats >= _SAYS_SOMETHING * most)

    @property
    def agreement(self) -> int:
        """How many candidates found the correspondence that stands out most."""
        return self._best().members if self.reached else 0

    def run(self) -> Matching:
        """Return the matching whose partners stand out most."""
        spaces = SPACES[: self.spaces]
        total = len(self.starts) + len(self._seed_ranks()) + MOST_PROPOSED + MOST_MAPS + 2 * len(spaces)
        batches, number, ended = self._batches(spaces), 0, False
        while not ended:
            batch: list[_Proposal] = []
            # Only the first is waited for when it is late.
            with cut_short(self.deadline if self.reached else None):
                batch = next(batches, [])
            if not batch:
                break
            # All of a batch are grown, but looked at one by one.
            for name, coupling in self._grown(batch):
                self._take(name, coupling)
            number += len(batch)
            if self.callback is not None:
                self.callback("search", number, total, max(one.score for one in self.reached))
            ended = is_late(self.deadline)
            if not ended:
                self._refine()
                ended = self.convincing
        self._refine()
        if not self.convincing:
            with cut_short(self.deadline):
                self._cross()
            self._refine()
        best = self._best().refined
        if best is None:
            raise RuntimeError("no candidate was refined")
        with cut_short(self.deadline):
            best = self._bred(best)
        refinement = self.refinement
        if self.sampled:
            refinement = Refinement(self.left.compact, self.right.compact, limits=self.limits)
            rounds = 1 if is_late(self.deadline) else FIRST_ROUNDS
            best = refinement.run(self._of_all_rows(best), rounds=rounds, deadline=self.deadline)
        if is_late(self.deadline):
            return best
        with cut_short(self.deadline):
            further = refinement.run(best.coupling, rounds=MOST_ROUNDS, common=best.common, deadline=self.deadline)
            best = max(best, further, key=lambda matching: matching.strength)
            if not self.sampled:
                sides = refinement.left, refinement.right
                best = smoothed(best, self._views(), limits=self.limits, by_map=sides, deadline=self.deadline)
        return best

    def _batches(self, spaces: Sequence[tuple[float, int]]) -> Iterator[list[_Proposal]]:
        """Yield proposals, those together that are alike."""
        begun = [(name, coupling[np.ix_(*self.rows)]) for name, coupling in self.starts]
        # Known pairs may all be of other rows than those that are searched.
        told = [_Proposal(name, among) for name, among in begun if among.any()]
        known = self.refinement.limits.known
        yield from ([each] for each in told)
        for rank in self._seed_ranks():
            yield [_Proposal(f"known pairs with {rank} factors", grown_from(self.alternation, known, rank))]
        for found in () if is_late(self.deadline) else blocks_of_clusters(self.left, self.right, self.rows):
            blocks = found if self.allowed is None else replace(found, allowed=found.allowed & self.allowed)
            # Known pairs stay, whichever clusters their rows are of.
            blocks.allowed[tuple(known.T)] = True
            yield [_Proposal(blocks.name, blocks.coupling, blocks=blocks)]
        # When it is late, one rough coupling is enough: it is there at once.
        sides = self.refinement.left, self.refinement.right
        for some in () if is_late(self.deadline) else moment_maps(self.left, self.right):
            yield [
                _Proposal(name, coupled_by_map(*sides, cross, allowed=self.allowed), factors=max(cross.shape))
                for name, cross in some
            ]
        named = first_couplings(self.left, self.right, rows=self.rows, spaces=spaces, allowed=self.allowed)
        # Two of each space, which are made when they are asked for.
        for two in zip(named, named, strict=True):
            yield [_Proposal(name, coupling) for name, coupling in two]

    def _seed_ranks(self) -> list[int]:
        """Return the numbers of factors with which a map grows from known pairs; none where no pair is known."""
        if not len(self.refinement.limits.known):
            return []
        stand_out = max(self.left.signal_rank, self.right.signal_rank, 2)
        return sorted({round(times * stand_out) for times in _SEED_FACTORS})

    def _grown(self, batch: Sequence[_Proposal]) -> list[tuple[str, FloatArray]]:
        """Return what proposals that are alike grow to, by name; when it is late, in the first way."""
        blocks = batch[0].blocks
        if blocks is not None:
            sides = self.refinement.left, self.refinement.right
            grown = grown_in_blocks(blocks, *sides, deadline=self.deadline)
            # Then rows may be matched across clusters, or to nobody.
            return [
                (name, self.refinement.run(coupling, rounds=FIRST_ROUNDS, deadline=self.deadline).coupling)
                for name, coupling in grown.items()
            ]
        first = min(batch[0].factors or _FIRST_FACTORS, self.top)
        climb = [*(round(rank) for rank in np.geomspace(first, self.top, _RISING)), *([self.top] * _LEVEL)]
        ways: list[tuple[str, int | None, list[int]]] = [("climb", None, climb)]
        if batch[0].factors is None:
            ways = [
                ("few factors first", min(_FEW_FACTORS, self.top), climb[2:]),
                ("all factors first", max(self.alternation.ranks), climb[-_LEVEL - 1 :]),
            ]
        found: list[tuple[str, FloatArray]] = []
        for way, last, ranks in ways:
            couplings = self._in_parts([each.coupling for each in batch], last, ranks)
            found += [(f"{each.name}, {way}", coupling) for each, coupling in zip(batch, couplings, strict=True)]
            if is_late(self.deadline):
                break
        return found

    def _in_parts(self, couplings: Sequence[FloatArray], last: int | None, ranks: list[int]) -> list[FloatArray]:
        """Return what couplings lead to; some are worked on together, and as many such parts at a time as cores."""
        count = max(1, min(self.at_a_time, -(-len(couplings) // workers())))
        parts = [(couplings[start : start + count], last, ranks) for start in range(0, len(couplings), count)]
        return [each for part in in_turn(self._climbed, parts, n_jobs=min(workers(), len(parts))) for each in part]

    def _climbed(self, couplings: Sequence[FloatArray], last: int | None, ranks: list[int]) -> FloatArray:
        """Return couplings after a climb, and after growth to so many factors before it."""
        stacked = np.stack(couplings)
        if last is not None:
            stacked = self.alternation.grow(stacked, first=_FIRST_FACTORS, last=last, steps=_GROWTH_STEPS)
        return self.alternation.climb(stacked, ranks)

    def _take(self, name: str, coupling: FloatArray) -> None:
        """Keep the best candidate of every correspondence, and few of them."""
        candidate = self._judged(name, coupling)
        self.tried.append(Start(name, candidate.score))
        self._keep(candidate)
        for number, one in enumerate(self.reached):
            if candidate.agrees(one, _SAME):
                one.members += 1
                if candidate.score > one.score:
                    self.reached[number] = replace(candidate, members=one.members)
                break
        else:
            self.reached.append(candidate)
        leaders = self._leaders(2 * _REFINED)
        # Of those too far behind to be refined, only correspondences found more than once are still counted.
        self.reached = [one for one in self.reached if one.members > 1 or any(one is leader for leader in leaders)]

    def _keep(self, candidate: _Candidate) -> None:
        """Keep a candidate to breed from, if it has more information than others and is like none of them."""
        alike = [one for one in self.pool if candidate.agrees(one, _LIKE)]
        if all(candidate.information > one.information for one in alike):
            rest = [one for one in self.pool if not any(one is other for other in alike)]
            self.pool = sorted([*rest, candidate], key=lambda one: -one.information)[:_LOOKED_AT]

    def _judged(self, name: str, coupling: FloatArray) -> _Candidate:
        """Return a candidate, its rows judged by maps that have not seen them."""
        rows = self.refinement
        fit = rows.fitted(coupling, heavy_tails=False)
        score = identification(rows.ratios(fit), coupling, axes=(1,))
        return _Candidate(name, coupling, coupling.argmax(axis=1), fit.information, score)

    def _leaders(self, count: int) -> list[_Candidate]:
        """Return the best half by how well partners stand out, and the best half by information.

        Neither alone is a good guide before a map is refined: a few rows far out make up most of some wrong map's
        information, and partners do not stand out yet where correlations are still taken too low.
        """
        by_score = sorted(self.reached, key=lambda one: -one.score)[: count // 2]
        by_information = sorted(self.reached, key=lambda one: -one.information)
        rest = [one for one in by_information if not any(one is chosen for chosen in by_score)]
        return by_score + rest[: count - len(by_score)]

    def _refine(self) -> None:
        for one in self._leaders(_REFINED):
            if one.refined is None:
                late = is_late(self.deadline)
                first = all(other.refined is None for other in self.reached)
                if late and not first:
                    break
                with cut_short(None if first else self.deadline):
                    one.refined = self.refinement.run(
                        one.coupling, rounds=1 if late else FIRST_ROUNDS, deadline=self.deadline
                    )
                    one.contradicted = self.refinement.contradicted(one.refined.coupling)

    def _cross(self) -> None:
        """Grow maps from what two candidates agree about, generation after generation.

        Every row is coupled, and maps are chosen by their information: partners stand out only when most of a map is
        right, but any part of it that is right informs about rows that it was not fitted to. Children do not count as
        candidates that agree with each other, since they have parents in common.
        """
        sizes = self.refinement.limits.shape
        generations = min(_GENERATIONS, int(_PAIRS_CROSSED / (_CHILDREN * sizes[0] * sizes[1])))
        if not self.breed or min(sizes) < TELLING_ROWS:
            return
        self.bred, rng, fruitless = True, np.random.default_rng(0), 0
        for _ in range(generations):
            parents = self.pool[:_PARENTS]
            if len(parents) < 2 or fruitless == _FRUITLESS or is_late(self.deadline):
                break
            pairs = rng.permutation(list(combinations(range(len(parents)), 2)))[:_CHILDREN]
            children = [np.sqrt(parents[one].coupling * parents[two].coupling) for one, two in pairs]
            for coupling in self._in_parts(children, None, [self.top] * _CROSSING_STEPS):
                self._keep(self._judged("two candidates crossed", coupling))
            fruitless = 0 if self.pool[0].information > parents[0].information else fruitless + 1
        for child in self.pool[:_PARENTS]:
            if all(not child.agrees(one, _SAME) for one in self.reached):
                self.reached.append(child)

    def _bred(self, best: Matching) -> Matching:
        """Return what candidates lead to that are bred from, or the best as it is where that is not worth its time."""
        plenty = min(self.refinement.limits.shape) >= _PLENTY * self.top
        if not self.breed or (self.convincing and plenty) or not can_be_bettered(best, self.deadline):
            return best
        self.bred = True
        sides = self.refinement.left, self.refinement.right
        pool = [one.coupling for one in self.pool]
        return bred(best, pool, self._views(), limits=self.refinement.limits, by_map=sides, deadline=self.deadline)

    def _views(self) -> list[tuple[Factors, Factors]]:
        """Return the factors of the rows that are searched, from which those of their partners are predicted."""
        return [(self.left.rows(self.rows[0]), self.right.rows(self.rows[1]))]

    def _of_all_rows(self, best: Matching) -> Any:
        """Return the coupling of all rows that a map found on some of them gives."""
        whole = Alternation(self.left.compact, self.right.compact, allowed=self.limits.mask(), deadline=self.deadline)
        return whole.climb(whole.coupled(best.fit.whole)[None], [self.top] * 2)[0]

    def _best(self) -> _Candidate:
        """Return the candidate whose partners stand out most, of those that known pairs do not contradict."""
        return max(
            self.reached,
            key=lambda one: (one.refined is not None, not one.contradicted, one.refined.strength if one.refined else 0),
        )


def outermost(factors: Factors) -> IntArray:
    """Return the rows a map is sought on, in their order: all of few, else those farthest out in leading factors.

    Rows far out are told apart most easily, and are far out in the other table too.
    """
    rows = len(factors.scores)
    if rows <= _MOST_ROWS:
        return np.arange(rows)
    distance = np.sum(factors.scores[:, :_LEADING] ** 2, axis=1)
    return np.sort(np.argsort(-distance, kind="stable")[:_MOST_ROWS])
