"""A matrix of numbers in a file: read some rows at a time, by this process or by any that sees the file."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from keyless.errors import InputError

__all__ = ["OnDisk", "ScratchFolder"]

Values = np.ndarray[Any, np.dtype[Any]]

SCRATCH = "KEYLESS_SCRATCH"
"""Environment variable that names the folder for numbers that are kept on disk while tables are in use."""

_MAPPED: weakref.WeakValueDictionary[int, Values] = weakref.WeakValueDictionary()
"""Arrays that map such files into memory, by identity, as long as they are in use."""


@dataclass(frozen=True)
class OnDisk:
    """Rows × columns of numbers, one row after the other in a file. It travels to other processes by name.

    Attributes:
        path: the file, from the root of the file system.
        shape: rows and columns.
        dtype: name of the type of the numbers.
    """

    path: str
    shape: tuple[int, int]
    dtype: str

    @classmethod
    def behind(cls, values: Any) -> OnDisk | None:
        """Return the file that an array of `mapped` maps into memory whole; None for any other array.

        A file that the caller has mapped is the caller's: what the array holds may not be what the file holds.
        """
        base = values
        while isinstance(base, np.ndarray) and _MAPPED.get(id(base)) is not base:
            base = base.base
        if not isinstance(base, np.memmap) or values.ndim != 2 or not values.flags.c_contiguous:
            return None
        if values.nbytes != base.nbytes:
            return None
        return cls(str(base.filename), (int(values.shape[0]), int(values.shape[1])), values.dtype.name)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Values:
        try:
            if isinstance(rows, slice):
                # Read, not mapped: pages of a mapped file would count as memory of this process.
                start, stop, _ = rows.indices(len(self))
                width, size = self.shape[1], np.dtype(self.dtype).itemsize
                count = max(stop - start, 0) * width
                read = np.fromfile(self.path, self.dtype, count=count, offset=start * width * size)
                return read.reshape(-1, width)
            return np.asarray(self.mapped[rows])
        except FileNotFoundError as error:
            raise InputError(
                f"{self.path}: must be seen by every machine that works on the tables; {platform.node()} does not "
                f"see it. Set {SCRATCH} to a folder that all of them share."
            ) from error

    @cached_property
    def mapped(self) -> Values:
        """The numbers as an array that is read from the file where it is looked at, and cannot be written to."""
        made = np.memmap(self.path, dtype=self.dtype, mode="r", shape=self.shape)
        _MAPPED[id(made)] = made
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return OnDisk, (self.path, self.shape, self.dtype)

    def write(self, start: int, rows: Values) -> None:
        """Write rows from number `start` on; the file must be there, and may be written by several at once.

        Args:
            start: number of the first of them.
            rows: the numbers.
        """
        with Path(self.path).open("r+b") as file:
            file.seek(start * self.shape[1] * np.dtype(self.dtype).itemsize)
            np.ascontiguousarray(rows, dtype=self.dtype).tofile(file)

    def writable(self, start: int, stop: int) -> Values:
        """Return some rows as an array that is written to the file where it is written to."""
        offset = start * self.shape[1] * np.dtype(self.dtype).itemsize
        return np.memmap(self.path, self.dtype, mode="r+", offset=offset, shape=(stop - start, self.shape[1]))

    def allocate(self, *, beside: int = 0) -> OnDisk:
        """Make the file, with 0 everywhere; refuse one that the disk has no room for.

        Args:
            beside: bytes that files made before will still take: what was not written yet takes no room.
        """
        size = self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize
        needed = size + beside
        folder = Path(self.path).parent
        free = shutil.disk_usage(folder).free
        if needed > free:
            # Writing to mapped memory that the disk has no room for would end the process.
            raise InputError(
                f"{folder}: must have {needed / 1e9:.1f} GB free for the numbers of a table; it has {free / 1e9:.1f} "
                f"GB. Set {SCRATCH} to a folder with more room."
            )
        with Path(self.path).open("wb") as file:
            file.truncate(size)
        return self


class ScratchFolder:
    """A new folder for numbers, its path in `path`; it goes away with the last one who uses it."""

    def __init__(self) -> None:
        parent = os.environ.get(SCRATCH) or None
        if parent is not None and not Path(parent).is_dir():
            raise InputError(f"{SCRATCH}: must name a folder; there is no {parent}. Make it first.")
        self.path = Path(tempfile.mkdtemp(prefix="keyless-", dir=parent)).resolve()
        self._end = weakref.finalize(self, shutil.rmtree, str(self.path), ignore_errors=True)
