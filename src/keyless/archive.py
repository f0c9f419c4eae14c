"""Save a result in one file and read it again: a zip of JSON, plain arrays and bytes, versioned, never pickled."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keyless.errors import InputError

__all__ = ["read_archive", "write_archive"]

FORMAT = "keyless links"
VERSION = 2

_LARGE = 2**26
"""Arrays of so many bytes are numbers that hardly become smaller, and would take minutes to compress."""


def write_archive(
    path: str | Path,
    document: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a JSON document, arrays of numbers, booleans or text, and bytes; the file is whole or not there at all."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    header = {"format": FORMAT, "version": VERSION, "document": document}
    if not target.parent.is_dir():
        raise InputError(f"{path}: must be in a folder that exists; there is no {target.parent}.")
    try:
        with zipfile.ZipFile(partial, "w", compression=zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("links.json", json.dumps(header, ensure_ascii=False))
            for name, array in arrays.items():
                if array.dtype.kind == "O":
                    raise InputError(f"{name}: must be plain numbers or text to be saved; found dtype object.")
                # Straight into the file: a large array must not be copied, and hardly becomes smaller.
                entry = zipfile.ZipInfo(f"arrays/{name}.npy")
                entry.compress_type = zipfile.ZIP_STORED if array.nbytes >= _LARGE else zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            for name, content in (files or {}).items():
                archive.writestr(f"files/{name}", content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_archive(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]], dict[str, bytes]]:
    """Read what `write_archive` wrote; refuse anything else."""
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read("links.json"))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise InputError(f"{path}: must be a saved keyless result; its header says otherwise.")
            if header.get("version") != VERSION:
                raise InputError(
                    f"{path}: must be of format version {VERSION}; found {header.get('version')!r}. "
                    "Read it with the version of keyless that wrote it, or save it again."
                )
            arrays = {}
            for name in archive.namelist():
                if name.startswith("arrays/"):
                    with archive.open(name) as member:
                        array = np.lib.format.read_array(member, allow_pickle=False)
                    arrays[name.removeprefix("arrays/").removesuffix(".npy")] = array
            files = {
                name.removeprefix("files/"): archive.read(name)
                for name in archive.namelist()
                if name.startswith("files/")
            }
            document: dict[str, Any] = header["document"]
    except InputError:
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"{path}: must be a file; there is none.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        # A ValueError comes from broken JSON or arrays, and from arrays of pickled objects, which are never read.
        raise InputError(f"{path}: must be a saved keyless result; it is damaged or something else.") from error
    return document, arrays, files
