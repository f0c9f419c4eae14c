"""Parquet files and folders of them: read whole, as far as there is memory, or kept to be read again when asked for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from keyless.errors import InputError
from keyless.tables.files import File, check_names, damaged_parquet, file_name
from keyless.tables.frames import Given
from keyless.tables.memory import in_words
from keyless.tables.reading_options import Reading

__all__ = ["LargeFile", "check_entries", "collected", "held_in", "keep", "parquet_files", "read_parquet", "to_pandas"]


_CHUNK = 2**24
"""Bytes that are unpacked before memory is looked at again."""

_BYTES_PER_ENTRY, _BYTES_PER_ROW_OF_ENTRIES = 55, 150
"""What reading takes at its peak beside two copies of the entries' bytes: so many for each entry and for each row.
Measured on columns of numbers, categories, dates and text, one and eight beside each other."""

_SOME_ROWS, _MANY_ROWS = 1_000, 65_536
"""Rows of a batch after which memory is looked at: where entries may be long, and where they are numbers."""

_NULLABLE = {
    pa.bool_(): pd.BooleanDtype(),
    **{getattr(pa, f"int{bits}")(): getattr(pd, f"Int{bits}Dtype")() for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): getattr(pd, f"UInt{bits}Dtype")() for bits in (8, 16, 32, 64)},
    pa.date32(): pd.ArrowDtype(pa.date32()),
}


def read_parquet(file: File, reading: Reading) -> Given:
    """Read a Parquet file; whole numbers stay such where some are missing."""
    with file.open() as stream:
        try:
            source = pa.BufferReader(_whole(file, stream, reading)) if file.path is None or file.compression else stream
            parquet = pq.ParquetFile(source)
            rows, width = parquet.metadata.num_rows, parquet.metadata.num_columns
            groups = range(parquet.metadata.num_row_groups)
            size = sum(parquet.metadata.row_group(group).total_byte_size for group in groups)
            check_entries(file.where, reading, size, (rows, width))
            some = _SOME_ROWS if any(map(_may_be_long, parquet.schema_arrow.types)) else _MANY_ROWS
            batches = parquet.iter_batches(batch_size=some)
            table = collected(batches, parquet.schema_arrow, file.where, reading, rows=rows)
            table.validate(full=True)
            check_names(table.column_names, file.where)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise damaged_parquet(file.where) from error
    if not table.num_rows:
        raise InputError(f"{file.where}: must have rows; found none.")
    return Given(to_pandas(table, where=file.where), file.where)


def _may_be_long(given: pa.DataType) -> bool:
    """Tell whether a single entry may take any number of bytes."""
    return not (pa.types.is_primitive(given) or pa.types.is_decimal(given))


def collected(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, where: str, reading: Reading, *, rows: int
) -> pa.Table:
    """Return batches of rows as one table, as far as there is memory: entries that repeat are stored once in a file.

    Args:
        batches: the rows.
        schema: names and types of the columns.
        where: the file, as messages name it.
        reading: limits.
        rows: how many there are in all.
    """
    kept, size = [], 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        check_entries(where, reading, size, (rows, len(schema)), held=size)
    return pa.Table.from_batches(kept, schema=schema)


def check_entries(where: str, reading: Reading, size: int, shape: tuple[int, int], *, held: int = 0) -> None:
    """Refuse a typed table that does not fit: twice its bytes, and what its entries take as numbers.

    Args:
        where: the file, as messages name it.
        reading: limits.
        size: bytes of its entries.
        shape: rows and columns.
        held: bytes that are held already.
    """
    rows, width = shape
    reading.check_memory(
        2 * size + rows * (width * _BYTES_PER_ENTRY + _BYTES_PER_ROW_OF_ENTRIES),
        where=where,
        what=f"a table of {rows} × {width} entries",
        held=held,
    )


def _whole(file: File, stream: BinaryIO, reading: Reading) -> bytes:
    """Unpack a compressed Parquet file, as far as there is memory."""
    parts, size = [], 0
    while chunk := stream.read(_CHUNK):
        parts.append(chunk)
        size += len(chunk)
        what = f"a Parquet file of at least {in_words(size)}, unpacked,"
        reading.check_memory(2 * size, where=file.where, what=what)
    return b"".join(parts)


def to_pandas(table: pa.Table, *, where: str) -> pd.DataFrame:
    """Return a table of Arrow as a frame; whole numbers stay such where some are missing."""
    try:
        frame: pd.DataFrame = table.to_pandas(types_mapper=_pandas_type)
    except Exception:  # what it says about pandas is nonsense, and pandas has many errors for that
        try:
            frame = table.replace_schema_metadata(None).to_pandas(types_mapper=_pandas_type)
        except Exception as error:  # a time zone that nobody knows, or the like
            said = f"{type(error).__name__}: {error}"
            raise InputError(f"{where}: must have entries that pandas can hold; it cannot ({said}).") from error
    return frame


def _pandas_type(given: pa.DataType) -> Any:
    # Python has no maps of this kind, and no times in nanoseconds.
    if pa.types.is_map(given) or given == pa.time64("ns"):
        return pd.ArrowDtype(given)
    return _NULLABLE.get(given)


@dataclass(frozen=True)
class LargeFile:
    """A Parquet file, or a folder of them, as it was when it was read.

    Attributes:
        path: where it is, from the root of the file system: the working folder may change.
        size: bytes it had; of a folder, those of all its files.
        changed: when it was last changed, in nanoseconds since 1970; of a folder, a digest of the names of its files,
            of their sizes and of when they were changed.
    """

    path: str
    size: int
    changed: int

    @property
    def where(self) -> str:
        """The file as messages name it."""
        return file_name(self.path)

    def check(self) -> None:
        """Raise unless the file is there and as it was: observed entries must come back as they were read."""
        try:
            now = keep(Path(self.path))
        except OSError as error:
            raise InputError(
                f"{self.where}: must still be where it was read; there is nothing at {self.path}. Entries of large "
                "files are read again when they are asked for: put it back, or link the tables again."
            ) from error
        if now != self:
            raise InputError(
                f"{self.where}: must be as it was when it was read; it has changed since. Entries of large files are "
                "read again when they are asked for: put it back as it was, or link the tables again."
            )

    def frame(self, label: str) -> pd.DataFrame:
        """Return one column, of the type it has when the whole file is read."""
        self.check()
        parts = []
        for path in self.files:
            with File(file_name(path), path, True, None).open():
                try:
                    parts.append(pq.ParquetFile(str(path)).read(columns=[label]).select([label]))
                except pa.ArrowException as error:
                    raise damaged_parquet(file_name(path)) from error
        return to_pandas(pa.concat_tables(parts), where=self.where)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, or those of the folder, in the order of their rows."""
        path = Path(self.path)
        return parquet_files(path) if path.is_dir() else (path,)

    def column(self, label: str) -> list[Any]:
        """Return the entries of one column, as a frame has them."""
        return list(self.frame(label)[label].tolist())


