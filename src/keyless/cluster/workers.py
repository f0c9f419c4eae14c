"""Work on shards of rows, the same whoever does it.

A search asks for work by `start(function, …)` and for what came of it by `fetch`. What `start` returns stands for the
result and may be given to further work: it stays where it was made, so that rows do not travel. In this process it is
the result itself; on a Dask cluster it is a future, which is made again from its inputs where a worker is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["LOCAL", "Workers", "current_workers"]


class Workers(Protocol):
    """Whoever works on shards."""

    def start(self, function: Callable[..., Any], /, *given: Any) -> Any:
        """Begin `function(*given)` and return what stands for its result; `given` may hold such results.

        Args:
            function: a function of a module, so that workers can import it; the same arguments give the same result.
            given: its arguments: plain values, arrays, lists of them, and what `start` returned.
        """

    def fetch(self, held: Sequence[Any]) -> list[Any]:
        """Wait for results and return them, in order."""

    def check(self, bytes_per_thread: int) -> int:
        """Refuse those who cannot do the work, before it begins; return how many there are.

        Args:
            bytes_per_thread: what one piece of work takes at the most.
        """

    @property
    def about(self) -> dict[str, Any]:
        """What a result says about who worked on it; nothing for this process."""


class _Local:
    """This process. Work is done at once, one piece after the other; linear algebra and neighbours use all cores."""

    def start(self, function: Callable[..., Any], /, *given: Any) -> Any:
        return function(*given)

    def fetch(self, held: Sequence[Any]) -> list[Any]:
        return list(held)

    def check(self, bytes_per_thread: int) -> int:
        del bytes_per_thread  # reading the tables has asked for memory already
        return 1

    @property
    def about(self) -> dict[str, Any]:
        return {}


LOCAL: Workers = _Local()


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
