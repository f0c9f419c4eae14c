"""Tables ↔ plain values, arrays and bytes, so that a result can be saved without pickling anything.

Frames are written in Arrow's own format. Entries of Python objects that are neither text, numbers, dates nor missing
come back as text; everything else comes back as it was.
"""

from __future__ import annotations

import codecs
import datetime
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from keyless import sound
from keyless.errors import InputError
from keyless.problem import Block
from keyless.tables.cells import DATES
from keyless.tables.columns import Coding
from keyless.tables.dialect import Dialect
from keyless.tables.ids import row_numbers
from keyless.tables.kept import KeptFile
from keyless.tables.matrices import is_sparse
from keyless.tables.memory import is_large
from keyless.tables.reading import ColumnUse
from keyless.tables.table import Form, Table

__all__ = ["pack_table", "unpack_table"]

Arrays = dict[str, np.ndarray[Any, Any]]
Files = dict[str, bytes]

_LONGEST_NUMBER = 400
"""Characters of a number in text: the largest there is has 309 digits."""


def pack_table(table: Table) -> tuple[dict[str, Any], Arrays, Files]:
    """Return a table as a document of plain values, arrays and bytes."""
    arrays: Arrays = {"values": table.block.values}
    # One True for all entries need not be written for each of them.
    if any(table.block.mask.strides):
        arrays["mask"] = table.block.mask
    files: Files = {}
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
        document["matrix"] = _pack_matrix(table.matrix, arrays)
    if table.kept is not None:
        document["kept"] = asdict(table.kept)
        if table.id_column is not None:
            files["row_ids"] = _ipc(pa.table({"row_id": pa.array(table.row_ids)}))
    if table.form == "anndata":
        document["obs"] = _pack_pandas(table.native.obs, files, "obs")
        document["var"] = _pack_pandas(table.native.var, files, "var")
    elif table.native is not None:
        document["frame"] = _pack_frame(table.native, files)
    return document, arrays, files


def unpack_table(document: Mapping[str, Any], arrays: Mapping[str, Any], files: Mapping[str, bytes]) -> Table:
    """Return the table that `pack_table` packed; a frame of a library that is not installed comes back as pandas.

    What it was packed into may come from anybody: everything is checked, and what does not fit raises `ValueError`.
    """
    values = sound.numbers(arrays["values"], "values", (None, None))
    rows = len(values)
    uses = tuple(_use(use, rows) for use in sound.sequence(document["uses"], "uses"))
    matrix = _unpack_matrix(document["matrix"], arrays, (rows, len(uses))) if "matrix" in document else None
    form: Any = sound.one_of(document["form"], "form", get_args(Form))
    native: Any = None
    if form == "anndata":
        form, native = _anndata(matrix, _unpack_pandas(document["obs"], files), _unpack_pandas(document["var"], files))
    elif "frame" in document:
        native = _unpack_frame(document["frame"], files)
        if form == "lazy" and isinstance(native, pd.DataFrame):
            form = "frame"
    mask = arrays["mask"] if "mask" in arrays else np.broadcast_to(np.True_, values.shape)
    if is_large(*values.shape):
        # Nobody else has it, so that it need not be copied.
        values.flags.writeable = False
    row_ids: Any = row_numbers(rows)
    id_column = sound.text(document["id_column"], "id_column", optional=True)
    if "row_ids" in files:
        row_ids = _arrow(files["row_ids"]).column("row_id").to_pylist()
    elif id_column is not None:
        frame = nw.from_native(native, eager_only=True)
        label = next(label for label in frame.columns if str(label) == id_column)
        row_ids = frame.get_column(label).to_list()
    elif sound.flag(document["indexed"], "indexed"):
        row_ids = native.obs_names if form == "anndata" else native.index
    columns = tuple(sound.text(name, "columns") for name in sound.sequence(document["columns"], "columns"))
    table = Table(
        Block(values, mask, sound.text(document["name"], "name"), columns, row_ids),
        native,
        indexed=document["indexed"],
        uses=uses,
        notes=tuple(sound.text(note, "notes") for note in sound.sequence(document["notes"], "notes")),
        source=sound.text(document["source"], "source", optional=True),
        id_column=id_column,
        form=form,
        matrix=matrix if form != "frame" else None,
        unstored_missing=sound.flag(document["unstored_missing"], "unstored_missing"),
        kept=_kept(document["kept"]) if "kept" in document else None,
        dialect=_dialect(document.get("dialect", {})),
    )
    _check_whole(table)
    return table


