"""Write what was found into an AnnData."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from keyless.errors import InputError

__all__ = ["to_anndata"]

IntArray = np.ndarray[Any, np.dtype[np.int64]]


def to_anndata(links: Any, adata: Any, *, name: str, key: str = "keyless") -> Any:
    """Return a copy of an AnnData with the links of its observations.

    `obs[f"{key}_{table}"]` is the partner of each observation in each other table, missing where there is none, and
    `obs[f"{key}_{table}_probability"]` how likely that is right; for a table that is not the reference, there is only
    the reference. `obsm[f"X_{key}"]` holds the factors of the entity each observation belongs to, NaN where it belongs
    to none. `uns[key]` holds the verdicts.

    Args:
        links: a result of `keyless.link`.
        adata: the AnnData that was linked, its observations in the same order.
        name: name of the table it was.
        key: under which name to write.
    """
    tables = {table.name: table for table in links.tables}
    if name not in tables:
        raise InputError(f"name: must be one of {', '.join(map(repr, tables))}; found {name!r}.")
    rows = len(tables[name].row_ids)
    if len(adata.obs) != rows:
        raise InputError(f"adata: must have {rows} observations, as {name}; found {len(adata.obs)}.")
    made = adata.copy()
    if name == links.reference:
        places = np.arange(rows)
        for other, permutation in links.permutations.items():
            _write(made.obs, f"{key}_{other}", permutation, tables[other].row_ids, links.found[other].probability)
    else:
        permutation = links.permutations[name]
        places = np.full(rows, -1)
        found = np.flatnonzero(permutation >= 0)
        places[permutation[found]] = found
        stated = np.where(places >= 0, links.found[name].probability[np.maximum(places, 0)], np.nan)
        _write(made.obs, f"{key}_{links.reference}", places, links.tables[0].row_ids, stated)
    factors = links.factors[np.maximum(places, 0)]
    factors[places < 0] = np.nan
    made.obsm[f"X_{key}"] = factors
    made.uns[key] = {
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
