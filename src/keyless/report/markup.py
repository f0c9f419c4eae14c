"""Templates, and how names, entries and probabilities are shown.

All HTML is in `templates/`, where every value is escaped. What comes from the user goes through `label` or `one_line`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["LONGEST", "STEPS", "PageTable", "environment", "label", "one_line", "packed", "shown_probability", "steps"]

LONGEST = 120
"""Characters of a name, id or entry that are shown."""

SHORT = 24
"""Up to so many characters are never broken into lines."""

STEPS = 10_000
"""Probabilities are kept in whole steps of one part in so many, and always rounded down."""

_ROUNDING = 1e-9
"""Part of a step that is lost when 0.9 is multiplied: 0.9 is still at least 90%."""

# What HTML has no character for, and marks that change the direction of everything after them.
_ODD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


@cache
def environment() -> Environment:
    """Return the templates. Every value is escaped; a name that a template uses and nobody gave is an error."""
    made = Environment(
        loader=PackageLoader("keyless.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(label=label, one_line=one_line, whole="{:,}".format)
    return made


def one_line(value: object, longest: int = LONGEST) -> str:
    r"""Return a value as one line of text that can be shown, cut where it is long.

    Example:
        >>> one_line("a\n  b"), one_line("x" * 9, longest=5)
        ('a b', 'xxxx…')
    """
    # A cell of a million characters is not split whole.
    line = " ".join(_ODD.sub("\ufffd", str(value)[: 4 * longest + 1]).split()) or "(empty)"
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def label(value: object, longest: int = LONGEST) -> Markup:
    """Return a name, id or entry of the user's as HTML that keeps its own direction of writing.

    Example:
        >>> label("<script>")
        Markup('<bdi class="s">&lt;script&gt;</bdi>')
    """
    line = one_line(value, longest)
    # Short ones stay in one line.
    return Markup('<bdi class="s">{}</bdi>' if len(line) <= SHORT else "<bdi>{}</bdi>").format(line)


def steps(probability: float) -> int | None:
    """Return a probability in whole steps, rounded down: it is never stated higher than it is. None if not a number.

    Example:
        >>> steps(0.9), steps(0.99999), steps(1.0), steps(float("nan"))
        (9000, 9999, 10000, None)
    """
    return int(probability * STEPS + _ROUNDING) if math.isfinite(probability) else None


def shown_probability(count: int | None) -> str:
    """Return a probability, given in steps, as the page shows it; the page's script does the same.

    Example:
        >>> [shown_probability(count) for count in (10_000, 9_991, 9_990, 8_999, 10, 9, None)]
        ['>0.999', '>0.999', '0.999', '0.899', '0.001', '<0.001', '–']
    """
    if count is None:
        return "–"
    if count * 1000 > 999 * STEPS:
        return ">0.999"
    thousandths = count * 1000 // STEPS
    return f"0.{thousandths:03d}" if thousandths else "<0.001"


def packed(document: Any) -> str:
    """Return plain values for the page's script: JSON, deflated, in base64, which needs no escaping."""
    plain = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(plain, 6)).decode()


@dataclass(frozen=True)
class PageTable:
    """A table of the page. The first cell of a line names the line.

    Attributes:
        caption: what the table shows, for those who do not see the page.
        heads: of the columns, our own words.
        lines: the cells: text, or HTML from `label`.
        numbers: columns that hold numbers.
    """

    caption: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    numbers: Collection[int] = ()
