"""The files a command is given: checked before anything is computed, so that nothing is lost later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyless.cli.options import LinkingOptions, ReadingOptions
from keyless.errors import InputError
from keyless.search_options import SearchOptions, by_table, check_not_removed, shared_from_words

if TYPE_CHECKING:
    from keyless.arrays import FloatArray
    from keyless.runs import Fingerprint
    from keyless.tables import Reading, Table

__all__ = [
    "STDIN",
    "check_device",
    "check_files",
    "check_out",
    "check_report",
    "linking_options",
    "open_tables",
    "read_pairs",
    "reading_of",
    "warnings_about",
]

STDIN = Path("-")


def check_files(paths: Sequence[Path], options: ReadingOptions, *, least: int = 2) -> tuple[Fingerprint, ...]:
    """Return what identifies the table files; refuse those that are not there, and the same one twice.

    Args:
        paths: table files; `-` is standard input, about which nothing is known yet.
        options: how to read them; refused before the files are looked for where they cannot be.
        least: how many there must be.
    """
    from keyless.runs import fingerprint
    from keyless.tables import place_of
    from keyless.tables.parquet import parquet_files

    if len(paths) < least:
        wanted = "at least two table files" if least > 1 else "a table file"
        raise InputError(f"tables: must be {wanted}; found {len(paths)}. Example: keyless link clinic.csv lab.csv")
    reading_of(options)
    places = [place_of(path) for path in paths if path != STDIN]
    files = [place.path for place in places]
    for path in files:
        if str(path).startswith("-") and not path.exists():
            check_not_removed(str(path), command_line=True)
            raise InputError(f"{path}: must be an option or a table file; there is neither of that name. See --help.")
    for path in files:
        if path.is_dir() and not parquet_files(path):
            raise InputError(f"{path}: must be a table file; it is a folder without Parquet files. Name files in it.")
        if not path.exists():
            raise InputError(f"{path}: must be a table file; there is no such file. Check the name.")
        if not path.is_file() and not path.is_dir():
            raise InputError(
                f"{path}: must be a file that can be read twice; it is a pipe or a device. Send it to standard input, "
                "and write - instead of its name."
            )
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise InputError(f"{path!r}: must have a name that is valid UTF-8. Rename it.") from None
    for one, two in combinations(places, 2):
        if one.path.samefile(two.path) and one.part == two.part:
            raise InputError(f"{two.path}: must be another table than {one.path}; it is the same file, given twice.")
    found = tuple(fingerprint(path) for path in files)
    for (one, first), (two, second) in combinations(zip(places, found, strict=True), 2):
        # Two sheets or tables of one file are two tables.
        if first.same_content(second) and one.part == two.part:
            raise InputError(
                f"{two.path}: must be another table than {one.path}; the two files hold exactly the same. "
                "There is nothing to link: row i belongs to row i."
            )
    return found


def check_out(out: Path, inputs: Iterable[Path], *, option: str = "--out") -> None:
    """Refuse an output that is an input, lies in one, or would replace one.

    Args:
        out: where results go.
        inputs: files that are read.
        option: how the command line calls it.
    """
    place = out.resolve()
    if place in (Path.cwd(), *Path.cwd().parents):
        raise InputError(
            f"{option}: must not be the current folder or a folder around it; {out} is one of them. "
            "Choose another place."
        )
    for path in inputs:
        source = path.resolve()
        if place == source:
            raise InputError(f"{option}: must not be one of the input files; {out} is one. Choose another place.")
        if source in place.parents:
            raise InputError(f"{option}: must not be inside an input; {out} is inside {path}. Choose another place.")
        if place in source.parents:
            raise InputError(
                f"{option}: must not be a folder with an input file in it, since the folder is replaced; "
                f"{path} is in {out}. Choose another place."
            )


def check_report(report: Path, inputs: Iterable[Path]) -> None:
    """Refuse a file for the report that is an input or cannot be written."""
    from keyless import runs

    check_out(report, inputs, option="--report")
    runs.check_file(report)


def open_tables(
    paths: Sequence[Path], options: ReadingOptions, *, reference: str | None = None, to_link: bool = True
) -> tuple[Table, ...]:
    """Read table files, the reference first.

    Args:
        paths: the files.
        options: how to read them.
        reference: name of the table whose row order the answer is given in; the first unless given.
        to_link: refuse tables for whose linking there is not enough memory.
    """
    from keyless.tables import name_tables, read_table, read_tables

    reading = reading_of(options)
    named = name_tables(paths)
    if len(named) == 1:
        return tuple(read_table(path, name=name, reading=reading) for name, path in named.items())
    return read_tables(named, reference=reference, reading=reading, to_link=to_link)[0]


def reading_of(options: ReadingOptions) -> Reading:
    """Return the options as the library takes them.

    Args:
        options: as the command line has them.
    """
    from keyless.tables import Reading
    from keyless.tables.reading_options import MISSING

    return Reading(
        id=options.id,
        missing=(*MISSING, *options.missing),
        layout="long" if options.long else "wide",
        drop=options.drop,
        as_number=options.as_number,
        as_category=options.as_category,
        decimal=by_table(options.decimal) or None,
        encoding=by_table(options.encoding) or None,
        skip=_counts(options.skip, option="--skip"),
        header=_counts(options.header, option="--header"),
        footer=_counts(options.footer, option="--footer"),
        missingness=options.missingness,
        door="command line",
    )


def _counts(given: Sequence[str], *, option: str) -> dict[str, int] | None:
    texts = by_table(given)
    for text in texts.values():
        if not text.isdecimal():
            raise InputError(f"{option}: must be a whole number of at least 0, or TABLE:NUMBER; found {text!r}.")
    return {table: int(text) for table, text in texts.items()} or None


def read_pairs(path: Path | None, tables: Sequence[Table], *, option: str) -> dict[str, list[tuple[Any, Any]]] | None:
    """Read pairs of ids from a file with columns reference_id, row_id and, for several tables, table.

    Ids are compared as text, exactly as they stand in the files; a `'` that keeps a spreadsheet from running one is
    passed over.

    Args:
        path: the file; None reads nothing.
        tables: the tables, the reference first.
        option: how the command line calls it.
    """
    from keyless.knowledge import did_you_mean
    from keyless.tables import Reading, read_cells, source_file

    if path is None:
        return None
    if not source_file(path).is_file():
        raise InputError(f"{option}: must be a table file of pairs; there is no {path}.")
    try:
        frame = read_cells(path, Reading(door="command line"))
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    several = len(tables) > 2
    wanted = {"reference_id", "row_id", *(["table"] if several else [])}
    if not wanted <= set(frame.columns):
        raise InputError(
            f"{option}: {path} must have the columns {', '.join(sorted(wanted))}; "
            f"found {', '.join(map(repr, frame.columns))}."
        )
    names = frame["table"].tolist() if "table" in frame.columns else [tables[1].name] * len(frame)
    by_name = {table.name: _labels(table) for table in tables}
    reference = by_name[tables[0].name]
    pairs: dict[str, list[tuple[Any, Any]]] = {table.name: [] for table in tables[1:]}
    for line, (left, name, right) in enumerate(
        zip(frame["reference_id"], names, frame["row_id"], strict=True), start=2
    ):
        where = f"{option}: {path}, line {line}"
        name = name if name in pairs else name.removeprefix("'")  # noqa: PLW2901
        if name not in pairs:
            raise InputError(f"{where}: must name one of {', '.join(map(repr, pairs))}; found {name!r}.")
        if not right:
            continue  # a line of matches.csv about a row without a partner
        ids = []
        for label, known, table in ((left, reference, tables[0].name), (right, by_name[name], name)):
            own = label if label in known else label.removeprefix("'")
            if own not in known:
                advice = did_you_mean(label, list(known))
                raise InputError(f"{where}: must name rows that exist; {table} has no row {label!r}.{advice}")
            ids.append(known[own])
        pairs[name].append((ids[0], ids[1]))
    return pairs


def _labels(table: Table) -> dict[str, Any]:
    return {str(label): label for label in table.row_ids}


def warnings_about(tables: Sequence[Table]) -> list[str]:
    """Return what the reader of a result must know of its tables: notes of the reading, and equal rows."""
    return [*(f"{table.name}: {note}" for table in tables for note in table.notes), *_same_rows(tables)]


def _same_rows(tables: Sequence[Table]) -> list[str]:
    """Return a warning for each two tables that hold the same rows, perhaps in another order."""
    import numpy as np

    def column(table: Table, place: int) -> FloatArray:
        return np.sort(np.where(table.block.mask[:, place], table.block.values[:, place], np.inf))

    def key(table: Table, order: Sequence[int]) -> FloatArray:
        values = np.where(table.block.mask, table.block.values, np.inf)[:, list(order)]
        return values[np.lexsort(values.T[::-1])]

    found = []
    for one, two in combinations(tables, 2):
        if one.block.shape != two.block.shape:
            continue
        order: Sequence[int] = range(len(one.columns))
        if set(one.columns) == set(two.columns):
            order = [two.columns.index(column) for column in one.columns]
        # One column tells most tables apart, and takes no copy of them.
        if order and not np.array_equal(column(one, 0), column(two, order[0])):
            continue
        if np.array_equal(key(one, range(len(one.columns))), key(two, order)):
            found.append(
                f"{one.name} and {two.name} hold the same rows, perhaps in another order: "
                "the link is found by equality, and says nothing about other tables."
            )
    return found


def check_device(linking: LinkingOptions) -> None:
    """Refuse a device that this machine does not have, before anything is read.

    Args:
        linking: as the command line has them.
    """
    from keyless.arrays import find_device

    find_device(linking.device)


def linking_options(linking: LinkingOptions, tables: Sequence[Table]) -> dict[str, Any]:
    """Return the options as `keyless.link` takes them.

    Args:
        linking: as the command line has them.
        tables: the tables, the reference first.
    """
    same = {option.name: getattr(linking, option.name) for option in fields(SearchOptions)}
    return same | {
        "known_pairs": read_pairs(linking.known_pairs, tables, option="--known-pairs"),
        "forbid": read_pairs(linking.forbid, tables, option="--forbid"),
        "within": list(linking.within) or None,
        "shared": shared_from_words(linking.shared),
        "scales": linking.scales,
        "random_state": linking.seed,
    }
