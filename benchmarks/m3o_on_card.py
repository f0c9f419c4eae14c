"""All runs of M³O in the paper's table 1 at once, on a graphics card.

    python benchmarks/m3o_card_problems.py prepare --seeds 10 --out reproduced/card/problems.npz   # with keyless
    python benchmarks/m3o_on_card.py check reproduced/card/problems.npz --seconds 60               # with torch, a card
    python benchmarks/m3o_on_card.py run reproduced/card/problems.npz --out results --seconds 540
    python benchmarks/m3o_card_problems.py collect results --out reproduced                        # with keyless

Rows 1 to 4 take 470 runs of some 10,000 steps each, about five hours of one core. Here every step is taken for all
runs that have not ended. `check` compares the card with trajectories of keyless and measures the time of a step; `run`
writes what is finished every half minute, and with `--finished` goes on with the other runs. numpy, torch and nvcc are
all it needs: keyless need not be installed on the machine with the card.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from m3o_card_batch import Batch, Start, begin, rules_from, settled, step_
from m3o_card_steps import couple_, eigenvectors

LOOK_EVERY = 50  # steps between two looks at which runs have ended; a look waits for the card
SAVE_EVERY = 30.0  # seconds
REPORT_EVERY = 10.0  # seconds
AGREEMENT = 1e-9  # largest difference to keyless in objective, ε and step size


class Problems:
    """What `m3o_card_problems.py prepare` wrote."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as stored:
            self.arrays = dict(stored)
        plan = json.loads(str(self.arrays["plan"]))
        self.runs: list[dict[str, Any]] = plan["runs"]
        self.checks: list[str] = plan["checks"]
        self.checked_tolerance: float = plan["checked_tolerance"]
        self.rules = rules_from(plan["rules"])

    def start(self, run: dict[str, Any]) -> Start:
        """Return the start of a run."""
        number = run["setting"]
        edges = np.cumsum(self.arrays[f"widths {number}"])[:-1]
        tables = np.split(self.arrays[f"tables {number} {run['data']}"], edges, axis=1)
        return Start(tables, self.arrays[f"normals {number} {run['start']}"], self.rules[run["method"]])


def check(problems: Problems, device: str) -> None:
    """Compare the first steps with those of keyless; end with an error where they differ."""
    by_key = {run["key"]: run for run in problems.runs}
    starts = [problems.start(by_key[key]) for key in problems.checks]
    for place, start in enumerate(starts):
        tolerance = max(start.rule.tolerance, problems.checked_tolerance)
        starts[place] = replace(start, rule=replace(start.rule, tolerance=tolerance))
    batch = begin(starts, device)
    arrays = problems.arrays
    steps = len(arrays["objective 0"])
    worst = dict.fromkeys(("objective", "epsilon", "step_sizes"), 0.0)
    for step in range(steps):
        epsilon = batch.epsilon().cpu().numpy()
        step_(batch)
        objective, sizes = batch.objective.cpu().numpy(), batch.step_sizes.cpu().numpy()
        for place in range(len(batch)):
            wanted = arrays[f"step_sizes {place}"][step]
            for name, gap in (
                ("objective", objective[place] - arrays[f"objective {place}"][step]),
                ("epsilon", epsilon[place] - arrays[f"epsilon {place}"][step]),
                ("step_sizes", sizes[place, : len(wanted)] - wanted),
            ):
                worst[name] = max(worst[name], float(np.abs(gap).max()))
    print(f"{len(batch)} runs, {steps} steps: largest differences to keyless {worst}", flush=True)
    if not max(worst.values()) <= AGREEMENT:
        raise SystemExit(f"the steps differ from those of keyless by more than {AGREEMENT}")


def synchronised() -> float:
    """Return the time when the card has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()


def parts_timed(batch: Batch, *, eigh: bool) -> dict[str, float]:
    """Return milliseconds of the couplings and of the eigenvectors of one step, by torch's way, too, when asked for."""
    _, tables, n, _ = batch.couplings.shape
    doubled = torch.cat([batch.parts**2, -2 * batch.parts], dim=3)
    cost = (doubled @ batch.masks_and_values.mT + batch.squares[:, :, None, :]).view(-1, n, n)
    couplings = batch.couplings.clone().view(-1, n, n)
    epsilon, tolerance = (value.repeat_interleave(tables) for value in (batch.epsilon(), batch.sinkhorn_tolerance))
    active = (batch.present & ~batch.frozen[:, None]).flatten()
    joined = torch.cat(
        [torch.where(batch.known, batch.own, batch.reference), batch.parts.transpose(1, 2).flatten(2)], 2
    )
    gram = joined @ joined.mT
    found, most = {}, batch.sinkhorn_max_iter
    ways: dict[str, Callable[[], Any]] = {
        "couplings": lambda: couple_(cost, epsilon, tolerance, active, couplings, max_iter=most),
        "jacobi": lambda: eigenvectors(gram, batch.penalty**2, ~batch.frozen, way="jacobi"),
    }
    if eigh:
        ways["eigh"] = lambda: eigenvectors(gram, batch.penalty**2, ~batch.frozen, way="eigh")
    for name, work in ways.items():
        work()
        began = synchronised()
        answer = work()
        found[name] = round(1e3 * (synchronised() - began), 3)
        if name == "jacobi":
            found["most sweeps"] = int(answer[2].max())
    return found


