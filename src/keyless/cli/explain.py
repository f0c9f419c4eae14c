"""`keyless explain`: why rows are linked, from the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keyless.cli.app import app, write_out
from keyless.cli.words import print_json
from keyless.errors import printable

if TYPE_CHECKING:
    from keyless.answers import Explanation, RowExplanation

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
    from keyless.answers.explaining import explain_all, explain_row
    from keyless.errors import InputError

    if partner is not None and row is None:
        raise InputError("--partner: must come with --row, the row of the reference that it is compared with.")
    links = runs.read_run(run).links
    if row is None:
        _tell_all(explain_all(links, table=table), as_json=json)
    else:
        _tell_row(explain_row(links, row, table=table, partner=partner), as_json=json)


def _tell_all(explained: Explanation, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "verdict": explained.verdict,
                "links": {
                    name: {
                        "ratio": ratio,
                        "told_apart": explained.told_apart[name],
                        "rows": explained.rows[name],
                        "columns": explained.columns[explained.columns["link"] == name].to_dict("records"),
                    }
                    for name, ratio in explained.ratio.items()
                },
            }
        )
        return
    lines = []
    for name, ratio in explained.ratio.items():
        lines += [
            f"Link to {printable(name)}: {ratio:.1f} nats a row over {explained.rows[name]} matches, of which "
            f"{100 * explained.told_apart[name]:.0f}% are told apart from each other.",
            f"  {'nats':>7}  {'without':>8}  {'told apart':>10}  column",
        ]
        lines += [
            f"  {one['contribution']:+7.2f}  {-one['drop_cost']:+8.2f}  {100 * one['told_apart']:9.0f}%  "
            f"{printable(one['table'])}: {printable(one['column'])}"
            for one in explained.columns[explained.columns["link"] == name].to_dict("records")
        ]
        lines.append(
            "  nats: what the column contributes; without: how the sum changes without the column; told apart: matches "
            "that are still told apart from each other without it."
        )
    if explained.verdict != "linked":
        lines.append(f"The tables are {explained.verdict}: this explains matches that may all be wrong.")
    write_out("\n".join(lines) + "\n")


def _tell_row(explained: RowExplanation, *, as_json: bool) -> None:
    from keyless.answers.showing import stated

    if as_json:
        print_json(
            {
                "reference_id": explained.reference_id,
                "links": {
                    name: {
                        "row_id": pair.row_id,
                        "matched": pair.matched,
                        "probability": pair.probability,
                        "ratio": pair.log_ratio,
                        "cells": pair.cells.to_dict("records"),
                    }
                    for name, pair in explained.pairs.items()
                },
            }
        )
        return
    lines = []
    for name, pair in explained.pairs.items():
        what = "is matched with" if pair.matched else "is not matched with"
        lines += [
            f"Row {printable(explained.reference_id)} {what} {printable(pair.row_id)} of {printable(name)}: "
            f"probability {stated(pair.probability)}, ratio {pair.log_ratio:+.1f} nats.",
            f"  {'nats':>6}  {'actual':>12}  {'predicted':>22}  column",
        ]
        ordered = pair.cells.sort_values("contribution", key=abs, ascending=False, kind="stable")
        for cell in ordered.to_dict("records"):
            guess = printable(pair.guess(cell))
            lines.append(
                f"  {cell['contribution']:+6.1f}  {_short(cell['actual']):>12}  {guess:>22}  "
                f"{printable(cell['table'])}: {printable(cell['column'])}"
            )
    write_out("\n".join(lines) + "\n")


def _short(value: Any) -> str:
    from keyless.answers.showing import shown

    return printable(shown(value))
