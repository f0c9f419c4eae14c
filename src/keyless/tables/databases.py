"""Tables of SQLite and DuckDB databases."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from keyless.errors import InputError
from keyless.tables.files import check_names
from keyless.tables.frames import Given
from keyless.tables.parquet import collected, to_pandas
from keyless.tables.places import Place, missing_extra
from keyless.tables.reading_options import Reading, shown
from keyless.tables.spreadsheets import as_text, is_number

__all__ = ["is_sqlite", "read_duckdb", "read_sqlite"]

_CLOSED: dict[str, Any] = dict.fromkeys(
    ("enable_external_access", "autoinstall_known_extensions", "autoload_known_extensions"), "false"
)
_BYTES_PER_CELL = 150
"""Memory that one value takes as a Python object and as text."""

_CHUNK, _SOME_ROWS = 2**20, 1_000
"""Bytes of SQLite, and rows of DuckDB, that are read at a time: then memory is looked at."""


def is_sqlite(path: Path) -> bool:
    """Tell by its first bytes whether a file is an SQLite database; an unreadable one is said to be."""
    try:
        with path.open("rb") as file:
            start = file.read(20)
    except OSError:
        return True
    # DuckDB has its own mark behind eight bytes; an empty file is an empty SQLite database.
    return start[8:12] != b"DUCK"


def read_sqlite(place: Place, reading: Reading) -> Given:
    """Read a table of an SQLite database as cells of text: its columns may hold numbers and text beside each other."""
    with _sqlite(place) as connection:
        # A column may be computed, and be as long as it likes.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(reading.max_line, 2**31 - 1))
        # Tables and no views: those may compute for ever.
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        table = _quoted(_chosen(place, [str(name) for (name,) in found]))
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        cursor = connection.execute(f"SELECT * FROM {table}")
        names = [str(column[0]) for column in cursor.description]
        records, size, checked = [], 0, 0
        _check(place, rows, len(names), size, reading)
        for record in cursor:
            records.append(record)
            size += sum(len(entry) for entry in record if isinstance(entry, str | bytes))
            if size > checked + _CHUNK:
                _check(place, rows, len(names), size, reading)
                checked = size
    check_names(names, place.where)
    if not records:
        raise InputError(f"{place.where}: must have rows; found none.")
    columns = dict(zip(names, zip(*records, strict=True), strict=True))
    frame = pd.DataFrame({name: pd.array(as_text(column), dtype="string[pyarrow]") for name, column in columns.items()})
    typed = frozenset(name for name, column in columns.items() if any(map(is_number, column)))
    return Given(frame, place.where, "cells", typed=typed)


@contextlib.contextmanager
def _sqlite(place: Place) -> Iterator[sqlite3.Connection]:
    if not place.path.is_file():
        raise InputError(f"{place.where}: must be a file; there is none at {shown(place.path)}.")
    connection = None
    try:
        # Read only: a database that is not there is not made, and one that is there is not changed. Where nobody writes
        # to it, it is not locked either: locks are files beside it, and cannot be made in a folder that is read-only.
        path = str(place.path.absolute())
        beside_it = (Path(f"{path}-wal"), Path(f"{path}-journal"))
        mode = (
            "mode=ro" if any(beside.is_file() and beside.stat().st_size > 0 for beside in beside_it) else "immutable=1"
        )
        connection = sqlite3.connect(f"file:{quote(path)}?{mode}", uri=True)
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection
    except sqlite3.Error as error:
        raise InputError(f"{place.where}: must be a database of SQLite or DuckDB; {error}.") from error
    finally:
        if connection is not None:
            connection.close()


def read_duckdb(place: Place, reading: Reading) -> Given:
    """Read a table of a DuckDB database; whole numbers stay such where some are missing."""
    try:
        import duckdb  # noqa: PLC0415 — an extra
    except ImportError as error:
        raise missing_extra(place.where, "databases of DuckDB", "duckdb") from error
    try:
        # Nothing outside the file is read, and nothing is fetched.
        with duckdb.connect(str(place.path), read_only=True, config=_CLOSED) as connection:
            known = connection.sql(
                "SELECT table_name FROM information_schema.tables "
                "WHERE table_schema = 'main' AND table_type = 'BASE TABLE' ORDER BY table_name"
            ).fetchall()
            table = _quoted(_chosen(place, [str(name) for (name,) in known]))
            ((rows,),) = connection.sql(f"SELECT count(*) FROM {table}").fetchall()
            selected: Any = connection.sql(f"SELECT * FROM {table}")
            _check(place, int(rows), len(selected.columns), 0, reading)
            # The second is its older name.
            batches = (getattr(selected, "to_arrow_reader", None) or selected.fetch_record_batch)(_SOME_ROWS)
            arrow = collected(batches, batches.schema, place.where, reading, rows=int(rows))
    except duckdb.Error as error:
        said = " ".join(str(error).split())
        raise InputError(f"{place.where}: must be a database of SQLite or DuckDB; {said[:200]}.") from error
    check_names(arrow.column_names, place.where)
    if not arrow.num_rows:
        raise InputError(f"{place.where}: must have rows; found none.")
    return Given(to_pandas(arrow, where=place.where), place.where)


def _chosen(place: Place, names: Sequence[str]) -> str:
    """Return the table that is meant; ask where that is open."""
    some = ", ".join(map(shown, names[:12])) + (", …" if len(names) > 12 else "")
    if not names:
        raise InputError(f"{place.where}: must have a table; it is an empty database.")
    if place.part is None:
        if len(names) > 1:
            raise InputError(
                f"{place.where}: must say which table is meant; there are {some}. "
                f"Name one as {place.path.name}::{names[0]}."
            )
        return names[0]
    if place.part not in names:
        raise InputError(f"{place.where}: must name a table; there are {some}.")
    return place.part


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _check(place: Place, rows: int, width: int, size: int, reading: Reading) -> None:
    reading.check_memory(
        # As they are, as text, where bytes are two characters each, and as Arrow has text.
        5 * size + rows * width * _BYTES_PER_CELL,
        where=place.where,
        what=f"a table of {rows} × {width} entries",
    )
