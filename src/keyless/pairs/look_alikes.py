"""Rows that fit each other without being one entity, and what they do to the probability of a match.

A row whose partner is gone is matched to the row that fits best, if that fits as well as partners do. How well such
look-alikes fit cannot be told from the row itself: a single row near it is its partner or is not. Rows that have
partners tell it: their partners are hidden, and the best of the other rows shows what a row without partner finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from keyless.arrays import IntArray, NumpyArray
from keyless.pairs.posterior import less_per_row, log_sums_with_rest, pair_places

__all__ = ["chance_fit", "less_chance_fit"]

_ROUNDS = 40
"""The most rounds in which it is estimated which rows have a partner, each by the odds that the round before gave."""

_STEPS, _LONGEST_STEP, _SETTLED = 20, 3.0, 1e-4
"""The most Newton steps in which the odds are fitted, the longest step, and the change of a coefficient below which the
steps end."""

_FAITH = 4.0
"""How firmly the model's own odds are believed before any look-alike is seen: as if rows had already told each
coefficient with a standard error of 1/√4 = ½."""

_FIRST_GUESS = 0.9
"""Probability that matches are right, and that all other rows have no partner, in the first round."""


@dataclass(frozen=True, eq=False)
class _Best:
    """The best candidate of each row of one table; zeros where no pair of a row is likelier than a random pair.

    Attributes:
        fit: its log-likelihood ratio less the crowd, in nats.
        crowd: by how much its place is denser than expected, in nats: the mean of the two rows' crowds.
    """

    fit: NumpyArray
    crowd: NumpyArray

    def of(self, rows: Any) -> _Best:
        return _Best(self.fit[rows], self.crowd[rows])

    def design(self) -> NumpyArray:
        return np.column_stack([np.ones(len(self.fit)), self.fit, self.crowd])


def less_chance_fit(ratios: Any, crowded: Any, permutation: IntArray) -> Any:
    """Return log-likelihood ratios less what look-alikes reach by chance; see `chance_fit`.

    Args:
        ratios: left × right rows, the ratios to be lowered: dense, or sparse.
        crowded: the ratios by which look-alikes are told, before any allowance for crowds; pairs as in `ratios`.
        permutation: the right row that each left row is matched to, −1 for none.
    """
    return less_per_row(ratios, *chance_fit(crowded, permutation))


def chance_fit(ratios: Any, permutation: IntArray) -> tuple[NumpyArray, NumpyArray]:
    """Return the nats by which the log-likelihood ratios of each left row, and of each right row, are too high.

    For the rows of either table, the odds that the best candidate is the partner are fitted to how well it fits and how
    crowded its place is. Best candidates that are no partner are seen in rows without partner, and in all rows with
    partner once the partner is hidden. Where look-alikes fit nearly as well as partners, these odds are lower than
    those of the model, which takes rows to be normally distributed. Half of the difference is charged to either row of
    a pair. No ratio is raised: where look-alikes fit badly, the model's odds stand.

    Args:
        ratios: left × right rows, log-likelihood ratios: dense, −∞ where a pair is impossible, or sparse.
        permutation: the right row that each left row is matched to, −1 for none.
    """
    rows, columns, values = _likelier_than_any(ratios)
    partner = permutation[rows] == columns
    has_partner = permutation >= 0, np.isin(np.arange(ratios.shape[1]), permutation)
    found = [np.zeros(size) for size in ratios.shape]
    if not has_partner[0].any():
        return found[0], found[1]
    for axis, matched in enumerate(has_partner):
        lines = (rows, columns)[axis], (columns, rows)[axis]
        sizes = ratios.shape[axis], ratios.shape[1 - axis]
        best = _best(*lines, values, sizes)
        hidden = _best(lines[0][~partner], lines[1][~partner], values[~partner], sizes)
        odds = _log_odds(best, hidden.of(matched), matched) + np.log(sizes[1])
        found[axis] = np.where(best.fit > 0, 0.5 * np.maximum(best.fit - odds, 0.0), 0.0)
    return found[0], found[1]


def _likelier_than_any(ratios: Any) -> tuple[IntArray, IntArray, NumpyArray]:
    """Return row, column and log-likelihood ratio of the pairs that fit better than a random pair."""
    if isinstance(ratios, sparse.csr_array):
        rows, columns = pair_places(ratios)
        above = ratios.data > 0
        return rows[above], columns[above], ratios.data[above].astype(np.float64)
    rows, columns = np.nonzero(ratios > 0)
    return rows, columns, ratios[rows, columns].astype(np.float64)


def _best(line: IntArray, other: IntArray, values: NumpyArray, sizes: tuple[int, int]) -> _Best:
    """Return the best candidate of each line (row or column), among listed pairs."""
    crowd = np.zeros(len(values))
    for places, size, others in zip((line, other), sizes, reversed(sizes), strict=True):
        _, rest = log_sums_with_rest(places, values, size, alone=False)
        crowd += 0.5 * np.maximum(rest - np.log(max(others - 1, 1)), 0.0)
    order = np.lexsort((values, line))
    lines, last = np.unique(line[order][::-1], return_index=True)
    chosen = order[::-1][last]
    found = _Best(np.zeros(sizes[0]), np.zeros(sizes[0]))
    found.fit[lines] = np.maximum(values[chosen] - crowd[chosen], 0.0)
    found.crowd[lines] = crowd[chosen]
    return found


def _log_odds(best: _Best, hidden: _Best, matched: np.ndarray[Any, np.dtype[np.bool_]]) -> NumpyArray:
    """Return how much likelier the fit of each row's best candidate is for partners than for look-alikes, in nats.

    Nothing is assumed about either density, only about the logarithm of their ratio: it is taken to be linear in fit
    and crowd, and is fitted as in logistic regression. Which rows have a partner is unknown, too: each row is weighed
    by how likely it has one, which is estimated in turn with the odds.

    Args:
        best: the best candidate of each row.
        hidden: the best candidate of rows with partner, once the partner is hidden.
        matched: whether each row was matched.
    """
    own, features = best.design(), np.vstack([best.design(), best.design(), hidden.design()])
    answers = np.concatenate([np.ones(len(own)), np.zeros(len(own) + len(hidden.fit))])
    faith = _FAITH * np.array([0.0, 1.0, 1.0])
    by_model = np.array([0.0, 1.0, 0.0])
    coefficients = np.zeros(3)
    chances = np.where(matched, _FIRST_GUESS, 1 - _FIRST_GUESS)
    odds = np.zeros(len(own))
    for _ in range(_ROUNDS):
        weights = np.concatenate([chances, 1 - chances, np.ones(len(hidden.fit))])
        for _ in range(_STEPS):
            stated = expit(features @ coefficients)
            slope = features.T @ (weights * (answers - stated)) - faith * (coefficients - by_model)
            curve = (features * (weights * stated * (1 - stated))[:, None]).T @ features + np.diag(faith + 1e-6)
            step = np.clip(np.linalg.solve(curve, slope), -_LONGEST_STEP, _LONGEST_STEP)
            coefficients = coefficients + step
            if np.abs(step).max() < _SETTLED:
                break
        partners = chances.sum()
        odds = own @ coefficients - np.log(partners / (len(own) - partners + len(hidden.fit)))
        # At least one row with partner and one without are counted: with none the odds would be infinite.
        partners = np.clip(partners, 1.0, len(own) - 1.0)
        before, chances = chances, expit(odds + np.log(partners / (len(own) - partners)))
        if np.abs(chances - before).max() < _SETTLED:
            break
    return np.asarray(odds)
