"""Finished stages of a run, kept in files, so that a run that was cut off need not begin again."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy import sparse

from keyless.arrays import batches
from keyless.errors import InputError
from keyless.saved.archive import read_archive, write_archive

__all__ = ["Checkpoints", "fingerprint"]

Stage = TypeVar("Stage")

_ROWS = 65_536
"""Rows that are hashed at a time."""


class Checkpoints:
    """Stages that are made once and then read.

    Args:
        folder: where they are kept; made if it is not there. None: nothing is kept.
        key: what the stages depend on, see `fingerprint`; those of another key are not seen.
        finished: tells whether what was just made is complete; what is not is not kept.
    """

    def __init__(self, folder: str | Path | None, key: str, *, finished: Callable[[], bool] = lambda: True) -> None:
        self._folder = None if folder is None else Path(folder)
        self._key, self._finished = key, finished
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def stage(self, name: str, make: Callable[[], Stage]) -> Stage:
        """Return the stage as it was kept, or make it and keep it."""
        if self._folder is None:
            return make()
        path = self._folder / f"{name}-{self._key}.stage"
        if path.exists():
            kept: Stage = self._kept(path)
            return kept
        made = make()
        if self._finished():
            arrays: dict[str, Any] = {}
            document = {"stage": _packed(made, arrays)}
            write_archive(path, document, arrays)
        return made

    def _kept(self, path: Path) -> Any:
        try:
            document, arrays, _ = read_archive(path)
            return _unpacked(document["stage"], arrays)
        except InputError as error:
            said = str(error).removesuffix(".")
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, ImportError) as error:
            said = f"{path}: must be a stage that keyless kept; it is not ({error})"
        raise InputError(f"{said}. Leave --resume out, or remove the checkpoint, to start from the beginning.")


def fingerprint(parts: Iterable[Any]) -> str:
    """Return a short text that differs when any part does; arrays count by their contents, others by their `repr`."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            # Some rows at a time: a mask of nothing but True may take no memory, and its contents would.
            for rows in batches(len(part), _ROWS) if part.ndim else (...,):
                digest.update(part[rows].tobytes())
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _packed(value: Any, arrays: dict[str, Any]) -> Any:
    """As JSON; arrays are put aside. Only plain values and this package's own dataclasses are taken."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if isinstance(value, sparse.csr_array):
        parts = [_packed(part, arrays) for part in (value.data, value.indices, value.indptr)]
        return {"sparse": parts, "shape": list(value.shape)}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_packed(item, arrays) for item in value]}
    if is_dataclass(value) and type(value).__module__.startswith("keyless."):
        contents = {field.name: _packed(getattr(value, field.name), arrays) for field in fields(value)}
        return {"class": [type(value).__module__, type(value).__qualname__], "fields": contents}
    raise TypeError(f"cannot keep a {type(value).__name__}")


def _unpacked(packed: Any, arrays: dict[str, Any]) -> Any:
    if not isinstance(packed, dict):
        return packed
    if "array" in packed:
        return arrays[packed["array"]]
    if "sparse" in packed:
        parts = tuple(_unpacked(part, arrays) for part in packed["sparse"])
        made = sparse.csr_array(parts, shape=tuple(packed["shape"]))
        made.check_format(full_check=True)
        return made
    for kind in (tuple, list):
        if kind.__name__ in packed:
            return kind(_unpacked(item, arrays) for item in packed[kind.__name__])
    module, name = packed["class"]
    found = getattr(importlib.import_module(module), name, None) if module.startswith("keyless.") else None
    if not is_dataclass(found) or not isinstance(found, type):
        raise InputError(f"checkpoint: must hold keyless' own results; found {module}.{name}.")
    return found(**{field: _unpacked(item, arrays) for field, item in packed["fields"].items()})
