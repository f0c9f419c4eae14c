"""Does the authors' script, with its own seed, also give the other rows of table 1?

    python benchmarks/bench_m3o_script.py --prepare reproduced/script/problems.npz                # with keyless
    python benchmarks/m3o_on_card.py check reproduced/script/problems.npz --most 10 --seconds 1   # with torch, a card
    python benchmarks/m3o_on_card.py run reproduced/script/problems.npz --out reproduced/script/results --seconds 540
    python benchmarks/bench_m3o_script.py --out benchmarks/results/m3o_script.json                # with keyless

The script holds row 1 of the paper's table 1 alone. Widths and share of missing entries are variables of it, and so are
its seed and λ. Here they are changed to those of the other rows and of figure 1, and the seed stays the same: data set
and ten starts are drawn with Matlab's random numbers, and eight λ are tried. The card returns the last estimate of
every run; keyless reads the permutations off it and counts wrong rows.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from common import report
from keyless.datasets import ShuffledTables
from keyless.paper import M3O
from keyless.paper.experiments.released_data import SCRIPT_SEED, script_starts, script_tables
from keyless.paper.experiments.synthetic import RELEASED_PENALTY, m3o, m3o_run, spread
from keyless.paper.experiments.table1 import SETTINGS, cell_key
from keyless.paper.problem import to_problem
from m3o_card_problems import CHECKED, finished, first_steps, judged_on, rule, write

STARTS = 10

PENALTIES = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65)
"""λ: the paper names 0.4, 0.5 and 0.6, the script 0.55; the others are as far apart as these four are."""

RESULTS = Path("reproduced/script/results")

FIGURE_ONE = "(100; 60, 40), 80%"

CASES: dict[str, tuple[str | None, dict[str, Any]]] = {
    **SETTINGS,
    FIGURE_ONE: (None, {"column_counts": (60, 40), "observed": 0.8}),
}
"""What the paper prints, and how the script draws the tables; of figure 1 the paper prints no such number."""


def planned() -> list[dict[str, Any]]:
    """Return all runs: key, number of the setting, method, λ, data set, start."""
    return [
        {
            "key": cell_key(method, name, SCRIPT_SEED, start),
            "setting": number,
            "method": method,
            "penalty": penalty,
            "data": SCRIPT_SEED,
            "start": start,
        }
        for number, name in enumerate(CASES)
        for penalty, method in ((penalty, f"released, λ = {penalty}") for penalty in PENALTIES)
        for start in range(STARTS)
    ]


def solver_of(run: dict[str, Any]) -> M3O:
    """Return the solver of a planned run."""
    return m3o("released", penalty=run["penalty"])


def drawn() -> list[tuple[ShuffledTables, list[Any]]]:
    """Return data set and starts of every setting."""
    made = [script_tables(**settings) for _, settings in CASES.values()]
    return [(tables, script_starts(tables, count=STARTS)) for tables in made]


def prepare(out: Path) -> None:
    """Write the problems, and the first steps of one run of each setting to compare with."""
    arrays: dict[str, Any] = {}
    runs, checks = planned(), []
    for number, (made, starts) in enumerate(drawn()):
        tables = list(made.tables.values())
        whole = np.hstack(tables)
        arrays[f"tables {number} {SCRIPT_SEED}"] = whole
        arrays[f"widths {number}"] = [table.shape[1] for table in tables]
        for place, start in enumerate(starts):
            # The card multiplies normal numbers by the mean of the observed entries; the script has that of all.
            arrays[f"normals {number} {place}"] = start / np.nanmean(np.abs(whole))
        (run,) = (
            run for run in runs if (run["setting"], run["penalty"], run["start"]) == (number, RELEASED_PENALTY, 0)
        )
        for name, values in first_steps(solver_of(run), to_problem(made.tables), CHECKED, start=starts[0]).items():
            arrays[f"{name} {len(checks)}"] = values
        checks.append(run["key"])
    rows = len(arrays[f"tables 0 {SCRIPT_SEED}"])
    write(out, arrays, runs=runs, rules={run["method"]: rule(solver_of(run), rows) for run in runs}, checks=checks)


def collected(card: list[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a line for each setting and λ, and all runs."""
    runs = {run["key"]: run for run in planned()}
    made = drawn()
    names = list(CASES)
    cells: list[dict[str, Any]] = []
    for key, result, estimate in chain.from_iterable(finished(folder) for folder in card):
        run = runs.pop(key)
        tables, starts = made[run["setting"]]
        if result["troubles"]:
            # Rotations on the card did not settle in some steps, so that the run is taken again on the processor.
            found = m3o_run(tables, starts[run["start"]], penalty=run["penalty"])
        else:
            found = judged_on(tables, solver_of(run), result, estimate)
        cells.append(
            {"setting": names[run["setting"]], "penalty": run["penalty"], "seed of data set": SCRIPT_SEED}
            | {"start": run["start"]}
            | found
        )
    if runs:
        raise SystemExit(f"{len(runs)} runs have not ended, such as {next(iter(runs))}")
    cells.sort(key=lambda cell: (names.index(cell["setting"]), cell["penalty"], cell["start"]))
    rows = []
    for name, (paper, _) in CASES.items():
        for penalty in PENALTIES:
            found = [cell for cell in cells if (cell["setting"], cell["penalty"]) == (name, penalty)]
            wrong = [cell["wrong"] for cell in found]
            steps = [cell["steps"] for cell in found]
            rows.append(
                {
                    "setting": name,
                    "λ": str(penalty),
                    "the paper": paper,
                    "wrong rows": spread(wrong),
                    "exact": f"{sum(value == 0 for value in wrong)} of {len(wrong)}",
                    "steps": f"{min(steps)} to {max(steps)}",
                    "same as printed": None if paper is None else "yes" if spread(wrong) == paper else "no",
                }
            )
    return rows, cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, help="write the problems here, and nothing else")
    parser.add_argument("--card", type=Path, nargs="+", default=[RESULTS], help="what m3o_on_card.py wrote")
    parser.add_argument("--out", type=Path, help="write the results here as JSON, all runs included")
    arguments = parser.parse_args()
    if arguments.prepare is not None:
        prepare(arguments.prepare)
        return
    rows, cells = collected(arguments.card)
    report(
        "Does the authors' script, with its own seed, also give the other rows of table 1?",
        rows,
        settings={
            "rule": "as released",
            "seed of data set and starts": SCRIPT_SEED,
            "starts": STARTS,
            "card": ", ".join(sorted({cell["device"] for cell in cells if "device" in cell})),
            "runs taken again on the processor": sum("device" not in cell for cell in cells),
        },
    )
    if arguments.out is not None:
        document = json.loads(arguments.out.read_text(encoding="utf-8")) | {"runs": cells}
        arguments.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
