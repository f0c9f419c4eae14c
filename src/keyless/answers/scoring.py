"""Where to cut, and how good the links are against pairs that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import beta

from keyless.arrays import FloatArray, check_finite
from keyless.errors import InputError
from keyless.knowledge import known_partners
from keyless.table_link import LinkedTables

__all__ = ["Rate", "Score", "Threshold", "rate", "score_against", "threshold"]

BANDS = (0.0, 0.5, 0.9, 0.99, 1.0)
"""Edges of the bands of stated probability for which calibration is given; the report has the same."""

CONFIDENCE = 0.95
"""An interval holds the true share in at least this share of all cases."""


@dataclass(frozen=True)
class Threshold:
    """Where to cut the matches, and what is left.

    Attributes:
        probability: keep matches that are at least so likely.
        rows: how many matches remain.
        of: how many matches there are.
        precision: share of those kept that are expected to be right, by their own probabilities.
    """

    probability: float
    rows: int
    of: int
    precision: float

    def __repr__(self) -> str:
        if not self.rows:
            return f"Threshold: no cut reaches that; none of {self.of:,} matches remain"
        return (
            f"Threshold: cut at probability {self.probability:.4g}; {self.rows:,} of {self.of:,} matches remain, "
            f"{100 * self.precision:.1f}% of them expected right"
        )


def threshold(links: LinkedTables, precision: float = 0.95, *, table: str | None = None) -> Threshold:
    """Return the lowest probability from which matches can be kept so that enough of them are expected right.

    How many are right is expected from the stated probabilities; `score_against` tells whether these hold on rows
    whose partner you know.

    Args:
        links: the result.
        precision: share of the kept matches that must be expected right.
        table: look at the matches of one table only; None: at those of all.
    """
    wanted = check_finite(precision, name="precision")
    if not 0 <= wanted <= 1:
        raise InputError(f"precision: must lie between 0 and 1; found {precision!r}.")
    found = [links.found[name] for name in links._chosen(table)]
    chance = np.sort(np.concatenate([np.nan_to_num(link.probability[link.permutation >= 0]) for link in found]))[::-1]
    if not chance.size:
        return Threshold(1.0, 0, 0, 1.0)
    mean = np.cumsum(chance) / np.arange(1, chance.size + 1)
    # Matches of the same probability are kept or dropped together.
    last = np.append(chance[1:] != chance[:-1], True)
    enough = np.flatnonzero(last & (mean >= wanted))
    if not enough.size:
        return Threshold(1.0, 0, int(chance.size), 1.0)
    cut = int(enough[-1])
    return Threshold(float(chance[cut]), cut + 1, int(chance.size), float(mean[cut]))


@dataclass(frozen=True)
class Rate:
    """A share and the interval that holds the true one with 95% confidence (Clopper and Pearson's, never too short).

    Attributes:
        share: `count / of`; NaN where there is nothing to count.
        low: lower end of the interval.
        high: upper end.
        count: how many.
        of: of how many.
    """

    share: float
    low: float
    high: float
    count: int
    of: int

    def __repr__(self) -> str:
        if not self.of:
            return "none to count"
        return f"{self.share:.3f} ({self.low:.3f} to {self.high:.3f}; {self.count:,} of {self.of:,})"


def rate(count: int, of: int) -> Rate:
    """Return a share with its interval.

    Example:
        >>> rate(9, 10)
        0.900 (0.555 to 0.997; 9 of 10)
    """
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, of - count + 1))
    high = 1.0 if count == of else float(beta.ppf(1 - tail, count + 1, of - count))
    return Rate(count / of if of else float("nan"), low, high, int(count), int(of))


@dataclass(frozen=True, eq=False)
class Score:
    """How good the links are on rows whose partner is known.

    Attributes:
        precision: of the matches made for these rows, how many are right.
        recall: of the pairs that are known, how many were found.
        stated: mean of the probabilities that were stated for those matches; compare it with `precision`.
        calibration: per band of stated probability (from, to): rows, mean stated probability, share that is right and
            its interval (low, high).
        calibration_error: mean over these rows of |stated − right|, of which both are means over the row's band.
    """

    precision: Rate
    recall: Rate
    stated: float
    calibration: pd.DataFrame = field(repr=False)
    calibration_error: float

    def __repr__(self) -> str:
        counted = f"Score\n  precision {self.precision!r}\n  recall    {self.recall!r}"
        if not self.precision.of:
            return counted
        inside = self.precision.low <= self.stated <= self.precision.high
        said = "agrees with that" if inside else "is too low" if self.stated < self.precision.low else "is too high"
        return (
            f"{counted}\n"
            f"  mean stated probability {self.stated:.3f}, which {said}; calibration error {self.calibration_error:.3f}"
        )


def score_against(links: LinkedTables, pairs: Any, *, min_probability: float = 0.0) -> Score:
    """Return precision, recall and calibration on rows whose partner you know, with intervals.

    Args:
        links: the result.
        pairs: pairs (reference id, row id), the row id missing where a row is known to have no partner; by table
            name for several tables, or a frame with columns reference_id, table and row_id. Or, per table, an array
            with the row number of each reference row's partner, −1 for none. Other rows are not looked at.
        min_probability: matches that are less likely count as not made.
    """
    known = known_partners(links.tables, pairs, name="pairs")
    made, right, true, found = [], [], 0, 0
    for name, (rows, partners) in known.items():
        link = links.found[name]
        answer, chance = link.permutation[rows], np.nan_to_num(link.probability[rows])
        kept = (answer >= 0) & (chance >= min_probability)
        hit = kept & (answer == partners)
        made.append(chance[kept])
        right.append(hit[kept])
        true += int((partners >= 0).sum())
        found += int(hit.sum())
    stated, hits = np.concatenate(made), np.concatenate(right).astype(bool)
    bands = _bands(stated, hits)
    error = float((bands["rows"] * (bands["stated"] - bands["right"]).abs()).sum() / max(len(stated), 1))
    mean = float(stated.mean()) if stated.size else float("nan")
    return Score(rate(int(hits.sum()), len(hits)), rate(found, true), mean, bands, error)


def _bands(stated: FloatArray, right: np.ndarray[Any, np.dtype[np.bool_]]) -> pd.DataFrame:
    number = np.clip(np.searchsorted(BANDS, stated, side="right") - 1, 0, len(BANDS) - 2)
    lines: list[Mapping[str, Any]] = []
    for band in range(len(BANDS) - 1):
        inside = number == band
        if inside.any():
            share = rate(int(right[inside].sum()), int(inside.sum()))
            lines.append(
                {
                    "from": BANDS[band],
                    "to": BANDS[band + 1],
                    "rows": share.of,
                    "stated": float(stated[inside].mean()),
                    "right": share.share,
                    "low": share.low,
                    "high": share.high,
                }
            )
    return pd.DataFrame(lines, columns=["from", "to", "rows", "stated", "right", "low", "high"])
