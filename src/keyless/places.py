"""Files that are whole or not there: written beside their place under a new name, then moved there in one step.

The new file is created exclusively, so that neither a file of somebody else nor what a link points to is ever written
over.
"""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keyless.errors import KeylessError

__all__ = ["beside", "create", "locked", "remove", "replacing"]


def beside(target: Path) -> Path:
    """Return a path next to a target that nobody else uses: hidden, and with a random ending."""
    return target.with_name(f".{target.name}.keyless-new-{secrets.token_hex(4)}")


def create(path: Path, content: bytes = b"") -> None:
    """Create a file that must not be there yet, not even as a link."""
    with path.open("xb") as file:
        file.write(content)


@contextmanager
def locked(path: Path, *, mode: int, taken: str) -> Iterator[None]:
    """Hold the lock of a file while entered, where the system has file locks; refuse where somebody else holds it.

    Args:
        path: the file; it is created if it is not there.
        mode: the permissions that it is created with.
        taken: what to say where somebody else holds the lock.
    """
    try:
        fcntl = importlib.import_module("fcntl")
    except ImportError:
        yield
        return
    # Links are not followed: if somebody puts a link here now, the system refuses to open it.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags, mode), "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KeylessError(taken) from None
        except OSError:
            pass  # some network disks have no locks
        yield


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a new, empty file that takes the place of `target` when the block ends without an error.

    Args:
        target: where the file goes. A link there is replaced, not followed.
    """
    fresh = beside(target)
    create(fresh)
    try:
        yield fresh
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link; what a link points to stays.

    Args:
        path: what to remove; nothing happens where nothing is there.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
