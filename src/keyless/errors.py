"""What can go wrong, and how it is said.

Bad input raises `InputError`. Numerical trouble is no error: it is a `Status` that travels with the result and
carries advice. This module imports nothing from the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ConvergenceWarning", "InputError", "KeylessError", "Status", "check_among", "printable"]

_LONGEST = 2_000
"""Characters of a message that are shown: enough for a sentence with a path and several names."""


def printable(text: object, *, lines: bool = False) -> str:
    r"""Return text that a terminal only shows: what it would take for a command, or hide, is written as an escape.

    These are control characters, also of the upper half (U+009B), marks that turn the direction of writing, and halves
    of characters. Every name that comes from a file goes through this before it is printed.

    Args:
        text: anything, perhaps with names from files.
        lines: keep line breaks; otherwise all blank characters in a row become one space.

    Example:
        >>> printable("a\x1b[31m\nred"), printable("\u202egpj.exe")
        ('a\\x1b[31m red', '\\u202egpj.exe')
    """
    written = str(text) if lines else " ".join(str(text).split())
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escaped(c) for c in written)


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


class KeylessError(Exception):
    """Base class of every error raised by keyless. Its message is one line of printable text, cut where it is long."""

    def __str__(self) -> str:
        said = printable(super().__str__())
        return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"


class InputError(KeylessError, ValueError):
    """The caller's input cannot be used.

    The message says what must be, what was found, where, and what to do about it.
    """


def check_among(name: str, found: object, allowed: Iterable[str]) -> None:
    """Refuse what is not one of a few texts."""
    allowed = list(allowed)
    if not isinstance(found, str) or found not in allowed:
        raise InputError(f"{name}: must be one of {', '.join(map(repr, allowed))}; found {found!r}.")


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
