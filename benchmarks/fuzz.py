"""Does anything break keyless? Odd tables, broken files, hostile archives, and runs that are killed, by the thousand.

    python benchmarks/fuzz.py --tables 10000 --files 2000 --archives 500 --kills 200 --seed 0

Every case must come to a result, or to one `InputError` of one line; inputs stay as they were, and a killed run leaves
its folder whole or absent. Each case is drawn from its own seed, which is printed where it fails:
`python benchmarks/fuzz.py --only tables:17` runs that one again. What was found last stands in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "src")]

from hostile.archives import hostile_archive, loaded_or_refused, members_of  # noqa: E402
from hostile.broken_files import broken_file  # noqa: E402
from hostile.making import links_of  # noqa: E402
from hostile.odd_tables import odd_reading, odd_table  # noqa: E402
from hostile.outcomes import BrokenPromiseError, file_outcome, table_outcome  # noqa: E402
from keyless.runs.folder import files_in, read_record  # noqa: E402

_CODE = "from keyless.cli import main; main()"


def beside() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(rng.normal(size=(12, 2)), columns=["b", "c"])


def table_case(draw: random.Random, folder: Path) -> str:
    return table_outcome(odd_table(draw), beside(), odd_reading(draw), folder)


def file_case(draw: random.Random, folder: Path) -> str:
    ending, content = broken_file(draw)
    path = folder / f"table{ending}"
    path.write_bytes(content)
    return file_outcome(path)


def archive_case(draw: random.Random, folder: Path) -> str:
    path = folder / "links.keyless"
    links_of({"clinic": beside(), "lab": beside() + 1}).save(path)
    path.write_bytes(hostile_archive(members_of(path), draw))
    return "result" if loaded_or_refused(path) else "refused"


def kill_case(draw: random.Random, folder: Path) -> str:
    """Kill a run at a random moment, now and then twice, then resume it: the folder is whole, or not there."""
    rng = np.random.default_rng(draw.randrange(2**32))
    entities = rng.normal(size=(40, 3))
    for name in ("a", "b"):
        table = entities @ rng.normal(size=(3, 8)) + 0.05 * rng.normal(size=(40, 8))
        pd.DataFrame(table[rng.permutation(40)]).to_csv(folder / f"{name}.csv", index=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    out = folder / "run"
    words = ["link", str(folder / "a.csv"), str(folder / "b.csv"), "--out", str(out)]
    limit = draw.choice([None, None, None, 20_000, 200_000])  # bytes a file may have: a full disk, in small

    def run(*more: str, wait: float | None = None) -> int | None:
        shell = [] if limit is None or wait is None else ["prlimit", f"--fsize={limit}"]
        process = subprocess.Popen(
            [*shell, sys.executable, "-c", _CODE, *words, *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(HERE.parent / "src")},
        )
        try:
            _, said = process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        if b"mistake in keyless" in said or b"Traceback" in said:
            raise BrokenPromiseError(said.decode()[-500:])
        return process.returncode

    for _ in range(draw.choice([1, 2])):
        run("--resume", wait=draw.uniform(0.5, 5.0))
        if out.exists() and files_in(out) != set(read_record(out)["files"]):
            raise BrokenPromiseError("half a folder")
    if run("--resume") not in (0, 3):
        raise BrokenPromiseError("the run could not be resumed")
    if files_in(out) != set(read_record(out)["files"]):
        raise BrokenPromiseError("half a folder")
    left = {path.name for path in folder.iterdir()} - {*before, "run"}
    if left:
        raise BrokenPromiseError(f"left behind: {left}")
    if any((folder / name).read_bytes() != content for name, content in before.items()):
        raise BrokenPromiseError("an input was changed")
    return "result"


CASES = {"tables": table_case, "files": file_case, "archives": archive_case, "kills": kill_case}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, count in (("tables", 10_000), ("files", 2_000), ("archives", 500), ("kills", 200)):
        parser.add_argument(f"--{kind}", type=int, default=count, help=f"how many {kind} (default {count})")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument("--only", help="one case, as KIND:NUMBER")
    parser.add_argument("--max-time", type=float, default=float("inf"), help="seconds for each kind")
    given = parser.parse_args()
    plan = {kind: range(given.seed, given.seed + getattr(given, kind)) for kind in CASES}
    if given.only:
        kind, number = given.only.split(":")
        plan = {kind: range(int(number), int(number) + 1)}
    warnings.simplefilter("ignore")
    failed, found = [], {}
    for kind, numbers in plan.items():
        began, outcomes, slowest = time.monotonic(), collections.Counter(), 0.0
        for number in numbers:
            if time.monotonic() - began > given.max_time:
                break
            with tempfile.TemporaryDirectory() as folder:
                started = time.monotonic()
                try:
                    outcomes[CASES[kind](random.Random(f"{kind} {number}"), Path(folder))] += 1
                except Exception:
                    failed.append(f"{kind}:{number}")
                    outcomes["BROKEN"] += 1
                    said = traceback.format_exc().splitlines()[-12 if given.only else -3 :]
                    print(f"{kind}:{number}", *said, sep="\n  ", flush=True)
                slowest = max(slowest, time.monotonic() - started)
        cases = sum(outcomes.values())
        found[kind] = {"first": numbers.start, "cases": cases, **outcomes, "slowest_s": round(slowest, 2)}
        print(kind, json.dumps(found[kind]), f"{time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
