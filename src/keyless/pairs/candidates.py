"""Candidates: the pairs of rows that may be the same entity, and their log-likelihood ratios."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray, IntArray, SingleArray, batches, to_numpy
from keyless.model.positions import Entities, Places, rows_at_a_time
from keyless.pairs.likelihood import exact_log_ratio
from keyless.pairs.limits import Limits, Part
from keyless.pairs.nearest_rows import HOPELESS, find_nearest_rows
from keyless.pairs.posterior import largest, pair_places, prior_log_odds

__all__ = ["Candidates", "exact_ratios", "find_candidates", "limited", "permitted", "sure_pairs"]

_NEGLIGIBLE = -20.0
"""Log-odds, in nats, below which a pair is no candidate."""

_PAIRS_OF_A_TASK = 2**18
"""Pairs whose ratios one worker works out at a time, where rows have gaps of their own."""

_MUST = 100.0
"""Log-ratio of pairs that are known: beyond doubt, whatever the number of rows."""

_SURE, _RIVALS = 3.0, 1.05
"""Log-odds above which a pair is sure; and the weight of all pairs of a row, its best pair having weight 1, below which
the best pair is likelier than all others by far."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Pairs of rows that may be the same entity.

    Attributes:
        ratios: left rows × right rows, the log-likelihood ratio of each candidate pair.
        evaluations: how many distances were looked at to find them.
        recall: share of sampled rows whose likeliest partner was found.
    """

    ratios: sparse.csr_array
    evaluations: int = 0
    recall: float = 1.0

    def __add__(self, other: Candidates) -> Candidates:
        """Return the pairs of both sets; a pair that is in both must have the same ratio in both."""
        places = [pair_places(candidates.ratios) for candidates in (self, other)]
        pair = np.concatenate([rows * self.ratios.shape[1] + columns for rows, columns in places])
        _, first = np.unique(pair, return_index=True)
        data = np.concatenate([self.ratios.data, other.ratios.data])[first]
        both = sparse.csr_array((data, divmod(pair[first], self.ratios.shape[1])), shape=self.ratios.shape)
        return Candidates(both, self.evaluations + other.evaluations, min(self.recall, other.recall))


def find_candidates(
    left: Entities,
    right: Entities,
    places: Places,
    *,
    parts: Iterable[Part] = ((None, None),),
    every: bool = False,
    further: bool = False,
    seed: int = 0,
) -> Candidates:
    """Return, for left rows, the likeliest right rows.

    Args:
        left: one side.
        right: the other side, by a model of the same latents.
        places: where the rows of both stand.
        parts: left rows whose partners are sought, each row once, and right rows among which they are sought; None:
            all.
        every: whether hopeless pairs are kept, too.
        further: whether more right rows are looked at for rows whose partner may well not be among the nearest.
        seed: of the random numbers of the search.
    """
    exact = left.uniform and right.uniform
    shape = (len(places[0]), len(places[1]))
    lowest = -np.inf if every else _floor(shape)
    listed: list[tuple[IntArray, IntArray, SingleArray]] = []
    evaluations, recall = 0, 1.0
    for part in parts:
        near = find_nearest_rows(
            places, part, exact=exact, further=further, lowest=lowest if exact else -np.inf, seed=seed
        )
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
    return Candidates(sparse.csr_array((ratios, pairs), shape=shape), evaluations, recall)


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
    """Return the log-likelihood ratios of right entities, each with the left entity that `place` says."""
    found = np.empty(len(place))
    for part in batches(len(place), rows_at_a_time(device)):
        # A row has several candidates: what is known of it is worked out once.
        own, row = np.unique(place[part], return_inverse=True)
        known = left.information(own, device), right.information(part, device)
        found[part] = to_numpy(exact_log_ratio(*known, row, np.arange(len(row)), chunk=len(row)))
    return found


def sure_pairs(found: Candidates, rows: IntArray, odds: float, limits: Limits) -> IntArray:
    """Return the pairs that are each other's best and likelier than all others by far, and the known pairs.

    Args:
        found: the candidates.
        rows: left rows among whose pairs the sure ones are sought.
        odds: prior log-odds of a pair.
        limits: which pairs may be matched, and which are known, of all rows.
    """
    ratios = found.ratios[rows]
    index, columns = pair_places(ratios)
    values = ratios.data + odds
    if not limits.trivial:
        kept = limits.permits(rows[index], columns)
        index, columns, values = index[kept], columns[kept], values[kept]
    best = largest(index, values, len(rows))
    total = np.zeros(len(rows))
    np.add.at(total, index, np.exp(values - best[index]))
    top = (values == best[index]) & (values > _SURE) & (total[index] < _RIVALS)
    order = np.argsort(-values[top], kind="stable")
    pairs = np.stack([rows[index[top]], columns[top]], axis=1)[order]
    _, first = np.unique(pairs[:, 1], return_index=True)
    _, again = np.unique(pairs[first, 0], return_index=True)
    pairs = pairs[first[again]]
    fresh = ~(np.isin(pairs[:, 0], limits.known[:, 0]) | np.isin(pairs[:, 1], limits.known[:, 1]))
    return np.concatenate([pairs[fresh], limits.known])


def _floor(shape: tuple[int, int]) -> float:
    """Return the log-likelihood ratio below which no pair is a candidate, however many rows have partners."""
    return _NEGLIGIBLE - max(0.0, prior_log_odds(shape, float(min(shape))))


def limited(ratios: sparse.csr_array, limits: Limits) -> sparse.csr_array:
    """Return the pairs that may be matched, and those that are known."""
    if limits.trivial:
        return ratios
    rows, columns = pair_places(ratios)
    # A row of a known pair has no other pair, and the known one counts whether or not it was a candidate.
    keep = limits.permits(rows, columns) & ~np.isin(rows, limits.known[:, 0])
    pairs = [np.concatenate([own[keep], limits.known[:, k]]) for k, own in enumerate((rows, columns))]
    values = np.concatenate([ratios.data[keep], np.full(len(limits.known), _MUST)])
    return sparse.csr_array((values, (pairs[0], pairs[1])), shape=ratios.shape)


def permitted(ratios: sparse.csr_array, limits: Limits, *, turned: bool = False) -> sparse.csr_array:
    """Return the pairs that may be matched.

    Args:
        ratios: left × right rows, log-likelihood ratios of listed pairs.
        limits: which pairs may be matched.
        turned: whether rows and columns of the ratios are exchanged.
    """
    if limits.trivial:
        return ratios
    rows, columns = pair_places(ratios)
    keep = limits.permits(columns, rows) if turned else limits.permits(rows, columns)
    return sparse.csr_array((ratios.data[keep], (rows[keep], columns[keep])), shape=ratios.shape)
