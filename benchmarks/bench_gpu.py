"""What does a graphics card change for tables of many rows?

    python benchmarks/bench_gpu.py --rows 200000 1000000 10000000 --out gpu.json

Tables are those of bench_scale.py: 60 and 40 columns of 20 factors. Each size is linked with each device, in this
process, after a small link has made every library ready. Seconds are those of the clock, reading included; from
`FROM_PARQUET` rows on tables are files. Without faiss the processor would look at all pairs: it is left out from
`ALL_PAIRS` rows on then, and beyond `--cpu-rows`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keyless
from bench_scale import SEED, make, write_tables

FROM_PARQUET = 5_000_000
ALL_PAIRS = 60_000
WARM_ROWS = 20_000


def linked(tables: list[Any], device: str) -> tuple[keyless.Links, dict[str, Any]]:
    """Link, and return the links with the seconds in all and those until each stage was told, since the one before."""
    began = last = time.perf_counter()
    steps: dict[str, float] = {}

    def told(stage: str, *_: object) -> None:
        nonlocal last
        now = time.perf_counter()
        steps[stage], last = steps.get(stage, 0.0) + now - last, now

    links = keyless.link(tables, random_state=0, callback=told, device=device)
    now = time.perf_counter()
    steps["rest"] = now - last
    return links, {"seconds": now - began, "steps": steps}


def compared(rows: int, devices: list[str]) -> dict[str, Any]:
    """Return what each device took for tables of so many rows, and how their answers compare."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("KEYLESS_SCRATCH")) as folder:
        made, (truth,) = make(rows, seed=SEED)
        tables: list[Any] = list(made)
        if rows >= FROM_PARQUET:
            write_tables(Path(folder), made)
            tables = [Path(folder) / "a.parquet", Path(folder) / "b.parquet"]
        del made
        found: dict[str, Any] = {"rows": rows, "from": "Parquet" if rows >= FROM_PARQUET else "memory"}
        answers = {}
        for device in devices:
            links, took = linked(tables, device)
            (answers[device],) = links.permutations.values()
            work = links.choices["landmarks"]
            took |= {"verdict": links.evidence.verdict, "right": float((answers[device] == truth).mean())}
            found[device] = took | {"recall": work["recall"], "distances": work["distances"]}
            steps = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in took["steps"].items())
            print(f"{rows} rows, {device}: {took['seconds']:.1f} s ({steps}); right {took['right']:.6f}", flush=True)
            del links
        if len(answers) == 2:
            first, second = answers.values()
            found["same matches"] = float((first == second).mean())
            print(f"{rows} rows: {found['same matches']:.6f} of the matches are the same", flush=True)
        return found


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    torch = importlib.import_module("torch") if find_spec("torch") else None
    card = torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None
    names = ("numpy", "scipy", "sklearn", "pyarrow", "faiss")
    versions = {name: importlib.import_module(name).__version__ for name in names if find_spec(name)}
    return {
        "card": card,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "keyless": keyless.__version__,
        "torch": None if torch is None else torch.__version__,
        **versions,
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--cpu-rows", type=int, default=1_000_000, help="largest tables that the processor links, too")
    parser.add_argument("--devices", nargs="+", choices=["cpu", "cuda"], default=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "seed": SEED, "sizes": []}
    print(json.dumps(found["machine"]), flush=True)
    most = arguments.cpu_rows if find_spec("faiss") else min(arguments.cpu_rows, ALL_PAIRS - 1)
    small, _ = make(WARM_ROWS, seed=SEED + 1)
    for device in arguments.devices:
        linked(small, device)
    for rows in arguments.rows:
        devices = [device for device in arguments.devices if device != "cpu" or rows <= most]
        if devices:
            found["sizes"].append(compared(rows, devices))
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
