"""`keyless fill`: Soft-Impute on one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from keyless.cli.app import app, say, write_out
from keyless.cli.inputs import check_files, check_out, open_tables
from keyless.cli.options import ReadingOptions
from keyless.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from keyless.arrays import NumpyArray
    from keyless.tables import Table

__all__ = ["fill"]

OutFormat: TypeAlias = Literal["same", "csv", "tsv", "xlsx"]


@app.command(help_epilogue="Example: `keyless fill ratings.csv --out filled.csv`")
def fill(
    table: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    out: Path | None = None,
    rank: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    penalty: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    out_format: OutFormat = "same",
    raw_cells: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    reading: ReadingOptions | None = None,
) -> None:
    """Fill the missing entries of one table with Soft-Impute.

    Columns are put on a common scale. A matrix of low rank is fitted to the observed entries, and fills the missing
    ones. Its rank and penalty are those that predict held-out entries best. Observed entries stay exactly as they are.

    Args:
        table: A table file.
        out: File for the filled table: .csv, .tsv, .xlsx or .parquet. Without it the table goes to stdout as text.
        rank: The largest rank allowed. Without it the rank is chosen from the data.
        penalty: Weight of the nuclear norm, for columns of variance 1. Without it the weight is chosen from the data.
        seed: Draws the held-out entries.
        out_format: `same` has the separator, decimal mark and encoding of the table given; `csv` and `tsv` have decimal
            points and UTF-8; `xlsx` needs a file that ends in .xlsx.
        raw_cells: Write text unchanged. Without this option, text that a spreadsheet would run as a formula gets a `'`
            in front.
        reading: How the file becomes a table.
    """
    from keyless import runs
    from keyless.tables import source_file

    reading = reading or ReadingOptions()
    check_files([table], reading, least=1)
    if out is not None:
        _check_ending(out, out_format)
        check_out(out, [source_file(table)])
        runs.check_file(out)
    (read,) = open_tables([table], reading)
    for note in read.notes:
        say(f"warning: {note}")
    filled = _frame(read, _filled(read, rank=rank, penalty=penalty, seed=seed))
    dialect = runs.dialect_of(read, out_format)
    if out is not None:
        dialect = runs.for_ending(dialect, out.suffix.lower())
    if out is None:
        write_out(runs.text_of(filled, dialect, tables=[read], raw_cells=raw_cells), data=True)
    elif out.suffix.lower() == ".parquet":
        runs.write_file(out, lambda path: runs.write_parquet(runs.typed(filled, [read]), path))
    else:
        runs.write_file(out, lambda path: runs.write_table(filled, path, dialect, tables=[read], raw_cells=raw_cells))
    gaps = int((~read.block.mask).sum())
    say(f"filled {gaps} of {read.block.mask.size} entries of {len(read.columns)} columns.")


def _check_ending(out: Path, out_format: OutFormat) -> None:
    from keyless import runs

    endings = (".csv", ".tsv", ".xlsx", ".parquet") if out_format == "same" else (f".{out_format}",)
    if out.suffix.lower() not in endings:
        raise InputError(f"--out: must end in {' or '.join(endings)}; found {out}.")
    if out.suffix.lower() == ".xlsx":
        runs.check_format("xlsx")


def _filled(table: Table, *, rank: int | None, penalty: float | None, seed: int) -> NumpyArray:
    """Fill the table's numbers, each column scaled by what is observed of it."""
    import numpy as np

    import keyless

    values = np.where(table.block.mask, table.block.values, np.nan)
    if table.block.mask.all():
        return values
    most = min(values.shape)
    if rank is not None and rank > most:
        raise InputError(f"--rank: must be at most {most}, the smaller side of the table; found {rank}.")
    filler = keyless.SoftImpute(rank=rank, penalty=penalty, random_state=seed)
    filled: NumpyArray = filler.fit_transform(values)
    say(f"rank {filler.rank_}, penalty {filler.penalty_:.3g}.")
    return filled


def _frame(table: Table, values: NumpyArray) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    from keyless import runs

    if table.form == "cells":
        # One array of text instead of a column each: tables of many columns are written ten times as fast.
        whole = table.native if table.block.mask.all() else table.rebuilt(values, np.arange(len(values)))
        made = pd.DataFrame(
            np.column_stack([np.asarray(whole[name].array, dtype=object) for name in whole.columns]),
            columns=whole.columns,
        )
    else:
        made = table.rebuilt(values, np.arange(len(values)))
    frame = made if isinstance(made, pd.DataFrame) else pd.DataFrame(made, columns=list(table.all_columns))
    # The long layout names its rows beside the columns.
    return frame if table.index is None else runs.with_ids(frame, table.row_ids, name=str(table.index.name))
