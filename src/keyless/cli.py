"""The command line: parse, call, print.

Results go to stdout, talk and progress to stderr. Everything heavy is imported inside the command that needs it, so
that `keyless --help` answers at once. Exit codes: 0 done, 1 failure, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

import keyless
from keyless.errors import InputError, KeylessError

if TYPE_CHECKING:
    from keyless.solvers.m3o import M3OState

__all__ = ["app", "main"]

FAILURE, WRONG_USE, INTERRUPTED = 1, 2, 130

app = App(
    name="keyless",
    version=keyless.__version__,
    help="Join tables that share no key: recover which row belongs to which from the numbers alone.",
    help_epilogue="Example: `keyless demo --starts 1`",
    suppress_keyboard_interrupt=False,  # answered below
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code.

    Args:
        arguments: the words after `keyless`; those of the process by default.
    """
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except (CycloptsError, InputError) as error:
        return _complain(error, WRONG_USE)
    except BrokenPipeError:
        # Whoever read our output has gone: say nothing, also not when Python closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (KeylessError, OSError) as error:
        return _complain(error, FAILURE)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    return 0


def _complain(message: object, code: int) -> int:
    sys.stderr.write(f"keyless: {' '.join(str(message).split())}\n")
    return code


@app.command(help_epilogue="Example: `keyless demo --starts 1 --seed 3`")
def demo(
    *,
    starts: Annotated[int, Parameter(validator=Number(gte=1))] = 5,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
) -> None:
    """Shuffle a table whose answer is known, put it back in order, and count the wrong rows.

    Two tables of 100 rows, with 60 and 40 columns of one noisy low-rank matrix; 20 % of all entries are missing and the
    rows of the second table are shuffled. The paper's algorithm M³O starts from several random points and the result
    with the best objective is kept, without a look at the answer.

    Args:
        starts: How many random starts to try.
        seed: Draws the tables and the starts.
    """
    import numpy as np
    from rich.console import Console
    from rich.progress import Progress

    from keyless.datasets import make_shuffled_tables
    from keyless.metrics import hamming
    from keyless.solvers import M3O, DecayingEntropy
    from keyless.tables import to_problem

    generators = np.random.default_rng(seed).spawn(starts)
    tables, truth = make_shuffled_tables(100, (60, 40), rank=5, noise=0.1, observed=0.8, scale=True, random_state=seed)
    problem = to_problem(tables)
    # The authors' released settings; patience and tolerance are lower so that a start takes seconds.
    solver = M3O(
        penalty=0.55,
        prox="hard",
        step_rule="released",
        entropy=DecayingEntropy(initial=0.1),
        patience=30,
        tolerance=1e-4,
    )
    solutions = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("M³O", total=starts)
        for start, generator in enumerate(generators, start=1):

            def show(state: M3OState, start: int = start) -> None:
                if state.record is not None:
                    step, objective = state.record.iteration + 1, state.record.objective
                    progress.update(task, description=f"start {start}, step {step}, objective {objective:.3f}")

            solutions.append(solver.solve(problem, random_state=generator, callback=show))
            progress.advance(task)

    wrong = [hamming(solution.permutations[0], truth["table1"]) for solution in solutions]
    best = min(range(starts), key=lambda start: solutions[start].objective)
    lines = [
        f"Two tables of 100 rows, {tables['reference'].shape[1]} and {tables['table1'].shape[1]} columns, of one matrix"
        " of rank 5 with noise 0.1;",
        "20 % of the entries missing, the rows of table1 shuffled.",
        "",
        "start   objective   wrong rows   ended",
        *(
            f"{start + 1:5d}   {solution.objective:9.4f}   {wrong[start]:10d}   {solution.status.reason}"
            for start, solution in enumerate(solutions)
        ),
        "",
        f"Best objective: start {best + 1}, {wrong[best]} of 100 rows wrong.",
        f"Mean over {starts} starts: {np.mean(wrong):.1f} of 100 rows wrong. Chance gives 99.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
