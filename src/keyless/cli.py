"""The command line: parse, call, print.

Results go to stdout, talk and progress to stderr. Everything heavy is imported inside the command that needs it, so
that `keyless --help` answers at once. Exit codes: 0 done, 1 failure, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

import keyless
from keyless.errors import InputError, KeylessError

__all__ = ["app", "main"]

FAILURE, WRONG_USE, INTERRUPTED = 1, 2, 130

app = App(
    name="keyless",
    version=keyless.__version__,
    help="Join tables that share no key: recover which row belongs to which from the numbers alone.",
    help_epilogue="Example: `keyless demo`",
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


@app.command(help_epilogue="Example: `keyless demo --seed 3`")
def demo(*, seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0) -> None:
    """Link two tables whose answer is known, and count the wrong rows.

    Measurements of 569 tumours come as two tables without a common column: means and errors of ten features in one,
    their worst values in the other. The rows of the second are shuffled; keyless gets the raw numbers and nothing else.

    Args:
        seed: Draws the row order.
    """
    import numpy as np
    from rich.console import Console
    from rich.progress import Progress

    from keyless.datasets import load_shuffled_tumours
    from keyless.linker import link
    from keyless.metrics import hamming

    tables, truth = load_shuffled_tumours(random_state=seed)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("linking", total=None)

        def show(stage: str, step: int, total: int, objective: float) -> None:
            progress.update(
                task, description=f"{stage}, objective {objective:.3f}", completed=step, total=total or None
            )

        links = link(tables, random_state=seed, callback=show)
    name = next(iter(truth))
    found = links.found[name]
    wrong = hamming(found.permutation, truth[name])
    rows = len(found.permutation)
    sure = found.probability >= 0.9
    right = found.permutation == truth[name]
    lines = [
        f"Two tables about the same {rows} tumours, {' and '.join(str(t.shape[1]) for t in tables.values())} columns,"
        " none in common; rows shuffled.",
        "",
        f"Verdict: {found.evidence.verdict} ({found.evidence.score:.1f} nats a row; chance reaches "
        f"{max(found.evidence.null_scores, default=float('nan')):.1f}, telling rows apart takes "
        f"{found.evidence.needed:.1f}).",
        f"Expected right, by its own probabilities: {found.probability.sum():.0f} of {rows}.",
        f"Known answer: {rows - wrong} of {rows} right; of the {int(sure.sum())} it is 90% sure of, "
        f"{int(right[sure].sum())}.",
        f"Median margin to the second best: {np.median(found.margin):.1f} nats.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
