"""Measure what chance reaches on these very tables: the found link is crossed, and different entities are searched.

Rows are split in halves H and K, partners together. If the link is right, the left rows of H and the right rows of K
are tables of different entities from exactly these populations, with all their groups, trends and outliers. Whatever a
search finds between them is chance. If the link is wrong, the left rows of H fit their own supposed partners no better
than that.

Halves may be too small to tell anything. Where partners stand out all the same, all rows are compared: chance is what a
search finds when every left row may be matched to the right rows of the other half alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyless.arrays import BoolArray, IntArray, NumpyArray
from keyless.engine.columns import ColumnModel, stands_out
from keyless.engine.corroboration import BY_ITSELF, corroboration
from keyless.engine.forms import ROWS_PER_FACTOR, Form, View, searched_views
from keyless.engine.refine import Matching, Refinement, identification, smoothed
from keyless.engine.repeats import seem_repeated
from keyless.engine.search import FEW_GENERATIONS, Search
from keyless.engine.side import Side
from keyless.engine.task import Task
from keyless.model.factors import Factors, whitened
from keyless.pairs.limits import Limits
from keyless.progress import cut_short, is_late
from keyless.sizes import TELLING_ROWS

__all__ = ["FAR_ABOVE", "FOUND_AGAIN", "SOMEWHAT_ABOVE", "Crossing", "crossings"]

_MOST_PAIRS = 500
"""The most matched pairs that are split into halves: more would take longer and tell no more."""

_MOST_ROWS = 800
"""The most rows of the larger table that are split into halves, rows without partner included, unless too few pairs
would be left."""

_FEWEST_BY_COLUMNS = 40
"""Matched pairs below which halves are too small for a model of all columns; the factors of one table are shuffled
instead."""

_HALF_TELLS = 0.5
"""Part of the nats that the whole tables reach. Where their halves reach less, halves are too small for a model of all
columns, and factors are shuffled instead."""

FAR_ABOVE = 1.6
"""Nats above chance from which a link is believed without being found again in half of the rows."""

_CLEAR = 0.7
"""Nats by which partners must stand out more than by chance where directions are not compared; see `Crossing`.
Strangers were seen to reach 0.4 on real tables."""

_CLEAR_WITH_DIRECTIONS = 1.1
"""The same where what directions say about each other is added: 24 pairs of tables of different entities reached 0.9 at
the most, right links 1.2 and more (pairs of benchmarks/bench_verdict.py with other seeds than it reports)."""

_NO_BETTER = 0.5
"""Part of the required nats above chance (`Crossing.clear`): a link that reaches less and is not found again is given
up."""

FOUND_AGAIN, SOMEWHAT_ABOVE = 0.5, 0.3
"""Share of pairs that searches of half of the rows must find again, for a link to be believed that is only
`SOMEWHAT_ABOVE` nats above chance. Of tables of different entities, with 120 rows and more, 0.03 of the pairs were
found again at the most; of right links 0.55 to 0.8 (pairs of benchmarks/bench_verdict.py and real ones, with other
seeds than those reported)."""

_ENOUGH_TO_GIVE_UP = 2
"""Comparisons after which no further one is made if all of them are hopeless; see `Crossing.hopeless`."""

_HARDLY = 0.1
"""Share of pairs found again below which a link counts as not found again."""

_ROUNDS = 10
"""Rounds of refining the found pairs of a half."""

_STANDS_OUT = 0.8
"""Part of log(rows) nats by which partners must stand out, for a link to be compared among all rows where halves say
nothing. 35 pairs of tables of different entities reached 0.78 at the most (real ones, and those of
benchmarks/bench_verdict.py, with other seeds than those reported)."""

_MOST_COMPARED = 500
"""The most rows of a table for a comparison among all rows: a search of more takes long, and halves of more tell
enough."""

_CLEAR_OF_ALL_ROWS = 2.0
"""Nats above chance from which a link that is compared among all rows is believed; see `Crossing`. The 35 pairs of
tables of different entities reached 1.9 at the most; right links 2 to 5, except those of handwritten digits."""


@dataclass(frozen=True)
class Crossing:
    """One comparison with chance.

    Attributes:
        same: how well partners stand out among the rows of a half, in nats above a guess; where all rows are compared,
            each row has the candidates of its partner's half.
        chance: how well the partners stand out that a search finds among rows of different entities, in nats above a
            guess.
        borne_out: what each direction says about partners that the other directions chose, among the rows of a half, in
            nats per pair; see `keyless.engine.corroboration`.
        borne_out_by_chance: the same about partners that the search found among rows of different entities.
        again: share of the found pairs that a search from nothing finds again in half of the rows; None where that was
            not tried: the comparison was clear without it, rows were too few, or all rows were compared.
        halved: whether chance was told by halves of the rows; otherwise factors were shuffled.
        clear: nats above chance from which a link is believed.
        by_groups: whether chance was told by exchanged groups.
    """

    same: float
    chance: float
    again: float | None = None
    borne_out: float = 0.0
    borne_out_by_chance: float = 0.0
    halved: bool = True
    clear: float = _CLEAR
    by_groups: bool = False

    @property
    def excess(self) -> float:
        """Nats by which partners stand out more than by chance."""
        return self.same - self.chance

    @property
    def corroboration(self) -> float:
        """Logarithm of how many times as much directions say about each other as by chance."""
        return math.log((self.borne_out + BY_ITSELF) / (self.borne_out_by_chance + BY_ITSELF))

    @property
    def above_chance(self) -> float:
        """Nats above chance, by how well partners stand out and by what directions say about each other."""
        return self.excess + self.corroboration

    @property
    def proven(self) -> bool:
        """Whether most of the pairs are found again from nothing, somewhat above chance."""
        return self.halved and (self.again or 0.0) >= FOUND_AGAIN and self.above_chance > SOMEWHAT_ABOVE

    @property
    def decided(self) -> bool:
        """Whether one comparison is enough."""
        looked_at_twice = self.again is not None and (self.hopeless or self.proven)
        return self.halved and (not 0 <= self.above_chance <= FAR_ABOVE or looked_at_twice)

    @property
    def hopeless(self) -> bool:
        """Whether the link is hardly better than chance, and its pairs are not found again."""
        return self.above_chance < _NO_BETTER * self.clear and (self.again or 0.0) < _HARDLY


def crossings(
    form: Form,
    permutation: IntArray,
    task: Task,
    *,
    sides: tuple[Side, Side] | None = None,
    early: bool = False,
) -> list[Crossing]:
    """Compare a link with what chance reaches; a comparison that is under way at the deadline is given up.

    Args:
        form: factors of both tables and their matching.
        permutation: the right row of each left row, −1 for none.
        task: what the search was given, rows in the engine's order; its callback is called after each comparison, with
            stage `"chance"` and the nats that chance reached; not after a comparison among all rows.
        sides: both tables; None where rows are many.
        early: whether the link may be compared again later; then all rows are compared only if this comparison is
            hopeless.
    """
    limits = task.within((len(permutation), len(form.right.scores)))
    starts, deadline = task.starts, task.deadline
    found: list[Crossing] = []
    rng = np.random.default_rng([task.seed, 5])
    matched = np.flatnonzero(permutation >= 0)
    if sides is not None and form.by_columns:
        if len(matched) < _FEWEST_BY_COLUMNS:
            compared = _shuffled_columns(form, sides, limits, rng, starts)
        else:
            compared = _halved_columns(form, sides, permutation, limits, rng=rng, starts=starts)
    elif min(limits.shape) < TELLING_ROWS or limits.groups is not None:
        changed = _is_changed(form, limits)
        compared = _shuffled(form, permutation, limits, rng) if changed else _unchanged(form)
    else:
        compared = _halved(form, permutation, limits, rng, starts)
    for number in range(1, task.comparisons + 1):
        if is_late(deadline):
            break
        with cut_short(deadline):
            found.append(next(compared))
        if len(found) < number:
            break
        if task.callback is not None:
            task.callback("chance", len(found), task.comparisons, found[-1].chance)
        if found[0].decided or (number >= _ENOUGH_TO_GIVE_UP and all(one.hopeless for one in found)):
            break
    told = early and bool(found) and not found[0].hopeless
    if found and found[0].halved and not form.by_columns and not told and _may_tell_more(found, form):
        with cut_short(deadline):
            exchanged = _exchanged(form, permutation, rng, starts)
            if exchanged.above_chance > exchanged.clear:
                return [exchanged]
    return found


def _may_tell_more(found: Sequence[Crossing], form: Form) -> bool:
    """Tell whether all rows may tell more than halves did: rows are few, and partners stand out all the same."""
    rows, matching = max(form.matching.ratios.shape), form.matching
    believed = found[0].proven or np.mean([one.above_chance for one in found]) > found[0].clear
    if believed or rows > _MOST_COMPARED:
        return False
    # The map is asked: by predictions, partners stand out that far in tables of different entities, too.
    refinement = Refinement(form.left.compact, form.right.compact, limits=Limits(matching.ratios.shape))
    by_map = refinement.run(matching.coupling, rounds=1, common=matching.common)
    return bool(by_map.identification > _STANDS_OUT * np.log(rows))


def _exchanged(
    form: Form, permutation: IntArray, rng: np.random.Generator, starts: Sequence[tuple[str, NumpyArray]]
) -> Crossing:
    """Compare a link among all rows: each left row has candidates of its partner's half, then those of the other half.

    All rows speak for one map both times, which is why this tells more than halves do.
    """
    matched = np.flatnonzero(permutation >= 0)
    shape = len(permutation), len(form.right.scores)
    halves = [rng.permutation(size) % 2 for size in shape]
    halves[1][permutation[matched]] = halves[0][matched]
    pairs = np.zeros(shape)
    pairs[matched, permutation[matched]] = 1.0
    own, other = Limits(shape, (halves[0], halves[1])), Limits(shape, (halves[0], 1 - halves[1]))
    refinement = Refinement(form.left.compact, form.right.compact, limits=own)
    same = _refined(refinement, pairs, (form.left, form.right))
    begun = [(name, np.where(halves[0][:, None] != halves[1], coupling, 0.0)) for name, coupling in starts]
    chance = Search(form.searched, other, starts=begun, generations=FEW_GENERATIONS).run()
    return _measured(same, form, chance, clear=_CLEAR_OF_ALL_ROWS)


def _halved(
    form: Form,
    permutation: IntArray,
    limits: Limits,
    rng: np.random.Generator,
    starts: Sequence[tuple[str, NumpyArray]],
) -> Iterator[Crossing]:
    """Yield comparisons of random halves of the rows, each with its own partners and with those of the other half.

    Rows that were matched to nobody are dealt to the halves as well. Where these are many, the matched rows were picked
    because they agree; so the best pairs by chance are picked in the same way. Rows that seem to be repeats of matched
    ones are left out: in the other half, the search for chance would find their true partners.
    """
    columns = len(form.right.scores)
    matched = np.flatnonzero(permutation >= 0)
    repeats = _repeats(form, permutation, limits)
    alone = (
        np.flatnonzero((permutation < 0) & ~repeats[0]),
        np.setdiff1d(np.flatnonzero(~repeats[1]), permutation),
    )
    share = _share_looked_at(len(matched), max(len(permutation), columns))
    while True:
        halves = _dealt(rng, matched, share)
        lefts = [np.sort(np.r_[pairs, rest]) for pairs, rest in zip(halves, _dealt(rng, alone[0], share), strict=True)]
        rights = [
            np.sort(np.r_[permutation[pairs], rest])
            for pairs, rest in zip(halves, _dealt(rng, alone[1], share), strict=True)
        ]
        left, right = _some(form.left, lefts[0]), _some(form.right, rights[0])
        rows = np.searchsorted(lefts[0], np.sort(halves[0]))
        place = np.searchsorted(rights[0], permutation[np.sort(halves[0])])
        pairs = np.zeros((len(lefts[0]), len(rights[0])))
        pairs[rows, place] = 1.0
        begun = [_among(starts, lefts[0], part) for part in rights]
        own = Refinement(left.compact, right.compact, limits=Limits(pairs.shape))
        same = _refined(own, pairs, (left, right))
        chance = _searched(form, lefts[0], rights[1], begun[1])
        found = _measured(same, replace(form, left=left, right=right), chance, clear=_CLEAR_WITH_DIRECTIONS)
        if not found.decided:
            fresh = _searched(form, lefts[0], rights[0], begun[0]).matching
            found = replace(found, again=float(np.mean(fresh.ratios.argmax(axis=1)[rows] == place)))
        yield found


def _refined(refinement: Refinement, pairs: NumpyArray, factors: tuple[Factors, Factors]) -> Matching:
    """Return what found pairs become when they are refined like the pairs of a search."""
    found = refinement.run(pairs, rounds=_ROUNDS, common=float(pairs.sum()))
    return smoothed(found, [factors], limits=refinement.limits, by_map=(refinement.left, refinement.right))


def _measured(same: Matching, form: Form, chance: Form, *, clear: float) -> Crossing:
    """Return the comparison of two matchings of the same left rows.

    Args:
        same: the found pairs.
        form: factors of the rows of these pairs.
        chance: what a search found among rows of different entities.
        clear: nats above chance from which a link is believed.
    """
    return Crossing(
        same.identification,
        _picked(chance.matching, same.common),
        borne_out=_borne_out(same, form.left, form.right),
        borne_out_by_chance=_borne_out(chance.matching, chance.left, chance.right),
        clear=clear,
    )


def _share_looked_at(pairs: int, rows: int) -> float:
    """Return the share of the rows that is dealt to halves: all where rows are few, and always enough pairs."""
    pairs = max(pairs, 1)
    return min(1.0, _MOST_PAIRS / pairs, max(_MOST_ROWS / rows, TELLING_ROWS / pairs))


def _dealt(rng: np.random.Generator, rows: IntArray, share: float) -> tuple[IntArray, IntArray]:
    """Return two random halves of a share of some rows."""
    half = int(share * len(rows)) // 2
    chosen = rng.permutation(rows)
    return chosen[:half], chosen[half : 2 * half]


def _picked(matching: Matching, common: float) -> float:
    """Return how well the surest pairs of a matching stand out, those of `common` left rows."""
    rest = np.argsort(-matching.coupling.max(axis=1), kind="stable")[max(round(common), 1) :]
    coupling = matching.coupling.copy()
    coupling[rest] = 0.0
    return identification(matching.ratios, coupling)


def _halved_columns(
    form: Form,
    sides: tuple[Side, Side],
    permutation: IntArray,
    limits: Limits,
    *,
    rng: np.random.Generator,
    starts: Sequence[tuple[str, NumpyArray]],
) -> Iterator[Crossing]:
    """Yield the comparisons of `_halved` by models of all columns, which tell rows apart in smaller halves.

    With most entries missing, halves may be too small even for such models, though all rows together stand out clearly.
    Then factors are shuffled instead.
    """
    rows = np.flatnonzero(permutation >= 0)
    while True:
        chosen = rng.permutation(rows)[:_MOST_PAIRS]
        half = len(chosen) // 2
        left, own = sides[0].some(np.sort(chosen[:half]))
        (right, partners), (crossed, others) = (
            sides[1].some(np.sort(permutation[part])) for part in (own, chosen[half : 2 * half])
        )
        place = np.argsort(partners)[np.searchsorted(np.sort(partners), permutation[own])]
        pairs = np.zeros((half, half))
        pairs[np.arange(half), place] = 1.0
        same, strange = (
            ColumnModel(left, side, limits=_groups_of(limits, own, columns))
            for side, columns in ((right, partners), (crossed, others))
        )
        reached = _nats_per_row(same.run(pairs))
        if stands_out(form.matching) and reached < _HALF_TELLS * _nats_per_row(form.matching):
            yield from _shuffled_columns(form, sides, limits, rng, starts)
        found = Crossing(reached, _nats_per_row(_by_columns(strange, left, crossed, _among(starts, own, others))))
        if not found.decided:
            fresh = _by_columns(same, left, right, _among(starts, own, partners))
            again = 0.0 if fresh is None else float(np.mean(fresh.ratios.argmax(axis=1) == place))
            found = replace(found, again=again)
        yield found


def _groups_of(limits: Limits, rows: IntArray, columns: IntArray) -> Limits:
    """Return limits that hold only the groups of some rows, and nothing else that is known about them."""
    groups = None if limits.groups is None else (limits.groups[0][rows], limits.groups[1][columns])
    return Limits((len(rows), len(columns)), groups)


def _among(starts: Sequence[tuple[str, NumpyArray]], rows: IntArray, columns: IntArray) -> list[tuple[str, NumpyArray]]:
    """Return the parts of named couplings that are about some rows, without those that couple none of them."""
    some = [(name, coupling[np.ix_(rows, columns)]) for name, coupling in starts]
    return [(name, coupling) for name, coupling in some if coupling.any()]


def _shuffled_columns(
    form: Form,
    sides: tuple[Side, Side],
    limits: Limits,
    rng: np.random.Generator,
    starts: Sequence[tuple[str, NumpyArray]],
) -> Iterator[Crossing]:
    """Yield comparisons with what models of all columns find where the right table has its factors shuffled."""
    while True:
        right = sides[1].shuffled(rng)
        rows = np.arange(limits.shape[0])
        begun = _among(starts, rows, right.order)
        columns = ColumnModel(sides[0], right, limits=limits.reordered(rows, right.order))
        chance = _by_columns(columns, sides[0], right, begun)
        yield Crossing(_nats_per_row(form.matching), _nats_per_row(chance), halved=False)


def _by_columns(
    columns: ColumnModel, left: Side, right: Side, starts: Sequence[tuple[str, NumpyArray]]
) -> Matching | None:
    """Search two tables from nothing, and return the matching by a model of all columns; None where it has no pairs."""
    views, first = searched_views(left, right), None
    turned = columns.found(quick=True)
    if turned is not None:
        starts, first = [*starts, turned[:2]], turned[2]
    by_map = Search(views, columns.limits, starts=starts, generations=FEW_GENERATIONS).run().matching
    second = columns.run(by_map.coupling, common=by_map.common)
    return max((each for each in (first, second) if each is not None), key=lambda one: one.strength, default=None)


def _nats_per_row(matching: Matching | None) -> float:
    """Return how well partners stand out, in nats per row of the smaller table; rows without partner count 0."""
    return 0.0 if matching is None else matching.identification * matching.common / min(matching.ratios.shape)


def _shuffled(form: Form, permutation: IntArray, limits: Limits, rng: np.random.Generator) -> Iterator[Crossing]:
    """Yield comparisons with tables in which every right factor has its rows permuted on its own."""
    form, limits = _each_entity_once(form, permutation, limits)
    while True:
        shuffled = np.column_stack([rng.permutation(column) for column in form.right.scores.T])
        right = Factors(whitened(shuffled), form.right.strengths, form.right.signal_rank)
        view = View(form.scales, form.left, right)
        chance = Search([view], limits, generations=FEW_GENERATIONS).run().matching
        found = Crossing(form.matching.identification, chance.identification, halved=False)
        if not form.by_columns:
            # Directions are compared as well: rows that are numbered in both tables stand out fully by a single
            # direction.
            found = replace(
                found,
                borne_out=_borne_out(form.matching, form.left, form.right),
                borne_out_by_chance=_borne_out(chance, form.left, right),
                clear=_CLEAR_WITH_DIRECTIONS,
            )
        yield found


def _repeats(form: Form, permutation: IntArray, limits: Limits) -> tuple[BoolArray, BoolArray]:
    """Tell which rows without match are repeats of matched rows.

    If the caller says that the left table repeats entities, all its rows without match are.
    """
    if limits.shares:
        return permutation < 0, np.zeros(limits.shape[1], dtype=bool)
    return seem_repeated(form.matching.ratios, permutation)


def _each_entity_once(form: Form, permutation: IntArray, limits: Limits) -> tuple[Form, Limits]:
    """Return a link without the rows that seem to be repeats of matched rows, if there are any, and its limits.

    A map that was fitted without a fold has still seen the rows that rows of the fold repeat. With repeats, both the
    link and chance would seem surer than they are.
    """
    repeats = _repeats(form, permutation, limits)
    rows, columns = (np.flatnonzero(~side) for side in repeats)
    among = limits.some(rows, columns)
    left, right = _some(form.left, rows), _some(form.right, columns)
    pairs = np.zeros(among.shape)
    place = np.append(np.cumsum(~repeats[1]) - 1, -1)[permutation[rows]]
    matched = np.flatnonzero(place >= 0)
    pairs[matched, place[matched]] = 1.0
    same = _refined(Refinement(left.compact, right.compact, limits=among), pairs, (left, right))
    return replace(form, left=left, right=right, matching=same), among


def _is_changed(form: Form, limits: Limits) -> bool:
    """Tell whether shuffling can destroy a link.

    Where a table has a single factor, all rows are matched along one direction. After shuffling, that table is the same
    table with its rows in another order.
    """
    return limits.groups is not None or min(form.left.rank, form.right.rank) > 1


def _unchanged(form: Form) -> Iterator[Crossing]:
    """Yield comparisons where one table does not change by shuffling: chance reaches just what was found."""
    while True:
        yield Crossing(form.matching.identification, form.matching.identification, halved=False)


def _borne_out(matching: Matching, left: Factors, right: Factors) -> float:
    """Return what the directions of a map say about each other."""
    return corroboration(matching.fit, matching.folds, matching.common, left.compact, right.compact)


def _searched(form: Form, rows: IntArray, columns: IntArray, starts: Sequence[tuple[str, NumpyArray]]) -> Form:
    """Search some rows of both tables, on all kinds of scales that the link was sought on."""
    views = [View(view.scales, _some(view.left, rows), _some(view.right, columns)) for view in form.searched]
    return Search(views, Limits((len(rows), len(columns))), starts=starts, generations=FEW_GENERATIONS).run()


def _some(factors: Factors, rows: IntArray) -> Factors:
    """Return the factors of some rows, whitened again; fewer factors where rows are few."""
    rank = max(2, min(factors.rank, len(rows) // ROWS_PER_FACTOR))
    return Factors(whitened(factors.scores[rows, :rank]), factors.strengths[:rank], min(factors.signal_rank, rank))
