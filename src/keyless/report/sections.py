"""The sections of the page. Each takes a `Writer` and returns the values of its template."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyless.audit import Audit
from keyless.links import Links
from keyless.plots import BANDS, certainty_counts
from keyless.report.figures import Figure, figure
from keyless.report.filled import MOST_ROWS, fill_sample, filled_columns, filled_entries
from keyless.report.markup import LONGEST, PageTable, label, one_line
from keyless.report.matches import match_table
from keyless.report.words import SURE, state

__all__ = ["SECTIONS", "Values", "Writer", "audit_section", "left_out", "lost_columns"]

Values = dict[str, Any]

MOST_COLUMNS = 200
"""Columns that a table of columns lists."""

MOST_AUDITED = 20
"""Columns that the section about an audit lists, those that say most first."""

MOST_FACTOR_PLOTS = 4
"""Tables whose shared factors are drawn."""

FEW_COLUMNS = 12
"""Up to so many columns with missing entries are listed at once; more are folded."""

_VERDICTS = {
    "linked": "linked",
    "rows": "uncertain: rows too alike",
    "repeats": "uncertain: a table repeats entities",
    "map": "uncertain: link in doubt",
    "unlinkable": "not linkable",
}
_CHANCE = {
    "linked": "clearly more than chance",
    "rows": "clearly more than chance",
    "repeats": "clearly more than chance",
    "map": "more than chance, but not beyond doubt",
    "unlinkable": "no clearer than chance",
}
_THRESHOLDS = (0.99, 0.95, 0.9, 0.5, 0.0)


@dataclass(frozen=True)
class Writer:
    """What the sections are made from.

    Attributes:
        links: the result.
        redact: whether ids and cell values are left out.
        numbers: numbers of the figures.
        command: the command line that repeats the run, where it is known.
    """

    links: Links
    redact: bool
    numbers: Iterator[int]
    command: str | None = None

    def figure(self, ax: Any, kind: str, note: str = "", grid: PageTable | None = None) -> Figure:
        """Return a plot with the next number."""
        return figure(ax, number=next(self.numbers), kind=kind, note=note, grid=grid)


def matches(writer: Writer) -> Values:
    """Which row belongs to which?"""
    links = writer.links
    if writer.redact:
        return {"table": None}
    # Where the link itself is in doubt, the surest matches are the ones to check.
    surest_first = state(links.evidence) == "map"
    return {
        "table": match_table(links, surest_first=surest_first),
        "surest_first": surest_first,
        "reference": links.reference,
        "names": list(links.found),
        "sure": SURE,
        "longest": LONGEST,
        "door": "python" if writer.command is None else "cli",
    }


def certainty(writer: Writer) -> Values:
    """How many rows, how sure?"""
    links = writer.links
    bands = [
        [label(name), *(f"{number:,}" for number in certainty_counts(link.permutation, link.probability))]
        for name, link in links.found.items()
    ]
    counts = PageTable("Rows by certainty", ("table", *BANDS), bands, range(1, 6))
    plots = [writer.figure(links.plot_certainty(), "Stacked bars", grid=counts)]
    believed = {name: link for name, link in links.found.items() if link.evidence.believed}
    if believed:
        kept = np.concatenate([link.probability[link.permutation >= 0] for link in believed.values()])
        lines = []
        for threshold in _THRESHOLDS:
            inside = kept[kept >= threshold]
            share = f"{100 * inside.mean():.1f}%" if inside.size else "–"
            name = f"at least {100 * threshold:.0f}%" if threshold else "all"
            lines.append([name, f"{inside.size:,}", f"{inside.sum():,.1f}", share])
        heads = ("stated probability", "matches", "expected right", "share")
        expected = PageTable("Matches kept and expected right, by stated probability", heads, lines, (1, 2, 3))
        plots.append(writer.figure(replace(links, found=believed).plot_coverage(), "Curve", grid=expected))
    doubtful = [name for name in links.found if name not in believed]
    return {"plots": plots, "doubtful": doubtful, "believed": bool(believed)}


def evidence(writer: Writer) -> Values:
    """Is it more than chance?"""
    links = writer.links
    judged = {name: link.evidence for name, link in links.found.items()}
    plain = [
        [
            label(name),
            _VERDICTS[state(one)],
            _CHANCE[state(one)] if one.null_scores else "not measured",
            f"{100 * min(one.sharpness, 1):.0f}%",
        ]
        for name, one in judged.items()
    ]
    nats = [
        [
            label(name),
            f"{one.score:.2f}",
            ", ".join(f"{score:.2f}" for score in one.null_scores) or "not measured",
            f"{one.needed:.2f}",
            f"{math.exp(one.corroboration):.1f}" if one.corroboration else "not measured",
            f"{one.agreement:,}",
            f"{one.mirrored:.2f}",
        ]
        for name, one in judged.items()
    ]
    heads = (
        "table",
        "the link",
        "chance, each try",
        "needed to single out a row",
        "directions agree, times chance",
        "searches that agree",
        "mirrored",
    )
    rows = max(len(table.row_ids) for table in links.tables)
    return {
        "grid": PageTable(
            "Evidence per table", ("table", "verdict", "compared with chance", "rows that models confirm"), plain, (3,)
        ),
        "nats": PageTable("Information per table, in nats a row", heads, nats, range(1, 7)),
        "plot": writer.figure(
            links.plot_evidence(),
            "Strip chart",
            "Circles: the same search after the link was destroyed. Dashes: how much it takes to tell one row from all "
            "others.",
        ),
        "rows": rows,
        "takes": float(np.log(max(rows, 1))),
    }


def factors(writer: Writer) -> Values:
    """What do the tables share?"""
    links = writer.links
    plots = [
        writer.figure(
            links.plot_factors(name),
            "Scatter plot",
            "Each table places its rows by its own columns alone. Lines join partners; a short line means that both "
            "tables agree.",
        )
        for name in list(links.found)[:MOST_FACTOR_PLOTS]
    ]
    if any(len(link.correlations) for link in links.found.values()):
        note = "How well the factors of a row predict those of its partner: 0 is not at all, 1 is perfectly."
        plots.append(writer.figure(links.plot_correlations(), "Stem plot", note))
    return {"plots": plots, "more": max(0, len(links.found) - MOST_FACTOR_PLOTS)}


def filled(writer: Writer) -> Values:
    """What was filled in?"""
    links = writer.links
    if all(table.block.mask.all() for table in links.tables):
        return {"total": 0}
    sample = fill_sample(links)
    columns = filled_columns(links, sample)
    lines = [
        [
            label(one.column),
            label(one.table),
            f"{one.missing:,}",
            f"{100 * one.missing / one.rows:.1f}%",
            f"{max(0.0, one.explained):.2f}" if np.isfinite(one.explained) else "–",
        ]
        for one in columns[:MOST_COLUMNS]
    ]
    heads = ("column", "table", "missing", "share", "expected R²")
    some = None
    if not writer.redact:
        body = [
            [
                label(one.reference_id),
                label(one.table),
                label(one.column),
                label(one.value if one.error is None else f"{float(one.value):,.4g}"),
                "" if one.error is None else f"± {one.error:,.2g}",
            ]
            for one in filled_entries(links, sample)
        ]
        named = ("reference row", "table", "column", "filled with", "standard error")
        some = PageTable("Some filled entries", named, body, (3, 4))
    return {
        "total": sum(one.missing for one in columns),
        "columns": len(columns),
        "listed": MOST_COLUMNS,
        "open": len(columns) <= FEW_COLUMNS,
        "shared": links.model.shared,
        "sampled": MOST_ROWS if len(links.tables[0].row_ids) > MOST_ROWS else 0,
        "grid": PageTable("Columns with missing entries", heads, lines, (2, 3, 4)),
        "some": some,
    }


def lost_columns(writer: Writer) -> list[tuple[str, str, str]]:
    """Return the columns that could have told something and are not used: column, table and why.

    A column of ids is none of them: it names the rows. A reason can quote an entry, so a page for sharing has none.
    """
    return [
        (str(use.name), table.name, "" if writer.redact else use.reason)
        for table in writer.links.tables
        for use in table.uses
        if not use.columns and use.kind != "id"
    ]


def left_out(writer: Writer) -> Values:
    """What was left out, and why?"""
    links = writer.links
    unused: list[list[str]] = []
    used: list[list[str]] = []
    why = () if writer.redact else ("why",)
    for table in links.tables:
        scales = links.choices.get("scales", {}).get(table.name, {})
        for use in table.uses:
            # A reason can quote an entry.
            reason = [] if writer.redact else [one_line(use.reason)]
            if use.columns:
                kinds = sorted({str(scales[name]) for name in use.columns if name in scales})
                used.append([label(use.name), label(table.name), use.kind, ", ".join(kinds), *reason])
            else:
                unused.append([label(use.name), label(table.name), use.kind, *reason])
    spare = []
    for table in links.tables[1:]:
        permutation = links.found[table.name].permutation
        matched = int((permutation >= 0).sum())
        spare.append((table.name, len(permutation) - matched, table.block.shape[0] - matched))
    return {
        "unused": len(unused),
        "used": len(used),
        "listed": MOST_COLUMNS,
        "unused_grid": PageTable("Columns left out", ("column", "table", "counts as", *why), unused[:MOST_COLUMNS]),
        "used_grid": PageTable("Columns used", ("column", "table", "counts as", "scale", *why), used[:MOST_COLUMNS]),
        "limits": [
            (name, table, "" if writer.redact else ", ".join(f"{end:g}" for end in ends))
            for table, columns in links.choices.get("detection_limits", {}).items()
            for name, ends in columns.items()
        ],
        "reference": links.reference,
        "spare": [one for one in spare if one[1] or one[2]],
        "notes": [] if writer.redact else [(table.name, note) for table in links.tables for note in table.notes],
    }


def reproduce(writer: Writer) -> Values:
    """How can this be repeated?"""
    # Paths and texts on a command line can tell more than names.
    code = _python_call(writer) if writer.command is None or writer.redact else f"{writer.command}\n"
    return {"code": code, "status": writer.links.status}


def developers(writer: Writer) -> Values:
    """How did the search go?"""
    links = writer.links
    plots = []
    if links.history:
        note = "Each mark is a reported step. The checks after the search have a measure of their own."
        plots.append(writer.figure(links.plot_objective(timed=False), "Line chart", note))
    if links.starts:
        note = "Many starts that end at the same best value are a good sign; dashes mark it."
        plots.append(writer.figure(links.plot_starts(), "Strip chart", note))
    lines = [[key, value] for key, value in _plain_choices(links.choices, redact=writer.redact)]
    lines.append(["status", one_line(links.status.reason)])
    return {"plots": plots, "grid": PageTable("What was set and chosen", ("setting", "value"), lines)}


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
        for one in audit.columns.head(MOST_AUDITED).to_dict("records")
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
        "more": max(0, len(audit.columns) - MOST_AUDITED),
        "looked_at": audit.looked_at,
        "proposals": PageTable("Proposed changes", ("result", "changes", *left), proposals, range(2, 2 + len(left)))
        if proposals
        else None,
    }


def _python_call(writer: Writer) -> str:
    """Return the call of `keyless.link` with the tables and with the options that a result knows were set."""
    links, choices = writer.links, writer.links.choices
    tables = ", ".join(
        f"{one_line(table.name)!r}: "
        + (_variable(one_line(table.name), k) if table.source is None or writer.redact else repr(table.source))
        for k, table in enumerate(links.tables)
    )
    asked = {} if writer.redact else choices.get("set", {})
    options = {
        "known_pairs": "known_pairs" if choices.get("known_pairs") else None,
        "forbid": "forbid" if choices.get("forbidden_pairs") else None,
        "reading": "keyless.Reading(missingness=True)" if choices.get("missingness") else None,
        **{one_line(name): one_line(repr(value)) for name, value in asked.items()},
        "random_state": None if links.seed is None else str(links.seed),
    }
    given = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
    return f"import keyless\n\nlinks = keyless.link({{{tables}}}{given})\npage = keyless.report.render(links)\n"


def _variable(name: str, number: int) -> str:
    return name if name.isidentifier() and name.isascii() else f"table{number}"


def _plain_choices(choices: Mapping[str, Any], *, redact: bool) -> Iterator[tuple[str, str]]:
    """Yield the choices that are not told elsewhere; of a page for sharing, numbers and our own words only."""
    for key, value in choices.items():
        if key in ("scales", "detection_limits", "left_out", "uses", "set"):
            continue
        if redact and not (isinstance(value, bool | int | float) or key == "route"):
            continue
        if isinstance(value, Mapping | list | tuple) and not value:
            continue
        yield one_line(key).replace("_", " "), one_line(value, longest=400)


SECTIONS: tuple[tuple[str, str, str, Callable[[Writer], Values]], ...] = (
    ("matches", "Matches", "Which row belongs to which?", matches),
    ("certainty", "Certainty", "How many rows, and how sure?", certainty),
    ("evidence", "Evidence", "Is it more than chance?", evidence),
    ("factors", "Shared factors", "What do the tables share?", factors),
    ("filled", "Filled in", "What was filled in?", filled),
    ("left-out", "Left out", "What was left out, and why?", left_out),
    ("reproduce", "Repeat", "How to repeat this run", reproduce),
    ("developers", "Developers", "For developers", developers),
)
"""Anchor and template, short name, heading and maker of each section, in order."""
