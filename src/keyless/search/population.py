"""A population of candidate correspondences between two tables of factors, and how it improves.

    starts    first couplings, each grown to all factors
    beams     maps of few factors, in curved (diffusion) and in straight factors, handed on to be grown
    breeding  the best candidates refitted from their surer half, from soft and hard couplings mixed, from crossings and
              from random halves

Candidates are judged by rows held out; the search settles when enough of them found the same correspondence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from keyless.alignment.starts import SPACES, first_couplings
from keyless.likelihood.canonical import Candidate, Matcher, cross_covariance, grown
from keyless.model.factors import Factors, diffusion_factors
from keyless.progress import Deadline, is_late
from keyless.search.beams import beam_search
from keyless.search.options import SearchOptions, in_turn

__all__ = ["Population", "Start", "agreement", "diverse", "offspring", "ranked"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Seed = tuple[str, FloatArray, int]
"""What a candidate grows from: its origin, a cross-covariance S, and how many factors to begin with."""
Report = Callable[[str, int, int, float], object]


@dataclass(frozen=True)
class Start:
    """How one candidate came to be, and how good it was.

    Attributes:
        name: what it was grown from.
        stage: `"starts"`, `"curved beam"`, `"beam"` or `"breeding"`.
        score: cross-fitted information, in nats per row.
    """

    name: str
    stage: str
    score: float


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, best score first."""
    return sorted(candidates, key=lambda candidate: -candidate.score)


def agreement(candidates: Sequence[Candidate], *, share: float = 0.6) -> int:
    """Count the candidates that match the first one on at least a share of the rows, itself included."""
    first = candidates[0].permutation
    return sum(float(np.mean(candidate.permutation == first)) >= share for candidate in candidates)


def diverse(candidates: Sequence[Candidate], keep: int, *, share: float = 0.8) -> list[Candidate]:
    """Return the best candidates of which no two are equal on a share of the rows or more."""
    chosen: list[Candidate] = []
    for candidate in ranked(candidates):
        if all(np.mean(candidate.permutation == other.permutation) < share for other in chosen):
            chosen.append(candidate)
            if len(chosen) == keep:
                break
    return chosen


