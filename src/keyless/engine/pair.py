"""Link two tables that share neither key nor column: from raw numbers to matches, and how sure each of them is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray, NumpyArray
from keyless.engine.columns import ColumnModel, are_few, has_gaps, is_narrow, stands_out, suits
from keyless.engine.crossing import Crossing, crossings
from keyless.engine.foretold import FEWEST_KNOWN, Foretold, foretold_by_others
from keyless.engine.forms import Form, averaged_form, best_form, searched_views
from keyless.engine.matches import likely_matches, matched, sharpness
from keyless.engine.refine import CLEARLY_MORE, Matching, Refinement
from keyless.engine.replicates import averaged_over_replicates
from keyless.engine.search import Search, Start
from keyless.engine.side import Side
from keyless.engine.simulated import MOST_SIMULATED, power_on_drawn_tables, tempered
from keyless.engine.task import Task
from keyless.errors import CONVERGED, Status
from keyless.model.factors import Factors
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import Posterior
from keyless.parallel import one_thread
from keyless.progress import Deadline, cut_short, is_late

__all__ = [
    "PairLink",
    "by_map",
    "compared",
    "find_pair",
    "link_pair",
    "status_at",
]

_FULLY = 0.95
"""Part of log(rows) nats: partners that stand out by more stand out fully, and averaging ratios would add nothing."""

_ANY = Task()
"""The task of a search that is told nothing about the tables."""


@dataclass(frozen=True, eq=False)
class PairLink:
    """The correspondence between two tables, and what it is judged by. Rows are in the caller's order.

    Attributes:
        permutation: the right row of each left row, −1 where it has none.
        probability: of each left row's match, or of its having no partner.
        pairs: left × right rows, the probability of each pair; sparse where rows are many, like the ratios.
        ratios: left × right rows, log-likelihood ratios by maps that have not seen the left row; −∞ where forbidden.
        every_row: whether every row of the smaller table was taken to have a partner.
        form: factors, map and matching; rows in the engine's order.
        crossings: comparisons with chance.
        foretold: how well known pairs are foretold by searches that were not told them.
        agreement: how many first maps of the search led to this correspondence.
        sharpness: share of matched rows that are each other's first choice, by maps that have not seen them.
        status: how the search ended, with advice.
        starts: how the candidates came to be.
        orders: the caller's row of each row in the engine's order, left and right.
        mean_coupling: of all candidates of the search, left × right rows; see `Search.mean_coupling`.
    """

    permutation: IntArray
    probability: NumpyArray
    pairs: Any
    ratios: Any
    every_row: bool
    form: Form
    crossings: tuple[Crossing, ...]
    agreement: int
    sharpness: float
    status: Status
    foretold: Foretold = field(default_factory=Foretold)
    starts: tuple[Start, ...] = ()
    orders: tuple[IntArray, IntArray] = field(default_factory=lambda: (np.empty(0, np.int64),) * 2, repr=False)
    mean_coupling: NumpyArray | None = field(default=None, repr=False)

    @property
    def factors(self) -> tuple[Factors, Factors]:
        """The factors of both tables, rows in the engine's order."""
        return self.form.left, self.form.right

    @property
    def correlations(self) -> NumpyArray:
        """Canonical correlations of matched rows, by maps that have not seen them."""
        return np.asarray(self.form.matching.fit.whole.correlations)


def link_pair(left: Side, right: Side, task: Task = _ANY) -> PairLink:
    """Find which rows of two tables are one entity, and compare what was found with chance.

    Args:
        left: the left table.
        right: the right table.
        task: what is known about them, and how they are searched.

    Example:
        >>> import numpy as np
        >>> latent = np.random.default_rng(0).normal(size=(40, 3))
        >>> rows = np.random.default_rng(1).permutation(40)
        >>> one, two = latent @ [[1, 2, 0, 1], [0, 1, 3, 1], [1, 0, 1, 2]], latent @ [[1, 0, 1], [1, 2, 0], [0, 1, 1]]
        >>> link = link_pair(Side(one), Side(two[rows]))
        >>> bool(np.array_equal(rows[link.permutation], np.arange(40)))
        True
    """
    return compared(find_pair(left, right, task), left, right, task)


