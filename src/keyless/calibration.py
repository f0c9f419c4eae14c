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
from keyless.likelihood.canonical import Matcher, cross_covariance, fit_model, hardened
from keyless.model.factors import whitened
from keyless.pairs.constraints import Constraints
from keyless.progress import Deadline, is_late
from keyless.search.options import one_thread
from keyless.search.two_tables import PairLink, coupled

__all__ = ["Calibration", "calibrate", "calibrate_joint", "match_probabilities"]

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


def match_probabilities(link: PairLink, *, calibration: Calibration | None = None) -> FloatArray:
    """Return the probability that each reference row's match is right; 0 for rows without one.

    Args:
        link: what `link_two_tables` found.
        calibration: what `calibrate` returned; None: as the model states them.
    """
    paired = np.flatnonzero(link.permutation >= 0)
    probability = np.zeros(len(link.permutation))
    stated = np.clip(link.coupling[paired, link.permutation[paired]], 0.0, 1.0)
    probability[paired] = stated if calibration is None else calibration(stated)
    return probability


def calibrate(link: PairLink, *, repeats: int = 3, seed: int = 0, deadline: Deadline | None = None) -> Calibration:
    """Simulate linked tables like these, link them, and learn which stated probabilities are right how often.

    Simulated tables keep the reference's rows and the residual rows of the matched table, exchanged among rows of
    similar size, so that tails stay as they are. Correlations are set so that the simulated tables, once linked, show
    the correlations seen here: fitting and matching inflate them in the simulation as in the data.

    Args:
        link: what `link_two_tables` found.
        repeats: how many tables are simulated.
        seed: of all random numbers.
        deadline: after which no further table is simulated; without any, stated probabilities are taken as they are.
    """
    ordered, table, permutation, allowed = link.in_own_order()
    paired = np.flatnonzero(permutation >= 0)
    if len(paired) < 8:
        return Calibration()
    reference, matched = ordered.compact[paired], table.compact[permutation[paired]]
    if allowed is not None:
        allowed = allowed[np.ix_(paired, permutation[paired])]
    rng = np.random.default_rng([seed, 17])
    with one_thread():
        simulation = _Simulation(reference, matched, allowed, rng)
        if not is_late(deadline):
            simulation.tune()
        runs = [simulation.run() for _ in range(repeats) if not is_late(deadline)]
    return _learned_from(runs)


def calibrate_joint(
    tables: Sequence[tuple[FloatArray, BoolArray]],
    link: JointLink,
    *,
    repeats: int = 2,
    seed: int = 0,
    constraints: Constraints | None = None,
    deadline: Deadline | None = None,
) -> list[Calibration]:
    """Do the same, per table but the first, for what `keyless.joint.link_tables` found.

    The noise of the simulation is set so that simulated tables, once linked, agree as well as the real ones. Still the
    simulation, which begins at its answer, is a little too sure, as the model by itself is too timid: the mean of what
    both say, in log-odds, is taken.

    Args:
        tables: the standard scores and masks that were linked.
        link: what was found.
        repeats: how many times tables are simulated.
        seed: of all random numbers.
        constraints: those it was found under.
        deadline: after which nothing more is simulated; without any, stated probabilities are taken as they are.
    """
    runs: list[list[tuple[FloatArray, BoolArray]]] = [[] for _ in tables[1:]]
    if is_late(deadline):
        return [Calibration() for _ in runs]
    simulation, noise = Simulation(tables, link, constraints=constraints), 1.0
    for repeat in range(repeats + 1):
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


class _Simulation:
    """Makes tables that are linked to the reference as the matched table is, row i to row i."""

    def __init__(
        self, reference: FloatArray, matched: FloatArray, allowed: BoolArray | None, rng: np.random.Generator
    ) -> None:
        self.reference, self.allowed, self.rng = reference, allowed, rng
        left, self.seen, right = np.linalg.svd(reference.T @ matched / len(reference), full_matrices=True)
        self.shared = reference @ left[:, : len(self.seen)]
        own = (matched @ right.T).astype(np.float64)
        own[:, : len(self.seen)] -= self.seen * self.shared
        self.own = own / (own.std(axis=0) + 1e-12)
        self.correlations = np.minimum(self.seen, 0.99999)

    def tune(self) -> None:
        """Set the correlations so that linked simulations show those seen."""
        target = np.arctanh(np.minimum(self.seen, 0.99999))
        guess = target.copy()
        for _ in range(2):
            self.correlations = np.tanh(guess)
            table = self._table()
            shown = np.linalg.svd(cross_covariance(self.reference, table, self._linked(table)), compute_uv=False)
            guess = np.maximum(guess + target - np.arctanh(np.minimum(shown, 0.99999)), 0.0)
        self.correlations = np.minimum(np.tanh(guess), 0.99999)

    def run(self) -> tuple[FloatArray, BoolArray]:
        """Return what is stated about the matches of a new simulation, and which are right."""
        table = self._table()
        found = self._linked(table)
        ratios = fit_model(cross_covariance(self.reference, table, found)).log_ratios(self.reference, table)
        if self.allowed is not None:
            ratios = np.where(self.allowed, ratios, -np.inf)
        rows = np.flatnonzero(found >= 0)
        return np.clip(coupled(ratios.astype(np.float64))[rows, found[rows]], 0.0, 1.0), found[rows] == rows

    def _table(self) -> FloatArray:
        own = self.own[self._exchanged(np.sum(self.shared**2, axis=1))]
        size = len(self.correlations)
        own[:, :size] = self.correlations * self.shared + np.sqrt(1 - self.correlations**2) * own[:, :size]
        return whitened(own).astype(self.reference.dtype)

    def _exchanged(self, size: FloatArray, *, block: int = 8) -> IntArray:
        """Return a permutation that moves rows among rows of similar size: large rows often have large residuals."""
        near = np.argsort(size, kind="stable")
        key = (np.arange(len(size)) + self.rng.integers(block)) // block + 0.999 * self.rng.random(len(size))
        order = np.empty(len(size), dtype=np.int64)
        order[near] = near[np.argsort(key, kind="stable")]
        return order

    def _linked(self, table: FloatArray) -> IntArray:
        """Link a simulated table from its true order, as the search would once it is near."""
        matcher = Matcher(self.reference, table, allowed=self.allowed)
        cross = cross_covariance(self.reference, table, np.arange(len(table)))
        for _ in range(6):
            cross, _ = matcher.step(cross)
        return hardened(self.reference, table, cross, allowed=self.allowed).permutation


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