def offspring(
    parents: Sequence[Candidate], reference: FloatArray, table: FloatArray, rng: np.random.Generator
) -> list[Seed]:
    """Return what the next candidates grow from, four for each parent."""
    half = max(1, len(reference) // 2)
    seeds: list[Seed] = []
    for parent in parents:
        other = parents[int(rng.integers(len(parents)))]
        sure = np.argsort(-parent.confidence, kind="stable")[:half]
        some = rng.permutation(len(reference))[:half]
        seeds += [
            ("confident half", _part(reference, table, parent, sure), 6),
            ("soft and hard mixed", (parent.soft + parent.hard) / 2, int(rng.choice([4, 8, 12]))),
            ("two crossed", (parent.hard + other.hard) / 2, int(rng.choice([4, 6, 10]))),
            ("random half", _part(reference, table, parent, some), int(rng.choice([4, 6, 10]))),
        ]
    return seeds


def _part(reference: FloatArray, table: FloatArray, parent: Candidate, rows: Any) -> FloatArray:
    """Return S of some of a candidate's matches."""
    return cross_covariance(reference[rows], table, parent.permutation[rows])


def _cross_of(coupling: FloatArray, reference: FloatArray, table: FloatArray) -> FloatArray:
    """Return S of a soft correspondence."""
    return np.asarray(reference.T @ (coupling @ table) / reference.dtype.type(len(reference)))


class Population:
    """The candidates for one pair of factor tables.

    Args:
        reference: factors of the reference.
        table: factors of the table.
        options: what may be spent.
        rng: source of everything random.
        allowed: which pairs of rows may be matched; None: all.
        couplings: named couplings to try before all others.
        n_jobs: how many candidates grow at a time; the answer does not depend on it.
        deadline: after which nothing new is begun.
        report: called with stage, step, total and the best score so far.
    """

    def __init__(
        self,
        reference: Factors,
        table: Factors,
        *,
        options: SearchOptions,
        rng: np.random.Generator,
        allowed: BoolArray | None = None,
        couplings: Sequence[tuple[str, FloatArray]] = (),
        n_jobs: int = 1,
        deadline: Deadline | None = None,
        report: Report | None = None,
    ) -> None:
        self.reference, self.table = reference, table
        self.options, self.rng, self.allowed = options, rng, allowed
        self.couplings = tuple(couplings)
        self.n_jobs, self.deadline, self.report = n_jobs, deadline, report
        self.candidates: list[Candidate] = []
        self.starts: list[Start] = []

    @property
    def best(self) -> Candidate:
        """The candidate of highest score."""
        return self.candidates[0]

    @property
    def agreement(self) -> int:
        """How many candidates found what the best one found."""
        return agreement(self.candidates)

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return is_late(self.deadline)

    def search(self) -> bool:
        """Go through all stages until the candidates agree; return whether they did."""
        if self._begin():
            return True
        first, seen = self.candidates, []
        for _ in range(self.options.attempts):
            self.candidates = first
            if self._attempt():
                return True
            seen += self.candidates
            if self.late:
                break
        self.candidates = ranked(seen)
        return False

    def _attempt(self) -> bool:
        """Go through the stages that hang on chance."""
        return (self.options.beams and (self._beam(curved=True) or self._beam(curved=False))) or any(
            self._breed() for _ in range(self.options.rounds)
        )

    def polished(self) -> Candidate:
        """Return the best of the best candidate and two generations of its own offspring."""
        family = [self.best]
        for _ in range(2):
            before = family[0].score
            seeds = offspring(family[:2], self.reference.compact, self.table.compact, self.rng)
            family = ranked(family + self._grown("polishing", seeds))
            if family[0].score <= before + 1e-3:
                break
        return family[0]

    def _begin(self) -> bool:
        """Grow the first couplings; those of a few spaces are enough where most of them agree."""
        given = [(name, self._cross(coupling), 6) for name, coupling in self.couplings]
        spaces = self._spaces
        for batch in (spaces[:4], spaces[4:]):
            found = self._first_maps(self.reference, self.table, batch) if batch else []
            self._add("starts", given + [(name, cross, 6) for name, cross in found])
            given = []
            most = 3 * self.agreement >= 2 * len(self.candidates)
            if most and self.agreement >= 2 * self.options.agreeing and self.best.score > self._needed:
                return True
        return self.agreement >= self.options.agreeing

    @property
    def _spaces(self) -> tuple[tuple[float, int], ...]:
        """(weight, rank) of the spaces in which first couplings are sought."""
        if self.options.weights is None:
            return SPACES[: self.options.spaces]
        ranks = dict.fromkeys(rank for _, rank in SPACES)
        return tuple(product(self.options.weights, ranks))[: self.options.spaces]

    @property
    def _needed(self) -> float:
        return float(np.log(len(self.reference.scores)))

    def _beam(self, *, curved: bool) -> bool:
        """Search among maps of few factors and grow the best ones; return whether the candidates agree."""
        if self.late:
            return False
        reference, table, ranks = self.reference, self.table, self.options.beam_ranks
        if curved:
            reference, table, ranks = diffusion_factors(reference), diffusion_factors(table), ranks[:-1] or ranks
        u, v = reference.compact, table.compact
        spaces = self._spaces
        maps = [cross for _, cross in self._first_maps(reference, table, spaces, straight=True)]
        if curved:
            maps += [cross for _, cross in self._first_maps(reference, table, SPACES)]
        maps += [_cross_of(coupling, u, v) for _, coupling in self.couplings]
        pool = beam_search(
            u,
            v,
            maps,
            width=self.options.beam_width,
            ranks=ranks,
            rng=self.rng,
            steps=self.options.beam_steps,
            allowed=self.allowed,
            n_jobs=self.n_jobs,
            deadline=self.deadline,
            max_correlation=self.options.max_correlation,
            temperature=self.options.temperature,
        )
        matcher = Matcher(
            u,
            v,
            allowed=self.allowed,
            max_correlation=self.options.max_correlation,
            temperature=self.options.temperature,
        )
        stage = "curved beam" if curved else "beam"
        seeds: list[Seed] = []
        for place, (_, cross) in enumerate(pool[: self.options.carried], start=1):
            matcher.restart()
            seeds.append((f"{stage}, place {place}", self._cross(matcher.coupling(cross, iterations=15)), 8))
        self._add(stage, seeds)
        return self.agreement >= self.options.agreeing

    def _breed(self) -> bool:
        """Replace the population by its best, diverse part and their offspring; return whether they agree."""
        if self.late:
            return False
        self.candidates = diverse(self.candidates, self.options.parents)
        self._add("breeding", offspring(self.candidates, self.reference.compact, self.table.compact, self.rng))
        return self.agreement >= self.options.agreeing

    def _cross(self, coupling: FloatArray) -> FloatArray:
        u, v = self.reference.compact, self.table.compact
        return _cross_of(coupling, u, v)

    def _first_maps(
        self,
        reference: Factors,
        table: Factors,
        spaces: Sequence[tuple[float, int]],
        *,
        straight: bool = False,
    ) -> list[tuple[str, FloatArray]]:
        """Return first couplings as cross-covariances of the given factors.

        Couplings are large, so each is given up as soon as its cross-covariance is known. With `straight` they are
        sought in the population's own factors.
        """
        source = (self.reference, self.table) if straight else (reference, table)
        u, v = reference.compact, table.compact
        limit = min(factors.rank for factors in source)
        distinct = dict.fromkeys((weight, min(rank, limit)) for weight, rank in spaces)

        def maps(place: int, space: tuple[float, int]) -> list[tuple[str, FloatArray]]:
            if self.late and (place or self.couplings or self.candidates):
                return []
            couplings = first_couplings(*source, spaces=[space], allowed=self.allowed)
            return [(name, _cross_of(coupling, u, v)) for name, coupling in couplings]

        found = in_turn(maps, enumerate(distinct), n_jobs=self.n_jobs)
        return [item for group in found for item in group]

    def _add(self, stage: str, seeds: Sequence[Seed]) -> None:
        self.candidates = ranked(self.candidates + self._grown(stage, seeds))

    def _grown(self, stage: str, seeds: Sequence[Seed]) -> list[Candidate]:
        """Grow candidates; after the deadline none, but for the very first."""
        u, v = self.reference.compact, self.table.compact
        empty = not self.candidates

        def job(place: int, seed: Seed) -> Candidate | None:
            if self.late and not (empty and place == 0):
                return None
            origin, cross, first_rank = seed
            return grown(
                u,
                v,
                cross,
                allowed=self.allowed,
                first_rank=first_rank,
                max_correlation=self.options.max_correlation,
                temperature=self.options.temperature,
                origin=origin,
            )

        best = -np.inf if empty else self.best.score
        candidates = []
        for step, candidate in enumerate(in_turn(job, enumerate(seeds), n_jobs=self.n_jobs), start=1):
            if candidate is None:
                continue
            candidates.append(candidate)
            self.starts.append(Start(candidate.origin, stage, candidate.score))
            best = max(best, candidate.score)
            if self.report is not None:
                self.report(stage, step, len(seeds), best)
        return candidates
