"""HTML by hand: everything that comes from the user goes through `text` or `label`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["label", "one_line", "rows", "section", "text"]

LONGEST = 120
"""Characters of a name, id or entry that are shown."""

SHORT = 24
"""Up to so many characters are never broken into lines."""

# What HTML has no character for, and marks that change the direction of everything after them.
_ODD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def one_line(value: object, *, longest: int = LONGEST) -> str:
    r"""Return a value as one line of text that can be shown, cut where it is long.

    Example:
        >>> one_line("a\n  b"), one_line("x" * 9, longest=5)
        ('a b', 'xxxx…')
    """
    # A cell of a million characters is not split whole.
    line = " ".join(_ODD.sub("\ufffd", str(value)[: 4 * longest + 1]).split()) or "(empty)"
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def text(value: object) -> str:
    """Return our own words as HTML."""
    return escape(str(value))


def label(value: object, *, longest: int = LONGEST) -> str:
    """Return a name, id or entry of the user's as HTML that keeps its own direction of writing.

    Example:
        >>> label("<script>")
        '<bdi class="s">&lt;script&gt;</bdi>'
    """
    line = one_line(value, longest=longest)
    # Short ones stay in one line.
    kind = ' class="s"' if len(line) <= SHORT else ""
    return f"<bdi{kind}>{escape(line)}</bdi>"


def section(anchor: str, heading: str, *parts: str) -> str:
    """Return a section with a heading (HTML) and its parts; nothing where there are no parts."""
    body = "\n".join(part for part in parts if part)
    if not body:
        return ""
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-h">\n<h2 id="{anchor}-h">{heading}</h2>\n{body}\n</section>'
    )


def rows(heads: Sequence[str], lines: Iterable[Sequence[str]], *, caption: str, numbers: Sequence[int] = ()) -> str:
    """Return a table whose cells are HTML; the first cell of a line names it.

    Args:
        heads: of the columns.
        lines: the cells.
        caption: what the table shows, for those who do not see the page.
        numbers: columns that hold numbers.
    """

    def css(k: int) -> str:
        return ' class="n"' if k in numbers else ""

    head = "".join(f'<th scope="col"{css(k)}>{name}</th>' for k, name in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row"{css(k)}>{cell}</th>' if k == 0 else f"<td{css(k)}>{cell}</td>"
            for k, cell in enumerate(line)
        )
        + "</tr>\n"
        for line in lines
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f'<caption class="hidden">{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>'
        "</table></div>"
    )
