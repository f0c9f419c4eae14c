"""Numbers as people write them ↔ numbers: decimal commas, thousands, percent, currencies, units, accounting negatives.

A style is found for a whole column and never for one cell: what one cell leaves open another one decides. Where no cell
decides (`12,650` alone may be 12.65 or 12650) the style is marked as open, and whoever reads the column asks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyless.arrays import BoolArray

__all__ = ["PLAIN", "NumberStyle", "Styled", "Written", "styled"]


_SPACES = " \u00a0\u202f\u2009"
"""Blanks that divide thousands: plain, not breaking, narrow, thin."""

_APOSTROPHES = "'\u2019"
_MINUS = "\u2212\u2013-"
"""Signs of negative numbers: minus, the dash that word processors make of it, and hyphen, last as a class needs it."""

_CURRENCY = r"\p{Sc}|EUR|USD|CHF|GBP|JPY|CNY|SEK|NOK|DKK|PLN|CZK|HUF|INR|AUD|CAD|NZD|BRL|MXN|ZAR|TRY|RUB|Fr\.|kr"
_UNIT = r"\p{Sc}|%|‰|°|°?\p{L}[^\s()]{0,14}"
"""A currency, a percent sign, degrees, or one word that begins with a letter."""

_GAP = rf"[\s{_SPACES}]*"

_CELL = (
    rf"^(?P<open>\(?){_GAP}(?P<sign>[+{_MINUS}]?){_GAP}(?P<before>(?:{_CURRENCY})?)(?P<gap>{_GAP})(?P<inner>[+{_MINUS}]?)"
    rf"(?P<body>(?:\d(?:[\d.,{_APOSTROPHES}{_SPACES}]*[\d.,])?|[.,]\d+)(?:[eE][+-]?\d+)?)(?P<space>{_GAP})"
    rf"(?P<after>(?:{_UNIT})?){_GAP}(?P<close>\)?)$"
)

_ATTACHED_UNITS = re.compile(
    r"[kmµμund]?g|t|lbs?|oz|[kcmµμn]?m[²³]?|in|ft|yd|mi|h?a|[mdcµμ]?l|[mdc]L|m?s|min|h|hrs?|yrs?|[kMG]?Hz|[mk]V|mA|"
    r"[kM]Wh?|k?J|k?cal|kN|[hkM]?Pa|m?bar|psi|bpm|[mµμn]?mol|mmHg|dB|px|(\w{1,4})/(\w{1,3})"
)
"""Units that may stand directly behind whole numbers; any other word there may be part of a name, such as `12A`."""

_SURE_UNIT = re.compile(r"[%‰°€$£¥]|^°")


@dataclass(frozen=True)
class NumberStyle:
    """How the numbers of a column are written.

    Attributes:
        decimal: decimal mark.
        thousands: what divides thousands; empty for nothing.
        before: text before every number, a currency, with the blanks between.
        after: text behind every number, a unit or currency, with the blanks between.
        parentheses: whether negative numbers stand in parentheses instead of behind a minus.
    """

    decimal: str = "."
    thousands: str = ""
    before: str = ""
    after: str = ""
    parentheses: bool = False

    def plain(self, texts: Iterable[Any]) -> list[str | None]:
        """Return cells as numbers in Python's writing, None for what is no number of this style.

        Args:
            texts: text or None, perhaps with blanks around it.

        Example:
            >>> NumberStyle(decimal=",", thousands=".", after=" €").plain(["10.010,5 €", " -3 €", "?", None])
            ['10010.5', '-3', None, None]
        """
        cells = pa.array([text if isinstance(text, str) else None for text in texts], type=pa.large_string())
        read: list[str | None] = Written(pc.utf8_trim_whitespace(cells)).read(self).to_pylist()
        return read

    def written(self, plain: Sequence[str]) -> list[str]:
        """Return numbers in Python's writing in this style.

        Args:
            plain: numbers with a decimal point.

        Example:
            >>> NumberStyle(thousands=",", before="$", parentheses=True).written(["-1234.50"])
            ['($1,234.50)']
        """
        return list(plain) if self == PLAIN else [self._written(text) for text in plain]

    def _written(self, text: str) -> str:
        negative, text = text.startswith("-"), text.lstrip("+-")
        whole, point, rest = text.partition(".")
        if self.thousands and whole.isdigit() and not whole.startswith("0") and len(whole) > 3:
            whole = re.sub(r"(?<=\d)(?=(?:\d{3})+$)", lambda _found: self.thousands, whole)
        number = whole + (self.decimal if point else "") + rest
        sign = "-" if negative and not self.parentheses else ""
        dressed = f"{sign}{self.before}{number}{self.after}"
        return f"({dressed})" if negative and self.parentheses else dressed


PLAIN = NumberStyle()


@dataclass(frozen=True, eq=False)
class Written:
    """Cells that may be numbers, taken apart.

    Attributes:
        texts: an Arrow array of text without blanks around it.
    """

    texts: Any

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Sign, currency, digits, unit and parentheses of each cell; null where a cell is nothing like a number."""
        found = pc.extract_regex(self.texts, _CELL)
        return {part: pc.struct_field(found, part) for part in _PARTS}

    @cached_property
    def like_numbers(self) -> BoolArray:
        """Which cells have the parts of a number."""
        return np.asarray(pc.is_valid(self.parts["body"]), dtype=bool)

    @cached_property
    def body(self) -> Any:
        """Digits and marks of each cell; blanks and apostrophes are all alike."""
        body = pc.utf8_trim_whitespace(self.parts["body"])
        body = pc.replace_substring_regex(body, pattern=f"[{_SPACES}]", replacement=" ")
        return pc.replace_substring_regex(body, pattern=f"[{_APOSTROPHES}]", replacement="'")

    def read(self, style: NumberStyle) -> Any:
        """Return the cells as numbers in Python's writing, null where one is no number of a style."""
        parts = self.parts
        fits = pc.fill_null(pc.match_substring_regex(self.body, _pattern(style.decimal, style.thousands)), False)
        for part, wanted in (("before", style.before.strip()), ("after", style.after.strip())):
            fits = pc.and_(fits, pc.fill_null(pc.equal(parts[part], wanted), False))
        minus = pc.or_(_in(parts["sign"], _MINUS), _in(parts["inner"], _MINUS))
        opened, closed = pc.equal(parts["open"], "("), pc.equal(parts["close"], ")")
        signs = pc.add(pc.utf8_length(parts["sign"]), pc.utf8_length(parts["inner"]))
        if style.parentheses:
            # A sign inside parentheses would say negative twice.
            fits = pc.and_(fits, pc.and_(pc.equal(opened, closed), pc.or_(pc.invert(opened), pc.equal(signs, 0))))
            minus = pc.or_(minus, opened)
        else:
            fits = pc.and_(fits, pc.invert(pc.or_(opened, closed)))
        fits = pc.and_(pc.fill_null(fits, False), pc.fill_null(pc.less(signs, 2), False))
        digits = self.body
        if style.thousands:
            digits = pc.replace_substring(digits, pattern=_alike(style.thousands), replacement="")
        if style.decimal != ".":
            digits = pc.replace_substring(digits, pattern=style.decimal, replacement=".")
        sign, nothing = (pa.scalar(text, type=digits.type) for text in ("-", ""))
        signed = pc.binary_join_element_wise(pc.if_else(minus, sign, nothing), digits, nothing)
        return pc.if_else(fits, signed, None)

    def fitting(self, style: NumberStyle) -> BoolArray:
        """Tell which cells are numbers of a style; none where its unit may be part of a name."""
        plain = self.read(style)
        known = np.asarray(pc.is_valid(plain), dtype=bool)
        dressed = style.before or style.after or style.parentheses
        return known if not dressed or _is_sure(style, self, pc.drop_null(plain)) else np.zeros_like(known)

    def styles(self) -> Iterator[NumberStyle]:
        """Yield the styles that most of the cells may have."""
        before, after = (self._commonest(part) for part in ("before", "after"))
        some = self._dressed(before, after)
        marks = "".join(pc.unique(pc.replace_substring_regex(some, pattern=r"[\deE+-]", replacement="")).to_pylist())
        dress = replace(
            PLAIN,
            before=before + self._gap("gap", before) if before else "",
            after=self._gap("space", after) + after if after else "",
            parentheses=bool(pc.any(pc.equal(self.parts["open"], "(")).as_py()),
        )
        for mark in (".", ","):
            other = "," if mark == "." else "."
            # Without any divider first: what it reads, it reads with fewer assumptions.
            for divider in ("", other, " ", "'"):
                if not divider or divider in marks:
                    yield replace(dress, decimal=mark, thousands=divider and self._divider(divider))

    def _dressed(self, before: str, after: str) -> Any:
        same = pc.and_(pc.equal(self.parts["before"], before), pc.equal(self.parts["after"], after))
        return pc.filter(self.body, pc.fill_null(same, False))

    def _commonest(self, part: str) -> str:
        counts = pc.value_counts(pc.drop_null(self.parts[part])).to_pylist()
        return str(max(counts, key=lambda entry: entry["counts"])["values"]) if counts else ""

    def _gap(self, gap: str, text: str) -> str:
        """Return the blanks between number and text as the first such cell has them."""
        part = "before" if gap == "gap" else "after"
        found = pc.filter(self.parts[gap], pc.fill_null(pc.equal(self.parts[part], text), False))
        return str(found[0].as_py()) if len(found) else ""

    def _divider(self, divider: str) -> str:
        """Return what divides thousands as the first such cell has it."""
        alike = {" ": _SPACES, "'": _APOSTROPHES}.get(divider, divider)
        for body in pc.drop_null(self.parts["body"]).to_pylist():
            for character in body.strip():
                if character in alike:
                    return str(character)
        return divider

    @cached_property
    def units(self) -> list[str]:
        """The units and currencies of the cells that are like numbers, the commonest first."""
        both = zip(self.parts["before"].to_pylist(), self.parts["after"].to_pylist(), strict=True)
        counts = Counter((before or after) for before, after in both if before is not None)
        return [unit for unit, _ in counts.most_common()]