def keep(path: Path) -> LargeFile:
    """Return a file, or a folder of Parquet files, as it is now."""
    where = str(path.absolute())
    if not path.is_dir():
        about = path.stat()
        return LargeFile(where, about.st_size, about.st_mtime_ns)
    held = held_in(path)
    digest = hashlib.blake2b(repr(held).encode(), digest_size=7).digest()
    return LargeFile(where, sum(size for _, size, _ in held), int.from_bytes(digest))


def held_in(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, bytes and time of the last change of each Parquet file of a folder, in the order of their rows."""
    found = [(path.relative_to(folder).as_posix(), path.stat()) for path in parquet_files(folder)]
    return [(name, about.st_size, about.st_mtime_ns) for name, about in found]


def parquet_files(folder: Path) -> tuple[Path, ...]:
    """Return the Parquet files of a folder and of those in it, in the order of the numbers in their names.

    Files and folders whose names begin with `.` or `_` are passed over, as other readers of such folders do.
    """
    found = []
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if path.suffix.lower() not in (".parquet", ".pq") or path.is_dir():
            continue
        if not any(part[0] in "._" for part in inside.parts):
            parts = [text for text in re.split(r"(\d+)", inside.as_posix()) if text]
            # Part 10 comes after part 9.
            found.append(([(int(text), "") if text.isdecimal() else (-1, text) for text in parts], path))
    return tuple(path for _, path in sorted(found))
