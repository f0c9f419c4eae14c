"""Save a result in one file and read it again: a zip of JSON, plain arrays and bytes, versioned, never pickled."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keyless.errors import InputError
from keyless.places import replacing

__all__ = ["read_archive", "write_archive"]

FORMAT = "keyless links"
VERSION = 2

_LARGE = 2**26
"""Arrays of so many bytes are numbers that hardly become smaller, and would take minutes to compress."""

_INFLATED = 2**29
"""Bytes that all compressed parts of a file may have in all, once they are unpacked. What is beyond is stored as it is,
so that the memory it takes to read a file is at most its own size and this."""

_LONG_DOCUMENT = 2**24
"""A document of so many bytes is stored as it is: unpacked, JSON takes up to twenty times the memory of its text."""

_USUAL = 10
"""Files of earlier versions hold larger parts that are compressed: numbers, text and names to a tenth at best."""

_MOMENT = (1980, 1, 1, 0, 0, 0)
"""When every part says it was written: equal results give equal files."""

_KINDS = "biufUS"
"""Arrays hold booleans, whole numbers, real numbers or text."""


def write_archive(
    path: str | Path,
    document: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    files: Mapping[str, bytes | Path] | None = None,
) -> None:
    """Write a JSON document, arrays of numbers, booleans or text, and bytes; the file is whole or not there at all.

    Bytes may be given as the file that holds them.

    The same content gives the same bytes.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(f"{path}: must be in a folder that exists; there is no {target.parent}.")
    with replacing(target) as fresh, zipfile.ZipFile(fresh, "w") as archive:
        room = _INFLATED

        def entry(name: str, size: int, large: int = _LARGE) -> zipfile.ZipInfo:
            nonlocal room
            made = zipfile.ZipInfo(name, date_time=_MOMENT)
            small = size < min(large, room)
            made.compress_type = zipfile.ZIP_DEFLATED if small else zipfile.ZIP_STORED
            room -= size if small else 0
            return made

        # Names may hold halves of characters, which UTF-8 has no bytes for; JSON writes them as escapes.
        header = json.dumps({"format": FORMAT, "version": VERSION, "document": document}).encode()
        archive.writestr(entry("links.json", len(header), _LONG_DOCUMENT), header)
        for name, array in arrays.items():
            if array.dtype.kind not in _KINDS:
                raise InputError(f"{name}: must be plain numbers or text to be saved; found dtype {array.dtype}.")
            # Straight into the file: a large array must not be copied, and hardly becomes smaller.
            with archive.open(entry(f"arrays/{name}.npy", array.nbytes), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
        for name, content in (files or {}).items():
            if isinstance(content, bytes):
                archive.writestr(entry(f"files/{name}", len(content)), content)
                continue
            made = entry(f"files/{name}", content.stat().st_size)
            with content.open("rb") as source, archive.open(made, "w", force_zip64=True) as member:
                shutil.copyfileobj(source, member)


def read_archive(
    path: str | Path, *, max_memory: int | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]], dict[str, bytes]]:
    """Read what `write_archive` wrote; refuse anything else.

    Args:
        path: the file.
        max_memory: bytes that its content may take; None: no limit but that of compressed parts.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _checked(archive, path, max_memory)
            header = json.loads(archive.read(members["links.json"]))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise InputError(f"{path}: must be a saved keyless result; it has the header of another kind of file.")
            if header.get("version") != VERSION:
                raise InputError(
                    f"{path}: must be of format version {VERSION}; found {header.get('version')!r}. "
                    "Read it with the version of keyless that wrote it, or save it again."
                )
            arrays = {
                name.removeprefix("arrays/").removesuffix(".npy"): _array(archive, member)
                for name, member in members.items()
                if name.startswith("arrays/")
            }
            files = {
                name.removeprefix("files/"): archive.read(member)
                for name, member in members.items()
                if name.startswith("files/")
            }
            document: dict[str, Any] = header["document"]
            if not isinstance(document, dict):
                raise ValueError("the document is no object")
    except InputError:
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"{path}: must be a file; there is none.") from error
    except PermissionError:
        raise
    except Exception as error:
        # Python's readers of zip files, JSON and arrays raise a dozen kinds of errors for damage and malice.
        raise InputError(f"{path}: must be a saved keyless result; it is damaged or of another kind.") from error
    return document, arrays, files


def _checked(archive: zipfile.ZipFile, path: str | Path, max_memory: int | None) -> dict[str, zipfile.ZipInfo]:
    """Return the parts by name, before any is unpacked: each once, in the clear, and not too large together."""
    members = archive.infolist()
    named = {member.filename: member for member in members}
    if len(named) < len(members):
        raise ValueError("a part occurs twice")
    for member in members:
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("a part is encrypted or compressed in another way")
        if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
            raise ValueError("a part has another size than it says")
    packed = [member for member in members if member.compress_type != zipfile.ZIP_STORED]
    inflated, usual = sum(m.file_size for m in packed), _USUAL * sum(m.compress_size for m in packed)
    document = named["links.json"]
    for size, allowed in (
        (document.file_size, max(_LONG_DOCUMENT, _USUAL * document.compress_size)),
        (inflated, max(_INFLATED, usual)),
        (sum(member.file_size for member in members), max_memory),
    ):
        if allowed is not None and size > allowed:
            raise InputError(
                f"{path}: must be a saved keyless result that can be read; unpacked it would take {size / 1e6:,.0f} MB "
                f"of memory, and {allowed / 1e6:,.0f} MB are allowed."
            )
    return named


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """Read an array whose type is allowed and whose shape has as many bytes as there are."""
    with archive.open(entry) as member:
        version = np.lib.format.read_magic(member)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = header(member)
        if dtype.kind not in _KINDS or dtype.hasobject:
            raise ValueError("an array of another type")
        if math.prod(shape) * dtype.itemsize != entry.file_size - member.tell():
            raise ValueError("an array of another size than it says")
    with archive.open(entry) as member:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array
