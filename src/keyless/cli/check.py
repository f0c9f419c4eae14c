"""`keyless check`: can these tables be linked at all?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keyless.cli.app import INTERRUPTED, app, say, write_out
from keyless.cli.inputs import check_device, check_files, check_report, warnings_about
from keyless.cli.link import run_link
from keyless.cli.options import (
    LinkingOptions,
    ReadingOptions,
    TableFiles,
    command_line,
    configuration,
    from_file,
)
from keyless.cli.progress import Watch, watched
from keyless.cli.words import audit_lines, audit_record, exit_code, print_json, verdict_lines, verdicts
from keyless.errors import InputError
from keyless.search_options import Shared

if TYPE_CHECKING:
    from keyless.audit import Audit
    from keyless.links import Links
    from keyless.tables import Table

__all__ = ["check"]


@app.command(help_epilogue="Example: `keyless check clinic.csv lab.csv`", config=from_file)
def check(
    tables: TableFiles = (),
    *,
    advise: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    report: Path | None = None,
    redact: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    config: Path | None = None,
    reading: ReadingOptions | None = None,
    linking: LinkingOptions | None = None,
) -> int:
    """Say whether tables can be linked, and write nothing but the page that `--report` names.

    For each table and the reference it prints the verdict, how much information the matches carry, how much chance
    reaches, how much it takes to tell the rows apart, and how many rows can be told apart. Use it before you release a
    pseudonymised table. The exit code is 0 for linked and 3 for uncertain or unlinkable.

    With `--advise` it also prints how many rows could be singled out with 50, 90 and 99% certainty, which columns make
    that possible, and a small set of columns to drop, round or add noise to, so that the tables are no longer linkable.
    Each proposal is verified by linking again. An audit links ten to twenty times, and takes that much
    longer than one link. The page docs/audit.md says what an audit cannot tell.

    Args:
        tables: Two or more table files about the same things.
        advise: Say what to change before a release.
        report: Also write a report to this HTML file; with `--advise` the audit is its first section.
        redact: Leave ids and cell values out of the report, to share it.
        json: Print the verdict as JSON.
        config: TOML file of options. An option on the command line overrides it.
        reading: How files become tables.
        linking: What is known of the rows, and what the search may spend.
    """
    from keyless import runs
    from keyless.tables import source_file

    reading, linking = reading or ReadingOptions(), linking or LinkingOptions()
    del config  # its options are already in the others
    check_device(linking)
    check_files(tables, reading)
    if redact and report is None:
        raise InputError("--redact: must come with --report; it leaves ids and cell values out of that page.")
    if report is not None:
        check_report(report, [*map(source_file, tables), *filter(None, (linking.known_pairs, linking.forbid))])
    with watched() as watch:
        links = run_link(tables, reading, linking, watch)
        found = _audited(links, linking, watch) if advise and not watch.interrupted else None
        if report is not None:
            words = command_line(configuration(tables, reading, linking)).removeprefix("keyless link")
            command = f"keyless check{words}{' --advise' if advise else ''}"
            runs.write_report(links, report, redact=redact, command=command, audit=found)
    warnings = warnings_about(links.tables)
    for warning in warnings:
        say(f"warning: {warning}")
    if json:
        more: dict[str, Any] = {"warnings": warnings, "interrupted": watch.interrupted}
        print_json(verdicts(links) | more | ({} if found is None else {"audit": audit_record(found)}))
    else:
        lines = verdict_lines(links, interrupted=watch.interrupted)
        write_out("\n".join([*lines, *([] if found is None else audit_lines(found))]) + "\n")
    if report is not None:
        say(f"the report is in {report}.")
    if watch.interrupted:
        say("interrupted; this is the verdict on the best so far.")
        return INTERRUPTED
    return exit_code(links)


def _audited(links: Links, linking: LinkingOptions, watch: Watch) -> Audit:
    """Audit what was linked; changed tables are linked with the same options."""
    from keyless.audit import audit
    from keyless.cli.inputs import linking_options
    from keyless.linker import link

    options = linking_options(linking, links.tables)

    def relink(tables: Sequence[Table]) -> Links:
        named = {table.name: table for table in tables}
        return link(named, callback=watch, **(options | {"shared": _still_shared(options["shared"], tables)}))

    return audit(links, relink, seed=linking.seed, report=say, stopped=lambda: watch.interrupted)


def _still_shared(shared: Shared, tables: Sequence[Table]) -> Shared:
    """Return the columns that tables share without those that were dropped."""
    if shared is None or isinstance(shared, str):
        return shared
    pairs = shared if isinstance(shared, Mapping) else {column: column for column in shared}
    left = {
        one: two for one, two in pairs.items() if sum({one, two} & set(table.columns) != set() for table in tables) > 1
    }
    return left if isinstance(shared, Mapping) else list(left)
