"""Files as they lie on disk, compressed or not, a path or standard input; CSV and TSV as text, cell by cell."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv

from keyless.errors import InputError
from keyless.tables.encodings import Encoding
from keyless.tables.frames import Dialect, Given
from keyless.tables.layout import TAIL, Body, Top, find_body, text_top
from keyless.tables.memory import check_memory, in_words
from keyless.tables.places import OTHER_ENDINGS, place_of
from keyless.tables.reading_options import Reading, option, shown

__all__ = [
    "STDIN",
    "File",
    "check_names",
    "damaged_parquet",
    "file_name",
    "given_cells",
    "open_file",
    "read_text",
    "stem",
]

STDIN = "-"
_SEPARATORS: dict[str, str | None] = {".csv": None, ".txt": None, ".tsv": "\t", ".tab": "\t"}
_PARQUET = (".parquet", ".pq")
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_CHUNK = 2**20
_UNCHECKED = 16 * _CHUNK
"""Bytes of text that any machine can hold."""

_TEXTS, _BYTES_PER_CELL, _BYTES_PER_ROW = 3, 40, 400
"""What reading a text file takes at its peak: so many copies of the text, so many bytes for each cell (where it begins,
its number, whether it is observed), and so many for each row of the one column that is looked at. Measured on columns
of numbers, categories, dates and text, one and eight beside each other."""


def _zstd(stream: BinaryIO) -> Any:
    """Open with Arrow, which has it on every Python."""
    return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}


def file_name(path: str | Path) -> str:
    """Return a file as messages name it: in one line, without its folders."""
    if str(path) == STDIN:
        return "standard input"
    return " ".join(Path(path).name.split()) or str(path)


def stem(path: str | Path) -> str:
    """Return what a table read from a file is called: its name without endings."""
    if str(path) == STDIN:
        return "stdin"
    place = place_of(path)
    if place.kind != "file":
        return place.name
    name, _ = _split(Path(path).name, _OPENERS)
    name, _ = _split(name, [*_SEPARATORS, *_PARQUET])
    return name or "table"


@dataclass(frozen=True, eq=False)
class File:
    """A file that can be opened again and again.

    Attributes:
        where: as messages name it.
        path: None for standard input.
        parquet: whether it is Parquet, rather than text.
        compression: how it is compressed, by file ending.
        separator: between cells; None: by what the first line has.
        spool: what was read from standard input.
    """

    where: str
    path: Path | None
    parquet: bool
    compression: str | None
    separator: str | None = None
    spool: Any = field(default=None, repr=False)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open it from the start, and say so when it cannot be read."""
        try:
            if self.path is None:
                self.spool.seek(0)
                yield self._opened(self.spool)
            else:
                with self.path.open("rb") as stream:
                    yield self._opened(stream)
        except FileNotFoundError as error:
            raise InputError(
                f"{self.where}: must be a file; there is none at {shown(self.path, limit=200)}."
            ) from error
        except IsADirectoryError as error:
            raise InputError(f"{self.where}: must be a file; it is a folder. Name the files in it.") from error
        except PermissionError as error:
            raise InputError(
                f"{self.where}: must be readable; permission is denied. Change its permissions."
            ) from error
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise self.damaged(error) from error
        except OSError as error:
            if self.compression is not None:
                raise self.damaged(error) from error
            raise InputError(f"{self.where}: must be readable; {error.strerror or error}.") from error

    def _opened(self, stream: BinaryIO) -> Any:
        return stream if self.compression is None else _OPENERS[self.compression](stream)

    def damaged(self, error: Exception) -> InputError:
        """Return an error about what cannot be unpacked."""
        return InputError(
            f"{self.where}: must be a whole file compressed as {self.compression or 'its name says'}; it is damaged or "
            f"of another kind ({error})."
        )


def damaged_parquet(where: str) -> InputError:
    """Return an error about a Parquet file that cannot be read.

    Args:
        where: the file, as messages name it.
    """
    return InputError(f"{where}: must be a Parquet file; it is damaged or of another kind.")


def open_file(path: str | Path, *, max_memory: int | None = None) -> File:
    """Return the file at a path, or standard input for `-`.

    Args:
        path: where it is.
        max_memory: bytes that standard input may have; None: what the machine has available.
    """
    where = file_name(path)
    if str(path) == STDIN:
        if sys.stdin is None:
            raise InputError("standard input: must be open to be read; it is closed. Name a file instead of -.")
        spool = _drained(sys.stdin.buffer, max_memory)
        start = spool.read(8)
        compression = next((ending for magic, ending in _MAGIC.items() if start.startswith(magic)), None)
        plain = File(where, None, False, compression, spool=spool)
        with plain.open() as stream:
            parquet = stream.read(4) == b"PAR1"
        return File(where, None, parquet, compression, spool=spool)
    target = Path(path)
    rest, compression = _split(target.name, _OPENERS)
    _, ending = _split(rest, [*_SEPARATORS, *_PARQUET])
    if target.is_dir():
        raise InputError(f"{where}: must be a file; it is a folder. Name the files in it.")
    if not target.exists():
        raise InputError(f"{where}: must be a file; there is none at {shown(path)}.")
    if ending is None:
        known = ", ".join([*_SEPARATORS, *_PARQUET, *OTHER_ENDINGS])
        raise InputError(
            f"{where}: must end in one of {known}; text and Parquet may be compressed ({', '.join(_OPENERS)}); "
            f"found {shown(target.suffix)}. Rename or convert the file."
        )
    return File(where, target, ending in _PARQUET, compression, _SEPARATORS.get(ending))


