"""The words of a command: from the page's form, from a run that is linked again, and as Python lines that repeat it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keyless.errors import InputError
from keyless.links import Links
from keyless.runs import to_toml
from keyless.search_options import by_table, shared_from_words
from keyless.tables import name_tables
from keyless.ui.folder import Folder

__all__ = ["again_words", "form_words", "python_lines", "reading_words"]

_KINDS = {"number": "as-number", "category": "as-category", "id": "id", "drop": "drop"}
"""What the menu of a column says, and the option that says so on the command line."""

_BY_TABLE = ("decimal", "encoding", "skip", "header", "footer")
"""Options that are given for each table."""

_READING = ("id", "drop", "as-number", "as-category", *_BY_TABLE)
_FILES = ("known-pairs", "forbid")
_NOT_AGAIN = ("tables", "out", "report", *_FILES)

_OTHER_NAMES = {"seed": "random_state"}
"""Options whose name in Python is another."""

_USUAL: tuple[Any, ...] = ([], "auto", "normal")
"""Values that options of linking have unless they are given; of `repeats`, `auto` is none of them."""

_LEFT_OUT = (
    "device",
    "scheduler",
    "out-format",
    "raw-cells",
    "how",
    "min-probability",
    "no-fill",
    "out",
    "report",
    "tables",
)
"""Options that do not change which row belongs to which."""


def reading_words(form: Mapping[str, Sequence[str]], number: int, table: str) -> list[str]:
    """Return the options that say how one table is read.

    Args:
        form: what the browser sent: `kind-N` has lines `kind column`, `decimal-N` and so on have one value.
        number: of the table in the form.
        table: its name on the command line.
    """
    words = []
    for entry in form.get(f"kind-{number}", ()):
        kind, _, column = entry.partition(" ")
        if kind in _KINDS:
            words.append(f"--{_KINDS[kind]}={table}:{column}")
    for option in _BY_TABLE:
        value = _one(form, f"{option}-{number}")
        if value:
            words.append(f"--{option}={table}:{value}")
    return [
        *words,
        *(f"--missing={text}" for text in _lines(_one(form, "missing"))),
        *(["--long"] if form.get("long") else []),
    ]


def form_words(folder: Folder, form: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the words of `keyless link` that the page's form asks for, but for where the result goes.

    Args:
        folder: the start folder; files must be in it.
        form: what the browser sent.
    """
    files = [folder.table(given) for given in form.get("file", ())]
    if len(files) < 2:
        raise InputError(f"tables: must be at least two; found {len(files)}.")
    words = ["link", *files]
    names = list(name_tables(files))
    for number, table in enumerate(names):
        words += reading_words(form, number, table)
    words = list(dict.fromkeys(words))
    words += [f"--within={column}" for column in form.get("within", ()) if column]
    words += [f"--shared={line}" for line in _lines(_one(form, "shared"))]
    for option in _FILES:
        value = _one(form, option)
        if value:
            words.append(f"--{option}={folder.table(value)}")
    for option in ("partners", "repeats", "effort", "max-time", "seed"):
        value = _one(form, option)
        # A table is meant by its number: which name it has depends on the sheet that is typed.
        if option == "repeats" and value.isdecimal() and int(value) < len(names):
            value = names[int(value)]
        if value:
            words.append(f"--{option}={value}")
    return [*words, *(["--missingness"] if form.get("missingness") else [])]


