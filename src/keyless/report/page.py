"""The page: what was found, in the order in which a reader asks."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from itertools import count

import numpy as np

import keyless
from keyless.links import Links
from keyless.report.markup import label, text
from keyless.report.sections import SECTIONS, Writer
from keyless.views import headline

__all__ = ["render"]

_ADVICE = {
    "linked": "Read the probabilities before you use a match: they say which ones are not sure.",
    "uncertain": "The matches below are the best that were found. Check them, or give more: columns, known pairs, "
    "fewer gaps. Do not take them for the truth.",
    "unlinkable": "The matches below are guesses. The tables may share no entities, or too little about them to tell.",
}
_SIGNS = {"linked": "✓ Linked", "uncertain": "? Uncertain", "unlinkable": "✕ Not linkable"}


def render(links: Links, *, redact: bool = False, made: str | None = None, command: str | None = None) -> str:
    """Return the report of a result as one HTML document that needs nothing else: no network, no other file.

    The same result gives the same text.

    Args:
        links: the result.
        redact: leave out ids, cell values and the match table, for sharing; names of tables and columns stay.
        made: when it was made, as text; None leaves the line out.
        command: the command line that repeats the run; None: the page shows a call from Python.
    """
    parts = files("keyless.report")
    style, script = (parts.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is fetched, and no script runs but the one below.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )
    writer = Writer(links, redact=redact, numbers=count(1), command=command)
    sections = [(anchor, short, made_section) for anchor, short, make in SECTIONS if (made_section := make(writer))]
    verdict = links.evidence.verdict
    title = f"{_SIGNS[verdict][2:]}: {', '.join(table.name for table in links.tables)}"
    # Line by line: nothing here is indented, for whoever reads the source.
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escape(title[:120])}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#main">Skip to the findings</a>',
            "<header>",
            f'<p class="brand">keyless report{" · ids and values left out" if redact else ""}</p>',
            f'<p class="verdict {verdict}">{_SIGNS[verdict]}</p>',
            f"<h1>{headline(links.reference, links.found).html}</h1>",
            f'<p class="advice">{text(_ADVICE[verdict])}</p>',
            _tiles(links),
            "</header>",
            f'<nav aria-label="Contents"><ul>{"".join(_entries(sections))}</ul></nav>',
            '<main id="main">',
            *(section for _, _, section in sections),
            "</main>",
            f"<footer><p>{_footer(links, made)}</p></footer>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _entries(sections: list[tuple[str, str, str]]) -> Iterator[str]:
    for anchor, short, _ in sections:
        yield f'<li><a href="#{anchor}">{short}</a></li>'


def _tiles(links: Links) -> str:
    """Return the figures that everybody asks for first."""
    found = list(links.found.values())
    weakest = links.evidence
    matched = sum(int((link.permutation >= 0).sum()) for link in found)
    total = sum(len(link.permutation) for link in found)
    right = sum(float(np.nansum(link.probability[link.permutation >= 0])) for link in found)
    gaps = sum(int((~table.block.mask).sum()) for table in links.tables)
    tiles = [
        (
            f"{matched:,} / {total:,}",
            "reference rows matched" if len(found) == 1 else "matches, of as many as could be",
        ),
        ("–" if weakest.verdict == "unlinkable" else f"{right:,.0f}", "matches expected right"),
        (
            f"{weakest.score:.1f}",
            "nats a row that the link reaches" if len(found) == 1 else "nats a row, weakest table",
        ),
        (f"{max(weakest.null_scores):.1f}" if weakest.null_scores else "–", "nats a row that chance reaches"),
        (f"{gaps:,}", "missing entries" + ("" if not gaps else ", filled in")),
    ]
    cells = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for value, name in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _footer(links: Links, made: str | None) -> str:
    sizes = ", ".join(
        f"{label(table.name)} ({table.block.shape[0]:,} rows, {table.block.shape[1]:,} columns used)"
        for table in links.tables
    )
    date = "" if made is None else f"Made {text(made)}. "
    return (
        f"Tables: {sizes}. {date}Made by keyless {text(keyless.__version__)}. This page is one file; it "
        "asks nothing of the network."
    )