def _split(name: str, endings: Iterable[str]) -> tuple[str, str | None]:
    """Return a name without one of the endings, and the ending."""
    ending = next((ending for ending in endings if name.lower().endswith(ending)), None)
    return (name, None) if ending is None else (name[: -len(ending)], ending)


def _drained(stream: BinaryIO, max_memory: int | None) -> io.BytesIO:
    """Return all of a stream that can be read once only."""
    spool = io.BytesIO()
    while chunk := stream.read(16 * _CHUNK):
        spool.write(chunk)
        size = spool.tell()
        check_memory(3 * size, max_memory=max_memory, where="standard input", what=f"{in_words(size)} of text")
    spool.seek(0)
    return spool


# --- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scan:
    """What one pass over a text file says about it."""

    size: int
    lines: int
    longest: int
    encoding: str
    notes: tuple[str, ...]
    head: str
    tail: bytes
    marked: bool


def read_text(file: File, reading: Reading) -> Given:
    """Read all cells of a CSV or TSV file as text."""
    scan = _scanned(file, reading)
    notes = list(scan.notes)
    top = text_top(scan.head, file.separator, reading)
    if file.separator is None and top.separator != ",":
        notes.append(f"cells are separated by {top.separator!r}")
    notes += top.notes
    width = _width(file, scan, top, reading)
    rows = max(scan.lines - 1, 0)
    _check_cells(file, reading, scan.size, (rows, width), f"a table of {rows} × {width} cells")
    table, ragged = _batches(file, scan, top, [f"f{k}" for k in range(width)], reading)
    last = str(table.column(width - 1)[-1].as_py()) if table.num_rows else ""
    if "\n" in last and not scan.tail.rstrip(b"\r\n\0 ").endswith(b'"'):
        # The parser takes the end of the file for the end of the quote, and rows for text.
        raise _unclosed(file, _line(file, scan, table.num_rows - 1, top, width))

    def line(record: int) -> int | None:
        return _line(file, scan, record, top, width)

    texts = [(number, _cells_of(text, top.separator)) for number, _, text in ragged]
    body = find_body(table, texts, top.header, reading=reading, where=file.where, line=line)
    if body is None:
        number, actual, _ = ragged[0]
        raise _ragged(file, line(number), width, actual, reading)
    if top.header == 1 and width > 1 and all(re.fullmatch(r"[+-]?\d+([.,]\d+)?", name.strip()) for name in body.names):
        instead = option(reading.door, "header", 0)
        notes.append(f"the first line is taken for column names, though all of them are numbers; if not, say {instead}")
    dialect = Dialect(separator=top.separator, encoding="utf-8-sig" if scan.marked else scan.encoding)
    return given_cells(body, (*notes, *body.notes), where=file.where, line=line, dialect=dialect)


def given_cells(
    body: Body,
    notes: tuple[str, ...],
    *,
    where: str,
    line: Callable[[int], int | None],
    dialect: Dialect,
    typed: frozenset[str] = frozenset(),
) -> Given:
    """Return the rows of a file of cells on their way to a table; see `Given`."""
    check_names(body.names, where)
    if not len(body.places):
        raise InputError(f"{where}: must have rows below the line of column names; found none.")
    columns = {name: pd.arrays.ArrowStringArray(column) for name, column in zip(body.names, body.columns, strict=True)}
    frame, places = pd.DataFrame(columns), body.places
    return Given(frame, where, "cells", notes, None, lambda row: line(int(places[row])), typed, dialect)


def _cells_of(text: str, separator: str) -> list[str]:
    """Return the cells of a line; none where one of them is very long, and the line thus no note below a table."""
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:
        return []


def _check_cells(file: File, reading: Reading, size: int, shape: tuple[int, int], what: str) -> None:
    """Refuse what does not fit: all cells as text and as numbers, and one column at a time taken apart."""
    rows, width = shape
    needed = _TEXTS * size + rows * (width * _BYTES_PER_CELL + _BYTES_PER_ROW)
    reading.check_memory(needed, where=file.where, what=what)


