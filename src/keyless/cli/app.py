"""The app, its exit codes, and how trouble is told: one line, no traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from cyclopts import App, CycloptsError

import keyless
from keyless.cli.options import JoiningOptions, LinkingOptions, ReadingOptions
from keyless.errors import InputError, KeylessError, printable

__all__ = ["DONE", "FAILURE", "INTERRUPTED", "NOT_LINKED", "WRONG_USE", "app", "main", "say", "write_out"]

DONE, FAILURE, WRONG_USE, NOT_LINKED, INTERRUPTED = 0, 1, 2, 3, 130

_LONGEST = 2_000
"""Characters of a line on stderr."""

_OPTIONS = {field.name for group in (ReadingOptions, LinkingOptions, JoiningOptions) for field in fields(group)}
"""Options that the library has, too, as it calls them."""

app = App(
    name="keyless",
    version=keyless.__version__,
    help="Join tables that share no key: recover which row belongs to which from the numbers alone.",
    help_epilogue="Example: `keyless demo`",
    suppress_keyboard_interrupt=False,  # answered below
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code.

    Args:
        arguments: the words after `keyless`; those of the process by default.
    """
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _say_warning  # type: ignore[assignment]
            code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        if sys.stdout is not None:
            sys.stdout.flush()
    except InputError as error:
        return _complain(_with_option(error), WRONG_USE)
    except CycloptsError as error:
        return _complain(error, WRONG_USE)
    except BrokenPipeError:
        # Whoever read our output has gone: say nothing, also not when Python closes stdout.
        _leave_stdout()
        return FAILURE
    except OSError as error:
        _leave_stdout()
        return _complain(_in_words(error), FAILURE)
    except KeylessError as error:
        return _complain(error, FAILURE)
    except MemoryError as error:
        more = f" ({error})" if str(error) else ""
        return _complain(f"not enough memory{more}. `keyless inspect` says how much linking needs.", FAILURE)
    except KeyboardInterrupt as error:
        return _complain(f"interrupted; {str(error) or 'nothing was saved.'}", INTERRUPTED)
    except Exception as error:
        if os.environ.get("KEYLESS_DEBUG"):
            raise
        return _complain(
            f"unexpected {type(error).__name__}: {error}. This is a mistake in keyless, not yours. "
            "Set KEYLESS_DEBUG=1 to see where it happened, and please report it.",
            FAILURE,
        )
    return code if isinstance(code, int) else DONE


def say(message: object) -> None:
    """Tell the user something, in one line on stderr."""
    if sys.stderr is None:
        return
    said = printable(message)
    sys.stderr.write(f"keyless: {said if len(said) <= _LONGEST else said[: _LONGEST - 1] + '…'}\n")
    sys.stderr.flush()


def write_out(text: str, *, data: bool = False) -> None:
    """Write results to stdout, in UTF-8 wherever it leads.

    Args:
        text: what to write; names in it are made printable.
        data: whether it is a table for another program, which gets every character as it is, unless a terminal shows
            it.
    """
    if sys.stdout is None:
        raise KeylessError("standard output is closed: there is nowhere to write to. Leave it open, or use --out.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text if data and not sys.stdout.isatty() else printable(text, lines=True))


def _leave_stdout() -> None:
    """Let Python say nothing about stdout when it closes it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: object, code: int) -> int:
    say(message)
    return code


def _with_option(error: InputError) -> str:
    """Return a message of the library with the option named as the command line has it: `--known-pairs: …`."""
    said = str(error)
    name = said.partition(":")[0]
    named = name in _OPTIONS or name in ("row", "partner", "table")  # the last are those of `keyless explain`
    return f"--{name.replace('_', '-')}{said.removeprefix(name)}" if named else said


def _say_warning(message: Warning | str, *_where: Any) -> None:
    say(f"warning: {message}")


def _in_words(error: OSError) -> str:
    """Say what the system refused, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return (
                f"{where}could not be written, the disk is full or a size limit was met ({error.strerror}). "
                "Nothing that was there before was changed. Make room, or choose another place with --out."
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{where}{error.strerror}. Change its permissions, or choose another place."
        case errno.ENOENT:
            return f"{where}there is no such file or folder. Check the name."
        case _:
            return f"{where}{error.strerror or error}."
