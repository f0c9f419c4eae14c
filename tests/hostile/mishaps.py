"""What can happen to a run from outside: a kill, a full disk, a read-only folder, a second run, another clock."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
from contextlib import contextmanager

from hostile.outcomes import BrokenPromiseError, one_line
from hostile.running import DONE, Run, check_left, check_whole, checksums, write_tables

BEYOND, SHARE = 1.0, 0.1
"""A run may compute so many seconds, and so large a share of its `--max-time`, after that is over."""


def _refused(run, code, *words):
    """Check that a run ended with one line that says why."""
    if code not in (1, 2):
        raise BrokenPromiseError(f"exit code {code}: {run.said[-300:]}")
    *_, last = run.said.splitlines()
    one_line(last.removeprefix("keyless: "))
    if not any(word in last for word in words):
        raise BrokenPromiseError(f"refused for another reason: {last}")


def _finished(run, code):
    if code not in DONE:
        raise BrokenPromiseError(f"exit code {code}: {run.said[-600:]}")


def _answer(out):
    """Return the files of a run that say nothing about where its tables were."""
    return {name: sum_ for name, sum_ in checksums(out).items() if name.endswith(".csv")}


_TABLES = 8
"""How many pairs of tables there are: the result without a mishap is found once for each."""

_PLAIN = {}
"""For each of them the answer, and the seconds of the run."""


class _Given:
    """Two small tables, and the result of a run that nothing happened to."""

    def __init__(self, draw, folder):
        self.folder, self.notes = folder, folder / "notes"
        number = draw.randrange(_TABLES)
        fixed = random.Random(number)
        paths = write_tables(fixed, folder / "in", rows=fixed.randrange(10, 24), columns=fixed.randrange(3, 7))
        self.words = ["link", *paths]
        self.before = checksums(folder / "in")
        if number not in _PLAIN:
            run = Run([*self.words, "--out", folder / "plain"], self.notes)
            _finished(run, run.wait())
            _PLAIN[number] = _answer(folder / "plain"), run.seconds
            shutil.rmtree(folder / "plain")
        self.result, self.seconds = _PLAIN[number]

    def check_result(self, out):
        """Check that a folder is whole, and holds the result of the run that nothing happened to."""
        check_whole(out)
        if _answer(out) != self.result:
            raise BrokenPromiseError("equal runs gave other results")

    def check(self, *outs):
        """Check that inputs are as they were, and that nothing else is left in the folder."""
        if checksums(self.folder / "in") != self.before:
            raise BrokenPromiseError("an input was changed")
        check_left(self.folder, "in", "notes", *outs)


def kill_case(draw, folder):
    """Kill a run at a random moment, now and then twice, then resume it: the folder is whole, or not there."""
    given = _Given(draw, folder)
    out = folder / "run"
    words = [*given.words, "--out", out, "--resume"]
    killed = 0
    for _ in range(draw.choice([1, 2])):
        run = Run(words, given.notes)
        killed += run.wait(draw.uniform(0.05, 1.05) * given.seconds) is None
        check_whole(out)
    run = Run(words, given.notes)
    _finished(run, run.wait())
    given.check_result(out)
    given.check("run")
    return "killed and resumed" if killed else "done before the kill"


@contextmanager
def _mounted(place, *options):
    """Mount a file system for a while; yield whether the system let us."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, check=False)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(place)], check=True)


def disk_case(draw, folder):
    """Let the disk be full at some moment, then make room and resume: nothing is lost, and nothing is half."""
    given = _Given(draw, folder)
    disk = folder / "disk"
    out, filler = disk / "run", disk / "filler"
    room = int(2 ** draw.uniform(12, 20))
    # A disk of its own where that may be mounted, else a limit on the size of each file.
    with _mounted(disk, "-t", "tmpfs", "-o", "size=4m", "tmpfs") as real:
        if draw.random() < 0.5:  # an earlier run, which must stay
            run = Run([*given.words, "--out", out, "--seed", "7"], given.notes)
            _finished(run, run.wait())
        earlier = checksums(out) if out.exists() else None
        if real:
            status = os.statvfs(disk)
            filler.write_bytes(bytes(max(status.f_bavail * status.f_frsize - room, 0)))
        words = [*given.words, "--out", out]
        run = Run(words, given.notes, most=None if real else room)
        code = run.wait()
        if code in DONE:
            check_whole(out)
            outcome = "result"
        else:
            _refused(run, code, "disk is full")
            if (checksums(out) if out.exists() else None) != earlier:
                raise BrokenPromiseError("the earlier run is not what it was")
            outcome = "full" if real else "full, by a limit on files"
        filler.unlink(missing_ok=True)
        run = Run([*words, "--resume"], given.notes)
        _finished(run, run.wait())
        given.check_result(out)
        check_left(disk, "run")
    given.check("disk")
    return outcome


