"""Public data, downloaded once and kept: the archive is checked against its known checksum before it is opened.

The folder is `KEYLESS_DATA_HOME` where that is set, else `keyless` in the user's cache folder. An interrupted download
goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from keyless.errors import InputError
from keyless.places import remove

__all__ = ["MOVIELENS_100K", "Archive", "data_home", "fetch"]

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Archive:
    """A zip file on a server.

    Attributes:
        name: folder it unpacks to.
        url: where it is.
        checksum: of the zip file: MD5 as published by its keeper.
        files: what must be in the folder for it to count as complete.
        licence: what its user must know before downloading.
    """

    name: str
    url: str
    checksum: str
    files: tuple[str, ...]
    licence: str


MOVIELENS_100K = Archive(
    name="ml-100k",
    url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
    checksum="0e33842e24a9c977be4e0107933c0723",
    files=("u.data", "u.item", "u.genre"),
    licence=(
        "MovieLens 100K, by the GroupLens Research Project at the University of Minnesota: for research, with "
        "acknowledgement; not for redistribution, nor for commercial use without permission. Its README has the terms."
    ),
)


def data_home() -> Path:
    """Return the folder of downloaded data: `KEYLESS_DATA_HOME`, or `keyless` in the user's cache folder."""
    given = os.environ.get("KEYLESS_DATA_HOME")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "keyless"


def fetch(
    archive: Archive,
    *,
    home: Path | None = None,
    progress: Callable[[int, int], object] | None = None,
    notice: Callable[[str], object] | None = None,
    timeout: float = 30.0,
) -> Path:
    """Return the archive's folder, downloaded and unpacked unless it is there already.

    Args:
        archive: what to fetch.
        home: folder that holds data folders; `data_home()` unless given.
        progress: called with bytes so far and in all (0 where the server does not say).
        notice: called with the licence before a download begins.
        timeout: seconds without an answer after which the server counts as out of reach.
    """
    home = data_home() if home is None else home
    folder = home / archive.name
    if all((folder / file).is_file() for file in archive.files):
        return folder
    if notice is not None:
        notice(archive.licence)
    home.mkdir(parents=True, exist_ok=True)
    partial, whole = home / f"{archive.name}.zip.partial", home / f"{archive.name}.zip"
    if not whole.exists():
        _download(archive.url, partial, progress, timeout)
        partial.replace(whole)
    _check(whole, archive)
    _unpack(whole, archive, home)
    return folder


def _download(url: str, partial: Path, progress: Callable[[int, int], object] | None, timeout: float) -> None:
    """Write what the server has to a file, after what is there already."""
    if partial.is_symlink():
        remove(partial)  # nothing is written through links
    done = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            resumed = answer.status == HTTPStatus.PARTIAL_CONTENT
            done = done if resumed else 0
            length = answer.headers.get("Content-Length")
            total = done + int(length) if length else 0
            with partial.open("ab" if resumed else "wb") as file:
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # all of it is there; the checksum decides
            raise InputError(f"{url}: the server answered {error.code} {error.reason}. Try again later.") from None
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"{url}: cannot be reached ({reason}). Connect to the network, or set KEYLESS_DATA_HOME to a folder that "
            "holds the data; what was downloaded is kept."
        ) from None
    if total and done < total:
        raise InputError(
            f"{url}: the download ended after {done} of {total} bytes. The same command goes on from there."
        )


def _check(whole: Path, archive: Archive) -> None:
    with whole.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != archive.checksum:
        whole.unlink()
        raise InputError(
            f"{archive.url}: must have checksum {archive.checksum}; found {found}. The file was removed; download it "
            "again, or set KEYLESS_DATA_HOME to a folder that holds the data."
        )


def _unpack(whole: Path, archive: Archive, home: Path) -> None:
    """Unpack beside, then move into place: a folder is whole or not there."""
    beside = home / f"{archive.name}.unpacking"
    remove(beside)
    try:
        with zipfile.ZipFile(whole) as opened:
            members = [name for name in opened.namelist() if name.startswith(f"{archive.name}/")]
            opened.extractall(beside, members)
    except zipfile.BadZipFile:
        whole.unlink()
        raise InputError(f"{archive.url}: must be a whole zip file; it cannot be opened. It was removed.") from None
    missing = [file for file in archive.files if not (beside / archive.name / file).is_file()]
    if missing:
        shutil.rmtree(beside)
        raise InputError(f"{archive.url}: must hold {', '.join(archive.files)}; {', '.join(missing)} is not in it.")
    shutil.rmtree(home / archive.name, ignore_errors=True)
    (beside / archive.name).replace(home / archive.name)
    shutil.rmtree(beside)
    whole.unlink()
