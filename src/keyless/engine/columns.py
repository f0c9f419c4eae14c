"""Match rows by one factor model of the columns of both tables.

A map between factors asks only that some factors of both tables go together. Where both tables show the same factors,
one model of all columns says more: it needs fewer rows, and it knows how little a row with gaps says. In turn, the
model is fitted to pairs that are sure, and rows are matched by the model. The first pairs come from a search for a map,
or from a rotation that turns the factors of one table onto those of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from keyless.arrays import BoolArray, IntArray, NumpyArray
from keyless.engine.forms import Form
from keyless.engine.refine import Matching, Refinement, identification
from keyless.engine.search import STANDS_OUT
from keyless.engine.side import Side
from keyless.maps.rotations import best_alignment
from keyless.model.factor_model import (
    FactorModel,
    fit,
    fit_at_rank,
    fit_table,
    information,
    initial_model,
    padded,
    posterior,
)
from keyless.model.factors import Factors, whitened
from keyless.pairs.likelihood import FORBIDDEN, pair_log_ratio
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import scaled
from keyless.progress import Deadline, cut_short, is_late
from keyless.sizes import FEW_ROWS

__all__ = ["MOST_COLUMNS", "ColumnModel", "are_few", "has_gaps", "is_narrow", "stands_out", "suits"]

_FEW_GAPS = 0.01
"""Share of missing entries up to which a table counts as one without gaps: filling so few loses next to nothing."""

MOST_COLUMNS = 200
"""Columns of all tables together up to which a model of them is fitted in seconds."""

_FOLDS, _FINER = 4, 4
"""Into how many folds left rows are dealt, each judged by a model that has not seen its pairs; and into how many parts
each fold is split at the end, so that every model lacks fewer pairs."""

_STEPS, _FINER_STEPS = 40, 10
"""The most steps in which a model is fitted that begins with the model of the round before; and the most steps of one
that begins with a model that lacks a few more pairs."""

_ROUNDS, _PATIENCE = 8, 2
"""The most rounds of matching and fitting, and how many rounds in a row may bring no better matching."""

_SURE = 0.5
"""Probability from which a pair is used to fit the model."""

_PAIRS_PER_FACTOR = 2
"""Pairs of rows that the model needs for each factor. The fit drops factors that the data do not support."""

_RANK = 24
"""The most factors of the model where the factors of each table by itself were not counted. With fewer than 12 much is
lost."""

_MODEL_ROWS = 300
"""The most rows of a table that its own model is fitted to: more rows do not find more factors that tell a rotation."""

_MORE_FACTORS = 5
"""How many more factors both tables together may show than the one with more factors."""

_LITTLE_SEEN = 0.5
"""Share of observed entries below which few rows show the factors so badly that several models and many rotations are
tried."""

_KICKS = 3
"""Rounds in which rotations near the best one are tried, too, where rows are few and few entries are observed."""

_HELD_NOISE = 0.01
"""Part of a column's variance that is taken to be noise in models of tables with so few observed entries that the noise
cannot be estimated."""

_FEWEST_PAIRS = 16
"""Sure pairs below which no model is fitted."""

_MOST_ROWS = 0.5
"""Share of the smaller table's rows that must have a partner in a link that ends the search at once."""


def has_gaps(left: Side, right: Side) -> bool:
    """Tell whether enough entries are missing for a model of raw columns to know more than filled tables."""
    return max(1.0 - float(side.mask.mean()) for side in (left, right)) > _FEW_GAPS


def is_narrow(left: Side, right: Side) -> bool:
    """Tell whether the tables have few enough columns for a model of all of them to be quick."""
    return bool(left.mask.shape[1] + right.mask.shape[1] <= MOST_COLUMNS)


def are_few(left: Side, right: Side) -> bool:
    """Tell whether the tables have few enough rows for a model of all columns to be found from nothing."""
    return max(len(left), len(right)) <= FEW_ROWS


def suits(left: Side, right: Side) -> bool:
    """Tell whether a model of all columns is quick, and may know more than a map between factors."""
    return is_narrow(left, right) and (are_few(left, right) or has_gaps(left, right))


def stands_out(matching: Matching) -> bool:
    """Tell whether at least half of the rows have partners, and these stand out clearly."""
    shape = matching.ratios.shape
    enough = matching.common >= _MOST_ROWS * min(shape)
    return bool(enough and matching.identification >= STANDS_OUT * np.log(max(shape)))


