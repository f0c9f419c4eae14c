"""The configuration of a run as TOML, and what identifies its input files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyless.errors import InputError
from keyless.tables.parquet import held_in

__all__ = ["Fingerprint", "check_unchanged", "fingerprint", "to_toml"]


def to_toml(options: Mapping[str, Any], *, title: str) -> str:
    r"""Return options as TOML that reads back to the same values; those that are None become comments.

    Args:
        options: text, numbers, booleans, lists of text, and None, by name.
        title: the first line, a comment.

    Example:
        >>> print(to_toml({"seed": 0, "missing": ["n/a"], "max-time": None}, title="A run"), end="")
        # A run
        seed = 0
        missing = ["n/a"]
        # max-time is not set
    """
    lines = [f"# {title}"]
    for name, value in options.items():
        lines.append(f"# {name} is not set" if value is None else f"{name} = {_value(value, name)}")
    return "\n".join(lines) + "\n"


def _value(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # TOML's basic strings are JSON's, but for the delete character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(entry, name) for entry in value)}]"
    raise InputError(f"{name}: must be text, a number, true or false, or a list of these; found {value!r}.")


@dataclass(frozen=True)
class Fingerprint:
    """What identifies an input file.

    Attributes:
        file: its name, without the folder.
        size: bytes.
        changed: when it was last changed, in nanoseconds since 1970.
        sha256: digest of its content.
        place: what the file system says of it: device, number, and when content or properties last changed.
    """

    file: str
    size: int
    changed: int
    sha256: str
    place: tuple[int, ...] = ()

    def same_content(self, other: Fingerprint) -> bool:
        """Tell whether two files hold the same, whatever they are called and whenever they were written."""
        return (self.size, self.sha256) == (other.size, other.sha256)


def fingerprint(path: Path) -> Fingerprint:
    """Return what identifies a file, or a folder of Parquet files: their names, sizes, and when they were changed."""
    if path.is_dir():
        held = held_in(path)
        digest = hashlib.sha256(repr(held).encode())
        changed = max((moment for *_, moment in held), default=0)
        return Fingerprint(path.name, sum(size for _, size, _ in held), changed, digest.hexdigest())
    with path.open("rb") as file:
        # Looked at first, so that a change while it is read shows.
        status = os.fstat(file.fileno())
        digest = hashlib.file_digest(file, "sha256")
    place = (status.st_dev, status.st_ino, status.st_ctime_ns)
    return Fingerprint(path.name, status.st_size, status.st_mtime_ns, digest.hexdigest(), place)


def check_unchanged(path: Path, known: Fingerprint) -> None:
    """Raise unless a file still holds what it held: what was read since then is what the checksum is of.

    Args:
        path: an input.
        known: what identified it before it was read.
    """
    status = path.stat()
    if (status.st_dev, status.st_ino, status.st_ctime_ns) == tuple(known.place):
        return
    if not fingerprint(path).same_content(known):
        raise InputError(f"{path}: must not change while it is read; it was changed. Run the command again later.")
