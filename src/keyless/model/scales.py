"""The scale each column is put on before anything is compared.

Measurements come on scales where equal steps mean equal ratios (sizes, counts, concentrations) as often as on scales
where they mean equal differences. Each column is put on the monotone scale on which it looks most normal, then centred
and divided by its spread. The choice does not depend on the unit or the sign of a column, and can be undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import get_args

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from keyless.arrays import BoolArray, FloatArray, safe_unit
from keyless.errors import InputError
from keyless.search_options import ScaleName

__all__ = ["SCALE_KINDS", "Scale", "ScaleName", "choose_scale", "kinds_of_columns", "scale_table"]

SCALE_KINDS = ("identity", "log", "sqrt", "rank", "empty")
"""What a scale can be, once it is chosen; `"empty"` is for a column of which nothing is known."""


_MARGIN = 0.005
"""A bent scale must look this much more normal (in correlation with normal quantiles) to be chosen."""

_FARTHEST = 1e12
"""Standard deviations from the mean beyond which a new value counts as no farther: its square must stay a number."""

_LARGEST = float(np.finfo(np.float64).max)
"""Values that are filled in are at most so large, whatever a model expects."""

_STEEPEST = _LARGEST / 1e6
"""Slopes are at most so large, so that a standard error, which is a slope times some spreads, stays finite."""


@dataclass(frozen=True, eq=False)
class Scale:
    """A monotone map of one column to mean 0 and variance 1, and back.

    Attributes:
        kind: `"identity"`, `"log"`, `"sqrt"`, `"rank"` (ranks to normal quantiles), or `"empty"` for a column of which
            nothing is known.
        sign: −1 for columns that are bent after their sign is turned.
        offset: what is added before a log or a root, for columns with zeros.
        centre: mean of the bent column.
        spread: its standard deviation; 0 for a constant column, which is mapped to 0.
        knots: for `"rank"`: the sorted values and the normal quantiles they stand for.
        lowest: for `"log"`: the smallest argument seen. New arguments count as half of it at the least.
        unit: what values are divided by before anything else: 1, or a power of 4 of the values' own size if they are so
            large or small that their squares cannot be held. Everything above is in that unit.
    """

    kind: str = "identity"
    sign: float = 1.0
    offset: float = 0.0
    centre: float = 0.0
    spread: float = 1.0
    knots: tuple[FloatArray, FloatArray] | None = None
    lowest: float = 0.0
    unit: float = 1.0

    def apply(self, values: FloatArray) -> FloatArray:
        """Return the standard scores of values."""
        if self.spread == 0:
            return np.zeros(np.shape(values))
        with np.errstate(over="ignore"):
            scores: FloatArray = self._bent(np.asarray(values, dtype=np.float64) / self.unit) - self.centre
            return np.clip(scores / self.spread, -_FARTHEST, _FARTHEST)

    def undo(self, scores: FloatArray) -> FloatArray:
        """Return the values of standard scores; a root or a rank cannot go beyond the values it was made from."""
        with np.errstate(over="ignore"):
            return np.clip(self._straight(scores) * self.unit, -_LARGEST, _LARGEST)

    def _straight(self, scores: FloatArray) -> FloatArray:
        """Undo the scale, still in its unit."""
        if self.spread == 0:
            return np.full(np.shape(scores), self.centre)
        bent = scores * self.spread + self.centre
        if self.kind == "log":
            return self.sign * (np.exp(bent) - self.offset)
        if self.kind == "sqrt":
            return self.sign * (np.maximum(bent, 0.0) ** 2 - self.offset)
        if self.knots is not None:
            values, quantiles = self.knots
            return np.interp(bent, quantiles, values)
        return np.asarray(bent, dtype=np.float64)

    def slope(self, scores: FloatArray) -> FloatArray:
        """Return |d value / d score|, which turns a standard error of a score into one of a value."""
        if self.spread == 0:
            return np.full(np.shape(scores), np.inf if self.kind == "empty" else 0.0)
        with np.errstate(over="ignore"):
            return np.minimum(self._steepness(scores) * self.unit, _STEEPEST)

    def _steepness(self, scores: FloatArray) -> FloatArray:
        bent = scores * self.spread + self.centre
        if self.kind == "log":
            return self.spread * np.exp(bent)
        if self.kind == "sqrt":
            return self.spread * 2 * np.maximum(bent, 0.0)
        if self.knots is not None:
            step = 0.25
            return np.abs(self._straight(scores + step) - self._straight(scores - step)) / (2 * step)
        return np.full(np.shape(scores), self.spread)

    def _bent(self, values: FloatArray) -> FloatArray:
        """Bend values that are in the unit already."""
        turned = self.sign * values
        if self.kind == "log":
            # New values may lie below all that were seen, even below 0, and must not outweigh everything else.
            return np.log(np.maximum(turned + self.offset, max(self.lowest / 2, np.finfo(float).tiny)))
        if self.kind == "sqrt":
            return np.sqrt(np.maximum(turned + self.offset, 0.0))
        if self.knots is not None:
            return np.interp(turned, *self.knots)
        return turned


def choose_scale(observed: FloatArray, *, kind: ScaleName = "auto", cut_off: tuple[float, float] = (0.0, 0.0)) -> Scale:
    """Return the scale on which the observed values of a column look most normal.

    `"auto"` chooses among identity, log and square root; ranks bend exact linear relations between columns, so they
    are used only when asked for.

    Args:
        observed: the column without its missing entries.
        kind: a scale to use instead of choosing one; columns of both signs have no log or root and stay as they are.
        cut_off: shares of the column's values that lie below, and above, all that were observed.

    Example:
        >>> import numpy as np
        >>> choose_scale(np.exp(np.random.default_rng(0).normal(size=200))).kind
        'log'
    """
    if kind not in get_args(ScaleName):
        raise InputError(f"scale: must be one of {', '.join(map(repr, get_args(ScaleName)))}; found {kind!r}.")
    observed = np.asarray(observed, dtype=np.float64)
    if observed.size == 0:
        return Scale(kind="empty", spread=0.0)
    unit = safe_unit(float(np.abs(observed).max()))
    return replace(_chosen(observed / unit, kind, cut_off), unit=unit)


def _chosen(observed: FloatArray, kind: ScaleName, cut_off: tuple[float, float]) -> Scale:
    """Choose the scale of values of ordinary size."""
    if kind == "rank":
        return _standardised(_rank_scale(observed), observed)
    straight = Scale()
    turned, offset = _made_positive(observed)
    if kind == "identity" or turned is None:
        return _standardised(straight, observed)
    bent = {name: Scale(kind=name, sign=turned, offset=offset if name == "log" else 0.0) for name in ("log", "sqrt")}
    if kind != "auto":
        return _standardised(bent[kind], observed)
    best, best_normality = straight, _normality(observed, cut_off) + _MARGIN
    for scale in bent.values():
        # Where the sign of values is turned, the shares below and above change places.
        normality = _normality(scale._bent(observed), cut_off if scale.sign > 0 else cut_off[::-1])
        if normality > best_normality:
            best, best_normality = scale, normality
    return _standardised(best, observed)


def scale_table(
    values: FloatArray, mask: BoolArray, *, kind: ScaleName | Sequence[ScaleName] = "auto"
) -> tuple[FloatArray, tuple[Scale, ...]]:
    """Return a table with every column on its scale (0 where missing), and the scales.

    Args:
        values: the table.
        mask: True where observed.
        kind: the kind of scale, for all columns or for each.
    """
    kinds = kinds_of_columns(kind, values.shape[1])
    scales = tuple(choose_scale(values[mask[:, k], k], kind=wanted) for k, wanted in enumerate(kinds))
    scores = np.zeros(values.shape)
    for k, scale in enumerate(scales):
        seen = mask[:, k]
        scores[seen, k] = scale.apply(values[seen, k])
    return scores, scales


def kinds_of_columns(
    kinds: ScaleName | Sequence[ScaleName], count: int, chosen: Mapping[int, ScaleName] = MappingProxyType({})
) -> list[ScaleName]:
    """Return the kind of scale of each column.

    Args:
        kinds: for all columns, or for each.
        count: how many columns there are.
        chosen: kinds of some columns, which replace `"auto"`.
    """
    each = [kinds] * count if isinstance(kinds, str) else kinds
    return [chosen.get(k, kind) if kind == "auto" else kind for k, kind in enumerate(each)]


def _made_positive(observed: FloatArray) -> tuple[float | None, float]:
    """Return the sign that makes a column non-negative (None where none does) and what to add before a log.

    A column with zeros gets half the 5 per cent quantile of its positive values, a stand-in for zero in its own unit.
    """
    low, high = float(observed.min()), float(observed.max())
    if low >= 0:
        sign = 1.0
    elif high <= 0:
        sign = -1.0
    else:
        return None, 0.0
    positive = np.abs(observed[observed != 0])
    if positive.size < 2:
        return None, 0.0
    return sign, 0.0 if positive.size == observed.size else 0.5 * float(np.quantile(positive, 0.05))


def _rank_scale(observed: FloatArray) -> Scale:
    quantiles = ndtri((rankdata(observed) - 0.5) / observed.size)
    values, first = np.unique(observed, return_index=True)
    return Scale(kind="rank", knots=(values, quantiles[first]))


def _standardised(scale: Scale, observed: FloatArray) -> Scale:
    bent = scale._bent(observed)
    centre, spread = float(bent.mean()), float(bent.std())
    if spread <= 1e-12 * max(float(np.abs(bent).max()), np.finfo(float).tiny):
        # Constant: every score is 0 and every value the constant itself.
        return Scale(centre=float(observed.mean()), spread=0.0)
    lowest = float((scale.sign * observed + scale.offset).min()) if scale.kind == "log" else 0.0
    return replace(scale, centre=centre, spread=spread, lowest=lowest)


def _normality(values: FloatArray, cut_off: tuple[float, float]) -> float:
    """Return the correlation of the sorted values with normal quantiles: 1 is normal.

    Args:
        values: the values.
        cut_off: shares of a column that lie below and above them: the values have the quantiles in between.
    """
    values = np.sort(values)
    if values.size < 3 or values.std() <= 1e-12 * max(float(np.abs(values).max()), np.finfo(float).tiny):
        return 0.0
    low, high = cut_off
    quantiles = ndtri(low + (1 - low - high) * (np.arange(values.size) + 0.5) / values.size)
    return float(np.corrcoef(values, quantiles)[0, 1])
