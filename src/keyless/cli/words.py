"""A verdict in plain words, and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from keyless.cli.app import DONE, NOT_LINKED, write_out
from keyless.errors import printable

if TYPE_CHECKING:
    from keyless.audit import Audit
    from keyless.links import Links, TableLink

__all__ = [
    "audit_lines",
    "audit_record",
    "exit_code",
    "information",
    "print_json",
    "told_apart",
    "verdict_lines",
    "verdicts",
]

_MEANING = {
    "linked": "the rows can be linked",
    "uncertain": "there may be a link, but not one to rely on",
    "unlinkable": "no clearer than chance; these tables cannot be linked by what they hold",
}

_IN_DOUBT = {
    "rows": "how the tables belong together is known, but many rows are too alike to be told apart",
    "repeats": "how the tables belong together is known, but one of them holds several rows of one entity",
}
"""What `uncertain` means where the map is believed."""

_NO_PROOF = "That keyless finds no link is no proof that nobody can: see docs/audit.md."

_MOST_COLUMNS = 10
"""Columns that an audit names in words; all are in its JSON."""


def exit_code(links: Links) -> int:
    """Return 0 where all tables are linked, else 3."""
    return DONE if links.evidence.verdict == "linked" else NOT_LINKED


def verdict_lines(links: Links, *, interrupted: bool = False) -> list[str]:
    """Return the verdict on each table, one paragraph each.

    Args:
        links: the result.
        interrupted: whether the user ended the search, and needs no word on why it did not settle.
    """
    lines = []
    for name, found in links.found.items():
        evidence = found.evidence
        meaning = _IN_DOUBT.get(evidence.doubt, _MEANING[evidence.verdict])
        lines += [
            f"{printable(links.reference)} and {printable(name)}: {evidence.verdict}, {meaning}.",
            f"  {information(found)}",
        ]
        if not evidence.believed:
            lines += [f"  {line}" for line in _next_steps(links, name)]
        else:
            matched = int((found.permutation >= 0).sum())
            lines.append(
                f"  {matched} rows are matched, {found.expected_right} of them expected right; "
                f"{told_apart(links, name)} of them can be told from all others."
            )
    if not (links.status.converged or interrupted):
        lines.append(f"The search did not settle: {links.status}")
    return lines


def information(found: TableLink) -> str:
    """Return how much the matches of a table say, beside what chance says and what it takes.

    Args:
        found: what was found for the table.
    """
    evidence = found.evidence
    chance = max(evidence.null_scores, default=None)
    reached = "chance was not measured" if chance is None else f"chance reaches {chance:.1f}"
    return (
        f"The matches carry {evidence.score:.1f} nats a row (4.6 nats are odds of 100 to 1); {reached}, and telling "
        f"{min(found.coupling.shape)} rows apart takes {evidence.needed:.1f}."
    )


def _next_steps(links: Links, name: str) -> list[str]:
    """Return what would help where it is in doubt whether there is a link at all."""
    found = links.found[name]
    evidence, candidates = found.evidence, found.coupling.shape[1]
    left = evidence.candidates_left(candidates)
    told = f"Beyond chance, the numbers leave about {left:,.0f} of {candidates:,} candidates for a row"
    if evidence.doubt == "repeats":
        repeated = printable(str(links.repeated))
        return [
            f"{repeated} seems to hold several rows of one entity, but each row was matched at most once.",
            f"To give each of its rows a partner of its own, use --repeats {repeated}.",
        ]
    if evidence.ambiguous:
        told = "A mirror image of this answer fits nearly as well"
    return [
        f"{told}. What would help:",
        "- a few pairs that you know for sure: --known-pairs pairs.csv (about ten are enough to begin with);",
        "- a column that partners agree in, such as a site or a day: --within NAME;",
        "- a column that both tables measure under two names: --shared NAME=NAME;",
        "- more columns about the same things in both tables, or more rows.",
    ]


def told_apart(links: Links, name: str) -> int:
    """Return how many matched rows have their match as first choice, by models that never saw them."""
    found = links.found[name]
    return round(float(found.evidence.sharpness) * int((found.permutation >= 0).sum()))


def verdicts(links: Links) -> dict[str, Any]:
    """Return the verdict, overall and per table, for machines."""
    return {
        "verdict": links.evidence.verdict,
        "reference": links.reference,
        "status": {"reason": links.status.reason, "advice": links.status.advice},
        "tables": {
            name: vars(found.evidence)
            | {
                "rows": list(found.coupling.shape),
                "matched": int((found.permutation >= 0).sum()),
                "told_apart": told_apart(links, name),
                "expected_right": (right := found.expected_right).count,
                "expected_right_interval": [right.low, right.high],
            }
            for name, found in links.found.items()
        },
    }


def audit_lines(audit: Audit) -> list[str]:
    """Return in words who could be singled out, by which columns, and what to do about it."""
    counts = ", ".join(f"{count} with {100 * level:.0f}%" for level, count in audit.singled_out.items())
    lines = ["", f"Rows that could be singled out, by certainty: {counts} or more."]
    if audit.verdict == "unlinkable":
        return [*lines, "Nothing to change: keyless finds no link.", _NO_PROOF]
    if len(audit.columns):
        lines.append("Columns that make it possible, and how much each says (nats a row):")
        lines += [
            f"  {one['contribution']:+6.2f}  {printable(one['table'])}: {printable(one['column'])}"
            for one in audit.columns.head(_MOST_COLUMNS).to_dict("records")
        ]
    for proposal in audit.proposals:
        left = ", ".join(f"{count} at {100 * level:.0f}%" for level, count in proposal.singled_out.items())
        said = "no longer linkable" if proposal.holds else f"not enough: still {proposal.verdict} ({left})"
        lines.append(f"Verified by linking again: {said} after these changes.")
        lines += [f"  {printable(change)}" for change in proposal.changes]
    if not any(proposal.holds for proposal in audit.proposals):
        lines.append("No set of changes was found after which the tables are no longer linkable.")
    if not audit.finished:
        lines.append("The audit was stopped before it had tried everything: fewer or milder changes may be enough.")
    lines.append(_NO_PROOF)
    return lines


def audit_record(audit: Audit) -> dict[str, Any]:
    """Return an audit for machines."""
    return {
        "rows": audit.rows,
        "singled_out": audit.singled_out,
        "columns": audit.columns.to_dict("records"),
        "proposals": [
            {
                "holds": proposal.holds,
                "verdict": proposal.verdict,
                "singled_out": proposal.singled_out,
                "changes": [vars(change) for change in proposal.changes],
            }
            for proposal in audit.proposals
        ],
        "finished": audit.finished,
    }


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    from keyless.runs import plain

    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    # JSON has its own escapes, for whatever a terminal would not just show.
    write_out("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text) + "\n")
