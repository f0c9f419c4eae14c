"""The pairs that may be made, as a sparse table: checked, thinned out, split into components."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from keyless.arrays import BoolArray
from keyless.errors import InputError

__all__ = ["as_candidates", "keep_pairs", "row_components"]


def as_candidates(values: Any, *, name: str) -> sparse.csr_array:
    """Check a sparse table of pairs and return it row by row, each pair once.

    Single and double precision stay as they are and share memory with `values` where they can; the rest becomes
    double. Duplicates are summed as scipy does, in double precision.
    """
    if not sparse.issparse(values):
        raise InputError(
            f"{name}: must be a scipy.sparse array, whose stored entries are the candidates; found "
            f"{type(values).__name__}. Wrap it in scipy.sparse.csr_array."
        )
    table: Any = values
    if len(table.shape) != 2 or 0 in table.shape:
        raise InputError(f"{name}: must have at least one row and one column; found shape {tuple(table.shape)}.")
    if table.dtype.kind not in "biuf":
        raise InputError(f"{name}: must hold real numbers; found dtype {table.dtype}. Convert it to floats first.")
    candidates: sparse.csr_array = sparse.csr_array(
        table if table.dtype in (np.float32, np.float64) else table.astype(np.float64)
    )
    if not candidates.has_canonical_format:
        candidates = candidates.astype(np.float64, copy=True)
        candidates.sum_duplicates()
    for index in np.flatnonzero(~np.isfinite(candidates.data))[:1]:
        row = int(np.searchsorted(candidates.indptr, index, side="right")) - 1
        raise InputError(
            f"{name}, row {row}, column {candidates.indices[index]}: must be a finite number; found "
            f"{candidates.data[index]}. Leave forbidden pairs out instead."
        )
    return candidates


def keep_pairs(candidates: sparse.csr_array, keep: BoolArray) -> sparse.csr_array:
    """Return the candidates that are to be kept: one truth value for each stored pair."""
    before = np.zeros(keep.size + 1, dtype=candidates.indptr.dtype)
    np.cumsum(keep, out=before[1:])
    return sparse.csr_array(
        (candidates.data[keep], candidates.indices[keep], before[candidates.indptr]), shape=candidates.shape
    )


def row_components(candidates: sparse.csr_array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Number the connected components of the candidate graph; return that of each row."""
    n_rows, n_columns = candidates.shape
    size = n_rows + n_columns
    # int32 is what the search for components wants, so that it need not copy.
    width = np.int32 if max(size, candidates.nnz) <= np.iinfo(np.int32).max else np.int64
    indptr = np.full(size + 1, candidates.nnz, dtype=width)
    indptr[:n_rows] = candidates.indptr[:-1]
    columns: Any = candidates.indices.astype(width)
    columns += n_rows
    graph = sparse.csr_array((np.ones(candidates.nnz), columns, indptr), shape=(size, size))
    labels: np.ndarray[Any, np.dtype[np.int32]] = csgraph.connected_components(graph, directed=False)[1]
    return labels[:n_rows]
