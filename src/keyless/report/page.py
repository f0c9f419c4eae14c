"""The page: what was found, in the order in which a reader asks."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from importlib.resources import files
from itertools import count

from markupsafe import Markup

import keyless
from keyless.audit import Audit
from keyless.links import Links
from keyless.report.markup import environment, one_line
from keyless.report.sections import SECTIONS, Values, Writer, audit_section, lost_columns
from keyless.report.words import SIGNS, audit_steps, count_rows, finding, meaning, next_steps, state, tiles

__all__ = ["page_file", "page_values", "render"]

FEW_LOST = 5
"""Columns left out that the head of the page names."""


def render(
    links: Links,
    *,
    redact: bool = False,
    made: str | None = None,
    command: str | None = None,
    audit: Audit | None = None,
) -> str:
    """Return the report of a result as one HTML document that needs nothing else: no network, no other file.

    The same result gives the same text.

    Args:
        links: the result.
        redact: leave out ids, cell values and the match table, for sharing; names of tables and columns stay.
        made: when it was made, as text; None leaves the line out.
        command: the command line that repeats the run; None: the page shows a call from Python.
        audit: who could be singled out before a release, as its first section; None leaves it out.
    """
    style, script = (page_file(name) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    writer = Writer(links, redact=redact, numbers=count(1), command=command)
    values = page_values(writer, SECTIONS)
    if audit is not None:
        about = {"anchor": "audit", "short": "Audit", "heading": "Who could be singled out?"}
        values["sections"].insert(0, about | audit_section(links, audit))
        values["steps"] = audit_steps(audit)
    return (
        environment()
        .get_template("page.html")
        .render(
            values,
            # Nothing is fetched, and no script runs but this one.
            policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
            "form-action 'none'",
            style=Markup(style),
            script=Markup(script),
            redact=redact,
            made=made,
            version=keyless.__version__,
        )
    )


def page_file(name: str) -> str:
    """Return the style or the script of the page.

    Args:
        name: of the file.
    """
    return files("keyless.report").joinpath(name).read_text(encoding="utf-8")


def page_values(writer: Writer, sections: Iterable[tuple[str, str, str, Callable[[Writer], Values]]]) -> Values:
    """Return the values of the templates: of what was found (`findings.html`), and of some sections."""
    links = writer.links
    made = [
        {"anchor": anchor, "short": short, "heading": heading} | make(writer)
        for anchor, short, heading, make in sections
    ]
    now, counts, lost = state(links.evidence), count_rows(links), lost_columns(writer)
    sign, verdict = SIGNS[now]
    states = {name: state(link.evidence) for name, link in links.found.items()}
    return {
        "title": one_line(f"{verdict}: {', '.join(table.name for table in links.tables)}"),
        "kind": links.evidence.verdict,
        "sign": sign,
        "verdict": verdict,
        "finding": finding(links),
        # Where tables differ, the advice is about those with the weakest link.
        "about": [name for name, one in states.items() if one == now] if len(set(states.values())) > 1 else [],
        "meaning": meaning(links),
        "tiles": tiles(links, counts),
        "steps": next_steps(links, counts, command=None if writer.redact else writer.command),
        "lost": lost[:FEW_LOST],
        "more_lost": max(0, len(lost) - FEW_LOST),
        "lost_count": len(lost),
        "sections": made,
        "tables": [(table.name, *table.block.shape) for table in links.tables],
    }
