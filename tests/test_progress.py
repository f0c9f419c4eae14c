"""Deadlines: what remains, half of it, and being asked to stop."""

from __future__ import annotations

import threading
import time

import pytest

from keyless.parallel import in_turn
from keyless.progress import Deadline, check_time, cut_short, in_time, is_late, time_left
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


@pytest.fixture
def processor(monkeypatch):
    """Processor time that does not pass unless it is moved."""
    worked = [7.0]
    monkeypatch.setattr(progress.time, "process_time", lambda: worked[0])
    return worked


def test_work_under_way_may_be_finished_a_little_later(clock, processor):
    deadline = Deadline(20)
    clock[0] += 20
    assert (deadline.passed, deadline.over) == (True, False)
    clock[0], processor[0] = clock[0] + 1.7, processor[0] + 1.7
    assert not deadline.over
    clock[0], processor[0] = clock[0] + 0.2, processor[0] + 0.2
    assert deadline.over


@pytest.mark.parametrize(
    ("passed", "worked", "then"),
    [
        pytest.param(2, 0.5, (0, 0.2), id="others keep the machine busy"),
        pytest.param(0.5, 50, (0.2, 0), id="other threads are at work"),
    ],
)
def test_a_busy_machine_leaves_as_much_time(clock, processor, passed, worked, then):
    deadline = Deadline(0)
    assert deadline.passed
    clock[0], processor[0] = clock[0] + passed, processor[0] + worked
    assert not deadline.over
    clock[0], processor[0] = clock[0] + then[0], processor[0] + then[1]
    assert deadline.over


@pytest.mark.usefixtures("processor")
def test_nobody_waits_for_ever_on_a_busy_machine(clock):
    deadline = Deadline(0)
    assert deadline.passed
    clock[0] += 2.5
    assert deadline.over


def test_who_asks_to_stop_waits_for_work_under_way(clock, processor):
    deadline = Deadline()
    deadline.stop()
    assert deadline.passed
    clock[0], processor[0] = clock[0] + 1000, processor[0] + 1000
    assert not deadline.over


def test_a_moment_is_always_left(clock):
    assert time_left(None) is None
    assert time_left(Deadline(5)) == 5
    clock[0] += 1
    assert 0 < time_left(Deadline(0)) < 0.1


def test_a_block_is_left_when_its_time_is_up(clock):
    done = []
    with cut_short(Deadline(10)):
        for step in range(5):
            check_time()
            done.append(step)
            clock[0] += 4
    assert done == [0, 1, 2]
    check_time()  # outside of a block nothing happens


def test_blocks_around_are_left_at_their_own_next_step(clock):
    done = []
    with cut_short(Deadline(10)):
        with cut_short(Deadline(100)), cut_short(None):
            clock[0] += 20
            check_time()
            done.append("inner")
        done.append("between")
        check_time()
        done.append("outer")
    assert done == ["between"]


def test_other_errors_come_out_of_a_block():
    with pytest.raises(KeyError), cut_short(Deadline(0)):
        raise KeyError


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_threads_are_cut_short_with_the_block_that_began_them(n_jobs):
    def job(_number):
        check_time()
        return "done"

    found = []
    with cut_short(Deadline(0)):
        found += in_turn(job, [(1,), (2,)], n_jobs=n_jobs)
    assert found == []
    assert list(in_turn(job, [(1,), (2,)], n_jobs=n_jobs)) == ["done", "done"]


def test_a_long_step_is_waited_for():
    with cut_short(Deadline(1000)):
        assert in_time(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            in_time(lambda: 1 / 0)
    assert in_time(lambda: 8) == 8


def test_a_long_step_is_left_when_time_is_up():
    began, ended = time.monotonic(), threading.Event()
    with cut_short(Deadline(0.05)):
        in_time(lambda: ended.wait(30))
        pytest.fail("the block was not left")
    assert time.monotonic() - began < 10
    ended.set()
