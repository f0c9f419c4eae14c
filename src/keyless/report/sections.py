"""The sections of the page. Each takes a `Writer` and returns HTML, nothing where there is nothing to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.links import Links
from keyless.plots import BANDS, certainty_counts
from keyless.report.figures import figure
from keyless.report.filled import MOST_ROWS, fill_sample, filled_columns, filled_entries
from keyless.report.markup import LONGEST, label, one_line, rows, section, text
from keyless.report.matches import match_table

__all__ = ["SECTIONS", "Writer"]

MOST_COLUMNS = 200
"""Columns that a table of columns lists."""

_VERDICTS = {"linked": "linked", "uncertain": "uncertain", "unlinkable": "not linkable"}
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

    def figure(self, ax: Any, kind: str, note: str = "", more: str = "") -> str:
        """Return a plot with the next number."""
        return figure(ax, number=next(self.numbers), kind=kind, note=note, more=more)


def evidence(writer: Writer) -> str:
    """Is it more than chance?"""
    links = writer.links
    judged = [link.evidence for link in links.found.values()]
    chance = [", ".join(f"{score:.2f}" for score in one.null_scores) or "not measured" for one in judged]
    lines = [
        ["verdict", *(_VERDICTS[one.verdict] for one in judged)],
        ["the link, nats a row", *(f"{one.score:.2f}" for one in judged)],
        ["chance, each try", *chance],
        ["needed to single out a row", *(f"{one.needed:.2f}" for one in judged)],
        [
            "matches that models which never saw them confirm",
            *(f"{100 * min(one.sharpness, 1):.0f}%" for one in judged),
        ],
        ["candidates of the search that agree", *(f"{one.agreement:,}" for one in judged)],
    ]
    heads = ("", *(label(name, longest=40) for name in links.found))
    table = rows(heads, lines, caption="Evidence per table", numbers=range(1, len(heads)))
    plot = writer.figure(
        links.plot_evidence(),
        "Strip chart",
        "Circles: the same search where the link was destroyed. Dashes: what it takes to tell one row from all others.",
    )
    return section(
        "evidence",
        "Is it more than chance?",
        "<p>The rows of one side were mixed up so that nothing can be found, and searched all the same. A link counts "
        "if it carries clearly more information than that, and enough to single out a row.</p>",
        f'<div class="pair">{plot}<div>{table}</div></div>',
    )


def certainty(writer: Writer) -> str:
    """How many rows, how sure?"""
    links = writer.links
    bands = [
        [label(name), *(f"{number:,}" for number in certainty_counts(link.permutation, link.probability))]
        for name, link in links.found.items()
    ]
    kept = np.concatenate([link.probability[link.permutation >= 0] for link in links.found.values()])
    lines = []
    for threshold in _THRESHOLDS:
        inside = kept[kept >= threshold]
        share = f"{100 * inside.mean():.1f}%" if inside.size else "–"
        name = f"at least {100 * threshold:.0f}%" if threshold else "all"
        lines.append([name, f"{inside.size:,}", f"{inside.sum():,.1f}", share])
    caption = "Matches kept and expected right, by stated probability"
    table = rows(
        ("stated probability", "matches", "expected right", "share"), lines, caption=caption, numbers=(1, 2, 3)
    )
    counts = rows(("table", *BANDS), bands, caption="Rows by certainty", numbers=range(1, 6))
    warning = ""
    if links.evidence.verdict != "linked":
        warning = " They suppose that the tables can be linked, which the evidence does not say."
    return section(
        "certainty",
        "How many rows, and how sure?",
        "<p>The right answer is not known here, so what follows is what the stated probabilities promise, not a "
        f"measured hit rate.{warning} With known pairs at hand, <code>keyless.plots.calibration</code> compares the "
        "two.</p>",
        '<div class="pair">'
        + writer.figure(
            links.plot_certainty(), "Stacked bars", more=f"<details><summary>The numbers</summary>{counts}</details>"
        )
        + writer.figure(
            links.plot_coverage(), "Curve", more=f"<details><summary>The numbers</summary>{table}</details>"
        )
        + "</div>",
    )


def factors(writer: Writer) -> str:
    """What do the tables share?"""
    links = writer.links
    plots = [
        writer.figure(
            links.plot_factors(name),
            "Scatter plot",
            "Each table places its rows without the other; lines join partners. Short lines: both see the same.",
        )
        for name in list(links.found)[:4]
    ]
    if any(len(link.correlations) for link in links.found.values()):
        plots.append(
            writer.figure(
                links.plot_correlations(),
                "Stem plot",
                "How well the factors of one table foretell those of its partner; 1 is perfectly.",
            )
        )
    left = len(links.found) - 4
    return section(
        "factors",
        "What do the tables share?",
        f'<div class="pair">{"".join(plots)}</div>',
        f'<p class="quiet">Factors of {left} more tables are not drawn.</p>' if left > 0 else "",
    )


def search(writer: Writer) -> str:
    """How did the search go?"""
    links = writer.links
    plots = []
    if links.history:
        note = "Each mark is a reported step; the checks after the search measure something else."
        # By steps: how long they took differs from run to run, and equal runs give equal pages.
        plots.append(writer.figure(links.plot_objective(timed=False), "Line chart", note))
    if links.starts:
        note = "Many starts that end at the same best value are a good sign; dashes mark it."
        plots.append(writer.figure(links.plot_starts(), "Strip chart", note))
    status = f"<p>It ended with the status <em>{text(links.status.reason)}</em>.{_advice(links)}</p>"
    return section(
        "search", "How did the search go?", status, f'<div class="pair">{"".join(plots)}</div>' if plots else ""
    )


def _advice(links: Links) -> str:
    return f" {text(links.status.advice)}" if links.status.advice else ""


def matches(writer: Writer) -> str:
    """Which row belongs to which?"""
    links = writer.links
    if writer.redact:
        return section(
            "matches", "Which row belongs to which?", "<p>The match table is left out of this page, for sharing.</p>"
        )
    table = match_table(links)
    several = len(links.found) > 1
    only = next(iter(links.found))
    heads = [("row", f"row of {label(links.reference, longest=40)}", "")]
    heads += [("table", "table", "")] if several else []
    heads += [
        ("match", "its row" if several else f"row of {label(only, longest=40)}", ""),
        ("probability", "probability", " class=n"),
        ("margin", "margin, nats", " class=n"),
        ("other", "second best", ""),
        ("likely", "its probability", " class=n"),
    ]
    head = "".join(
        f'<th scope="col" data-key="{key}"{css}><button type="button"><span>{name}</span></button></th>'
        for key, name, css in heads
    )
    choice = ""
    if several:
        names = "".join(
            f'<option value="{k}">{text(one_line(name, longest=40))}</option>' for k, name in enumerate(links.found)
        )
        choice = f'<label>Table<select id="match-table"><option value="-1">all</option>{names}</select></label>'
    notes = ["Margin: how much likelier the match is than the best alternative of its row, in nats."]
    if table.kept < table.total:
        notes.append(
            f"Of {table.total:,} matches, the {table.kept:,} least sure are here; all are in the result itself "
            "(<code>links.matches</code>)."
        )
    notes.append(f"Labels are cut after {LONGEST} characters.")
    options = "".join(
        f'<option value="{value}">{name}</option>'
        for value, name in (
            ("all", "all"),
            ("sure", "90% or surer"),
            ("doubtful", "less than 90%"),
            ("guess", "less than 50%"),
            ("alone", "no partner"),
        )
    )
    return section(
        "matches",
        "Which row belongs to which?",
        f"""<div id="match-panel">
