"""How much memory linking takes, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from keyless.errors import InputError

__all__ = ["available_memory", "check_memory", "in_words", "memory_needed"]

_SQUARES = 8
"""Arrays of reference rows × rows a search holds at a time: couplings, log-ratios, costs and their scratch."""


def memory_needed(shapes: Sequence[tuple[int, int]]) -> int:
    """Return about how many bytes it takes to link tables of these shapes, the reference first.

    A search holds a few float64 arrays of reference rows × rows per table, and every table as numbers, mask, scores
    and filled.

    Args:
        shapes: rows and columns of each table.

    Example:
        >>> memory_needed([(1000, 20), (1000, 30)]) // 10**6
        65
    """
    tables = sum(rows * columns * (3 * 8 + 1) for rows, columns in shapes)
    reference = shapes[0][0] if shapes else 0
    return tables + sum(_SQUARES * 8 * reference * rows for rows, _ in shapes[1:])


def available_memory() -> int | None:
    """Return the bytes the machine can still give, None where it does not say."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    try:
        # A container may be granted less than the machine has.
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text(encoding="ascii"))
        found.append(int((group / "memory.max").read_text(encoding="ascii")) - used)
    except (OSError, ValueError):
        pass
    if not found:
        try:
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, OSError, ValueError):
            return None
    return max(min(found), 0)


def check_memory(needed: int, *, max_memory: int | None, where: str, what: str) -> None:
    """Refuse what cannot fit, with the number it would need.

    Args:
        needed: bytes.
        max_memory: bytes that may be used; None: what the machine has available.
        where: the table or file, as messages name it.
        what: what needs the memory.
    """
    limit = available_memory() if max_memory is None else max_memory
    if limit is not None and needed > limit:
        kind = "available" if max_memory is None else "allowed by max_memory"
        raise InputError(
            f"{where}: must fit in memory; {what} needs about {in_words(needed)}, and {in_words(limit)} are {kind}. "
            "Take fewer rows or columns, or raise max_memory where there is more."
        )


def in_words(size: float) -> str:
    """Return bytes in words.

    Example:
        >>> in_words(1.5e9)
        '1.5 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 1000 else f"{size:,.0f} TB"
