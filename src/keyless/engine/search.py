"""Look for the map between two tables from nothing: many first maps of few factors, each grown, the best refined.

A first map turns the leading factors of one table onto those of the other. Many random ones are turned a little until
they settle, and those are kept under which the rows of both tables look most alike. These grow until all factors are in
them. Rows that a map was not fitted to tell how well partners stand out then. The best candidates are crossed. The
search ends when partners stand out clearly, when the best score has hardly risen for some generations, or when all
generations are done. Once several first maps have led to the same correspondence, no new ones are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, count
from typing import Any

import numpy as np

from keyless.arrays import IntArray, NumpyArray
from keyless.engine.forms import Form, View
from keyless.engine.refine import FIRST_ROUNDS, MOST_ROUNDS, Matching, Refinement, smoothed
from keyless.engine.side import MAX_RANK
from keyless.maps.growth import Growth, Shapes, random_turn
from keyless.maps.moments import distinct_maps, moment_maps
from keyless.maps.seeds import grown_from
from keyless.model.factors import Factors
from keyless.pairs.limits import Limits
from keyless.parallel import in_turn, workers
from keyless.progress import Callback, Deadline, cut_short, is_late

__all__ = ["FEW_GENERATIONS", "STANDS_OUT", "Search", "Start", "outermost"]

_SIZES = (3, 4, 5, 6)
"""Numbers of leading factors that first maps have, one number per generation in turn. In more dimensions two clouds of
500 rows look more alike under some wrong map than under the right one; in fewer they look alike under too many maps."""

_MOST_LEADING = 8
"""The most leading factors of first maps, where a table shows more than six factors that stand out of its noise."""

_FIRST_MAPS, _KEPT, _STEPS = 40, 8, 10
"""Random first maps of a generation, how many of them grow, and the steps in which all of them settle before that."""

_FIRST_CORRELATION = 0.7
"""Correlations that random maps begin with."""

_BY_MOMENTS = 4
"""How many maps by moments grow, of each number of factors: of eight maps, the right one was among the first four."""

_SAMPLE = 300
"""Rows of each table by which first maps are compared. They need not be the same entities: shapes are compared."""

_SEED_FACTORS = (1.0, 1.25, 1.6)
"""Numbers of leading factors with which a map grows from known pairs, as multiples of the number that stands out of the
noise.

That number misses weak factors, and the map grows only with nearly all factors and little else."""

_AGREEING = 3
"""How many first maps must have led to the same correspondence for no new ones to be tried."""

_SAME = 0.5
"""Share of rows with the same partner from which two candidates count as one correspondence."""

_LIKE = 0.8
"""Share of rows with the same partner from which two candidates are so alike that only the better one is kept for
crossing."""

_PARENTS, _CHILDREN, _GENERATIONS = 12, 16, 12
"""The most candidates that are kept for crossing, the most children of a generation, and the most generations."""

FEW_GENERATIONS = 4
"""The most generations of a quick search, and of searches that tell chance, of which there are several: one for each of
`_SIZES`."""

_CHILD_SIZES = (6, 12, MAX_RANK)
"""Numbers of leading factors; a child's map begins with one of them, drawn at random. With few it forgets most of its
parents' maps."""

_PATIENCE, _GAIN = 3, 0.01
"""A search ends if its best score rose by less than `_GAIN` of log(rows) nats in `_PATIENCE` generations: a right map
gains far more from crossing, until it is right in nearly all rows that can be told apart."""

_OF_BOTH = 0.5
"""Share of the children that have the pairs on which their parents agree; others have the pairs of either."""

_REFINED = 4
"""How many distinct candidates are refined: those whose partners stand out most."""

STANDS_OUT = 0.85
"""Part of log(rows) nats by which partners stand out in a link that ends the search at once.

Wrong links reach 0.6 to 0.75 of log(rows) nats on real tables of 100 to 1,000 rows."""

_SAYS_SOMETHING = 0.1
"""Part of log(rows) nats by which partners must stand out for agreement of candidates to count: maps without a factor
agree, too."""

