"""`keyless link`: which row belongs to which, into a folder or onto stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from keyless.cli.app import INTERRUPTED, app, say, write_out
from keyless.cli.inputs import (
    STDIN,
    check_device,
    check_files,
    check_out,
    check_report,
    linking_options,
    open_tables,
    reading_of,
    warnings_about,
)
from keyless.cli.options import (
    OUTPUT,
    WHERE,
    JoiningOptions,
    LinkingOptions,
    ReadingOptions,
    TableFiles,
    command_line,
    configuration,
    from_file,
)
from keyless.cli.progress import Watch, watched
from keyless.cli.words import exit_code, print_json, verdict_lines, verdicts
from keyless.errors import InputError, KeylessError

if TYPE_CHECKING:
    from keyless.links import Links
    from keyless.runs import Unfinished
    from keyless.tables import Table

__all__ = ["link", "run_link"]

_GOES_ON = "the same command with --resume goes on from the last finished stage."


@app.command(help_epilogue="Example: `keyless link clinic.csv lab.csv --out run/`", config=from_file)
def link(
    tables: TableFiles = (),
    *,
    out: Path | None = None,
    report: Path | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    out_format: Literal["same", "csv", "tsv", "xlsx", "parquet"] = "same",
    raw_cells: Annotated[bool, Parameter(show_default=False)] = False,
    resume: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    config: Path | None = None,
    reading: ReadingOptions | None = None,
    linking: LinkingOptions | None = None,
    joining: JoiningOptions | None = None,
) -> int:
    """Find which rows of two or more tables belong together, how sure each match is, and whether the tables fit at all.

    With `--out` the folder gets matches.csv, joined.csv and joined.parquet, the filled-in tables in completed/,
    report.html, run.json, config.toml and links.keyless. It is written in one step at the end. Without `--out` the
    matches go to stdout as CSV. The verdict goes to stderr. The exit code is 0 for linked and 3 for uncertain or
    unlinkable. Ctrl-C ends the search and saves the best result so far (exit code 130).

    Args:
        tables: Two or more table files about the same things: CSV, TSV or Parquet, also compressed, a folder of Parquet
            files, .xlsx, .ods, .h5ad; `book.xlsx::sheet` and `file.db::table` (SQLite, DuckDB) name what is inside;
            `-` is standard input.
        out: Folder for the results: a new one, an empty one, or an earlier run, which is replaced.
        report: Also write the report to this HTML file.
        json: Print the verdict as JSON; without `--out` also the matches.
        out_format: Format of the tables that are written. `same` has the separator, decimal mark and encoding of the
            table given, .xlsx for a spreadsheet, and Parquet for folders and for tables of 20 million cells and more;
            `csv` and `tsv` have decimal points and UTF-8.
        raw_cells: Write text unchanged. Without this option, text that a spreadsheet would run as a formula gets a `'`
            in front.
        resume: Continue a killed run from its last finished stage.
        config: TOML file of options. An option on the command line overrides it. Each run writes its own config.toml.
        reading: How files become tables.
        linking: What is known of the rows, and what the search may spend.
        joining: What the joined table holds.
    """
    from keyless import runs
    from keyless.tables import place_of, source_file

    reading, linking, joining = reading or ReadingOptions(), linking or LinkingOptions(), joining or JoiningOptions()
    del config  # its options are already in the others
    check_device(linking)
    if resume and out is None:
        raise InputError("--resume: must come with --out, the folder of the run to continue.")
    if resume and STDIN in tables:
        raise InputError("--resume: must not come with standard input (-), which cannot be read again.")
    runs.check_format(out_format)
    inputs = check_files(tables, reading)
    given = [*map(source_file, tables), *(path for path in (linking.known_pairs, linking.forbid) if path is not None)]
    _check_places(out, report, given, joining)
    options = configuration(
        tables, reading, linking, joining, out=out, report=report, out_format=out_format, raw_cells=raw_cells
    )
    text = runs.to_toml(options, title="What `keyless link` was run with; `keyless link --config` reads it.")
    command = command_line(options)
    files = [*inputs, *(runs.fingerprint(path) for path in given[len(tables) :] if path.is_file())]
    with contextlib.ExitStack() as stack:
        unfinished = None
        if out is not None:
            relevant = {name: value for name, value in options.items() if name not in (*OUTPUT, *WHERE)}
            relevant["tables"] = [place_of(path).where for path in tables]
            unfinished = stack.enter_context(
                runs.open_unfinished(out, configuration=text, options=relevant, inputs=files, resume=resume)
            )
            _tell_resumed(unfinished, resume=resume)
            stack.enter_context(_not_all_lost(unfinished))
        # Ctrl-C is answered until everything is written: the first does not lose what is being saved.
        watch = stack.enter_context(watched())
        links = None if unfinished is None else unfinished.kept()
        if links is None:
            links = _searched(tables, reading, linking, watch, unfinished, check=partial(runs.check_format, out_format))
            for path, known in zip((path for path in given if path.exists()), files, strict=True):
                runs.check_unchanged(path, known)
        warnings, interrupted = warnings_about(links.tables), watch.interrupted
        if out is not None and unfinished is not None:
            if not interrupted:
                unfinished.keep(links)
            try:
                runs.write_run(
                    links, out, configuration=text, command=command, inputs=files, timings=watch.stages.timings,
                    warnings=warnings, out_format=out_format, raw_cells=raw_cells, joining=joining.plain,
                    answers=unfinished.resumed,
                )  # fmt: skip
            except Exception:
                if not unfinished.empty:
                    say("the result could not be written, but it is kept: the same command with --resume writes it.")
                raise
            if not interrupted:
                unfinished.remove()
        if report is not None:
            runs.write_report(links, report, command=command)
        can_resume = interrupted and unfinished is not None and not unfinished.empty
    matches = {"out_format": out_format, "raw_cells": raw_cells, "min_probability": joining.min_probability}
    _tell(links, warnings, interrupted=interrupted, out=out, as_json=json, matches=matches)
    if can_resume:
        say(_GOES_ON)
    return INTERRUPTED if interrupted else exit_code(links)


def run_link(
    tables: Sequence[Path],
    reading: ReadingOptions,
    linking: LinkingOptions,
    watch: Watch,
    *,
    checkpoint: Path | None = None,
    check: Callable[[Sequence[Table]], None] | None = None,
) -> Links:
    """Read tables and link them.

    Args:
        tables: the table files.
        reading: how files become tables.
        linking: what is known of the rows, and what the search may spend.
        watch: shows progress, and says when to stop.
        checkpoint: folder in which the engine keeps finished stages.
        check: called with the tables before they are linked, to refuse them.
    """
    from keyless.cluster import OnDisk, connected
    from keyless.linker import link as linked

    with connected(linking.scheduler) as workers:
        if workers.about:
            say("working on the cluster of {scheduler}; its dashboard is {dashboard}".format(**workers.about))
        read = open_tables(tables, reading, reference=linking.reference)
        if workers.about and any(OnDisk.behind(table.block.values) is None for table in read):
            say("the cluster has nothing to do: it links large folders of Parquet files only (docs/cluster.md).")
        if check is not None:
            check(read)
        options = linking_options(linking, read)
        watch.stages.spent("reading")
        named = {table.name: table for table in read}
        links = linked(named, reading=reading_of(reading), callback=watch, checkpoint=checkpoint, **options)
        watch.stages.spent("last steps")
        return links


def _check_places(out: Path | None, report: Path | None, given: Sequence[Path], joining: JoiningOptions) -> None:
    """Say before the work, not after, that results cannot be written."""
    if out is None and (joining.how != "left" or joining.no_fill):
        raise InputError("--how and --no-fill: must come with --out, the folder that gets the joined table.")
    if out is not None:
        check_out(out, given)
    if report is not None:
        check_report(report, given)
        if out is not None and out.resolve() in report.resolve().parents:
            raise InputError(f"--report: must lie outside {out}, which gets a report.html of its own.")


def _searched(
    tables: Sequence[Path],
    reading: ReadingOptions,
    linking: LinkingOptions,
    watch: Watch,
    unfinished: Unfinished | None,
    *,
    check: Callable[[Sequence[Table]], None],
) -> Links:
    """Link the tables; where stages of an earlier run were taken up and do not fit, say how to go on without them."""
    checkpoint = None if unfinished is None else unfinished.checkpoint
    try:
        return run_link(tables, reading, linking, watch, checkpoint=checkpoint, check=check)
    except Exception as error:
        told = isinstance(error, KeylessError | OSError | MemoryError) or os.environ.get("KEYLESS_DEBUG")
        if told or unfinished is None or not unfinished.resumed:
            raise
        raise InputError(
            f"{unfinished.folder.name}: must hold the finished stages of one run; these do not fit together "
            f"({type(error).__name__}: {error}). Leave --resume out to start from the beginning."
        ) from error


@contextlib.contextmanager
def _not_all_lost(unfinished: Unfinished) -> Iterator[None]:
    """Let the message about a run that is quit at once say what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        if unfinished.empty:
            raise
        raise KeyboardInterrupt("no result was saved, but the finished stages are kept: " + _GOES_ON) from None


