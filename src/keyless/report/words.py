"""What the page says about a result, and what it tells its reader to do next."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import Literal

import numpy as np
from markupsafe import Markup, escape

from keyless.audit import Audit
from keyless.display import Sentence, headline
from keyless.evidence import Evidence
from keyless.links import Links, TableLink
from keyless.pairs.expected import ExpectedRight, expected_right
from keyless.report.markup import label, one_line
from keyless.tables import Table

__all__ = [
    "SIGNS",
    "SURE",
    "Counts",
    "State",
    "Step",
    "Tile",
    "audit_steps",
    "count_rows",
    "finding",
    "meaning",
    "missing",
    "next_steps",
    "state",
    "tiles",
]

SURE = 0.9
"""Probability from which a row counts as sure. The reader can move it in the table of matches."""

FIRST_CHECKS = 10
"""Matches to check by hand where the link itself is in doubt. If it is wrong, nearly all of them are wrong."""

State = Literal["linked", "rows", "repeats", "map", "unlinkable"]
"""The verdict, where `uncertain` is one of three things: `rows` are ambiguous, a table `repeats` entities, or the `map`
between the tables is in doubt."""

SIGNS: dict[State, tuple[str, str]] = {
    "linked": ("✓", "Linked"),
    "rows": ("?", "Uncertain: many rows are too alike"),
    "repeats": ("?", "Uncertain: a table repeats entities"),
    "map": ("?", "Uncertain: the link itself is in doubt"),
    "unlinkable": ("✕", "Not linkable"),
}
"""Sign and words of each verdict."""


def state(evidence: Evidence) -> State:
    """Return the verdict, and of `uncertain` which of its meanings.

    Args:
        evidence: of a table, or of all.
    """
    if evidence.verdict != "uncertain":
        return evidence.verdict
    return "map" if evidence.doubt == "none" else evidence.doubt


@dataclass(frozen=True)
class Counts:
    """How many rows there are of each kind, all tables together; each row is of one kind.

    Attributes:
        sure: matched, at `SURE` or surer.
        check: less sure than that, whether matched or said to have no partner.
        alone: said to have no partner, at `SURE` or surer.
        matched: all that are matched.
        right: how many matches are expected right, with an interval.
        gaps: missing entries in the columns used.
    """

    sure: int
    check: int
    alone: int
    matched: int
    right: ExpectedRight
    gaps: int


def count_rows(links: Links) -> Counts:
    """Count the rows of a result."""
    matched = np.concatenate([link.permutation >= 0 for link in links.found.values()])
    probability = np.concatenate([link.probability for link in links.found.values()])
    sure = probability >= SURE
    return Counts(
        sure=int((matched & sure).sum()),
        check=int((~sure).sum()),
        alone=int((~matched & sure).sum()),
        matched=int(matched.sum()),
        right=expected_right(probability[matched]),
        gaps=sum(map(_gaps, links.tables)),
    )


def _gaps(table: Table) -> int:
    """Return how many entries are missing; a category is one entry, of however many numbers."""
    firsts = [table.places[use.columns[0]] for use in table.uses if use.columns]
    return int((~table.block.mask[:, firsts]).sum())


def finding(links: Links) -> Markup:
    """Return what was found, in one sentence, as HTML."""
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
    """Return what the verdict means, in words for whoever does not know the method."""
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
        case "repeats":
            return (
                f"The way in which the tables fit together is believed. But {links.repeated} seems to hold several "
                "rows of one entity, and each row was matched at most once. So many rows are left without partner "
                "although they have one."
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
    """Return the figures that a reader can act on."""
    now = state(links.evidence)
    check = {
        "linked": "rows to check by hand: less than 90% sure",
        "rows": "rows to check by hand: less than 90% sure",
        "repeats": "rows that are less than 90% sure",
        "map": "rows that are not sure enough to use",
        "unlinkable": "rows with nothing better than a guess",
    }[now]
    if len({state(link.evidence) for link in links.found.values()}) > 1:
        check = "rows that are less than 90% sure"
    made = [
        Tile(f"{counts.sure:,}", "rows matched at 90% or surer", "matches"),
        Tile(f"{counts.check:,}", check, "matches"),
    ]
    if counts.alone:
        made.append(Tile(f"{counts.alone:,}", "rows without a partner, at 90% or surer", "matches"))
    if links.evidence.believed and counts.matched:
        right = counts.right
        meaning = f"matches expected right; {right.low:,.0f} to {right.high:,.0f} in 19 of 20 cases"
        made.append(Tile(f"{right.count:,.0f} of {counts.matched:,}", meaning, "certainty"))
    if counts.gaps:
        made.append(Tile(f"{counts.gaps:,}", "missing entries, filled in", "filled"))
    return made


@dataclass(frozen=True)
class Step:
    """One thing to do next.

    Attributes:
        words: what to do: text, or HTML.
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
    more = "More known pairs" if links.choices.get("known_pairs") else "Known pairs"
    weakest = next(link for link in links.found.values() if link.evidence is links.evidence)
    now = state(weakest.evidence)
    if now == "repeats":
        name = str(links.repeated)
        option = f"keyless.link(tables, repeats={name!r})" if command is None else f"{command} --repeats {quote(name)}"
        return [
            Step(
                f"{name} seems to hold several rows of one entity. Each row was matched at most once, so that "
                "most repeated rows have no partner here. To give each of its rows a partner of its own:",
                option,
            )
        ]
    if now == "map":
        return [
            Step(
                f"Check about {min(FIRST_CHECKS, counts.matched)} of the surest matches by hand. They come first in "
                "the table of matches."
            ),
            Step(f"If most of them are right, download them, keep the right ones {kept}, and link again:", again),
            Step("If most of them are wrong, the tables need more in common. " + missing(weakest) + _helps(command)),
        ]
    if now == "unlinkable":
        return [
            Step("Make sure that the tables are about the same people, samples or things, and cover the same time."),
            Step("Give more to compare. " + missing(weakest) + _helps(command)),
            Step(f"{more} help most, ten or more. Put them {kept}, and link again:", again),
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
                "the best other candidate beside them."
            )
        )
    if now == "rows":
        steps.append(
            Step("To make more rows sure, add columns that differ from row to row, or give known pairs:", again)
        )
    return steps