def _one(form: Mapping[str, Sequence[str]], name: str) -> str:
    return next((value.strip() for value in form.get(name, ()) if value.strip()), "")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def again_words(folder: Folder, options: Mapping[str, Any], place: Path) -> list[str]:
    """Return the words that repeat a run, but for known pairs and where the result goes.

    Args:
        folder: the start folder; the tables must be in it.
        options: of the run, by the names of the command line.
        place: folder for a file of these options.
    """
    if not options.get("tables"):
        raise InputError("config.toml: must say which tables the run was made of; it does not.")
    try:
        files = [folder.table(str(given)) for given in options["tables"]]
    except InputError as error:
        raise InputError(f"{error} To link again, start keyless ui in the folder in which the run was made.") from error
    kept = {name: value for name, value in options.items() if name not in _NOT_AGAIN}
    config = place / "config.toml"
    config.write_text(to_toml(kept, title="Options of the run that was linked again."), encoding="utf-8")
    return ["link", *files, f"--config={folder.relative(config)}"]


def python_lines(options: Mapping[str, Any], links: Links) -> str:
    """Return Python lines that give the same links as a run.

    Args:
        options: of the run, by the names of the command line.
        links: its result.
    """
    tables = {name: str(path) for name, path in name_tables([str(path) for path in options.get("tables", ())]).items()}
    given: dict[str, str] = {}
    reading = _reading(options)
    if reading:
        given["reading"] = f"Reading({', '.join(f'{name}={value}' for name, value in reading.items())})"
    before = []
    for name in _FILES:
        path = options.get(name)
        if path:
            variable = name.replace("-", "_")
            before.append(f"{variable} = read_cells({str(path)!r}, Reading())")
            before += _whole_ids(f'{variable} = {variable}[{variable}["row_id"] != ""]', links)
            given[variable] = variable
    for name, value in options.items():
        usual = value in _USUAL and name != "repeats"
        if usual or name in (*_READING, *_FILES, *_LEFT_OUT, "missing", "long", "missingness"):
            continue
        if name == "shared":
            value = shared_from_words(value)  # noqa: PLW2901
        given[_OTHER_NAMES.get(name, name.replace("-", "_"))] = repr(value)
    imports = ["import keyless"]
    used = "\n".join([*before, *given.values()])
    names = [name for name in ("MISSING", "Reading", "read_cells") if name in used]
    if names:
        imports.append(f"from keyless.tables import {', '.join(names)}")
    arguments = "".join(f"    {name}={value},\n" for name, value in given.items())
    call = f"links = keyless.link(\n    {tables!r},\n{arguments})"
    return "\n".join([*imports, "", *before, call]) + "\n"


def _reading(options: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("id", "drop", "as-number", "as-category"):
        if options.get(name):
            found[name.replace("-", "_")] = repr(tuple(options[name]))
    if options.get("missing"):
        found["missing"] = f"(*MISSING, {', '.join(map(repr, options['missing']))})"
    if options.get("long"):
        found["layout"] = "'long'"
    if options.get("missingness"):
        found["missingness"] = "True"
    for name in _BY_TABLE:
        if options.get(name):
            numbers = name in ("skip", "header", "footer")
            found[name] = repr({t: int(value) if numbers else value for t, value in by_table(options[name]).items()})
    return found


def _whole_ids(pairs: str, links: Links) -> list[str]:
    """Return lines that read pairs, whose ids are text, with numbers where the rows of a table are called by numbers.

    Args:
        pairs: the line that reads them.
        links: the result.
    """
    variable = pairs.partition(" ")[0]
    reference, *others = links.tables
    numbered = [table.name for table in others if _numbered(table.row_ids)]
    whole = ["reference_id"] * _numbered(reference.row_ids) + ["row_id"] * (len(numbered) == len(others))
    lines = [pairs + (f".astype({{{', '.join(f'{name!r}: int' for name in whole)}}})" if whole else "")]
    if 0 < len(numbered) < len(others):
        both = f'zip({variable}["table"], {variable}["row_id"])'
        lines.append(f"{variable} = {variable}.assign(")
        lines.append(f"    row_id=[int(row) if table in {numbered!r} else row for table, row in {both}]")
        lines.append(")")
    return lines


def _numbered(ids: Iterable[Any]) -> bool:
    return isinstance(ids, range) or all(isinstance(one, int) for one in ids)
