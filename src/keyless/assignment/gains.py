"""The pairs that pay, among millions of rows, with a proof of how good they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from keyless.arrays import IntArray, check_positive
from keyless.assignment.candidates import as_candidates, keep_pairs, row_components
from keyless.assignment.market import Market
from keyless.progress import Deadline

__all__ = ["OneToOne", "best_matching"]

# Of the time there is, the exact method gets so much; an approximate one makes what it leaves undone cheap.
_EXACT_SHARE = 0.7
# The approximate method may lose so much of what a row it still has to place would like to gain, on average.
_STEP = 0.02


@dataclass(frozen=True, eq=False)
class OneToOne:
    """A one-to-one matching and what is known about it.

    Attributes:
        permutation: for each row its column, or −1.
        gain: total of the matched pairs.
        bound: no matching gains more, up to rounding.
        components: how many connected components of the candidate graph (the pairs with a positive gain) have more
            than one pair.
        largest: how many pairs the largest of them has; 0 without any.
    """

    permutation: IntArray
    gain: float
    bound: float
    components: int
    largest: int

    @property
    def gap(self) -> float:
        """How much more the best matching can gain at most; about 0 where this one is the best."""
        return self.bound - self.gain


def best_matching(gains: sparse.csr_array, *, max_time: float | None = None, max_steps: int | None = None) -> OneToOne:
    """Find the one-to-one matching of largest total gain: argmax Σ gains over matched pairs.

    A row or a column left alone gains 0, so that pairs with a gain of 0 or less are never made. Rows compete for
    columns by prices, which are the dual variables of the problem: with prices p ≥ 0, no matching gains more than
    Σ p[j] + Σ_i max(0, max_j gains[i, j] − p[j]), and this is the bound. Most rows are settled all at once; each of
    the others is placed exactly, by the cheapest chain of moves, and this is quick as long as chains are short:
    where rows have few candidates, or one that stands out.

    Args:
        gains: n × m, scipy.sparse; the stored entries are the pairs that may be made, duplicates summed as scipy
            does. A canonical csr_array of float32 or float64 is not copied.
        max_time: seconds after which the best so far is returned, with a gap; None: as long as it takes. What takes
            time in proportion to the number of pairs (components, a first round, the bound) is always done.
        max_steps: columns that the chains of moves may pass, all together, before the rows that are left are placed
            approximately, by as many bids at the most, with a gap; unlike a time, it always gives the same matching.
            None: any number.

    Returns:
        The matching, its gain, and a bound on the gain of any other.

    Example:
        >>> from scipy import sparse
        >>> gains = sparse.csr_array([[5.0, 4.0, 0.0], [4.5, 1.0, 0.0], [0.0, 0.0, -2.0]])
        >>> found = best_matching(gains)
        >>> found.permutation
        array([ 1,  0, -1])
        >>> found.gain, found.gap
        (8.5, 0.0)
        >>> found.components, found.largest
        (1, 4)
    """
    if max_time is not None:
        max_time = check_positive(max_time, name="max_time")
    steps = np.inf if max_steps is None else check_positive(max_steps, name="max_steps")
    exact = Deadline(None if max_time is None else _EXACT_SHARE * max_time)
    deadline = Deadline(max_time)
    candidates = as_candidates(gains, name="gains")
    pays = candidates.data > 0
    if not pays.all():
        candidates = keep_pairs(candidates, pays)
    sizes = np.bincount(row_components(candidates), weights=np.diff(candidates.indptr))
    sizes = sizes[sizes > 1]
    market = Market(candidates)
    waiting = market.auction(np.flatnonzero(np.diff(candidates.indptr)), exact)
    waiting = market.place(waiting, exact, steps=steps)
    bound = market.bound()
    if waiting.size:
        step = _STEP * float(np.maximum(market.offers(waiting)[1], 0.0).mean())
        market.auction(waiting, deadline, step=step, bids=steps)
        market.fill()
        bound = min(bound, market.bound())
    gain = market.gain()
    # Both are sums of the same numbers in different order: where the matching is the best, rounding decides.
    return OneToOne(market.permutation(), gain, max(bound, gain), sizes.size, int(sizes.max(initial=0)))
