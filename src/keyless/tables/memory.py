"""How much memory linking takes, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from keyless.errors import InputError
from keyless.parallel import workers
from keyless.sizes import has_many_rows

__all__ = [
    "LARGE_CELLS",
    "available_memory",
    "check_memory",
    "in_words",
    "is_large",
    "memory_needed",
]

LARGE_CELLS = 20_000_000
"""From so many cells on a table is held once, in single precision where that is enough, and never copied whole."""

_SQUARES = 20
"""Arrays of doubles, reference rows × rows, that a search of all pairs holds at a time: the matchings that it compares,
log-ratios, costs, scratch. A search of 2,200 rows was seen to hold 15."""

_SEARCHED_ROWS, _SEARCHED, _WORKER = 1_000, 200, 40
"""Rows that a map is sought on at the most; bytes for each pair of them, and bytes for each pair and worker. A link of
1,061 rows, which is compared with chance while the search's candidates are held, was seen to take 430 to 512 MB; with
these numbers 561 MB are said."""

_FIXED_SMALL = 10**8
"""… and models and libraries, whatever the size of the tables. A link of ten rows was seen to take 50 MB."""

_RANK, _FACTOR_ARRAYS = 40, 6
"""Linking many rows holds so many float32 arrays of rows × rank at a time, of a rank of at most 40."""

_FACTOR_ARRAYS_ON_DISK = 2
"""The same where all tables are on disk: the factors of each table's rows; the rest is made shard by shard."""

_CANDIDATES, _CANDIDATE_BYTES = 5, 24
"""… and per table and row so many candidates: place, log-ratio and probability of each."""

_FIXED = 10**9
"""… and far rows, models and libraries, whatever the size of the tables."""


def is_large(rows: int, columns: int) -> bool:
    """Tell whether a table has so many cells that it is held once and never copied whole."""
    return rows * columns >= LARGE_CELLS


def memory_needed(shapes: Sequence[tuple[int, int]], *, in_memory: Sequence[bool] | None = None) -> int:
    """Return about how many bytes it takes to link tables of these shapes, the reference first.

    Below `sizes.LARGE_ROWS` rows a search holds some arrays of reference rows × rows per table, more of them while it
    seeks a map with all cores on some of the rows, and every table as numbers, mask, scores and filled. From there on
    what is held grows with the rows and not with their square: the tables, a few arrays of rows × rank, and a few
    candidates for each row.

    Args:
        shapes: rows and columns of each table.
        in_memory: whether each table is held in memory, rather than on disk; None: all are.

    Example:
        >>> memory_needed([(100, 20), (100, 30)]) // 10**7
        10
        >>> memory_needed([(10**7, 60), (10**7, 40)]) // 10**9
        16
        >>> memory_needed([(10**7, 60), (10**7, 40)], in_memory=[False, False]) // 10**9
        5
    """
    # A large table is held in single precision, with a mask where it has gaps.
    tables = sum(
        rows * columns * (4 + 1 if is_large(rows, columns) else 3 * 8 + 1)
        for (rows, columns), here in zip(shapes, in_memory or [True] * len(shapes), strict=True)
        if here
    )
    if has_many_rows(rows for rows, _ in shapes):
        most, rank = max(rows for rows, _ in shapes), min(_RANK, sum(columns for _, columns in shapes))
        candidates = most * len(shapes[1:]) * _CANDIDATES * _CANDIDATE_BYTES
        arrays = _FACTOR_ARRAYS if in_memory is None or any(in_memory) else _FACTOR_ARRAYS_ON_DISK
        return tables + most * rank * 4 * arrays + candidates + _FIXED
    reference = shapes[0][0] if shapes else 0
    squares = sum(_SQUARES * 8 * reference * rows for rows, _ in shapes[1:])
    searched = max((min(reference, _SEARCHED_ROWS) * min(rows, _SEARCHED_ROWS) for rows, _ in shapes[1:]), default=0)
    return tables + squares + searched * (_SEARCHED + _WORKER * workers()) + _FIXED_SMALL


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


def check_memory(needed: int, *, max_memory: int | None, where: str, what: str, held: int = 0) -> None:
    """Refuse what cannot fit, with the number it would need.

    Args:
        needed: bytes.
        max_memory: bytes that may be used; None: what the machine has available.
        where: the table or file, as messages name it.
        what: what needs the memory.
        held: bytes of it that are held already, and so are no longer available.
    """
    limit = max_memory
    if limit is None and (free := available_memory()) is not None:
        limit = free + held
    if limit is not None and needed > limit:
        kind, more = ("available", "use a machine with more memory")
        if max_memory is not None:
            kind, more = ("allowed by max_memory", "raise max_memory where there is more")
        raise InputError(
            f"{where}: must fit in memory; {what} needs about {in_words(needed)}, and {in_words(limit)} are {kind}. "
            f"Take fewer rows or columns, or {more}."
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
