"""Beams: populations of maps between a few factors of two tables, the number of factors rising.

At few factors the evidence bound of the right map stands out, since soft couplings cannot overfit there; but the way to
it is rugged. So many maps are improved by expectation-maximisation and changed at random: signs of canonical pairs
flipped, pairs swapped, small rotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyless.likelihood.canonical import SOFT_MAX_CORRELATION, Matcher
from keyless.progress import Deadline, is_late
from keyless.search.options import in_turn

__all__ = ["beam_search"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Bounded = tuple[float, FloatArray]
"""The evidence bound of a map, and the map: its cross-covariance S."""


def beam_search(
    reference: FloatArray,
    table: FloatArray,
    starts: Sequence[FloatArray],
    *,
    width: int,
    ranks: Sequence[int],
    rng: np.random.Generator,
    steps: int = 10,
    allowed: BoolArray | None = None,
    n_jobs: int = 1,
    deadline: Deadline | None = None,
    max_correlation: float = SOFT_MAX_CORRELATION,
    temperature: float = 1.0,
) -> list[Bounded]:
    """Return maps of high evidence bound, highest first, at the last rank reached.

    Args:
        reference: whitened factors of the reference, in single precision.
        table: whitened factors of the table.
        starts: cross-covariances to begin with; as many again and more are drawn at random.
        width: how many maps survive each round.
        ranks: numbers of factors, rising; numbers beyond what the tables have are used once.
        rng: source of the random maps and changes.
        steps: soft steps per map and rank.
        allowed: which pairs of rows may be matched; None: all.
        n_jobs: how many maps are improved at a time; the answer does not depend on it.
        deadline: after which only what is at hand is returned.
        max_correlation: see `Matcher`.
        temperature: see `Matcher`.
    """
    pool: list[Bounded] = []
    sizes = dict.fromkeys((min(rank, reference.shape[1]), min(rank, table.shape[1])) for rank in ranks)
    for p, q in sizes:
        if pool:
            trials = [_extended(cross, p, q, rng) for _, cross in pool for _ in range(2)]
        else:
            trials = [np.asarray(cross[:p, :q], dtype=np.float32) for cross in starts]
            trials += [_random_map(p, q, rng, near_axes=k % 2 == 1) for k in range(2 * width)]
        leading = np.ascontiguousarray(reference[:, :p]), np.ascontiguousarray(table[:, :q])
        matchers = [
            Matcher(*leading, allowed=allowed, max_correlation=max_correlation, temperature=temperature)
            for _ in range(max(1, n_jobs))
        ]
        race = _Race(matchers, deadline)
        reached = race.run(trials, steps=steps, keep=width)
        mutants = [_mutated(cross, rng, kind) for _, cross in reached for kind in ("flip", "flips", "swap", "rotate")]
        reached = _distinct(reached + race.run(mutants, steps=steps, keep=width), width)
        if is_late(deadline):
            return pool or reached
        pool = reached
    return pool


class _Race:
    """Improves maps of one size: all of them for a third of the steps, the better half for the rest."""

    def __init__(self, matchers: Sequence[Matcher], deadline: Deadline | None) -> None:
        self.matchers, self.deadline = matchers, deadline

    def run(self, trials: Sequence[FloatArray], *, steps: int, keep: int) -> list[Bounded]:
        early = max(2, steps // 3)
        first = self._improved(trials, early)
        survivors = [cross for _, cross in _distinct(first, max(keep, len(first) // 2))]
        return _distinct(self._improved(survivors, max(1, steps - early)), keep)

    def _improved(self, trials: Sequence[FloatArray], steps: int) -> list[Bounded]:
        lanes = len(self.matchers)
        tasks = [(matcher, trials[lane::lanes], steps) for lane, matcher in enumerate(self.matchers)]
        improved: list[Bounded] = [(-np.inf, cross) for cross in trials]
        for lane, results in enumerate(in_turn(self._lane, tasks, n_jobs=lanes)):
            improved[lane::lanes] = results
        return improved

    def _lane(self, matcher: Matcher, trials: Sequence[FloatArray], steps: int) -> list[Bounded]:
        results = []
        for trial in trials:
            cross, bound = trial, -np.inf
            matcher.restart()
            for _ in range(0 if is_late(self.deadline) else steps):
                cross, bound = matcher.step(cross)
            results.append((bound, cross))
        return results


def _distinct(pool: Sequence[Bounded], keep: int, *, tolerance: float = 0.15) -> list[Bounded]:
    """Return the best maps that differ pairwise by more than `tolerance` of their size."""
    chosen: list[Bounded] = []
    for bound, cross in sorted(pool, key=lambda item: -item[0]):
        size = np.linalg.norm(cross)
        if np.isfinite(bound) and all(np.linalg.norm(cross - other) > tolerance * size for _, other in chosen):
            chosen.append((bound, cross))
            if len(chosen) == keep:
                break
    return chosen


def _extended(cross: FloatArray, p: int, q: int, rng: np.random.Generator) -> FloatArray:
    """Return a map of more factors, the new entries small and random."""
    larger = (0.1 * rng.standard_normal((p, q))).astype(np.float32)
    larger[: cross.shape[0], : cross.shape[1]] = cross
    return larger


def _random_map(p: int, q: int, rng: np.random.Generator, *, near_axes: bool) -> FloatArray:
    noise = rng.standard_normal((p, q))
    if near_axes:
        noise *= 0.25
        diagonal = np.arange(min(p, q))
        noise[diagonal, diagonal] += rng.choice([-1.0, 1.0], diagonal.size)
    left, _, right = np.linalg.svd(noise, full_matrices=False)
    return np.asarray(0.8 * left @ right, dtype=np.float32)


def _mutated(cross: FloatArray, rng: np.random.Generator, kind: str) -> FloatArray:
    left, rho, right = np.linalg.svd(cross, full_matrices=False)
    size = len(rho)
    signs = np.ones(size)
    if kind == "flip" or size < 2:
        signs[rng.integers(size)] = -1
    elif kind == "flips":
        signs[rng.choice(size, 2, replace=False)] = -1
    elif kind == "swap":
        pair = rng.choice(size, 2, replace=False)
        right[pair] = right[pair[::-1]]
        signs[pair] = rng.choice([-1.0, 1.0], 2)
    else:
        turn = 0.4 * rng.standard_normal((size, size))
        rotation, _ = np.linalg.qr(np.eye(size) + turn - turn.T)
        right = rotation @ right
        rho = np.sqrt(0.7 * rho)
    return np.asarray((left * (np.maximum(rho, 0.3) * signs)) @ right, dtype=np.float32)