def _check_whole(table: Table) -> None:
    """Refuse a table whose frame or matrix has other rows or columns than its numbers."""
    rows = table.block.shape[0]
    if table.columns != tuple(column for use in table.uses for column in use.columns):
        raise ValueError("columns must be those that were made of the table's columns, in their order")
    if table.native is not None:
        size = table.native.n_obs if table.form == "anndata" else len(table.native)
        if size != rows or [str(name) for name in table.all_columns] != [use.name for use in table.uses]:
            raise ValueError(f"the frame must have {rows} rows and the columns that were used or left out")
    elif table.form in ("frame", "lazy", "records", "cells", "anndata") and table.kept is None:
        raise ValueError("the frame is missing")
    elif (
        table.kept is None and table.matrix is None and (table.form == "sparse" or len(table.uses) > len(table.columns))
    ):
        raise ValueError("the matrix is missing")


def _use(given: Any, rows: int) -> ColumnUse:
    entry = sound.mapping(given, "uses")
    columns = tuple(sound.text(name, "columns") for name in sound.sequence(entry["columns"], "columns"))
    use = ColumnUse(**(entry | {"columns": columns, "coding": _coding(entry["coding"], rows)}))
    sound.text(use.name, "name")
    sound.text(use.reason, "reason")
    return use


def _coding(given: Any, rows: int) -> Coding | None:
    if given is None:
        return None
    entry = sound.mapping(given, "coding")
    exemplars = tuple(sound.sequence(entry["exemplars"], "exemplars"))
    marks = tuple(sound.number(mark, "marks") for mark in sound.sequence(entry["marks"], "marks"))
    coding = Coding(**(entry | {"exemplars": exemplars, "marks": marks}))
    if any(sound.number(row, "exemplars", low=0, whole=True) >= rows for row in exemplars):
        raise ValueError("exemplars must be numbers of rows")
    if marks and len(marks) != len(exemplars):
        raise ValueError("there must be a mark for each exemplar")
    for shown in (coding.decimals or 0, coding.width):
        if sound.number(shown, "coding", low=0, whole=True) > _LONGEST_NUMBER:
            raise ValueError(f"numbers must be written with at most {_LONGEST_NUMBER} characters")
    sound.one_of(coding.decimal, "decimal", (".", ","))
    for part in (coding.thousands, coding.before, coding.after):
        if len(sound.text(part, "coding")) > _LONGEST_NUMBER:
            raise ValueError(f"what stands around numbers must have at most {_LONGEST_NUMBER} characters")
    if coding.form is not None:
        sound.one_of(coding.form, "form", (*DATES, "D", "us"))
    return coding


def _dialect(given: Any) -> Dialect:
    dialect = Dialect(**sound.mapping(given, "dialect"))
    sound.one_of(dialect.kind, "dialect", ("text", "sheet"))
    sound.one_of(dialect.decimal, "dialect", (".", ","))
    if len(sound.text(dialect.separator, "dialect")) != 1:
        raise ValueError("a separator must be one character")
    codecs.lookup(sound.text(dialect.encoding, "dialect"))
    return dialect


def _kept(given: Any) -> KeptFile:
    kept = KeptFile(**sound.mapping(given, "kept"))
    if not Path(sound.text(kept.path, "kept")).is_absolute():
        raise ValueError("kept must be a path from the root")
    sound.number(kept.size, "kept", low=0, whole=True)
    sound.number(kept.changed, "kept", whole=True)
    return kept


