"""Observations of an AnnData in a new order, and what was found written into an AnnData or a MuData."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from keyless.arrays import IntArray, is_sparse
from keyless.errors import InputError, check_among
from keyless.tables.frames import free_name, taken

__all__ = ["reordered", "to_anndata", "to_mudata"]


_NEGLIGIBLE = 1e-4
"""Probabilities below this are not stored: a coupling of thousands of cells is then small."""


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
        obs[free_name(f"{name}_id", obs.columns)] = before
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


def to_anndata(links: Any, adata: Any, *, name: str, key: str = "keyless") -> Any:
    """Return a copy of an AnnData with the links of its observations.

    `obs[f"{key}_{table}"]` is the partner of each observation in each other table, missing where there is none, and
    `obs[f"{key}_{table}_probability"]` how likely that is right; for a table that is not the reference, there is only
    the reference. `obsm[f"X_{key}"]` holds the factors of the entity each observation belongs to, NaN where it belongs
    to none. `obsm[f"{key}_{table}_coupling"]` is sparse: how likely each observation belongs to each row of the other
    table, whose ids, in the order of its columns, are in `uns[key]["rows"][table]`. `uns[key]` also holds the verdicts.

    Args:
        links: a result of `keyless.link`.
        adata: the AnnData that was linked, its observations in the same order.
        name: name of the table it was.
        key: under which name to write.
    """
    tables = {table.name: table for table in links.tables}
    check_among("name", name, tables)
    rows = len(tables[name].row_ids)
    if len(adata.obs) != rows:
        raise InputError(f"adata: must have {rows} observations, as {name}; found {len(adata.obs)}.")
    made = adata.copy()
    if name == links.reference:
        places = np.arange(rows)
        for other, permutation in links.permutations.items():
            _write(made.obs, f"{key}_{other}", permutation, tables[other].row_ids, links.found[other].probability)
            made.obsm[f"{key}_{other}_coupling"] = _stored(links.coupling(other))
    else:
        permutation = links.permutations[name]
        places = np.full(rows, -1)
        found = np.flatnonzero(permutation >= 0)
        places[permutation[found]] = found
        stated = np.where(places >= 0, links.found[name].probability[np.maximum(places, 0)], np.nan)
        _write(made.obs, f"{key}_{links.reference}", places, links.tables[0].row_ids, stated)
        made.obsm[f"{key}_{links.reference}_coupling"] = _stored(links.coupling(name).T)
    factors = links.factors[np.maximum(places, 0)]
    factors[places < 0] = np.nan
    made.obsm[f"X_{key}"] = factors
    others = links.permutations if name == links.reference else [links.reference]
    made.uns[key] = {
        "rows": {other: np.array([str(label) for label in tables[other].row_ids]) for other in others},
        "table": name,
        "reference": links.reference,
        "verdicts": {other: links.evidence_for(other).verdict for other in links.permutations},
        "scores": {other: float(links.evidence_for(other).score) for other in links.permutations},
    }
    return made


def _write(obs: pd.DataFrame, column: str, places: IntArray, labels: Any, probability: Any) -> None:
    partners = [None if place < 0 else str(labels[place]) for place in places]
    obs[column] = pd.Categorical(partners)
    obs[f"{column}_probability"] = np.asarray(probability, dtype=np.float64)


def to_mudata(links: Any, *, key: str = "keyless") -> Any:
    """Return all tables as one MuData: one modality each, observations called as in the reference.

    Nothing is filled, and a row without a partner is not in that modality. What belongs to an AnnData comes along, its
    own names in `obs["<table>_id"]`, and `obs["<key>_probability"]` says how likely the match is right.
    `obsp["<key>_<table>"]` is sparse: entry (i, k) is the probability that reference row i belongs to the row that is
    matched to reference row k.

    Args:
        links: a result of `keyless.link`.
        key: under which name to write.
    """
    try:
        import mudata  # noqa: PLC0415 - an extra
        from anndata import AnnData  # noqa: PLC0415
    except ImportError as error:
        raise InputError(
            "to_mudata: needs the package mudata, which is not installed. Run: pip install mudata"
        ) from error
    reference = links.tables[0]
    names = [str(label) for label in reference.row_ids]
    if len(set(names)) < len(names):
        raise InputError(f"{reference.name}: must have different row ids to become a MuData; some occur twice.")
    modalities = {}
    for table in links.tables:
        rows = np.arange(len(names)) if table is reference else links.permutations[table.name]
        found = np.flatnonzero(rows >= 0)
        given = table.native if table.form == "anndata" else _plain(table, AnnData)
        made = reordered(given, rows[found], names=[names[i] for i in found], name=table.name)
        if table is not reference:
            made.obs[f"{key}_probability"] = links.found[table.name].probability[found]
        modalities[table.name] = made
    with mudata.set_options(pull_on_update=False):
        whole = mudata.MuData(modalities)
    order = [names.index(label) for label in whole.obs_names]
    for name, permutation in links.permutations.items():
        coupling = _stored(links.coupling(name))
        at = permutation[order]
        aligned = sp.csc_array(coupling)[:, np.maximum(at, 0)]
        aligned = sp.csr_array(aligned @ sp.diags_array((at >= 0).astype(np.float64)))[order]
        aligned.eliminate_zeros()
        whole.obsp[f"{key}_{name}"] = sp.csr_matrix(aligned)
    whole.uns[key] = {
        "reference": reference.name,
        "verdicts": {name: links.evidence_for(name).verdict for name in links.permutations},
    }
    return whole


def _plain(table: Any, anndata: Any) -> Any:
    """Return the numbers of a table as an AnnData, NaN where missing."""
    values = np.where(table.block.mask, table.block.values, np.nan)
    obs = pd.DataFrame(index=[str(label) for label in table.row_ids])
    return anndata(X=values, obs=obs, var=pd.DataFrame(index=list(table.columns)))


def _stored(coupling: Any) -> Any:
    """Return a coupling as a sparse matrix of what is not negligible."""
    kept = sp.csr_matrix(coupling)
    kept.data[kept.data < _NEGLIGIBLE] = 0.0
    kept.eliminate_zeros()
    return kept
