"""Match rows of tables with missing entries by one factor model of both tables' columns.

What a row with gaps says about its factors is less sure the more of it is missing. The likelihood of a factor model of
raw columns knows that of each row; factors of filled tables do not. So a link that was found by filled tables is
refined here: the model is fitted to pairs that are sure, and rows are matched by it, in turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from keyless.engine.refine import Matching, identification
from keyless.engine.side import Side
from keyless.likelihood.pairs import FORBIDDEN, pair_log_ratio
from keyless.model.factor_model import FactorModel, fit, information, initial_model
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import scaled
from keyless.progress import Deadline, cut_short, is_late

__all__ = ["has_gaps", "matched_with_gaps"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

_FEW_GAPS = 0.01
"""Share of entries missing up to which filling them loses next to nothing."""

_MOST_COLUMNS = 200
"""Columns of both tables together beyond which a filled table is as good: a row then has enough other entries."""

_RANK = 24
"""Factors of the model at the most; the data drop those they do not support. Ranks below 12 lose much."""

_FOLDS = 4
"""Folds of left rows; each is judged by a model that has not seen their pairs."""

_STEPS = 40
"""Steps of a model's fit, each from the model of the round before."""

_ROUNDS, _PATIENCE = 8, 2
"""The most rounds of matching and fitting, and how many of them may bring nothing."""

_SURE = 0.5
"""Probability from which a pair is used to fit the model."""

_PAIRS_PER_FACTOR = 4
"""Pairs of rows that each factor of the model asks for."""


def has_gaps(left: Side, right: Side) -> bool:
    """Tell whether enough entries are missing, in tables narrow enough, for a model of raw columns to help."""
    missing = max(1.0 - float(side.mask.mean()) for side in (left, right))
    return missing > _FEW_GAPS and left.mask.shape[1] + right.mask.shape[1] <= _MOST_COLUMNS


def matched_with_gaps(
    left: Side, right: Side, found: Matching, *, limits: Limits, deadline: Deadline | None = None
) -> Matching:
    """Return the matching by a model of raw columns, or the one it began with where partners stand out more in that.

    Args:
        left: the left table.
        right: the right table.
        found: the matching by filled tables.
        limits: which pairs may be matched.
        deadline: when the best so far is returned.
    """
    tables = left.scores(), right.scores()
    folds, allowed = found.folds % _FOLDS, limits.mask()
    models: list[FactorModel | None] = [None] * _FOLDS
    best, current, waited = found, found, 0
    for _ in range(_ROUNDS):
        if is_late(deadline):
            break
        rows, columns = (index.astype(np.int64) for index in np.nonzero(current.coupling > _SURE))
        if len(rows) < 2 * _FOLDS * _PAIRS_PER_FACTOR:
            break
        before = current
        with cut_short(deadline):
            ratios = np.empty(found.ratios.shape, dtype=np.float32)
            for fold in range(_FOLDS):
                known = folds[rows] != fold
                models[fold] = model = _fitted(tables, rows[known], columns[known], models[fold])
                own = folds == fold
                ratios[own] = _log_ratios(model, tables, own, None if allowed is None else allowed[own])
            coupling, common = scaled(ratios, current.common)
            current = replace(
                current,
                coupling=coupling,
                common=common,
                ratios=ratios,
                identification=identification(ratios, coupling),
            )
        if current is before:
            break
        if current.strength > best.strength:
            best, waited = current, 0
        else:
            waited += 1
        if waited > _PATIENCE:
            break
    return best


def _fitted(
    tables: tuple[tuple[FloatArray, BoolArray], tuple[FloatArray, BoolArray]],
    rows: IntArray,
    columns: IntArray,
    before: FactorModel | None,
) -> FactorModel:
    """Fit the model of both tables' columns to pairs of rows."""
    (left, left_mask), (right, right_mask) = tables
    values = np.concatenate([left[rows], right[columns]], axis=1)
    mask = np.concatenate([left_mask[rows], right_mask[columns]], axis=1)
    rank = max(1, min(_RANK, min(values.shape) - 1, len(rows) // _PAIRS_PER_FACTOR))
    return fit(values, mask, before or initial_model(values, mask, rank), max_iter=_STEPS)[0]


def _log_ratios(
    model: FactorModel,
    tables: tuple[tuple[FloatArray, BoolArray], tuple[FloatArray, BoolArray]],
    rows: BoolArray,
    allowed: BoolArray | None,
) -> FloatArray:
    (left, left_mask), (right, right_mask) = tables
    width = left.shape[1]
    ratios = pair_log_ratio(
        information(model.columns(slice(0, width)), left[rows], left_mask[rows]),
        information(model.columns(slice(width, None)), right, right_mask),
        allowed=allowed,
        exact_pairs=0,
    )
    return np.where(ratios > FORBIDDEN, ratios, -np.inf)
