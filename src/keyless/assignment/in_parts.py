"""The best matching of many candidates, component by component, by whoever works."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse

from keyless.assignment import OneToOne, best_matching
from keyless.assignment.candidates import keep_pairs, row_components
from keyless.cluster import Workers

__all__ = ["match_in_parts"]


PAIRS = 2**18
"""Candidate pairs that one worker matches at a time, at least, and all of a component together."""

_STEPS, _STEPS_PER_ROW = 500_000, 10
"""What the exact assignment may take: far more than rows that can be told apart need, and bounded where many cannot."""


def match_in_parts(
    gains: sparse.csr_array, *, workers: Workers, remaining: Callable[[], float | None] = lambda: None
) -> OneToOne:
    """Return the matching of largest total gain, as `best_matching` does, of connected components by themselves.

    The gap is the sum of those of the parts. What is matched together depends on the pairs alone.

    Args:
        gains: rows × columns, what each pair gains that may be made; a canonical array.
        workers: who works.
        remaining: tells how many seconds are left; None: any number.
    """
    if gains.nnz <= PAIRS:
        return _matched(gains, remaining())
    paying = keep_pairs(gains, gains.data > 0)
    rows, places = np.repeat(np.arange(paying.shape[0]), np.diff(paying.indptr)), paying.indices
    # Most rows have one candidate, whose only candidate they are.
    lone = (np.diff(paying.indptr)[rows] == 1) & (np.bincount(places, minlength=gains.shape[1])[places] == 1)
    permutation = np.full(gains.shape[0], -1, dtype=np.int64)
    permutation[rows[lone]] = places[lone]
    surely = float(paying.data[lone].sum(dtype=np.float64))
    paying = keep_pairs(paying, ~lone)
    busy = np.flatnonzero(np.diff(paying.indptr))
    paying = paying[busy]
    component = row_components(paying)
    size = np.bincount(component, weights=np.diff(paying.indptr))
    # Components follow each other; a part begins wherever enough pairs have come together.
    part = ((np.cumsum(size) - size) // PAIRS).astype(np.int64)[component]
    order = np.argsort(part, kind="stable")
    chosen = np.split(order, np.searchsorted(part[order], np.arange(1, int(part.max(initial=0)) + 1)))
    chosen = [own for own in chosen if len(own)]
    started, columns = [], []
    for own in chosen:
        some = paying[own]
        there, place = np.unique(some.indices, return_inverse=True)
        bare = sparse.csr_array((some.data, place, some.indptr), shape=(len(own), len(there)))
        started.append(workers.start(_matched, bare, remaining()))
        columns.append(there)
    found = workers.fetch(started)
    for own, there, match in zip(chosen, columns, found, strict=True):
        has = match.permutation >= 0
        permutation[busy[own[has]]] = there[match.permutation[has]]
    return OneToOne(
        permutation,
        surely + sum(match.gain for match in found),
        surely + sum(match.bound for match in found),
        sum(match.components for match in found),
        max((match.largest for match in found), default=0),
    )


def _matched(gains: sparse.csr_array, max_time: float | None) -> OneToOne:
    return best_matching(gains, max_time=max_time, max_steps=_STEPS + _STEPS_PER_ROW * gains.shape[0])
