"""keyless joins tables that share no key.

Importing this package imports nothing heavy: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = (
    "alignment",
    "answers",
    "arrays",
    "assignment",
    "audit",
    "completion",
    "datasets",
    "engine",
    "errors",
    "evidence",
    "joint",
    "likelihood",
    "live",
    "lowrank",
    "maps",
    "metrics",
    "model",
    "pairs",
    "paper",
    "plots",
    "problem",
    "report",
    "runs",
    "tables",
    "transport",
)
_NAMES = {
    "Block": "problem",
    "ConvergenceWarning": "errors",
    "InputError": "errors",
    "PatchProblem": "problem",
    "Problem": "problem",
    "Links": "links",
    "SoftImpute": "completion",
    "TableLinker": "linker",
    "link": "linker",
    "load": "links",
}

__all__ = ["__version__", *sorted((*_MODULES, *_NAMES))]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"keyless.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"keyless.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'keyless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
