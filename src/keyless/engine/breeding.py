"""Breed from candidates: what two of them agree about is mostly right, while each is wrong elsewhere.

A child begins with what both parents have, and is refined by predictions of either table's factors, which use more of
what rows say than a map does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyless.engine.refine import FIRST_ROUNDS, TARGETS, Matching, Refinement, smooth_refinement
from keyless.model.factors import Factors
from keyless.pairs.limits import Limits
from keyless.parallel import in_turn, workers
from keyless.progress import Deadline, is_late
from keyless.sizes import TELLING_ROWS

__all__ = ["bred", "can_be_bettered", "stands_out_fully"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

_POOL = 12
"""Candidates that are bred from."""

_ALIKE = 0.95
"""Share of rows with the same partner from which two refined candidates count as one."""

_CHILDREN, _GENERATIONS, _FRUITLESS = 12, 5, 2
"""Children of a generation, the most generations, and how many in a row may bring nothing. Of 260 rows 60 children take
5 s of processor time. Where a fifth of the rows was gone from each of two real tables, they raised the share that is
right from 0.6 to 0.75 (pairs of benchmarks/bench_real.py with other seeds than it reports)."""

_AGREED = 0.25
"""Pairs that two parents share, as a part of the rows of the smaller table, from which they are bred from. Children
of parents with less in common lead nowhere: their partners stood out by a twentieth of what those of others did."""

_BETTER = 1.01
"""Times the strength of the generation before from which a generation brought something."""

_PAIRS_BRED = 8e6
"""Pairs of rows of all children together: five generations of 360 rows, one of 800, none of more."""

_FEW_TARGETS = 12
"""Factors of either table that are predicted at the most while candidates are bred from: with more, a child is so sure
of the wrong pairs it begins with that it keeps them. With 12, children of the same parents were right in 0.75 of the
rows, with 40 in 0.65."""

_BRIEF_ROUNDS = 3
"""Rounds of refining by which the better half of some couplings is told, which then is refined further."""

_FULLY = 0.95
"""Part of log(rows) nats from which partners stand out so far that there is nothing to add."""


def can_be_bettered(best: Matching, deadline: Deadline | None) -> bool:
    """Tell whether rows allow breeding, partners do not stand out fully yet, and there is time."""
    return _generations(best.ratios.shape) > 0 and not stands_out_fully(best) and not is_late(deadline)


def stands_out_fully(matching: Matching) -> bool:
    """Tell whether partners stand out nearly as far as the number of rows allows."""
    return matching.identification >= _FULLY * float(np.log(max(matching.ratios.shape)))


def bred(
    best: Matching,
    pool: Sequence[FloatArray],
    views: Sequence[tuple[Factors, Factors]],
    *,
    limits: Limits,
    by_map: tuple[FloatArray, FloatArray],
    deadline: Deadline | None = None,
) -> Matching:
    """Return the best that pairs of candidates lead to, generation after generation.

    Args:
        best: the best matching so far.
        pool: couplings of other candidates.
        views: factors of both tables; see `keyless.maps.regression.Regression`.
        limits: which pairs may be matched.
        by_map: factors that the map is of.
        deadline: when the best so far is returned.
    """
    few = [count for count in TARGETS if count <= _FEW_TARGETS]
    refinement, begun = smooth_refinement(best, views, limits=limits, by_map=by_map, targets=few, deadline=deadline)
    parents, fruitless = [best, begun, *_refined(refinement, pool, deadline)], 0
    rng = np.random.default_rng(0)
    for _ in range(_generations(limits.shape)):
        parents = _distinct(parents, _POOL)
        strongest = parents[0]
        if len(parents) < 2 or fruitless == _FRUITLESS or not can_be_bettered(strongest, deadline):
            break
        drawn = [rng.choice(len(parents), 2, replace=False) for _ in range(_CHILDREN)]
        children = [np.sqrt(parents[one].coupling * parents[two].coupling) for one, two in drawn]
        agreed = [each for each in children if each.sum() > _AGREED * min(each.shape)]
        parents += _refined(refinement, agreed, deadline)
        better = max(one.strength for one in parents) > _BETTER * strongest.strength
        fruitless = 0 if better else fruitless + 1
    found = max(parents, key=lambda one: one.strength)
    return found if found.better_than(best) else best


def _generations(sizes: tuple[int, ...]) -> int:
    """Return how many generations the number of rows allows."""
    afforded = int(_PAIRS_BRED / (_CHILDREN * sizes[0] * sizes[1]))
    return min(afforded, _GENERATIONS) if min(sizes) >= TELLING_ROWS else 0


def _refined(refinement: Refinement, couplings: Sequence[FloatArray], deadline: Deadline | None) -> list[Matching]:
    """Return what the better half of some couplings becomes when it is refined; which half, a few rounds tell."""
    briefly = _run(refinement, [(coupling, None) for coupling in couplings], _BRIEF_ROUNDS, deadline)
    better = sorted(briefly, key=lambda one: -one.strength)[: -(-len(briefly) // 2)]
    rest = FIRST_ROUNDS - _BRIEF_ROUNDS
    further = _run(refinement, [(one.coupling, one.common) for one in better], rest, deadline)
    return [max(pair, key=lambda one: one.strength) for pair in zip(better, further, strict=True)]


def _run(
    refinement: Refinement,
    begun: Sequence[tuple[FloatArray, float | None]],
    rounds: int,
    deadline: Deadline | None,
) -> list[Matching]:
    """Refine couplings, each with the number of pairs that it is thought to have, for so many rounds at most."""

    def refine(coupling: FloatArray, common: float | None) -> Matching:
        return refinement.run(coupling, rounds=rounds, common=common, deadline=deadline)

    return list(in_turn(refine, begun, n_jobs=max(1, min(workers(), len(begun)))))


def _distinct(matchings: Sequence[Matching], most: int) -> list[Matching]:
    """Return the strongest matchings that give different partners to rows."""
    found: list[tuple[Matching, IntArray]] = []
    for one in sorted(matchings, key=lambda matching: -matching.strength):
        if len(found) == most:
            break
        partners = one.ratios.argmax(axis=1)
        if all(np.mean(partners == other) < _ALIKE for _, other in found):
            found.append((one, partners))
    return [one for one, _ in found]
