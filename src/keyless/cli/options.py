"""The options that several commands share, as the command line names them."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter
from cyclopts.config import Dict
from cyclopts.validators import Number

from keyless.errors import InputError
from keyless.search_options import ScaleName, SearchOptions, check_not_removed

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection

__all__ = [
    "OUTPUT",
    "WHERE",
    "JoiningOptions",
    "LinkingOptions",
    "ReadingOptions",
    "Several",
    "TableFiles",
    "command_line",
    "configuration",
    "from_file",
]

_REPEATED = Parameter(negative=(), allow_leading_hyphen=True, show_default=False, consume_multiple=False)
Several: TypeAlias = Annotated[tuple[str, ...], _REPEATED]
"""An option that may be given several times, also with text that begins with a hyphen."""

WHERE = ("scheduler", "device")
"""Options about who works, on which the answer does not depend."""

OUTPUT = ("out", "report", "out-format", "raw-cells", "how", "min-probability", "no-fill")
"""Options of `link` about where results go and how they look there."""

TableFiles: TypeAlias = Annotated[
    tuple[Path, ...], Parameter(negative=(), show_default=False, allow_leading_hyphen=True)
]
"""Also `-`, standard input; `check_files` refuses options that nobody knows."""


@Parameter(name="*", group="Reading the tables")
@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How files become tables.

    Args:
        id: Column that names the rows, as `COLUMN` or `TABLE:COLUMN`. Without this option keyless recognises it.
            Repeatable.
        missing: Text that means a missing entry, in addition to empty cells and the usual ones (NA, NaN, null, n/a,
            k.A., and dashes among numbers). Repeatable.
        drop: Column to leave out, as `COLUMN` or `TABLE:COLUMN`. Repeatable.
        as_number: Column to use as numbers, even if it does not look like numbers. Repeatable.
        as_category: Column to use as categories, even if it looks like numbers. Repeatable.
        long: The files have one line per entry, with three columns: row, column, value.
        decimal: Decimal mark of numbers in text, `.` or `,`, as `MARK` or `TABLE:MARK`. It is needed only where a
            column can be read in both ways (`12,650`). Repeatable.
        encoding: Encoding of text files, as `NAME` or `TABLE:NAME`. Without this option it is UTF-8, or cp1252 or
            latin-1 where a file is not UTF-8. Repeatable.
        skip: How many lines stand above the column names, as `NUMBER` or `TABLE:NUMBER`. Without this option keyless
            recognises them. Repeatable.
        header: How many lines the column names take, given in the same way; 0 if there are no names.
        footer: How many lines at the end are not rows, such as totals and notes, given in the same way.
        missingness: Also use which entries are missing, as if each column said whether it was measured.
    """

    id: Several = ()
    missing: Several = ()
    drop: Several = ()
    as_number: Several = ()
    as_category: Several = ()
    long: Annotated[bool, Parameter(show_default=False)] = False
    decimal: Several = ()
    encoding: Several = ()
    skip: Several = ()
    header: Several = ()
    footer: Several = ()
    missingness: Annotated[bool, Parameter(show_default=False)] = False


@Parameter(name="*", group="Linking")
@dataclass(kw_only=True)
class LinkingOptions(SearchOptions):
    """What is known of the rows, and what the search may spend; see also `SearchOptions`.

    Args:
        known_pairs: CSV file of pairs that surely belong together: columns reference_id and row_id, and table if there
            are more than two tables. Some lines of an earlier matches.csv have this form.
        forbid: CSV file of pairs that surely do not belong together, in the same form.
        within: Column that all tables have and that must be equal in rows that belong together. Repeatable.
        shared: Column of numbers that measures the same in two tables, as `COLUMN` or, where its names differ,
            `FIRST=SECOND`. Without this option, columns of the same name are; `none`: no column is. Repeatable.
        scales: Scale on which all columns of numbers are compared. `auto` chooses one for each column.
        seed: The same seed gives the same answer.
        scheduler: Address of the scheduler of a Dask cluster, such as `tcp://10.0.0.5:8786`, whose workers link two
            folders of Parquet files (docs/cluster.md).
    """

    known_pairs: Path | None = None
    forbid: Path | None = None
    within: Several = ()
    shared: Several = ()
    scales: ScaleName = "auto"
    rank: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    max_time: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    scheduler: str | None = None


@Parameter(name="*", group="The joined table")
@dataclass(frozen=True, kw_only=True)
class JoiningOptions:
    """What joined.csv and joined.parquet hold.

    Args:
        how: `left` has all rows of the reference, `inner` those with a partner in every table, `outer` also the rows
            of other tables that are nobody's partner.
        min_probability: Leave out matches that are less likely than this (from 0 to 1): the row then has no partner.
            matches.csv still has all matches; matches on stdout are left out, too.
        no_fill: Leave missing entries missing. Rows without a partner are never filled.
    """

    how: Literal["left", "inner", "outer"] = "left"
    min_probability: Annotated[float | None, Parameter(validator=Number(gte=0, lte=1))] = None
    no_fill: Annotated[bool, Parameter(name="--no-fill", negative="", show_default=False)] = False

    @property
    def plain(self) -> dict[str, Any]:
        """The options as `Links.joined` takes them."""
        return {"how": self.how, "min_probability": self.min_probability, "fill": not self.no_fill}


def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take from the file that `--config` names every option that was not given on the command line.

    Args:
        app: the app.
        commands: the command that runs.
        arguments: its arguments, as far as they are known.
    """
    named = [argument.tokens[0].value for argument in arguments if argument.name == "--config" and argument.tokens]
    if not named:
        return
    path = Path(named[0])
    try:
        options = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: must be a TOML file of options; there is no such file.") from None
    except ValueError as error:
        raise InputError(f"{path}: must be a TOML file of options; {error}.") from error
    for name in options:
        if name not in _all_names():
            check_not_removed(name, command_line=True)
    # One file serves link, check and inspect: options of the others are left alone, unknown ones are refused.
    own = {name.removeprefix("--") for argument in arguments for name in argument.names}
    options = {name: value for name, value in options.items() if name in own or name not in _all_names()}
    Dict(options, use_commands_as_keys=False, source=str(path))(app, commands, arguments)


def _all_names() -> set[str]:
    return {*configuration((), ReadingOptions(), LinkingOptions(), JoiningOptions()), *OUTPUT}


def configuration(
    tables: Sequence[Path], *groups: ReadingOptions | LinkingOptions | JoiningOptions, **more: Any
) -> dict[str, Any]:
    """Return all options by the name the command line gives them, as a configuration file holds them."""
    named: dict[str, Any] = {"tables": tables}
    for group in groups:
        named |= {field.name: getattr(group, field.name) for field in fields(group)}
    return {name.replace("_", "-"): _plain(value) for name, value in (named | more).items()}


def command_line(options: Mapping[str, Any]) -> str:
    """Return the words of `keyless link` that give options, those left out that are as they are unless given.

    Args:
        options: what `configuration` returns.

    Example:
        >>> command_line({"tables": ["clinic.csv", "my lab.csv"], "within": ["site"], "partners": "all", "seed": 0})
        "keyless link clinic.csv 'my lab.csv' --within=site --partners=all"
    """
    usual = configuration((), ReadingOptions(), LinkingOptions(), JoiningOptions(), out_format="same")
    words = ["keyless", "link", *options["tables"]]
    for name, value in options.items():
        if name == "tables" or value is None or value == usual.get(name, False):
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}={entry}" for entry in (value if isinstance(value, list) else [value])]
    return shlex.join(words)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value
