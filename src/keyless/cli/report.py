"""`keyless report`: the page again, from the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from keyless.cli.app import app, say

__all__ = ["report"]


@app.command(help_epilogue="Example: `keyless report run/ --out page.html`")
def report(
    run: Path,
    /,
    *,
    out: Path | None = None,
    redact: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Make the report of a run again, from its folder alone.

    Args:
        run: Folder written by `keyless link --out`.
        out: The HTML file to write. Without it report.html in the folder is replaced.
        redact: Leave ids and cell values out of the report, to share it.
    """
    from keyless import runs

    place = run / "report.html" if out is None else out
    if out is not None:
        runs.check_file(out)
    found = runs.read_run(run)
    runs.write_report(found.links, place, redact=redact, command=found.record.get("command"))
    say(f"the report is in {place}.")
