"""How far things are, and when to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["Callback", "Deadline", "answering_signals", "is_late", "stopped_by_interrupt"]

Callback = Callable[[str, int, int, float], object]
"""Called with stage, step, total (0 where it is not known beforehand) and objective."""


class Deadline:
    """The moment after which nothing new is begun and the best so far is returned.

    Args:
        seconds: from now; None: only when `stop` is called.

    Attributes:
        asked: whether `stop` was called.

    Example:
        >>> deadline = Deadline()
        >>> deadline.passed
        False
        >>> deadline.stop()
        >>> deadline.passed
        True
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._moment = None if seconds is None else time.monotonic() + seconds
        self.asked = False

    @property
    def passed(self) -> bool:
        """Whether it is time to stop."""
        return self.asked or (self._moment is not None and time.monotonic() >= self._moment)

    @property
    def remaining(self) -> float | None:
        """Seconds until then, none after; None where there is no such moment yet."""
        if self.asked:
            return 0.0
        return None if self._moment is None else max(self._moment - time.monotonic(), 0.0)

    def half(self) -> Deadline:
        """Return one for the first of two stages: half of the seconds that remain; without any, this one."""
        return self if self._moment is None or self.asked else Deadline((self.remaining or 0.0) / 2)

    def stop(self) -> None:
        """Make now the moment."""
        self.asked = True


def is_late(deadline: Deadline | None) -> bool:
    """Tell whether there is a deadline and it has passed."""
    return deadline is not None and deadline.passed


@contextmanager
def stopped_by_interrupt(deadline: Deadline) -> Iterator[None]:
    """While entered, let the first Ctrl-C stop a search with its best so far; the second interrupts as usual.

    Only where Python's own handler is in place: what a program handles itself is left alone.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with answering_signals(deadline.stop, signals=(signal.SIGINT,)):
            yield
    else:
        yield


@contextmanager
def answering_signals(stop: Callable[[], object], *, signals: Sequence[signal.Signals]) -> Iterator[None]:
    """While entered, let the first of some signals call `stop`, and the second raise KeyboardInterrupt.

    Only in the main thread: others may not set handlers.

    Args:
        stop: called at the first signal.
        signals: that are answered.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def answer(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        stop()

    before = {number: signal.signal(number, answer) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
