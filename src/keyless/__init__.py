"""keyless joins tables that share no key.

Importing this package imports nothing heavy: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

__version__ = "0.1.0"

# On some processors the library behind numpy's products of matrices leaves the marks of a division by zero, an overflow
# or an invalid value although every number that goes in and comes out is finite. numpy then warns for nothing.
warnings.filterwarnings("ignore", r".* encountered in matmul", RuntimeWarning, r"keyless\.")

_NAMES = {
    "Evidence": "evidence",
    "InputError": "errors",
    "Links": "links",
    "Reading": "tables",
    "SoftImpute": "completion",
    "TableLinker": "linker",
    "link": "linker",
    "load": "links",
}
_MODULES = ("assignment", "datasets", "lowrank", "metrics", "paper", "plots", "progress", "report", "transport")
"""Modules that users call by name."""

_PARTS = (
    "arrays",
    "audit",
    "block",
    "completion",
    "engine",
    "errors",
    "evidence",
    "maps",
    "model",
    "pairs",
    "runs",
    "tables",
)
"""Modules for those who build on parts of keyless; they may change from version to version."""

__all__ = ["__version__", *sorted((*_MODULES, *_NAMES))]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _PARTS:
        return importlib.import_module(f"keyless.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"keyless.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'keyless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
