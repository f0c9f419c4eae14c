"""Matrices and AnnData ↔ plain values, arrays and bytes.

What an AnnData can hold besides is packed part by part: arrays of numbers or text, also with named fields, sparse
matrices, frames of pandas, numbers, text, and dictionaries and lists of these.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from keyless.errors import InputError, printable
from keyless.tables.matrices import is_sparse
from keyless.tables.saving_frames import (
    Files,
    from_ipc,
    pack_pandas,
    pack_series,
    to_ipc,
    unpack_pandas,
    unpack_series,
)

__all__ = ["Arrays", "pack_anndata", "pack_matrix", "unpack_anndata", "unpack_matrix"]

Arrays = dict[str, np.ndarray[Any, Any]]

_PARTS = ("layers", "obsm", "varm", "obsp", "varp")
"""Parts of an AnnData that hold arrays, sparse matrices or frames by name."""

_LONGEST_SIDE = 2**27
"""Rows or columns of a sparse matrix: memory for one number each is taken before its content is looked at."""


def pack_matrix(matrix: Any, arrays: Arrays, name: str = "") -> dict[str, Any]:
    """Return what it takes to read a matrix again; its numbers go into `arrays`, by names that begin with `name`."""
    if not is_sparse(matrix):
        arrays[f"{name}matrix"] = np.asarray(matrix)
        return {"sparse": None}
    # Duplicate and unsorted entries are kept as they are given.
    triples = sp.coo_array(matrix)
    arrays |= {f"{name}data": triples.data, f"{name}row": triples.coords[0], f"{name}col": triples.coords[1]}
    return {"sparse": type(matrix).__name__, "shape": [int(size) for size in matrix.shape]}


def unpack_matrix(
    document: Mapping[str, Any], arrays: Mapping[str, Any], shape: tuple[int, int], name: str = ""
) -> Any:
    """Return the matrix that `pack_matrix` packed; refuse one of another shape."""
    if document["sparse"] is None:
        matrix = arrays[f"{name}matrix"]
        if matrix.shape != shape or matrix.dtype.kind not in "biuf":
            raise ValueError(f"the matrix must be {shape[0]} × {shape[1]} numbers")
        return matrix
    kinds = {
        f"{form}_{kind}" for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil") for kind in ("array", "matrix")
    }
    if document["sparse"] not in kinds:
        raise InputError(f"matrix: must be a sparse matrix of scipy; found {document['sparse']!r}.")
    data, row, col = (arrays[f"{name}{part}"] for part in ("data", "row", "col"))
    if list(document["shape"]) != list(shape) or data.dtype.kind not in "biuf":
        raise ValueError(f"the matrix must be {shape[0]} × {shape[1]} numbers")
    made = sp.coo_array((data, (row, col)), shape=shape)
    return getattr(sp, document["sparse"])(made)


def pack_anndata(adata: Any, arrays: Arrays, files: Files, *, name: str) -> dict[str, Any]:
    """Return what it takes to make an AnnData again, but for its X.

    What is of another kind than can be saved is left out with a warning that names it.

    Args:
        adata: the AnnData.
        arrays: gets arrays.
        files: gets frames.
        name: of the table, for the warning.
    """
    packer = _Packer(arrays, files, name)
    document = {
        "obs": pack_pandas(adata.obs, files, "obs"),
        "var": pack_pandas(adata.var, files, "var"),
        "uns": packer.named(adata.uns, "uns"),
    }
    for part in _PARTS:
        document[part] = packer.named({key: one for key, one in getattr(adata, part).items() if key is not None}, part)
    if adata.raw is not None:
        document["raw"] = packer.named(
            {"X": adata.raw.X, "var": adata.raw.var, "varm": dict(adata.raw.varm.items())}, "raw"
        )
    return document


def unpack_anndata(
    matrix: Any, document: Mapping[str, Any], arrays: Mapping[str, Any], files: Mapping[str, bytes]
) -> tuple[str, Any]:
    """Return the form and the AnnData that `pack_anndata` packed; a frame of pandas where there is no anndata.

    Args:
        matrix: its X.
        document: what `pack_anndata` returned.
        arrays: arrays.
        files: frames.
    """
    obs, var = (unpack_pandas(document[part], files) for part in ("obs", "var"))
    try:
        from anndata import AnnData  # noqa: PLC0415 — an extra
    except ImportError:
        dense = matrix.toarray() if is_sparse(matrix) else matrix
        return "frame", pd.DataFrame(dense, index=obs.index, columns=var.index)
    # Files of an earlier version hold X, obs and var only.
    parts = {part: _unpacked(document[part], arrays, files) for part in ("uns", *_PARTS) if part in document}
    made = AnnData(X=matrix, obs=obs, var=var, **parts)
    if "raw" in document:
        raw = _unpacked(document["raw"], arrays, files)
        made.raw = AnnData(X=raw["X"], obs=pd.DataFrame(index=obs.index), var=raw["var"], varm=raw["varm"])
    return "anndata", made


class _Packer:
    """Packs parts under numbers as names, and warns of those that cannot be packed."""

    def __init__(self, arrays: Arrays, files: Files, name: str) -> None:
        self.arrays, self.files, self.name, self.count = arrays, files, name, 0

    def named(self, parts: Mapping[Any, Any], where: str) -> dict[str, Any]:
        packed = {}
        for key, part in parts.items():
            place = f"{where}[{key!r}]"
            one = self.part(part, place) if isinstance(key, str) else None
            if one is not None:
                packed[key] = one
                continue
            found = type(part).__name__ if isinstance(key, str) else f"a name that is {type(key).__name__}"
            warnings.warn(
                f"{self.name}: {printable(place)} is not saved; it must be numbers, text, an array, a sparse matrix, a "
                f"frame of pandas, or a dictionary or list of these, by a name that is text; found {found}.",
                stacklevel=2,
            )
        return {"named": packed}

    def part(self, part: Any, where: str) -> dict[str, Any] | None:
        """Return a part packed; None where it is of a kind that cannot be."""
        own = f"part{self.count}."
        self.count += 1
        if part is None or type(part) in (bool, int, float, str):
            return {"plain": part}
        if isinstance(part, Mapping):
            return self.named(part, where)
        if type(part) in (list, tuple):
            entries = [self.part(one, f"{where}[{k}]") for k, one in enumerate(part)]
            return None if None in entries else {"tuple" if isinstance(part, tuple) else "list": entries}
        if is_sparse(part):
            return {"matrix": pack_matrix(part, self.arrays, own), "own": own}
        if type(part) is pd.DataFrame:
            return {"frame": pack_pandas(part, self.files, own)}
        if isinstance(part, np.generic) or type(part) in (np.ndarray, np.recarray):
            return self.array(np.asarray(part), own, kind=type(part))
        return None

    def array(self, part: np.ndarray[Any, Any], own: str, *, kind: type) -> dict[str, Any] | None:
        if part.dtype.names is not None:
            fields = [self.array(part[name], f"{own}{k}.", kind=np.ndarray) for k, name in enumerate(part.dtype.names)]
            if None in fields:
                return None
            return {"fields": dict(zip(part.dtype.names, fields, strict=True)), "record": kind is np.recarray}
        if part.dtype.kind in "biuf":
            self.arrays[own] = part
            return {"array": own, "shape": list(part.shape), "scalar": issubclass(kind, np.generic)}
        if part.dtype.kind in "OUT":
            column, how = pack_series(pd.Series(part.ravel().tolist(), dtype=object))
            self.files[own] = to_ipc(pa.table({"entries": column}))
            return {"entries": own, "how": how, "shape": list(part.shape), "type": part.dtype.str[1:]}
        return None


def _unpacked(document: Mapping[str, Any], arrays: Mapping[str, Any], files: Mapping[str, bytes]) -> Any:
    """Return a part that was packed; what does not fit raises `ValueError` or `KeyError`."""
    ((kind, content), *more) = document.items()
    rest = dict(more)
    if kind == "plain":
        return content
    if kind == "named":
        return {str(key): _unpacked(part, arrays, files) for key, part in content.items()}
    if kind in ("list", "tuple"):
        entries = [_unpacked(part, arrays, files) for part in content]
        return tuple(entries) if kind == "tuple" else entries
    if kind == "matrix":
        rows, columns = (int(size) for size in content["shape"])
        if not 0 <= min(rows, columns) <= max(rows, columns) <= _LONGEST_SIDE:
            raise ValueError(f"a sparse matrix must have at most {_LONGEST_SIDE:,} rows and columns")
        return unpack_matrix(content, arrays, (rows, columns), rest["own"])
    if kind == "frame":
        return unpack_pandas(content, files)
    if kind == "array":
        array = arrays[content].reshape([int(size) for size in rest["shape"]])
        return array[()] if rest["scalar"] else array
    if kind == "entries":
        listed = unpack_series(from_ipc(files[content]).column("entries"), rest["how"]).to_numpy(dtype=object)
        entries = listed.reshape([int(size) for size in rest["shape"]])
        return entries if rest["type"][0] == "O" else entries.astype(str)
    if kind == "fields":
        fields = {name: _unpacked(part, arrays, files) for name, part in content.items()}
        first = next(iter(fields.values()))
        made = np.empty(first.shape, dtype=[(name, field.dtype) for name, field in fields.items()])
        for name, field in fields.items():
            made[name] = field
        return made.view(np.recarray) if rest["record"] else made
    raise ValueError(f"a part must be of a known kind; found {kind!r}")