# --- matrices --------------------------------------------------------------------------------------------------------


def _pack_matrix(matrix: Any, arrays: Arrays) -> dict[str, Any]:
    if not is_sparse(matrix):
        arrays["matrix"] = np.asarray(matrix)
        return {"sparse": None}
    # Duplicate and unsorted entries are kept as they are given.
    triples = sp.coo_array(matrix)
    arrays |= {"data": triples.data, "row": triples.coords[0], "col": triples.coords[1]}
    return {"sparse": type(matrix).__name__, "shape": [int(size) for size in matrix.shape]}


def _unpack_matrix(document: Mapping[str, Any], arrays: Mapping[str, Any], shape: tuple[int, int]) -> Any:
    if document["sparse"] is None:
        matrix = arrays["matrix"]
        if matrix.shape != shape or matrix.dtype.kind not in "biuf":
            raise ValueError(f"the matrix must be {shape[0]} × {shape[1]} numbers")
        return matrix
    kinds = {
        f"{form}_{kind}" for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil") for kind in ("array", "matrix")
    }
    if document["sparse"] not in kinds:
        raise InputError(f"matrix: must be a sparse matrix of scipy; found {document['sparse']!r}.")
    if list(document["shape"]) != list(shape) or arrays["data"].dtype.kind not in "biuf":
        raise ValueError(f"the matrix must be {shape[0]} × {shape[1]} numbers")
    made = sp.coo_array((arrays["data"], (arrays["row"], arrays["col"])), shape=shape)
    return getattr(sp, document["sparse"])(made)


def _anndata(matrix: Any, obs: pd.DataFrame, var: pd.DataFrame) -> tuple[Any, Any]:
    try:
        from anndata import AnnData  # noqa: PLC0415 — an extra
    except ImportError:
        dense = matrix.toarray() if is_sparse(matrix) else matrix
        return "frame", pd.DataFrame(dense, index=obs.index, columns=var.index)
    return "anndata", AnnData(X=matrix, obs=obs, var=var)


# --- frames ----------------------------------------------------------------------------------------------------------


def _pack_frame(native: Any, files: Files) -> dict[str, Any]:
    frame = nw.from_native(native, eager_only=True)
    if frame.implementation.is_polars():
        objects = [name for name in frame.columns if frame[name].dtype == nw.Object]
        if objects:
            texts = {n: [None if e is None else str(e) for e in frame[n].to_list()] for n in objects}
            made = [nw.new_series(n, entries, nw.String, backend=frame.implementation) for n, entries in texts.items()]
            native = frame.with_columns(*made).to_native()
        buffer = io.BytesIO()
        native.write_ipc(buffer)
        files["frame"] = buffer.getvalue()
        return {"library": "polars"}
    if frame.implementation.is_pyarrow():
        files["frame"] = _ipc(native)
        return {"library": "pyarrow"}
    return {"library": "pandas"} | _pack_pandas(
        frame.to_pandas() if not isinstance(native, pd.DataFrame) else native, files, "frame"
    )


def _unpack_frame(document: Mapping[str, Any], files: Mapping[str, bytes]) -> Any:
    if document["library"] == "pandas":
        return _unpack_pandas(document, files)
    if document["library"] == "pyarrow":
        return _arrow(files["frame"])
    # Looked at by Arrow first, which answers nonsense with an error; polars may end the process.
    whole = pa.ipc.open_file(files["frame"]).read_all()
    whole.validate(full=True)
    try:
        import polars  # noqa: PLC0415 — not everybody has it
    except ImportError:
        return whole.to_pandas()
    return polars.read_ipc(io.BytesIO(files["frame"]))


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _arrow(content: bytes) -> pa.Table:
    table = pa.ipc.open_stream(content).read_all()
    # Offsets beyond the text they point into would read memory of others.
    table.validate(full=True)
    return table


