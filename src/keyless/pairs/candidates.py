"""From candidates to matches: log-likelihood ratios of few pairs, their probabilities, and the best assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import BoolArray, FloatArray, IntArray, SingleArray, batches, to_numpy
from keyless.assignment.in_parts import match_in_parts
from keyless.cluster import LOCAL, Workers
from keyless.model.positions import Entities, Places, rows_at_a_time
from keyless.pairs.likelihood import exact_log_ratio, marginals
from keyless.pairs.nearest_rows import HOPELESS, find_nearest_rows
from keyless.pairs.posterior import best_other, largest, pair_places, prior_log_odds

__all__ = ["Candidates", "Matched", "find_candidates", "limited", "match_candidates", "sure_pairs"]

Permits = Callable[[IntArray, IntArray], BoolArray]

_NEGLIGIBLE = -20.0
"""Pairs of lower log-odds are no candidates."""

_PAIRS_OF_A_TASK = 2**18
"""Pairs whose ratios one worker works out at a time, where rows have gaps of their own."""

_MUST = 100.0
"""Log-ratio of pairs that are known: beyond doubt, whatever the number of rows."""

_PAIR, _WORST = 1e4, 1e3
"""Where every row has a partner, what a pair is worth, and how far behind the best of its row it counts at most."""

_SURE = 0.99


@dataclass(frozen=True, eq=False)
class Candidates:
    """Pairs of rows that may be the same entity.

    Attributes:
        ratios: left rows × right rows, the log-likelihood ratio of each candidate pair.
        evaluations: distances looked at to find them.
        recall: share of sampled rows whose likeliest partner was found.
        runner_up: per left row, the second largest ratio seen, whether or not that pair is a candidate.
    """

    ratios: sparse.csr_array
    runner_up: SingleArray
    evaluations: int = 0
    recall: float = 1.0

    def __add__(self, other: Candidates) -> Candidates:
        """Return both sets of pairs; a pair of both must have the same ratio."""
        places = [pair_places(candidates.ratios) for candidates in (self, other)]
        pair = np.concatenate([rows * self.ratios.shape[1] + columns for rows, columns in places])
        _, first = np.unique(pair, return_index=True)
        data = np.concatenate([self.ratios.data, other.ratios.data])[first]
        both = sparse.csr_array((data, divmod(pair[first], self.ratios.shape[1])), shape=self.ratios.shape)
        runner_up = np.maximum(self.runner_up, other.runner_up)
        return Candidates(both, runner_up, self.evaluations + other.evaluations, min(self.recall, other.recall))


@dataclass(frozen=True, eq=False)
class Matched:
    """Who belongs to whom.

    Attributes:
        permutation: per left row, its right row, −1 for none.
        coupling: probabilities of the candidate pairs, sparse.
        ratio: log-likelihood ratio of each match, 0 without one.
        margin: the same, less that of the row's best other candidate; ∞ where there is none.
        ratios: log-likelihood ratios of the candidate pairs, sparse.
        may_be_alone: whether rows may have no partner.
        gap: by how much, in nats over all rows, a better assignment of the candidates could exceed this one at most.
        components: groups of rows that had to be decided together.
        largest: candidate pairs in the largest of them.
    """

    permutation: IntArray
    coupling: sparse.csr_array
    ratio: FloatArray
    margin: FloatArray
    ratios: sparse.csr_array
    may_be_alone: bool
    gap: float
    components: int
    largest: int

    @property
    def stated(self) -> FloatArray:
        """Probability of each match; of having no partner where there is none."""
        rows = np.arange(len(self.permutation))
        partner = np.asarray(self.coupling[rows, np.maximum(self.permutation, 0)]).ravel()
        return np.clip(np.where(self.permutation >= 0, partner, 1 - self.coupling.sum(axis=1)), 0.0, 1.0)


def find_candidates(
    left: Entities,
    right: Entities,
    places: Places,
    *,
    parts: Iterable[tuple[IntArray | None, IntArray | None]] = ((None, None),),
    every: bool = False,
    further: bool = False,
    seed: int = 0,
) -> Candidates:
    """Return, for left rows, the likeliest right rows.

    Args:
        left: one side.
        right: the other, about the same latents.
        places: where the rows of both stand.
        parts: left rows to look for partners of, each once, and right rows to look among; None: all.
        every: keep hopeless ones too.
        further: rows whose partner may well not be among the nearest look at more of them.
        seed: of the search.
    """
    exact = left.uniform and right.uniform
    shape = (len(places[0]), len(places[1]))
    lowest = -np.inf if every else _floor(shape)
    runner_up = np.full(shape[0], -np.inf, dtype=np.float32)
    listed: list[tuple[IntArray, IntArray, SingleArray]] = []
    evaluations, recall = 0, 1.0
    for part in parts:
        near = find_nearest_rows(
            places, part, exact=exact, further=further, lowest=lowest if exact else -np.inf, seed=seed
        )
        runner_up[near.asked] = near.runner_up
        listed.append((near.rows, near.columns, near.values))
        evaluations, recall = evaluations + near.evaluations, min(recall, near.recall)
        del near
    rows, columns, ratios = (_end_to_end([part[k] for part in listed]) for k in range(3))
    del listed
    pairs, ratios = (rows, columns), ratios.astype(np.float64)
    if not exact:
        ratios = exact_ratios(left, right, *pairs)
    if not every:
        # What is hopeless beside the row's best is dropped at once: most rows keep one candidate.
        best = largest(pairs[0], ratios, shape[0])
        keep = ratios > np.maximum(best[pairs[0]] - HOPELESS, lowest)
        pairs, ratios = (pairs[0][keep], pairs[1][keep]), ratios[keep]
    return Candidates(sparse.csr_array((ratios, pairs), shape=shape), runner_up, evaluations, recall)


def _end_to_end(parts: list[Any]) -> Any:
    """Return several arrays as one; a single one as it is, since copies of millions of pairs are large."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=np.int32), *parts])


