"""Scores against a known answer.

Nothing that links tables imports this module: the truth never reaches a solver. Permutations are integer arrays with
`permutation[i]` the table row given to reference row `i`, and -1 for no partner. Arrays may be numpy or torch; scores
are plain floats, computed in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import Array, as_float, as_matrix, check_count, safe_unit, to_numpy
from keyless.errors import InputError

__all__ = [
    "CoverageCurve",
    "LinkScores",
    "accuracy_against_coverage",
    "expected_calibration_error",
    "foscttm",
    "hamming",
    "link_scores",
    "normalised_error",
    "relative_error",
    "rmse",
]

Permutations: TypeAlias = Mapping[str, Any] | Sequence[Any]


class LinkScores(NamedTuple):
    """Precision, the share of the links made that are right, and recall, the share of the true links that were made."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 when both are 0."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


class CoverageCurve(NamedTuple):
    """What is kept at each threshold, and how much of it is right.

    Attributes:
        threshold: the distinct probabilities, highest first.
        coverage: share of all links whose probability is at least the threshold.
        accuracy: share of those links that are right.
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    accuracy: NDArray[np.float64]


def hamming(permutation: Array, truth: Array) -> int:
    """Count the wrong rows: d_H = #{i : permutation[i] ≠ truth[i]}.

    A row without partner (-1) is right only where the truth is -1 too.

    Args:
        permutation: table row of each reference row, -1 for none. It need not use each table row once.
        truth: the right answer, of the same length.

    Example:
        >>> hamming([2, 0, 1], [2, 1, 0])
        2
    """
    found, right = _permutation_pair(permutation, truth)
    return int(np.count_nonzero(found != right))


def normalised_error(permutations: Permutations, truths: Permutations) -> float:
    """Average the wrong rows over the tables: Σ_l d_H(permutations[l], truths[l]) / d, the paper's score.

    Args:
        permutations: one permutation per table but the reference, in a sequence or by name.
        truths: the right ones. Two mappings are paired by name; otherwise both are read in order.

    Example:
        >>> normalised_error([[0, 1], [1, 0]], [[0, 1], [0, 1]])
        1.0
    """
    if isinstance(permutations, Mapping) and isinstance(truths, Mapping):
        if set(permutations) != set(truths):
            raise InputError(
                f"permutations: must have the tables of truths, {sorted(truths)}; found {sorted(permutations)}."
            )
        truths = {name: truths[name] for name in permutations}
    found = list(permutations.values() if isinstance(permutations, Mapping) else permutations)
    right = list(truths.values() if isinstance(truths, Mapping) else truths)
    if len(found) != len(right):
        raise InputError(f"permutations: must be one per truth, {len(right)}; found {len(found)}.")
    if not found:
        raise InputError("permutations: must hold at least one table; found none.")
    return sum(hamming(*pair) for pair in zip(found, right, strict=True)) / len(found)


def link_scores(permutation: Array, truth: Array) -> LinkScores:
    """Give precision and recall of the links.

    precision = #{i : permutation[i] = truth[i] ≥ 0} / #{i : permutation[i] ≥ 0}; recall divides by #{i : truth[i] ≥ 0}.
    Where no link is made, the precision is 1 (none is wrong); where there is no link to make, the recall is 1.

    Args:
        permutation: table row of each reference row, -1 for none.
        truth: the right answer, of the same length.

    Example:
        >>> link_scores([0, 2, -1, -1], [0, 1, 2, -1])
        LinkScores(precision=0.5, recall=0.3333333333333333)
    """
    found, right = _permutation_pair(permutation, truth)
    n_made, n_true = np.count_nonzero(found >= 0), np.count_nonzero(right >= 0)
    n_right = np.count_nonzero((found == right) & (right >= 0))
    return LinkScores(
        precision=float(n_right / n_made) if n_made else 1.0,
        recall=float(n_right / n_true) if n_true else 1.0,
    )


def rmse(estimate: Array, values: Array, mask: Array | None = None) -> float:
    """Give the root mean squared error over the entries in `mask`: √(Σ_mask (estimate − values)² / #mask).

    Args:
        estimate: the guess.
        values: what it should be. Entries outside `mask` are not looked at and may be NaN.
        mask: True where to compare; everywhere by default.

    Example:
        >>> rmse([[1.0, 5.0]], [[4.0, float("nan")]], [[True, False]])
        3.0
    """
    guess, right = _compared(estimate, values, mask)
    unit = _unit(guess, right)
    return math.sqrt(float(np.mean((guess / unit - right / unit) ** 2))) * unit


def relative_error(estimate: Array, values: Array, mask: Array | None = None) -> float:
    """Give ‖estimate − values‖_F / ‖values‖_F over the entries in `mask`.

    Args:
        estimate: the guess.
        values: what it should be; not all zero. Entries outside `mask` are not looked at and may be NaN.
        mask: True where to compare; everywhere by default.

    Example:
        >>> relative_error([3.0, 0.0], [3.0, 4.0])
        0.8
    """
    guess, right = _compared(estimate, values, mask)
    unit = _unit(guess, right)
    guess, right = guess / unit, right / unit
    size = float(np.linalg.norm(right))
    if size == 0:
        raise InputError("values: must not all be zero where compared, or the relative error is undefined. Use rmse.")
    return float(np.linalg.norm(guess - right)) / size


def _unit(*numbers: NDArray[np.float64]) -> float:
    """Return what to divide numbers by so that their squares stay finite."""
    return safe_unit(max(float(np.abs(some).max(initial=0.0)) for some in numbers))


def foscttm(
    closeness: Array,
    truth: Array,
    *,
    kind: Literal["cost", "coupling"] = "cost",
    direction: Literal["both", "forward", "backward"] = "both",
) -> float:
    """Give the fraction of samples closer than the true match, averaged over all rows that have one.

    For reference row i with partner j, it is the share of the table rows k ≠ j that are closer to i than j is; a tie
    counts one half. 0 is perfect, ½ is what chance gives, 1 the worst. "backward" asks the same of each table row about
    the reference rows, and "both" averages the two. Rows without partner ask no question but stay candidates. Where
    there is no other candidate the share is 0.

    Args:
        closeness: reference rows × table rows: costs (smaller is closer) or a coupling (larger is closer).
        truth: table row of each reference row, -1 for none; no table row twice.
        kind: what `closeness` holds.
        direction: which side asks.

    Example:
        >>> foscttm([[0.0, 1.0], [2.0, 1.0]], [0, 1])
        0.125
    """
    if kind not in ("cost", "coupling"):
        raise InputError(f"kind: must be 'cost' or 'coupling'; found {kind!r}.")
    if direction not in ("both", "forward", "backward"):
        raise InputError(f"direction: must be 'both', 'forward' or 'backward'; found {direction!r}.")
    distance = to_numpy(as_matrix(closeness, name="closeness", allow_infinite=True))
    if kind == "coupling":
        distance = -distance
    right = _as_permutation(truth, "truth")
    rows = np.flatnonzero(right >= 0)
    columns = right[rows]
    if len(right) != distance.shape[0]:
        raise InputError(f"truth: must have one entry per row of closeness, {distance.shape[0]}; found {len(right)}.")
    if len(rows) == 0:
        raise InputError("truth: must give at least one row a partner; found only -1.")
    if columns.max() >= distance.shape[1]:
        raise InputError(
            f"truth: must name columns of closeness, at most {distance.shape[1] - 1}; found {columns.max()}."
        )
    if len(np.unique(columns)) < len(columns):
        raise InputError("truth: must give each table row to one reference row at most; found one given twice.")
    shares = []
    if direction != "backward":
        shares.append(_share_closer(distance[rows], columns))
    if direction != "forward":
        shares.append(_share_closer(distance[:, columns].T, rows))
    return float(np.mean(shares))


def accuracy_against_coverage(probability: Array, correct: Array) -> CoverageCurve:
    """Say how right the links are when only the surest are kept.

    Links of equal probability are kept or dropped together, so there is one point per distinct probability.

    Args:
        probability: how sure each link is said to be.
        correct: True where the link is right.

    Example:
        >>> curve = accuracy_against_coverage([0.9, 0.5, 0.9, 0.2], [True, False, True, True])
        >>> curve.coverage.tolist(), curve.accuracy.tolist()
        ([0.5, 0.75, 1.0], [1.0, 0.6666666666666666, 0.75])
    """
    sure, right = _probabilities(probability, correct)
    order = np.argsort(-sure, kind="stable")
    sure, right = sure[order], right[order]
    last = np.flatnonzero(np.append(sure[1:] != sure[:-1], True)) if len(sure) else np.empty(0, dtype=np.intp)
    kept = last + 1
    return CoverageCurve(
        threshold=sure[last],
        coverage=kept / max(len(sure), 1),
        accuracy=np.cumsum(right)[last] / kept,
    )


def expected_calibration_error(probability: Array, correct: Array, *, bins: int = 10) -> float:
    """Say how far the stated probabilities are from the share that is right.

    The sum over bins b of (#b/n)·|mean probability in b − share right in b|. The bins cut [0, 1] into
    equal parts, [0, 1/bins), …, [1 − 1/bins, 1].

    Args:
        probability: how sure each link is said to be, from 0 to 1.
        correct: True where the link is right.
        bins: number of bins.

    Example:
        >>> expected_calibration_error([0.75, 0.75, 0.75, 0.75], [True, True, False, False])
        0.25
    """
    sure, right = _probabilities(probability, correct)
    bins = check_count(bins, name="bins")
    if len(sure) == 0:
        raise InputError("probability: must hold at least one link; found none.")
    which = np.searchsorted(np.arange(1, bins) / bins, sure, side="right")
    gap = np.bincount(which, weights=sure - right, minlength=bins)
    return float(np.abs(gap).sum() / len(sure))


def _share_closer(distance: NDArray[Any], match: NDArray[np.intp]) -> float:
    """Average over rows the share of the other columns closer than column `match[row]`, ties one half."""
    if distance.shape[1] == 1:
        return 0.0
    true_distance = np.take_along_axis(distance, match[:, None], axis=1)
    closer = np.count_nonzero(distance < true_distance, axis=1)
    tied = np.count_nonzero(distance == true_distance, axis=1) - 1  # the match is tied with itself
    return float(np.mean((closer + tied / 2) / (distance.shape[1] - 1)))


def _as_permutation(values: Any, name: str) -> NDArray[np.intp]:
    array = to_numpy(values)
    if array.ndim == 1 and array.size == 0:
        return np.empty(0, dtype=np.intp)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name}: must be a 1-D array of whole numbers; found {array.ndim}-D of dtype {array.dtype}. "
            "Give the table row of each reference row, -1 for none."
        )
    if array.min() < -1:
        raise InputError(
            f"{name}, row {int(array.argmin())}: must be a row number or -1 for no partner; found {array.min()}."
        )
    return array.astype(np.intp)


def _permutation_pair(permutation: Any, truth: Any) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    found, right = _as_permutation(permutation, "permutation"), _as_permutation(truth, "truth")
    if len(found) != len(right):
        raise InputError(
            f"permutation: must have one entry per reference row, {len(right)} as in truth; found {len(found)}."
        )
    return found, right


def _compared(estimate: Array, values: Array, mask: Array | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the entries in the mask of both arrays, flat and in double precision."""
    guess = to_numpy(as_float(estimate, name="estimate"))
    right = to_numpy(as_float(values, name="values"))
    if guess.shape != right.shape:
        raise InputError(f"estimate: must have the shape of values, {right.shape}; found {guess.shape}.")
    chosen = np.ones(right.shape, dtype=bool) if mask is None else to_numpy(mask)
    if chosen.dtype != bool:
        raise InputError(f"mask: must hold True and False; found dtype {chosen.dtype}. Write `mask != 0`.")
    if chosen.shape != right.shape:
        raise InputError(f"mask: must have the shape of values, {right.shape}; found {chosen.shape}.")
    if not chosen.any():
        raise InputError("mask: must choose at least one entry to compare; found none.")
    for name, array in (("estimate", guess), ("values", right)):
        if not np.isfinite(array[chosen]).all():
            raise InputError(f"{name}: must be finite where compared; found NaN or infinity. Leave them out by mask=.")
    return guess[chosen].astype(np.float64), right[chosen].astype(np.float64)


def _probabilities(probability: Array, correct: Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    sure = to_numpy(as_float(probability, name="probability")).astype(np.float64)
    right = to_numpy(correct)
    if right.size == 0:
        right = right.astype(bool)
    if sure.ndim != 1 or right.shape != sure.shape:
        raise InputError(
            f"correct: must be 1-D with one entry per probability; found shapes {right.shape} and {sure.shape}."
        )
    if right.dtype != bool:
        raise InputError(f"correct: must hold True and False; found dtype {right.dtype}. Write `permutation == truth`.")
    outside = ~((sure >= 0) & (sure <= 1))
    if outside.any():
        row = int(outside.argmax())
        raise InputError(f"probability, row {row}: must be from 0 to 1; found {sure[row]}.")
    return sure, right
