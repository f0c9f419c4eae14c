"""The searches of one run: by one model of all columns, pair by pair, or of tables that are joined one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse

import keyless
from keyless.arrays import BoolArray, FloatArray, IntArray, find_device
from keyless.engine import (
    PairLink,
    Task,
    best_rivals,
    compared,
    find_pair,
    link_many_rows,
    rematched,
    shared_partners,
)
from keyless.engine.by_columns import ColumnSearch
from keyless.engine.columns import stands_out
from keyless.engine.joined import Joined, side_by_side
from keyless.engine.pair import by_map
from keyless.engine.search import FEW_GENERATIONS
from keyless.evidence import Evidence, judge_columns, judge_pair, judged_rows, overall
from keyless.findings import Found, Route, canonical_correlations
from keyless.model.factor_model import FactorModel, fit, initial_model, model_from_directions
from keyless.model.moments import Moments, fit_moments
from keyless.options import Options
from keyless.pairs.overlooked import with_left_over
from keyless.pairs.posterior import less_crowding
from keyless.pairs.stated import with_known_pairs
from keyless.prepared import Prepared, rows_of
from keyless.progress import Deadline, cut_short
from keyless.saved.checkpoints import Checkpoints, fingerprint
from keyless.sizes import ALL_PAIRS_ROWS, STEADY_ROWS
from keyless.tables import Table

__all__ = ["Searches", "model_without_factors"]

JoinedLink = tuple[PairLink, Joined, Joined, FloatArray]
"""A link, the tables on its left and on its right, and which of their entities were joined, as a coupling."""

_COMPARISONS = {"quick": 1, "normal": 3, "thorough": 5}
"""The most comparisons with chance, by effort; where the first is clear, no other is made."""

_MODEL_STEPS, _LATE_STEPS = 100, 5
"""The most steps in which the model of linked tables is fitted, and the most steps when time is up or nothing was
linked."""

_ROWS_FOR_STEPS = 2_000
"""Rows up to which every step of fitting this model looks at each row; of more rows a step looks at about so many."""

_WHOLE_ROWS = 10
"""Rows that are in all tables, per column, from which the model is fitted to mean products of columns; with fewer,
products of columns of different tables contradict each other."""

_TURNS = 2
"""How often each of several joined tables is matched again to all the others before they are judged."""


class Searches(Prepared):
    """The searches of one run. Each gives what it found about every table, judged.

    Args:
        options: the options.
        tables: the tables as read, the reference first.
        large: whether the tables have so many rows that not all pairs of them are looked at.
        earlier: per table, by name, the coupling of an earlier link whose map was believed; the search begins there.
        deadline: when the best so far is returned; None: after the options' `max_time` from now on.
    """

    def __init__(
        self,
        options: Options,
        tables: Sequence[Table],
        *,
        large: bool,
        earlier: Mapping[str, FloatArray] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        super().__init__(options, tables, large=large)
        sizes = rows_of(tables)
        self.began, self.device = time.monotonic(), find_device(options.device)
        self.deadline = Deadline(options.max_time) if deadline is None else deadline
        self.history: list[Mapping[str, Any]] = []
        self.earlier: dict[tuple[int, int], list[tuple[str, FloatArray]]] = {}
        for number, table in enumerate(self.given):
            if earlier is not None and table.name in earlier:
                limits = self.limits_with(*self.ends(number))
                told = with_known_pairs(np.full(sizes[0], -1), earlier[table.name], limits)[1]
                self.earlier[0, number] = [("earlier link", told)]
        self.stages = self.checkpoints()
        self.searches: dict[str, PairLink] = {}
        self.comparisons = _COMPARISONS[options.effort]

    def checkpoints(self) -> Checkpoints:
        """Return where finished stages are kept; stages that were cut short are not kept."""
        if self.options.checkpoint is None:
            return Checkpoints(None, "")
        contents: list[Any] = []
        for t in self.given:
            # A large file is known by its size and when it was changed; its numbers need not be read again.
            numbers = (t.block.values, t.block.mask) if t.large_file is None else (t.large_file,)
            contents += [t.name, t.columns, *numbers, t.row_ids]
        contents += self.constraints.groups
        for name, pairs in (("known", self.constraints.known), ("forbidden", self.constraints.forbidden)):
            contents += [name, *(part for item in pairs.items() for part in item)]
        key = fingerprint([keyless.__version__, *contents, *self.options.decisive])
        return Checkpoints(self.options.checkpoint, key, finished=lambda: not self.deadline.passed)

    def report(self, stage: str, step: int, total: int, objective: float) -> None:
        """Report and record how far the search is; a callback that returns True asks to stop."""
        seconds = time.monotonic() - self.began
        self.history.append(
            {"stage": stage, "step": step, "total": total, "objective": float(objective), "seconds": seconds}
        )
        if self.options.callback is not None and self.options.callback(stage, step, total, objective) is True:
            self.deadline.stop()

    def many_rows(self, number: int, begun: Any = None) -> PairLink:
        """Search one table of many rows, or of rows in groups, and the reference for canonical pairs.

        Args:
            number: of the table.
            begun: probabilities of pairs, sparse, that the search begins with; None: the map is sought from nothing.
        """
        return self.stages.stage(
            f"many-rows{number}",
            lambda: link_many_rows(*self.sides(*self.ends(number)), self.task(*self.ends(number)), begun=begun),
        )

    def pair(self, left: Joined, right: Joined, begun: Sequence[tuple[str, FloatArray]] = ()) -> PairLink:
        """Search two tables, or joined tables, for pairs of rows, and compare what was found with chance."""
        # Searches that tell chance do not begin with an earlier link: pairs that are found again are found from
        # nothing.
        found = self.searched(left, right, begun)
        task = self.task(left, right, left.carried(self.couplings, right))
        return self.stages.stage(
            f"{_named(left, right)}-chance", lambda: compared(found, *self.sides(left, right), task)
        )

    def task(self, left: Joined, right: Joined, starts: Sequence[tuple[str, FloatArray]] = ()) -> Task:
        """Return what the search of two tables, or joined tables, is given."""
        return Task(
            self.limits_with(left, right),
            starts,
            self.options.every_row,
            generations=FEW_GENERATIONS if self.options.effort == "quick" else None,
            comparisons=self.comparisons,
            seed=self.seed,
            deadline=self.deadline,
            callback=self.report,
        )

    def searched(self, left: Joined, right: Joined, begun: Sequence[tuple[str, FloatArray]] = ()) -> PairLink:
        """Search two tables, or joined tables, for pairs of rows.

        Args:
            left: the tables on the left.
            right: the tables on the right.
            begun: named couplings of their entities that the search begins with.
        """
        name = f"{_named(left, right)}{'-again' if begun else ''}"
        if name not in self.searches:
            starts = [*begun, *left.carried(self.earlier, right), *left.carried(self.couplings, right)]
            task = self.task(left, right, starts)
            find: Callable[..., PairLink] = find_pair
            if max(len(left), len(right)) > ALL_PAIRS_ROWS:
                # It is compared with chance later, as other links are.
                find, task = partial(link_many_rows, all_pairs=True), replace(task, comparisons=0)
            self.searches[name] = self.stages.stage(name, lambda: find(*self.sides(left, right), task))
        return self.searches[name]

    def from_columns(self, *, thorough: bool = True, deadline: Deadline | None = None) -> Route:
        """Link by one model of all columns, candidates and a sparse assignment; judge what was found."""
        few_needed = self.options.effort != "thorough" and min(rows_of(self.given)) >= STEADY_ROWS
        search = ColumnSearch(
            self.large_tables,
            thorough=thorough,
            rank=self.options.rank,
            every_row=self.options.every_row,
            constraints=self.limits,
            shared=self.shared,
            comparisons=1 if few_needed else self.comparisons,
            seed=self.seed,
            callback=self.report,
            deadline=self.deadline if deadline is None else deadline,
            stages=self.stages,
            device=self.device,
        )
        link = self.stages.stage("columns", search.link)
        evidences = judge_columns(link, constraints=self.limits, sizes=[len(table) for table in self.large_tables])
        found = []
        for number, (matched, test, evidence) in enumerate(zip(link.matched, link.tests, evidences, strict=True), 1):
            correlations = canonical_correlations(*test.latents, rank=link.model.rank)
            found.append(
                self.found(
                    number,
                    matched.permutation,
                    coupling=matched.chances.pairs,
                    ratios=matched.ratios,
                    correlations=correlations,
                    evidence=evidence,
                )
            )
        starts = tuple(
            {"route": "columns", "pair": (0, number), "start": f"{start}, {proposer}", "score": share}
            for number, proposed in enumerate(link.maps, start=1)
            for proposer, start, share in proposed.tried
        )
        work = search.workers.about | {
            "distances": link.evaluations,
            "recall": link.recall,
            "confirmed": {t.name: m.confirmed for t, m in zip(self.given[1:], link.maps, strict=True)},
            "assignment": {
                table.name: {"gap": m.gap, "components": m.components, "largest": m.largest}
                for table, m in zip(self.given[1:], (each.matching for each in link.matched), strict=True)
            },
        }
        scales = tuple(table.scales for table in self.large_tables)
        return Route("columns", found, link.model, link.status, starts, scales, work)

    def from_pairs(self, search: Callable[[int], PairLink] | None = None) -> Route:
        """Search every table and the reference for pairs of rows, and judge what was found.

        Args:
            search: how a table, given by its number, is searched; None: among all pairs of rows.
        """
        search = search or (lambda number: self.pair(*self.ends(number)))
        links = [search(number) for number in range(1, len(self.tables))]
        return self.judged([(link, *self.ends(number)) for number, link in enumerate(links, start=1)])

    def from_joined(self) -> Route:
        """Join tables one by one, then match each of them, and the reference, against all the others joined.

        Tables that say little about a row say more together: two that cannot be linked to the reference, one by one,
        may be linked to each other, and then both to the reference.
        """
        groups = [Joined.alone(number, size) for number, size in enumerate(rows_of(self.tables))]
        while len(groups) > 1 and not self.deadline.passed:
            # Tables with the most observed entries come first: the surest join is made before others depend on it.
            ranked = sorted(combinations(groups, 2), key=lambda pair: -min(self.seen(group) for group in pair))
            for left, right in ranked:
                link = self.searched(left, right)
                # Where chance does as well as a link, the link is no reason to join tables, however far partners stand
                # out.
                if stands_out(link.form.matching) and not link.crossings:
                    groups = [one for one in groups if one not in (left, right)]
                    groups.append(left.with_partners(right, link.permutation))
                    joins = len(self.tables) - 1
                    self.report("joins", joins + 1 - len(groups), joins, link.form.matching.identification)
                    break
            else:
                break
        groups = [self.settled(group) for group in groups]
        home = next(group for group in groups if 0 in group.numbers)
        links = []
        for number in range(1, len(self.tables)):
            left, right = home, next(group for group in groups if number in group.numbers)
            begun = []
            if right is home:
                left, right = home.without(number), self.ends(number)[1]
                begun = [("tables joined", _partners(home, left, number, len(right)))]
            links.append((self.pair(left, right, begun), left, right))
        reference: JoinedLink | None = None
        if len(home.numbers) > 2:
            left, right = home.without(0), self.ends(0)[1]
            joined = _partners(home, left, 0, len(right))
            reference = self.pair(left, right, [("tables joined", joined)]), left, right, joined
        return self.judged(links, reference)

    def settled(self, group: Joined) -> Joined:
        """Return joined tables, each matched again to all the others; the first joins did not have all of them."""
        for number in _TURNS * group.numbers if len(group.numbers) > 2 else ():
            found = self.rematched(group, number)
            if found is not None:
                group = group.without(number).with_partners(self.ends(number)[1], found[0])
        return group

    def rematched(self, group: Joined, number: int) -> tuple[IntArray, FloatArray] | None:
        """Match one of several joined tables again to all the others."""
        left, right = group.without(number), self.ends(number)[1]
        return rematched(
            *self.sides(left, right),
            _partners(group, left, number, len(right)),
            limits=self.limits_with(left, right),
            every_row=self.options.every_row,
            deadline=self.deadline,
        )

    def seen(self, group: Joined) -> float:
        """Return how many entries of a row of joined tables are observed, on average."""
        return sum(float(self.tables[number].block.mask.sum(axis=1).mean()) for number in group.numbers)

    def judged(self, links: Sequence[tuple[PairLink, Joined, Joined]], reference: JoinedLink | None = None) -> Route:
        """Judge what was found about each table but the reference.

        Args:
            links: per table, the link; the tables on its left, the reference among them; and the tables on its right,
                this table among them.
            reference: the same for the reference, where it was joined to several tables. A row that was surely matched
                to the joined tables may still belong to another row of the reference.
        """
        found, starts = [], []
        weakest = None if reference is None else self.evidence_of(*reference[:3])
        places = None if reference is None else _places(reference[0].pairs, reference[3])
        for number, (link, left, right) in enumerate(links, start=1):
            evidence = self.evidence_of(link, left, right)
            if weakest is not None and len(left.numbers) > 1:
                evidence = overall([evidence, weakest])
            rows, columns = left.entities_of(0), right.entities_of(number)
            among = np.ix_(rows, columns)
            whole = len(rows) == len(left) and len(columns) == len(right) and len(left.numbers) == 1
            # Where no map is believed, all candidates together order partners better than the best of them.
            pairs: Any = link.mean_coupling if evidence.verdict == "unlinkable" else None
            pairs = link.pairs if pairs is None else pairs
            coupling = pairs if whole else pairs[among]
            if places is not None and len(left.numbers) > 1:
                coupling = places @ coupling
                allowed = self.limits_of_tables[number - 1].mask()
                coupling = coupling if allowed is None else np.where(allowed, coupling, 0.0)
            ratios = link.ratios if whole else link.ratios[among]
            if self.shares and link.form.by_columns:
                # Where rows share partners, the number of choices is taken into account separately.
                ratios = ratios - self.limits_with(left, right).head_starts()
            elif self.shares and not sparse.issparse(ratios):
                # Rows of one entity predict each other, so predictions would be too sure.
                ratios = by_map(link, self.limits_with(left, right))[among]
            found.append(
                self.found(
                    number,
                    np.append(right.rows_of(number), -1)[link.permutation[rows]],
                    coupling=coupling,
                    ratios=ratios,
                    correlations=link.correlations,
                    evidence=evidence,
                )
            )
            starts += [{"route": "pairs", "pair": (0, number), "start": s.name, "score": s.score} for s in link.starts]
        refused = all(one.evidence.verdict == "unlinkable" for one in found)
        model = self.model_of([one.permutation for one in found], refused=refused)
        worst = min((link.status for link, _, _ in links), key=lambda status: status.converged)
        return Route("pairs", found, model, worst, tuple(starts), self.scales)

    def evidence_of(self, link: PairLink, left: Joined, right: Joined) -> Evidence:
        """Judge a link between tables, or joined tables."""
        # Columns that both tables have tell a correspondence from its mirror images.
        pairs = {(min(a, b), max(a, b)) for a in left.numbers for b in right.numbers}
        told = not pairs.isdisjoint(self.shared)
        limits = self.limits_with(left, right)
        with cut_short(self.deadline, grace=True):
            return judge_pair(link, limits=limits, shared=told)
        # Without time to judge it, what was found is in doubt.
        return judge_pair(replace(link, crossings=()), limits=limits, shared=told)

    def found(
        self,
        number: int,
        permutation: IntArray,
        *,
        coupling: Any,
        ratios: Any,
        correlations: FloatArray,
        evidence: Evidence,
    ) -> Found:
        """Return what is found out about a table, and report it.

        Args:
            number: of the table.
            permutation: the right row of each left row, −1 for none.
            coupling: probabilities of pairs.
            ratios: log-likelihood ratios of pairs.
            correlations: of the factors of matched rows.
            evidence: whether there is a map.
        """
        rivals = None
        if self.shares and evidence.believed:
            limits = self.limits_with(*self.ends(number))
            shared = shared_partners(ratios, limits=limits, every_row=self.options.every_row)
            permutation, coupling = shared.permutation, shared.pairs
            evidence = judged_rows(evidence, shared.probability[permutation >= 0])
        elif not self.shares and evidence.believed:
            if not sparse.issparse(ratios) and self.limits_of_tables[number - 1].groups is None:
                permutation, coupling = with_left_over(permutation, coupling, less_crowding(ratios))
            rivals = best_rivals(ratios, permutation)
        if isinstance(coupling, sparse.csr_array) and not self.large:
            # Where rows are few, all pairs are given, whichever way they were found.
            coupling = coupling.toarray()
        found = Found.of(
            permutation,
            coupling,
            correlations=correlations,
            evidence=evidence,
            limits=self.limits_of_tables[number - 1],
            rivals=rivals,
        )
        self.matched(found)
        return found

    def matched(self, found: Found) -> None:
        """Report how many rows have a partner that is expected to be right."""
        self.report("matched", round(found.expected_right), len(found.permutation), found.evidence.score)

    def model_of(self, permutations: Sequence[IntArray], *, refused: bool = False) -> FactorModel:
        """Return the joint model of all tables in a given order; one without factors where there is no time for it.

        Args:
            permutations: per table but the reference, its row of each row of the reference.
            refused: whether the order is no better than chance. Then the model says little, and where no entry is
                missing it fills nothing, so that a few steps are enough.
        """
        rows = [np.arange(len(self.scores[0][0])), *permutations]
        values, mask = side_by_side(self.scores, rows)
        rank = max(1, min(self.options.rank or 40, min(values.shape) // 2))
        whole = all(bool(table.block.mask.all()) for table in self.tables)
        steps = _LATE_STEPS if self.deadline.passed or (refused and whole) else _MODEL_STEPS
        with cut_short(self.deadline, grace=True):
            return self.fitted_model(values, mask, rows, rank=rank, steps=steps)
        return model_without_factors(values.shape[1])

    def fitted_model(
        self, values: FloatArray, mask: BoolArray, rows: Sequence[IntArray], *, rank: int, steps: int
    ) -> FactorModel:
        """Fit the joint model.

        Where rows are many, it is fitted to mean products of columns, which takes no longer for more rows. Where
        entries are missing, a few steps over some of the rows follow.
        """
        if len(values) <= _ROWS_FOR_STEPS:
            return fit(values, mask, initial_model(values, mask, rank), max_iter=steps)[0]
        whole = np.all([part >= 0 for part in rows], axis=0)
        if whole.sum() < _WHOLE_ROWS * values.shape[1]:
            # So few rows are in all tables that products of columns of different tables would contradict each other.
            few = slice(None, None, len(values) // _ROWS_FOR_STEPS)
            return fit(values[few], mask[few], initial_model(values[few], mask[few], rank), max_iter=_LATE_STEPS)[0]
        used = whole if whole.sum() > _ROWS_FOR_STEPS else np.ones(len(values), dtype=bool)
        model = fit_moments(Moments.of(values[used], mask[used]), rank=rank)
        if mask[used].all():
            return model
        some = np.flatnonzero(used)[:: max(1, int(used.sum()) // _ROWS_FOR_STEPS)]
        return fit(values[some], mask[some], model, max_iter=_LATE_STEPS)[0]


def _named(left: Joined, right: Joined) -> str:
    """Return the name of the stage in which tables are linked; joined tables are named by their rows as well."""
    name = "pair" + "-".join("+".join(map(str, sorted(group.numbers))) for group in (left, right))
    joined = [(group.numbers, *group.rows) for group in (left, right) if len(group.numbers) > 1]
    return f"{name}-{fingerprint([part for group in joined for part in group])[:12]}" if joined else name


def _places(pairs: FloatArray, joined: FloatArray) -> FloatArray:
    """Return how likely each row of the reference belongs where another of its rows was joined to other tables.

    Args:
        pairs: probabilities, entities of the other tables × rows of the reference.
        joined: which of these pairs were joined, as a matrix of the same shape. A row that was joined to no other stays
            where it is.
    """
    places = np.asarray(pairs.T @ joined)
    return places + np.diag((joined.sum(axis=0) == 0).astype(np.float64))


def _partners(home: Joined, left: Joined, number: int, size: int) -> FloatArray:
    """Return which entities of the other tables the rows of a table were joined to, as a coupling."""
    coupling = np.zeros((len(left), size))
    for other in left.numbers:
        both = np.flatnonzero((home.rows_of(other) >= 0) & (home.rows_of(number) >= 0))
        coupling[left.entities_of(other)[home.rows_of(other)[both]], home.rows_of(number)[both]] = 1.0
    return coupling


def model_without_factors(columns: int) -> FactorModel:
    """Return a model that knows nothing: every entry is expected at the mean of its column."""
    return model_from_directions(np.zeros((columns, 1)), noise=1.0)