def _tell_resumed(unfinished: Unfinished, *, resume: bool) -> None:
    if unfinished.resumed:
        say("continuing the unfinished run.")
    elif unfinished.could_resume:
        say(
            "an earlier run of this command was not finished. "
            f"Its finished stages are in {unfinished.folder.name}, and --resume continues from them. "
            "This run starts from the beginning; the earlier stages are kept until it has finished one."
        )
    elif resume:
        say("there is no unfinished run to resume; starting from the beginning.")


def _tell(
    links: Links,
    warnings: Sequence[str],
    *,
    interrupted: bool,
    out: Path | None,
    as_json: bool,
    matches: Mapping[str, Any],
) -> None:
    from keyless import runs

    for warning in warnings:
        say(f"warning: {warning}")
    if sys.stderr is not None:
        sys.stderr.write("\n".join(verdict_lines(links, interrupted=interrupted)) + "\n")
    if as_json:
        more: dict[str, Any] = {"warnings": warnings, "interrupted": interrupted}
        if out is None:
            more["matches"] = runs.match_records(links, min_probability=matches["min_probability"])
        else:
            more["out"] = str(out)
        print_json(verdicts(links) | more)
    elif out is None:
        write_out(runs.matches_text(links, **matches), data=True)
    if interrupted:
        where = "went to stdout" if out is None else f"is in {out}"
        say(f"interrupted; the best so far {where}.")
    elif out is not None:
        say(f"the results are in {out}.")
