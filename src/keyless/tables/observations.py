"""Observations of an AnnData in a new order, with everything that belongs to them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from keyless.arrays import IntArray, is_sparse
from keyless.tables.frames import taken

__all__ = ["reordered"]


def reordered(adata: Any, rows: IntArray, *, names: Sequence[str], name: str, matrix: Any = None) -> Any:
    """Return an AnnData whose observation i is the given one's observation `rows[i]`.

    Layers, obsm, obsp, obs and raw follow; var, varm, varp and uns are kept. Sparse matrices stay sparse, of the same
    class and type. An observation that there is none of (−1) is missing everywhere: NaN in dense arrays, nothing
    stored in sparse ones. Where observations change their names, `obs["<table>_id"]` has those they had.

    Args:
        adata: the AnnData.
        rows: observation for each of the new ones, −1 for none.
        names: what the new observations are called.
        name: of the table.
        matrix: new X; None: that of the AnnData.
    """
    index = pd.Index([str(label) for label in names])
    obs = pd.DataFrame({label: taken(adata.obs, label, rows) for label in adata.obs.columns}, index=range(len(rows)))
    obs.index = index
    before = [None if row < 0 else str(adata.obs_names[row]) for row in rows.tolist()]
    if before != list(index):
        obs[_free(f"{name}_id", obs.columns)] = before
    x = _taken(adata.X, rows) if matrix is None else matrix
    made = type(adata)(X=x, obs=obs, var=adata.var.copy(), uns=copy.deepcopy(dict(adata.uns)))
    for key, part in adata.layers.items():
        if key is not None:
            made.layers[key] = _taken(part, rows)
    for key, part in adata.obsm.items():
        moved = _taken(part, rows)
        made.obsm[key] = moved.set_axis(index, axis=0) if isinstance(moved, pd.DataFrame) else moved
    for key, part in adata.obsp.items():
        made.obsp[key] = _taken(_taken(part, rows).T, rows).T
    for own, kept in ((made.varm, adata.varm), (made.varp, adata.varp)):
        for key, part in kept.items():
            own[key] = part.copy()
    if adata.raw is not None:
        raw = adata.raw.to_adata()
        made.raw = type(adata)(X=_taken(raw.X, rows), obs=pd.DataFrame(index=index), var=raw.var.copy())
    return made


def _free(name: str, taken_names: Any) -> str:
    while name in taken_names:
        name = f"_{name}"
    return name


def _taken(part: Any, rows: IntArray) -> Any:
    """Return rows of an array, a sparse matrix or a frame, missing for −1."""
    here, places = rows >= 0, np.maximum(rows, 0)
    if isinstance(part, pd.DataFrame):
        return pd.DataFrame({label: taken(part, label, rows) for label in part.columns})
    chosen: Any
    if is_sparse(part):
        chosen = sp.csr_array(part)[places]
        if not here.all():
            chosen = sp.csr_array(sp.diags_array(here.astype(part.dtype)) @ chosen)
        return type(part)(chosen.asformat(part.format).astype(part.dtype))
    chosen = np.asarray(part)[places]
    if not here.all():
        chosen = (
            chosen.astype(np.result_type(chosen.dtype, np.float32)) if chosen.dtype.kind in "biu" else chosen.copy()
        )
        chosen[~here] = None if chosen.dtype == object else np.nan
    return chosen