_PARTS = ("open", "sign", "before", "gap", "inner", "body", "space", "after", "close")


def _in(texts: Any, characters: str) -> Any:
    return pc.fill_null(pc.is_in(texts, value_set=pa.array(list(characters), type=texts.type)), False)


def _alike(divider: str) -> str:
    return " " if divider in _SPACES else "'" if divider in _APOSTROPHES else divider


def _pattern(decimal: str, thousands: str) -> str:
    mark = re.escape(decimal)
    plain = rf"(?:\d+(?:{mark}\d*)?|{mark}\d+)(?:[eE][+-]?\d+)?"
    if not thousands:
        return f"^{plain}$"
    # Groups of three behind one to three digits, of which the first is no zero.
    grouped = rf"[1-9]\d{{0,2}}(?:{re.escape(_alike(thousands))}\d{{3}})+(?:{mark}\d*)?"
    return f"^(?:{plain}|{grouped})$"


@dataclass(frozen=True, eq=False)
class Styled:
    """A column as numbers of one style.

    Attributes:
        style: how they are written.
        plain: the cells as numbers in Python's writing.
        open: the other style that fits every cell as well and gives other numbers; None where there is none.
    """

    style: NumberStyle
    plain: Any
    open: NumberStyle | None = None


def styled(cells: Written, decimal: str | None) -> Styled | None:
    """Return cells as numbers of the one style that fits all of them; None where none does.

    Args:
        cells: the cells that are not missing.
        decimal: the decimal mark where cells can be read with either; None where that is open.
    """
    if not len(cells.texts) or not cells.like_numbers.all():
        return None
    fits: list[Styled] = []
    for style in cells.styles():
        if any(style.decimal == other.style.decimal for other in fits):
            continue
        plain = cells.read(style)
        if not plain.null_count and _is_sure(style, cells, plain):
            fits.append(Styled(style, plain))
    if len(fits) == 2 and pc.all(pc.equal(fits[0].plain, fits[1].plain)).as_py():
        fits = fits[:1]  # whole numbers: no mark to be read either way
    if not fits:
        return None
    if len(fits) == 2 and decimal is None:
        return replace(fits[0], open=fits[1].style)
    return next((one for one in fits if one.style.decimal == decimal), fits[0])


def _is_sure(style: NumberStyle, cells: Written, plain: Any) -> bool:
    """Tell whether parentheses and units can only mean what they are taken for."""
    opened = pc.equal(cells.parts["open"], "(")
    if style.parentheses and (pc.all(opened).as_py() or pc.any(_in(cells.parts["sign"], _MINUS)).as_py()):
        return False  # footnotes, or two ways to write negative numbers
    unit = style.after
    if unit and unit == unit.strip() and not _SURE_UNIT.search(unit) and not _ATTACHED_UNITS.fullmatch(unit):
        return bool(pc.any(pc.match_substring(plain, ".")).as_py())
    padded = pc.match_substring_regex(plain, r"^-?0\d")
    return not ((unit or style.before) and pc.any(padded).as_py())
