"""Arrays, sparse matrices and AnnData ↔ blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from keyless.arrays import BoolArray, FloatArray, IntArray, NumpyArray, as_matrix, batches, is_sparse, to_numpy
from keyless.block import Block
from keyless.errors import InputError
from keyless.tables.ids import row_numbers
from keyless.tables.memory import in_words, is_large
from keyless.tables.observations import reordered
from keyless.tables.places import Place, missing_extra
from keyless.tables.reading_options import ColumnUse, Kind, Reading, option, shown

__all__ = [
    "as_anndata",
    "as_sparse",
    "column",
    "dense",
    "filled",
    "is_anndata",
    "is_sparse",
    "read_anndata",
    "read_array",
    "read_h5ad",
    "read_sparse",
]

Parts = tuple[Block, Any, tuple[ColumnUse, ...]]

_KINDS: dict[str, tuple[Kind, str]] = {
    "b": ("boolean", "true and false"),
    "i": ("integer", "whole numbers"),
    "u": ("integer", "whole numbers"),
}


_CELLS_AT_A_TIME = 2**21


def read_array(table: Any, *, name: str, reading: Reading) -> Parts:
    """Return a block, the array where the block does not hold all of it, and what became of each column.

    Every column of an array is used, also a constant one: its columns are the caller's choice.
    """
    if isinstance(table, np.matrix):
        table = np.asarray(table)  # its rows are matrices again, which nothing below expects
    if _is_large_array(table):
        return _read_large(table, name=name, reading=reading)
    values = to_numpy(as_matrix(table, name=name, allow_missing=True))
    given = table if isinstance(table, np.ndarray) else values
    uses, kept = _array_uses(given, name, reading)
    dropped = len(kept) < len(uses)
    keep = dropped or (given.dtype.kind in "biuf" and given.dtype != np.float64)
    matrix = given.copy() if keep else None
    values = values.astype(np.float64)[:, kept] if dropped else values.astype(np.float64)
    block = Block(values, ~np.isnan(values), name, tuple(uses[k].name for k in kept), row_numbers(len(values)))
    return block, matrix, uses


def _uses(
    columns: Sequence[str], dtype: Any, name: str, reading: Reading, left: Mapping[int, str] | None = None
) -> tuple[ColumnUse, ...]:
    """Return what becomes of each column: all are used but those that the caller names, and those in `left`."""
    kind, reason = _KINDS.get(dtype.kind, ("number", "numbers"))
    uses = []
    for k, column in enumerate(columns):
        wish = reading.wish(name, column)
        why = f"named in {option(reading.door, wish)}" if wish in ("drop", "within") else (left or {}).get(k)
        uses.append(ColumnUse(column, kind, reason, (column,)) if why is None else ColumnUse(column, "left out", why))
    return tuple(uses)


def _array_uses(given: Any, name: str, reading: Reading) -> tuple[tuple[ColumnUse, ...], list[int]]:
    """Return what becomes of the columns of an array, and the numbers of those that are used."""
    uses = _uses([f"{name}_{k}" for k in range(given.shape[1])], given.dtype, name, reading)
    kept = [k for k, use in enumerate(uses) if use.columns]
    if not kept:
        raise InputError(f"{name}: must have at least one column that is used; all are named in drop or within.")
    return uses, kept


def _is_large_array(table: Any) -> bool:
    plain = isinstance(table, np.ndarray) and not isinstance(table, np.ma.MaskedArray)
    return plain and table.ndim == 2 and table.dtype.kind in "biuf" and is_large(*table.shape)


def _read_large(table: Any, *, name: str, reading: Reading) -> Parts:
    """Return a large array as a block where it is, or copied once: where it has gaps, other columns or another type.

    Numbers stay in their precision; whole numbers go where they are exact, single precision up to 16 bits.
    """
    uses, kept = _array_uses(table, name, reading)
    chosen: Any = slice(None) if len(kept) == len(uses) else kept
    single = table.dtype.itemsize <= (4 if table.dtype.kind == "f" else 2)
    dtype = np.dtype(np.float32 if single else np.float64)
    rows, parts = table.shape[0], list(_batches(*table.shape))
    gaps = table.dtype.kind == "f" and any(np.isnan(table[part].min()) for part in parts)
    values, mask = table.view(np.ndarray), np.broadcast_to(np.True_, (rows, len(kept)))
    if gaps or len(kept) < len(uses) or dtype != table.dtype:
        values = np.empty((rows, len(kept)), dtype=dtype)
        mask = np.ones(values.shape, dtype=bool) if gaps else mask
        for part in parts:
            values[part] = table[part][:, chosen]
            if gaps:
                missing = np.isnan(values[part])
                mask[part] = ~missing
                values[part][missing] = 0
    values = values.view()
    # Nobody writes to it from here on, so that nobody needs a copy; the caller's array stays as it is.
    values.flags.writeable = False
    block = Block(values, mask, name, tuple(uses[k].name for k in kept), row_numbers(rows))
    return block, table if dtype != table.dtype or len(kept) < len(uses) else None, uses


def _batches(rows: int, columns: int) -> Iterator[slice]:
    return batches(rows, _CELLS_AT_A_TIME // columns)


def read_sparse(table: Any, *, name: str, reading: Reading) -> Parts:
    """Return a block, the matrix in rows, and what became of each column; what is not stored is missing."""
    columns = tuple(f"{name}_{k}" for k in range(table.shape[1])) if len(table.shape) == 2 else ()
    zero = reading.unstored == "zero"
    return _read(table, columns, row_numbers(table.shape[0]), name=name, reading=reading, zero=zero)


def is_anndata(table: Any) -> bool:
    """Tell whether something is an AnnData, without importing its library."""
    return all(hasattr(table, part) for part in ("X", "obs", "var", "obs_names", "var_names", "obsm", "uns"))


def read_h5ad(place: Place, reading: Reading) -> Any:
    """Return the AnnData of a file."""
    if not place.path.is_file():
        raise InputError(f"{place.where}: must be a file; there is none at {shown(place.path)}.")
    try:
        import h5py  # noqa: PLC0415 — comes with anndata
        from anndata import read_h5ad as read  # noqa: PLC0415 — an extra
    except ImportError as error:
        raise missing_extra(place.where, "AnnData files", "anndata") from error
    try:
        sizes: list[int] = []
        with h5py.File(place.path, "r") as file:
            # A small file may hold a lot, compressed.
            file.visititems(lambda _name, part: sizes.append(int(getattr(part, "nbytes", 0))))
        what = f"an AnnData of {in_words(sum(sizes))}"
        reading.check_memory(2 * sum(sizes), where=place.where, what=what)
        return read(place.path)
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{place.where}: must be an AnnData file; it is damaged or of another kind ({said})."
        ) from error


def read_anndata(table: Any, *, name: str, reading: Reading) -> Parts:
    """Return a block, the matrix, and what became of each variable; a count that is not stored is an observed 0."""
    if table.X is None:
        raise InputError(f"{name}: must have its numbers in X; X is None.")
    variables = tuple(map(str, table.var_names))
    if len(set(variables)) < len(variables):
        twice = next(v for v in variables if variables.count(v) > 1)
        raise InputError(
            f"{name}: must have different variable names; {twice!r} occurs twice. Call var_names_make_unique()."
        )
    matrix = table.X
    if not isinstance(matrix, np.ndarray) and not is_sparse(matrix):
        # Kept on disk, or a lazy array.
        matrix = matrix.to_memory() if hasattr(matrix, "to_memory") else np.asarray(matrix)
    zero = reading.unstored != "missing"
    return _read(matrix, variables, tuple(table.obs_names), name=name, reading=reading, zero=zero)


def _read(
    table: Any, columns: tuple[str, ...], row_ids: Sequence[Any], *, name: str, reading: Reading, zero: bool
) -> Parts:
    if len(table.shape) != 2 or 0 in table.shape:
        raise InputError(
            f"{name}: must be a table with at least one row and one column; found shape {tuple(table.shape)}."
        )
    rows, width = table.shape
    reading.check_memory(25 * rows * width, where=name, what=f"a table of {rows} × {width} numbers")
    if table.dtype.kind not in "biuf":
        raise InputError(f"{name}: must hold real numbers; found dtype {table.dtype}.")
    values = np.asarray(as_matrix(dense(table, zero=zero), name=name, allow_missing=True), dtype=np.float64)
    low, high = np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)
    left = {
        int(k): f"every observed entry is the same, {low[k]:.6g}" for k in np.flatnonzero((low == high) & (rows > 1))
    }
    left |= {int(k): "no entry is observed" for k in np.flatnonzero(np.isnan(low))}
    uses = _uses(columns, table.dtype, name, reading, left)
    kept = [k for k, use in enumerate(uses) if use.columns]
    if not kept:
        advice = "" if zero else " If what is not stored means 0, say unstored='zero'."
        raise InputError(f"{name}: must have at least one column whose entries differ; found none.{advice}")
    values = values[:, kept]
    block = Block(values, ~np.isnan(values), name, tuple(columns[k] for k in kept), row_ids)
    return block, table.copy(), uses


def dense(table: Any, *, zero: bool) -> Any:
    """Return a sparse matrix with NaN, or 0, where nothing is stored; anything else as it is."""
    if not is_sparse(table):
        return table
    return _stored(table, np.arange(table.shape[0]), np.float64, fill=0.0 if zero else np.nan)


def column(block: Block, matrix: Any, uses: Sequence[ColumnUse], number: int) -> NumpyArray:
    """Return one column, NaN where missing."""
    if matrix is not None and not uses[number].columns:
        part = matrix[:, [number]]
        return np.asarray(part.toarray() if is_sparse(part) else part).ravel()
    at = (block.columns or ()).index(uses[number].name)
    return np.where(block.mask[:, at], block.values[:, at], np.nan)


def filled(
    block: Block,
    matrix: Any,
    uses: Sequence[ColumnUse],
    values: FloatArray,
    rows: IntArray,
    *,
    unstored_missing: bool,
) -> NumpyArray:
    """Return the whole array in a new order, of the type given: observed entries as they are, others filled.

    Args:
        block: what is used of it.
        matrix: the array or sparse matrix given; None where the block holds all of it.
        uses: what became of each column.
        values: numbers of the block's columns for each row of the result.
        rows: row for each row of the result, −1 for none.
        unstored_missing: whether what a sparse matrix does not store is missing, rather than 0.
    """
    kept, sparse = np.array([bool(use.columns) for use in uses]), is_sparse(matrix)
    given = block.values.dtype if matrix is None else matrix.dtype
    # What is left out may be missing, which needs a type that can say so.
    made = np.empty((len(rows), len(uses)), dtype=given if kept.all() else np.result_type(given, np.float32))
    gaps = False
    for part in [slice(None)] if sparse else _batches(*made.shape):
        here, taken = rows[part] >= 0, np.maximum(rows[part], 0)
        observed = block.mask[taken] & here[:, None]
        if matrix is None:
            made[part] = np.where(observed, block.values[taken], values[part].astype(given, copy=False))
        else:
            # Observed entries that are not stored are zeros.
            whole = _stored(matrix, taken, given, fill=0) if sparse else np.asarray(matrix)[taken]
            made[part, kept] = np.where(observed, whole[:, kept], _as_type(values[part], given))
            if not kept.all():
                if unstored_missing and sparse:
                    whole = _stored(matrix, taken, made.dtype, fill=np.nan)
                made[part, ~kept] = np.where(here[:, None], whole[:, ~kept], np.nan)
        gaps = gaps or bool(np.isnan(made[part]).any())
    return made if gaps or matrix is None else made.astype(given, copy=False)


def _as_type(values: FloatArray, dtype: Any) -> NumpyArray:
    """Return numbers as a type: booleans by the nearer one, whole numbers rounded and within its range."""
    if dtype.kind == "b":
        return values > 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.clip(np.round(values), float(limits.min), np.nextafter(float(limits.max), 0))
    return values.astype(dtype)


def _stored(matrix: Any, rows: IntArray, dtype: Any, *, fill: float) -> NumpyArray:
    """Return rows of a sparse matrix with `fill` where nothing is stored."""
    whole = sp.csr_array(matrix)
    whole.sum_duplicates()
    part = whole[rows]
    made = np.full(part.shape, fill, dtype=dtype)
    made[np.repeat(np.arange(part.shape[0]), np.diff(part.indptr)), part.indices] = part.data
    return made


def as_sparse(whole: NumpyArray, *, like: Any, known: BoolArray | None) -> Any:
    """Return an array in the class of a sparse matrix; what is known is stored, also where it is 0."""
    if known is None:
        known = whole if whole.dtype == bool else np.ones(whole.shape, dtype=bool)
    rows, columns = np.nonzero(known)
    made = sp.coo_array((whole[rows, columns], (rows, columns)), shape=whole.shape)
    return type(like)(made.asformat(like.format))


def as_anndata(whole: NumpyArray, *, like: Any, rows: IntArray, index: pd.Index | None, name: str) -> Any:
    """Return an AnnData with rows in a new order, and all that belongs to them; see `observations.reordered`.

    Args:
        whole: its X; put into the sparse class of the given one, unless it says what was filled.
        like: the AnnData given.
        rows: row for each row of the result, −1 for none.
        index: names of the observations; None: numbers.
        name: of the table.
    """
    labels = index if index is not None else pd.RangeIndex(len(rows))
    sparse = is_sparse(like.X) and whole.dtype != bool
    x = type(like.X)(sp.csr_array(whole).asformat(like.X.format)) if sparse else whole
    return reordered(like, rows, names=[str(label) for label in labels], name=name, matrix=x)
