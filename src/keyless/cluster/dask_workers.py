"""The workers of a Dask cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keyless
from keyless.cluster.workers import Workers
from keyless.errors import InputError, KeylessError
from keyless.progress import in_time

__all__ = ["DaskWorkers"]

_WAIT = 60
"""Seconds that are waited for a first worker to join the cluster."""

_LIBRARIES = 400_000_000
"""Bytes that a worker takes before it has worked on anything."""


class DaskWorkers(Workers):
    """The workers of a Dask cluster, through a client that is connected to it.

    Dask makes results again that a lost worker held, from the files and from other results.

    Args:
        client: a `distributed.Client`.
    """

    def __init__(self, client: Any) -> None:
        super().__init__()
        self.client = client
        self.address = str(client.scheduler.address) if client.scheduler is not None else "the scheduler"

    def start(self, function: Callable[..., Any], /, *given: Any) -> Any:
        """Begin work on the cluster; see `Workers.start`."""
        with self._named():
            return self.client.submit(function, *given, pure=False)

    def fetch(self, held: Sequence[Any]) -> list[Any]:
        """Wait for results and bring them here; see `Workers.fetch`."""
        with self._named():
            try:
                return list(in_time(lambda: self.client.gather(list(held))))
            except BaseException:
                # Time is up, or the user stops it: nobody waits for the rest.
                if self.client.status == "running":
                    self.client.cancel(list(held))
                raise

    @property
    def about(self) -> dict[str, Any]:
        """Where the cluster is, and where it shows what it does."""
        return {"scheduler": self.address, "dashboard": self.client.dashboard_link}

    def check(self, bytes_per_thread: int) -> int:
        """Refuse workers that cannot do the work, before it begins; return how many there are.

        Args:
            bytes_per_thread: what one piece of work takes at the most.
        """
        with self._named():
            try:
                self.client.wait_for_workers(1, timeout=_WAIT)
            except TimeoutError as error:
                raise InputError(
                    f"{self.address}: must have workers; none joined within {_WAIT} s. Start some: dask worker "
                    f"{self.address}"
                ) from error
            found = self.client.run(_about_worker)
        for worker, (version, threads, limit) in sorted(found.items()):
            if version != keyless.__version__:
                raise InputError(
                    f"worker {worker}: must have keyless {keyless.__version__}, as this process has; found {version}. "
                    "Install the same version on every machine."
                )
            needed = _LIBRARIES + threads * bytes_per_thread
            if limit and limit < needed:
                these = "1 thread" if threads == 1 else f"{threads} threads"
                raise InputError(
                    f"worker {worker}: must have at least {needed / 1e9:.1f} GB of memory for {these}; it has "
                    f"{limit / 1e9:.1f} GB. Start it with a higher --memory-limit, or with fewer threads."
                )
        return len(found)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Say in one line what happened to the cluster."""
        from distributed import KilledWorker  # noqa: PLC0415 — an extra

        try:
            yield
        except KilledWorker as error:
            raise KeylessError(
                f"worker {error.last_worker.address}: must survive its work; it was lost, and so were those that the "
                "same work was given to before. Most often that is for want of memory: start workers with a higher "
                "--memory-limit, or with fewer threads."
            ) from error
        except Exception as error:
            if self.client.status == "running":
                raise
            raise KeylessError(
                f"{self.address}: must stay reachable; the connection to the scheduler was lost. Finished stages are "
                "kept where --out or checkpoint says: the same command with --resume goes on from there."
            ) from error


def _about_worker(dask_worker: Any) -> tuple[str, int, int]:
    """Return the version of keyless, the threads and the bytes of memory that a worker has."""
    return keyless.__version__, int(dask_worker.state.nthreads), int(dask_worker.memory_manager.memory_limit or 0)
