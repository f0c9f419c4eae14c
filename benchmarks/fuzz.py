"""Does anything break keyless? Odd tables, broken files, bombs, hostile archives, and mishaps of runs, by the thousand.

    python benchmarks/fuzz.py --seed 0 --log fuzz.jsonl

Every case must come to a result, or to one line that says why not; inputs stay as they were; the folder of a run is
whole or absent; time and memory stay within what was promised. Each case is drawn from its own number, which is printed
where it fails: `python benchmarks/fuzz.py --only tables:17` runs that one again. With `--log` each case is written down
when it begins and when it ends, and a second start with the same log goes on where the first stopped; a case that took
the whole process with it counts as broken. What was found last stands in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "src")]

from hostile.archives import hostile_archive, loaded_or_refused, members_of  # noqa: E402
from hostile.bombs import bomb_case  # noqa: E402
from hostile.broken_files import broken_file  # noqa: E402
from hostile.making import links_of  # noqa: E402
from hostile.mishaps import MISHAPS  # noqa: E402
from hostile.odd_tables import odd_reading, odd_table  # noqa: E402
from hostile.outcomes import file_outcome, table_outcome  # noqa: E402


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


CASES: dict[str, Callable[[random.Random, Path], str]] = {
    "tables": table_case,
    "files": file_case,
    "archives": archive_case,
    "bombs": bomb_case,
    **MISHAPS,
}
COUNTS = {"tables": 10_000, "files": 2_000, "archives": 500, "kills": 200}
FEW = 50
"""How many cases of the other kinds."""

BROKEN = "BROKEN"


def outcome_of(kind: str, number: int, *, lines: int) -> str:
    """Run one case; print what was broken."""
    with tempfile.TemporaryDirectory(prefix="keyless-fuzz-") as folder:
        try:
            return CASES[kind](random.Random(f"{kind} {number}"), Path(folder))
        except KeyboardInterrupt:
            raise
        except BaseException:  # a library written in another language may raise more than exceptions
            print(f"{kind}:{number}", *traceback.format_exc().splitlines()[-lines:], sep="\n  ", flush=True)
            return BROKEN


def finished(log: Path | None) -> dict[str, dict[int, tuple[str, float]]]:
    """Return what a log says about cases: kind → number → outcome and seconds."""
    found: dict[str, dict[int, tuple[str, float]]] = {kind: {} for kind in CASES}
    for line in log.read_text(encoding="utf-8").splitlines() if log is not None and log.exists() else ():
        entry = json.loads(line)
        # A case that began and did not end ended the process.
        found[entry["kind"]][entry["number"]] = (entry.get("outcome", BROKEN), entry.get("seconds", 0.0))
    return found


def note(log: Path | None, **entry: object) -> None:
    """Write down a case."""
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in CASES:
        count = COUNTS.get(kind, FEW)
        parser.add_argument(f"--{kind}", type=int, default=count, help=f"how many {kind} (default {count})")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument("--only", help="one case, as KIND:NUMBER")
    parser.add_argument("--log", type=Path, help="file of finished cases, which are not run again")
    parser.add_argument("--max-time", type=float, default=float("inf"), help="seconds for each kind")
    given = parser.parse_args()
    plan = {kind: range(given.seed, given.seed + getattr(given, kind)) for kind in CASES}
    if given.only:
        kind, number = given.only.split(":")
        plan = {kind: range(int(number), int(number) + 1)}
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    known, broken = finished(given.log), 0
    for kind, numbers in plan.items():
        began = time.monotonic()
        for number in (number for number in numbers if number not in known[kind]):
            if time.monotonic() - began > given.max_time:
                break
            note(given.log, kind=kind, number=number)
            started = time.monotonic()
            outcome = outcome_of(kind, number, lines=30 if given.only else 3)
            known[kind][number] = (outcome, round(time.monotonic() - started, 2))
            note(given.log, kind=kind, number=number, outcome=outcome, seconds=known[kind][number][1])
        cases = {number: case for number, case in known[kind].items() if number in numbers}
        outcomes = collections.Counter(outcome for outcome, _ in cases.values())
        seconds = [spent for _, spent in cases.values()]
        spent = {"slowest_s": max(seconds, default=0.0), "all_s": round(sum(seconds))}
        print(kind, json.dumps({"first": numbers.start, "cases": len(cases), **outcomes, **spent}), flush=True)
        broken += outcomes[BROKEN]
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
