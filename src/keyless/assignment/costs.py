"""From costs or couplings to permutations."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csgraph

from keyless.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    array_like,
    as_cost,
    as_float,
    as_matrix,
    as_permutation,
    check_count,
    check_finite,
    is_array,
    namespace,
    to_numpy,
)
from keyless.assignment.candidates import as_candidates, keep_pairs, row_components
from keyless.assignment.gains import best_matching
from keyless.errors import InputError
from keyless.progress import in_time

__all__ = ["assign", "from_coupling", "inverse"]


# A connected component with at most this many cells is solved as a dense problem, which is faster for its size.
_DENSE_CELLS = 1_000_000
# A dense problem with at most this many cells takes a tenth of a second; one with ten times as many may take seconds.
_QUICK_CELLS = 500_000


def assign(cost: Any, *, potentials: tuple[Array, Array] | None = None, unmatched_cost: float | None = None) -> Array:
    """Find the one-to-one matching of least total cost.

    Without `unmatched_cost` that is the cheapest among the matchings with as many pairs as possible; with it,
    argmin Σ cost over matched pairs + unmatched_cost · (number of pairs that could have been made and were not).

    Args:
        cost: n × m costs, dense (an infinite cost forbids the pair) or scipy.sparse (stored entries are the
            candidates, explicit zeros included, duplicates summed as scipy does; all other pairs are forbidden).
        potentials: (rows, columns) dual variables such as those of `transport.sinkhorn`. They change nothing in the
            answer; close to optimal ones make a dense problem faster.
        unmatched_cost: price of leaving a row and a column apart. None: match as many as possible.

    Returns:
        One integer per row: its column, or −1. In the library and on the device of a dense `cost`.

    Example:
        >>> import numpy as np
        >>> assign(np.array([[4.0, 1.0, 9.0], [2.0, 0.0, 9.0]]))
        array([1, 0])
        >>> assign(np.array([[0.1, 7.0], [9.0, 8.0]]), unmatched_cost=1.0)
        array([ 0, -1])
    """
    if unmatched_cost is not None:
        unmatched_cost = check_finite(unmatched_cost, name="unmatched_cost")
    if sparse.issparse(cost):
        if potentials is not None:
            raise InputError("potentials: must be left out when the cost is sparse; they only help where it is dense.")
        return _assign_sparse(as_candidates(cost, name="cost").astype(np.float64), unmatched_cost)
    cost = as_cost(cost, name="cost")
    table: FloatArray = to_numpy(cost).astype(np.float64)
    reduced = table if potentials is None else _reduced(table, potentials)
    permutation = _match_most(table, reduced) if unmatched_cost is None else _assign_dense(table, unmatched_cost)
    return array_like(permutation, cost, dtype=namespace(cost).int64)


def from_coupling(coupling: Array) -> Array:
    """Find the matching that carries the most weight: argmax over matchings of Σ coupling[i, permutation[i]].

    Example:
        >>> import numpy as np
        >>> from_coupling(np.array([[0.6, 0.4], [0.7, 0.3]]))
        array([1, 0])
    """
    return assign(-as_matrix(coupling, name="coupling"))


def inverse(permutation: Any, *, size: int | None = None) -> Array:
    """Return the array that sends each matched column back to its row, −1 where no row points.

    Args:
        permutation: `permutation[i] = j`, or −1.
        size: how many columns there are; as many as rows unless given.

    Returns:
        One integer per column, in the library and on the device of `permutation`.

    Example:
        >>> inverse([2, -1, 0])
        array([ 2, -1,  0])
    """
    size = None if size is None else check_count(size, name="size")
    forward = as_permutation(permutation, name="permutation", columns=size)
    matched = np.flatnonzero(forward >= 0)
    backward: IntArray = np.full(forward.size if size is None else size, -1, dtype=np.int64)
    backward[forward[matched]] = matched
    for row in matched[backward[forward[matched]] != matched][:1]:
        raise InputError(
            f"permutation: must use each column at most once; rows {row} and {backward[forward[row]]} both point to "
            f"column {forward[row]}."
        )
    if not is_array(permutation):
        return backward
    return array_like(backward, permutation, dtype=namespace(permutation).int64)


def _reduced(table: FloatArray, potentials: tuple[Any, Any]) -> FloatArray:
    """Subtract the potentials where that shifts every complete matching by the same amount."""
    try:
        rows, columns = (to_numpy(as_float(potential, name="potentials")) for potential in potentials)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("potentials: must be a pair (rows, columns).") from error
    n_rows, n_columns = table.shape
    if rows.shape != (n_rows,) or columns.shape != (n_columns,):
        raise InputError(
            f"potentials: must have {n_rows} and {n_columns} entries, as the cost does; "
            f"found shapes {rows.shape} and {columns.shape}."
        )
    if not (np.isfinite(rows).all() and np.isfinite(columns).all()):
        raise InputError("potentials: must be finite numbers; found NaN or an infinity. Leave them out.")
    if n_rows <= n_columns:
        table = table - rows[:, None]
    if n_columns <= n_rows:
        table = table - columns[None, :]
    return table


def _assign_dense(table: FloatArray, unmatched_cost: float | None) -> IntArray:
    if unmatched_cost is None:
        return _match_most(table, table)
    # What a pair saves against staying apart; one that saves nothing may as well not be made.
    savings = np.minimum(table - unmatched_cost, 0.0)
    return _kept(_cheapest(savings), savings < 0)


def _cheapest(costs: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the rows and columns of the cheapest complete matching."""
    if costs.size <= _QUICK_CELLS:
        return linear_sum_assignment(costs)
    return in_time(lambda: linear_sum_assignment(costs))


