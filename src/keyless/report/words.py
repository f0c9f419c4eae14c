"""What the page says about a result, and what it tells its reader to do next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup, escape

from keyless.evidence import Evidence
from keyless.links import Links
from keyless.report.markup import label
from keyless.tables import Table
from keyless.views import Sentence, headline

__all__ = [
    "SIGNS",
    "SURE",
    "Counts",
    "State",
    "Step",
    "Tile",
    "count_rows",
    "finding",
    "meaning",
    "narrowing",
    "next_steps",
    "state",
    "tiles",
    "trusted",
]

SURE = 0.9
"""Probability from which a row counts as sure. The reader can move it in the table of matches."""

FIRST_CHECKS = 10
"""Matches to check by hand where the link itself is in doubt. If it is wrong, nearly all of them are wrong."""

State = Literal["linked", "rows", "map", "unlinkable"]
"""The verdict, where `uncertain` is one of two things: `rows` are ambiguous, or the `map` between the tables is in
doubt."""

SIGNS: dict[State, tuple[str, str]] = {
    "linked": ("✓", "Linked"),
    "rows": ("?", "Uncertain: many rows are too alike"),
    "map": ("?", "Uncertain: the link itself is in doubt"),
    "unlinkable": ("✕", "Not linkable"),
}
"""Sign and words of each verdict."""


def state(evidence: Evidence) -> State:
    """Return the verdict, and of `uncertain` which of its two meanings.

    Args:
        evidence: of a table, or of all.
    """
    if evidence.verdict != "uncertain":
        return evidence.verdict
    return "rows" if evidence.doubt == "rows" else "map"


def trusted(evidence: Evidence) -> bool:
    """Tell whether the map between the tables is believed, so that it can be said how many matches should be right.

    Args:
        evidence: of a table, or of all.
    """
    return state(evidence) in ("linked", "rows")


@dataclass(frozen=True)
class Counts:
    """How many rows there are of each kind, all tables together; each row is of one kind.

    Attributes:
        sure: matched, at `SURE` or surer.
        check: less sure than that, whether matched or said to have no partner.
        alone: said to have no partner, at `SURE` or surer.
        matched: all that are matched.
        right: how many matches should be right, by their own probabilities.
        gaps: missing entries in the columns used.
    """

    sure: int
    check: int
    alone: int
    matched: int
    right: float
    gaps: int


def count_rows(links: Links) -> Counts:
    """Count the rows of a result.

    Args:
        links: the result.
    """
    matched = np.concatenate([link.permutation >= 0 for link in links.found.values()])
    probability = np.concatenate([link.probability for link in links.found.values()])
    sure = probability >= SURE
    return Counts(
        sure=int((matched & sure).sum()),
        check=int((~sure).sum()),
        alone=int((~matched & sure).sum()),
        matched=int(matched.sum()),
        right=float(np.nansum(probability[matched])),
        gaps=sum(map(_gaps, links.tables)),
    )


def _gaps(table: Table) -> int:
    """Return how many entries are missing; a category is one entry, of however many numbers."""
    places = {name: k for k, name in enumerate(table.columns)}
    firsts = [places[use.columns[0]] for use in table.uses if use.columns]
    return int((~table.block.mask[:, firsts]).sum())


def finding(links: Links) -> Markup:
    """Return what was found, in one sentence, as HTML.

    Args:
        links: the result.
    """
    states = {state(link.evidence) for link in links.found.values()}
    sentence = headline(links.reference, links.found)
    if states == {"rows"}:
        names = ", ".join(["{}"] * len(links.found))
        sentence = Sentence(
            f"{names} and {{}} fit together, but many rows are too alike to be told apart.",
            (*links.found, links.reference),
        )
    return Markup(escape(sentence.words)).format(*(label(name, 80) for name in sentence.names))


def meaning(links: Links) -> str:
    """Return what the verdict means, in words for whoever does not know the method.

    Args:
        links: the result.
    """
    evidence = links.evidence
    match state(evidence):
        case "linked":
            return (
                "The tables fit together, and most rows find their partner. Each row has its own probability: of 100 "
                "rows with a probability of 0.95, about 95 should be right."
            )
        case "rows":
            return (
                "The way in which the tables fit together is believed. But many rows have more than one possible "
                "partner, because the columns do not tell these partners apart. The probability of each row says how "
                "sure its match is."
            )
        case "map":
            how = (
                f" It is the right way with a probability of about {evidence.belief:.0%}."
                if 0 < evidence.belief < 1
                else ""
            )
            return (
                f"It is not sure that the tables fit together in the way that was found.{how} If it is wrong, nearly "
                "all matches are wrong together. Do not use the matches yet."
            )
        case _:
            return (
                "The matches below are guesses. A search among rows that were mixed up at random finds matches that "
                "are as good. Do not use them."
            )


@dataclass(frozen=True)
class Tile:
    """One figure at the head of the page.

    Attributes:
        value: the figure.
        name: what it counts.
        anchor: the section that shows more about it.
    """

    value: str
    name: str
    anchor: str


def tiles(links: Links, counts: Counts) -> list[Tile]:
    """Return the figures that a reader can act on.

    Args:
        links: the result.
        counts: its rows.
    """
    now = state(links.evidence)
    check = {
        "linked": "rows to check by hand: less than 90% sure",
        "rows": "rows to check by hand: less than 90% sure",
        "map": "rows that are not sure enough to use",
        "unlinkable": "rows with nothing better than a guess",
    }[now]
    made = [
        Tile(f"{counts.sure:,}", "rows matched at 90% or surer", "matches"),
        Tile(f"{counts.check:,}", check, "matches"),
    ]
    if counts.alone:
        made.append(Tile(f"{counts.alone:,}", "rows without a partner, at 90% or surer", "matches"))
    if trusted(links.evidence) and counts.matched:
        made.append(Tile(f"{counts.right:,.0f} of {counts.matched:,}", "matches expected right", "certainty"))
    if counts.gaps:
        made.append(Tile(f"{counts.gaps:,}", "missing entries, filled in", "filled"))
    return made


@dataclass(frozen=True)
class Step:
    """One thing to do next.

    Attributes:
        words: what to do.
        code: the command or call that does it.
    """

    words: str
    code: str = ""


def next_steps(links: Links, counts: Counts, *, command: str | None) -> list[Step]:
    """Return what to do next, the first thing first.

    Args:
        links: the result.
        counts: its rows.
        command: the command line that repeats the run; None: steps show calls from Python.
    """
    again = "keyless.link(tables, known_pairs=pairs)" if command is None else f"{command} --known-pairs pairs.csv"
    if command is not None and "--known-pairs" in command:
        again = command
    kept = "in a list pairs of (reference id, row id)" if command is None else "in a file pairs.csv"
    now = state(links.evidence)
    if now == "map":
        return [
            Step(
                f"Check about {min(FIRST_CHECKS, counts.matched)} of the surest matches by hand. They come first in "
                "the table of matches."
            ),
            Step(f"If most of them are right, download them, keep the right ones {kept}, and link again:", again),
            Step(f"If most of them are wrong, the tables need more in common. {narrowing(links.evidence)}{_MORE}"),
        ]
    if now == "unlinkable":
        return [
            Step("Make sure that the tables are about the same people, samples or things, and cover the same time."),
            Step(f"Give more to compare. {narrowing(links.evidence)}{_MORE}"),
            Step(f"Known pairs help most, ten or more. Put them {kept}, and link again:", again),
        ]
    steps = []
    if counts.sure:
        steps.append(
            Step(
                f"Use the {counts.sure:,} rows matched at 90% or surer. The threshold in the table of matches can be "
                "moved, and the rows that reach it can be downloaded."
            )
        )
    if counts.check:
        steps.append(
            Step(
                f"Check the {counts.check:,} rows below 90% by hand. They come first in the table of matches, with "
                "the second best beside them."
            )
        )
    if now == "rows":
        steps.append(
            Step("To make more rows sure, add columns that differ from row to row, or give known pairs:", again)
        )
    return steps


_MORE = (
    "What helps: more columns that depend on the same properties of a row, a column that both tables have (for "
    "example age, region or date), and fewer missing entries."
)


def narrowing(evidence: Evidence) -> str:
    """Return in words how far the columns narrow the choice of a partner, and how far they would have to.

    Empty where that is not what is missing.

    Args:
        evidence: of a table.

    Example:
        >>> print(narrowing(Evidence("unlinkable", 1.7, (1.0,), 4.605, 0.0, 1)).split(".")[0])
        Beyond chance, the columns narrow about 100 possible partners of a row down to about 50
    """
    choices = round(math.exp(evidence.needed))
    left = round(choices / math.exp(max(evidence.excess, 0.0)))
    if left < 2:
        return ""
    if left == choices:
        return f"Beyond chance, the columns tell nothing about which of about {choices:,} rows is the partner. "
    return (
        f"Beyond chance, the columns narrow about {choices:,} possible partners of a row down to about {left:,}. They "
        "would have to narrow them down to 1. "
    )
