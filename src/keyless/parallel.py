"""Parts of a search side by side, with the same answer however many run at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from joblib import Parallel, cpu_count, delayed
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

__all__ = ["in_turn", "one_thread", "workers"]

Result = TypeVar("Result")

_MOST_WORKERS = 8
"""Most tasks that are worked on at a time: the first few tasks of a search often end it, and more would be in vain."""


def workers() -> int:
    """Return how many tasks are worked on at a time: one for each core that this process may use."""
    return min(int(cpu_count()), _MOST_WORKERS)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the linear algebra to one thread: more would change the order of its sums, and so the answer."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def in_turn(job: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], *, n_jobs: int) -> Iterator[Result]:
    """Yield job(*task) for every task, in their order, `n_jobs` at a time in threads of this process.

    The work inside is matrix products and exponentials, which let other threads run.
    """
    if n_jobs == 1:
        return (job(*task) for task in tasks)
    # The context tells when work is to be cut short, and threads do not inherit it.
    context = copy_context()
    results: Iterator[Result] = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")(
        delayed(context.copy().run)(job, *task) for task in tasks
    )
    return results
