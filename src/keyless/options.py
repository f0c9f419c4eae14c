"""The options of `keyless.link`: written once, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from keyless.arrays import RandomState, check_count, check_positive, find_device
from keyless.errors import InputError, check_among
from keyless.progress import Callback
from keyless.search_options import Device, Effort, Partners, ScaleName, SearchOptions, Shared
from keyless.tables import Reading

__all__ = ["Options"]


@dataclass(kw_only=True)
class Options(SearchOptions):
    """All options of `keyless.link`; what they mean is said there.

    They are checked by `check`, not when they are set: an estimator must take any value.
    """

    reading: Reading | None = None
    known_pairs: Any = None
    forbid: Any = None
    within: str | Sequence[str] | None = None
    shared: Shared = "auto"
    scales: ScaleName | Mapping[str, ScaleName] = "auto"
    random_state: RandomState = None
    checkpoint: str | Path | None = None
    callback: Callback | None = None

    def check(self) -> None:
        """Refuse values that no table could make sense of."""
        by_column = self.scales if isinstance(self.scales, Mapping) else {"": self.scales}
        for column, scale in by_column.items():
            check_among(f"scales, column {column!r}" if column else "scales", scale, get_args(ScaleName))
        check_among("partners", self.partners, get_args(Partners))
        check_among("effort", self.effort, get_args(Effort))
        if not (self.repeats is None or isinstance(self.repeats, str)):
            raise InputError(
                f"repeats: must be None, 'auto' or the name of one table; found {self.repeats!r}. "
                "Where several tables repeat entities, link each of them with the one that does not."
            )
        if self.rank is not None:
            check_count(self.rank, name="rank")
        if self.max_time is not None:
            check_positive(self.max_time, name="max_time")
        check_among("device", self.device, get_args(Device))
        find_device(self.device)

    @property
    def every_row(self) -> bool | None:
        """Whether every row of the smaller table has a partner; None: found from the data."""
        return {"all": True, "some": False}.get(self.partners)

    @property
    def missingness(self) -> bool:
        """Whether it counts as information which entries are observed."""
        return self.reading is not None and self.reading.missingness

    @property
    def changed(self) -> dict[str, Any]:
        """Options about the search that differ from their defaults, as far as they are plain values."""
        about = ("within", "shared", "partners", "repeats", "scales", "rank", "effort", "max_time", "device")
        usual = {field.name: field.default for field in fields(Options)}
        values = {name: getattr(self, name) for name in about if getattr(self, name) != usual[name]}
        return {
            name: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for name, value in values.items()
            if isinstance(value, str | int | float | tuple | list | Mapping)
        }

    @property
    def decisive(self) -> tuple[Any, ...]:
        """What the answer depends on, besides the tables and what is known of their rows."""
        other = ("known_pairs", "forbid", "within", "reading", "checkpoint", "callback", "max_time", "device")
        return (self.missingness, *(getattr(self, f.name) for f in fields(Options) if f.name not in other))
