"""A table and more rows of it, as one table of the caller's kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from scipy import sparse

from keyless.block import Block
from keyless.errors import InputError
from keyless.tables import Table
from keyless.tables.frames import taken
from keyless.tables.ids import row_numbers
from keyless.tables.matrices import is_anndata, is_sparse

__all__ = ["extended"]


def extended(like: Table, read: Table, rows: Any) -> Table:
    """Return a table with more rows at its end.

    Args:
        like: the table.
        read: its new rows, as read.
        rows: the new rows, as the caller gave them.
    """
    if like.large_file is not None:
        raise InputError(
            f"{like.name}: must be held in memory to add rows to it; it is a large file that is read in parts. "
            "Link the tables again, with the new rows in the file."
        )
    ids = _ids(like, read)
    values = np.vstack([like.block.values, read.block.values])
    block = Block(values, np.vstack([like.block.mask, read.block.mask]), like.name, like.columns, ids)
    if like.form == "anndata":
        if not is_anndata(rows):
            raise InputError(f"rows: must be an AnnData, as {like.name} is; found {type(rows).__name__}.")
        given = set(rows.var_names)
        lacking = [one for one in like.native.var_names if one not in given]
        if lacking:
            raise InputError(f"rows: must have all variables of {like.name}; {lacking[0]!r} is not among them.")
        import anndata  # noqa: PLC0415 - an extra

        new = rows[:, list(like.native.var_names)]
        native = anndata.concat([like.native, new], join="outer", merge="first", uns_merge="first")
        return replace(like, block=block, native=native, matrix=native.X)
    if like.form in ("array", "sparse"):
        return replace(like, block=block, matrix=None if like.matrix is None else _stacked(like, rows))
    native = _frame(like, read)
    return replace(like, block=block, native=native)


def _ids(like: Table, read: Table) -> Sequence[Any]:
    """Return the labels of all rows; a new row must not have a label that the table has."""
    if like.id_column is None and not like.indexed:
        return row_numbers(like.block.shape[0] + read.block.shape[0])
    if like.id_column is not None and like.id_column not in _labels(read):
        raise InputError(f"rows: must have the column {like.id_column!r}, which names the rows of {like.name}.")
    known = set(like.row_ids)
    for label in read.row_ids:
        if label in known:
            raise InputError(
                f"rows: must be new rows of {like.name}, with ids of their own; it has a row {label!r} already."
            )
        known.add(label)
    return (*like.row_ids, *read.row_ids)


def _labels(read: Table) -> list[str]:
    return [str(label) for label in nw.from_native(read.native, eager_only=True).columns]


def _stacked(like: Table, rows: Any) -> Any:
    """Return the array or sparse matrix given with more rows; all its columns must be there."""
    new: Any = rows if is_sparse(rows) else np.asarray(rows)
    if new.shape[1] != like.matrix.shape[1]:
        raise InputError(f"rows: must have all {like.matrix.shape[1]} columns of {like.name}; found {new.shape[1]}.")
    if is_sparse(like.matrix):
        return type(like.matrix)(sparse.vstack([like.matrix, sparse.csr_array(new)], format=like.matrix.format))
    return np.vstack([like.matrix, new.toarray() if is_sparse(new) else new])


def _frame(like: Table, read: Table) -> Any:
    new = nw.from_native(read.native, eager_only=True)
    labels = {str(label): label for label in new.columns}
    count = len(new)
    old = like.native if isinstance(like.native, pd.DataFrame) else nw.from_native(like.native, eager_only=True)
    order = np.concatenate([np.arange(len(old)), np.full(count, -1)])
    columns = {}
    for label in like.all_columns:
        if str(label) not in labels:
            columns[label] = taken(old, label, order)
            continue
        entries = new.get_column(labels[str(label)])
        if isinstance(old, pd.DataFrame):
            columns[label] = _appended(old[label], entries.to_pandas(), like)
        else:
            more = nw.new_series("pool", entries.to_list(), old.schema[label], backend=old.implementation)
            column = old.get_column(label).alias("pool").to_frame()
            columns[label] = nw.concat([column, more.to_frame()], how="vertical").get_column("pool")
    if not isinstance(old, pd.DataFrame):
        return nw.from_dict(
            {str(label): column.to_native() for label, column in columns.items()}, backend=old.implementation
        ).to_native()
    made = pd.DataFrame(columns)
    made.columns = old.columns
    if like.indexed:
        more_labels = read.native.index if isinstance(read.native, pd.DataFrame) else pd.RangeIndex(count)
        made.index = old.index.append(more_labels).set_names(old.index.names)
    return made


def _appended(old: pd.Series, new: pd.Series, like: Table) -> pd.Series:
    """Return entries with more at the end, in their type wherever the new ones fit it."""
    if like.form == "cells":
        new = new.map(lambda entry: None if pd.isna(entry) else str(entry)).astype(object)
    elif isinstance(old.dtype, pd.CategoricalDtype):
        known = old.dtype.categories
        more = [level for level in new.dropna().unique() if level not in known]
        old = old.cat.add_categories(more) if more else old
        new = new.astype(object).astype(old.dtype)
    else:
        try:
            new = new.astype(old.dtype)
        except (TypeError, ValueError):
            new = new.astype(object) if old.dtype == object else new
    return pd.concat([old.reset_index(drop=True), new.reset_index(drop=True)], ignore_index=True)
