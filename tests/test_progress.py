"""Deadlines: what remains, half of it, and being asked to stop."""

from __future__ import annotations

import time

import pytest

from keyless.progress import Deadline, is_late
from keyless.progress import limits as progress


def test_no_deadline_never_passes():
    assert not Deadline().passed
    assert not is_late(None)
    assert not is_late(Deadline(1000))


def test_a_deadline_passes_after_its_time():
    deadline = Deadline(0.05)
    assert not deadline.passed
    time.sleep(0.06)
    assert is_late(deadline)
    assert Deadline(0).passed


def test_a_deadline_passes_when_asked():
    deadline = Deadline(1000)
    deadline.stop()
    assert deadline.passed


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_what_remains_falls_to_nothing(clock):
    deadline = Deadline(10)
    assert deadline.remaining == 10
    clock[0] += 4
    assert (deadline.remaining, deadline.passed) == (6, False)
    clock[0] += 7
    assert (deadline.remaining, deadline.passed, is_late(deadline)) == (0, True, True)


def test_half_of_what_remains(clock):
    deadline = Deadline(10)
    clock[0] += 2
    first = deadline.half()
    assert first.remaining == 4
    clock[0] += 5
    assert first.passed
    assert not deadline.passed


def test_without_a_limit_only_asking_ends_it():
    deadline = Deadline()
    assert deadline.remaining is None
    assert deadline.half() is deadline
    deadline.stop()
    assert deadline.remaining == 0
    assert deadline.half().passed
