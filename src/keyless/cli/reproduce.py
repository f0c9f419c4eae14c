"""`keyless reproduce`: a figure or table of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from keyless.cli.app import DONE, FAILURE, app, say, write_out
from keyless.cli.progress import watched
from keyless.errors import InputError, KeylessError

__all__ = ["reproduce"]


@app.command(help_epilogue="Example: `keyless reproduce sinkhorn --quick`")
def reproduce(
    name: str | None = None,
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False)] = False,  # noqa: A002 the word users type
    quick: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    seeds: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    out: Path = Path("reproduced"),
) -> int:
    """Run an experiment of the paper, and show the results of keyless and of an oracle beside it.

    Names: nuclear-norm, figure1, sweeps, table1, movielens, faces, sinkhorn; and, not from the paper, theory, ablation,
    applications. Each writes NAME.png, NAME.svg, NAME.csv, NAME.json and NAME.md into the folder and prints a Markdown
    table. Finished cells are kept in the folder: after a kill the same command goes on where it stopped.

    Args:
        name: The experiment.
        all: Run every experiment. One whose data are missing is left out, and the exit code is then 1.
        quick: Run the small form: minutes instead of hours.
        seeds: How many random starts or data sets to take instead of the experiment's own number.
        jobs: How many processes work at a time.
        out: The folder to write to.
    """
    from keyless.paper import experiments

    if all == (name is not None):
        raise InputError(f"name: give one experiment or --all. Choose one of {', '.join(experiments.NAMES)}.")
    code = DONE
    for chosen in experiments.NAMES if name is None else (name,):
        try:
            with watched() as watch:
                text = experiments.run_experiment(
                    experiments.get(chosen), out, quick=quick, seeds=seeds, jobs=jobs, callback=watch
                )
        except (KeylessError, OSError) as error:
            if name is not None:
                raise
            # One that lacks its data must not keep the others from running.
            say(f"{chosen} was not run: {error}")
            code = FAILURE
            continue
        write_out(text + "\n")
        say(f"{chosen} is in {out}.")
    return code
