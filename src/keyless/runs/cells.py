"""Text that leaves the program: names that are safe as file names, cells that are safe in a spreadsheet."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import pandas as pd

__all__ = ["file_names", "spreadsheet_safe", "spreadsheet_safe_frame"]

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


def spreadsheet_safe(cell: Any) -> Any:
    """Return a cell so that a spreadsheet shows it and does not run it.

    Text that begins with `=`, `+`, `-`, `@`, a tab or a carriage return gets a `'` in front, unless it is a number.

    Args:
        cell: any entry; only text is changed.

    Example:
        >>> [spreadsheet_safe(cell) for cell in ("=1+1", "-3.5", "@me", "fine", 7)]
        ["'=1+1", '-3.5', "'@me", 'fine', 7]
    """
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    return cell if _is_number(cell) else f"'{cell}"


def _is_number(text: str) -> bool:
    if text.strip() != text or "_" in text:
        return False  # Python reads these as numbers, spreadsheets may not
    try:
        float(text)
    except ValueError:
        return False
    return True


def spreadsheet_safe_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with every text cell and every column name made safe.

    Args:
        frame: any frame.
    """
    safe = frame.copy()
    for place, kind in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            cells = frame.iloc[:, place].astype(object).map(spreadsheet_safe, na_action="ignore")
            safe.isetitem(place, cells.to_numpy())
    safe.columns = pd.Index([spreadsheet_safe(name) for name in frame.columns])
    return safe
