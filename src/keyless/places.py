"""Files that are whole or not there: written beside their place under a new name, then moved there in one step.

The file beside is created exclusively, so that neither a file of somebody else nor what a link points to is ever
written over.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["beside", "create", "remove", "replacing"]


def beside(target: Path) -> Path:
    """Return a path next to a target that nobody else uses: hidden, and with a random ending.

    Args:
        target: a file or folder.
    """
    return target.with_name(f".{target.name}.keyless-new-{secrets.token_hex(4)}")


def create(path: Path, content: bytes = b"") -> None:
    """Create a file that must not be there yet, not even as a link.

    Args:
        path: where.
        content: what it holds.
    """
    with path.open("xb") as file:
        file.write(content)


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
