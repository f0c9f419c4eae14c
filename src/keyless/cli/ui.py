"""`keyless ui`: a page in the browser to link, look, answer and link again."""

from __future__ import annotations

import _thread
import os
import sys
import threading
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from keyless.cli.app import FAILURE, app, main, say

__all__ = ["ui", "work"]


@app.command(help_epilogue="Example: `keyless ui`")
def ui(
    place: Path = Path(),
    /,
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 0,
    no_browser: Annotated[bool, Parameter(name="--no-browser", negative="", show_default=False)] = False,
    max_upload: Annotated[float, Parameter(validator=Number(gt=0))] = 500,
) -> None:
    """Open a page in the browser, on this machine alone: link tables, look at the result, answer questions, link again.

    Files can be dropped onto the page or picked from the folder. Results are plain run folders in it, as
    `keyless link --out` writes them. The address that is printed lets one browser in, once. Ctrl-C ends the page; a run
    that is at work then can be continued after the next start. Needs `pip install "keyless[ui]"`.

    Args:
        place: Folder with the tables, or a run to open for review. The page sees nothing outside the folder; for a run
            that is the folder you are in, or the one around the run.
        port: Port on 127.0.0.1; 0 takes a free one.
        no_browser: Print the address only.
        max_upload: Megabytes that a file dropped onto the page may have.
    """
    from keyless.ui import open_page

    run = None
    if (place / "run.json").is_file():
        run = place.resolve()
        place = Path.cwd() if run.is_relative_to(Path.cwd()) and run != Path.cwd() else run.parent
    open_page(place, run=run, port=port, browser=not no_browser, max_upload=int(max_upload * 1e6), say=say)


def work() -> None:
    """Run the words of the process as a child of the page: stop when told to on stdin, end when stdin does."""
    threading.Thread(target=_heed, daemon=True).start()
    main()


def _heed() -> None:
    waiting = b""
    while heard := os.read(0, 1024):
        waiting += heard
        while b"\n" in waiting:
            line, waiting = waiting.split(b"\n", 1)
            if line == b"stop":
                _thread.interrupt_main()
    # The page is gone. What was finished is kept, and nobody waits for the rest.
    sys.stderr.flush()
    os._exit(FAILURE)
