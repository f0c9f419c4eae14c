"""How far things are, and when to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TypeVar

__all__ = [
    "Callback",
    "Deadline",
    "answering_signals",
    "check_time",
    "cut_short",
    "in_time",
    "is_late",
    "stopped_by_interrupt",
    "time_left",
]

Callback = Callable[[str, int, int, float], object]
"""Called with stage, step, total (0 where it is not known beforehand) and objective."""

Result = TypeVar("Result")

_LOOK = 0.02
"""Seconds between two looks at the time while a long step runs."""

_GRACE, _GRACE_SHARE = 0.6, 0.06
"""Seconds, and share of the time limit, in which what was begun before a deadline may be finished after it.

That is three fifths of what a result may be late by, a second and a tenth of the limit; the rest is for the step of
work that is under way when the grace ends, and for putting the result together."""

_BUSY = 4.0
"""Times the grace that it lasts by the clock at the most, on a machine that others keep so busy."""


class Deadline:
    """The moment after which nothing new is begun and the best so far is returned.

    Args:
        seconds: from now; None: only when `stop` is called.
        within: one that ends later; whoever stops either of them stops both.

    Example:
        >>> deadline = Deadline()
        >>> deadline.passed
        False
        >>> deadline.stop()
        >>> deadline.passed
        True
    """

    def __init__(self, seconds: float | None = None, *, within: Deadline | None = None) -> None:
        self._moment = None if seconds is None else time.monotonic() + seconds
        self._grace = _GRACE + _GRACE_SHARE * (seconds or 0.0)
        self._worked: float | None = None
        self._asked, self._within = False, within

    @property
    def asked(self) -> bool:
        """Whether `stop` was called."""
        return self._asked or (self._within is not None and self._within.asked)

    @property
    def passed(self) -> bool:
        """Whether it is time to stop."""
        found = self.asked or (self._moment is not None and time.monotonic() >= self._moment)
        if found and self._worked is None:
            self._worked = time.process_time()
        return found

    @property
    def over(self) -> bool:
        """Whether it is time to give up even what was begun before; never where only `stop` was called.

        That is some time after the deadline, by the clock and by the processor time of this process: a machine that
        others keep busy does not turn results that are almost there into none.
        """
        if self._moment is None or not self.passed or self._worked is None:
            return False
        late, worked = time.monotonic() - self._moment, time.process_time() - self._worked
        return late >= self._grace and (worked >= self._grace or late >= _BUSY * self._grace)

    @property
    def remaining(self) -> float | None:
        """Seconds until then, none after; None where there is no such moment yet."""
        if self.asked:
            return 0.0
        return None if self._moment is None else max(self._moment - time.monotonic(), 0.0)

    def half(self) -> Deadline:
        """Return one for the first of two stages: half of the seconds that remain; without any, this one."""
        return self if self._moment is None or self.asked else Deadline((self.remaining or 0.0) / 2, within=self)

    def stop(self) -> None:
        """Make now the moment."""
        self._asked = True
        if self._within is not None:
            self._within.stop()


def time_left(deadline: Deadline | None) -> float | None:
    """Return the seconds until a deadline, at least a moment, so that what is quick is always done; None: no limit."""
    left = None if deadline is None else deadline.remaining
    return None if left is None else max(left, 1e-3)


def is_late(deadline: Deadline | None) -> bool:
    """Tell whether there is a deadline and it has passed."""
    return deadline is not None and deadline.passed


class _TimeUpError(Exception):
    """Work is cut short."""


_CUT: ContextVar[tuple[Callable[[], bool], ...]] = ContextVar("cut", default=())
"""For each block of `cut_short` that is entered, what tells whether it is to be left."""


class cut_short:  # noqa: N801 - it reads like a function, and mypy must know that it may swallow an error
    """Leave the block when a deadline passes, at the next `check_time` inside; what it would have set stays as it was.

    Args:
        deadline: when the block is left; None: only with a block around it.
        grace: whether the block is left only when the deadline is over, see `Deadline.over`.

    Example:
        >>> best = "the first guess"
        >>> with cut_short(Deadline(0)):
        ...     check_time()
        ...     best = "a better guess"
        >>> best
        'the first guess'
    """

    def __init__(self, deadline: Deadline | None, *, grace: bool = False) -> None:
        self._asked: tuple[Callable[[], bool], ...] = ()
        # Without a time limit nothing is ever over.
        if deadline is not None and not (grace and deadline.remaining is None):
            self._asked = (lambda: deadline.over if grace else deadline.passed,)

    def __enter__(self) -> None:
        self._before = _CUT.set((*_CUT.get(), *self._asked))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        _CUT.reset(self._before)
        return bool(self._asked) and isinstance(error, _TimeUpError)


def check_time() -> None:
    """Leave the innermost block of `cut_short` if its deadline, or that of one around it, has passed.

    Called in each step of long work. The blocks around are left at the next call in each of them.
    """
    if any(asked() for asked in _CUT.get()):
        raise _TimeUpError


def in_time(work: Callable[[], Result]) -> Result:
    """Return what one long step gives that cannot look at the time itself, such as one call of a compiled library.

    Inside a block of `cut_short` the step runs in a thread of its own. Where the block is to be left before the step is
    done, it is left, and the thread ends by itself; what it gives then is lost.

    Args:
        work: the step; it must let other threads run.

    Example:
        >>> in_time(lambda: 3 + 4)
        7
    """
    if not _CUT.get():
        return work()
    given: list[Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(work())
        except BaseException as error:  # raised again below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK)
        check_time()
    if raised:
        raise raised[0]
    return given[0]


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
