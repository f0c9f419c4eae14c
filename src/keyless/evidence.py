"""Is there a link at all, and how sure is each match?

The link is destroyed (every factor of one table gets its rows permuted on its own: distributions stay, dependence goes)
and a cheap version of the same search runs on that; what it finds is what chance can reach. A score above that proves
little alone, for two tables may share structure without sharing entities, so the verdict also asks that the matching
be sharp, and found more than once.

Stated probabilities of matches are calibrated by simulation: tables like these are made from the fitted model and
linked, and how often matches of a stated probability are right there is learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from sklearn.linear_model import LogisticRegression

from keyless.arrays import check_count
from keyless.constraints import Constraints
from keyless.embedding.factors import Factors, whitened
from keyless.errors import InputError
from keyless.joint import JointLink
from keyless.joint.chance import chance_scores
from keyless.likelihood import FORBIDDEN
from keyless.likelihood.canonical import Matcher, cross_covariance, cross_fit, fit_model, hardened
from keyless.search.options import SearchOptions, is_late, one_thread
from keyless.search.population import Population
from keyless.search.two_tables import PairLink, coupled

__all__ = [
    "Calibration",
    "Evidence",
    "Verdict",
    "calibrate",
    "judge",
    "judge_joint",
    "match_probabilities",
    "null_search",
    "overall",
]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Verdict = Literal["linked", "uncertain", "unlinkable"]

_WEAKEST_FIRST: tuple[Verdict, ...] = ("unlinkable", "uncertain", "linked")


@dataclass(frozen=True)
class Evidence:
    """The verdict on a correspondence, with everything it rests on.

    Attributes:
        verdict: `"linked"`: the score is beyond what is needed and clear of the nulls, the matching sharp and agreed
            on; `"unlinkable"`: no clearer than chance; `"uncertain"`: all between.
        score: information that the matches carry, in nats per row that could be matched.
        null_scores: the scores the search reaches where there is nothing to find.
        needed: nats per row that it takes to single out a row, the logarithm of how many there are to choose from.
        sharpness: share of rows whose best partner, by models that never saw them, is their match.
        agreement: how many candidates of the search found this correspondence.
    """

    verdict: Verdict
    score: float
    null_scores: tuple[float, ...]
    needed: float
    sharpness: float
    agreement: int

    @property
    def excess(self) -> float:
        """Score above the mean of the nulls, in nats per row; the whole score where there are none."""
        return self.score - (float(np.mean(self.null_scores)) if self.null_scores else 0.0)


def overall(evidences: Sequence[Evidence]) -> Evidence:
    """Return the evidence of the weakest table: the worst verdict, and among equals the least excess."""
    if not evidences:
        raise InputError("evidences: must hold at least one; found none.")
    return min(evidences, key=lambda evidence: (_WEAKEST_FIRST.index(evidence.verdict), evidence.excess))


def judge(link: PairLink, *, repeats: int = 3, n_jobs: int = 1, deadline: float | None = None) -> Evidence:
    """Return the verdict on what `link_two_tables` found.

    Args:
        link: the correspondence.
        repeats: how many times the link is destroyed and searched for.
        n_jobs: how many candidates are worked on at a time; the answer does not depend on it.
        deadline: `time.monotonic()` after which no further null search begins; without any the verdict is
            `"uncertain"` at best.
    """
    reference, table, permutation, allowed = _in_own_order(link)
    nulls = null_search(
        reference,
        table,
        repeats=repeats,
        options=link.options,
        seed=link.seed,
        allowed=allowed,
        n_jobs=n_jobs,
        deadline=deadline,
    )
    held_out = cross_fit(reference.compact, table.compact, permutation).log_ratios()
    evidence = Evidence(
        "uncertain", link.score, nulls, _needed(permutation, allowed), _sharpness(held_out, permutation, allowed),
        link.agreement,
    )  # fmt: skip
    return replace(evidence, verdict=_verdict(evidence, settled=link.settled))


def judge_joint(
    tables: Sequence[tuple[FloatArray, BoolArray]],
    link: JointLink,
    *,
    constraints: Constraints | None = None,
    repeats: int = 3,
    seed: int = 0,
    deadline: float | None = None,
) -> list[Evidence]:
    """Return the verdict on each table of what `keyless.joint.link_tables` found.

    The score is the log-likelihood ratio of the matches, each table against all the others joined, per row that could
    be matched. Where only a share of them is, that share is also all that is needed.

    Args:
        tables: the standard scores and masks that were linked.
        link: what was found.
        constraints: those it was found under.
        repeats: how many times the link is destroyed and sought.
        seed: of all random numbers.
        deadline: `time.monotonic()` after which no further null search begins.
    """
    nulls = chance_scores(
        tables,
        rank=link.model.rank,
        strangers=link.strangers,
        repeats=repeats,
        seed=seed,
        constraints=constraints,
        deadline=deadline,
    )
    evidences = []
    for permutation, ratios, null in zip(link.permutations, link.log_ratios, nulls, strict=True):
        rows = np.flatnonzero(permutation >= 0)
        choices = (ratios > FORBIDDEN).sum(axis=1 if ratios.shape[0] <= ratios.shape[1] else 0)
        share = rows.size / min(ratios.shape)
        evidence = Evidence(
            "uncertain",
            float(ratios[rows, permutation[rows]].sum()) / min(ratios.shape),
            tuple(null),
            share * float(np.mean(np.log(np.maximum(choices, 1)))),
            _sharpness(ratios, permutation, None) * len(permutation) / max(rows.size, 1),
            len({start.name for start in link.starts}),
        )
        # A few rows can be matched in a few ways only, and the best of them looks right by chance.
        settled = link.convincing and math.lgamma(rows.size + 1) > math.log(1000)
        evidences.append(replace(evidence, verdict=_verdict(evidence, settled=settled)))
    return evidences


def null_search(
    reference: Factors,
    table: Factors,
    *,
    repeats: int = 3,
    options: SearchOptions | None = None,
    seed: int = 0,
    allowed: BoolArray | None = None,
    n_jobs: int = 1,
    deadline: float | None = None,
) -> tuple[float, ...]:
    """Return the scores that the starts of the search reach where there is nothing to find.

    Args:
        reference: factors of the reference.
        table: factors of the table, whose dependence is destroyed.
        repeats: how many times.
        options: those of the search.
        seed: of all random numbers.
        allowed: which pairs of rows may be matched; None: all.
        n_jobs: how many candidates are worked on at a time.
        deadline: `time.monotonic()` after which no further search begins.
    """
    repeats = check_count(repeats, name="repeats")
    options = SearchOptions() if options is None else options
    # As many agreeing as can never be: every start is grown, and nothing else happens.
    cheap = replace(options, beams=False, rounds=0, attempts=1, spaces=min(4, options.spaces), agreeing=10**6)
    rng = np.random.default_rng([seed, 9])
    scores: list[float] = []
    with one_thread():
        for _ in range(repeats):
            if is_late(deadline):
                break
            destroyed = _without_link(table, rng)
            population = Population(reference, destroyed, options=cheap, rng=rng, allowed=allowed, n_jobs=n_jobs)
            population.search()
            scores.append(population.best.score)
    return tuple(scores)


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


def calibrate(link: PairLink, *, repeats: int = 3, seed: int = 0) -> Calibration:
    """Simulate linked tables like these, link them, and learn which stated probabilities are right how often.

    Simulated tables keep the reference's rows and the residual rows of the matched table, exchanged among rows of
    similar size, so that tails stay as they are. Correlations are set so that the simulated tables, once linked, show
    the correlations seen here: fitting and matching inflate them in the simulation as in the data.

    Args:
        link: what `link_two_tables` found.
        repeats: how many tables are simulated.
        seed: of all random numbers.
    """
    ordered, table, permutation, allowed = _in_own_order(link)
    paired = np.flatnonzero(permutation >= 0)
    if len(paired) < 8:
        return Calibration()
    reference, matched = ordered.compact[paired], table.compact[permutation[paired]]
    if allowed is not None:
        allowed = allowed[np.ix_(paired, permutation[paired])]
    rng = np.random.default_rng([seed, 17])
    with one_thread():
        simulation = _Simulation(reference, matched, allowed, rng)
        simulation.tune()
        stated, right = zip(*(simulation.run() for _ in range(repeats)), strict=True)
    return _learned(np.concatenate(stated), np.concatenate(right))


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


def _in_own_order(link: PairLink) -> tuple[Factors, Factors, IntArray, BoolArray | None]:
    """Return the link on rows in an order of their own, so that the one they came in cannot matter."""
    rows, columns = link.reference_factors.row_order, link.table_factors.row_order
    place = np.append(np.argsort(columns), -1)
    allowed = None if link.allowed is None else link.allowed[np.ix_(rows, columns)]
    return link.reference_factors.rows(rows), link.table_factors.rows(columns), place[link.permutation[rows]], allowed


def _without_link(factors: Factors, rng: np.random.Generator) -> Factors:
    """Return the factors with every column's rows permuted on their own, whitened again."""
    shuffled = np.column_stack([rng.permutation(column) for column in factors.scores.T])
    return replace(factors, scores=whitened(shuffled))


def _needed(permutation: IntArray, allowed: BoolArray | None) -> float:
    if allowed is None:
        return float(np.log(len(permutation)))
    return float(np.mean(np.log(np.maximum(allowed.sum(axis=1), 1))))


def _sharpness(log_ratios: FloatArray, permutation: IntArray, allowed: BoolArray | None) -> float:
    """Return the share of matches that are the held-out first choice, averaged over both directions."""
    if allowed is not None:
        log_ratios = np.where(allowed, log_ratios, -np.inf)
    rows = np.flatnonzero(permutation >= 0)
    forth = np.argmax(log_ratios, axis=1)[rows] == permutation[rows]
    back = np.argmax(log_ratios, axis=0)[permutation[rows]] == rows
    return float(forth.sum() + back.sum()) / (2 * len(permutation))


def _verdict(evidence: Evidence, *, settled: bool) -> Verdict:
    if not evidence.null_scores:
        return "uncertain"
    nulls = np.asarray(evidence.null_scores)
    clear = evidence.excess > 3 * float(nulls.std() + 0.05 * nulls.mean() + 0.1)
    if not clear:
        return "unlinkable"
    sharp = evidence.sharpness > 0.5 and evidence.score > evidence.needed
    return "linked" if settled and sharp else "uncertain"