def exact_ratios(left: Entities, right: Entities, rows: IntArray, columns: IntArray) -> FloatArray:
    """Return the log-likelihood ratios of listed pairs, each row's own gaps taken into account."""
    workers, parts = left.workers, []
    for part in batches(len(rows), _PAIRS_OF_A_TASK):
        own, place = np.unique(rows[part], return_inverse=True)
        sides = left.taken(own), right.taken(columns[part])
        parts.append(workers.start(_exact_part, *sides, place, workers.device))
    return np.concatenate([np.empty(0), *workers.fetch(parts)])


def _exact_part(left: Entities, right: Entities, place: IntArray, device: Any) -> FloatArray:
    """Return the log-likelihood ratios of right entities, each with the left one at its place."""
    found = np.empty(len(place))
    for part in batches(len(place), rows_at_a_time(device)):
        # A row has several candidates: what is known of it is worked out once.
        own, row = np.unique(place[part], return_inverse=True)
        known = left.information(own, device), right.information(part, device)
        found[part] = to_numpy(exact_log_ratio(*known, row, np.arange(len(row)), chunk=len(row)))
    return found


def sure_pairs(found: Candidates, rows: IntArray, odds: float, permits: Permits | None) -> IntArray:
    """Return the pairs that are each other's best, and likelier than all else by far.

    Args:
        found: the candidates.
        rows: left rows of which some are wanted.
        odds: prior log-odds of a pair.
        permits: tells which pairs may be; None: all.
    """
    ratios = found.ratios[rows]
    index, columns = pair_places(ratios)
    values = ratios.data + odds
    if permits is not None:
        kept = permits(rows[index], columns)
        index, columns, values = index[kept], columns[kept], values[kept]
    best = largest(index, values, len(rows))
    total = np.zeros(len(rows))
    np.add.at(total, index, np.exp(values - best[index]))
    top = (values == best[index]) & (values > 3.0) & (total[index] < 1.05)
    order = np.argsort(-values[top], kind="stable")
    pairs = np.stack([rows[index[top]], columns[top]], axis=1)[order]
    _, first = np.unique(pairs[:, 1], return_index=True)
    _, again = np.unique(pairs[first, 0], return_index=True)
    return pairs[first[again]]


