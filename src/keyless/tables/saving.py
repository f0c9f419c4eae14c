"""Tables ↔ plain values, arrays and bytes, so that a result can be saved without pickling anything.

Entries of Python objects that are neither text, numbers, dates nor missing come back as text. All else comes back as it
was. What an AnnData can hold is packed part by part: arrays of numbers or text, also with named fields, sparse
matrices, frames of pandas, numbers, text, and dictionaries and lists of these. What is none of them is left out with a
warning.
"""

from __future__ import annotations

import codecs
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from keyless.block import Block
from keyless.cluster import ScratchFolder
from keyless.errors import InputError, printable
from keyless.saved import checks
from keyless.tables.cells import DATES
from keyless.tables.frames import Dialect, Form
from keyless.tables.ids import row_numbers
from keyless.tables.matrices import is_sparse
from keyless.tables.memory import is_large
from keyless.tables.on_disk import NumbersOnDisk, read_again
from keyless.tables.parquet import LargeFile, keep
from keyless.tables.reading_options import Coding, ColumnUse
from keyless.tables.saving_frames import (
    Files,
    from_ipc,
    pack_frame,
    pack_pandas,
    pack_series,
    to_ipc,
    unpack_frame,
    unpack_pandas,
    unpack_series,
)
from keyless.tables.table import Table

__all__ = ["Arrays", "pack_anndata", "pack_matrix", "pack_table", "unpack_anndata", "unpack_matrix", "unpack_table"]


_PART = "part."
"""What the names of saved Parquet files begin with; the number of the file follows."""

_LONGEST_NUMBER = 400
"""Characters of a number in text: the largest there is has 309 digits."""


def pack_table(table: Table) -> tuple[dict[str, Any], Arrays, dict[str, bytes | Path]]:
    """Return a table as a document of plain values, arrays and bytes, or the files that hold these."""
    arrays: Arrays = {}
    if not isinstance(table.keeps, NumbersOnDisk):
        arrays["values"] = table.block.values
        # One True for all entries need not be written for each of them.
        if any(table.block.mask.strides):
            arrays["mask"] = table.block.mask
    files: Files = {}
    parts: dict[str, Path] = {}
    document: dict[str, Any] = {
        "name": table.name,
        "columns": table.columns,
        "form": table.form,
        "indexed": table.indexed,
        "id_column": table.id_column,
        "notes": table.notes,
        "source": table.source,
        "unstored_missing": table.unstored_missing,
        "uses": [asdict(use) for use in table.uses],
        "dialect": asdict(table.dialect),
    }
    if table.matrix is not None:
        document["matrix"] = pack_matrix(table.matrix, arrays)
    if table.large_file is not None:
        if isinstance(table.keeps, NumbersOnDisk) and table.keeps.source is not None:
            # The folder is there for this table alone, and goes away with it.
            parts = {f"{_PART}{number}.parquet": path for number, path in enumerate(table.large_file.files)}
        else:
            document["kept"] = asdict(table.large_file)
        if table.id_column is not None:
            files["row_ids"] = to_ipc(pa.table({"row_id": pa.array(table.row_ids)}))
    if table.form == "anndata":
        document["anndata"] = pack_anndata(table.native, arrays, files, name=table.name)
    elif table.native is not None:
        document["frame"] = pack_frame(table.native, files)
    return document, arrays, {**files, **parts}


