"""How sure is each match?

Stated probabilities of matches are calibrated by simulation: tables like these are made from the fitted model and
linked, and how often matches of a stated probability are right there is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from keyless.joint import JointLink
from keyless.joint.simulation import Simulation
from keyless.pairs.constraints import Constraints
from keyless.progress import Deadline, is_late

__all__ = ["Calibration", "calibrate_joint"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Calibration:
    """A logistic map from stated to true probabilities of matches.

    Attributes:
        slope: above 1 where stated probabilities are too timid, never negative.
        intercept: what is added to their log-odds.
    """

    slope: float = 1.0
    intercept: float = 0.0

    def __call__(self, probability: Any) -> FloatArray:
        """Return the calibrated probabilities."""
        return np.asarray(1 / (1 + np.exp(-(self.slope * _log_odds(np.asarray(probability)) + self.intercept))))


def calibrate_joint(
    tables: Sequence[tuple[FloatArray, BoolArray]],
    link: JointLink,
    *,
    simulations: int = 2,
    seed: int = 0,
    constraints: Constraints | None = None,
    deadline: Deadline | None = None,
) -> list[Calibration]:
    """Learn, per table but the first, how often matches of a stated probability are right in simulated tables.

    The noise of the simulation is set so that simulated tables, once linked, agree as well as the real ones. Still the
    simulation, which begins at its answer, is a little too sure, as the model by itself is too timid: the mean of what
    both say, in log-odds, is taken.

    Args:
        tables: the standard scores and masks that were linked.
        link: what was found.
        simulations: how many times tables are simulated.
        seed: of all random numbers.
        constraints: those it was found under.
        deadline: after which nothing more is simulated; without any, stated probabilities are taken as they are.
    """
    runs: list[list[tuple[FloatArray, BoolArray]]] = [[] for _ in tables[1:]]
    if is_late(deadline):
        return [Calibration() for _ in runs]
    simulation, noise = Simulation(tables, link, constraints=constraints), 1.0
    for repeat in range(simulations + 1):
        if is_late(deadline):
            break
        drawn = simulation.run(seed=seed + repeat, noise=noise)
        if not repeat:
            # Twice the noise variance costs about ½ log 2 nats per factor.
            noise = float(np.exp(np.clip(2 * (drawn.score - link.score) / link.model.rank, -0.5, 0.5)))
            continue
        for mine, found in zip(runs, drawn.matches, strict=True):
            mine.append(found)
    learned = [_learned_from(mine) for mine in runs]
    return [Calibration((1 + found.slope) / 2, found.intercept / 2) for found in learned]


def _learned_from(runs: Sequence[tuple[FloatArray, BoolArray]]) -> Calibration:
    stated = np.concatenate([np.empty(0), *(run[0] for run in runs)])
    right = np.concatenate([np.empty(0, dtype=bool), *(run[1] for run in runs)])
    return _learned(stated, right) if stated.size >= 8 else Calibration()


def _learned(stated: FloatArray, right: BoolArray) -> Calibration:
    """Fit the logistic map.

    One match more that is wrong among the least sure twentieth, and one more that is right among the surest: so neither
    outcome need occur, and surer matches stay surer where all are right.
    """
    odds = np.sort(_log_odds(stated))
    tail = -(-odds.size // 20)
    fit = LogisticRegression(C=10.0).fit(
        np.concatenate([_log_odds(stated), odds[:tail], odds[-tail:]])[:, None],
        np.concatenate([right, np.zeros(tail, dtype=bool), np.ones(tail, dtype=bool)]),
        sample_weight=np.concatenate([np.ones(odds.size), np.full(2 * tail, 1 / tail)]),
    )
    slope = float(fit.coef_[0, 0])
    if slope > 0:
        return Calibration(slope, float(fit.intercept_[0]))
    return Calibration(0.0, float(_log_odds(np.asarray((right.sum() + 1) / (right.size + 2)))))


def _log_odds(probability: FloatArray) -> FloatArray:
    clipped = np.clip(np.asarray(probability, dtype=np.float64), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(clipped / (1 - clipped)))
