"""What does a graphics card change for tables of many rows?

    python benchmarks/bench_gpu.py --out benchmarks/results/gpu.json                       # needs a card; six minutes
    python benchmarks/bench_gpu.py --cases "1,000,000" --devices cpu                       # some of it

Tables are those of bench_scale.py: 60 and 40 columns of 20 factors. Each case is linked with each device, in this
process, after a small link has made every library ready. Seconds are those of the clock, reading included. Ten million
rows are read from Parquet files, and by the card alone. Without faiss the processor would look at all pairs, so it is
left out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keyless
from bench_scale import SEED, make, write_tables
from common import report

QUESTION = "Many rows on a graphics card"

CASES: dict[str, dict[str, Any]] = {
    "100,000": {"rows": 100_000},
    "100,000, 20% of the entries missing": {"rows": 100_000, "missing": 0.2},
    "100,000, 80% of them in both tables": {"rows": 100_000, "overlap": 0.8},
    "1,000,000": {"rows": 1_000_000},
    "10,000,000 from Parquet": {"rows": 10_000_000},
}

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


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--devices", nargs="+", choices=["cpu", "cuda"], default=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch = importlib.import_module("torch") if "cuda" in arguments.devices else None
    small, _ = make(WARM_ROWS, seed=SEED + 1)
    for device in arguments.devices:
        linked(small, device)
    most = MOST_ON_PROCESSOR if find_spec("faiss") else WARM_ROWS
    rows: list[dict[str, Any]] = []
    for name in arguments.cases:
        rows += compared(name, [one for one in arguments.devices if one != "cpu" or CASES[name]["rows"] <= most])
    report(
        QUESTION,
        rows,
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