def unpack_table(document: Mapping[str, Any], arrays: Mapping[str, Any], files: Mapping[str, bytes]) -> Table:
    """Return the table that `pack_table` packed; a frame of a library that is not installed comes back as pandas.

    What it was packed into may come from anybody: everything is checked, and what does not fit raises `ValueError`.
    """
    keeps, scratch = None, _unpacked(files)
    kept = keep(scratch.path) if scratch is not None else _kept(document["kept"]) if "kept" in document else None
    if "values" in arrays or kept is None:
        values = checks.numbers(arrays["values"], "values", (None, None))
        mask = arrays["mask"] if "mask" in arrays else np.broadcast_to(np.True_, values.shape)
    else:
        # The numbers of a folder of files are read from there again.
        keeps, values, mask = read_again(kept, checks.sequence(document["columns"], "columns"))
        keeps.source = scratch
    rows = len(values)
    uses = tuple(_use(use, rows) for use in checks.sequence(document["uses"], "uses"))
    matrix = unpack_matrix(document["matrix"], arrays, (rows, len(uses))) if "matrix" in document else None
    form: Any = checks.one_of(document["form"], "form", get_args(Form))
    native: Any = None
    if form == "anndata":
        # Files of an earlier version hold obs and var beside the other values.
        form, native = unpack_anndata(matrix, document.get("anndata", document), arrays, files)
    elif "frame" in document:
        native = unpack_frame(document["frame"], files)
        if form == "lazy" and isinstance(native, pd.DataFrame):
            form = "frame"
    if keeps is None and is_large(*values.shape):
        # Nobody else has it, so that it need not be copied.
        values.flags.writeable = False
    row_ids: Any = row_numbers(rows)
    id_column = checks.text(document["id_column"], "id_column", optional=True)
    if "row_ids" in files:
        row_ids = from_ipc(files["row_ids"]).column("row_id").to_pylist()
    elif id_column is not None:
        frame = nw.from_native(native, eager_only=True)
        label = next(label for label in frame.columns if str(label) == id_column)
        row_ids = frame.get_column(label).to_list()
    elif checks.flag(document["indexed"], "indexed"):
        row_ids = native.obs_names if form == "anndata" else native.index
    columns = tuple(checks.text(name, "columns") for name in checks.sequence(document["columns"], "columns"))
    made = Block if keeps is None else keeps.block
    table = Table(
        made(values, mask, checks.text(document["name"], "name"), columns, row_ids),
        native,
        indexed=document["indexed"],
        uses=uses,
        notes=tuple(checks.text(note, "notes") for note in checks.sequence(document["notes"], "notes")),
        source=checks.text(document["source"], "source", optional=True),
        id_column=id_column,
        form=form,
        matrix=matrix if form != "frame" else None,
        unstored_missing=checks.flag(document["unstored_missing"], "unstored_missing"),
        large_file=kept,
        dialect=_dialect(document.get("dialect", {})),
        keeps=keeps,
    )
    _check_whole(table)
    return table


def _unpacked(files: Mapping[str, bytes]) -> Any:
    """Return a folder with the Parquet files of a table that had one to itself; None where it had none."""
    parts = [content for name, content in files.items() if name.startswith(_PART)]
    if not parts:
        return None
    scratch = ScratchFolder()
    for number in range(len(parts)):
        name = f"{_PART}{number}.parquet"
        (scratch.path / name).write_bytes(files[name])
    return scratch


def _check_whole(table: Table) -> None:
    """Refuse a table whose frame or matrix has other rows or columns than its numbers."""
    rows = table.block.shape[0]
    if table.columns != tuple(column for use in table.uses for column in use.columns):
        raise ValueError("columns must be those that were made of the table's columns, in their order")
    if table.native is not None:
        size = table.native.n_obs if table.form == "anndata" else len(table.native)
        if size != rows or [str(name) for name in table.all_columns] != [use.name for use in table.uses]:
            raise ValueError(f"the frame must have {rows} rows and the columns that were used or left out")
    elif table.form in ("frame", "lazy", "records", "cells", "anndata") and table.large_file is None:
        raise ValueError("the frame is missing")
    elif (
        table.large_file is None
        and table.matrix is None
        and (table.form == "sparse" or len(table.uses) > len(table.columns))
    ):
        raise ValueError("the matrix is missing")


def _use(given: Any, rows: int) -> ColumnUse:
    entry = checks.mapping(given, "uses")
    columns = tuple(checks.text(name, "columns") for name in checks.sequence(entry["columns"], "columns"))
    use = ColumnUse(**(entry | {"columns": columns, "coding": _coding(entry["coding"], rows)}))
    checks.text(use.name, "name")
    checks.text(use.reason, "reason")
    return use