_MOST_ROWS = 1000
"""The most rows of each table on which a map is sought, since the work grows with their square. The map is refined on
all rows."""

_STEPS_OF_ALL = 2
"""Steps in which all rows are coupled by a map that was found on some of them."""

_LEADING = 8
"""Leading factors that tell how far out a row is."""

_LARGE_KERNEL = 250_000
"""Pairs of rows from which maps grow on all cores at a time: with fewer pairs, steps are too short to be shared out."""


@dataclass(frozen=True)
class Start:
    """How a candidate came to be.

    Attributes:
        name: of its first map.
        score: how well partners stand out among all rows, in nats above a guess; see `Refinement.score`.
    """

    name: str
    score: float


@dataclass(eq=False)
class _Candidate:
    """A coupling that was reached, and what it was judged by.

    Attributes:
        view: the rows of both tables, on the scales on which it was reached.
        coupling: left × right rows.
        choice: per row of the smaller table, the row of the other that it prefers.
        score: how well partners stand out among all rows, in nats above a guess; see `Refinement.score`.
        contradicted: whether known pairs speak against it.
        number: of the candidate, in the order of the search; −1 where it was not kept.
    """

    view: _Rows
    coupling: NumpyArray
    choice: IntArray
    score: float
    contradicted: bool = False
    number: int = -1

    @property
    def worth(self) -> tuple[bool, float]:
        """What candidates are compared by: what known pairs say counts for more than any score."""
        return not self.contradicted, self.score

    def agrees(self, choice: IntArray, share: float) -> bool:
        """Tell whether at least this share of rows prefers the partners that are given."""
        return float(np.mean(self.choice == choice)) >= share


class _Rows:
    """The rows of one view that are searched.

    Attributes:
        view: the tables.
        refinement: of these rows.
    """

    def __init__(self, view: View, rows: tuple[IntArray, IntArray], limits: Limits, allowed: Any) -> None:
        self.view, self.allowed = view, allowed
        self.left, self.right = view.left.compact[rows[0]], view.right.compact[rows[1]]
        self.refinement = Refinement(self.left, self.right, limits=limits)

    @cached_property
    def growth(self) -> Growth:
        """What lets maps between these rows grow."""
        return Growth(self.left, self.right, allowed=self.allowed)

    @cached_property
    def shapes(self) -> Shapes:
        """The leading factors of some rows, evenly spread over all."""
        # With groups, only rows of the same group are compared with each other, so all rows are needed.
        most = max(self.refinement.limits.shape) if self.refinement.limits.groups is not None else _SAMPLE
        few = [np.linspace(0, size - 1, min(size, most)).astype(np.int64) for size in (len(self.left), len(self.right))]
        left, right = (side[rows, :_MOST_LEADING] for side, rows in zip((self.left, self.right), few, strict=True))
        return Shapes(left, right, allowed=None if self.allowed is None else self.allowed[np.ix_(*few)])

    def first_maps(self, size: int, rng: np.random.Generator) -> NumpyArray:
        """Return distinct maps of `size` leading factors under which the rows of both tables look most alike.

        Args:
            size: how many factors.
            rng: draws the maps.
        """
        shape = tuple(min(size, rank) for rank in self.growth.ranks)
        drawn = [_FIRST_CORRELATION * random_turn(rng, size)[: shape[0], : shape[1]] for _ in range(_FIRST_MAPS)]
        maps, values = self.shapes.settled(np.stack(drawn), steps=_STEPS)
        return maps[distinct_maps(maps, values, _KEPT)]

    def grown(self, cross: NumpyArray) -> _Candidate:
        """Return what a map of leading factors grows to; several may grow at a time."""
        return self.judged(Growth(self.left, self.right, allowed=self.allowed).grown(cross))

    def judged(self, coupling: NumpyArray) -> _Candidate:
        """Return a candidate: a coupling, the partners that rows prefer, and how well they stand out."""
        choice = coupling.argmax(axis=int(len(self.left) <= len(self.right)))
        contradicted = bool(len(self.refinement.limits.known)) and self.refinement.contradicted(coupling)
        return _Candidate(self, coupling, choice, self.refinement.score(coupling), contradicted)