def _scanned(file: File, reading: Reading) -> _Scan:
    """Look at every byte once: encoding, lines, the longest of them."""
    size = lines = longest = current = 0
    start = tail = b""
    checker = Encoding(file.where, reading)
    with file.open() as stream:
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            if size > _UNCHECKED:
                # A small file may unpack to a lot: that stops where the memory ends.
                what = f"a table of at least {lines} rows, {in_words(size)} of text,"
                _check_cells(file, reading, size, (lines, 1), what)
            tail = tail[-64:] + chunk[-64:]
            if len(start) < _CHUNK:
                start += chunk
            breaks = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n"))
            # Lengths of the lines of this chunk, the first with what came before of it.
            lengths = np.diff(np.concatenate([[-1 - current], breaks, [len(chunk)]])) - 1
            longest, current = max(longest, int(lengths.max())), int(lengths[-1])
            if longest > reading.max_line:
                before = int(np.argmax(lengths > reading.max_line))
                raised = "Raise max_line" if reading.door == "python" else "Convert it to Parquet"
                raise InputError(
                    f"{file.where}, line {lines + before + 1}: must be at most {in_words(reading.max_line)} long; "
                    f"it is longer. {raised} if the table is that wide."
                )
            checker.feed(chunk, lines)
            lines += len(breaks)
    if not start.strip():
        raise InputError(f"{file.where}: must be a table with column names in the first line; it is empty.")
    encoding, notes = checker.verdict()
    head = start.decode(encoding, errors="replace").lstrip("\ufeff")
    marked = encoding == "utf-8" and start.startswith(codecs.BOM_UTF8)
    return _Scan(size, lines + bool(current), longest, encoding, notes, head, tail, marked)


def _options(scan: _Scan, top: Top, width: int | None) -> dict[str, Any]:
    return {
        "read_options": pacsv.ReadOptions(
            use_threads=False,
            # A record must fit in a block, also one of several lines.
            block_size=min(max(4 * scan.longest + 64, 16 * _CHUNK), max(2 * scan.size, _CHUNK), 2**31 - 1),
            autogenerate_column_names=True,
            encoding=scan.encoding,
            skip_rows=top.skip,
        ),
        "parse_options": pacsv.ParseOptions(
            delimiter=top.separator,
            newlines_in_values=True,
            # In a table of one column an empty line is an empty cell.
            ignore_empty_lines=width != 1,
        ),
    }


def _width(file: File, scan: _Scan, top: Top, reading: Reading) -> int:
    with file.open() as stream, _reported(file, scan, reading):
        options = _options(scan, top, None)
        options["parse_options"].invalid_row_handler = lambda _row: "skip"
        return len(pacsv.open_csv(stream, **options).schema.names)


def _batches(
    file: File, scan: _Scan, top: Top, names: list[str], reading: Reading
) -> tuple[pa.Table, list[tuple[int, int, str]]]:
    """Return all records of the width of the table, and number, width and text of the first others."""
    options = _options(scan, top, len(names))
    ragged: list[tuple[int, int, str]] = []

    def found(row: Any) -> str:
        if len(ragged) <= TAIL:
            ragged.append((row.number - 1 - top.skip, row.actual_columns, row.text))
        return "skip"

    options["parse_options"].invalid_row_handler = found
    types = dict.fromkeys(names, pa.large_string())
    convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=False, null_values=[])
    with file.open() as stream, _reported(file, scan, reading):
        reader = pacsv.open_csv(stream, convert_options=convert, **options)
        return pa.Table.from_batches(list(reader), schema=reader.schema), ragged


@contextmanager
def _reported(file: File, scan: _Scan, reading: Reading) -> Iterator[None]:
    """Say what the parser found in the words of this project."""
    try:
        yield
    except UnicodeError as error:
        raise InputError(
            f"{file.where}: must be text in {scan.encoding}; it is not ({error}). "
            f"Name its encoding with {option(reading.door, 'encoding')}."
        ) from error
    except pa.ArrowException as error:
        if "straddling" in str(error):
            raise _unclosed(file, None) from error
        raise InputError(f"{file.where}: must be a table of cells; the parser cannot read it ({error}).") from error


def _ragged(file: File, line: int | None, expected: int, actual: int, reading: Reading) -> InputError:
    place = "a line" if line is None else f"line {line}"
    return InputError(
        f"{file.where}, {place}: must have {expected} cells, as the first line has; found {actual}. Quote cells that "
        f"hold the separator (such as decimal commas), or mend the line; {option(reading.door, 'skip')} and "
        f"{option(reading.door, 'footer')} leave lines above and below the table out."
    )


def _unclosed(file: File, line: int | None) -> InputError:
    place = file.where if line is None else f"{file.where}, line {line}"
    return InputError(
        f"{place}: must close every quote; a quoted cell never ends. Look for a quote too many or too few."
    )


def _line(file: File, scan: _Scan, record: int, top: Top, width: int) -> int | None:
    """Return the line a record starts in; records may span lines, and empty lines are none."""
    quotes, seen = 0, -1
    start: int | None = None
    with file.open() as stream:
        text = io.TextIOWrapper(stream, scan.encoding, errors="replace")
        for number, line in enumerate(text, start=1):
            if number <= top.skip:
                continue
            if quotes % 2 == 0 and not (width > 1 and not line.strip("\r\n")):
                seen += 1
                if seen == record:
                    start = number
                    break
            quotes += line.count('"')
        text.detach()
    return start


def check_names(names: list[str], where: str) -> None:
    """Refuse a file in which two columns have the same name."""
    places: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        if name in places:
            raise InputError(
                f"{where}: must have different column names; {shown(name)} is the name of columns {places[name]} and "
                f"{number}. Rename one."
            )
        places[name] = number
