"""Values at a limit of detection: a device that cannot measure below, or above, reports the limit itself.

Such an entry says only that the true value lies beyond. Taken for a number it bends the linear relations between
columns by which tables are linked, so it is better taken for missing. Not every value that is frequent is a limit: a
pixel may be black and a count 0 in truth. The other columns tell: a model of the table, fitted without these entries,
foretells most of them beyond a limit, but on both sides of a value like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from keyless.arrays import BoolArray, FloatArray
from keyless.model.factor_model import fit_table, information, posterior
from keyless.model.scales import ScaleName, choose_scale, kinds_of_columns, scale_table
from keyless.model.shards import sampled

__all__ = ["DetectionLimits", "expected_scores", "limits_of_columns", "scales_of_limits", "within_limits"]

_LEAST_SHARE = 0.1
"""The lowest, or highest, value of a column may be a limit if at least this share of its entries stand there: fewer
bend a linear relation hardly more than noise does."""

_FAR_COMMONER = 5.0
"""A limit is at least this many times as common as any other value of its column; the lowest value of counts is not."""

_LEAST_SEEN = 0.25
"""Least share of a column's entries that must not be at a limit: from fewer a model learns nothing about the column."""

_LEAST_OF_TABLE = 0.02
"""If a smaller share of a table's entries are at limits, they are left as they are: they change its factors less than
noise does, and a table with gaps takes longer."""

_FEWEST_ROWS, _SAMPLE = 20, 5_000
"""The fewest rows of a table in which limits are sought, and the most rows that are looked at. A table of up to so many
rows is looked at as a whole, so that its answer does not depend on the order of its rows."""

_FACTORS, _STEPS = 10, 40
"""The most factors of the model that foretells entries at a limit, and the most steps by which it is fitted. It must
only tell on which side of the limit an entry is foretold."""

_MOST = 0.5
"""A value is a limit if more than this share of the entries there are foretold beyond it. For a value like any other
the share would be a half at the most; for real pixels, counts and expression levels it was 0.0 to 0.4, for values cut
off at a limit 0.6 to 1."""


@dataclass(frozen=True)
class DetectionLimits:
    """Where the values of a column are cut off.

    Attributes:
        ends: its lowest value, its highest, or both: values that stand for all that lie beyond.
        scale: the scale on which the column looks most normal, given how many of its values lie beyond. By the values
            between its limits alone another scale would be chosen.
    """

    ends: tuple[float, ...]
    scale: ScaleName


def limits_of_columns(values: Any, mask: Any, rng: np.random.Generator) -> dict[int, DetectionLimits]:
    """Return the limits of detection of each column that has any.

    Args:
        values: rows × columns.
        mask: True where observed.
        rng: draws the rows that are looked at, where they are many.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> table = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 5)) + 0.1 * rng.normal(size=(200, 5))
        >>> table[:, 1] = np.maximum(table[:, 1], 0.0)
        >>> limits_of_columns(table, np.ones(table.shape, dtype=bool), rng)
        {1: DetectionLimits(ends=(0.0,), scale='identity')}
    """
    rows = sampled(len(values), _SAMPLE, rng)
    table, seen = np.asarray(values[rows], dtype=np.float64), np.asarray(mask[rows], dtype=bool)
    if len(rows) < _FEWEST_ROWS:
        return {}
    looked = {k: _frequent_ends(table[seen[:, k], k]) for k in range(table.shape[1])}
    possible = {k: limits for k, limits in looked.items() if limits.ends}
    if not possible:
        return {}
    inside = within_limits(table, seen, possible)
    kinds = kinds_of_columns("auto", table.shape[1], scales_of_limits(possible))
    scores, scales = scale_table(table, inside, kind=kinds)
    expected = expected_scores(scores, inside, largest_rank=_FACTORS, max_iter=_STEPS)
    found: dict[int, DetectionLimits] = {}
    for k, limits in possible.items():
        places = scales[k].apply(np.array(limits.ends))
        outward = np.sign(places - np.median(scores[inside[:, k], k]))
        at = [expected[seen[:, k] & (table[:, k] == end), k] for end in limits.ends]
        told = zip(limits.ends, at, outward, places, strict=True)
        ends = tuple(end for end, mine, out, place in told if np.mean(out * (mine - place) > 0) > _MOST)
        if ends:
            found[k] = replace(limits, ends=ends)
    at_limits = float(np.mean(seen & ~within_limits(table, seen, found)))
    return found if at_limits >= _LEAST_OF_TABLE else {}


def scales_of_limits(limits: Mapping[int, DetectionLimits]) -> dict[int, ScaleName]:
    """Return the scale of each column that has limits."""
    return {k: own.scale for k, own in limits.items()}


def within_limits(values: Any, mask: Any, limits: Mapping[int, DetectionLimits]) -> BoolArray:
    """Return which entries are observed and not at a limit of their column.

    Args:
        values: rows × columns.
        mask: True where observed.
        limits: as `limits_of_columns` returns them.
    """
    inside = np.array(mask, dtype=bool)
    for k, own in limits.items():
        inside[:, k] &= ~np.isin(values[:, k], own.ends)
    return inside


def expected_scores(scores: FloatArray, mask: BoolArray, *, largest_rank: int, max_iter: int = 200) -> FloatArray:
    """Return what a factor model of a table expects at every entry; 0 in columns of which nothing is observed.

    Args:
        scores: standard scores, 0 where missing.
        mask: True where observed.
        largest_rank: the most factors of the model.
        max_iter: the most steps by which it is fitted.
    """
    seen = mask.any(axis=0)
    values, observed = scores[:, seen], mask[:, seen]
    expected = np.zeros(scores.shape)
    rank = max(1, min(largest_rank, min(values.shape) - 1))
    model = fit_table(values, observed, largest_rank=rank, max_iter=max_iter)
    expected[:, seen] = posterior(information(model, values, observed))[0] @ model.loadings.T + model.offsets
    return expected


def _frequent_ends(column: FloatArray) -> DetectionLimits:
    """Return the lowest and the highest value of a column, as far as they may be limits."""
    values, counts = np.unique(column, return_counts=True)
    if len(values) < 3:
        return DetectionLimits((), "auto")
    shares = counts / len(column)
    least = max(_LEAST_SHARE, _FAR_COMMONER * float(shares[1:-1].max()))
    low, high = (float(shares[end]) if shares[end] >= least else 0.0 for end in (0, -1))
    if low + high == 0 or low + high > 1 - _LEAST_SEEN:
        return DetectionLimits((), "auto")
    ends = tuple(float(values[end]) for end, share in ((0, low), (-1, high)) if share)
    inside = column[~np.isin(column, ends)]
    return DetectionLimits(ends, cast("ScaleName", choose_scale(inside, cut_off=(low, high)).kind))