def _match_most(table: FloatArray, reduced: FloatArray) -> IntArray:
    """Make as many pairs as possible at the least cost; `reduced` may stand for `table` where all can be made."""
    allowed = np.isfinite(table)
    try:
        return _kept(_cheapest(reduced), allowed)
    except ValueError:
        # Forbidden pairs cannot be avoided. Give them a finite price above that of any set of allowed ones, so that
        # fewest are used.
        costs = table[allowed]
        low, span = (costs.min(), np.ptp(costs)) if costs.size else (0.0, 0.0)
        dear = (span or 1.0) * (1 + min(table.shape))
        return _kept(_cheapest(np.where(allowed, table - low, dear)), allowed)


def _kept(pairs: tuple[IntArray, IntArray], keep: BoolArray) -> IntArray:
    rows, columns = pairs
    kept = keep[rows, columns]
    permutation: IntArray = np.full(keep.shape[0], -1, dtype=np.int64)
    permutation[rows[kept]] = columns[kept]
    return permutation


def _assign_sparse(candidates: Any, unmatched_cost: float | None) -> IntArray:
    """Solve each connected component of the candidate graph on its own."""
    permutation: IntArray = np.full(candidates.shape[0], -1, dtype=np.int64)
    if unmatched_cost is not None:
        candidates = keep_pairs(candidates, candidates.data < unmatched_cost)
    coordinates = candidates.tocoo()
    rows, columns, costs = coordinates.row, coordinates.col, coordinates.data
    edge_labels = row_components(candidates)[rows]
    order = np.argsort(edge_labels, kind="stable")
    starts = np.flatnonzero(np.diff(edge_labels[order], prepend=-1))
    sizes = np.diff(np.append(starts, order.size))
    alone = order[starts[sizes == 1]]
    permutation[rows[alone]] = columns[alone]
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True):
        edges = order[start : start + size]
        own_rows, local_rows = np.unique(rows[edges], return_inverse=True)
        own_columns, local_columns = np.unique(columns[edges], return_inverse=True)
        matched = _assign_component(
            local_rows, local_columns, costs[edges], (own_rows.size, own_columns.size), unmatched_cost
        )
        found = matched >= 0
        permutation[own_rows[found]] = own_columns[matched[found]]
    return permutation


def _assign_component(
    rows: IntArray, columns: IntArray, costs: FloatArray, shape: tuple[int, int], unmatched_cost: float | None
) -> IntArray:
    if shape[0] * shape[1] <= _DENSE_CELLS:
        table = np.full(shape, np.inf)
        table[rows, columns] = costs
        return _assign_dense(table, unmatched_cost)
    if unmatched_cost is not None:
        return best_matching(sparse.csr_array((unmatched_cost - costs, (rows, columns)), shape=shape)).permutation
    # The sparse solver wants strictly positive costs and a matching that covers every row: each row gets a column of
    # its own that stands for "apart", priced so that it is used only when nothing else is left.
    low = costs.min()
    span = np.ptp(costs) or 1.0
    price = span * (1 + min(shape))
    every_row = np.arange(shape[0])
    extended = sparse.csr_array(
        (
            span + np.concatenate([costs - low, np.full(shape[0], price)]),
            (np.concatenate([rows, every_row]), np.concatenate([columns, shape[1] + every_row])),
        ),
        shape=(shape[0], shape[1] + shape[0]),
    )
    matched: IntArray = np.asarray(csgraph.min_weight_full_bipartite_matching(extended)[1], dtype=np.int64)
    matched[matched >= shape[1]] = -1
    return matched
