"""The options of `keyless.link`, checked once and handed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from keyless.arrays import check_count, check_positive
from keyless.errors import InputError
from keyless.model.scales import ScaleName
from keyless.progress import Callback
from keyless.tables import Reading

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `keyless.link`, checked."""

    reference: str | None
    reading: Reading | None
    known_pairs: Any
    forbid: Any
    within: str | Sequence[str] | None
    shared: Any
    strangers: bool | None
    scales: ScaleName | Mapping[str, ScaleName]
    rank: int | None
    method: Literal["auto", "joint", "pairs", "landmarks"]
    missingness: bool
    null_searches: int | None
    random_state: int | np.random.Generator | None
    n_jobs: int
    max_time: float | None
    checkpoint: str | Path | None
    verbose: bool
    callback: Callback | None

    def __post_init__(self) -> None:
        methods = ("auto", "joint", "pairs", "landmarks")
        by_column = self.scales if isinstance(self.scales, Mapping) else {"": self.scales}
        for column, scale in by_column.items():
            if scale not in get_args(ScaleName):
                where = f"scales, column {column!r}" if column else "scales"
                kinds = ", ".join(map(repr, get_args(ScaleName)))
                raise InputError(f"{where}: must be one of {kinds}; found {scale!r}.")
        if self.method not in methods:
            raise InputError(f"method: must be one of {', '.join(map(repr, methods))}; found {self.method!r}.")
        for name in ("strangers", "missingness"):
            value = getattr(self, name)
            if not isinstance(value, bool | np.bool_) and not (name == "strangers" and value is None):
                raise InputError(f"{name}: must be True or False; found {value!r}.")
        check_count(self.n_jobs, name="n_jobs")
        for name in ("null_searches", "rank"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name=name)
        if self.max_time is not None:
            check_positive(self.max_time, name="max_time")

    @property
    def plain(self) -> dict[str, Any]:
        """Options about the search that were set, as far as they are plain values."""
        usual = {"shared": "auto", "scales": "auto", "method": "auto"}
        asked = {name: getattr(self, name) for name in ("within", "shared", "strangers", "scales", "rank", "method")}
        asked |= {"null_searches": self.null_searches, "max_time": self.max_time}
        return {
            name: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for name, value in asked.items()
            if value != usual.get(name) and isinstance(value, str | int | float | tuple | list | Mapping)
        }

    @property
    def decisive(self) -> tuple[Any, ...]:
        """What the answer depends on, besides the tables and what is known of their rows."""
        known = ("known_pairs", "forbid", "within", "reading")
        quick = ("checkpoint", "verbose", "callback", "n_jobs", "max_time", *known)
        return tuple(getattr(self, field.name) for field in fields(self) if field.name not in quick)
