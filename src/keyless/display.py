"""How a result shows itself: in a sentence, in a notebook, in pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from keyless.arrays import FloatArray, IntArray, some_of
from keyless.block import Block
from keyless.errors import check_among
from keyless.model.shared_factors import shared_positions
from keyless.table_link import LinkedTables, TableLink

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Sentence",
    "headline",
    "plot_certainty",
    "plot_correlations",
    "plot_coverage",
    "plot_evidence",
    "plot_factors",
    "plot_objective",
    "plot_starts",
    "shown_in_notebook",
]

_MOST_PAIRS = 2000
"""Most matched pairs that are drawn among the factors: so many are enough to compare partners with strangers."""


@dataclass(frozen=True)
class Sentence:
    """A sentence about tables, whose names are shown as they are and never taken for anything else.

    Attributes:
        words: the sentence, `{}` for each name.
        names: those names.
    """

    words: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.words.format(*(repr(name) for name in self.names))

    @property
    def html(self) -> str:
        """The sentence as HTML; names keep their own direction of writing."""
        return escape(self.words).format(*(f"<bdi>{escape(_one_line(name))}</bdi>" for name in self.names))


def headline(reference: str, found: Mapping[str, TableLink]) -> Sentence:
    """Return what was found, in one sentence."""
    names = tuple(found)
    verdicts = {name: link.evidence.verdict for name, link in found.items()}
    if len(set(verdicts.values())) > 1:
        said = {"linked": "linked", "uncertain": "uncertain", "unlinkable": "not linkable"}
        parts = ", ".join(f"{{}} is {said[verdicts[name]]}" for name in names)
        return Sentence(f"The tables differ: to {{}}, {parts}.", (reference, *names))
    verdict = next(iter(verdicts.values()))
    if verdict == "unlinkable":
        others = _listed(len(names))
        return Sentence(
            f"Nothing found between {{}} and {others} is clearer than chance: these tables cannot be linked.",
            (reference, *names),
        )
    if verdict == "uncertain":
        others = _listed(len(names))
        belong = "belongs" if len(names) == 1 else "belong"
        if all(link.evidence.believed for link in found.values()):
            words = f"How {others} {belong} to {{}} is known, but many rows are too alike to be told apart."
            return Sentence(words, (*names, reference))
        repeated = {link.evidence.repeated: name for name, link in found.items() if link.evidence.doubt == "repeats"}
        if repeated:
            many = repeated.get("right", reference)
            words = f"How {others} {belong} to {{}} is known, but {{}} seems to hold several rows of one entity. "
            words += "The option `repeats` matches each of them."
            return Sentence(words, (*names, reference, many))
        return Sentence(f"It is uncertain whether {others} {belong} to {{}}.", (*names, reference))
    matched = sum(int((link.permutation >= 0).sum()) for link in found.values())
    right = sum(float(np.nansum(link.probability[link.permutation >= 0])) for link in found.values())
    if len(names) > 1:
        return Sentence(
            f"{_listed(len(names))} are linked to {{}}: {matched:,} matches, of which about {right:,.0f} should be "
            "right.",
            (*names, reference),
        )
    rows = len(next(iter(found.values())).permutation)
    have = "has" if matched == 1 else "have"
    return Sentence(
        f"{{}} and {{}} are linked: {matched:,} of {rows:,} rows {have} a partner, and about {right:,.0f} of the "
        "matches should be right.",
        (reference, *names),
    )


def plot_evidence(links: LinkedTables, *, ax: Axes | None = None) -> Axes:
    """Show what the link of each table reaches beside what chance reaches."""
    from keyless import plots  # noqa: PLC0415 - matplotlib is loaded when something is drawn

    evidences = [link.evidence for link in links.found.values()]
    return plots.evidence(
        [one.score for one in evidences],
        [one.null_scores for one in evidences],
        [one.needed for one in evidences],
        names=_names(links),
        ax=ax,
    )


def plot_certainty(links: LinkedTables, *, ax: Axes | None = None) -> Axes:
    """Show how many rows are matched with which certainty."""
    from keyless import plots  # noqa: PLC0415

    found = list(links.found.values())
    return plots.certainty(
        [link.permutation for link in found], [link.probability for link in found], names=_names(links), ax=ax
    )


def plot_coverage(links: LinkedTables, *, ax: Axes | None = None) -> Axes:
    """Show how many matches should be right if only the surest ones are kept."""
    from keyless import plots  # noqa: PLC0415

    kept = [link.probability[link.permutation >= 0] for link in links.found.values()]
    return plots.coverage(kept, names=_names(links), ax=ax)


def plot_factors(links: LinkedTables, name: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Show matched rows of the reference and another table on the factors that both see.

    Args:
        links: the result.
        name: of the other table; the first unless given.
        ax: where to draw.
    """
    from keyless import plots  # noqa: PLC0415

    name = next(iter(links.found)) if name is None else name
    ours, theirs = _positions(links, name)
    return plots.factors(ours, theirs, names=(links.tables[0].name, name), ax=ax)


