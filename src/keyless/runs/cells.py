"""Text that leaves the program: names that are safe as file names, cells that are safe in a spreadsheet."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import pandas as pd

__all__ = ["file_names", "is_risky", "spreadsheet_safe", "spreadsheet_safe_frame"]

_LONGEST = 80
"""Bytes of a file name that are kept; file systems allow 255, and endings are added."""

_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}


def file_names(names: Iterable[str]) -> dict[str, str]:
    r"""Return for each table name a file name without ending that stays in its folder, all different.

    Letters and digits of any script stay, as do `.`, `-` and `_` inside; anything else becomes `_`.

    Args:
        names: names of tables, all different.

    Example:
        >>> file_names(["lab", "../lab", "Lab", "a \"b\"\n"])
        {'lab': 'lab', '../lab': 'lab-2', 'Lab': 'Lab-3', 'a "b"\n': 'a_b'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        base = _safe(name)
        safe, number = base, 1
        # `x.filled` is the companion of `x`; some file systems do not tell large letters from small ones.
        while taken & {safe.casefold(), f"{safe}.filled".casefold()}:
            number += 1
            safe = f"{base}-{number}"
        taken |= {safe.casefold(), f"{safe}.filled".casefold()}
        found[name] = safe
    return found


def _safe(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in unicodedata.normalize("NFC", name))
    while "__" in kept:
        kept = kept.replace("__", "_")
    short = kept.strip("._-").encode()[:_LONGEST].decode(errors="ignore").rstrip("._-")
    if not short:
        return "table"
    return f"_{short}" if short.split(".")[0].casefold() in _RESERVED else short


_HIDDEN = (
    r"\s\x00-\x20\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202f"
    r"\u2060-\u206f\u3164\ufeff"
)
"""Blanks and signs that are not shown: spreadsheets may pass over them to what comes next."""

_STARTS = "=+@-\uff1d\uff0b\uff20\uff0d\ufe66\ufe62\ufe6b\ufe63"
"""What begins a formula: `=`, `+`, `@`, `-`, as they are, in full width and in small form."""

_RISKY = re.compile(rf"[{_HIDDEN}]*[{re.escape(_STARTS)}]|[\t\r\n]")
_BEFORE_NUMBER = "$€£¥"
_NUMBER = re.compile(
    rf"-?([{_BEFORE_NUMBER}]|EUR|USD|CHF|GBP|Fr\.|kr)?[ \xa0\u202f]?"
    rf"(\d[\d.,'\u2019 \xa0\u202f]*|[.,]\d+)([eE][+-]?\d+)?[ \xa0\u202f]?"
    rf"([{_BEFORE_NUMBER}]|[%‰°µμ²³/A-Za-z]{{0,15}})"
)
"""A number as people write it, with a unit of letters: nothing that can be run. Telephone numbers begin with a plus."""

_ALONE = ("-", "--", "---", "+", "++", "+++")
"""Signs that stand alone, for missing entries and grades: there is nothing to run."""


def spreadsheet_safe(cell: Any) -> Any:
    """Return a cell so that a spreadsheet shows it and does not run it.

    Text that begins with `=`, `+`, `-`, `@`, also in full width, or with blanks and hidden signs before one of them,
    and text that begins with a tab or a line end, gets a `'` in front, unless it is a number.

    Args:
        cell: any entry; only text is changed.

    Example:
        >>> [spreadsheet_safe(cell) for cell in ("=1+1", " =1", "-3,5 kg", "@me", "fine", 7)]
        ["'=1+1", "' =1", '-3,5 kg', "'@me", 'fine', 7]
    """
    return f"'{cell}" if isinstance(cell, str) and is_risky(cell) else cell


def is_risky(text: str) -> bool:
    """Tell whether a spreadsheet may run a text as a formula."""
    return _RISKY.match(text) is not None and not _is_number(text)


def _is_number(text: str) -> bool:
    if _NUMBER.fullmatch(text) or text in _ALONE:
        return True
    if text.strip() != text or "_" in text or not text.isascii():
        return False  # Python reads these as numbers, spreadsheets may not
    try:
        float(text)
    except ValueError:
        return False
    return True


def spreadsheet_safe_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with every text cell and every column name made safe."""
    safe = frame.copy(deep=False)
    for place, (_, column) in enumerate(frame.items()):
        if not pd.api.types.is_numeric_dtype(column.dtype):
            cells = column.to_numpy(dtype=object)
            # Few cells are risky, and there can be millions of others.
            at = [k for k, cell in enumerate(cells) if isinstance(cell, str) and is_risky(cell)]
            if at:
                cells = cells.copy()
                cells[at] = [f"'{cells[k]}" for k in at]
                safe.isetitem(place, cells)
    safe.columns = pd.Index([spreadsheet_safe(name) for name in frame.columns])
    return safe
