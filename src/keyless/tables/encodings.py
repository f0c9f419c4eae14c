"""How a text file is encoded."""

from __future__ import annotations

import codecs
import re

from keyless.errors import InputError
from keyless.tables.reading_options import Reading, option

__all__ = ["Encoding"]

_ONLY_WINDOWS = re.compile(rb"[\x80-\x9f]")
"""Signs in cp1252 (such as the euro sign), control characters that no table has in latin-1."""

_NOT_WINDOWS = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""Nothing in cp1252."""


class Encoding:
    """Tell UTF-8 from cp1252 and latin-1, and refuse a mixture and what is no text."""

    def __init__(self, where: str, reading: Reading) -> None:
        self.where, self.door = where, reading.door
        self.given = reading.encoding if isinstance(reading.encoding, str) else None
        self.rest = b""
        self.first = True
        self.wide: str | None = None
        self.utf8: int | None = None
        self.other: int | None = None
        self.windows = self.latin = False

    def feed(self, chunk: bytes, lines: int) -> None:
        """Look at the next bytes of the file, before which there are `lines` line breaks."""
        if self.first:
            self.first = False
            if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self.wide = "utf-16"
        if self.given is not None or self.wide is not None:
            return
        self.last = lines + chunk.count(b"\n") + 1
        if chunk.isascii() and b"\0" not in chunk and self.rest.isascii() and b"\0" not in self.rest:
            # Nothing to look at line by line.
            _, mark, after = chunk.rpartition(b"\n")
            self.rest = after if mark else self.rest + after
            return
        *whole, self.rest = (self.rest + chunk).split(b"\n")
        for number, line in enumerate(whole, start=lines + 1):
            self._look(line, number)

    def _look(self, line: bytes, number: int) -> None:
        if b"\0" in line:
            raise InputError(
                f"{self.where}, line {number}: must be text; found a zero byte. It is a file of another format."
            )
        if line.isascii() or line.removeprefix(codecs.BOM_UTF8).isascii():
            return
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            self.other = self.other or number
            self.windows = self.windows or _ONLY_WINDOWS.search(line) is not None
            self.latin = self.latin or _NOT_WINDOWS.search(line) is not None
        else:
            self.utf8 = self.utf8 or number

    def verdict(self) -> tuple[str, tuple[str, ...]]:
        """Return the encoding, and what there is to say about it, once the whole file was looked at."""
        if self.given is not None:
            return self.given, ()
        if self.wide is not None:
            return self.wide, ("encoded as UTF-16",)
        self._look(self.rest, self.last)
        if self.other is None:
            return "utf-8", ()
        if self.utf8 is not None:
            raise InputError(
                f"{self.where}: must be in one encoding; line {self.utf8} is UTF-8 and line {self.other} is not. "
                f"Save it in one encoding, or name the one to use with {option(self.door, 'encoding', 'cp1252')}."
            )
        found = "cp1252" if self.windows and not self.latin else "latin-1"
        another = option(self.door, "encoding")
        return found, (
            f"line {self.other} is not UTF-8, so the file was read as {found}; to change that, use {another}",
        )