def _grown(maps: Sequence[tuple[_Rows, NumpyArray]]) -> list[_Candidate]:
    """Return what maps of leading factors of some views grow to, on all cores at a time where rows are many."""
    large = bool(maps) and len(maps[0][0].left) * len(maps[0][0].right) >= _LARGE_KERNEL
    return list(in_turn(_Rows.grown, maps, n_jobs=workers() if large else 1))


@dataclass
class Search:
    """A search for the map between the factors of two tables.

    Attributes:
        views: both tables on the kinds of scales that are tried.
        limits: which pairs may be matched.
        starts: named couplings that are tried before all others.
        generations: the most generations; None: `_GENERATIONS`; 0: only the candidates that are given are refined.
        deadline: when the best so far is returned.
        callback: called after every generation with the stage, the generations so far, the most there may be, and the
            highest score so far.
        tried: how the candidates came to be.
    """

    views: Sequence[View]
    limits: Limits
    starts: Sequence[tuple[str, NumpyArray]] = ()
    generations: int | None = None
    deadline: Deadline | None = None
    callback: Callback | None = None
    tried: list[Start] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = self.views[0]
        self.rows = outermost(first.left), outermost(first.right)
        self.sampled = tuple(len(rows) for rows in self.rows) != self.limits.shape
        among = self.limits.some(*self.rows) if self.sampled else self.limits
        allowed = among.mask()
        self.among = [_Rows(view, self.rows, among, allowed) for view in self.views]
        self.generations_wanted = _GENERATIONS if self.generations is None else self.generations
        self.most_nats = float(np.log(max(map(len, self.rows))))
        self.by_moments = moment_maps(first.left, first.right)
        self.pool: list[_Candidate] = []
        self.from_known: list[_Candidate] = []
        self.choices: list[IntArray] = []
        self.numbers = count()
        self.together, self.made = np.zeros(among.shape, dtype=np.float32), 0
        self.crossed: set[tuple[int, int]] = set()
        self.rng = np.random.default_rng(0)

    @property
    def mean_coupling(self) -> NumpyArray | None:
        """The mean of the couplings of all candidates; None where only some of the rows were searched.

        Where no candidate is believed, the mean orders partners better than any of them: each candidate is wrong
        elsewhere.
        """
        return None if self.sampled else self.together / max(self.made, 1)

    @property
    def agreement(self) -> int:
        """How many first maps have led to the correspondence whose partners stand out most."""
        return sum(self.pool[0].agrees(choice, _SAME) for choice in self.choices) if self.pool else 0

    @property
    def stands_out(self) -> bool:
        """Whether partners stand out so clearly that nothing else is tried."""
        best = self.pool[0] if self.pool else None
        return best is not None and not best.contradicted and best.score >= STANDS_OUT * self.most_nats

    @property
    def convincing(self) -> bool:
        """Whether partners stand out clearly, or enough first maps led to the correspondence that stands out most."""
        if not self.pool or self.pool[0].contradicted or self.pool[0].score < _SAYS_SOMETHING * self.most_nats:
            return False
        return self.stands_out or self.agreement >= _AGREEING

    def run(self) -> Form:
        """Return the form whose partners stand out most."""
        plan = self._plan()
        self._from_what_is_known()
        self._report(0, len(plan))
        scores = [self.pool[0].score if self.pool else -np.inf]
        for generation, (size, view) in enumerate(plan, start=1):
            # Where nothing was given that could be a candidate, one generation is needed in any case.
            if self.pool and (not self.generations_wanted or self.stands_out or is_late(self.deadline)):
                break
            # When time is up, only the first candidates are waited for.
            with cut_short(self.deadline if self.pool else None):
                if self.agreement < _AGREEING:
                    self._try_maps_by_moments()
                    self._try_first_maps(size, view)
                self._cross()
            self._report(generation, len(plan))
            scores.append(self.pool[0].score)
            if len(scores) > _PATIENCE and scores[-1] < scores[-1 - _PATIENCE] + _GAIN * self.most_nats:
                break
        form = self._finished()
        # The best candidate tells how many first maps agree with it; the others would only take memory.
        self.pool, self.from_known = self.pool[:1], []
        return form

    def _try_maps_by_moments(self) -> None:
        """Let the maps of one number of factors grow under which moments agree best; normal factors need such maps.

        Clouds of many normal rows look alike under every rotation. Moments are taken over all rows.
        """
        found = [] if is_late(self.deadline) else next(self.by_moments, [])[:_BY_MOMENTS]
        grown = _grown([(self.among[0], cross) for _, cross in found])
        for (name, _), candidate in zip(found, grown, strict=True):
            self._take(name, candidate)

    def _try_first_maps(self, size: int, view: _Rows) -> None:
        """Let the best of some random first maps grow."""
        maps = view.first_maps(size, self.rng)
        maps = maps[:1] if is_late(self.deadline) else maps
        name = f"{size} factors, scales {view.view.scales}"
        for place, candidate in enumerate(_grown([(view, cross) for cross in maps]), start=1):
            self._take(f"{name}, map {place}", candidate)

    def _report(self, step: int, total: int) -> None:
        if self.callback is not None and self.pool:
            self.callback("search", step, total, self.pool[0].score)

    def _plan(self) -> list[tuple[int, _Rows]]:
        """Return the size of first maps and the kind of scales of each generation."""
        most = max(max(view.left.signal_rank, view.right.signal_rank) for view in self.views)
        sizes = [*_SIZES, *([min(most, _MOST_LEADING)] if most > _SIZES[-1] else [])]
        least = min(min(own.growth.ranks) for own in self.among)
        sizes = list(dict.fromkeys(max(1, min(size, least)) for size in sizes))
        # Every size is tried once before any is tried again, on both kinds of scales in turn: so few generations try
        # all sizes.
        places = [divmod(number, len(sizes)) for number in range(max(self.generations_wanted, 1))]
        return [(sizes[place], self.among[(turn + place) % len(self.among)]) for turn, place in places]

    def _from_what_is_known(self) -> None:
        """Take the couplings that are given, and those that known pairs lead to; when time is up, only the first."""
        view = self.among[0]
        known = view.refinement.limits.known
        for name, coupling in self.starts:
            among = coupling[np.ix_(*self.rows)]
            if not among.any():
                # Known pairs may all be of other rows than those that are searched.
                continue
            with cut_short(self.deadline if self.pool else None):
                self._take(f"{name}, all factors", view.judged(view.growth.again(among, steps=_STEPS)))
            if is_late(self.deadline):
                return
            with cut_short(self.deadline):
                # The same start must not count twice as one that led to this correspondence.
                self._take(name, view.grown(view.growth.map_of(among, _SIZES[-1])), counts=False)
        with cut_short(self.deadline):
            for number, rank in enumerate(self._seed_ranks(known)):
                coupling = grown_from(view.growth, known, rank)
                found = view.judged(view.growth.again(coupling, steps=_STEPS))
                self._take(f"known pairs with {rank} factors", found, counts=number == 0)
                self.from_known.append(found)

    def _seed_ranks(self, known: IntArray) -> list[int]:
        """Return the numbers of factors with which a map grows from known pairs; none where no pair is known."""
        if not len(known):
            return []
        view = self.views[0]
        stand_out = max(view.left.signal_rank, view.right.signal_rank, 2)
        return sorted({round(times * stand_out) for times in _SEED_FACTORS})

    def _take(self, name: str, candidate: _Candidate, *, counts: bool = True) -> None:
        """Note what a first map has led to, and keep it among the best.

        Args:
            name: of the first map.
            candidate: what it has led to.
            counts: whether the first map counts when agreement is counted.
        """
        self._keep(candidate)
        if counts:
            self.choices.append(candidate.choice)
        self.tried.append(Start(name, candidate.score))

    def _keep(self, candidate: _Candidate) -> None:
        """Keep a candidate if it is better than those that are like it, and among the best."""
        self.together += candidate.coupling
        self.made += 1
        alike = [one for one in self.pool if one.agrees(candidate.choice, _LIKE)]
        if all(candidate.worth > one.worth for one in alike):
            candidate.number = next(self.numbers)
            rest = [one for one in self.pool if not any(one is other for other in alike)]
            self.pool = sorted([*rest, candidate], key=lambda one: one.worth, reverse=True)[:_PARENTS]

    def _cross(self) -> None:
        """Grow maps from what two candidates say together, beginning with the candidates that agree most.

        What both say is right more often than what one of them says. A child's map begins with a part of the leading
        factors and grows again, so that it can lose what was wrong in both.
        """
        pairs = [
            (float(np.mean(one.choice == two.choice)), one, two)
            for one, two in combinations(self.pool, 2)
            if (one.number, two.number) not in self.crossed
        ]
        children = []
        for _, one, two in sorted(pairs, key=lambda each: -each[0])[:_CHILDREN]:
            self.crossed.add((one.number, two.number))
            first, second = one.coupling, two.coupling
            both = np.sqrt(first * second) if self.rng.random() < _OF_BOTH else (first + second) / 2
            view = (one, two)[int(self.rng.integers(2))].view
            size = int(self.rng.choice(_CHILD_SIZES))
            children.append((view, view.growth.map_of(both, size)))
        for child in _grown(children):
            self._keep(child)

    def _finished(self) -> Form:
        """Return the best of the candidates once they are refined, matched among all rows."""
        refined: list[tuple[_Candidate, Matching]] = []
        # Crossing may raise the scores of wrong candidates above that of a right one that is not refined yet.
        wanted = self.pool[:_REFINED]
        for one in self.from_known:
            if not any(one.agrees(other.choice, _LIKE) for other in wanted):
                wanted.append(one)
        for one in wanted:
            late = is_late(self.deadline)
            if late and refined:
                break
            with cut_short(self.deadline if refined else None):
                rounds = 1 if late else FIRST_ROUNDS
                refined.append((one, one.view.refinement.run(one.coupling, rounds=rounds, deadline=self.deadline)))
        chosen, best = max(refined, key=lambda each: (not self._contradicted(*each), each[1].strength))
        refinement, view = chosen.view.refinement, chosen.view.view
        left, right = view.left, view.right
        if self.sampled:
            refinement = Refinement(left.compact, right.compact, limits=self.limits)
            rounds = 1 if is_late(self.deadline) else FIRST_ROUNDS
            whole = Growth(left.compact, right.compact, allowed=self.limits.mask())
            coupling = whole.again(whole.coupling_of(best.fit.whole), steps=_STEPS_OF_ALL)
            best = refinement.run(coupling, rounds=rounds, deadline=self.deadline)
        if not is_late(self.deadline):
            with cut_short(self.deadline):
                further = refinement.run(best.coupling, rounds=MOST_ROUNDS, common=best.common, deadline=self.deadline)
                best = max(best, further, key=lambda matching: matching.strength)
                if not self.sampled:
                    sides = refinement.left, refinement.right
                    best = smoothed(best, [(left, right)], limits=self.limits, by_map=sides, deadline=self.deadline)
        return Form(view.scales, left, right, best, searched=tuple(self.views))

    def _contradicted(self, candidate: _Candidate, matching: Matching) -> bool:
        """Tell whether known pairs speak against a candidate."""
        return bool(len(self.limits.known)) and candidate.view.refinement.contradicted(matching.coupling)


def outermost(factors: Factors) -> IntArray:
    """Return the rows on which a map is sought, in their order: all if they are few, else those farthest out.

    Leading factors tell how far out a row is. Rows far out are told apart most easily, and are far out in the other
    table, too.
    """
    rows = len(factors.scores)
    if rows <= _MOST_ROWS:
        return np.arange(rows)
    distance = np.sum(factors.scores[:, :_LEADING] ** 2, axis=1)
    return np.sort(np.argsort(-distance, kind="stable")[:_MOST_ROWS])
