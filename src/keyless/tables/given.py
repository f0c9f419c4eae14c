"""A frame on its way to a table, and how the file it was read from is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

__all__ = ["Dialect", "Form", "Given"]

Form = Literal["frame", "lazy", "records", "cells", "array", "sparse", "anndata"]


@dataclass(frozen=True)
class Dialect:
    """How a table was written, so that what is made of it can be written the same.

    Attributes:
        kind: text, or a spreadsheet, for which the others do not matter.
        separator: between cells.
        decimal: mark of numbers.
        encoding: of text.
    """

    kind: Literal["text", "sheet"] = "text"
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


@dataclass(frozen=True, eq=False)
class Given:
    """A frame on its way to a table.

    Attributes:
        frame: of any library; of a file of cells, one column of text per column, cells exactly as they are.
        where: the table, as messages name it.
        form: what kind of thing was given.
        notes: what there is to say about how it was read.
        source: the path it was read from.
        line: gives the line of a row in its file; None where that is not known.
        typed: columns of text whose numbers come from numbers, and have a decimal point.
        dialect: how the file is written.
    """

    frame: Any
    where: str
    form: Form = "frame"
    notes: tuple[str, ...] = ()
    source: str | None = None
    line: Callable[[int], int | None] = field(default=lambda _row: None, repr=False)
    typed: frozenset[str] = frozenset()
    dialect: Dialect = field(default_factory=Dialect)

    @property
    def is_file(self) -> bool:
        """Whether entries are cells of a text file."""
        return self.form == "cells"

    @property
    def index(self) -> pd.Index | None:
        """The index of a pandas frame, where it has more than row numbers."""
        index = self.frame.index if isinstance(self.frame, pd.DataFrame) else None
        return None if index is None or index.equals(pd.RangeIndex(len(index))) else index