def plot_correlations(links: LinkedTables, *, ax: Axes | None = None) -> Axes:
    """Show the canonical correlations between matched rows."""
    from keyless import plots  # noqa: PLC0415

    return plots.correlations([link.correlations for link in links.found.values()], names=_names(links), ax=ax)


def plot_objective(links: LinkedTables, *, timed: bool = True, ax: Axes | None = None) -> Axes:
    """Show the objective over the run.

    Args:
        links: the result.
        timed: over the seconds of the run, where they are known, rather than over its steps.
        ax: where to draw.
    """
    from keyless import plots  # noqa: PLC0415

    steps = [{name: value for name, value in record.items() if name != "seconds"} for record in links.history]
    return plots.objective(links.history if timed else steps, ax=ax)


def plot_starts(links: LinkedTables, *, ax: Axes | None = None) -> Axes:
    """Show how far the starts of the search got."""
    from keyless import plots  # noqa: PLC0415

    scored = [start for start in links.starts if start.get("score") is not None]
    # "4 factors, scales auto, map 1": the part before the first comma is the kind.
    kinds = [str(start["start"]).split(",")[0] for start in scored]
    return plots.starts(kinds, [start["score"] for start in scored], ax=ax)


def shown_in_notebook(links: LinkedTables) -> str:
    """Return what a notebook shows: the verdict, and a line per table."""
    sentence = headline(links.reference, links.found).html
    lines = []
    for name, link in links.found.items():
        matched = link.permutation >= 0
        right = str(link.expected_right) if link.evidence.believed else "–"
        chance = f"{max(link.evidence.null_scores):.1f}" if link.evidence.null_scores else "not measured"
        cells = (f"{matched.sum():,} of {matched.size:,}", right, f"{link.evidence.score:.1f}", chance)
        lines.append(
            f'<tr><th scope="row" style="text-align:left"><bdi>{escape(_one_line(name))}</bdi></th>'
            f"<td>{link.evidence.verdict}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )
    heads = ("table", "verdict", "rows matched", "expected right", "nats a row", "chance reaches")
    return (
        f"<div><p><strong>{links.evidence.verdict.capitalize()}.</strong> {sentence}</p>"
        f"<table><thead><tr>{''.join(f'<th scope=col>{head}</th>' for head in heads)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _names(links: LinkedTables) -> Sequence[str] | None:
    """Names of the tables, where there are several to tell apart."""
    return tuple(links.found) if len(links.found) > 1 else None


def _positions(links: LinkedTables, name: str) -> tuple[FloatArray, FloatArray]:
    """Return both tables' positions of at most `_MOST_PAIRS` matched pairs, drawn at random but always the same."""
    check_among("name", name, links.found)
    permutation, number = links.found[name].permutation, links._number(name)
    rows = some_of(np.flatnonzero(permutation >= 0), _MOST_PAIRS)
    if not rows.size:
        return np.empty((0, 2)), np.empty((0, 2))
    blocks = [links._used(table).block for table in links.tables]
    taken = (_rows_of(blocks[0], rows), _rows_of(blocks[number], permutation[rows]))
    return shared_positions(links.model, *taken, number=number)


def _rows_of(block: Block, rows: IntArray) -> Block:
    return Block(block.values[rows], block.mask[rows], block.name, block.columns)


def _listed(count: int) -> str:
    """Return places for that many names: `{}`, `{} and {}`, `{}, {} and {}`."""
    return "{}" if count == 1 else ", ".join(["{}"] * (count - 1)) + " and {}"


def _one_line(name: str) -> str:
    text = " ".join(str(name).split())
    return text if len(text) <= 80 else f"{text[:79]}…"