<div class="tools" hidden>
<label>Search ids<input id="match-search" type="search" autocomplete="off" spellcheck="false"></label>
{choice}<label>Certainty<select id="match-certainty">{options}</select></label></div>
<div class="scroll" tabindex="0" role="region" aria-label="Matches"><table>
<caption class="hidden">Matches with their second best; the buttons in the head sort</caption>
<thead><tr>{head}</tr></thead>
<tbody id="match-rows">
{table.first}
</tbody></table></div>
<div class="pages"><button id="match-previous" type="button" hidden>Previous</button>
<button id="match-next" type="button" hidden>Next</button>
<output id="match-count" aria-live="polite">The first of {table.kept:,} matches; with scripts, all can be searched.
</output></div>
</div>
<script type="application/octet-stream" id="store">{table.store}</script>""",
        f'<p class="quiet">{" ".join(notes)}</p>',
    )


def filled(writer: Writer) -> str:
    """What was filled in?"""
    links = writer.links
    if all(table.block.mask.all() for table in links.tables):
        return section("filled", "What was filled in?", "<p>Nothing: no entry is missing in the columns used.</p>")
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
    table = rows(
        ("column", "table", "missing", "share", "expected R²"),
        lines,
        caption="Columns with missing entries",
        numbers=(2, 3, 4),
    )
    notes = ["Expected R²: share of the variance of the missing entries that the filled ones should explain."]
    if len(columns) > MOST_COLUMNS:
        notes.append(f"The first {MOST_COLUMNS} of {len(columns):,} columns are listed.")
    if len(links.tables[0].row_ids) > MOST_ROWS:
        notes.append(f"Computed on {MOST_ROWS:,} rows drawn at random.")
    total = sum(one.missing for one in columns)
    shown = ""
    if not writer.redact:
        entries = filled_entries(links, sample)
        body = [
            [
                label(one.reference_id),
                label(one.table),
                label(one.column),
                label(one.value if one.error is None else f"{float(one.value):,.4g}"),
                "" if one.error is None else f"± {one.error:,.2g}",
            ]
            for one in entries
        ]
        heads = (f"row of {label(links.reference, longest=40)}", "table", "column", "filled with", "standard error")
        listed = rows(heads, body, caption="Some filled entries", numbers=(3, 4))
        shown = f"<details><summary>{len(entries)} of the {total:,} entries</summary>{listed}</details>"
    whence = "the joint model of all tables."
    if not links.model.shared:
        whence = "each table's own columns alone, for the link is not to be trusted."
    return section(
        "filled",
        "What was filled in?",
        f"<p>{total:,} missing entries in {len(columns):,} columns were filled from {whence}</p>",
        f"<details{' open' if len(columns) <= 12 else ''}><summary>Column by column</summary>{table}</details>",
        shown,
        f'<p class="quiet">{" ".join(notes)}</p>',
    )


def left_out(writer: Writer) -> str:
    """What was left out, and why?"""
    links = writer.links
    unused: list[list[str]] = []
    used: list[list[str]] = []
    notes: list[str] = []
    why = () if writer.redact else ("why",)
    for table in links.tables:
        scales = links.choices.get("scales", {}).get(table.name, {})
        for use in table.uses:
            # A reason can quote an entry.
            reason = [] if writer.redact else [text(one_line(use.reason))]
            if use.columns:
                kinds = sorted({str(scales[name]) for name in use.columns if name in scales})
                used.append([label(use.name), label(table.name), text(use.kind), text(", ".join(kinds)), *reason])
            else:
                unused.append([label(use.name), label(table.name), text(use.kind), *reason])
        notes += (
            []
            if writer.redact
            else [f"<li>{label(table.name)}: {label(note, longest=400)}</li>" for note in table.notes]
        )
    alone = []
    for name, link in links.found.items():
        without, size = (
            int((link.permutation < 0).sum()),
            next(t for t in links.tables if t.name == name).block.shape[0],
        )
        spare = size - int((link.permutation >= 0).sum())
        if without or spare:
            alone.append(
                f"<li>{without:,} rows of {label(links.reference)} have no partner in {label(name)}; {spare:,} rows of "
                f"{label(name)} are in no match.</li>"
            )
    columns = (
        rows(("column", "table", "counts as", *why), unused[:MOST_COLUMNS], caption="Columns left out")
        if unused
        else ""
    )
    kept = rows(("column", "table", "counts as", "scale", *why), used[:MOST_COLUMNS], caption="Columns used")
    more = f" The first {MOST_COLUMNS} are listed." if len(unused) > MOST_COLUMNS or len(used) > MOST_COLUMNS else ""
    left = "1 column was" if len(unused) == 1 else f"{len(unused) or 'No'} columns were"
    return section(
        "left-out",
        "What was left out, and why?",
        f"<p>{left} left out; {len(used):,} were used.{more}</p>",
        columns,
        f"<ul>{''.join(alone + notes)}</ul>" if alone or notes else "<p>Every row is in a match.</p>",
        f"<details><summary>The columns used</summary>{kept}</details>",
    )


def reproduce(writer: Writer) -> str:
    """How can this be repeated?"""
    links = writer.links
    # Paths and texts on a command line can tell more than names.
    code = _python_call(writer) if writer.command is None or writer.redact else f"{writer.command}\n"
    lines = [[text(key), text(value)] for key, value in _plain_choices(links.choices, redact=writer.redact)]
    chosen = rows(("setting", "value"), lines, caption="What was set and chosen") if lines else ""
    return section(
        "reproduce",
        "How to repeat this run",
        "<p>The same tables in the same order, the same options and the same version give the same answer. A saved "
        "result (<code>keyless.load</code>) gives this page again.</p>",
        f'<pre tabindex="0" dir="ltr"><code>{text(code)}</code></pre>',
        f"<details><summary>What was set, and what was chosen from the data</summary>{chosen}</details>"
        if chosen
        else "",
    )


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
        "missingness": "True" if choices.get("missingness") else None,
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
        if key in ("scales", "left_out", "uses", "set"):
            continue
        if redact and not (isinstance(value, bool | int | float) or key in ("route", "method")):
            continue
        if isinstance(value, Mapping | list | tuple) and not value:
            continue
        yield one_line(key).replace("_", " "), one_line(value, longest=400)


SECTIONS: tuple[tuple[str, str, Callable[[Writer], str]], ...] = (
    ("evidence", "Evidence", evidence),
    ("certainty", "Certainty", certainty),
    ("matches", "Matches", matches),
    ("factors", "Shared factors", factors),
    ("filled", "Filled in", filled),
    ("search", "Search", search),
    ("left-out", "Left out", left_out),
    ("reproduce", "Repeat", reproduce),
)
"""Anchor, short name and maker of each section, in order."""
