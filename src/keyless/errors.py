"""What can go wrong, and how it is said.

Bad input raises `InputError`. Numerical trouble is no error: it is a `Status` that travels with the result and
carries advice. This module imports nothing from the package.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConvergenceWarning", "InputError", "KeylessError", "Status"]


class KeylessError(Exception):
    """Base class of every error raised by keyless."""


class InputError(KeylessError, ValueError):
    """The caller's input cannot be used.

    The message says what must be, what was found, where, and what to do about it.
    """


class ConvergenceWarning(UserWarning):
    """An iteration stopped before it settled; the result is usable but not final."""


@dataclass(frozen=True)
class Status:
    """How an iteration ended.

    Attributes:
        reason: one word: `"converged"`, `"max_iter"`, `"max_time"`, `"running"`, ….
        advice: what the caller can do about it; empty when there is nothing to do.
    """

    reason: str
    advice: str = ""

    @property
    def converged(self) -> bool:
        """Whether the iteration reached its goal."""
        return self.reason == "converged"

    def __str__(self) -> str:
        return f"{self.reason}: {self.advice}" if self.advice else self.reason


CONVERGED = Status("converged")
RUNNING = Status("running")
