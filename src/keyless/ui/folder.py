"""The folder the page was started in: its table files and runs, and the uploads. Nothing outside it is ever touched."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from keyless.errors import InputError, printable
from keyless.places import beside
from keyless.runs import file_names
from keyless.tables import place_of
from keyless.tables.places import PART_ENDINGS

__all__ = ["OWN", "Folder", "TableFile"]

OWN = ".keyless-ui"
"""Folder inside the start folder for uploads, the queue and the answers that links were made with."""

MOST_UPLOADS = 100
"""Uploaded files that are kept; the page can remove them."""

_MOST_LISTED, _MOST_SEEN, _DEEPEST = 500, 20_000, 3
"""Files that the page lists, files that it looks at, and how many folders below the start folder it looks."""

_PLAIN = (".csv", ".tsv", ".tab", ".txt")
_PACKED = tuple(f"{plain}{packed}" for plain in _PLAIN for packed in (".gz", ".bz2", ".xz", ".zst"))
ENDINGS = (*_PACKED, *_PLAIN, ".parquet", ".pq", ".h5ad", *PART_ENDINGS)
"""Endings of table files, the longest first."""


@dataclass(frozen=True)
class TableFile:
    """A file that may be a table.

    Attributes:
        path: from the start folder, with forward slashes.
        name: as it is shown.
        size: in bytes.
        uploaded: whether it came through the page.
        parts: whether a sheet or a table inside may have to be named.
    """

    path: str
    name: str
    size: int
    uploaded: bool
    parts: bool


class Folder:
    """The start folder.

    Args:
        root: the folder.
        max_upload: bytes that an uploaded file may have.

    Attributes:
        root: the folder, with no link in its path.
        own: the folder inside it that is the page's own.
        max_upload: bytes that an uploaded file may have.
    """

    def __init__(self, root: Path, *, max_upload: int) -> None:
        self.root, self.max_upload = root.resolve(), max_upload
        if not self.root.is_dir():
            raise InputError(f"{root}: must be a folder; there is none of that name.")
        self.own = self.root / OWN
        self._uploads = self.own / "uploads"
        if self.own.is_symlink() or self._uploads.is_symlink():
            raise InputError(f"{OWN}: must be a folder of the page's own; found a link. Remove it.")
        self._uploads.mkdir(parents=True, exist_ok=True)

    def inside(self, given: str) -> Path:
        """Return what a path from the start folder leads to; refuse what is not there or leads out of the folder.

        Args:
            given: the path, from a browser: not to be trusted.
        """
        refused = InputError(f"{printable(given)[:200]}: must be in the folder that the page was started in.")
        if not given or "\0" in given:
            raise refused
        try:
            place = (self.root / given).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise refused from None
        if not place.is_relative_to(self.root) or place == self.root:
            raise refused
        first = place.relative_to(self.root).parts[:2]
        if first[0] == OWN and first[1:] != ("uploads",):
            raise refused
        return place

    def relative(self, place: Path) -> str:
        """Return a path as it is from the start folder."""
        return place.relative_to(self.root).as_posix()

    def table(self, given: str) -> str:
        """Return a table file as a command in the start folder names it; refuse files outside, and what is no file.

        Args:
            given: path of a file, also with `::` and the name of a sheet or table behind it.
        """
        place = place_of(self.root / given)
        file = self.inside(os.path.relpath(place.path, self.root))
        if not file.is_file():
            raise InputError(f"{printable(given)[:200]}: must be a file.")
        word = self.relative(file) if place.part is None else f"{self.relative(file)}::{place.part}"
        return f"./{word}" if word.startswith("-") else word

    def run(self, given: str) -> Path:
        """Return the folder of a run; refuse what is none, and runs with links to other places.

        Args:
            given: its path from the start folder.
        """
        place = self.inside(given)
        if not (place / "run.json").is_file():
            raise InputError(f"{printable(given)[:200]}: must be a folder written by `keyless link --out`.")
        for found in (place / "run.json", place / "links.keyless", place / "config.toml", place / "pairs.csv"):
            if found.is_symlink():
                raise InputError(f"{printable(given)[:200]}: must hold files; {found.name} is a link.")
        return place

    def files(self) -> list[TableFile]:
        """Return the table files of the start folder, then those that were uploaded."""
        tables = (path for path in self._walk() if path.name.lower().endswith(ENDINGS))
        found = [self._file(path) for path in islice(tables, _MOST_LISTED)]
        uploads = sorted(path for path in self._uploads.glob("*/*") if path.is_file() and not path.is_symlink())
        return [*found, *(self._file(path, uploaded=True) for path in uploads)]

    def _file(self, path: Path, *, uploaded: bool = False) -> TableFile:
        relative = self.relative(path)
        parts = path.suffix.lower() in PART_ENDINGS
        return TableFile(relative, path.name if uploaded else relative, path.stat().st_size, uploaded, parts)

    def runs(self) -> list[str]:
        """Return the runs of the start folder, those written last first."""
        found = [path.parent for path in self._walk() if path.name == "run.json"]
        found.sort(key=lambda folder: -(folder / "run.json").stat().st_mtime_ns)
        return [self.relative(folder) for folder in found]

    def _walk(self) -> Iterator[Path]:
        """Yield files, and of runs `run.json` alone; hidden folders and links are passed over."""
        count = 0
        for here, folders, files in os.walk(self.root):
            place = Path(here)
            if "run.json" in files and place != self.root:
                folders.clear()
                yield place / "run.json"
                continue
            deep = len(place.relative_to(self.root).parts) >= _DEEPEST
            folders[:] = [] if deep else sorted(filter(_is_plain, folders))
            for name in sorted(files):
                path = place / name
                if not name.startswith(".") and _is_text(name) and path.is_file() and not path.is_symlink():
                    yield path
                count += 1
                if count >= _MOST_SEEN:
                    return

    def free_name(self, wanted: str, taken: set[str]) -> str:
        """Return a name for a new run in the start folder: what is wanted, made safe, with a number where it is taken.

        Args:
            wanted: what the user typed, or nothing.
            taken: names that others will use.
        """
        base = file_names([wanted.strip() or "run"])[wanted.strip() or "run"]
        name, number = base, 1
        while name in taken or any((self.root / f"{name}{end}").exists() for end in ("", ".unfinished")):
            number += 1
            name = f"{base}-{number}"
        return name

    @contextmanager
    def receiving(self, name: str) -> Iterator[Upload]:
        """Yield what takes the bytes of an uploaded file; it is kept where the block ends without an error.

        Args:
            name: the file's name in the browser. It is shown, and never used as a path: the file goes into a folder
                that is called after its content, under a name of letters, digits, `.`, `-` and `_`.
        """
        shown = printable(name)[:200]
        last = name.replace("\\", "/").rpartition("/")[2]
        ending = next((one for one in ENDINGS if last.lower().endswith(one)), None)
        if ending is None:
            raise InputError(f"{shown}: must be a table file: CSV, TSV, Parquet, .xlsx, .ods, .h5ad or a database.")
        if sum(1 for _ in self._uploads.iterdir()) >= MOST_UPLOADS:
            raise InputError(
                f"{shown}: must not exceed the number of uploaded files allowed; there are {MOST_UPLOADS} already. "
                "Remove some first."
            )
        stem = last[: -len(ending)] or "table"
        fresh = beside(self._uploads / "upload")
        try:
            with fresh.open("xb") as file:
                upload = Upload(file, shown, self.max_upload)
                yield upload
            if not upload.size:
                raise InputError(f"{shown}: must hold a table; it is empty.")
            place = self._uploads / upload.digest.hexdigest()[:16]
            place.mkdir(exist_ok=True)
            upload.path = place / f"{file_names([stem])[stem]}{ending}"
            for other in place.iterdir():  # the same content under another name
                other.unlink()
            fresh.replace(upload.path)
        finally:
            fresh.unlink(missing_ok=True)

    def forget(self, given: str) -> None:
        """Remove an uploaded file.

        Args:
            given: its path from the start folder.
        """
        place = self.inside(given)
        if place.parent.parent != self._uploads:
            raise InputError(f"{printable(given)[:200]}: must be an uploaded file.")
        shutil.rmtree(place.parent)


class Upload:
    """A file on its way in.

    Attributes:
        size: bytes so far.
        digest: of them.
        path: where it is in the end.
    """

    def __init__(self, file: IO[bytes], shown: str, most: int) -> None:
        self._file, self._shown, self._most = file, shown, most
        self.size, self.digest = 0, hashlib.sha256()
        self.path = Path()

    def take(self, chunk: bytes) -> None:
        """Take the next bytes; refuse more than a file may have."""
        self.check(self.size + len(chunk))
        self.size += len(chunk)
        self.digest.update(chunk)
        self._file.write(chunk)

    def check(self, size: int) -> None:
        """Refuse a size that is too large."""
        if size > self._most:
            raise InputError(
                f"{self._shown}: must have at most {self._most / 1e6:,g} MB. Put it into the start folder, or start "
                "keyless ui with a larger --max-upload."
            )


def _is_plain(name: str) -> bool:
    """Tell whether a folder is looked into: not hidden, not one that a run works in, and with a name that is text."""
    return not name.startswith(".") and not name.endswith(".unfinished") and _is_text(name)


def _is_text(name: str) -> bool:
    """Tell whether a name can be shown: the command line refuses others, too."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
