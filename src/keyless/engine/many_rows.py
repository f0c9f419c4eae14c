"""Link two tables of many rows: a map from some rows or from groups, then all rows among few likely partners.

A map has few numbers, and a thousand rows or some dozen groups are enough to find it. Under a map, the partner of a row
is near the row in the space of canonical directions, each stretched by how much it tells; so only the nearest rows are
looked at, or the rows of the same group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray, NumpyArray
from keyless.engine.columns import ColumnModel, suits
from keyless.engine.crossing import Crossing, crossings
from keyless.engine.forms import Form, View, searched_views
from keyless.engine.groups import FEWEST_GROUPS, exchanged, group_map, shared_groups, sharpened_by
from keyless.engine.listed import ListedRows, listed_sharpness, mutual_first_choices
from keyless.engine.matches import hardly_one_alone, likely_matches, matched, sharpness
from keyless.engine.pair import PairLink, status_at
from keyless.engine.refine import Refinement, identification
from keyless.engine.search import Search, Start, outermost
from keyless.engine.side import Side
from keyless.engine.task import Task
from keyless.maps.canonical import CrossFit
from keyless.model.scales import ScaleName
from keyless.pairs.limits import Limits
from keyless.pairs.look_alikes import less_chance_fit
from keyless.pairs.matching import best_of_listed
from keyless.pairs.overlooked import Fits, Overlooked, can_be_compared, left_over, with_overlooked
from keyless.pairs.posterior import (
    GAMMA_IN_GROUPS,
    Posterior,
    less_crowding,
    pair_places,
    posterior,
    prior_log_odds,
)
from keyless.parallel import one_thread
from keyless.progress import Deadline, cut_short, is_late, time_left

__all__ = ["link_many_rows", "tells_by_groups"]

_FORMS: tuple[tuple[ScaleName, int], ...] = (("auto", 40), ("identity", 40), ("identity", 64), ("rank", 40))
"""The forms that are tried: scales of columns, and the most factors."""

_ROUNDS = 6
"""Rounds of matching and fitting under each of two forms: the form of the search, and the chosen form."""

_MOST_LISTED = 50_000_000
"""The most pairs of rows of the same group that are all listed, which takes about a gigabyte."""

_MOST_LEFT_OVER = 4_000
"""The most rows without match, of either table, among which overlooked partners are sought: all their pairs are looked
at, which takes less than half a gigabyte."""

_LEAST_EXCESS = 0.15
"""Nats by which partners must stand out more than rows of other groups do, beside what a map of many numbers gains by
itself. Strangers of the same groups were seen to reach 0.03."""


@dataclass(frozen=True)
class _Proposal:
    """A map to begin with.

    Attributes:
        fit: the map.
        starts: how the map was found.
        agreement: how many first maps led to it.
        chance: comparisons with chance that show that there is nothing to find; empty: there may be something to find.
        scales: the scales of columns on which the map was found; None: the scales that the tables have.
    """

    fit: CrossFit
    starts: tuple[Start, ...]
    agreement: int = 1
    chance: tuple[Crossing, ...] = ()
    scales: ScaleName | None = None


def tells_by_groups(limits: Limits) -> bool:
    """Tell whether rows match inside groups that are many enough to give the map, with few enough pairs to list."""
    return len(shared_groups(limits)) >= FEWEST_GROUPS and int(limits.choices.sum()) <= _MOST_LISTED


def link_many_rows(left: Side, right: Side, task: Task, *, begun: Any = None, all_pairs: bool = False) -> PairLink:
    """Find which rows of two tables of many rows are one entity; see `keyless.engine.link_pair`.

    Args:
        left: the left table.
        right: the right table.
        task: what is known about them, and how they are searched.
        begun: sparse probabilities of pairs, rows in the caller's order, to begin with; None: the map is sought from
            nothing.
        all_pairs: whether all pairs of rows are weighed at the end; otherwise probabilities and log-likelihood ratios
            are sparse: of pairs that were looked at.
    """
    task = task.ordered(left, right)
    own = task.within((len(left), len(right)))
    every_row, deadline = task.every_row, task.deadline
    by_groups = tells_by_groups(own)
    common = float(min(own.shape)) if every_row else None
    if by_groups and every_row is None:
        common = own.common_by_groups()
    everybody = common is not None and common >= min(own.shape)
    dense = all_pairs and not by_groups
    with one_thread():
        if by_groups:
            fit = group_map(left.factors(), right.factors(), own)
            proposal = _Proposal(fit, (Start("means of groups", fit.information),))
        elif begun is not None:
            given = _reordered(begun, (left.order, right.order))
            rows = Refinement(left.factors().compact, right.factors().compact, limits=Limits(own.shape))
            fit = rows.fitted(given)
            proposal = _Proposal(fit, (Start("matches by a model of all columns", fit.information),))
        else:
            proposal = _from_outermost(left, right, own, task)
        hopeless = bool(proposal.chance)
        form = _all_rows(left, right, own, proposal, deadline, common=common, brief=hopeless)
        ratios, compared = form.matching.ratios, proposal.chance
        if by_groups:
            ratios, compared = _beside_other_groups(form, own, common, task)
        if dense:
            form = _weighed(left, right, form, own, deadline)
            ratios = form.matching.ratios
            permutation, chances, everybody = matched(ratios, every_row, crowded=form.crowded)
        else:
            permutation, chances = _matched(ratios, common, by_groups=by_groups, deadline=deadline)
        if not by_groups and not hopeless:
            compared = tuple(crossings(form, permutation, replace(task, limits=None, starts=())))
        if not (dense or hopeless or everybody or own.groups is not None or is_late(deadline)):
            permutation, chances = _with_left_over(form, permutation, chances, own)
    back = [np.argsort(side.order) for side in (left, right)]
    return PairLink(
        permutation=np.append(right.order, -1)[permutation][back[0]],
        probability=chances.answers(permutation)[back[0]],
        pairs=_reordered(chances.pairs.toarray() if dense else chances.pairs, back),
        ratios=_reordered(ratios, back),
        every_row=everybody,
        form=form,
        crossings=compared,
        agreement=proposal.agreement,
        sharpness=(sharpness if dense else listed_sharpness)(ratios, permutation),
        status=status_at(deadline),
        starts=proposal.starts,
        orders=(left.order, right.order),
    )


def _weighed(left: Side, right: Side, form: Form, limits: Limits, deadline: Deadline | None) -> Form:
    """Return the form with log-likelihood ratios of all pairs; with gaps, by a model of all columns if that is better.

    Args:
        left: the left table.
        right: the right table.
        form: with ratios of listed pairs.
        limits: which pairs may be matched.
        deadline: when no model of all columns is tried any more.
    """
    listed, coupling = form.matching, form.matching.coupling.toarray()
    rows = Refinement(form.left.compact, form.right.compact, limits=limits)
    ratios = rows.ratios(rows.in_folds(listed.fit))
    score = identification(ratios, coupling)
    form = replace(form, matching=replace(listed, coupling=coupling, ratios=ratios, identification=score))
    if suits(left, right) and not is_late(deadline):
        with cut_short(deadline):
            columns = ColumnModel(left, right, limits=limits, deadline=deadline)
            found = columns.run(coupling, common=listed.common)
            if found is not None and found.strength > form.matching.strength:
                return columns.in_factors(replace(form, matching=found, by_columns=True))
    return form


def _reordered(pairs: Any, order: Sequence[IntArray]) -> Any:
    """Return a matrix of pairs, dense or sparse, with its rows and columns in another order."""
    return (
        sparse.csr_array(pairs[order[0]][:, order[1]]) if isinstance(pairs, sparse.csr_array) else pairs[np.ix_(*order)]
    )


def _from_outermost(left: Side, right: Side, limits: Limits, task: Task) -> _Proposal:
    """Search the rows farthest out; where the result is not convincing, compare it with chance."""
    whole = searched_views(left, right)
    chosen = outermost(whole[0].left), outermost(whole[0].right)
    views = [View(each.scales, each.left.rows(chosen[0]), each.right.rows(chosen[1])) for each in whole]
    among = limits.some(*chosen)
    begun = [(name, coupling[np.ix_(*chosen)]) for name, coupling in task.starts]
    search = Search(
        views, among, starts=begun, generations=task.generations, deadline=task.deadline, callback=task.callback
    )
    sample = search.run()
    found = sample.matching
    early: list[Crossing] = []
    if not search.convincing and not is_late(task.deadline):
        # There may be nothing to find: then the time for all rows would be wasted.
        matches = matched(found.ratios, None, crowded=sample.crowded)[0]
        early = crossings(sample, matches, replace(task, limits=None, starts=begun, comparisons=1, callback=None))
    hopeless = bool(early) and early[0].hopeless
    chance = tuple(early) if hopeless else ()
    return _Proposal(found.fit, tuple(search.tried), search.agreement, chance, sample.scales)


def _matched(
    ratios: sparse.csr_array, common: float | None, *, by_groups: bool, deadline: Deadline | None
) -> tuple[IntArray, Posterior]:
    """Return the match of each row, and the probabilities of listed pairs."""
    everybody = common is not None and common >= min(ratios.shape)
    plain = ratios
    if not everybody:
        ratios = less_crowding(plain)
    # Where rows may have no partner, they seldom exchange their partners.
    rest = {"gamma": GAMMA_IN_GROUPS} if by_groups and everybody else {}
    chances = posterior(ratios, every_row=everybody, common=common, **rest)
    remaining = partial(time_left, deadline)
    permutation = best_of_listed(ratios, chances.odds, every_row=everybody, remaining=remaining).permutation
    if everybody or (common is None and hardly_one_alone(chances)):
        return permutation, chances
    if not by_groups:
        ratios = less_chance_fit(ratios, plain, permutation)
        chances = posterior(ratios, common=common)
        permutation = best_of_listed(ratios, chances.odds, every_row=False, remaining=remaining).permutation
    return likely_matches(permutation, chances), chances


def _with_left_over(
    form: Form, permutation: IntArray, chances: Posterior, limits: Limits
) -> tuple[IntArray, Posterior]:
    """Return matches and probabilities with overlooked partners among rows without match, if these are not too many."""
    rows, others, matched, partners = left_over(permutation, limits.shape[1])
    if not can_be_compared(rows, others, matched) or max(len(rows), len(others)) > _MOST_LEFT_OVER:
        return permutation, chances
    model, left, right = form.matching.fit.whole, form.left.compact, form.right.compact

    def ratios(own: IntArray, theirs: IntArray) -> NumpyArray:
        found, allowed = model.log_ratios(left[own], right[theirs]), limits.mask(own, theirs)
        return found if allowed is None else np.where(allowed, found, -np.inf)

    block, forth, back = ratios(rows, others), ratios(matched, others), ratios(rows, partners)
    fits = Fits(block.max(axis=1), forth.max(axis=1)), Fits(block.max(axis=0), back.max(axis=0))
    found, pairs = with_overlooked(permutation, chances.pairs, Overlooked(rows, others, block, *fits))
    return found, replace(chances, pairs=pairs, common=float(pairs.sum()))


def _all_rows(
    left: Side,
    right: Side,
    limits: Limits,
    proposal: _Proposal,
    deadline: Deadline | None,
    *,
    common: float | None,
    brief: bool,
) -> Form:
    """Match all rows by a map, and choose the form with the most mutual first choices; if `brief`, only match."""
    groups = limits.groups if tells_by_groups(limits) else None
    pattern = None if groups is None else limits.pattern()
    scales, searched = proposal.scales or left.scales, tuple(searched_views(left, right))
    rows = ListedRows(scales, left.factors(scales), right.factors(scales), limits, common, pattern)
    first = rows.run(proposal.fit, rounds=1 if brief else _ROUNDS, deadline=deadline)
    best = Form(scales, rows.left, rows.right, first, searched=searched)
    if brief:
        return best
    forms = _FORMS if left.scales == "auto" else tuple((left.scales, rank) for _, rank in _FORMS[1:3])
    # What rows of a group have in common does not tell them apart, and is taken off. That needs the group of every row.
    centred = groups is not None and all(bool((labels >= 0).all()) for labels in groups)
    labels = groups if groups is not None and centred else (None, None)
    looked: list[tuple[int, ListedRows, CrossFit]] = []
    for kind, rank in forms:
        if is_late(deadline):
            return best
        sides = [side.factors(kind, rank, groups=own) for side, own in zip((left, right), labels, strict=True)]
        other = ListedRows(kind, sides[0], sides[1], limits, common, pattern)
        fitted = other.refinement.fitted(first.coupling)
        matching = other.run(fitted, common=first.common, rounds=1, deadline=deadline)
        looked.append((mutual_first_choices(matching.ratios), other, fitted))
    _, other, fitted = max(looked, key=lambda each: each[0])
    second = other.run(fitted, common=first.common, rounds=_ROUNDS, deadline=deadline)
    if not centred and mutual_first_choices(second.ratios) < mutual_first_choices(first.ratios):
        return best
    return Form(other.scales, other.left, other.right, second, searched=searched)


def _beside_other_groups(
    form: Form, limits: Limits, common: float | None, task: Task
) -> tuple[sparse.csr_array, tuple[Crossing, ...]]:
    """Return the ratios, made as sure as rows of other groups show that they should be, and a comparison with chance.

    Chance is what the same map and as many rounds reach where the rows of every group are offered those of another. For
    a fair comparison every row is given a partner both times.
    """
    ratios, deadline = form.matching.ratios, task.deadline
    if is_late(deadline):
        return ratios, ()
    apart, fit, smaller = exchanged(limits), form.matching.fit, float(min(limits.shape))
    own, other = (
        ListedRows(form.scales, form.left, form.right, each, common=smaller, pattern=each.pattern())
        for each in (limits, apart)
    )
    starts = limits.head_start(*pair_places(ratios))
    plain = ratios.copy()
    plain.data = ratios.data - starts
    strange = other.ratios(fit)
    strange.data -= apart.head_start(*pair_places(strange))
    odds = prior_log_odds(limits.shape, form.matching.common if common is None else common)
    alone = -(odds + np.log(max(limits.shape) / np.maximum(limits.choices, 1)))
    factor = sharpened_by(plain, strange, alone)
    if common is None or common < smaller:
        # Rows without partner make the factor too small: its square root is taken.
        factor = np.sqrt(factor)
    plain.data = factor * plain.data + starts
    same, chance = (rows.run(fit, rounds=_ROUNDS, deadline=deadline) for rows in (own, other))
    if task.callback is not None:
        task.callback("chance", 1, 1, chance.identification)
    # With as many numbers as there are rows, a map makes partners stand out by itself.
    clear = _LEAST_EXCESS + form.left.rank * form.right.rank / smaller
    return plain, (Crossing(same.identification, chance.identification, again=1.0, clear=clear, by_groups=True),)
