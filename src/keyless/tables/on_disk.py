"""The numbers of a folder of Parquet files, in a file of their own, each part written by whoever works."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keyless.arrays import BoolArray, NumpyArray, batches
from keyless.block import Block
from keyless.cluster import OnDisk, ScratchFolder, current_workers
from keyless.tables.batches import BUFFERS, ColumnWatch, kind_of, opened, read_numbers
from keyless.tables.parquet import LargeFile

__all__ = ["NumbersOnDisk", "read_again"]

_ROWS = 2**18
"""Rows that are copied at a time."""


class NumbersOnDisk:
    """The numbers of several files, 0 where missing, in single precision where that is enough; a mask where some are.

    They are there as long as this is.

    Args:
        files: Parquet files of the same columns, whose rows follow each other.

    Attributes:
        source: the folder of the files, where they are there for this alone; None: they are the caller's.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files, self.folder, self.workers = tuple(files), ScratchFolder(), current_workers()
        self.source: Any = None

    def read(self, rows: int, fields: Sequence[Any]) -> tuple[NumpyArray, Any, ColumnWatch]:
        """Read some columns of all files; return numbers and mask, mapped into memory, and what was seen of them.

        The mask is None where it is True everywhere.
        """
        shape, watch = (rows, len(fields)), ColumnWatch(fields)
        if not fields:
            return np.empty(shape), None, watch
        sizes = [opened(path).metadata.num_rows for path in self.files]
        starts = np.cumsum([0, *sizes]).tolist()
        # Of each file that is read, what is read ahead, and a mask of its own.
        self.workers.check(2 * BUFFERS + max(sizes) * shape[1])
        seen = OnDisk(str(self.folder.path / "mask"), shape, "bool").allocate()
        found: list[tuple[ColumnWatch, bool]] = []
        values = seen
        for dtype in ("float32", "float64"):
            # A mask is a byte per number.
            values = OnDisk(str(self.folder.path / dtype), shape, dtype).allocate(beside=rows * shape[1])
            watch = ColumnWatch(fields, check=dtype == "float32")
            watch.centred(self.files)
            parts = [
                self.workers.start(_read_file, str(path), watch.starting(start), values, seen)
                for path, start in zip(self.files, starts[:-1], strict=True)
            ]
            found = self.workers.fetch(parts)
            for part, _ in found:
                watch.add(part)
            if watch.precise:
                break
            Path(values.path).unlink()
        if not any(gaps for _, gaps in found):
            return values.mapped, None, watch
        whole = [(starts[k], starts[k + 1]) for k, (_, gaps) in enumerate(found) if not gaps]
        self.workers.fetch([self.workers.start(_mark_all, seen, *part) for part in whole])
        return values.mapped, seen.mapped, watch

    def packed(self, values: NumpyArray, mask: Any, kept: Sequence[int]) -> tuple[NumpyArray, Any]:
        """Return the columns that are kept, written anew where some are not."""
        if len(kept) == values.shape[1]:
            return values, mask
        return _fewer(values, kept), None if mask is None else _fewer(mask, kept)

    def block(self, values: NumpyArray, mask: Any, name: str, columns: tuple[str, ...], row_ids: Any) -> Block:
        """Return a block without looking at all numbers again: that was done as they were read."""
        block = object.__new__(Block)
        labels = row_ids if isinstance(row_ids, range) else tuple(row_ids)
        given = {"values": values, "mask": mask, "name": name, "columns": columns, "row_ids": labels}
        for attribute, value in given.items():
            object.__setattr__(block, attribute, value)
        return block


def read_again(kept: LargeFile, columns: Sequence[Any]) -> tuple[NumbersOnDisk, NumpyArray, Any]:
    """Read some columns of a folder that was read before; return who keeps the numbers, the numbers and the mask.

    Args:
        kept: the folder, which must be as it was.
        columns: names of the columns.
    """
    kept.check()
    numbers = NumbersOnDisk(kept.files)
    schema = opened(kept.files[0]).schema_arrow
    strange = [name for name in columns if name not in schema.names or kind_of(schema.field(name).type) is None]
    if strange:
        raise ValueError(f"columns must be columns of numbers of {kept.where}")
    rows = sum(opened(path).metadata.num_rows for path in kept.files)
    values, mask, _ = numbers.read(rows, [schema.field(name) for name in columns])
    return numbers, values, np.broadcast_to(np.True_, values.shape) if mask is None else mask


def _read_file(path: str, watch: ColumnWatch, values: OnDisk, seen: OnDisk) -> tuple[ColumnWatch, bool]:
    """Read one file into its rows of the numbers; return what was seen of them, and whether some are missing."""
    rows = opened(Path(path)).metadata.num_rows
    mask: BoolArray | None = None
    if rows:
        written = values.writable(watch.origin, watch.origin + rows)
        mask = read_numbers(Path(path), watch, written, alone=False)
    if mask is not None:
        seen.write(watch.origin, mask)
    return watch, mask is not None


def _mark_all(seen: OnDisk, start: int, stop: int) -> None:
    for part in batches(stop - start, _ROWS):
        seen.write(start + part.start, np.ones((part.stop - part.start, seen.shape[1]), dtype=bool))


def _fewer(given: NumpyArray, kept: Sequence[int]) -> NumpyArray:
    source = OnDisk.behind(given)
    if source is None:
        raise TypeError("numbers must be in a file")
    fresh = OnDisk(f"{source.path}-kept", (len(source), len(kept)), source.dtype).allocate()
    for part in batches(len(source), _ROWS):
        fresh.write(part.start, source[part][:, list(kept)])
    Path(source.path).unlink()
    return fresh.mapped
