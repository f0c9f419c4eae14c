"""What does a graphics card change for tables of many rows?

    python benchmarks/bench_gpu.py --out benchmarks/results/gpu.json                       # needs a card; six minutes
    python benchmarks/bench_gpu.py --cases "1,000,000" --devices cpu                       # some of it
    python benchmarks/bench_gpu.py --cases steps                                           # single steps; one minute

Tables are those of bench_scale.py: 60 and 40 columns of 20 factors. Each case is linked with each device, in this
process, after a small link has made every library ready. Seconds are those of the clock, reading included. Ten million
rows are read from Parquet files, and by the card alone. Without faiss the processor would look at all pairs, so it is
left out.

Single steps are those that a search repeats, alone and at several sizes: from which size on is the card quicker? The
way to the card and back is part of the time. On the processor all cores work, as far as the linear algebra uses them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import keyless
from bench_scale import SEED, make, write_tables
from common import report_sections
from keyless.arrays import find_device
from keyless.cluster import computing_on, local_workers
from keyless.model import factor_model
from keyless.model.moments import Moments, fit_moments
from keyless.model.positions import Entities
from keyless.model.scored_tables import ScoredTable
from keyless.pairs import likelihood
from keyless.pairs.candidates import exact_ratios
from keyless.pairs.posterior import marginals

QUESTION = "Many rows on a graphics card"

CASES: dict[str, dict[str, Any]] = {
    "2,000, 20% of the entries missing": {"rows": 2_000, "missing": 0.2},
    "100,000": {"rows": 100_000},
    "100,000, 20% of the entries missing": {"rows": 100_000, "missing": 0.2},
    "100,000, 80% of them in both tables": {"rows": 100_000, "overlap": 0.8},
    "1,000,000": {"rows": 1_000_000},
    "10,000,000 from Parquet": {"rows": 10_000_000},
}

LINKS, STEPS = "Links from beginning to end", "Single steps"

MOST_ON_PROCESSOR = 1_000_000
"""Rows up to which the processor links the tables, too."""

WARM_ROWS = 20_000


def linked(tables: list[Any], device: str) -> tuple[keyless.Links, float, dict[str, float]]:
    """Link, and return the links, the seconds in all, and those until each stage was told since the one before."""
    began = last = time.perf_counter()
    steps: dict[str, float] = {}

    def told(stage: str, *_: object) -> None:
        nonlocal last
        now = time.perf_counter()
        steps[stage], last = steps.get(stage, 0.0) + now - last, now

    links = keyless.link(tables, random_state=0, callback=told, device=device)
    return links, time.perf_counter() - began, steps


def compared(name: str, devices: list[str]) -> list[dict[str, Any]]:
    """Return what each device took for the tables of one case, and how their answers compare."""
    rows: list[dict[str, Any]] = []
    first: Any = None
    with tempfile.TemporaryDirectory(dir=os.environ.get("KEYLESS_SCRATCH")) as folder:
        made, (truth,) = make(seed=SEED, **CASES[name])
        tables: list[Any] = list(made)
        if "Parquet" in name:
            write_tables(Path(folder), made)
            tables = [Path(folder) / "a.parquet", Path(folder) / "b.parquet"]
        del made
        for device in devices:
            links, seconds, steps = linked(tables, device)
            (answer,) = links.permutations.values()
            row = {
                "rows": name,
                "device": device,
                "seconds": f"{seconds:.1f}",
                "of which neighbours": f"{steps.get('candidates', 0.0):.1f}",
                "chance": f"{steps.get('chance', 0.0):.1f}",
                "verdict": links.evidence.verdict,
                "right": f"{(answer == truth).mean():.6f}",
                "matched as by the other": None if first is None else f"{(answer == first).mean():.6f}",
            }
            print(row, flush=True)
            rows.append(row)
            first = answer
    return rows


def timed(device: str, function: Callable[[], Any], *, repeats: int = 3) -> float:
    """Return the least seconds of several, after one that does not count."""
    taken = []
    with computing_on(find_device(device)):
        for _ in range(repeats + 1):
            began = time.perf_counter()
            function()
            taken.append(time.perf_counter() - began)
    return min(taken[1:])


def steps(devices: list[str]) -> list[dict[str, Any]]:
    """Return the seconds of single steps on each device; where a step is always the processor's, of that alone."""
    rng = np.random.default_rng(SEED)
    found: list[dict[str, Any]] = []

    def add(step: str, size: str, *, only: str | None = None, **work: Callable[[], Any]) -> None:
        row: dict[str, Any] = {"step": step, "size": size}
        for device in devices:
            row[device] = None if only not in (None, device) else f"{timed(device, work[device]):.4f}"
        print(row, flush=True)
        found.append(row)

    factor_model._WORTH_A_CARD = likelihood._WORTH_A_CARD = 1
    values = rng.normal(size=(20_000, 20)) @ rng.normal(size=(20, 60)) / 20**0.5 + 0.1 * rng.normal(size=(20_000, 60))
    seen = rng.random(values.shape) < 0.8
    gaps = np.where(seen, values, 0.0)
    for rows in (500, 2_000, 10_000):
        some, mask = gaps[:rows], seen[:rows]
        start = factor_model.initial_model(some, mask, 20)

        def fitted(some: Any = some, mask: Any = mask, start: Any = start) -> object:
            return factor_model.fit(some, mask, start, max_iter=10, prune=False)

        add("ten steps of EM with gaps, 20 factors of 60 columns", f"{rows:,} rows", cpu=fitted, cuda=fitted)
    every = np.ones(values.shape, dtype=bool)
    whole = partial(fit_moments, Moments.of(values, every), rank=20)
    add("a model of rows without gaps, from their sums", "20,000 rows", only="cpu", cpu=whole)
    table = ScoredTable.scaled(gaps, seen, kinds=["identity"] * 60, rng=rng)
    model = factor_model.fit_table(gaps[:2_000], seen[:2_000], largest_rank=20, max_iter=5)
    for count in (2_000, 20_000, 200_000):
        rows, columns = np.sort(rng.integers(0, 20_000, count)), rng.integers(0, 20_000, count)
        sides = {name: Entities.alone(table, model, local_workers(find_device(name))) for name in devices}
        work = {name: partial(exact_ratios, side, side, rows, columns) for name, side in sides.items()}
        add("ratios of pairs of rows with gaps, 20 factors", f"{count:,} pairs", **work)
    for size in (100, 200, 500, 1_000, 2_000):
        ratio = 9.0 * np.eye(size) + rng.normal(size=(size, size))
        coupled = partial(likelihood.couple, ratio, max_iter=50, tolerance=0.0)
        add("50 steps of a coupling", f"{size:,} × {size:,}", cpu=coupled, cuda=coupled)
    places = np.repeat(np.arange(1_000_000), 2), np.stack([np.arange(10**6), rng.permutation(10**6)], axis=1).ravel()
    listed = sparse.csr_array((rng.normal(size=2_000_000), places), shape=(10**6, 10**6))
    add(
        "probabilities of candidates",
        "2 for each of 1,000,000 rows",
        only="cpu",
        cpu=partial(marginals, listed),
    )
    return found


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[*CASES, "steps"], default=[*CASES, "steps"])
    parser.add_argument("--devices", nargs="+", choices=["cpu", "cuda"], default=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch = importlib.import_module("torch") if "cuda" in arguments.devices else None
    most = MOST_ON_PROCESSOR if find_spec("faiss") else WARM_ROWS
    cases = [name for name in arguments.cases if name != "steps"]
    sections: dict[str, list[dict[str, Any]]] = {}
    if cases:
        small, _ = make(WARM_ROWS, seed=SEED + 1)
        for device in arguments.devices:
            linked(small, device)
        sections[LINKS] = []
    for name in cases:
        devices = [one for one in arguments.devices if one != "cpu" or CASES[name]["rows"] <= most]
        sections[LINKS] += compared(name, devices)
    if "steps" in arguments.cases:
        sections[STEPS] = steps(arguments.devices)
    report_sections(
        QUESTION,
        sections,
        out=arguments.out,
        order=[LINKS, STEPS],
        settings={
            "card": None if torch is None else torch.cuda.get_device_name(0),
            "torch": None if torch is None else torch.__version__,
            "columns": "60 + 40",
            "seed": SEED,
            "times": "clock, seconds; cpu: all cores",
        },
    )


if __name__ == "__main__":
    main()
