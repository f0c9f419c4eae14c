"""A large file whose entries are not kept: they are read again, a column at a time, when somebody asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from keyless.errors import InputError
from keyless.tables.files import File, file_name, to_pandas

__all__ = ["LargeFile", "keep"]


@dataclass(frozen=True)
class LargeFile:
    """A Parquet file as it was when it was read.

    Attributes:
        path: where it is, from the root of the file system: the working folder may change.
        size: bytes it had.
        changed: when it was last changed, in nanoseconds since 1970.
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
            status = Path(self.path).stat()
        except OSError as error:
            raise InputError(
                f"{self.where}: must still be where it was read; there is nothing at {self.path}. Entries of large "
                "files are read again when they are asked for: put it back, or link the tables again."
            ) from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self.changed):
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
        with File(self.where, Path(self.path), True, None).open():
            try:
                table = pq.ParquetFile(self.path).read(columns=[label]).select([label])
            except pa.ArrowException as error:
                raise InputError(f"{self.where}: must be a Parquet file; it is damaged or of another kind.") from error
        return to_pandas(table, where=self.where)

    def column(self, label: str) -> list[Any]:
        """Return the entries of one column, as a frame has them."""
        return list(self.frame(label)[label].tolist())


def keep(path: Path) -> LargeFile:
    """Return a file as it is now."""
    status = path.stat()
    return LargeFile(str(path.absolute()), status.st_size, status.st_mtime_ns)
