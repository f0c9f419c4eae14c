"""`keyless demo`: the main job on a bundled example."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from keyless.cli.app import DONE, INTERRUPTED, app, say, write_out
from keyless.cli.inputs import check_report
from keyless.cli.progress import watched
from keyless.cli.words import information

__all__ = ["demo"]


@app.command(help_epilogue="Example: `keyless demo --seed 3`")
def demo(*, seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0, report: Path | None = None) -> int:
    """Link two tables whose answer is known, and count the wrong rows.

    The two tables are measurements of 569 tumours and have no column in common: one has means and errors of ten
    features, the other their worst values. Some entries are removed, and the rows of the second table are shuffled.
    keyless gets the numbers and nothing else.

    Args:
        seed: Draws the row order and the entries removed.
        report: The HTML file to write the report to. Without it the report goes into a new temporary folder.
    """
    import numpy as np

    from keyless import runs
    from keyless.datasets import load_shuffled_tumours
    from keyless.linker import link
    from keyless.metrics import hamming

    if report is not None:
        check_report(report, [])
    tables, truth = load_shuffled_tumours(observed=0.97, random_state=seed)
    with watched() as watch:
        links = link(tables, random_state=seed, callback=watch)
        place = Path(tempfile.mkdtemp(prefix="keyless-")) / "report.html" if report is None else report
        runs.write_report(links, place)
    name = next(iter(truth))
    found = links.found[name]
    wrong = hamming(found.permutation, truth[name])
    rows = len(found.permutation)
    sure = found.probability >= 0.9
    right = found.permutation == truth[name]
    missing = sum(int((~table.block.mask).sum()) for table in links.tables)
    lines = [
        f"Two tables about the same {rows} tumours, {' and '.join(str(t.shape[1]) for t in tables.values())} columns,"
        f" none in common; rows shuffled, {missing} entries removed.",
        "",
        f"Verdict: {found.evidence.verdict}. {information(found)}",
        f"By the stated probabilities, {found.expected_right} of {rows} matches are expected right.",
        f"By the known answer, {rows - wrong} of {rows} matches are right, and {int(right[sure].sum())} of the "
        f"{int(sure.sum())} matches that are stated with 90% or more.",
        f"The median match is {np.median(found.margin):.1f} nats better than the best other candidate of its row.",
        "",
        f"Report: {place}",
    ]
    write_out("\n".join(lines) + "\n")
    if watch.interrupted:
        say("interrupted; this is the best so far.")
        return INTERRUPTED
    return DONE
