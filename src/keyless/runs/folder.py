"""One folder that is either the old one or the new one, never half of each.

A folder is written beside its place, forced to the disk, and then exchanged with what stands there in one step. Only
what keyless wrote is ever replaced: an empty folder, or a run that holds nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keyless.errors import InputError
from keyless.places import beside, remove, replacing

__all__ = [
    "ANSWERS",
    "FORMAT",
    "RECORD",
    "VERSION",
    "check_file",
    "check_replaceable",
    "files_in",
    "read_record",
    "replace_folder",
    "write_file",
]

FORMAT, VERSION = "keyless run", 1
RECORD = "run.json"
"""The file that says what a run is and which files belong to it."""

ANSWERS = "pairs.csv"
"""Answers of a review, which the page of `keyless ui` adds to a run."""

_WRITTEN = re.compile(
    r"run\.json|config\.toml|links\.keyless|report\.html|(matches|joined)\.(csv|tsv|parquet|xlsx)"
    r"|completed|completed/[^/]+\.(csv|tsv|parquet|xlsx)"
    r"|(matches|joined|completed/[^/]+)/part\.\d+\.parquet"
)
"""Files that a run can have. No others are ever replaced, whatever a `run.json` says."""

_LONGEST_RECORD = 2**26
"""Bytes of a `run.json`: the verdicts and choices of a thousand tables of a thousand columns."""


def replace_folder(target: Path, fill: Callable[[Path], object], *, answers: bool = False) -> None:
    """Make `target` the folder that `fill` writes, in one step, or leave everything as it was.

    Args:
        target: where the folder goes; see `check_replaceable` for what may stand there.
        fill: called with an empty folder to write to.
        answers: keep the answers of a review that stand there.
    """
    check_replaceable(target, answers=answers)
    # Resolved, so that the link of a linked folder stays and the folder behind it is replaced.
    target = target.resolve()
    _remove_leftovers(target)
    fresh = beside(target)
    try:
        fresh.mkdir()
        fill(fresh)
        if answers and (target / ANSWERS).is_file():
            shutil.copyfile(target / ANSWERS, fresh / ANSWERS)
        # mkdir obeys the caller's umask, as every other folder of theirs does.
        _to_disk(fresh)
        _put(fresh, target)
    finally:
        # After an exchange this is the old run.
        remove(fresh)
    _sync_folder(target.parent)


def check_replaceable(target: Path, *, answers: bool = False) -> None:
    """Raise unless `target` is free, an empty folder, or a run with nothing else in it.

    Args:
        target: where a run is to be written.
        answers: whether the run may have answers of a review, which are kept.
    """
    recover(target)
    if not target.exists() and not target.is_symlink():
        if not target.parent.is_dir():
            raise InputError(f"{target}: must be in a folder that exists; there is no {target.parent}. Make it first.")
        return
    if not target.is_dir():
        raise InputError(f"{target}: must be a folder or not there yet; found a file. Choose another --out.")
    found = files_in(target)
    if not found:
        return
    if RECORD not in found:
        raise InputError(
            f"{target}: must be empty or an earlier run; found {_some(found)}. "
            "Nothing was changed. Choose another --out, or move the files away."
        )
    listed = {name for name in read_record(target)["files"] if isinstance(name, str) and _WRITTEN.fullmatch(name)}
    kept = {ANSWERS} if answers and not (target / ANSWERS).is_symlink() else set()
    strange = found - listed - kept
    if strange == {ANSWERS}:
        raise InputError(
            f"{target}: must have no answers of a review to be replaced; they are in its {ANSWERS}. "
            "Nothing was changed. Choose another --out, or move that file away."
        )
    if strange:
        raise InputError(
            f"{target}: must hold nothing but an earlier run; keyless did not write {_some(strange)}. "
            "Nothing was changed. Choose another --out, or move the files away."
        )


def recover(target: Path) -> None:
    """Put an earlier run back that a kill between two renames left beside its place."""
    old = _old(target)
    if old.is_dir() and not old.is_symlink() and not target.exists():
        old.rename(target)


def _remove_leftovers(target: Path) -> None:
    """Remove what killed runs left beside a folder; of two who write it at once, one thereby fails."""
    for path in target.parent.iterdir():
        if path.name.startswith(f".{target.name}.keyless-new-"):
            remove(path)


def read_record(folder: Path) -> dict[str, Any]:
    """Return what `run.json` says."""
    path = folder / RECORD
    if not folder.is_dir():
        raise InputError(f"{folder}: must be a folder written by `keyless link --out`; there is no such folder.")
    if not path.is_file():
        raise InputError(f"{folder}: must be a folder written by `keyless link --out`; it has no {RECORD}.")
    try:
        if path.stat().st_size > _LONGEST_RECORD:
            raise ValueError("it is too long")
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: must be the record of a keyless run; it is damaged ({error}).") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or not isinstance(record.get("files"), list):
        raise InputError(f"{path}: must be the record of a keyless run; found something else.")
    if record.get("version") != VERSION:
        raise InputError(
            f"{path}: must be of format version {VERSION}; found {record.get('version')!r}. "
            "Use the version of keyless that wrote it."
        )
    return record


def files_in(folder: Path) -> set[str]:
    """Return the files below a folder, and folders that are empty, as paths from it with forward slashes."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir() or path.is_symlink() or not any(path.iterdir())
    }


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write one file so that it is the old one or the new one, never half of each.

    Args:
        path: where the file goes.
        write: called with the path to write to.
    """
    check_file(path)
    with replacing(path.resolve()) as fresh:
        write(fresh)


def check_file(path: Path) -> None:
    """Raise unless a file can be written there, as far as can be seen.

    Args:
        path: where a file is to go.
    """
    if path.is_dir():
        raise InputError(f"{path}: must be a file; found a folder.")
    if not path.parent.is_dir():
        raise InputError(f"{path}: must be in a folder that exists; there is no {path.parent}. Make it first.")


def _old(target: Path) -> Path:
    target = target.resolve()
    return target.with_name(f".{target.name}.keyless-old")


def _put(fresh: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        if target.exists() and sys.platform == "win32":
            target.rmdir()
        fresh.rename(target)
    elif not _exchange(fresh, target):
        # Two steps, where the system has no single one; `recover` mends what a kill between them leaves.
        old = _old(target)
        remove(old)
        target.rename(old)
        fresh.rename(target)
        remove(old)


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders change places in one step; tell whether the system could."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return False
    one, two = os.fsencode(first), os.fsencode(second)
    here, swap = -100, 2
    if hasattr(library, "renameat2"):
        return bool(library.renameat2(here, one, here, two, swap) == 0)
    if hasattr(library, "renamex_np"):
        return bool(library.renamex_np(one, two, swap) == 0)
    return False


def _to_disk(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            _sync_file(path)
        else:
            _sync_folder(path)
    _sync_folder(folder)


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # folders cannot be opened there
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _some(names: Iterable[str]) -> str:
    """Name three, and say how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