def match_candidates(
    candidates: Candidates,
    *,
    may_be_alone: bool | None,
    permits: Permits | None = None,
    known: IntArray | None = None,
    remaining: Callable[[], float | None] = lambda: None,
    workers: Workers = LOCAL,
) -> Matched:
    """Return probabilities and the best assignment of candidate pairs.

    Args:
        candidates: the pairs.
        may_be_alone: whether rows may have no partner; None: decided from the data, as for small tables.
        permits: tells which pairs may be; None: all.
        known: k × 2 rows that are sure to be partners.
        remaining: tells the seconds left for the assignment; after them the best so far counts, and its gap says how
            good it is.
        workers: who works.
    """
    ratios = limited(candidates.ratios, permits, known)
    smaller = min(ratios.shape)
    coupling, odds = _coupled(ratios, 0.9 * smaller, rounds=20)
    if may_be_alone is None:
        alone = 1 - coupling.sum(axis=int(ratios.shape[0] > ratios.shape[1]) ^ 1)
        may_be_alone = ratios.shape[0] != ratios.shape[1] or int((alone > _SURE).sum()) > max(2, smaller / 200)
    if not may_be_alone:
        coupling, odds = _coupled(ratios, float(smaller), rounds=1)
    gains = _same_pairs(ratios)
    gains.data = ratios.data + odds
    if not may_be_alone:
        # As many pairs as can be made: a pair more is worth more than any choice among pairs. Every row of the smaller
        # side gets one, so that it does not matter what is taken off all of its pairs.
        line = pair_places(ratios)[int(ratios.shape[0] > ratios.shape[1])]
        best = largest(line, ratios.data, smaller)
        gains.data = _PAIR + np.maximum(ratios.data - best[line], -_WORST)
    found = match_in_parts(gains, workers=workers, remaining=remaining)
    permutation = np.asarray(found.permutation, dtype=np.int64)
    own = _own_ratios(ratios, permutation)
    other = best_other(ratios, permutation)
    other = np.where(np.isneginf(other), candidates.runner_up, other)
    if known is not None:
        other[known[:, 0]] = -np.inf
    return Matched(
        permutation=permutation,
        coupling=coupling,
        ratio=own,
        margin=np.where(np.isneginf(other), np.inf, own - other),
        ratios=ratios,
        may_be_alone=may_be_alone,
        gap=float(found.gap),
        components=int(found.components),
        largest=int(found.largest),
    )


def _floor(shape: tuple[int, int]) -> float:
    """Return the ratio below which no pair is a candidate, however many rows have partners."""
    return _NEGLIGIBLE - max(0.0, prior_log_odds(shape, float(min(shape))))


def limited(ratios: sparse.csr_array, permits: Permits | None, known: IntArray | None) -> sparse.csr_array:
    """Return the pairs that may be, and those that are known."""
    if permits is None and known is None:
        return ratios
    rows, columns = pair_places(ratios)
    keep = np.ones(len(rows), dtype=bool) if permits is None else permits(rows, columns)
    pairs, values = [rows[keep], columns[keep]], ratios.data[keep]
    if known is not None:
        free = ~(np.isin(pairs[0], known[:, 0]) | np.isin(pairs[1], known[:, 1]))
        pairs = [np.concatenate([side[free], known[:, k]]) for k, side in enumerate(pairs)]
        values = np.concatenate([values[free], np.full(len(known), _MUST)])
    return sparse.csr_array((values, (pairs[0], pairs[1])), shape=ratios.shape)


def _coupled(ratios: sparse.csr_array, common: float, *, rounds: int) -> tuple[sparse.csr_array, float]:
    """Return the probabilities, and the prior log-odds of a pair; how many rows have partners is estimated too."""
    weights, smaller = _same_pairs(ratios), min(ratios.shape)
    for step in range(rounds):
        odds = prior_log_odds(ratios.shape, common)
        weights.data = np.maximum(ratios.data + odds, _NEGLIGIBLE)
        # How many pairs there are is known long before each of them is.
        before, common = common, float(marginals(weights, max_iter=10).sum()) if step + 1 < rounds else common
        if abs(common - before) < 1e-3 * smaller:
            break
    return marginals(weights), odds


def _same_pairs(ratios: sparse.csr_array) -> sparse.csr_array:
    """Return an array whose data can be set anew; which pairs there are is not copied."""
    return sparse.csr_array((ratios.data, ratios.indices, ratios.indptr), shape=ratios.shape)


def _own_ratios(ratios: sparse.csr_array, permutation: IntArray) -> FloatArray:
    rows = np.arange(len(permutation))
    found = np.asarray(ratios[rows, np.maximum(permutation, 0)]).ravel()
    return np.where(permutation >= 0, found, 0.0)
