"""Large results as Parquet files: made one column at a time, and written some rows of all columns at a time.

Neither the joined table nor a completed one is ever held whole. Where the reference is a folder of Parquet files, what
is written are folders, too, with a file of the same rows for each of its files.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from keyless.answers.joining import joined_columns, joined_plan
from keyless.arrays import IntArray, batches
from keyless.errors import InputError
from keyless.links import Links
from keyless.runs.cells import file_names
from keyless.tables import Table
from keyless.tables.frames import as_text, free_name
from keyless.tables.memory import is_large
from keyless.tables.parquet import parquet_files

__all__ = ["is_for_parquet", "parquet_column", "write_columns"]


_ROWS = 2**18
"""Rows of a group in the files that are written."""


def is_for_parquet(links: Links) -> bool:
    """Tell whether a result is written as Parquet unless another format is asked for: a large one, or of a folder."""
    return any(is_large(*table.block.shape) for table in links.tables) or _folder_of(links.tables[0]) is not None


def write_columns(links: Links, folder: Path, *, joining: Mapping[str, Any]) -> dict[str, str]:
    """Write matches, the joined table and the completed tables; return what each completed table is called."""
    edges = _edges(links.tables[0])
    safe = file_names(table.name for table in links.tables)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        room = Path(scratch)
        _matches(links, room).write(folder / "matches", _repeated(edges, len(links.tables) - 1))
        _joined(links, room, edges, folder / "joined", **joining)
        (folder / "completed").mkdir()
        written = {}
        for number, table in enumerate(links.tables):
            base = folder / "completed" / safe[table.name]
            rows = links._placed[1][number]
            entries, marks = _Columns(room), _Columns(room)
            for columns in (entries, marks):
                columns.add("reference_id", _ids(links.tables[0], np.arange(len(rows))))
            filled = table.each_entry(links.model.gaps(number, *links._placed), rows)
            for (label, column), seen in zip(filled, table.observed(rows), strict=True):
                entries.add(label, column)
                marks.add(label, pa.array((~seen).astype(np.uint8)))
            written[table.name] = f"completed/{entries.write(base, edges).name}"
            marks.write(base.with_name(f"{base.name}.filled"), edges)
    return written


def _folder_of(reference: Table) -> Path | None:
    """Return the folder of Parquet files that a table was read from, if it was."""
    place = reference.source if reference.large_file is None else reference.large_file.path
    return Path(place) if place is not None and Path(place).is_dir() else None


def _edges(reference: Table) -> list[int]:
    """Return where the files of the reference begin, and the number of rows."""
    rows, folder = reference.block.shape[0], _folder_of(reference)
    files = () if folder is None else parquet_files(folder)
    edges = [0, *np.cumsum([pq.read_metadata(str(path)).num_rows for path in files]).tolist()]
    if files and edges[-1] != rows:
        raise InputError(f"{folder}: must hold {rows} rows, as when it was read; found {edges[-1]}. Link it again.")
    return edges if files else [0, rows]


def _repeated(edges: Sequence[int], times: int) -> list[list[tuple[int, int]]]:
    """Return, per file, the rows of it in a table that repeats all rows so many times."""
    return [[(k * edges[-1] + a, k * edges[-1] + b) for k in range(times)] for a, b in pairwise(edges)]


class _Columns:
    """Columns of one table, each in a file of its own until it is written.

    Args:
        folder: for these files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.names, self.files = folder, list[str](), list[Path]()

    def add(self, name: Any, column: Any) -> None:
        if isinstance(column, nw.Series):
            column = column.to_arrow()
        elif not isinstance(column, pa.Array | pa.ChunkedArray):
            column = parquet_column(pd.Series(column, dtype=object if isinstance(column, list) else None))
        handle, path = tempfile.mkstemp(dir=self.folder)
        table = pa.table({"column": column})
        with open(handle, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=_ROWS)
        self.names.append(free_name(as_text(name), self.names))
        self.files.append(Path(path))

    def write(self, target: Path, parts: Sequence[Any]) -> Path:
        """Write all columns, and forget them; return the file, or the folder where there are several parts.

        Args:
            target: where, without an ending.
            parts: row numbers where files begin, or per file ranges of rows.
        """
        ranges = [[part] for part in pairwise(parts)] if isinstance(parts[0], int) else list(parts)
        columns = [pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(0) for path in self.files]
        whole = pa.table(dict(zip(self.names, columns, strict=True)))
        if len(ranges) == 1:
            target = target.with_name(f"{target.name}.parquet")
        else:
            target.mkdir()
        for number, several in enumerate(ranges):
            path = target if len(ranges) == 1 else target / f"part.{number}.parquet"
            with pq.ParquetWriter(path, whole.schema) as writer:
                for start, stop in several:
                    for rows in batches(stop - start, _ROWS):
                        writer.write_table(whole.slice(start + rows.start, rows.stop - rows.start))
        del columns, whole
        for file in self.files:
            file.unlink()
        return target


def _matches(links: Links, room: Path) -> _Columns:
    reference, *others = links.tables
    columns = _Columns(room)
    found = [links.found[table.name] for table in others]
    size = reference.block.shape[0]
    ids = _ids(reference, np.arange(size))
    columns.add("reference_id", pa.concat_arrays([ids] * len(others)))
    names = pa.DictionaryArray.from_arrays(
        np.repeat(np.arange(len(others), dtype=np.int32), size), [t.name for t in others]
    )
    columns.add("table", names)
    rows = [_ids(table, link.permutation) for table, link in zip(others, found, strict=True)]
    same = len({part.type for part in rows}) == 1
    columns.add("row_id", pa.concat_arrays(rows if same else [part.cast(pa.string()) for part in rows]))
    columns.add("probability", pa.array(np.concatenate([link.probability for link in found])))
    columns.add("margin", pa.array(np.concatenate([link.margin for link in found])))
    return columns


def _joined(links: Links, room: Path, edges: Sequence[int], target: Path, *, fill: Any = True, **which: Any) -> None:
    kept, rows, names, extra = joined_plan(links, **which)
    columns = _Columns(room)
    columns.add("reference_id", _ids(links.tables[0], rows[0]))
    for name, column in joined_columns(kept, rows, names, extra, fill=fill):
        columns.add(name, column)
    known_rows = rows[0][rows[0] >= 0]
    places = np.searchsorted(known_rows, edges).tolist()
    # Rows that the reference does not have come after all others.
    columns.write(target, [*places[:-1], len(rows[0])])


def _ids(table: Table, rows: IntArray) -> Any:
    """Return the ids of rows, missing for −1; numbers stay numbers."""
    labels = table.row_ids
    if isinstance(labels, range):
        return pa.array(rows, mask=rows < 0)
    return parquet_column(pd.Series([labels[row] if row >= 0 else None for row in rows.tolist()], dtype=object))


def parquet_column(column: pd.Series) -> Any:
    """Return a column of one type, as Parquet holds them; as text where there is no such type."""
    if isinstance(column.dtype, pd.SparseDtype):
        column = pd.Series(np.asarray(column.array))
    several = column.dtype.kind == "O" and column.dropna().map(type).nunique() > 1
    if not several:
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            made = pa.Array.from_pandas(column)
            if not pa.types.is_interval(made.type):
                # A column of nothing at all has no type; text is one that every reader knows.
                return made.cast(pa.string()) if pa.types.is_null(made.type) else made
    gone = column.isna().tolist()
    texts = [None if missing else as_text(entry) for entry, missing in zip(column.tolist(), gone, strict=True)]
    return pa.array(texts, type=pa.string())
