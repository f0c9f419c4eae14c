"""Whether a card computes what takes long on the processor: known to all parts of a search without being handed on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["computing_on", "device_for"]

_DEVICE: ContextVar[Any] = ContextVar("device", default=None)


@contextmanager
def computing_on(device: Any) -> Iterator[None]:
    """Let a device compute what is large enough for it, as long as this lasts; also in threads that get the context.

    Args:
        device: as `arrays.find_device` has it; None: the processor computes.
    """
    before = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(before)


def device_for(size: int, *, least: int) -> Any:
    """Return the device that computes, where the work is large enough for it; None: the processor.

    Args:
        size: of the work, in numbers.
        least: from which size on the device is quicker, the way there and back included.
    """
    return _DEVICE.get() if size >= least else None
