"""The command line: parse, call, print.

Results go to stdout or `--out`, talk and progress to stderr. Everything heavy is imported inside the command that needs
it, so that `keyless --help` answers at once. Exit codes: 0 done (for `link` and `check`: linked), 1 failure, 2 wrong
use, 3 uncertain or unlinkable, 130 interrupted with the best so far saved.
"""

from __future__ import annotations

# The commands put themselves on the app when they are imported, in the order of the help text.
from keyless.cli import demo, link, check, explain, fill, inspect, report, ui, reproduce  # noqa: F401 isort: skip
from keyless.cli.app import app, main

__all__ = ["app", "main"]
