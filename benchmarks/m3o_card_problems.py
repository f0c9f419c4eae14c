"""Problems of the paper's table 1 for `m3o_on_card.py`, and its results as finished cells of `keyless reproduce`.

    python benchmarks/m3o_card_problems.py prepare --seeds 10 --out reproduced/card/problems.npz
    python benchmarks/m3o_card_problems.py collect reproduced/card/results --out reproduced
    keyless reproduce table1 --seeds 10 --out reproduced
    python benchmarks/bench_m3o_card.py                       # compares with runs on the processor

Tables, starts and rules are those that `keyless reproduce table1` would use. The card gets the tables, never their
answer; it returns the last estimate of every run. keyless reads the permutations off it and counts wrong rows here.
`collect` leaves out runs with a step whose rotations did not settle: `keyless reproduce` takes them on the processor.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keyless.arrays import random_generator
from keyless.datasets import ShuffledTables
from keyless.errors import CONVERGED, Status
from keyless.paper import M3O, Printed, Released
from keyless.paper.experiments.base import ExperimentRun
from keyless.paper.experiments.synthetic import draw_released, m3o, wrong_rows
from keyless.paper.experiments.table1 import SETTINGS, cell_key, m3o_methods
from keyless.paper.m3o import M3OState
from keyless.paper.problem import CorrespondenceProblem, to_problem

CHECKED = 300
"""Steps of the trajectories that the card is compared with."""

CHECKED_TOLERANCE = 1e-9
"""Share of the objective; the least fall that counts as progress in these trajectories. The printed rule counts any
fall: where the objective has come to rest at an ε, rounding decides when ε is halved, and two programs differ."""

CHECKED_RUNS = (("released, λ = 0.55", 0), ("printed", 0), ("printed", 2), ("released, λ = 0.55", 3))
"""Which runs, by method and number of the setting: data set and start are 0."""


def rule(solver: M3O, rows: int) -> dict[str, Any]:
    """Return what `m3o_card_batch.Rule` takes, read off the solver.

    Args:
        solver: `M3O.released()` or `M3O.printed()`, or one with another λ.
        rows: of the tables.
    """
    released = solver.objective == "tables"
    steps = solver.step_rule
    # What the batched steps do is one of two rules; anything else must not pass for one of them.
    expected = M3O.released(penalty=solver.penalty) if released else M3O.printed(penalty=solver.penalty)
    if solver != expected or not isinstance(steps, Released if released else Printed):
        raise ValueError(f"only the released and the printed rule can be run in a batch; found {solver}")
    return {
        "penalty": solver.penalty,
        "hard": solver.prox == "hard",
        "released": released,
        "omega": steps.omega,
        "cap": steps.cap,
        "entropic": solver.objective == "entropic",
        "epsilons": list(solver.entropy.path(1.0)),
        "patience": solver.patience,
        "tolerance": solver.tolerance,
        "diffuseness_tolerance": solver.diffuseness_tolerance,
        "give_up": solver.give_up,
        "refilled": solver.first_estimate == "refilled",
        "sinkhorn_tolerance": solver.sinkhorn_tolerance / (rows**0.5 if solver.sinkhorn_residual == "total" else 1.0),
        "sinkhorn_max_iter": solver.sinkhorn_max_iter,
        "max_iter": solver.max_iter,
    }


def planned(seeds: int) -> list[dict[str, Any]]:
    """Return all runs of M³O in the table: key, number of the setting, method, data set, start."""
    return [
        {"key": cell_key(method, name, data, start), "setting": number, "method": method, "data": data, "start": start}
        for number, name in enumerate(SETTINGS)
        for place, method in enumerate(m3o_methods(name))
        for data in range(seeds)
        for start in range(seeds if place == 0 else 1)
    ]


def drawn(setting: int, data: int) -> Any:
    """Return tables and answer of a data set."""
    return draw_released(data, **list(SETTINGS.values())[setting][1])


def solver_of(run: dict[str, Any]) -> M3O:
    """Return the solver of a planned run."""
    preset, penalty = m3o_methods(list(SETTINGS)[run["setting"]])[run["method"]]
    return m3o(preset, penalty=penalty)


def trajectory(run: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return objective, ε and step sizes of the first steps of a run, by keyless."""
    problem = to_problem(drawn(run["setting"], run["data"]).tables)
    return first_steps(solver_of(run), problem, steps, random_state=run["start"])


