"""Deadlines: what remains, half of it, and being asked to stop."""

from __future__ import annotations

import pytest

from keyless import progress
from keyless.progress import Deadline, is_late


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
