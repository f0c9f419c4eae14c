"""Names that want to be more than names."""

NAMES = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\u202egpj.exe",
    "\u2066left\u2069",
    "a\rb",
    "a\nkeyless: all is well",
    "\ud800",
    "\U000e0001tag",
    "\x7f\x08\x08",
    "\u200bzero\ufeff",
    "x" * 100_000,
    "",
    " ",
    "<script>alert(1)</script>",
    "'; DROP TABLE clinic; --",
    "../../etc/passwd",
    "=cmd|' /C calc'!A0",
    "%s%n%d",
    "{0.__class__}",
    "null",
    "é\u0301",
    "測定",
    "٣",
]
"""Column, table and row names that terminals, pages, files or formatters could take for something else."""


def is_harmless(text):
    """Tell whether a terminal only shows a text."""
    return all(c.isprintable() or c == "\n" for c in text)
