"""How the text of a file is written: separator, decimal mark, encoding; or that it is a spreadsheet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Dialect"]


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
