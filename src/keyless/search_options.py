"""Options of linking that Python and the command line take in the same form. Nothing heavy is imported here."""

# Annotations are evaluated here, not postponed: the command line reads them off classes of other modules.
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from keyless.errors import InputError

__all__ = [
    "Device",
    "Effort",
    "Partners",
    "ScaleName",
    "SearchOptions",
    "Shared",
    "by_table",
    "check_not_removed",
    "shared_from_words",
]

Partners = Literal["auto", "all", "some"]
ScaleName = Literal["auto", "identity", "log", "sqrt", "rank"]
Effort = Literal["quick", "normal", "thorough"]
Device = Literal["cpu", "cuda"]
Shared = str | Sequence[str] | Mapping[str, str] | None
"""Columns that two tables both have: `"auto"`, their names, names in the first to names in the second, or None."""


@dataclass(kw_only=True)
class SearchOptions:
    """What is known of the tables, and what the search may spend: options that every door takes in the same form.

    Args:
        reference: Table that gives the order of the rows in the results. Without this option it is the first.
        partners: Which rows have a partner: `all` rows of the smaller table, `some` of them, or `auto`: found from the
            data.
        repeats: Table that has several rows of one entity. Each of its rows gets a partner of its own, and several may
            get the same one. This table becomes the reference. `auto` finds out whether there is one.
        rank: The largest number of factors to use; factors are what several columns have in common. Without this
            option the number is found from the data.
        effort: How much is tried. `quick` tries fewer ways to fit the tables, and compares the result with chance once.
            `normal` compares it up to three times, and `thorough` up to five times.
        max_time: Seconds after which the search ends with the best result so far, and says so. If nothing was found by
            then, nobody is matched.
        device: Where neighbours of rows are sought, rows coupled and sums over rows with gaps computed: `cpu`, or
            `cuda`, a graphics card that PyTorch sees (docs/gpu.md).
    """

    reference: str | None = None
    partners: Partners = "auto"
    repeats: str | None = None
    rank: int | None = None
    effort: Effort = "normal"
    max_time: float | None = None
    device: Device = "cpu"


def shared_from_words(given: Sequence[str]) -> Shared:
    """Return `--shared` as `keyless.link` takes it.

    Args:
        given: column names, or pairs `FIRST=SECOND`; none at all means automatic.
    """
    if not given or list(given) == ["auto"]:
        return "auto"
    if list(given) == ["none"]:
        return None
    pairs = {}
    for text in given:
        left, mark, right = text.partition("=")
        pairs[left] = right if mark else left
    return list(pairs) if all(left == right for left, right in pairs.items()) else pairs


def by_table(given: Sequence[str]) -> dict[str, str]:
    """Return values by table: the word `TABLE:VALUE` is for one table; `VALUE` is for all, under the empty name.

    Args:
        given: the words of one option.
    """
    return {table: value for table, _, value in (entry.rpartition(":") for entry in given)}


_EFFORT = ("Use effort='quick', 'normal' or 'thorough'.", "Use --effort quick, normal or thorough.")
_CORES = ("Leave it out: all cores are used.",) * 2
_SHOWN = (
    "Leave it out: progress is shown in a terminal and in a notebook. Give callback=function to receive it yourself.",
    "Leave it out: progress is always shown on stderr.",
)
_REMOVED = {
    "method": _EFFORT,
    "null_searches": _EFFORT,
    "strangers": ("Use partners='all', 'some' or 'auto'.", "Use --partners all, some or auto."),
    "missingness": ("Use reading=Reading(missingness=True).", "Use --missingness."),
    "n_jobs": _CORES,
    "jobs": _CORES,
    "verbose": _SHOWN,
    "progress": _SHOWN,
    "refiner": (
        "Use keyless.paper.M3O().solve(problem, start=...) after linking.",
        "In Python, use keyless.paper.M3O().solve(problem, start=...) after linking.",
    ),
    "options": (
        "Give each option by its own name: link(tables, effort='thorough').",
        "Give each option by its own name, or a file of them with --config.",
    ),
}
"""Options of earlier versions: what takes their place in Python and on the command line."""


def check_not_removed(name: str, *, command_line: bool = False) -> None:
    """Refuse an option of an earlier version, and name what takes its place.

    Args:
        name: as the caller wrote it: `null_searches`, `--null-searches`, `--no-strangers`.
        command_line: whether it was given there.
    """
    plain = name.partition("=")[0].lstrip("-").replace("-", "_").removeprefix("no_")
    if plain in _REMOVED:
        raise InputError(f"{name}: is an option of earlier versions. {_REMOVED[plain][command_line]}")
