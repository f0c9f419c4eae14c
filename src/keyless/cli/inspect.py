"""`keyless inspect`: what would be used of each table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keyless.cli.app import app, write_out
from keyless.cli.inputs import check_files, open_tables
from keyless.cli.options import ReadingOptions, TableFiles, from_file
from keyless.cli.words import print_json
from keyless.errors import printable

if TYPE_CHECKING:
    from keyless.tables import Table

__all__ = ["inspect"]


@app.command(help_epilogue="Example: `keyless inspect clinic.csv lab.csv`", config=from_file)
def inspect(
    tables: TableFiles = (),
    *,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    config: Path | None = None,
    reading: ReadingOptions | None = None,
) -> None:
    """Say what would be used of each table, without linking.

    It prints how many rows each table has. For each column it prints what kind it counts as, why, and how many of its
    entries are observed. At the end it prints how much memory linking would need.

    Args:
        tables: One or more table files.
        json: Print it as JSON.
        config: TOML file of options. An option on the command line overrides it.
        reading: How files become tables.
    """
    del config  # its options are already in the others
    reading = reading or ReadingOptions()
    check_files(tables, reading, least=1)
    # Also tables too large to be linked are looked at: that is what this command is for.
    read = open_tables(tables, reading, to_link=False)
    facts = [_facts(table) for table in read]
    memory = _memory(read)
    if json:
        print_json({"tables": facts} | memory)
        return
    lines = [line for fact in facts for line in _lines(fact)]
    if len(facts) > 1:
        from keyless.tables import in_words

        needed, available = (None if size is None else in_words(size) for size in memory.values())
        lines.append(
            f"Linking them would need about {needed} of memory"
            + (f"; {available} are available." if available else ".")
        )
    write_out("\n".join(lines) + "\n")


def _facts(table: Table) -> dict[str, Any]:
    observed = dict(zip(table.columns, table.block.mask.mean(axis=0).tolist(), strict=True))
    columns = [
        {
            "name": use.name,
            "kind": use.kind,
            "reason": use.reason,
            "used_as": list(use.columns),
            "observed": observed[use.columns[0]] if use.columns else None,
        }
        for use in table.uses
    ]
    return {
        "name": table.name,
        "rows": table.block.shape[0],
        "columns_used": table.block.shape[1],
        "observed": float(table.block.mask.mean()),
        "named_by": table.id_column if table.index is None else str(table.index.name),
        "notes": list(table.notes),
        "columns": columns,
    }


def _lines(fact: dict[str, Any]) -> list[str]:
    kinds = Counter(column["kind"] for column in fact["columns"])
    width = max((len(printable(column["name"])) for column in fact["columns"]), default=0)
    width = min(width, 40)
    kind_width = max((len(kind) for kind in kinds), default=0)
    lines = [
        f"{printable(fact['name'])}: {fact['rows']} rows, {len(fact['columns'])} columns "
        f"({', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}); "
        f"{fact['observed']:.1%} of the entries used are observed"
    ]
    for column in fact["columns"]:
        name = printable(column["name"])
        share = "" if column["observed"] is None else f", {column['observed']:.1%} observed"
        lines.append(f"  {name:<{width}}  {column['kind']:<{kind_width}}  {printable(column['reason'])}{share}")
    named = "numbers from 0" if fact["named_by"] is None else f"column {fact['named_by']!r}"
    notes = (f"  Note: {printable(note)}." for note in fact["notes"])
    return [*lines, f"  Rows are named by {printable(named)}.", *notes, ""]


def _memory(tables: tuple[Table, ...]) -> dict[str, int | None]:
    from keyless.tables import available_memory, memory_needed

    return {
        "memory_needed": memory_needed([table.block.shape for table in tables]),
        "memory_available": available_memory(),
    }