def _coding(given: Any, rows: int) -> Coding | None:
    if given is None:
        return None
    entry = checks.mapping(given, "coding")
    exemplars = tuple(checks.sequence(entry["exemplars"], "exemplars"))
    marks = tuple(checks.number(mark, "marks") for mark in checks.sequence(entry["marks"], "marks"))
    coding = Coding(**(entry | {"exemplars": exemplars, "marks": marks}))
    if any(checks.number(row, "exemplars", low=0, whole=True) >= rows for row in exemplars):
        raise ValueError("exemplars must be numbers of rows")
    if marks and len(marks) != len(exemplars):
        raise ValueError("there must be a mark for each exemplar")
    for shown in (coding.decimals or 0, coding.width):
        if checks.number(shown, "coding", low=0, whole=True) > _LONGEST_NUMBER:
            raise ValueError(f"numbers must be written with at most {_LONGEST_NUMBER} characters")
    checks.one_of(coding.decimal, "decimal", (".", ","))
    for part in (coding.thousands, coding.before, coding.after):
        if len(checks.text(part, "coding")) > _LONGEST_NUMBER:
            raise ValueError(f"what stands around numbers must have at most {_LONGEST_NUMBER} characters")
    if coding.form is not None:
        checks.one_of(coding.form, "form", (*DATES, "D", "us"))
    return coding


def _dialect(given: Any) -> Dialect:
    dialect = Dialect(**checks.mapping(given, "dialect"))
    checks.one_of(dialect.kind, "dialect", ("text", "sheet"))
    checks.one_of(dialect.decimal, "dialect", (".", ","))
    if len(checks.text(dialect.separator, "dialect")) != 1:
        raise ValueError("a separator must be one character")
    codecs.lookup(checks.text(dialect.encoding, "dialect"))
    return dialect


def _kept(given: Any) -> LargeFile:
    kept = LargeFile(**checks.mapping(given, "kept"))
    if not Path(checks.text(kept.path, "kept")).is_absolute():
        raise ValueError("kept must be a path from the root")
    checks.number(kept.size, "kept", low=0, whole=True)
    checks.number(kept.changed, "kept", whole=True)
    return kept


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
    """Return the form and the AnnData that `pack_anndata` packed; a frame of pandas where there is no anndata."""
    obs, var = (unpack_pandas(document[part], files) for part in ("obs", "var"))
    try:
        from anndata import AnnData  # noqa: PLC0415 — an extra
    except ImportError:
        dense = matrix.toarray() if is_sparse(matrix) else matrix
        return "frame", pd.DataFrame(dense, index=obs.index, columns=var.index)
    # Files of an earlier version hold X, obs and var only.
    parts = {part: _unpacked_part(document[part], arrays, files) for part in ("uns", *_PARTS) if part in document}
    made = AnnData(X=matrix, obs=obs, var=var, **parts)
    if "raw" in document:
        raw = _unpacked_part(document["raw"], arrays, files)
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


def _unpacked_part(document: Mapping[str, Any], arrays: Mapping[str, Any], files: Mapping[str, bytes]) -> Any:
    """Return a part that was packed; what does not fit raises `ValueError` or `KeyError`."""
    ((kind, content), *more) = document.items()
    rest = dict(more)
    if kind == "plain":
        return content
    if kind == "named":
        return {str(key): _unpacked_part(part, arrays, files) for key, part in content.items()}
    if kind in ("list", "tuple"):
        entries = [_unpacked_part(part, arrays, files) for part in content]
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
        fields = {name: _unpacked_part(part, arrays, files) for name, part in content.items()}
        first = next(iter(fields.values()))
        made = np.empty(first.shape, dtype=[(name, field.dtype) for name, field in fields.items()])
        for name, field in fields.items():
            made[name] = field
        return made.view(np.recarray) if rest["record"] else made
    raise ValueError(f"a part must be of a known kind; found {kind!r}")