class ColumnModel:
    """Two tables whose rows are matched by a model of all columns, which is fitted to the matches, in turn.

    Args:
        left: the left table.
        right: the right table.
        limits: which pairs may be matched.
        deadline: when the best so far is returned.
    """

    def __init__(self, left: Side, right: Side, *, limits: Limits, deadline: Deadline | None = None) -> None:
        self.tables = left.scores(), right.scores()
        self.largest_rank = max(left.max_rank, 1)
        self.rank = min(self.largest_rank, _RANK)
        self.limits, self.deadline, self.allowed = limits, deadline, limits.mask()
        # Where a row may be matched to few others only, as inside groups, each of them is likelier before any number is
        # compared.
        self.head_start = limits.head_starts()
        self.gaps = has_gaps(left, right)
        self.seen = min(float(side.mask.mean()) for side in (left, right))
        self.refinement = Refinement(left.factors().compact, right.factors().compact, limits=limits)
        # Rows are dealt to folds along the first factor, so that neither chance nor the order of rows decides. A model
        # that has not seen a fold has not seen the parts of the fold either.
        place = np.argsort(np.argsort(self.refinement.left[:, 0], kind="stable"))
        self.folds = place % _FOLDS
        self.parts = self.folds * _FINER + place // _FOLDS % _FINER

    def found(self, *, quick: bool = False) -> tuple[str, NumpyArray, Matching | None] | None:
        """Turn the factors of one table onto those of the other, and return what that leads to.

        Where rows are many, only the tables' own models are tried, and no matching is made: the search for a map
        refines the coupling.

        Args:
            quick: whether only the tables' own models are tried.

        Returns:
            The name and the coupling of the best rotation, and the best matching from it; None where time was up
            before any rotation was found.
        """
        few = max(self.limits.shape) <= FEW_ROWS
        sparse = self.seen < _LITTLE_SEEN
        kicks = _KICKS if few and sparse and not quick else 0
        best: tuple[str, NumpyArray, Matching | None] | None = None
        with cut_short(self.deadline):
            rows = [np.linspace(0, size - 1, min(size, _MODEL_ROWS)).astype(np.int64) for size in self.limits.shape]
            tables = [(values[some], mask[some]) for (values, mask), some in zip(self.tables, rows, strict=True)]
            models = [fit_table(*table, largest_rank=self.largest_rank) for table in tables]
            self.rank = min(max(model.rank for model in models) + _MORE_FACTORS, self.largest_rank)
            plan = _plan(models, self.largest_rank, sparse=sparse)
            for kind, rank in plan if few and not quick else plan[:1]:
                views = [_model(kind, rank, model, *table) for model, table in zip(models, tables, strict=True)]
                infos = [information(view, *table) for view, table in zip(views, self.tables, strict=True)]
                turned = best_alignment(*infos, allowed=self.allowed, kicks=kicks)
                coupling = turned.coupling.astype(np.float32)
                name = f"{turned.start}, factors turned, {kind} rank {rank}"
                if best is None:
                    best = name, coupling, None
                matching = self.run(coupling) if few else None
                if best[2] is None or (matching is not None and matching.better_than(best[2])):
                    best = name, coupling, matching
                if is_late(self.deadline) or (best[2] is not None and stands_out(best[2])):
                    break
        return best

    def run(self, coupling: NumpyArray, *, common: float | None = None) -> Matching | None:
        """Return the best matching that is reached from a coupling; None where too few of its pairs are sure."""
        best: Matching | None = None
        models: list[FactorModel | None] = [None] * _FOLDS
        common, waited = float(coupling.sum()) if common is None else common, 0
        for done in range(1, _ROUNDS + 1):
            rows, columns = self._sure(coupling)
            if len(rows) < _FEWEST_PAIRS or (best is not None and is_late(self.deadline)):
                break
            models = [
                self._fitted(rows[self.folds[rows] != k], columns[self.folds[rows] != k], models[k])
                for k in range(_FOLDS)
            ]
            ratios = self._ratios(self.folds, models)
            before = coupling
            coupling, common = scaled(ratios, common)
            fit = self.refinement.fitted(coupling)
            found = Matching(
                fit, self.refinement.folds.of_rows, coupling, common, ratios, identification(ratios, coupling), done
            )
            if best is None or found.strength > best.strength:
                best, kept, waited = found, list(models), 0
            else:
                waited += 1
            if waited > _PATIENCE or float(abs(coupling - before).sum()) < 1e-3 * common:
                break
        return best if best is None or is_late(self.deadline) else self._finer(best, kept)

    def in_factors(self, form: Form) -> Form:
        """Return a form with the factors that the model of all columns gives the rows of either table."""
        rows, columns = self._sure(form.matching.coupling)
        if len(rows) < _FEWEST_PAIRS:
            return form
        model = self._fitted(rows, columns, None)
        width = self.tables[0][0].shape[1]
        factors = []
        for part, (values, mask) in zip((slice(0, width), slice(width, None)), self.tables, strict=True):
            means = posterior(information(model.columns(part), values, mask))[0]
            strengths = means.std(axis=0)
            order = np.argsort(-strengths, kind="stable")
            factors.append(Factors(whitened(means[:, order]), strengths[order]))
        refinement = Refinement(factors[0].compact, factors[1].compact, limits=self.limits)
        matching = replace(form.matching, fit=refinement.fitted(form.matching.coupling), folds=refinement.folds.of_rows)
        return replace(form, left=factors[0], right=factors[1], matching=matching)

    def _finer(self, found: Matching, models: Sequence[FactorModel | None]) -> Matching:
        """Return the matching of few rows by models that lack fewer pairs, if partners stand out more then."""
        rows, columns = self._sure(found.coupling)
        if not _FEWEST_PAIRS <= len(rows) <= FEW_ROWS:
            return found
        finer = [
            self._fitted(rows[self.parts[rows] != k], columns[self.parts[rows] != k], models[k // _FINER], _FINER_STEPS)
            for k in range(_FOLDS * _FINER)
        ]
        ratios = self._ratios(self.parts, finer)
        coupling, common = scaled(ratios, found.common)
        better = replace(
            found,
            coupling=coupling,
            common=common,
            ratios=ratios,
            identification=identification(ratios, coupling),
        )
        return better if better.strength > found.strength else found

    def _sure(self, coupling: NumpyArray) -> tuple[IntArray, IntArray]:
        rows, columns = np.nonzero(coupling > _SURE)
        return rows.astype(np.int64), columns.astype(np.int64)

    def _fitted(
        self, rows: IntArray, columns: IntArray, before: FactorModel | None, steps: int = _STEPS
    ) -> FactorModel:
        """Fit the model of both tables' columns to pairs of rows."""
        (left, left_mask), (right, right_mask) = self.tables
        values = np.concatenate([left[rows], right[columns]], axis=1)
        mask = np.concatenate([left_mask[rows], right_mask[columns]], axis=1)
        rank = max(1, min(self.rank, min(values.shape) - 1, len(rows) // _PAIRS_PER_FACTOR))
        return fit(values, mask, before or initial_model(values, mask, rank), max_iter=steps)[0]

    def _ratios(self, folds: IntArray, models: Sequence[FactorModel | None]) -> NumpyArray:
        """Return the log-likelihood ratios of all pairs, each left row by the model of its fold; −∞ where forbidden."""
        (left, left_mask), (right, right_mask) = self.tables
        width = left.shape[1]
        ratios = np.empty(self.limits.shape, dtype=np.float32)
        for fold, model in enumerate(models):
            own = folds == fold
            if model is None or not own.any():
                continue
            found = pair_log_ratio(
                information(model.columns(slice(0, width)), left[own], left_mask[own]),
                information(model.columns(slice(width, None)), right, right_mask),
                allowed=None if self.allowed is None else self.allowed[own],
                exact_pairs=0,
            )
            ratios[own] = np.where(found > FORBIDDEN, found, -np.inf)
        return ratios + self.head_start


def _plan(models: Sequence[FactorModel], largest_rank: int, *, sparse: bool) -> list[tuple[str, int]]:
    """Return kinds and ranks of the models that are tried: the tables' own, and others with the larger rank or more.

    The rank of a table with few observed entries is found too small more often than too large, and one factor too many
    does little harm. Tables with many observed entries need no other models if both have the same rank.
    """
    rank = max(model.rank for model in models)
    plan = [("own", rank)]
    if sparse or models[0].rank != models[1].rank:
        plan += [("common", rank), ("common", rank + 1)]
    if sparse:
        plan += [("held", rank), ("common", rank + 2)]
    return [(kind, wanted) for kind, wanted in plan if wanted <= max(largest_rank, rank)]


def _model(kind: str, rank: int, own: FactorModel, values: NumpyArray, mask: BoolArray) -> FactorModel:
    """Return a model of one table with `rank` factors."""
    if kind == "own":
        return padded(own, rank)
    return fit_at_rank(values, mask, rank, held_noise=_HELD_NOISE if kind == "held" else None)
