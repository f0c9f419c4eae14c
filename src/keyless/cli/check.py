"""`keyless check`: can these tables be linked at all?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keyless.cli.app import INTERRUPTED, app, say, write_out
from keyless.cli.inputs import check_files, warnings_about
from keyless.cli.link import run_link
from keyless.cli.options import LinkingOptions, ReadingOptions, TableFiles, check_device, from_file
from keyless.cli.progress import Watch, watched
from keyless.cli.words import audit_lines, audit_record, exit_code, print_json, verdict_lines, verdicts

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
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    config: Path | None = None,
    reading: ReadingOptions | None = None,
    linking: LinkingOptions | None = None,
) -> int:
    """Say whether tables can be linked, and write nothing.

    For each table and the reference: the verdict, the information that the matches carry, what chance reaches, what it
    takes to tell the rows apart, and how many rows can be. Use it before you release a pseudonymised table. Exit code 0
    says linked, 3 uncertain or unlinkable.

    With `--advise` also: how many rows could be singled out with 50, 90 and 99% certainty, by which columns, and few
    columns to drop, round or add noise to until the tables are no longer linkable. Each proposal is verified by linking
    again, which takes as long as linking does, often ten times over. What such an audit cannot tell stands in
    docs/audit.md.

    Args:
        tables: Two or more table files about the same things.
        advise: Say what to change before a release.
        json: Print the verdict as JSON.
        config: TOML file of options; those given on the command line win.
        reading: How files become tables.
        linking: What is known of the rows, and what the search may spend.
    """
    reading, linking = reading or ReadingOptions(), linking or LinkingOptions()
    del config  # its options are already in the others
    check_device(linking.device)
    check_files(tables, reading)
    with watched() as watch:
        links = run_link(tables, reading, linking, watch)
        found = _audited(links, linking, watch) if advise and not watch.interrupted else None
    warnings = warnings_about(links.tables)
    for warning in warnings:
        say(f"warning: {warning}")
    if json:
        more: dict[str, Any] = {"warnings": warnings, "interrupted": watch.interrupted}
        print_json(verdicts(links) | more | ({} if found is None else {"audit": audit_record(found)}))
    else:
        lines = verdict_lines(links, interrupted=watch.interrupted)
        write_out("\n".join([*lines, *([] if found is None else audit_lines(found))]) + "\n")
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


def _still_shared(shared: Any, tables: Sequence[Table]) -> Any:
    """Return the columns that tables share without those that were dropped."""
    if shared is None or isinstance(shared, str):
        return shared
    pairs = shared if isinstance(shared, dict) else {column: column for column in shared}
    left = {
        one: two for one, two in pairs.items() if sum({one, two} & set(table.columns) != set() for table in tables) > 1
    }
    return left if isinstance(shared, dict) else list(left)
