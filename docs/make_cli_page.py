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

Results go to stdout or to `--out`. Messages and progress go to stderr. Exit codes:

| code | |
|---|---|
| 0 | done; for `link` and `check`: linked |
| 1 | failure: something could not be read, written or computed |
| 2 | wrong use: an option or a file cannot be used as it was given |
| 3 | `link` and `check`: uncertain or unlinkable |
| 130 | interrupted; for `link`: the best so far is saved |

Every problem is told in one line, even if it is a mistake in keyless itself. `KEYLESS_DEBUG=1` in the environment shows
where such a mistake happened.
"""

FOLDER = """## The folder that `keyless link --out` writes

| file | |
|---|---|
| `matches.csv` | `reference_id, table, row_id, probability, margin`, one line per reference row and table |
| `joined.csv`, `joined.parquet` | one wide table, with ids and probabilities of partners; empty where there is none |
| `completed/<table>.csv` | each table in the reference's order, filled in |
| `completed/<table>.filled.csv` | a table of the same shape: 1 where an entry was filled in, 0 elsewhere |
| `report.html` | the report, one page that needs nothing else |
| `run.json` | verdict, evidence, choices, versions, seed, seconds per stage, digests of the inputs |
| `config.toml` | every option; `keyless link --config run/config.toml` runs it again |
| `links.keyless` | the result, for `keyless.load`; all the others can be made from it again |

Ids are text, exactly as given; `row_id` is empty where there is no partner. A file has the name of its table, with `_`
for everything that is not a letter or a digit; `run.json` says which file belongs to which table.

The folder is first written under another name and then renamed in one step: after a kill there is the old folder or the
new one, never a part of one. Only an empty folder, or an earlier run with no other files in it, is replaced; anything
else is refused. While a run works, `run.unfinished/` beside it keeps the finished stages. After a kill, the same
command with `--resume` continues from there, and gives the same answer as a run that was not killed. It refuses if
options or the content of the inputs have changed. Answers of a review (`pairs.csv`, see [ui.md](ui.md)) stay in a run
that is continued; a run that has some is not replaced otherwise.

Tables made of text files have the separator, the decimal mark and the encoding of the file: `matches` and `joined`
those of the reference, `completed` those of each table. Files with tabs become `.tsv` files, spreadsheets become
`.xlsx` files; `--out-format` asks for another format. Text with characters that the encoding lacks is written in UTF-8.
On stdout text is always UTF-8.

A spreadsheet runs cells that begin with `=`, `+`, `-` or `@` as formulas. Such text gets a `'` in front, unless it is a
number; the same holds for text that begins with blanks, invisible characters or wide forms of these signs. In `.xlsx`
files such text is stored as text, and nothing is added. `--raw-cells` writes text unchanged. In `joined.parquet` text
is always unchanged.

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
or a unit that the whole column has, and parentheses for negative ones. A dash means missing among numbers and dates. If
a column can be read in two ways, keyless asks: `12,650` may be 12.65 (`--decimal ,`) or 12650 (`--decimal .`).
`--decimal` is used for such columns only; in other columns the numbers themselves show the mark. `12 %` is the number
12.

Lines of a title, column names of two lines (merged names, units), blank lines, totals that add up, and notes below the
table are recognised, and a message names them. If totals do not add up, keyless asks. `--skip`, `--header` and
`--footer` say how many lines they are. `--skip lab:3` is for one table; `--header`, `--footer`, `--decimal` and
`--encoding` can be given for one table in the same way.
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
