"""A large file, or a folder of Parquet files, whose entries are not kept but read again when somebody asks for them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from keyless.errors import InputError
from keyless.tables.files import File, damaged_parquet, file_name
from keyless.tables.typed import to_pandas

__all__ = ["LargeFile", "held_in", "keep", "parquet_files"]


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
        """Return one column, of the type it has when the whole file is read.

        Args:
            label: its name.
        """
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
            found.append((_natural(inside.as_posix()), path))
    return tuple(path for _, path in sorted(found))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what names are sorted by, so that part 10 comes after part 9."""
    return [(int(text or 0), "") if number else (-1, text) for text, number in _pieces(name)]


def _pieces(name: str) -> list[tuple[str, bool]]:
    return [(text, text.isdecimal()) for text in re.split(r"(\d+)", name) if text]
