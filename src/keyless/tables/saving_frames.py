"""Frames ↔ plain values and bytes in Arrow's own format, so that a result can be saved without pickling anything."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa

__all__ = [
    "Files",
    "from_ipc",
    "pack_frame",
    "pack_pandas",
    "pack_series",
    "to_ipc",
    "unpack_frame",
    "unpack_pandas",
    "unpack_series",
]

Files = dict[str, bytes]


def pack_frame(native: Any, files: Files) -> dict[str, Any]:
    """Return what it takes to read a frame again; its content goes into `files`."""
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
        files["frame"] = to_ipc(native)
        return {"library": "pyarrow"}
    return {"library": "pandas"} | pack_pandas(
        frame.to_pandas() if not isinstance(native, pd.DataFrame) else native, files, "frame"
    )


def unpack_frame(document: Mapping[str, Any], files: Mapping[str, bytes]) -> Any:
    """Return the frame that `pack_frame` packed."""
    if document["library"] == "pandas":
        return unpack_pandas(document, files)
    if document["library"] == "pyarrow":
        return from_ipc(files["frame"])
    # Looked at by Arrow first, which answers nonsense with an error; polars may end the process.
    whole = pa.ipc.open_file(files["frame"]).read_all()
    whole.validate(full=True)
    try:
        import polars  # noqa: PLC0415 — not everybody has it
    except ImportError:
        return whole.to_pandas()
    return polars.read_ipc(io.BytesIO(files["frame"]))


def to_ipc(table: pa.Table) -> bytes:
    """Return a table in Arrow's own format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_ipc(content: bytes) -> pa.Table:
    """Return the table that `to_ipc` wrote, checked."""
    table = pa.ipc.open_stream(content).read_all()
    # Offsets beyond the text they point into would read memory of others.
    table.validate(full=True)
    return table


def pack_pandas(frame: pd.DataFrame, files: Files, name: str) -> dict[str, Any]:
    """Return what it takes to read a frame of pandas again; its content goes into `files` by its name."""
    parts = [frame.iloc[:, k] for k in range(frame.shape[1])]
    levels = [] if frame.index.equals(pd.RangeIndex(len(frame))) else _levels(frame.index)
    packed = [pack_series(part) for part in [*parts, *levels]]
    files[name] = to_ipc(pa.table({str(k): column for k, (column, _) in enumerate(packed)}))
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


def unpack_pandas(document: Mapping[str, Any], files: Mapping[str, bytes]) -> pd.DataFrame:
    """Return the frame that `pack_pandas` packed."""
    table = from_ipc(files[document["part"]])
    columns = [unpack_series(table.column(k), how) for k, how in enumerate(document["types"])]
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


def pack_series(series: pd.Series) -> tuple[Any, dict[str, Any]]:
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
        dense, how = pack_series(pd.Series(np.asarray(series.array)))
        return dense, {"coded": False, "type": "sparse", "dense": how, "fill": _coded(dtype.fill_value)}
    if isinstance(dtype, pd.CategoricalDtype):
        levels, how = pack_series(pd.Series(dtype.categories))
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
        return pack_series(pd.Series([None if pd.isna(e) else str(e) for e in series], dtype=object))
    kind = "arrow" if isinstance(dtype, pd.ArrowDtype) else _type_name(dtype)
    return made, {"coded": False, "type": kind}


def unpack_series(column: Any, how: Mapping[str, Any]) -> Any:
    """Return the series that `pack_series` packed."""
    if how["coded"]:
        return pd.Series([_decoded(json.loads(text)) for text in column.to_pylist()], dtype=object)
    if how["type"] == "object":
        return pd.Series(column.to_pylist(), dtype=object)
    if how["type"] == "sparse":
        dense = unpack_series(column, how["dense"])
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
