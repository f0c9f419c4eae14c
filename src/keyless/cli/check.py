"""`keyless check`: can these tables be linked at all?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from keyless.cli.app import INTERRUPTED, app, say, write_out
from keyless.cli.inputs import check_files, warnings_about
from keyless.cli.link import run_link
from keyless.cli.options import LinkingOptions, ReadingOptions, TableFiles, check_device, from_file
from keyless.cli.progress import watched
from keyless.cli.words import exit_code, print_json, verdict_lines, verdicts

__all__ = ["check"]


@app.command(help_epilogue="Example: `keyless check clinic.csv lab.csv`", config=from_file)
def check(
    tables: TableFiles = (),
    *,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    config: Path | None = None,
    reading: ReadingOptions | None = None,
    linking: LinkingOptions | None = None,
) -> int:
    """Say whether tables can be linked, and write nothing.

    For each table and the reference: the verdict, the information that the matches carry, what chance reaches, what it
    takes to tell the rows apart, and how many rows can be. Use it before you release a pseudonymised table. Exit code 0
    says linked, 3 uncertain or unlinkable.

    Args:
        tables: Two or more table files about the same things.
        json: Print the verdict as JSON.
        config: TOML file of options; those given on the command line win.
        reading: How files become tables.
        linking: What is known of the rows, and what the search may spend.
    """
    reading, linking = reading or ReadingOptions(), linking or LinkingOptions()
    del config  # its options are already in the others
    check_device(linking.device)
    check_files(tables)
    with watched() as watch:
        links = run_link(tables, reading, linking, watch)
    warnings = warnings_about(links.tables)
    for warning in warnings:
        say(f"warning: {warning}")
    if json:
        print_json(verdicts(links) | {"warnings": warnings, "interrupted": watch.interrupted})
    else:
        write_out("\n".join(verdict_lines(links, interrupted=watch.interrupted)) + "\n")
    if watch.interrupted:
        say("interrupted; this is the verdict on the best so far.")
        return INTERRUPTED
    return exit_code(links)
