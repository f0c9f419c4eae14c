"""Runs of the command line in processes of their own: watched, killed, and with other clocks."""

import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from hostile.outcomes import BrokenPromiseError
from keyless import linker, report, runs, tables  # noqa: F401 — imported once, for all runs
from keyless.cli import main
from keyless.runs.folder import files_in, read_record

LONGEST_LINE = 2_010
"""Characters of a line on stderr: a message of at most 2,000, and who says it."""

DONE = (0, 3)
"""Exit codes of a run that wrote its result: linked, and not."""

_MOST_MEMORY = 6 * 2**30
"""Bytes that a run can have at all."""

_SERVER = multiprocessing.get_context("forkserver")
"""Forks processes that have imported everything already, so that a run takes a second and not five."""
_SERVER.set_forkserver_preload(["hostile.running"])


class Run:
    """One `keyless …` in a process of its own.

    Args:
        words: the command line.
        notes: folder for what it says and measures.
        most: bytes a file may have; None: no limit.
        clock: draws the jumps of the clock; None: the clock as it is.
        max_time: seconds of the search after which what it still computes is counted; None: not counted.
        memory: bytes that the machine says are available; None: as it is.
    """

    def __init__(self, words, notes, *, most=None, clock=None, max_time=None, memory=None):
        self.notes = notes
        notes.mkdir(exist_ok=True)
        for path in notes.iterdir():
            path.unlink()
        given = {"most": most, "clock": clock, "max_time": max_time, "memory": memory}
        self.process = _SERVER.Process(target=_work, args=([str(word) for word in words], str(notes)), kwargs=given)
        # The server of forks is started by the first run, and finds these modules as this process does.
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        self.began = time.monotonic()
        self.process.start()

    def wait(self, seconds=None):
        """Wait for the end of the run, or kill it after some seconds; return its exit code, None for a kill."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code = None if self.process.exitcode == -9 else self.process.exitcode
        self.seconds = time.monotonic() - self.began
        said = self.said
        if "mistake in keyless" in said or "Traceback" in said or (code is not None and code < 0):
            raise BrokenPromiseError(f"exit code {code}: {said[-600:]}")
        if any(len(line) > LONGEST_LINE or not line.isprintable() for line in said.splitlines()):
            raise BrokenPromiseError(f"not a line: {said[-600:]!r}")
        return code

    @property
    def said(self):
        """What it wrote on stderr."""
        path = self.notes / "said"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def printed(self):
        """What it wrote on stdout."""
        return (self.notes / "printed").read_text(encoding="utf-8")

    @property
    def figures(self):
        """What was measured: bytes by which its memory grew, seconds it computed, and those after its time was over."""
        return json.loads((self.notes / "figures").read_text(encoding="utf-8"))


def _work(words, notes, *, most, clock, max_time, memory):
    """Be the process: run the command line, and leave with its exit code."""
    folder = Path(notes)
    for number, name in ((1, "printed"), (2, "said")):
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    late = []
    if max_time is not None:
        _timed(max_time, late)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if clock is not None:
        _jumping(random.Random(clock))
    if memory is not None:
        start = memory_now("VmRSS")
        tables.memory.available_memory = lambda: max(memory - (memory_now("VmRSS") - start), 0)
    # Whatever goes wrong, the machine and what others do there go on.
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (held + _MOST_MEMORY, held + _MOST_MEMORY))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here on
    before = memory_now("VmHWM")
    try:
        main(words)
    except SystemExit as end:
        code = end.code
    after = time.process_time()
    sys.stdout.flush()
    grown, over = memory_now("VmHWM") - before, after - late[0] if late else 0.0
    figures = {"grown": grown, "late": over, "computed": after}
    (folder / "figures").write_text(json.dumps(figures), encoding="utf-8")
    os._exit(code)


def _timed(max_time, late):
    """Note the processor time when the time of the search is over; files are read before that time begins."""
    link = linker.link

    def timed(*tables, **options):
        timer = threading.Timer(max_time, lambda: late.append(time.process_time()))
        timer.daemon = True
        timer.start()
        return link(*tables, **options)

    linker.link = timed


def _jumping(draw):
    """Let the clock jump, by seconds or by years, whenever somebody looks at it; the stopwatch stays as it is."""
    steps = [-1e9, -86_400.0, -3_600.0, -1.0, 0.0, 1.0, 3_600.0, 86_400.0, 1e9]
    whole, fine = time.time, time.time_ns

    def jumped():
        return max(whole() + draw.choice(steps), 0.0)

    time.time = jumped
    time.time_ns = lambda: max(fine() + int(draw.choice(steps) * 1e9), 0)


def memory_now(which):
    """Return the bytes that this process holds (VmRSS), or held at most since its peak was reset (VmHWM)."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found.group(1)) * 1024


def write_tables(draw, folder, *, rows, columns, gaps=0.0, noise=0.05, factors=3):
    """Write two tables of the same entities in other orders; return their paths."""
    rng = np.random.default_rng(draw.randrange(2**32))
    folder.mkdir(exist_ok=True)
    entities = rng.normal(size=(rows, factors))
    paths = []
    for name in ("a", "b"):
        table = entities @ rng.normal(size=(factors, columns)) + noise * rng.normal(size=(rows, columns))
        table[rng.random(table.shape) < gaps] = np.nan
        paths.append(folder / f"{name}.csv")
        pd.DataFrame(table[rng.permutation(rows)]).round(4).to_csv(paths[-1], index=False)
    return paths


def checksums(folder):
    """Return what is in a folder: name → checksum."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check_whole(out):
    """Refuse a folder of a run that is there, but not whole."""
    if out.exists() and files_in(out) != set(read_record(out)["files"]):
        raise BrokenPromiseError("half a folder")


def check_left(folder, *expected):
    """Refuse anything beside what is expected in a folder."""
    left = {path.name for path in folder.iterdir()} - set(expected)
    if left:
        raise BrokenPromiseError(f"left behind: {sorted(left)}")
