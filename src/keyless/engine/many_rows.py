"""Link two tables of many rows: a map from the rows farthest out, then all rows among their likeliest partners.

A map has few numbers, and a thousand rows are enough to find it. Under a map, the partner of a row is near it in the
space of canonical directions, each stretched by how much it tells; so only the nearest rows are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from keyless.assignment import best_matching
from keyless.engine.crossing import Crossing, crossings
from keyless.engine.forms import Form
from keyless.engine.pair import STATED, PairLink, holds_the_same_rows, matched, status_at
from keyless.engine.refine import Matching, Refinement
from keyless.engine.search import Search, outermost
from keyless.engine.side import Side
from keyless.maps.canonical import CanonicalModel, CrossFit
from keyless.model.factors import Factors
from keyless.model.scales import ScaleName
from keyless.pairs.limits import Limits
from keyless.pairs.neighbours import nearest
from keyless.pairs.posterior import FIRST_SHARE, largest, pair_places, posterior, scaled
from keyless.parallel import one_thread
from keyless.progress import Callback, Deadline, is_late

__all__ = ["link_many_rows"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

_SPACES = 2
"""Spaces in which first couplings of the rows farthest out are sought: of a thousand rows each takes seconds."""

_NEAREST = 24
"""Nearest rows of the other table that are looked at, for each row of either table."""

_FORMS: tuple[tuple[ScaleName, int], ...] = (("auto", 40), ("identity", 40), ("identity", 64), ("rank", 40))
"""Scales and most factors that are tried."""

_ROUNDS = 6
"""Rounds of matching and fitting under each of the two forms: the one of the search, and the chosen one."""


@dataclass
class _Rows:
    """All rows of two tables under one form."""

    scales: ScaleName
    left: Factors
    right: Factors
    limits: Limits

    def __post_init__(self) -> None:
        # Which pairs may be matched is asked of listed pairs only; the fit does not need to know.
        self.refinement = Refinement(self.left.compact, self.right.compact, limits=Limits(self.limits.shape))

    def listed(self, model: CanonicalModel) -> sparse.csr_array:
        """Return the pairs of rows that are near each other under a map, as a pattern."""
        rho = model.correlations
        stretch = np.sqrt(rho / (1 - rho**2)).astype(np.float32)
        left = model.left(self.left.compact) * stretch
        right = model.right(self.right.compact) * stretch
        forth, back = nearest(right, left, _NEAREST).points, nearest(left, right, _NEAREST).points
        rows = np.concatenate([np.repeat(np.arange(len(left)), forth.shape[1]), back.ravel()])
        columns = np.concatenate([forth.ravel(), np.repeat(np.arange(len(right)), back.shape[1])])
        there = (rows >= 0) & (columns >= 0)
        there[there] = self.limits.permits(rows[there], columns[there])
        pattern = sparse.csr_array((np.ones(int(there.sum())), (rows[there], columns[there])), shape=self.limits.shape)
        pattern.sum_duplicates()
        return pattern

    def matched(self, models: Sequence[CanonicalModel], whole: CanonicalModel, common: float) -> tuple[Any, Any, float]:
        """Return log-likelihood ratios of listed pairs, their rough probabilities, and how many pairs there are."""
        ratios = self.listed(whole)
        rows, columns = pair_places(ratios)
        fold = self.refinement.folds[rows]
        for k, model in enumerate(models):
            own = fold == k
            ratios.data[own] = model.pair_log_ratios(self.left.compact[rows[own]], self.right.compact[columns[own]])
        coupling, common = scaled(ratios, common)
        return ratios, coupling, common

    def run(self, fit: CrossFit, common: float, *, rounds: int, deadline: Deadline | None) -> Matching:
        """Match and fit in turn, and return the matching in which partners stand out most."""
        best: Matching | None = None
        models: Sequence[CanonicalModel] = fit.models
        if len(models) != len(self.refinement.members):
            models = [fit.whole] * len(self.refinement.members)
        for done in range(1, rounds + 1):
            ratios, coupling, common = self.matched(models, fit.whole, common)
            score = _identification(ratios, coupling)
            found = Matching(fit, self.refinement.folds, coupling, common, ratios, score, done)
            # The first map has been fitted to some of the rows it judges here.
            if best is None or best.rounds == 1 or found.strength > best.strength:
                best = found
            if is_late(deadline) or common < 2:
                break
            fit = self.refinement.fitted(coupling)
            models = fit.models
        if best is None:
            raise RuntimeError("no round was made")
        return best


def link_many_rows(
    left: Side,
    right: Side,
    *,
    limits: Limits | None = None,
    repeats: int = 1,
    seed: int = 0,
    deadline: Deadline | None = None,
    callback: Callback | None = None,
) -> PairLink:
    """Find which rows of two tables of many rows are one entity; see `keyless.engine.link_pair`.

    Probabilities and log-likelihood ratios are sparse: of pairs that were looked at.

    Args:
        left: the left table.
        right: the right table.
        limits: which pairs may be matched, rows in the caller's order; None: all.
        repeats: how often the link is compared with chance at the most.
        seed: of all random numbers.
        deadline: when the best so far is returned.
        callback: called with stage, step, total and objective.
    """
    limits = Limits((len(left), len(right))) if limits is None else limits
    own = limits.reordered(left.order, right.order)
    with one_thread():
        factors = left.factors(), right.factors()
        chosen = [outermost(side) for side in factors]
        some = [
            Factors(side.scores[rows], side.strengths, side.signal_rank)
            for side, rows in zip(factors, chosen, strict=True)
        ]
        among = _among(own, chosen)
        search = Search(some[0], some[1], among, spaces=_SPACES, deadline=deadline, callback=callback)
        found = search.run()
        early: list[Crossing] = []
        if not search.convincing:
            # There may be nothing to find: then all rows are not worth their time.
            sample = Form(left.scales, some[0], some[1], found)
            matches = matched(found.ratios, None)[0]
            early = crossings(sample, matches, limits=Limits(among.shape), repeats=1, seed=seed, deadline=deadline)
        hopeless = bool(early) and early[0].hopeless
        form = _all_rows(left, right, own, found.fit, deadline, brief=hopeless)
        ratios = form.matching.ratios
        chances = posterior(ratios)
        gains = ratios.copy()
        gains.data = ratios.data + chances.odds
        permutation = best_matching(gains).permutation
        rows = np.arange(len(permutation))
        stated = np.asarray(chances.pairs[rows, np.maximum(permutation, 0)]).ravel()
        if not holds_the_same_rows(chances):
            permutation = np.where((permutation >= 0) & (stated >= STATED), permutation, -1)
        compared = (
            early
            if hopeless
            else crossings(
                form,
                permutation,
                limits=Limits(own.shape),
                repeats=repeats,
                seed=seed,
                deadline=deadline,
                callback=callback,
            )
        )
    probability = np.where(permutation >= 0, stated, chances.alone())
    back = [np.argsort(side.order) for side in (left, right)]
    return PairLink(
        permutation=np.append(right.order, -1)[permutation][back[0]],
        probability=np.clip(probability, 0.0, 1.0)[back[0]],
        pairs=sparse.csr_array(chances.pairs[back[0]][:, back[1]]),
        ratios=sparse.csr_array(ratios[back[0]][:, back[1]]),
        every_row=False,
        form=form,
        crossings=tuple(compared),
        agreement=search.agreement,
        sharpness=_sharpness(ratios, permutation),
        status=status_at(deadline),
        starts=tuple(search.tried),
        orders=(left.order, right.order),
    )


def _all_rows(
    left: Side, right: Side, limits: Limits, fit: CrossFit, deadline: Deadline | None, *, brief: bool
) -> Form:
    """Match all rows by a map of some, and choose the form in which partners stand out most; briefly, only match."""
    rows = _Rows(left.scales, left.factors(), right.factors(), limits)
    common = FIRST_SHARE * min(limits.shape)
    first = rows.run(fit, common, rounds=1 if brief else _ROUNDS, deadline=deadline)
    best = Form(left.scales, rows.left, rows.right, first)
    if brief:
        return best
    forms = _FORMS if left.scales == "auto" else tuple((left.scales, rank) for _, rank in _FORMS[1:3])
    looked: list[tuple[int, _Rows, CrossFit]] = []
    for kind, rank in forms:
        if is_late(deadline):
            return best
        other = _Rows(kind, left.factors(kind, rank), right.factors(kind, rank), limits)
        fitted = other.refinement.fitted(first.coupling)
        matching = other.run(fitted, first.common, rounds=1, deadline=deadline)
        looked.append((_mutual(matching.ratios), other, fitted))
    _, other, fitted = max(looked, key=lambda each: each[0])
    second = other.run(fitted, first.common, rounds=_ROUNDS, deadline=deadline)
    if _mutual(second.ratios) < _mutual(first.ratios):
        return best
    return Form(other.scales, other.left, other.right, second)


def _among(limits: Limits, chosen: Sequence[IntArray]) -> Limits:
    """Return the limits of some left and some right rows."""
    shape = len(chosen[0]), len(chosen[1])
    if limits.trivial:
        return Limits(shape)
    groups = None if limits.groups is None else (limits.groups[0][chosen[0]], limits.groups[1][chosen[1]])
    parts = []
    for pairs in (limits.known, limits.forbidden):
        places = [np.full(size, -1, dtype=np.int64) for size in limits.shape]
        for place, rows in zip(places, chosen, strict=True):
            place[rows] = np.arange(len(rows))
        moved = np.stack([places[0][pairs[:, 0]], places[1][pairs[:, 1]]], axis=1)
        parts.append(moved[(moved >= 0).all(axis=1)])
    return Limits(shape, groups, *parts)


def _identification(ratios: sparse.csr_array, coupling: sparse.csr_array) -> float:
    """Return the mean log-probability of partners among the rows they were looked for, in nats above a guess."""
    weight = float(coupling.sum())
    if weight <= 0:
        return 0.0
    gained = 2 * float((coupling.data * ratios.data).sum())
    for line, size, other in zip(pair_places(ratios), ratios.shape, ratios.shape[::-1], strict=True):
        highest = largest(line, ratios.data, size)
        sums = np.bincount(line, np.exp(ratios.data - highest[line]), size)
        total = np.where(sums > 0, np.log(np.maximum(sums, 1e-300)) + np.where(sums > 0, highest, 0.0), 0.0)
        gained -= float(np.bincount(line, coupling.data, size) @ (total - np.log(other)))
    return gained / (2 * weight)


def _mutual(ratios: sparse.csr_array) -> int:
    """Return how many pairs are each other's first choice, by maps that have not seen them.

    Unlike sums of log-likelihoods this does not depend on how heavy tails are taken to be, which differs from form to
    form; partners that a form does not tell from others are lost to it.
    """
    rows, columns = pair_places(ratios)
    first = ratios.data >= largest(rows, ratios.data, ratios.shape[0])[rows]
    return int(np.sum(first & (ratios.data >= largest(columns, ratios.data, ratios.shape[1])[columns])))


def _sharpness(ratios: sparse.csr_array, permutation: IntArray) -> float:
    """Return the share of matched rows that are the first choice of their partner, averaged over both directions."""
    rows, columns = pair_places(ratios)
    matched = permutation[rows] == columns
    if not matched.any():
        return 0.0
    best = [
        ratios.data[matched] >= largest(line, ratios.data, size)[line[matched]]
        for line, size in ((rows, ratios.shape[0]), (columns, ratios.shape[1]))
    ]
    return float(np.mean(best))
