"""The work: links that are waited for, one at a time, each in a process of its own, and all of it kept in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from keyless.errors import InputError
from keyless.places import remove, replacing

__all__ = ["Job", "Jobs", "State", "run_command", "said"]

State = Literal["waiting", "running", "done", "stopped", "failed", "cut off"]
"""`stopped`: by the user; `failed`: with a message of the command; `cut off`: killed, or the server was."""

_CHILD = "from keyless.cli.ui import work; work()"
"""The command line as a child that stops when told, and ends when this process does."""

_COMMAND = "from keyless.cli import main; main()"
_PYTHON = (sys.executable, "-P", "-c")
"""Without -P, a file of the start folder that is called like a module, such as `json.py`, would be run."""

_KEPT = "The best result so far is kept."
_LINKED, _NOT_LINKED, _INTERRUPTED = 0, 3, 130
_WRONG = (1, 2)
_PREFIX = "keyless: "

_LONGEST = 2**16
"""Bytes at the end of what the work said that are looked at."""


@dataclass(frozen=True)
class Job:
    """A link that is asked for.

    Attributes:
        number: of the job, in the order in which they were asked for.
        run: folder of the result, in the start folder.
        words: of the command line, after `keyless`.
        state: how far it is.
        message: what the work said in the end, in one line.
        started: when it began, in seconds since 1970; 0 before.
        ended: when it ended; 0 before.
    """

    number: int
    run: str
    words: tuple[str, ...]
    state: State = "waiting"
    message: str = ""
    started: float = 0.0
    ended: float = 0.0

    @property
    def can_go_on(self) -> bool:
        """Whether it ended before it was done."""
        return self.state in ("stopped", "failed", "cut off")


class Jobs:
    """The queue, and the thread that works on it.

    Args:
        folder: where the jobs are kept, one folder each.
        root: where the commands run.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root = folder, root
        self._folder.mkdir(parents=True, exist_ok=True)
        self._change = threading.Condition(threading.RLock())
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._jobs = {job.number: job for job in self._read()}
        for job in list(self._jobs.values()):
            if job.state == "running":
                worked = self.progress(job.number)["seconds"]
                message = "The page was closed or killed while this run worked."
                self._keep(replace(job, state="cut off", message=message, ended=job.started + worked))
        self._thread = threading.Thread(target=self._work, name="keyless work", daemon=True)
        self._thread.start()

    def all(self) -> list[Job]:
        """Return all jobs, the newest first."""
        with self._change:
            return sorted(self._jobs.values(), key=lambda job: -job.number)

    def get(self, number: int) -> Job:
        """Return one job."""
        with self._change:
            if number not in self._jobs:
                raise InputError(f"job {number}: there is none of that number.")
            return self._jobs[number]

    def ahead(self, job: Job) -> int:
        """Return how many jobs must end before a waiting one begins."""
        others = [one for one in self.all() if one.number != job.number]
        return sum(one.state == "running" or (one.state == "waiting" and one.number < job.number) for one in others)

    def add(self, run: str, words: Sequence[str]) -> Job:
        """Put a link into the queue.

        Args:
            run: folder of the result.
            words: of the command, after `keyless`, without `--out`.
        """
        with self._change:
            number = max(self._jobs, default=0) + 1
            # A first run has nothing to go on with, and then begins; one that was cut off goes on.
            job = Job(number, run, (*words, f"--out={run}", "--resume"))
            (self._folder / str(number)).mkdir()
            self._keep(job)
            self._change.notify_all()
            return job

    def again(self, number: int) -> None:
        """Let a job that ended before it was done go on from its last finished stage."""
        with self._change:
            job = self.get(number)
            if job.can_go_on:
                self._keep(replace(job, state="waiting", message="", started=0.0, ended=0.0))
                remove(self._place(number, "progress.json"))
                self._change.notify_all()

    def stop(self, number: int) -> None:
        """Let the running job end with its best so far; take a waiting one out of the queue."""
        with self._change:
            job = self.get(number)
            if job.state == "waiting":
                self._ended(job, "stopped", "It was stopped before it began.")
            elif job.state == "running" and self._child is not None and self._child.stdin is not None:
                try:
                    self._child.stdin.write(b"stop\n")
                    self._child.stdin.flush()
                except OSError:
                    pass  # it has just ended

    def remove(self, number: int) -> None:
        """Take a job that is over off the list; its run stays."""
        with self._change:
            if self.get(number).state in ("running", "waiting"):
                raise InputError(f"job {number}: must be over before it is taken off the list. Stop it first.")
            del self._jobs[number]
            remove(self._folder / str(number))

    def progress(self, number: int) -> dict[str, Any]:
        """Return how far a job is: seconds, and the stages as the command line's file of progress has them."""
        try:
            found = json.loads(self._place(number, "progress.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"seconds": 0.0, "stages": []}
        return dict(found)

    def close(self) -> None:
        """End the work at once; what it finished is kept, and it can go on after a new start."""
        with self._change:
            self._closed = True
            if self._child is not None:
                self._child.kill()
            self._change.notify_all()
        self._thread.join(timeout=10)

    def _read(self) -> list[Job]:
        found = []
        for place in self._folder.glob("*/job.json"):
            try:
                kept = json.loads(place.read_text(encoding="utf-8"))
                found.append(Job(**{**kept, "words": tuple(kept["words"])}))
            except (OSError, ValueError, TypeError, KeyError):
                continue  # a job that was cut off before it was written whole
        return found

    def _place(self, number: int, name: str) -> Path:
        return self._folder / str(number) / name

    def _keep(self, job: Job) -> Job:
        self._jobs[job.number] = job
        with replacing(self._place(job.number, "job.json")) as fresh:
            fresh.write_text(json.dumps(asdict(job)), encoding="utf-8")
        return job

    def _ended(self, job: Job, state: State, message: str) -> None:
        self._keep(replace(job, state=state, message=message, ended=time.time()))

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._closed and not self._next():
                    self._change.wait()
                if self._closed:
                    return
                job = self._keep(replace(self._next()[0], state="running", started=time.time()))
            try:
                self._run(job)
            except Exception as error:  # whatever happens to a job, the next one is worked on
                with self._change:
                    self._ended(job, "failed", f"The work could not be started: {error}.")

    def _next(self) -> list[Job]:
        return sorted((job for job in self._jobs.values() if job.state == "waiting"), key=lambda job: job.number)[:1]

    def _run(self, job: Job) -> None:
        with self._place(job.number, "said.txt").open("wb") as errors:
            with self._change:
                if self._closed:
                    return
                self._child = _started(
                    job.words, cwd=self._root, stderr=errors, progress=self._place(job.number, "progress.json")
                )
            code = self._child.wait()
        with self._change:
            if self._child.stdin is not None:
                self._child.stdin.close()
            self._child = None
            if self._closed:
                return  # the next start finds it running, which it is not: cut off
            self._ended(job, *self._outcome(job, code))

    def _outcome(self, job: Job, code: int) -> tuple[State, str]:
        words = said(self._place(job.number, "said.txt").read_bytes())
        if code in (_LINKED, _NOT_LINKED):
            return "done", ""
        if code == _INTERRUPTED:
            return "stopped", _KEPT if (self._root / job.run / "run.json").is_file() else words
        if code in _WRONG:
            return "failed", words
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return "cut off", f"The work was ended from outside, {how}. Finished stages are kept."


def said(errors: bytes) -> str:
    """Return the last line that a command said, without its prefix.

    Args:
        errors: what it wrote to stderr.
    """
    lines = errors[-_LONGEST:].decode("utf-8", "replace").splitlines()
    own = [line.removeprefix(_PREFIX) for line in lines if line.startswith(_PREFIX)]
    return own[-1] if own else "The work ended without a word."


def _started(words: Sequence[str], *, cwd: Path, stderr: IO[bytes], progress: Path) -> subprocess.Popen[bytes]:
    """Start a command as a child in a session of its own, so that Ctrl-C in the terminal reaches the server alone."""
    return subprocess.Popen(
        [*_PYTHON, _CHILD, *words], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=stderr, env=os.environ | {"KEYLESS_PROGRESS": str(progress)}, start_new_session=True,
    )  # fmt: skip


def run_command(words: Sequence[str], *, cwd: Path, seconds: float) -> str:
    """Return what a quick command prints; what it says against it is raised as an `InputError`.

    Args:
        words: of the command line, after `keyless`.
        cwd: where it runs.
        seconds: after which it is ended.
    """
    try:
        done = subprocess.run(
            [*_PYTHON, _COMMAND, *words], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=seconds, check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(f"reading took more than {seconds:.0f} seconds, and was ended.") from None
    except ValueError as error:  # a character that no word of a command may have
        raise InputError(f"the choices: must be text that a command line can hold; {error}.") from error
    if done.returncode:
        raise InputError(said(done.stderr))
    return done.stdout.decode("utf-8")