def _pack_pandas(frame: pd.DataFrame, files: Files, name: str) -> dict[str, Any]:
    parts = [frame.iloc[:, k] for k in range(frame.shape[1])]
    levels = [] if frame.index.equals(pd.RangeIndex(len(frame))) else _levels(frame.index)
    packed = [_pack_series(part) for part in [*parts, *levels]]
    files[name] = _ipc(pa.table({str(k): column for k, (column, _) in enumerate(packed)}))
    return {
        "part": name,
        "rows": len(frame),
        "types": [how for _, how in packed],
        "labels": _pack_labels(frame.columns),
        "index": len(levels),
        "freq": frame.index.freqstr if isinstance(frame.index, pd.DatetimeIndex | pd.TimedeltaIndex) else None,
        "index_names": [_coded(label) for label in frame.index.names],
        "steps": [int(part) for part in (frame.index.start, frame.index.stop, frame.index.step)]
        if isinstance(frame.index, pd.RangeIndex)
        else None,
    }


def _levels(index: pd.Index) -> list[pd.Series]:
    if isinstance(index, pd.MultiIndex):
        return [pd.Series(index.get_level_values(level)) for level in range(index.nlevels)]
    return [pd.Series(index)]


def _unpack_pandas(document: Mapping[str, Any], files: Mapping[str, bytes]) -> pd.DataFrame:
    table = _arrow(files[document["part"]])
    columns = [_unpack_series(table.column(k), how) for k, how in enumerate(document["types"])]
    width = len(columns) - document["index"]
    frame = pd.DataFrame(dict(enumerate(columns[:width])), index=pd.RangeIndex(document["rows"]))
    frame.columns = _unpack_labels(document["labels"])
    names = [_decoded(name) for name in document["index_names"]]
    if document["steps"] is not None:
        start, stop, step = document["steps"]
        frame.index = pd.RangeIndex(start, stop, step, name=names[0])
    elif document["index"] == 1:
        frame.index = pd.Index(columns[width], name=names[0])
        if document["freq"] is not None:
            frame.index.freq = document["freq"]  # type: ignore[attr-defined]
    elif document["index"]:
        frame.index = pd.MultiIndex.from_arrays(columns[width:], names=names)
    return frame


def _pack_labels(columns: pd.Index) -> dict[str, Any]:
    return {
        "labels": [_coded(label) for label in columns],
        "names": [_coded(name) for name in columns.names],
        "levels": columns.nlevels,
        "type": _type_name(columns.dtype),
    }


def _unpack_labels(document: Mapping[str, Any]) -> pd.Index:
    labels = [_decoded(label) for label in document["labels"]]
    names = [_decoded(name) for name in document["names"]]
    if document["levels"] > 1:
        return pd.MultiIndex.from_tuples(labels, names=names)
    made: pd.Index = pd.Index(labels, dtype=document["type"], name=names[0], tupleize_cols=False)
    return made


def _type_name(dtype: Any) -> str:
    if isinstance(dtype, pd.StringDtype):
        return f"string[{dtype.storage}]" if dtype.na_value is pd.NA else "str"
    return "category" if isinstance(dtype, pd.CategoricalDtype) else str(dtype)