def first_steps(solver: M3O, problem: CorrespondenceProblem, steps: int, **start: Any) -> dict[str, Any]:
    """Return objective, ε and step sizes of the first steps, by keyless.

    Args:
        solver: what to do; a fall of the objective by less than `CHECKED_TOLERANCE` does not count as progress.
        problem: the tables.
        steps: how many.
        start: as for `M3O.init`.
    """
    solver = replace(solver, tolerance=max(solver.tolerance, CHECKED_TOLERANCE))
    state = solver.init(problem, **start)
    found: dict[str, list[Any]] = {"objective": [], "epsilon": [], "step_sizes": []}
    for _ in range(steps):
        state = solver.step(problem, state)
        for name, values in found.items():
            values.append(getattr(state.record, name))
    return found


def prepare(seeds: int, out: Path) -> None:
    """Write the problems, and trajectories to compare with."""
    runs = planned(seeds)
    arrays: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    for number in range(len(SETTINGS)):
        for data in range(seeds):
            tables = list(drawn(number, data).tables.values())
            arrays[f"tables {number} {data}"] = np.hstack(tables)
            arrays[f"widths {number}"] = [table.shape[1] for table in tables]
        shape = arrays[f"tables {number} 0"].shape
        for start in range(seeds):
            arrays[f"normals {number} {start}"] = random_generator(start).standard_normal(shape)
    for run in runs:
        rows = len(arrays[f"tables {run['setting']} 0"])
        rules[run["method"]] = rule(solver_of(run), rows)
    checks = []
    for method, number in CHECKED_RUNS:
        (run,) = (
            run for run in runs if (run["method"], run["setting"], run["data"], run["start"]) == (method, number, 0, 0)
        )
        for name, values in trajectory(run, CHECKED).items():
            arrays[f"{name} {len(checks)}"] = values
        checks.append(run["key"])
    write(out, arrays, runs=runs, rules=rules, checks=checks)


def write(out: Path, arrays: dict[str, Any], **plan: Any) -> None:
    """Write arrays and plan as `m3o_on_card.Problems` reads them.

    Args:
        out: the file.
        arrays: tables, widths, normal numbers of the starts, and trajectories.
        plan: the runs, the rules by name, and the keys of the runs whose trajectories are there.
    """
    arrays = arrays | {"plan": json.dumps(plan | {"checked_tolerance": CHECKED_TOLERANCE})}
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **arrays)
    print(f"{len(plan['runs'])} runs, {out.stat().st_size / 1e6:.1f} MB, written to {out}")


def judged(run: dict[str, Any], result: dict[str, Any], estimate: Any) -> dict[str, Any]:
    """Return the cell of a run."""
    return judged_on(drawn(run["setting"], run["data"]), solver_of(run), result, estimate)


def judged_on(made: ShuffledTables, solver: M3O, result: dict[str, Any], estimate: Any) -> dict[str, Any]:
    """Return what a run found: keyless reads permutations and objective off the last estimate."""
    state = M3OState(
        estimate=estimate,
        estimate_nuclear_norm=result["nuclear_norm"],
        epsilons=(result["epsilon"],),
        penalties=(solver.penalty,),
    )
    status = CONVERGED if result["converged"] else Status("max_iter", "Stopped before settling.")
    found = solver.finish(to_problem(made.tables), state, (), status)
    return {
        "wrong": wrong_rows(found.permutations, made),
        "objective": found.objective,
        "steps": result["steps"],
        "converged": result["converged"],
        "device": result["device"],
    }


def finished(folder: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield key, result and last estimate of every run that `m3o_on_card.py` wrote into a folder."""
    results = json.loads((folder / "finished.json").read_text(encoding="utf-8"))["runs"]
    estimates: dict[str, Any] = {}
    for path in sorted(folder.glob("estimates-*.npz")):
        with np.load(path) as stored:
            estimates |= dict(stored)
    for key, result in results.items():
        yield key, result, estimates[key]


def collect(folders: list[Path], out: Path) -> None:
    """Write a cell for every run that is finished, but for those with a step whose rotations did not settle."""
    runs = {run["key"]: run for run in planned(10)}
    into = ExperimentRun(out, "table1")
    done, left_out = 0, []
    for folder in folders:
        for key, result, estimate in finished(folder):
            if result["troubles"]:
                left_out.append(f"{key} ({result['troubles']} of {result['steps']} steps)")
            else:
                into.cell(key, partial(judged, runs[key], result, estimate))
                done += 1
    print(f"{done} of {len(runs)} runs are finished cells in {into.folder}")
    if left_out:
        print("left to the processor, since rotations did not settle:", *left_out, sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("--seeds", type=int, default=10, help="data sets, and starts on each")
    preparing.add_argument("--out", type=Path, required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("folders", type=Path, nargs="+", help="what m3o_on_card.py wrote")
    collecting.add_argument("--out", type=Path, required=True, help="the --out of keyless reproduce")
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.seeds, arguments.out)
    else:
        collect(arguments.folders, arguments.out)


if __name__ == "__main__":
    main()
