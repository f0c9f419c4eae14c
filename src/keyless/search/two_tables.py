"""Link two tables that share neither key nor column: from raw numbers to a correspondence and what it was judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log
from typing import Any, get_args

import numpy as np

from keyless.arrays import as_matrix, check_count, to_numpy
from keyless.completion import SoftImpute
from keyless.errors import CONVERGED, InputError, Status
from keyless.likelihood.canonical import (
    Candidate,
    CanonicalModel,
    Matcher,
    cross_covariance,
    fit_model,
    hardened,
)
from keyless.model.factors import Factors, principal_factors
from keyless.model.scales import ScaleName, scale_table
from keyless.progress import Deadline
from keyless.search.options import SearchOptions, in_turn, one_thread
from keyless.search.population import Population, Start
from keyless.transport import sinkhorn

__all__ = ["PairLink", "coupled", "link_two_tables"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_RANKS = (6, 12, 20, 40)
"""Numbers of factors that are tried when a correspondence is given its final form."""


@dataclass(frozen=True, eq=False)
class PairLink:
    """The correspondence found between two tables, and what it was judged by.

    Attributes:
        permutation: `permutation[i]` is the row of the table for reference row i; −1 where no allowed partner is left.
        score: cross-fitted information, in nats per row: what a match tells, by rows that no fit has seen.
        agreement: how many candidates of the search found (nearly) this correspondence.
        settled: whether that was enough to end the search.
        scales: the kind of column scales chosen, `"auto"` meaning column by column.
        status: how the search ended, with advice.
        starts: how the candidates of the search came to be, and their scores.
        reference_factors: the reference as whitened factors, on the chosen scales and as many as were chosen.
        table_factors: likewise the table.
        allowed: which pairs might be matched; None: all.
        options: what the search might spend.
        seed: what its random numbers came from.
    """

    permutation: IntArray
    score: float
    agreement: int
    settled: bool
    scales: str
    status: Status
    starts: tuple[Start, ...]
    reference_factors: Factors
    table_factors: Factors
    allowed: BoolArray | None = field(default=None, repr=False)
    options: SearchOptions = field(default_factory=SearchOptions, repr=False)
    seed: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """How many factors of the reference and of the table are used."""
        return self.reference_factors.rank, self.table_factors.rank

    @cached_property
    def model(self) -> CanonicalModel:
        """The canonical pairs of the correspondence."""
        reference, table = self.reference_factors.scores, self.table_factors.scores
        return fit_model(cross_covariance(reference, table, self.permutation))

    @cached_property
    def log_ratios(self) -> FloatArray:
        """Log-likelihood ratio "same entity" against "strangers" of all pairs; −∞ where not allowed."""
        ratios = self.model.log_ratios(self.reference_factors.scores, self.table_factors.scores)
        return ratios if self.allowed is None else np.where(self.allowed, ratios, -np.inf)

    @cached_property
    def coupling(self) -> FloatArray:
        """The soft correspondence: argmax ⟨P, log_ratios⟩ − Σ P log P over unit row and column sums."""
        return coupled(self.log_ratios)

    def in_own_order(self) -> tuple[Factors, Factors, IntArray, BoolArray | None]:
        """Return both tables' factors, the permutation and what is allowed, on rows in an order of their own.

        So the order the rows came in cannot matter to what random numbers do with them.
        """
        rows, columns = self.reference_factors.row_order, self.table_factors.row_order
        place = np.append(np.argsort(columns), -1)
        allowed = None if self.allowed is None else self.allowed[np.ix_(rows, columns)]
        factors = self.reference_factors.rows(rows), self.table_factors.rows(columns)
        return *factors, place[self.permutation[rows]], allowed

    @property
    def objective(self) -> float:
        """Mean cost of the matches + ½ Σ log(1 − ρ²), that is minus their mean log-likelihood ratio."""
        paired = np.flatnonzero(self.permutation >= 0)
        return -float(self.log_ratios[paired, self.permutation[paired]].mean()) if paired.size else 0.0


def link_two_tables(
    reference: Any,
    table: Any,
    *,
    reference_mask: Any = None,
    table_mask: Any = None,
    scales: ScaleName = "auto",
    allowed: Any = None,
    start_couplings: Sequence[tuple[str, Any]] = (),
    options: SearchOptions | None = None,
    n_jobs: int = 1,
    seed: int = 0,
    callback: Callable[[str, int, int, float], object] | None = None,
    deadline: Deadline | None = None,
) -> PairLink:
    """Find the permutation under which matched rows most likely are one entity, judged by rows held out.

    Both tables have as many rows, in unknown order; no column need be common. Columns are put on their own scales
    first, missing entries are filled by a low-rank fit of each table alone. Neither the order of rows and columns nor
    the units and signs of columns matter.

    Args:
        reference: rows × columns.
        table: as many rows × any columns.
        reference_mask: True where observed; None: everything is.
        table_mask: likewise for the table.
        scales: how columns are scaled; `"auto"` also tries all columns as they are and all as ranks.
        allowed: rows × rows, False for pairs that must not be matched; None: all may.
        start_couplings: named couplings, rows × rows, that are tried before all others.
        options: what the search may spend.
        n_jobs: how many candidates are worked on at a time; the answer does not depend on it.
        seed: of all random numbers.
        callback: called with the stage, the step in it, the steps it has, and the best score so far.
        deadline: when the best so far is returned.

    Example:
        >>> import numpy as np
        >>> latent = np.random.default_rng(0).normal(size=(40, 3))
        >>> rows = np.random.default_rng(1).permutation(40)
        >>> one, two = latent @ [[1, 2, 0, 1], [0, 1, 3, 1], [1, 0, 1, 2]], latent @ [[1, 0, 1], [1, 2, 0], [0, 1, 1]]
        >>> link = link_two_tables(one, two[rows])
        >>> bool(np.array_equal(rows[link.permutation], np.arange(40)))
        True
    """
    options = SearchOptions() if options is None else options
    n_jobs = check_count(n_jobs, name="n_jobs")
    if scales not in get_args(ScaleName):
        raise InputError(f"scales: must be one of {', '.join(map(repr, get_args(ScaleName)))}; found {scales!r}.")
    first = _Views(reference, reference_mask, name="reference", max_rank=options.max_rank)
    second = _Views(table, table_mask, name="table", max_rank=options.max_rank)
    n_rows = len(first.values)
    if len(second.values) != n_rows:
        raise InputError(
            f"table: must have as many rows as the reference, {n_rows}; found {len(second.values)}. "
            "Leave out rows, or link by the joint route."
        )
    with one_thread():
        # Work on rows in an order of their own, so that the one they came in cannot matter.
        rows, columns = (views.sort_rows(scales) for views in (first, second))
        pairs = _checked_pairs(allowed, n_rows, name="allowed", dtype=bool)
        search = _TwoTables(
            first,
            second,
            scales=scales,
            options=options,
            seed=seed,
            allowed=None if pairs is None else pairs[np.ix_(rows, columns)],
            couplings=[
                (name, np.asarray(_checked_pairs(coupling, n_rows, name=name)[np.ix_(rows, columns)], np.float32))
                for name, coupling in start_couplings
            ],
            n_jobs=n_jobs,
            deadline=deadline,
            report=callback,
        )
        found = search.run()
    back = np.append(columns, -1)
    permutation = np.empty(n_rows, dtype=np.int64)
    permutation[rows] = back[found.permutation]
    return replace(
        found,
        permutation=permutation,
        reference_factors=found.reference_factors.rows(np.argsort(rows)),
        table_factors=found.table_factors.rows(np.argsort(columns)),
        allowed=pairs,
    )


def coupled(log_ratios: FloatArray) -> FloatArray:
    """Return argmax ⟨P, log_ratios⟩ − Σ P log P over P with unit row and column sums; pairs at −∞ get nothing."""
    forbidden = np.isneginf(log_ratios)
    if not forbidden.any():
        return np.asarray(sinkhorn(-log_ratios, epsilon=1.0, tolerance=1e-4, max_iter=2000).coupling)
    # Finite, since some row may have no partner at all.
    finite = np.where(forbidden, 0.0, log_ratios)
    cost = np.where(forbidden, 1e6 - finite.min(), -finite)
    return np.where(forbidden, 0.0, sinkhorn(cost, epsilon=1.0, tolerance=1e-4, max_iter=2000).coupling)


class _Views:
    """One table, and its factors on every scale asked for."""

    def __init__(self, values: Any, mask: Any, *, name: str, max_rank: int) -> None:
        partly = mask is not None
        table = to_numpy(as_matrix(values, name=name, allow_missing=partly, allow_infinite=partly))
        self.mask = np.ones(table.shape, dtype=bool)
        if mask is not None:
            self.mask = to_numpy(mask).astype(bool)
            if self.mask.shape != table.shape:
                raise InputError(
                    f"{name}_mask: must have the shape of the values, {table.shape}; found {self.mask.shape}."
                )
            table = np.where(self.mask, table, 0.0)
        self.values = np.asarray(as_matrix(table, name=name), dtype=np.float64)
        self.max_rank = max_rank
        self._factors: dict[str, Factors] = {}

    def sort_rows(self, scales: ScaleName) -> IntArray:
        """Put the rows in an order that depends on what they hold only, and return it."""
        factors = self.factors(scales)
        order = factors.row_order
        self.values, self.mask = self.values[order], self.mask[order]
        self._factors = {scales: factors.rows(order)}
        return order

    def factors(self, scales: ScaleName) -> Factors:
        """Return the principal factors on a kind of scale."""
        if scales not in self._factors:
            scores, _ = scale_table(self.values, self.mask, kind=scales)
            if not self.mask.all():
                scores = self._filled(scores)
            self._factors[scales] = principal_factors(scores, max_rank=self.max_rank)
        return self._factors[scales]

    def _filled(self, scores: FloatArray) -> FloatArray:
        """Return standard scores with the missing ones filled by a low-rank fit of the others."""
        seen = self.mask.any(axis=0)
        if self.mask.sum() < 10 or not scores.any():
            return scores
        observed = np.where(self.mask, scores, np.nan)[:, seen]
        filled = SoftImpute(offsets="none", random_state=0).fit_transform(observed)
        return np.asarray(filled, dtype=np.float64)


@dataclass
class _TwoTables:
    """The whole search on tables whose rows stand in their own order."""

    first: _Views
    second: _Views
    scales: ScaleName
    options: SearchOptions
    seed: int
    allowed: BoolArray | None
    couplings: Sequence[tuple[str, FloatArray]]
    n_jobs: int
    deadline: Deadline | None
    report: Callable[[str, int, int, float], object] | None

    def run(self) -> PairLink:
        reference, table = self.first.factors(self.scales), self.second.factors(self.scales)
        runs = [(reference, table, self.options)]
        ranks = set(_RANKS)
        if any(3 <= factors.signal_rank <= 0.6 * factors.rank for factors in (reference, table)):
            # Low rank plus noise: the noise factors only disturb. Look without them first, briefly.
            rank = max(reference.signal_rank, table.signal_rank)
            ranks.add(rank)
            brief = replace(self.options, beams=False, rounds=min(1, self.options.rounds), attempts=1)
            runs.insert(0, (reference.truncated(rank), table.truncated(rank), brief))
        links: list[PairLink] = []
        for one, two, options in runs:
            population = self._population(one, two, options)
            settled = population.search()
            link = self._finished(population, ranks, settled=settled)
            links.append(link)
            if population.late or (settled and link.score > log(len(link.permutation))):
                break
        best = max(links, key=lambda link: (link.settled, link.score))
        starts = tuple(start for link in links for start in link.starts)
        return replace(best, starts=starts, status=self._status(best, late=population.late))

    def _population(self, reference: Factors, table: Factors, options: SearchOptions) -> Population:
        return Population(
            reference,
            table,
            options=options,
            rng=np.random.default_rng(self.seed),
            allowed=self.allowed,
            couplings=self.couplings,
            n_jobs=self.n_jobs,
            deadline=self.deadline,
            report=self.report,
        )

    def _finished(self, population: Population, ranks: set[int], *, settled: bool) -> PairLink:
        """Refit the best correspondence on every scale and rank; keep the one of highest score."""
        start = population.polished().permutation
        kinds: tuple[ScaleName, ...] = ("auto", "rank", "identity") if self.scales == "auto" else (self.scales,)
        if population.late:
            kinds, ranks = (self.scales,), {self.options.max_rank}
        forms: list[tuple[str, Factors, Factors]] = []
        for kind in kinds:
            one, two = self.first.factors(kind), self.second.factors(kind)
            sizes = {(min(rank, one.rank), min(rank, two.rank)) for rank in ranks}
            forms += [(kind, one.truncated(p), two.truncated(q)) for p, q in sorted(sizes)]

        def refit(_: str, one: Factors, two: Factors) -> Candidate:
            return _refitted(one.compact, two.compact, start, self.allowed)

        candidates = list(in_turn(refit, forms, n_jobs=self.n_jobs))
        chosen = max(range(len(forms)), key=lambda k: (round(candidates[k].score, 6), -k))
        chosen_kind, one, two = forms[chosen]
        return PairLink(
            candidates[chosen].permutation,
            candidates[chosen].score,
            population.agreement,
            settled,
            chosen_kind,
            CONVERGED,
            tuple(population.starts),
            one,
            two,
            self.allowed,
            self.options,
            self.seed,
        )

    def _status(self, link: PairLink, *, late: bool) -> Status:
        if late:
            return Status("max_time", "Stopped at the time limit with the best so far. Give it more time.")
        if link.settled:
            return CONVERGED
        return Status(
            "max_iter",
            f"No {self.options.agreeing} candidates found the same correspondence. Raise rounds or beam_width, or give "
            "known pairs; the tables may also share too little to be linked.",
        )


def _refitted(
    reference: FloatArray, table: FloatArray, permutation: IntArray, allowed: BoolArray | None, *, steps: int = 6
) -> Candidate:
    """Let a correspondence settle under other factors: a few soft steps, then hard ones."""
    matcher = Matcher(reference, table, allowed=allowed)
    cross = cross_covariance(reference, table, permutation)
    for _ in range(steps):
        cross, _ = matcher.step(cross)
    return hardened(reference, table, cross, allowed=allowed)


def _checked_pairs(pairs: Any, n_rows: int, *, name: str, dtype: Any = np.float64) -> Any:
    """Return one entry per pair of rows, or say what is wrong with it; None stays None."""
    if pairs is None:
        return None
    matrix = to_numpy(pairs).astype(dtype)
    if matrix.shape != (n_rows, n_rows):
        raise InputError(f"{name}: must have one entry per pair of rows, ({n_rows}, {n_rows}); found {matrix.shape}.")
    if dtype is not bool and not (np.isfinite(matrix).all() and (matrix >= 0).all()):
        raise InputError(f"{name}: must hold finite weights, zero or positive.")
    return matrix