def audit_steps(audit: Audit) -> list[Step]:
    """Return what to do next before a release."""
    if audit.verdict == "unlinkable":
        return [
            Step(
                "keyless proposes no change: it finds no link between these tables. That is no proof that nobody can. "
                "The section about the audit says what it cannot tell."
            )
        ]
    holding = [proposal for proposal in audit.proposals if proposal.holds]
    if not holding:
        return [
            Step(
                "Do not release both tables as they are. No set of changes was found after which keyless no longer "
                "links them."
            )
        ]
    first = one_line("; ".join(map(str, holding[0].changes)), longest=400)
    return [
        Step(
            "Do not release both tables as they are. The section about the audit lists sets of changes after which "
            f"keyless no longer links them. Make one of these sets of changes, for example: {first}."
        ),
        Step("Check the changed files again, and read below what an audit cannot tell."),
    ]


def _helps(command: str | None) -> Markup:
    """Return what makes tables easier to link, with the options of the door that the reader came through."""
    within, shared = ("--within NAME", "--shared NAME=NAME")
    if command is None:
        within, shared = ('within="name"', 'shared={"name": "other name"}')
    return Markup(
        "What helps: a column that partners agree in, such as a site or a day (<code>{}</code>); a column that both "
        "tables measure under two names (<code>{}</code>); more columns about the same things in both tables; fewer "
        "missing entries."
    ).format(within, shared)


def missing(link: TableLink) -> str:
    """Return in words what the columns of a table leave open.

    Args:
        link: what was found for the table, where it is in doubt whether there is a link.
    """
    evidence, candidates = link.evidence, link.coupling.shape[1]
    if evidence.ambiguous:
        return "A mirror image of this answer fits nearly as well, and nothing in the columns tells the two apart. "
    left = round(evidence.candidates_left(candidates))
    if left == 1:
        return ""
    return (
        f"Beyond chance, the columns leave about {left:,} of {candidates:,} possible partners for a row. They would "
        "have to leave 1. "
    )
