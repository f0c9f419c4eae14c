"""Where a table is: a file, or a sheet of a spreadsheet or a table of a database, named behind `::`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from keyless.errors import InputError

__all__ = ["OTHER_ENDINGS", "PART_ENDINGS", "Kind", "Place", "missing_extra", "place_of", "source_file"]

Kind = Literal["sheet", "database", "anndata", "file"]

_ENDINGS: dict[str, Kind] = {
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "sheet"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".db3", ".duckdb", ".ddb"), "database"),
    ".h5ad": "anndata",
}
PART_ENDINGS = tuple(ending for ending, kind in _ENDINGS.items() if kind in ("sheet", "database"))
"""Endings of files in which a sheet or a table may have to be named."""

OTHER_ENDINGS = (".xlsx", ".ods", ".h5ad", ".db", ".sqlite", ".duckdb")
"""Endings of files that are neither text nor Parquet, as messages name them."""

_USUAL_SHEET = re.compile(r"(?i)^(sheet|tabelle|feuil|hoja|foglio|blad|planilha|arkusz|ark|table|лист|таблица)\s*\d*$")


@dataclass(frozen=True)
class Place:
    """Where a table is.

    Attributes:
        path: the file.
        part: the sheet or table inside, where one is named.
        kind: what the file is, from its ending.
    """

    path: Path
    part: str | None
    kind: Kind

    @property
    def where(self) -> str:
        """The place as messages name it: in one line, without folders."""
        name = " ".join(self.path.name.split()) or str(self.path)
        return name if self.part is None else f"{name}::{' '.join(self.part.split())}"

    @property
    def name(self) -> str:
        """What a table read from there is called."""
        stem = self.path.name[: -len(self.path.suffix)] or "table"
        usual = self.kind == "sheet" and self.part is not None and _USUAL_SHEET.match(self.part)
        return stem if self.part is None or usual else self.part


def place_of(path: str | Path) -> Place:
    """Return where a table is.

    Args:
        path: of a file; `file.xlsx::sheet` and `file.db::table` name what is inside.

    Example:
        >>> place = place_of("study.db::patients")
        >>> str(place.path), place.part, place.kind, place.name
        ('study.db', 'patients', 'database', 'patients')
    """
    text, part = str(path), None
    if "::" in text and not Path(text).exists():
        text, _, part = text.rpartition("::")
    kind = _ENDINGS.get(Path(text).suffix.lower(), "file")
    if part is not None and kind not in ("sheet", "database"):
        raise InputError(
            f"{Path(text).name}: must be a spreadsheet or a database to name a part of it; found {part!r} after "
            "'::'. Leave that out."
        )
    return Place(Path(text), part, kind)


def source_file(path: str | Path) -> Path:
    """Return the file a table is in, without the part of it that may be named."""
    return place_of(path).path


def missing_extra(where: str, what: str, extra: str) -> InputError:
    """Return an error about a library that is not installed.

    Args:
        where: the file, as messages name it.
        what: kind of file.
        extra: of the package, which brings the library.
    """
    return InputError(f'{where}: {what} need a library that is not installed. Run: pip install "keyless[{extra}]"')
