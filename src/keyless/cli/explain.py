"""`keyless explain`: why rows are linked, from the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keyless.cli.app import app, write_out
from keyless.cli.words import print_json
from keyless.errors import InputError

if TYPE_CHECKING:
    from keyless.answers import Explanation, PairExplanation

__all__ = ["explain"]


@app.command(help_epilogue="Example: `keyless explain run/ --row 17`")
def explain(
    run: Path,
    /,
    *,
    row: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    table: str | None = None,
    partner: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Say why rows are linked: what each column contributed, in nats (4.6 nats are odds of 100 to 1).

    Without `--row` it prints which columns carry the link, and what dropping each of them would cost. With `--row` it
    prints for each column of both rows the actual value, the value that the other row predicts, and what the column
    says for (+) or against (−) the pair. These contributions add up to the log-likelihood ratio of the pair.

    Args:
        run: Folder written by `keyless link --out`.
        row: Id of a row of the reference.
        table: Explain the link to this table only.
        partner: Id of a row of that table: explain this pair instead of the match.
        json: Print it as JSON.
    """
    from keyless import runs
    from keyless.answers import RowExplanation

    if partner is not None and row is None:
        raise InputError("--partner: must come with --row, the row of the reference that it is compared with.")
    links = runs.read_run(run).links
    why = links.explain(table=table) if row is None else links.explain(row, table=table, partner=partner)
    if not json:
        write_out(f"{why.told()}\n")
    elif isinstance(why, RowExplanation):
        print_json({"reference_id": why.reference_id, "links": {k: _pair(one) for k, one in why.pairs.items()}})
    else:
        print_json({"verdict": why.verdict, "links": {name: _link(why, name) for name in why.ratio}})


def _pair(pair: PairExplanation) -> dict[str, Any]:
    return {
        "row_id": pair.row_id,
        "matched": pair.matched,
        "probability": pair.probability,
        "ratio": pair.log_ratio,
        "cells": pair.cells.to_dict("records"),
    }


def _link(why: Explanation, name: str) -> dict[str, Any]:
    return {
        "ratio": why.ratio[name],
        "told_apart": why.told_apart[name],
        "rows": why.rows[name],
        "columns": why.columns[why.columns["link"] == name].to_dict("records"),
    }
