"""Ctrl-C: once to stop soon and keep the best so far, twice to quit at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stop"]

_MESSAGE = b"\nkeyless: stopping with the best so far (press Ctrl-C again to quit at once)\n"


class Stop:
    """While entered, turns the first SIGINT or SIGTERM into a request to stop and the second into KeyboardInterrupt.

    Attributes:
        requested: whether a signal came.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._answer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _answer(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Straight to the file: the signal may have come while stderr's buffer was in use.
        os.write(2, _MESSAGE)
