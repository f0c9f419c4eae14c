"""Write docs/cli.md from the help texts of the command line.

Run it after a change to a help text: `python docs/make_cli_page.py`. A test compares the page with what it would write.
"""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any, get_args

from keyless.cli import app

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).with_name("cli.md")

START = """# The command line

Written by `docs/make_cli_page.py` from the help texts; `keyless COMMAND --help` says the same.

Results go to stdout or to `--out`, talk and progress to stderr. Exit codes:

| code | |
|---|---|
| 0 | done; for `link` and `check`: linked |
| 1 | failure: something could not be read, written or computed |
| 2 | wrong use: options or files that cannot be meant so |
| 3 | `link` and `check`: uncertain or unlinkable |
| 130 | interrupted; for `link`: the best so far is saved |

Trouble is told in one line. A mistake in keyless itself is, too; `KEYLESS_DEBUG=1` in the environment shows where it
happened.
"""

FOLDER = """## The folder that `keyless link --out` writes

| file | |
|---|---|
| `matches.csv` | `reference_id, table, row_id, probability, margin`, one line per reference row and table |
| `joined.csv`, `joined.parquet` | one wide table in the reference's order, filled in |
| `completed/<table>.csv` | each table in the reference's order, filled in |
| `completed/<table>.filled.csv` | the same cells: 1 where an entry was filled in, 0 elsewhere |
| `report.html` | the report, one page that needs nothing else |
| `run.json` | verdict, evidence, choices, versions, seed, seconds per stage, digests of the inputs |
| `config.toml` | every option; `keyless link --config run/config.toml` runs it again |
| `links.keyless` | the result, for `keyless.load`; all the others can be made from it again |

Ids are text, exactly as given; `row_id` is empty where there is no partner. In file names, letters and digits of
a table's name stay and anything else becomes `_`; `run.json` says which file is which table's.

The folder is written beside its place and then put there in one step, so a killed run leaves the old one or the new
one. Only an empty folder or an earlier run with no other files in it is replaced; anything else is refused. While a run
works, `run.unfinished/` beside it keeps the stages that are finished: after a kill, the same command with `--resume`
continues from there and gives the answer of an unbroken run. It refuses when options or the content of inputs changed.

Tables made of text files have the separator, the decimal mark and the encoding of the file: `matches` and `joined`
those of the reference, `completed` those of each table. Tabs make `.tsv` files, spreadsheets `.xlsx` files;
`--out-format` asks for another format. Text that an encoding does not have goes to UTF-8. On stdout text is always
UTF-8.

A spreadsheet runs cells that begin with `=`, `+`, `-` or `@` as formulas. Such text gets a `'` in front, also where
blanks, hidden signs or full-width forms come first, unless it is a number; in `.xlsx` files it is stored as text, and
nothing is added. `--raw-cells` writes text as it is. In `joined.parquet` text is always as it was.

## Tables that can be read

| kind | |
|---|---|
| `.csv`, `.txt`, `.tsv`, `.tab` | text, also compressed (`.gz`, `.bz2`, `.xz`, `.zst`) |
| `.parquet`, `.pq` | Parquet, also compressed |
| `.xlsx`, `.ods` | a spreadsheet: `pip install "keyless[excel]"`; `book.xlsx::sheet` where it has several sheets |
| `.h5ad` | AnnData: `pip install "keyless[anndata]"` |
| `.db`, `.sqlite`, `.duckdb` | a database: `file.db::table`; DuckDB: `pip install "keyless[duckdb]"` |
| `-` | standard input: text or Parquet |

Numbers may have decimal commas, thousands divided by commas, points, blanks or apostrophes, a percent sign, a currency,
or a unit that the whole column has, and parentheses for negative ones. A dash means missing among numbers and dates.
What can be read in two ways is asked: `12,650` may be 12.65 (`--decimal ,`) or 12650 (`--decimal .`). `--decimal`
decides such columns alone; others say themselves what their mark is. `12 %` is the number 12.

Lines of a title, column names of two lines (merged names, units), blank lines, totals that add up, and notes below the
table are recognised and told; totals that do not add up are asked about. `--skip`, `--header` and `--footer` say how
many lines they are. `--skip lab:3` is for one table; `--header`, `--footer`, `--decimal` and `--encoding` do the same.
"""


def page() -> str:
    """Return the page."""
    commands = [name for name in app if not name.startswith("-")]
    return "\n".join([START, *(_command(name, app[name]) for name in commands), FOLDER])


def _command(name: str, command: Any) -> str:
    about = inspect.getdoc(command.default_command).partition("\nArgs:")[0].strip()
    lines = [f"## keyless {name}", "", about, "", f"{command.help_epilogue}", ""]
    arguments = [a for a in command.assemble_argument_collection(parse_docstring=True) if a.show]
    for title, group in itertools.groupby(sorted(arguments, key=_group), key=_group):
        if title and name != "link":
            lines += [f"{title}: the options of `keyless link` under that heading.", ""]
            continue
        members = list(group)
        lines += [f"| {title or 'option'} | |", "|---|---|"]
        lines += [f"| `{_names(a)}` | {_text(a)} |" for a in members]
        lines.append("")
    return "\n".join(lines)


def _group(argument: Any) -> str:
    name = next((group.name for group in argument.parameter.group or () if isinstance(group.name, str)), "")
    return "" if name in ("Parameters", "Arguments") else name


def _names(argument: Any) -> str:
    name = argument.name
    if argument.index is not None:
        return name.removeprefix("--").upper()
    is_flag = bool in (argument.hint, *get_args(argument.hint))
    return name if is_flag else f"{name} {_kind(argument.hint)}"


def _kind(hint: Any) -> str:
    choices = [choice for choice in get_args(hint) if isinstance(choice, str)]
    if choices:
        return "\\|".join(choices)
    kinds = [kind for kind in (hint, *get_args(hint)) if kind in (int, float, str, Path)]
    return {int: "NUMBER", float: "NUMBER", str: "TEXT", Path: "PATH"}[kinds[0]]


def _text(argument: Any) -> str:
    text = " ".join((argument.parameter.help or "").split())
    default = argument.field_info.default
    if isinstance(default, str | int) and not isinstance(default, bool):
        text += f" Default: `{default}`."
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