def _pack_series(series: pd.Series) -> tuple[Any, dict[str, Any]]:
    """Return a series as an Arrow array, and what it takes to undo that."""
    dtype = series.dtype
    if (
        dtype.kind == "O"
        and isinstance(dtype, np.dtype)
        and not all(entry is None or isinstance(entry, str) for entry in series)
    ):
        texts = [json.dumps(_coded(entry)) for entry in series]
        return pa.array(texts, type=pa.large_string()), {"coded": True}
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        try:
            return pa.array(series.tolist(), type=pa.large_string()), {"coded": False, "type": "object"}
        except UnicodeEncodeError:
            # Halves of characters: JSON has escapes for them.
            return pa.array([json.dumps(entry) for entry in series], type=pa.large_string()), {"coded": True}
    if isinstance(dtype, pd.SparseDtype):
        dense, how = _pack_series(pd.Series(np.asarray(series.array)))
        return dense, {"coded": False, "type": "sparse", "dense": how, "fill": _coded(dtype.fill_value)}
    if isinstance(dtype, pd.CategoricalDtype):
        levels, how = _pack_series(pd.Series(dtype.categories))
        known = pa.array(series.cat.codes.to_numpy(), type=pa.int32())
        return known, {
            "coded": False,
            "type": "category",
            "ordered": bool(dtype.ordered),
            "levels": how,
            "level_labels": [_coded(level) for level in dtype.categories],
            "level_type": _type_name(dtype.categories.dtype),
            "level_arrow": str(levels.type),
        }
    try:
        made = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):
        return _pack_series(pd.Series([None if pd.isna(e) else str(e) for e in series], dtype=object))
    kind = "arrow" if isinstance(dtype, pd.ArrowDtype) else _type_name(dtype)
    return made, {"coded": False, "type": kind}


def _unpack_series(column: Any, how: Mapping[str, Any]) -> Any:
    if how["coded"]:
        return pd.Series([_decoded(json.loads(text)) for text in column.to_pylist()], dtype=object)
    if how["type"] == "object":
        return pd.Series(column.to_pylist(), dtype=object)
    if how["type"] == "sparse":
        dense = _unpack_series(column, how["dense"])
        return dense.astype(pd.SparseDtype(dense.dtype, _decoded(how["fill"])))
    if how["type"] == "category":
        labels = pd.Index(
            [_decoded(label) for label in how["level_labels"]], dtype=how["level_type"], tupleize_cols=False
        )
        return pd.Series(pd.Categorical.from_codes(column.to_numpy(), categories=labels, ordered=how["ordered"]))
    dtype: Any = pd.ArrowDtype(column.type) if how["type"] == "arrow" else pd.api.types.pandas_dtype(how["type"])
    if isinstance(dtype, np.dtype) and dtype.kind in "VSU":
        raise ValueError("a column of a frame must be of a type that frames have")
    if hasattr(dtype, "__from_arrow__"):
        return pd.Series(dtype.__from_arrow__(column))
    return pd.Series(column.to_numpy()).astype(dtype)


# --- entries ---------------------------------------------------------------------------------------------------------


def _coded(entry: Any) -> Any:
    """Return a Python value as JSON keeps it, with its type where JSON has none."""
    if isinstance(entry, np.generic) and not isinstance(entry, np.datetime64 | np.timedelta64):
        entry = entry.item()
    if entry is None or isinstance(entry, bool | int | float | str):
        return entry
    for name, (kind, write, _) in _KINDS.items():
        if isinstance(entry, kind):
            return {name: write(entry)}
    return str(entry)


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _KINDS[kind][2](content)


def _write_moment(entry: pd.Timestamp) -> list[Any]:
    return [entry.isoformat(), entry.unit, None if entry.tz is None else str(entry.tz)]


def _read_moment(content: list[Any]) -> Any:
    text, unit, zone = content
    moment = pd.Timestamp(text).as_unit(unit)
    return moment if zone is None else moment.tz_convert(zone)


# Times of pandas are times of Python, too, so they come first.
_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, lambda e: [_coded(part) for part in e], lambda c: tuple(map(_decoded, c))),
    "NaT": (type(pd.NaT), lambda _e: "", lambda _c: pd.NaT),
    "NA": (type(pd.NA), lambda _e: "", lambda _c: pd.NA),
    "Timestamp": (pd.Timestamp, _write_moment, _read_moment),
    "Timedelta": (pd.Timedelta, lambda e: [e.isoformat(), e.unit], lambda c: pd.Timedelta(c[0]).as_unit(c[1])),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda e: [e.days, e.seconds, e.microseconds],
        lambda c: datetime.timedelta(*c),
    ),
    "Decimal": (Decimal, str, Decimal),
}