def compared(link: PairLink, left: Side, right: Side, task: Task) -> PairLink:
    """Return a link compared with chance, unless that was done before, and with known pairs that it was not told.

    Args:
        link: what was found.
        left: the left table.
        right: the right table.
        task: what the search was given.
    """
    rows, columns = link.orders
    own = task.ordered(left, right)
    with one_thread():
        foretold = foretold_by_others(link.form, limits=own.within((len(left), len(right))), deadline=task.deadline)
    link = replace(link, foretold=foretold)
    if link.crossings:
        return link
    permutation = np.append(np.argsort(columns), -1)[link.permutation[rows]]
    if foretold.proven:
        # The verdict does not depend on chance then: one comparison is enough to show what chance reaches.
        own = replace(own, comparisons=min(own.comparisons, 1))
    with one_thread():
        found = crossings(link.form, permutation, own, sides=(left, right))
    link = replace(link, crossings=tuple(found))
    believable = foretold.proven or not any(one.hopeless for one in found)
    if believable and not is_late(task.deadline):
        with one_thread(), cut_short(task.deadline):
            link = _as_can_be_trusted(link, permutation, own.within((len(left), len(right))))
    return replace(link, status=status_at(task.deadline))


def _as_can_be_trusted(link: PairLink, permutation: IntArray, limits: Limits) -> PairLink:
    """Return a link with probabilities that hold on tables drawn from its map.

    Args:
        link: what was found.
        permutation: its matches, rows in the engine's order.
        limits: which pairs may be matched.
    """
    form = link.form
    if form.by_columns or form.matching.predicted or max(form.matching.ratios.shape) > MOST_SIMULATED:
        return link
    # No pair of drawn tables is known beforehand.
    unknown = replace(limits, known=limits.known[:0])
    power = power_on_drawn_tables(form, permutation, every_row=link.every_row, limits=unknown)
    chances = tempered(Posterior(sparse.csr_array(link.pairs), float(link.pairs.sum()), 0.0), power)
    matches = link.permutation
    if not link.every_row:
        matches = likely_matches(matches, chances)
    return replace(link, permutation=matches, probability=chances.answers(matches), pairs=chances.pairs.toarray())


def find_pair(left: Side, right: Side, task: Task) -> PairLink:
    """Find which rows of two tables are one entity; see `link_pair`.

    What is found is compared with chance here only where candidates disagree and partners hardly stand out. There may
    be nothing to find then, and the time for the final form of the link would be wasted.
    """
    task = task.ordered(left, right)
    own = task.within((len(left), len(right)))
    begun, deadline, callback = task.starts, task.deadline, task.callback
    early: list[Crossing] = []
    with one_thread():
        few = are_few(left, right)
        columns = ColumnModel(left, right, limits=own, deadline=deadline) if is_narrow(left, right) else None
        turned, by_columns, contradicted = begun, None, None
        rotation = None if columns is None else columns.found()
        if columns is not None and rotation is not None:
            turned, by_columns = [*begun, rotation[:2]], rotation[2]
            if by_columns is not None and columns.refinement.contradicted(by_columns.coupling):
                # Known pairs choose between maps. If no other map is found, this one is used for all other rows.
                contradicted, by_columns = by_columns, None
        solved = by_columns is not None and stands_out(by_columns)
        search = Search(
            searched_views(left, right),
            own,
            starts=turned,
            generations=0 if solved else task.generations,
            deadline=deadline,
            callback=callback,
        )
        form = search.run()
        tried, agreement = [(start.name, start.score) for start in search.tried], search.agreement
        if columns is not None and few:
            # Where both tables show the same factors, a model of all their columns knows more.
            if not solved and not is_late(deadline):
                with cut_short(deadline):
                    refined = columns.run(form.matching.coupling, common=form.matching.common)
                    if refined is not None and (by_columns is None or refined.better_than(by_columns)):
                        by_columns = refined
            # A map has far more freedom than a model of all columns, so it must be clearly better.
            if by_columns is not None and CLEARLY_MORE * by_columns.strength >= form.matching.strength:
                form = replace(form, matching=by_columns, by_columns=True)
            if contradicted is not None and stands_out(contradicted) and not stands_out(form.matching):
                form = replace(form, matching=contradicted, by_columns=True)
        if not (form.by_columns and stands_out(form.matching)) and not is_late(deadline):
            if not search.convincing and len(own.known) < FEWEST_KNOWN and not is_late(deadline):
                permutation = matched(form.matching.ratios, task.every_row, crowded=form.crowded)[0]
                once = replace(task, comparisons=1)
                early = crossings(form, permutation, once, sides=(left, right), early=True)
            if not (early and early[0].hopeless) and not is_late(deadline):
                with cut_short(deadline, grace=True):
                    form = _finished(left, right, form, columns, limits=own, deadline=deadline)
                form = _averaged(left, right, form, task)
        if form.by_columns and columns is not None:
            with cut_short(deadline, grace=True):
                form = columns.in_factors(form)
        ratios = form.matching.ratios if is_late(deadline) else averaged_over_replicates(form, limits=own)
        permutation, chances, everybody = matched(ratios, task.every_row, crowded=form.crowded)
    back = [np.argsort(side.order) for side in (left, right)]
    mean_coupling = search.mean_coupling
    return PairLink(
        permutation=np.append(right.order, -1)[permutation][back[0]],
        probability=chances.answers(permutation)[back[0]],
        pairs=chances.pairs.toarray()[np.ix_(*back)],
        ratios=ratios[np.ix_(*back)],
        every_row=everybody,
        form=form,
        crossings=tuple(early) if early and early[0].hopeless else (),
        agreement=agreement,
        sharpness=sharpness(ratios, permutation),
        status=status_at(deadline),
        starts=tuple(Start(*one) for one in tried),
        orders=(left.order, right.order),
        mean_coupling=None if mean_coupling is None else mean_coupling[np.ix_(*back)],
    )


