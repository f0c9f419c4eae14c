"""What a search may spend, and how its parts run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from keyless.arrays import check_count, check_positive
from keyless.errors import InputError

__all__ = ["SearchOptions", "in_turn", "one_thread"]

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What the search may spend; the defaults are meant for tables of 50 to 2,000 rows.

    Attributes:
        max_rank: the most factors of a table.
        spaces: factor spaces in which first couplings are sought, three couplings each.
        beams: whether to search among maps of few factors when the starts do not agree.
        beam_width: how many maps a beam keeps.
        beam_ranks: numbers of factors a beam goes through.
        beam_steps: soft steps per map and rank.
        carried: how many maps a beam hands over.
        parents: how many candidates breed.
        rounds: the most rounds of breeding.
        attempts: how often beams and breeding are tried, each time with other random numbers, until candidates agree.
        max_correlation: above which correlations are cut while couplings are soft.
        temperature: of soft couplings: the ε of their entropy, in nats; 1 gives the posterior.
        weights: only spaces that weight factors by these powers of their strength; None: all.
        agreeing: the search is settled when this many candidates found the same correspondence.
    """

    max_rank: int = 40
    spaces: int = 10
    beams: bool = True
    beam_width: int = 24
    beam_ranks: tuple[int, ...] = (4, 6, 8, 10, 12)
    beam_steps: int = 10
    carried: int = 12
    parents: int = 12
    rounds: int = 4
    attempts: int = 2
    agreeing: int = 3
    max_correlation: float = 0.995
    temperature: float = 1.0
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("max_rank", "spaces", "beam_width", "beam_steps", "carried", "parents", "attempts", "agreeing"):
            check_count(getattr(self, name), name=name)
        check_positive(self.temperature, name="temperature")
        if not 0 < self.max_correlation < 1:
            raise InputError(f"max_correlation: must be between 0 and 1; found {self.max_correlation!r}.")
        if self.rounds < 0:
            raise InputError(f"rounds: must be 0 or more; found {self.rounds!r}.")
        if not self.beam_ranks or list(self.beam_ranks) != sorted(set(self.beam_ranks)) or self.beam_ranks[0] < 1:
            raise InputError(f"beam_ranks: must be rising whole numbers of at least 1; found {self.beam_ranks!r}.")


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the linear algebra to one thread: more would change the order of its sums, and so answers with `n_jobs`."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def in_turn(job: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], *, n_jobs: int) -> Iterator[Result]:
    """Yield job(*task) for every task, in their order, `n_jobs` at a time in threads of this process.

    The work inside is matrix products and exponentials, which let other threads run.
    """
    if n_jobs == 1:
        return (job(*task) for task in tasks)
    results: Iterator[Result] = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")(
        delayed(job)(*task) for task in tasks
    )
    return results
