"""The final form of a link: scales of columns and numbers of factors, chosen by how well partners stand out.

A form is judged by rows that its map was not fitted to, so a form with more factors wins only where these help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from keyless.engine.refine import MOST_ROUNDS, Matching, Refinement, averaged, smoothed
from keyless.engine.side import Side
from keyless.maps.growth import Growth
from keyless.model.factors import Factors
from keyless.model.scales import ScaleName
from keyless.pairs.limits import Limits
from keyless.progress import Deadline, cut_short, is_late

__all__ = ["ROWS_PER_FACTOR", "Form", "View", "averaged_form", "best_form", "searched_views"]

_FACTORS = (12, 20, 40, 64, 100)
"""Numbers of factors that are tried."""

ROWS_PER_FACTOR = 6
"""Rows that the smaller table must have for each factor of either table."""

_SEARCHED: tuple[ScaleName, ...] = ("auto", "rank")
"""Kinds of scales on which a map is sought. On ranks, a few rows far out cannot be mistaken for each other."""

_TRIED = 3
"""How many forms are refined: those under which partners stand out most at a first look."""

_STEPS = 4
"""Steps in which every row is coupled, before rows may stay without partner: they lead out of half-right matchings."""

_SUREST_SHARE = 0.5
"""Share of the pairs, those that stand out most, from which a matching is begun again that rows without partner have
spoilt."""

_ATTEMPTS = 5
"""How often, at the most, the best form is refined again, as long as it becomes better."""


@dataclass(frozen=True, eq=False)
class View:
    """Both tables on one kind of scales.

    Attributes:
        scales: of the columns.
        left: factors of the left rows.
        right: factors of the right rows.
    """

    scales: ScaleName
    left: Factors
    right: Factors


@dataclass(frozen=True, eq=False)
class Form:
    """Factors of two tables, and the rows matched by them.

    Attributes:
        scales: how columns are scaled.
        left: factors of the left table.
        right: factors of the right table.
        matching: the map and the matched rows.
        by_columns: whether rows were matched by a model of all columns of both tables instead of factors.
        searched: both tables on all kinds of scales that the search tried; searches that tell chance try them, too.
    """

    scales: ScaleName
    left: Factors
    right: Factors
    matching: Matching
    by_columns: bool = False
    searched: tuple[View, ...] = ()

    @property
    def crowded(self) -> bool:
        """Whether rows may come in crowds.

        A model of all columns is used for few rows, among which crowds arise by chance.
        """
        return not self.by_columns


def searched_views(left: Side, right: Side) -> list[View]:
    """Return both tables on the kinds of scales on which a map is sought."""
    kinds = _SEARCHED if left.scales == "auto" else (left.scales,)
    return [View(kind, left.factors(kind), right.factors(kind)) for kind in kinds]


def best_form(left: Side, right: Side, found: Form, *, limits: Limits, deadline: Deadline | None = None) -> Form:
    """Return the form under which partners stand out most, each form refined from the best matching so far.

    Args:
        left: the left table.
        right: the right table.
        found: the link that was found.
        limits: which pairs may be matched.
        deadline: when the best so far is returned.
    """
    best = found
    looked: list[tuple[float, Form]] = []
    for scales, one, two in _forms(left, right, rows=min(len(left), len(right))):
        if is_late(deadline):
            return best
        with cut_short(deadline):
            refinement = Refinement(one.compact, two.compact, limits=limits)
            matching = refinement.run(found.matching.coupling, rounds=1, common=found.matching.common)
            # Only the strength of each matching is kept: matchings of all forms would fill the memory.
            looked.append((matching.strength, Form(scales, one, two, found.matching)))
    for _, form in sorted(looked, key=lambda each: -each[0])[:_TRIED]:
        if is_late(deadline):
            return best
        begun = replace(form, matching=best.matching)
        best = _improved(best, begun, limits, ways=("coupling", "forced"), deadline=deadline)
    for _ in range(_ATTEMPTS):
        if is_late(deadline):
            break
        before, best = best, _improved(best, best, limits, ways=("surest", "forced"), deadline=deadline)
        if best is before:
            break
    if is_late(deadline):
        return best
    with cut_short(deadline):
        return _by_predictions(smoothed, (left, right), best, limits, deadline)
    return best


def averaged_form(left: Side, right: Side, form: Form, *, limits: Limits, deadline: Deadline | None = None) -> Form:
    """Return a form whose ratios are averaged over rounds of predictions; see `keyless.engine.refine.averaged`.

    Args: see `best_form`.
    """
    return _by_predictions(averaged, (left, right), form, limits, deadline)


def _by_predictions(
    refine: Callable[..., Matching], sides: tuple[Side, Side], form: Form, limits: Limits, deadline: Deadline | None
) -> Form:
    """Return a form with its matching refined by predictions of the factors of all kinds of scales."""
    one, two = sides
    views = [(one.factors(kind, _FACTORS[-1]), two.factors(kind, _FACTORS[-1])) for kind in _kinds(one)]
    by_map = form.left.compact, form.right.compact
    return replace(form, matching=refine(form.matching, views, limits=limits, by_map=by_map, deadline=deadline))


def _improved(best: Form, form: Form, limits: Limits, *, ways: Sequence[str], deadline: Deadline | None) -> Form:
    """Refine a coupling with the factors of a form, and return the best form reached, or the best so far.

    Args:
        best: the best form so far.
        form: the factors to use, and the coupling to begin with.
        limits: which pairs may be matched.
        ways: where to begin: `"coupling"`, at the coupling; `"surest"`, at the part of it that stands out most, which
            leads out of matchings that rows without partner have spoilt; `"forced"`, after some steps in which every
            row is coupled.
        deadline: when the best so far is returned.
    """
    left, right, begun = form.left.compact, form.right.compact, form.matching
    refinement = Refinement(left, right, limits=limits, by_decoys=True)
    for way in ways:
        with cut_short(deadline):
            coupling = begun.coupling
            if way == "surest":
                coupling = begun.surest(_SUREST_SHARE)
            elif way == "forced":
                coupling = Growth(left, right, allowed=limits.mask()).again(coupling, steps=_STEPS)
            matching = refinement.run(coupling, rounds=MOST_ROUNDS, common=begun.common, deadline=deadline)
            if matching.better_than(best.matching):
                best = Form(form.scales, form.left, form.right, matching, searched=best.searched)
    return best


def _kinds(side: Side) -> tuple[ScaleName, ...]:
    """Return the kinds of scales that are tried."""
    return ("auto", "rank", "identity") if side.scales == "auto" else (side.scales,)


def _forms(left: Side, right: Side, *, rows: int) -> Iterator[tuple[ScaleName, Factors, Factors]]:
    limited = left.max_rank if left.max_rank < min(_FACTORS[2], rows) else _FACTORS[-1]
    most = max(_FACTORS[0], min(rows // ROWS_PER_FACTOR, limited))
    for kind in _kinds(left):
        seen = set()
        for count in _FACTORS:
            factors = [side.factors(kind, min(count, most)) for side in (left, right)]
            sizes = tuple(each.rank for each in factors)
            if sizes not in seen:
                seen.add(sizes)
                yield kind, factors[0], factors[1]