def by_map(link: PairLink, limits: Limits) -> NumpyArray:
    """Return the log-likelihood ratios of all pairs by the map alone, rows in the caller's order.

    Args:
        link: what was found, between tables that are small enough to look at all pairs.
        limits: which pairs may be matched.
    """
    rows, columns = link.orders
    refinement = Refinement(*(side.compact for side in link.factors), limits=limits.reordered(rows, columns))
    with one_thread():
        ratios = refinement.judged(link.form.matching.coupling)[1]
    return np.asarray(ratios[np.ix_(np.argsort(rows), np.argsort(columns))])


def rematched(
    left: Side,
    right: Side,
    coupling: NumpyArray,
    *,
    limits: Limits,
    every_row: bool | None = None,
    deadline: Deadline | None = None,
) -> tuple[IntArray, NumpyArray] | None:
    """Match rows again by a model of all columns; None where there are too many of them for that.

    Args:
        left: the left table.
        right: the right table.
        coupling: of their rows; the model is first fitted to it. Where it has too few sure pairs, None is returned.
        limits: which pairs may be matched.
        every_row: whether every row of the smaller table has a partner; None: decided from the data.
        deadline: when nothing further is tried; None is returned where there was too little time.

    Returns:
        The right row of each left row, −1 for none; and the probabilities of all pairs.
    """
    found: Matching | None = None
    if is_late(deadline) or not suits(left, right):
        return None
    with one_thread(), cut_short(deadline):
        columns = ColumnModel(left, right, limits=limits.reordered(left.order, right.order), deadline=deadline)
        found = columns.run(coupling[np.ix_(left.order, right.order)])
    if found is None:
        return None
    permutation, chances, _ = matched(found.ratios, every_row)
    back = [np.argsort(side.order) for side in (left, right)]
    return np.append(right.order, -1)[permutation][back[0]], chances.pairs.toarray()[np.ix_(*back)]


def _finished(
    left: Side,
    right: Side,
    form: Form,
    columns: ColumnModel | None,
    *,
    limits: Limits,
    deadline: Deadline | None,
) -> Form:
    """Return the link in its best form; with gaps, by a model of all columns if partners stand out more by that."""
    best = best_form(left, right, form, limits=limits, deadline=deadline)
    if not form.by_columns or best.matching.strength > CLEARLY_MORE * form.matching.strength:
        form = best
    if columns is not None and has_gaps(left, right) and not is_late(deadline):
        found = columns.run(form.matching.coupling, common=form.matching.common)
        # Predictions from filled entries seem surer than they are: they must be clearly better.
        if found is not None and CLEARLY_MORE * found.strength >= form.matching.strength:
            form = replace(form, matching=found, by_columns=True)
    return form


def _averaged(left: Side, right: Side, form: Form, task: Task) -> Form:
    """Return the form with averaged ratios if rows have no partner, unless partners stand out clearly more without.

    Where every row has a partner, or partners stand out fully, hardly a pair is wrong, and there is nothing to average.
    """
    if (
        task.every_row
        or form.by_columns
        or form.matching.identification >= _FULLY * np.log(max(form.matching.ratios.shape))
        or is_late(task.deadline)
    ):
        return form
    limits = task.within((len(left), len(right)))
    with cut_short(task.deadline):
        if not matched(form.matching.ratios, task.every_row, crowded=form.crowded)[2]:
            found = averaged_form(left, right, form, limits=limits, deadline=task.deadline)
            if CLEARLY_MORE * found.matching.strength > form.matching.strength:
                return found
    return form


def status_at(deadline: Deadline | None) -> Status:
    """Return how a search ended: at its time limit, or by itself."""
    if is_late(deadline):
        return Status("max_time", "Stopped at the time limit with the best so far. Give it more time.")
    return CONVERGED
