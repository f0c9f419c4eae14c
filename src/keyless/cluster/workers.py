"""Work on shards of rows, the same whoever does it; and whether a card computes what takes long on the processor.

A search asks for work by `start(function, …)` and for what came of it by `fetch`. What `start` returns stands for the
result and may be given to further work: it stays where it was made, so that rows do not travel. In this process it is
the result itself; on a Dask cluster it is a future, which is made again from its inputs where a worker is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keyless.errors import InputError
from keyless.progress import check_time

__all__ = ["LOCAL", "Workers", "computing_on", "connected", "current_workers", "device_for", "local_workers"]


_DEVICE: ContextVar[Any] = ContextVar("device", default=None)
_CONNECT = 20
"""Seconds that a scheduler has to answer."""


class Workers:
    """Whoever works on shards. This one is this process; others do the same in another way.

    Work is done at once, one piece after the other; linear algebra and neighbours use all cores.

    Attributes:
        device: the card that computes, as `arrays.find_device` has it; None: the processor.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def start(self, function: Callable[..., Any], /, *given: Any) -> Any:
        """Begin `function(*given)` and return what stands for its result; `given` may hold such results.

        Args:
            function: a function of a module, so that workers can import it; the same arguments give the same result.
            given: its arguments: plain values, arrays, lists of them, and what `start` returned.
        """
        check_time()
        return function(*given)

    def fetch(self, held: Sequence[Any]) -> list[Any]:
        """Wait for results and return them, in order."""
        return list(held)

    def check(self, bytes_per_thread: int) -> int:
        """Refuse those who cannot do the work, before it begins; return how many there are.

        Args:
            bytes_per_thread: what one piece of work takes at the most.
        """
        del bytes_per_thread  # reading the tables has asked for memory already
        return 1

    @property
    def about(self) -> dict[str, Any]:
        """What a result says about who worked on it; nothing for this process without a device."""
        return {} if self.device is None else {"device": str(self.device)}


LOCAL = Workers()


def local_workers(device: Any) -> Workers:
    """Return this process with a card that computes; None: without."""
    return LOCAL if device is None else Workers(device)


def current_workers() -> Workers:
    """Return the workers of the Dask client that is open here, of this process where there is none."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        # Nobody can have opened a client.
        return LOCAL
    try:
        client = distributed.get_client()
    except ValueError:
        return LOCAL
    from keyless.cluster.dask_workers import DaskWorkers  # noqa: PLC0415 — Dask is an extra

    return DaskWorkers(client)


@contextmanager
def connected(address: str | None) -> Iterator[Workers]:
    """Work on a Dask cluster as long as this lasts; yield its workers.

    Args:
        address: of its scheduler, such as `tcp://10.0.0.5:8786`; None: a client that is open already, or nobody.
    """
    if address is None:
        yield current_workers()
        return
    try:
        from distributed import Client  # noqa: PLC0415 — an extra
    except ImportError as error:
        raise InputError('scheduler: needs Dask, which is not installed. Run: pip install "keyless[dask]"') from error
    try:
        client = Client(address, timeout=_CONNECT)
    except (OSError, ValueError) as error:
        raise InputError(
            f"scheduler: must be the address of a Dask scheduler that runs, such as tcp://10.0.0.5:8786; nobody "
            f"answers at {address}."
        ) from error
    with client:
        yield current_workers()


# --- a card of this machine: known to all parts of a search without being handed on -----------------------------------


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
