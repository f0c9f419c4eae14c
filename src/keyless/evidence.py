"""Is there a link at all?

The link is destroyed (every factor of one table gets its rows permuted on its own: distributions stay, dependence goes)
and a cheap version of the same search runs on that; what it finds is what chance can reach. A score above that proves
little alone, for two tables may share structure without sharing entities, so the verdict also asks that the matching
be sharp, and found more than once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from keyless.arrays import check_count
from keyless.errors import InputError
from keyless.joint import JointLink
from keyless.joint.chance import chance_scores
from keyless.joint.clusters import table_latents
from keyless.joint.held_out import held_out_log_ratios, held_out_score
from keyless.landmarks import LargeLink
from keyless.likelihood import FORBIDDEN
from keyless.likelihood.canonical import cross_fit, mirrored_share
from keyless.model.factors import Factors, whitened
from keyless.pairs.constraints import Constraints
from keyless.progress import Callback, Deadline, is_late
from keyless.search.options import SearchOptions, one_thread
from keyless.search.population import Population
from keyless.search.two_tables import PairLink

__all__ = [
    "Evidence",
    "Verdict",
    "allowed_counts",
    "judge",
    "judge_joint",
    "judge_large",
    "null_search",
    "overall",
]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Verdict = Literal["linked", "uncertain", "unlinkable"]

_MIRRORED = 0.85
"""A mirror image that is this good makes a link uncertain. Right links seen so far stay below 0.7."""

_WEAKEST_FIRST: tuple[Verdict, ...] = ("unlinkable", "uncertain", "linked")


@dataclass(frozen=True)
class Evidence:
    """The verdict on a correspondence, with everything it rests on.

    Attributes:
        verdict: `"linked"`: the score is beyond what is needed and clear of the nulls, the matching sharp and agreed
            on, and no mirror image of it as good; `"unlinkable"`: no clearer than chance; `"uncertain"`: all between.
        score: information that the matches carry, in nats per row that could be matched.
        null_scores: the scores the search reaches where there is nothing to find.
        needed: nats per row that it takes to single out a row, the logarithm of how many there are to choose from.
        sharpness: share of rows whose best partner, by models that never saw them, is their match.
        agreement: how many candidates of the search found this correspondence, or scored as high.
        mirrored: information of the best mirror image of the correspondence, as a share of its own. Near 1, rows come
            in mirror images and nothing in the numbers tells them apart; a few known pairs do. 0 where not looked at.
    """

    verdict: Verdict
    score: float
    null_scores: tuple[float, ...]
    needed: float
    sharpness: float
    agreement: int
    mirrored: float = 0.0

    @property
    def excess(self) -> float:
        """Score above the mean of the nulls, in nats per row; the whole score where there are none."""
        return self.score - (float(np.mean(self.null_scores)) if self.null_scores else 0.0)


def overall(evidences: Sequence[Evidence]) -> Evidence:
    """Return the evidence of the weakest table: the worst verdict, and among equals the least excess."""
    if not evidences:
        raise InputError("evidences: must hold at least one; found none.")
    return min(evidences, key=lambda evidence: (_WEAKEST_FIRST.index(evidence.verdict), evidence.excess))


def judge(
    link: PairLink,
    *,
    repeats: int = 3,
    known: bool = False,
    n_jobs: int = 1,
    deadline: Deadline | None = None,
    callback: Callback | None = None,
) -> Evidence:
    """Return the verdict on what `link_two_tables` found.

    Args:
        link: the correspondence.
        repeats: how many times the link is destroyed and searched for.
        known: whether the caller knows some pairs, which settles what mirror images leave open.
        n_jobs: how many candidates are worked on at a time; the answer does not depend on it.
        deadline: after which no further null search begins; without any the verdict is
            `"uncertain"` at best.
        callback: called after every null search, with stage `"chance"` and the score it reached.
    """
    reference, table, permutation, allowed = link.in_own_order()
    nulls = null_search(
        reference,
        table,
        repeats=repeats,
        options=link.options,
        seed=link.seed,
        allowed=allowed,
        n_jobs=n_jobs,
        deadline=deadline,
        callback=callback,
    )
    held_out = cross_fit(reference.compact, table.compact, permutation).log_ratios()
    evidence = Evidence(
        "uncertain", link.score, nulls, _needed(permutation, allowed), _sharpness(held_out, permutation, allowed),
        link.agreement,
        0.0 if known else _mirrored(reference.scores, table.scores, permutation, allowed),
    )  # fmt: skip
    return replace(evidence, verdict=_verdict(evidence, settled=link.settled))


def judge_joint(
    tables: Sequence[tuple[FloatArray, BoolArray]],
    link: JointLink,
    *,
    constraints: Constraints | None = None,
    repeats: int = 3,
    seed: int = 0,
    deadline: Deadline | None = None,
    callback: Callback | None = None,
) -> list[Evidence]:
    """Return the verdict on each table of what `keyless.joint.link_tables` found.

    The score is the log-likelihood ratio of the matches, each table against all the others joined, by models that have
    not seen them, per row that could be matched. Where only a share of them is, that share is also all that is needed.

    Args:
        tables: the standard scores and masks that were linked.
        link: what was found.
        constraints: those it was found under.
        repeats: how many times the link is destroyed and sought.
        seed: of all random numbers.
        deadline: after which no further null search begins.
        callback: called after every null search, with stage `"chance"` and the mean score it reached.
    """
    nulls = chance_scores(
        tables,
        rank=link.model.rank,
        strangers=link.strangers,
        repeats=repeats,
        seed=seed,
        constraints=constraints,
        deadline=deadline,
        callback=callback,
    )
    held_out = held_out_log_ratios(tables, link.rows, rank=link.model.rank + 2)
    best = max((start.score for start in link.starts), default=0.0)
    agreement = sum(start.score >= best - 0.01 * abs(best) for start in link.starts)
    evidences = []
    latents = table_latents(link.model, tables)
    for permutation, ratios, unseen, null, theirs in zip(
        link.permutations, link.log_ratios, held_out, nulls, latents[1:], strict=True
    ):
        rows = np.flatnonzero(permutation >= 0)
        allowed = ratios > FORBIDDEN
        choices = allowed.sum(axis=1 if ratios.shape[0] <= ratios.shape[1] else 0)
        share = rows.size / min(ratios.shape)
        told = constraints is not None and bool(constraints.known)
        mirrored = 0.0 if told else _mirrored(latents[0], theirs, permutation, None if allowed.all() else allowed)
        evidence = Evidence(
            "uncertain",
            held_out_score(unseen, rows, permutation[rows]),
            tuple(null),
            share * float(np.mean(np.log(np.maximum(choices, 1)))),
            _sharpness(unseen, permutation, allowed) * len(permutation) / max(rows.size, 1),
            agreement,
            mirrored,
        )
        # A few rows can be matched in a few ways only, and the best of them looks right by chance.
        settled = link.convincing and math.lgamma(rows.size + 1) > math.log(1000)
        evidences.append(replace(evidence, verdict=_verdict(evidence, settled=settled)))
    return evidences


def judge_large(link: LargeLink, *, sizes: Sequence[int], constraints: Constraints | None = None) -> list[Evidence]:
    """Return the verdict on each table of what `keyless.landmarks.LargeSearch` found.

    The score is that of rows the model was not fitted to; it is compared with what the same search reaches where the
    link is destroyed, and a map counts only where landmarks that had no part in it confirm it.

    Args:
        link: what was found.
        sizes: rows of each table, the reference first.
        constraints: those it was found under.
    """
    evidences = []
    told = constraints is not None and bool(constraints.known)
    for number, (found, test, chance) in enumerate(zip(link.maps, link.tests, link.chance, strict=True), start=1):
        choices = np.log(np.maximum(allowed_counts(constraints, number, sizes), 1)).mean()
        # Rows of the smaller table choose among those of the larger.
        choices += max(np.log(sizes[0] / sizes[number]), 0.0)
        evidence = Evidence(
            "uncertain",
            test.score,
            chance,
            test.share * float(choices),
            test.sharpness,
            found.agreeing,
            0.0 if told else _mirrored(*test.latents, np.arange(len(test.latents[0])), None),
        )
        settled = found.found and test.share > 0.01
        evidences.append(replace(evidence, verdict=_verdict(evidence, settled=settled)))
    return evidences


def allowed_counts(constraints: Constraints | None, number: int, sizes: Sequence[int]) -> IntArray:
    """Return how many rows of a table each reference row may be matched to, without looking at all pairs.

    Args:
        constraints: which rows may, must or must not be the same entity.
        number: of the table.
        sizes: rows of each table.
    """
    count = np.full(sizes[0], sizes[number], dtype=np.int64)
    if constraints is None:
        return count
    left, right = (constraints.groups[0], constraints.groups[number]) if constraints.groups else (None, None)
    known = constraints.known.get((0, number), np.empty((0, 2), dtype=np.int64))
    free = np.ones(sizes[number], dtype=bool)
    free[known[:, 1]] = False
    if left is None or right is None:
        count[:] = free.sum()
    else:
        labels, members = np.unique(right[free], return_counts=True)
        any_group = int(members[labels < 0].sum())
        # With a label that nobody has there is always one to compare with.
        labels, members = np.append(-2, labels[labels >= 0]), np.append(0, members[labels >= 0])
        place = np.minimum(np.searchsorted(labels, left), len(labels) - 1)
        own = np.where(labels[place] == left, members[place], 0)
        count = np.where(left < 0, free.sum(), own + any_group)
    forbidden = constraints.forbidden.get((0, number))
    if forbidden is not None:
        # Those that could not be anyway are no loss.
        pairs = np.unique(forbidden, axis=0)
        possible = replace(constraints, forbidden={}).permits(0, number, pairs[:, 0], pairs[:, 1])
        np.subtract.at(count, pairs[possible, 0], 1)
    count[known[:, 0]] = 1
    return count


def null_search(
    reference: Factors,
    table: Factors,
    *,
    repeats: int = 3,
    options: SearchOptions | None = None,
    seed: int = 0,
    allowed: BoolArray | None = None,
    n_jobs: int = 1,
    deadline: Deadline | None = None,
    callback: Callback | None = None,
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
        deadline: after which no further search begins.
        callback: called after every search, with stage `"chance"` and the score it reached.
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
            if callback is not None:
                callback("chance", len(scores), repeats, scores[-1])
    return tuple(scores)


def _without_link(factors: Factors, rng: np.random.Generator) -> Factors:
    """Return the factors with every column's rows permuted on their own, whitened again."""
    shuffled = np.column_stack([rng.permutation(column) for column in factors.scores.T])
    return replace(factors, scores=whitened(shuffled))


def _needed(permutation: IntArray, allowed: BoolArray | None) -> float:
    if allowed is None:
        return float(np.log(len(permutation)))
    return float(np.mean(np.log(np.maximum(allowed.sum(axis=1), 1))))


def _mirrored(reference: FloatArray, table: FloatArray, permutation: IntArray, allowed: BoolArray | None) -> float:
    """`mirrored_share` of the matched rows, given any factors of all rows; 0 where there are too few to tell."""
    rows = np.flatnonzero(permutation >= 0)
    if len(rows) < 2 * max(reference.shape[1], table.shape[1]):
        return 0.0
    pairs = None if allowed is None else allowed[np.ix_(rows, permutation[rows])]
    return mirrored_share(whitened(reference[rows]), whitened(table[permutation[rows]]), allowed=pairs)


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
    return "linked" if settled and sharp and evidence.mirrored < _MIRRORED else "uncertain"
