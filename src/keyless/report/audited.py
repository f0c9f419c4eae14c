"""The section about an audit: who could be singled out, by which columns, and what to change before a release."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyless.audit import Audit
from keyless.links import Links
from keyless.report.markup import PageTable, label, one_line
from keyless.report.words import Step

__all__ = ["audit_section", "audit_steps"]

MOST_COLUMNS = 20
"""Columns that are listed, those that say most first."""


def audit_section(links: Links, audit: Audit) -> dict[str, Any]:
    """Return the values of the template.

    Args:
        links: the result for the tables as they are.
        audit: the audit of it.
    """
    total = audit.rows * len(links.found)
    levels = [
        [f"{100 * level:.0f}%", f"{count:,}", f"{100 * count / total:.0f}%" if total else "–"]
        for level, count in audit.singled_out.items()
    ]
    several = len(links.found) > 1
    heads = ["column", "table", *(["link to"] if several else []), "share", "told apart without it"]
    columns = [
        [
            label(one["column"]),
            label(one["table"]),
            *([label(one["link"])] if several else []),
            f"{100 * one['share']:.0f}%" if np.isfinite(one["share"]) else "–",
            f"{100 * one['told_apart']:.0f}%",
        ]
        for one in audit.columns.head(MOST_COLUMNS).to_dict("records")
    ]
    proposals = [
        [
            "no longer linkable" if proposal.holds else "not enough",
            "; ".join(one_line(change) for change in proposal.changes),
            *(f"{count:,}" for count in proposal.singled_out.values()),
        ]
        for proposal in audit.proposals
    ]
    left = tuple(f"rows left at {100 * level:.0f}%" for level in audit.singled_out)
    numbers = range(len(heads) - 2, len(heads))
    return {
        "audit": audit,
        "levels": PageTable("Rows that could be singled out", ("certainty", "rows", "share of rows"), levels, (1, 2)),
        "columns": PageTable("Columns that make it possible", heads, columns, numbers) if columns else None,
        "more": max(0, len(audit.columns) - MOST_COLUMNS),
        "looked_at": audit.looked_at,
        "proposals": PageTable("Proposed changes", ("result", "changes", *left), proposals, range(2, 2 + len(left)))
        if proposals
        else None,
    }


def audit_steps(audit: Audit) -> list[Step]:
    """Return what to do next before a release.

    Args:
        audit: the audit.
    """
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