def read_only_case(draw, folder):
    """Let the folder be read-only in which tables are, or to which results should go."""
    given = _Given(draw, folder)
    inside = folder / "in"
    what = draw.choice(["link", "fill", "report", "inspect", "outside"])
    words = {
        "link": [*given.words, "--out", inside / "run"],
        "fill": ["fill", inside / "a.csv", "--out", inside / "filled.csv"],
        "report": [*given.words, "--report", inside / "page.html"],
        "inspect": ["inspect", inside / "a.csv", inside / "c.db"],
        "outside": [*given.words, "--out", folder / "run"],
    }[what]
    with sqlite3.connect(inside / "c.db") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE one (a, b)")
        connection.executemany("INSERT INTO one VALUES (?, ?)", [(k, k * k % 7) for k in range(20)])
    connection.close()
    given.before = checksums(inside)
    with _mounted(inside, "--bind", str(inside)) as real:
        if real:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(inside)], check=True)
        elif os.geteuid() == 0:
            return "not tried: root writes everywhere, and nothing may be mounted"
        else:
            inside.chmod(0o555)
        try:
            run = Run(words, given.notes)
            code = run.wait()
        finally:
            if not real:
                inside.chmod(0o755)
        if what in ("inspect", "outside"):
            _finished(run, code)
            outcome = "result"
        else:
            _refused(run, code, "ermission", "ead-only")
            outcome = "refused"
    if what == "outside":
        given.check_result(folder / "run")
    given.check("run")
    return outcome


def together_case(draw, folder):
    """Let two or three runs work at once, on one folder or on different ones."""
    given = _Given(draw, folder)
    count, same = draw.choice([2, 2, 3]), draw.random() < 0.6
    outs = [folder / "run" if same else folder / f"run{number}" for number in range(count)]
    runs = []
    for number, out in enumerate(outs):
        # Begun together, or when the one before has nearly finished.
        if number and draw.random() < 0.3:
            runs[-1].process.join(draw.uniform(0.3, 1.1) * given.seconds)
        runs.append(Run([*given.words, "--out", out], folder / f"notes{number}"))
    codes = [run.wait() for run in runs]
    for run, code in zip(runs, codes, strict=True):
        if code not in DONE:
            _refused(run, code, "another run is working on this folder")
    if not any(code in DONE for code in codes) or (not same and not all(code in DONE for code in codes)):
        raise BrokenPromiseError(f"exit codes {codes}")
    for out in set(outs):
        given.check_result(out)
    given.check(*(out.name for out in outs), *(f"notes{number}" for number in range(count)))
    return "all wrote" if all(code in DONE for code in codes) else "one wrote, others were told to wait"


def clock_case(draw, folder):
    """Let the clock jump while a run works, and let tables be of other centuries."""
    given = _Given(draw, folder)
    for path in (folder / "in").iterdir():
        moment = draw.choice([0, 1, -(10**9), 2**31, 2**33, 10**10]) * 10**9
        os.utime(path, ns=(moment, moment))
    out, max_time = folder / "run", draw.choice([None, 20.0])
    more = [] if max_time is None else ["--max-time", max_time]
    words = [*given.words, "--out", out, *more]
    if draw.random() < 0.5:  # killed, and resumed at another time
        Run(words, given.notes, clock=draw.random()).wait(draw.uniform(0.3, 1.0) * given.seconds)
        words = [*words, "--resume"]
    run = Run(words, given.notes, clock=draw.random(), max_time=max_time)
    _finished(run, run.wait())
    given.check_result(out)
    given.check("run")
    return "result"


def budget_case(draw, folder):
    """Link tables of many sizes: within `--max-time`, and within the memory that `inspect` says."""
    rows, columns = int(2 ** draw.uniform(3, 10.5)), draw.randrange(2, 30)
    # Clean tables are linked in a moment, noisy ones by a long search.
    kind = draw.choice([{}, {}, {"gaps": 0.2}, {"noise": 1.0, "factors": 12}])
    paths = write_tables(draw, folder / "in", rows=rows, columns=columns, **kind)
    before = checksums(folder / "in")
    run = Run(["inspect", *paths, "--json"], folder / "notes")
    _finished(run, run.wait())
    said = json.loads(run.printed)["memory_needed"]
    max_time = round(draw.uniform(0.5, 4.0) * draw.choice([1, 1, 1, 4]), 1)
    words = ["link", *paths, "--max-time", max_time, "--json"]
    run = Run(words, folder / "notes", max_time=max_time)
    _finished(run, run.wait())
    figures = run.figures
    if figures["late"] > BEYOND + SHARE * max_time:
        raise BrokenPromiseError(f"{rows} × {columns}: {figures['late']:.1f} s more than --max-time {max_time}")
    if figures["grown"] > said:
        raise BrokenPromiseError(f"{rows} × {columns}: {figures['grown'] / 1e6:.0f} MB; said {said / 1e6:.0f} MB")
    if checksums(folder / "in") != before:
        raise BrokenPromiseError("an input was changed")
    return "result"


MISHAPS = {
    "kills": kill_case,
    "disks": disk_case,
    "readonly": read_only_case,
    "together": together_case,
    "clocks": clock_case,
    "budgets": budget_case,
}