def advance(batch: Batch, seconds: float) -> Iterator[tuple[Batch, Batch]]:
    """Take steps; yield the runs that have ended and those that go on, whenever some have ended or time has passed.

    Args:
        batch: the state to begin with; used up.
        seconds: how long at most.
    """
    began = told = synchronised()
    taken = 0
    while len(batch):
        for _ in range(LOOK_EVERY):
            step_(batch)
        taken += LOOK_EVERY
        now = synchronised()
        frozen = batch.frozen
        ended = batch.kept(frozen.nonzero()[:, 0]) if bool(frozen.any()) else None
        if now - told >= REPORT_EVERY or now - began >= seconds:
            stages = torch.bincount(batch.stage, minlength=batch.epsilons.shape[1]).tolist()
            counts = batch.iterations[batch.present].double()
            print(
                f"{now - began:6.1f} s, step {int(batch.steps.max()):6d}, {len(batch)} runs, "
                f"{1e3 * (now - told) / taken:.2f} ms a step, Sinkhorn iterations mean {float(counts.mean()):.0f} "
                f"most {int(counts.max())}, runs at each ε {stages}",
                flush=True,
            )
            told, taken = now, 0
        if ended is not None:
            batch = batch.kept((~frozen).nonzero()[:, 0])
        if ended is not None or now == told:
            yield ended if ended is not None else batch.kept(frozen.nonzero()[:, 0]), batch
        if now - began >= seconds:
            return


class Results:
    """Finished runs, and where they are written."""

    def __init__(self, problems: Problems, runs: list[dict[str, Any]], out: Path, device: str) -> None:
        self.problems, self.runs, self.out, self.device = problems, runs, out, device
        self.found: dict[str, dict[str, Any]] = {}
        self.estimates: dict[int, dict[str, Any]] = {}
        self.changed: set[int] = set()

    def add(self, ended: Batch) -> None:
        """Take what runs that have ended found."""
        reference, parts = ended.reference.cpu().numpy(), ended.parts.cpu().numpy()
        converged, epsilon = settled(ended).tolist(), ended.epsilon().tolist()
        for place, index in enumerate(ended.index.tolist()):
            run = self.runs[index]
            widths = self.problems.arrays[f"widths {run['setting']}"].tolist()
            pieces = [reference[place][:, : widths[0]]]
            pieces += [parts[place, table][:, :width] for table, width in enumerate(widths[1:])]
            self.estimates.setdefault(run["setting"], {})[run["key"]] = np.hstack(pieces)
            self.changed.add(run["setting"])
            self.found[run["key"]] = {
                "steps": int(ended.steps[place]),
                "converged": converged[place],
                "objective": float(ended.objective[place]),
                "nuclear_norm": float(ended.nuclear_norm[place]),
                "epsilon": epsilon[place],
                "troubles": int(ended.troubles[place]),
                "device": self.device,
            }

    def save(self) -> None:
        """Write everything found so far, whole or not at all."""
        self.out.mkdir(parents=True, exist_ok=True)
        for setting in sorted(self.changed):
            fresh = self.out / f"fresh-{setting}.npz"
            np.savez(fresh, **self.estimates[setting])
            os.replace(fresh, self.out / f"estimates-{setting}.npz")
        self.changed.clear()
        fresh = self.out / "fresh.json"
        fresh.write_text(json.dumps({"runs": self.found}, ensure_ascii=False, indent=1), encoding="utf-8")
        os.replace(fresh, self.out / "finished.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "run"))
    parser.add_argument("problems", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="stop taking steps after this long")
    parser.add_argument("--out", type=Path, help="where to write what is finished")
    parser.add_argument("--finished", type=Path, nargs="*", default=[], help="finished.json of earlier runs: leave out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--most", type=int, help="take so many of the runs only")
    arguments = parser.parse_args()

    began = time.monotonic()
    problems = Problems(arguments.problems)
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "processor"
    print(f"torch {torch.__version__}, {name}", flush=True)
    if arguments.command == "check":
        check(problems, arguments.device)
        print(f"checked after {time.monotonic() - began:.1f} s", flush=True)
    done = {key for path in arguments.finished for key in json.loads(path.read_text(encoding="utf-8"))["runs"]}
    runs = [run for run in problems.runs if run["key"] not in done][: arguments.most]
    batch = begin([problems.start(run) for run in runs], arguments.device)
    print(f"{len(runs)} runs begin after {time.monotonic() - began:.1f} s", flush=True)
    results = Results(problems, runs, arguments.out, name) if arguments.out else None
    saved, first = time.monotonic(), True
    for ended, going in advance(batch, arguments.seconds):
        if results is not None and len(ended):
            results.add(ended)
        if arguments.command == "check" and len(going):
            print(f"        milliseconds of one step's parts: {parts_timed(going, eigh=first)}", flush=True)
            first = False
        if results is not None and time.monotonic() - saved >= SAVE_EVERY:
            results.save()
            saved = time.monotonic()
    if results is not None:
        results.save()
        troubled = sum(found["troubles"] > 0 for found in results.found.values())
        print(f"{len(results.found)} of {len(runs)} runs have ended; {troubled} with rotations that did not settle")


if __name__ == "__main__":
    main()
