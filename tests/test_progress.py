"""When to stop."""

import time

from keyless.progress import Deadline, is_late


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
