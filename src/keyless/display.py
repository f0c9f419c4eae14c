"""How a result shows itself: in a sentence, in a notebook, in pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from keyless.arrays import FloatArray, IntArray
from keyless.block import Block
from keyless.errors import InputError
from keyless.evidence import Evidence, overall
from keyless.model.joint_model import JointModel
from keyless.model.shared_factors import shared_positions
from keyless.table_link import TableLink
from keyless.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Sentence", "Views", "headline"]

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
    """Return what was found, in one sentence.

    Args:
        reference: name of the reference.
        found: what was found, per table.
    """
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


class Views(ABC):
    """Pictures of a result and its look in a notebook; `Links` is one."""

    tables: tuple[Table, ...]
    found: Mapping[str, TableLink]
    model: JointModel
    choices: Mapping[str, Any]
    starts: tuple[Mapping[str, Any], ...]
    history: tuple[Mapping[str, Any], ...]

    def plot_evidence(self, *, ax: Axes | None = None) -> Axes:
        """Show what the link of each table reaches beside what chance reaches."""
        from keyless import plots  # noqa: PLC0415 - matplotlib is loaded when something is drawn

        evidences: list[Evidence] = [link.evidence for link in self.found.values()]
        return plots.evidence(
            [one.score for one in evidences],
            [one.null_scores for one in evidences],
            [one.needed for one in evidences],
            names=self._names(),
            ax=ax,
        )

    def plot_certainty(self, *, ax: Axes | None = None) -> Axes:
        """Show how many rows are matched with which certainty."""
        from keyless import plots  # noqa: PLC0415

        links = list(self.found.values())
        return plots.certainty(
            [link.permutation for link in links], [link.probability for link in links], names=self._names(), ax=ax
        )

    def plot_coverage(self, *, ax: Axes | None = None) -> Axes:
        """Show how many matches should be right if only the surest ones are kept."""
        from keyless import plots  # noqa: PLC0415

        kept = [link.probability[link.permutation >= 0] for link in self.found.values()]
        return plots.coverage(kept, names=self._names(), ax=ax)

    def plot_factors(self, name: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Show matched rows of the reference and another table on the factors that both see.

        Args:
            name: of the other table; the first unless given.
            ax: where to draw.
        """
        from keyless import plots  # noqa: PLC0415

        name = next(iter(self.found)) if name is None else name
        ours, theirs = self._positions(name)
        return plots.factors(ours, theirs, names=(self.tables[0].name, name), ax=ax)

    def plot_correlations(self, *, ax: Axes | None = None) -> Axes:
        """Show the canonical correlations between matched rows."""
        from keyless import plots  # noqa: PLC0415

        return plots.correlations([link.correlations for link in self.found.values()], names=self._names(), ax=ax)

    def plot_objective(self, *, timed: bool = True, ax: Axes | None = None) -> Axes:
        """Show the objective over the run.

        Args:
            timed: over the seconds of the run, where they are known, rather than over its steps.
            ax: where to draw.
        """
        from keyless import plots  # noqa: PLC0415

        steps = [{name: value for name, value in record.items() if name != "seconds"} for record in self.history]
        return plots.objective(self.history if timed else steps, ax=ax)

    def plot_starts(self, *, ax: Axes | None = None) -> Axes:
        """Show how far the starts of the search got."""
        from keyless import plots  # noqa: PLC0415

        scored = [start for start in self.starts if start.get("score") is not None]
        # "4 factors, scales auto, map 1": the part before the first comma is the kind.
        kinds = [str(start["start"]).split(",")[0] for start in scored]
        return plots.starts(kinds, [start["score"] for start in scored], ax=ax)

    def _repr_html_(self) -> str:
        verdict = overall([link.evidence for link in self.found.values()]).verdict
        lines = []
        for name, link in self.found.items():
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
            f"<div><p><strong>{verdict.capitalize()}.</strong> {headline(self.tables[0].name, self.found).html}</p>"
            f"<table><thead><tr>{''.join(f'<th scope=col>{head}</th>' for head in heads)}</tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table></div>"
        )

    def _names(self) -> Sequence[str] | None:
        """Names of the tables, where there are several to tell apart."""
        return tuple(self.found) if len(self.found) > 1 else None

    def _positions(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Return both tables' positions of at most `_MOST_PAIRS` matched pairs, drawn at random but always the same."""
        if name not in self.found:
            raise InputError(f"name: must be one of {', '.join(map(repr, self.found))}; found {name!r}.")
        number = [table.name for table in self.tables].index(name)
        permutation = self.found[name].permutation
        rows = np.flatnonzero(permutation >= 0)
        if not rows.size:
            return np.empty((0, 2)), np.empty((0, 2))
        if rows.size > _MOST_PAIRS:
            rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_PAIRS, replace=False))
        blocks = [self._used(table).block for table in self.tables]
        taken = (_rows_of(blocks[0], rows), _rows_of(blocks[number], permutation[rows]))
        return shared_positions(self.model, *taken, number=number)

    @abstractmethod
    def _used(self, table: Table, *, like: Table | None = None) -> Table:
        """Return a table as it was linked."""


def _rows_of(block: Block, rows: IntArray) -> Block:
    return Block(block.values[rows], block.mask[rows], block.name, block.columns)


def _listed(count: int) -> str:
    """Return places for that many names: `{}`, `{} and {}`, `{}, {} and {}`."""
    return "{}" if count == 1 else ", ".join(["{}"] * (count - 1)) + " and {}"


def _one_line(name: str) -> str:
    text = " ".join(str(name).split())
    return text if len(text) <= 80 else f"{text[:79]}…"
