"""The match table: all matches in a compressed store that the page's script pages through, the first ones as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.arrays import FloatArray, IntArray
from keyless.links import Links
from keyless.pairs.posterior import pair_places
from keyless.report.details import Details, details
from keyless.report.markup import label, one_line, packed, shown_probability, steps

__all__ = ["Line", "MatchTable", "match_columns", "match_table", "second_best"]


PAGE = 25
"""Matches shown at a time."""

LARGEST = 5_200_000
"""Characters of the store, so that the whole page stays below six million."""

MOST = 1_000_000
"""More matches never fit, and need not be packed to find that out."""


def second_best(links: Links, name: str) -> tuple[IntArray, FloatArray]:
    """Return for each reference row its likeliest alternative, and how likely that is.

    That is another partner; for a row with a match it can also be that it has no partner.

    Returns:
        The rows, −1 for no partner and where there is no alternative, and the probabilities, 0 where there is none.
    """
    coupling: Any = links.coupling(name)
    link = links.found[name]
    permutation = link.permutation
    best, likely = np.full(len(permutation), -1), np.zeros(len(permutation))
    if hasattr(coupling, "tocsr"):
        kept = coupling.tocsr()
        rows, _ = pair_places(kept)
        other = np.flatnonzero(kept.indices != permutation[rows])
        # The likeliest last, of several the first: it is the one that stays.
        order = other[np.lexsort((-kept.indices[other], kept.data[other]))]
        best[rows[order]], likely[rows[order]] = kept.indices[order], kept.data[order]
    else:
        # Some rows at a time: a copy of the whole coupling can be too large.
        for start in range(0, len(permutation), 1024):
            part = np.array(coupling[start : start + 1024], dtype=np.float64)
            own = permutation[start : start + 1024]
            part[np.flatnonzero(own >= 0), own[own >= 0]] = -1.0
            chosen = part.argmax(axis=1)
            best[start : start + 1024] = chosen
            likely[start : start + 1024] = part[np.arange(len(part)), chosen]
    nothing = ~(likely > 0)
    best[nothing], likely[nothing] = -1, 0.0
    if link.alone.size:
        alone = np.where(permutation < 0, 0.0, link.alone)
        best, likely = np.where(alone > likely, -1, best), np.maximum(alone, likely)
    return best, likely


@dataclass(frozen=True)
class Line:
    """One line of the table, each cell as it is shown.

    Attributes:
        row: the reference row.
        table: the table's name.
        match: its row; None for no partner.
        probability: how likely that is right.
        other: the best other candidate; None where it is no row.
        likely: how likely that is; empty where there is none.
    """

    row: str
    table: str
    match: str | None
    probability: str
    other: str | None
    likely: str


@dataclass(frozen=True)
class MatchTable:
    """The match table of a page.

    Attributes:
        store: all of it, for the page's script.
        first: its first lines.
        kept: how many matches the store holds.
        total: how many there are.
        details: why rows are matched, for those that come first.
    """

    store: str
    first: list[Line]
    kept: int
    total: int
    details: Details


def match_table(links: Links, *, surest_first: bool = False) -> MatchTable:
    """Return the match table of a result.

    Where all matches would make the page too large, the least sure ones are kept: those are the ones to look at.

    Args:
        links: the result.
        surest_first: whether the surest match comes first, not the least sure one.
    """
    columns = match_columns(links)
    total = kept = len(columns["probability"])
    doubt = np.argsort(columns["probability"], kind="stable")
    chosen = np.arange(total)
    if total > MOST:
        kept, chosen = MOST, np.sort(doubt[:MOST])
    while len(store := _packed(links, columns, chosen)) > LARGEST:
        # Somewhat less than would fit if all matches took the same room.
        kept = int(0.95 * kept * LARGEST / len(store))
        chosen = np.sort(doubt[:kept])
    # As the page's script sorts: by steps, equal ones in their order, what is no number last.
    counts = np.array([steps(value) for value in columns["probability"][chosen].tolist()], dtype=np.float64)
    order = np.argsort(-counts if surest_first else counts, kind="stable")
    lines = chosen[order]
    found = details(links, order, columns["table"][lines], columns["row"][lines])
    return MatchTable(store, _first(links, columns, lines[:PAGE]), kept, total, found)


def match_columns(links: Links) -> dict[str, Any]:
    """Return the columns of the match table: numbers of table, row, match and second best, and how sure they are."""
    parts: dict[str, list[Any]] = {
        key: [] for key in ("table", "row", "match", "probability", "margin", "other", "likely")
    }
    for number, (name, link) in enumerate(links.found.items()):
        other, likely = second_best(links, name)
        size = len(link.permutation)
        for key, values in (
            ("table", np.full(size, number)),
            ("row", np.arange(size)),
            ("match", link.permutation),
            ("probability", link.probability),
            ("margin", link.margin),
            ("other", other),
            ("likely", likely),
        ):
            parts[key].append(np.asarray(values))
    return {key: np.concatenate(values) for key, values in parts.items()}


def _packed(links: Links, columns: dict[str, Any], chosen: IntArray) -> str:
    """Return the chosen matches as columns: JSON, deflated, in base64."""
    part = {key: values[chosen] for key, values in columns.items()}
    tables = [{"name": one_line(name), "believed": link.evidence.believed} for name, link in links.found.items()]
    labels = [_labels(links.tables[0].row_ids, [part["row"]])]
    for number, table in enumerate(links.tables[1:]):
        inside = part["table"] == number
        codes = [part[key][inside] for key in ("match", "other")]
        labels.append(_labels(table.row_ids, codes))
        part["match"][inside], part["other"][inside] = codes
    document = {
        "reference": one_line(links.reference),
        "tables": tables,
        # Labels of the rows that occur, and below the number of each in its list; null where a label is the number.
        "labels": labels,
        "table": part["table"].tolist(),
        "row": part["row"].tolist(),
        "match": part["match"].tolist(),
        # Margins are in steps of 0.1 nats; null where there is none.
        "probability": [steps(value) for value in part["probability"].tolist()],
        "margin": _tenths(part["margin"]),
        "other": part["other"].tolist(),
        "likely": [steps(value) for value in part["likely"].tolist()],
    }
    return packed(document)


def _labels(row_ids: Sequence[Any], rows: Sequence[IntArray]) -> list[str] | None:
    """Return the labels of the rows that occur, and put in place of each row its number among them."""
    if isinstance(row_ids, range) or (
        all(isinstance(row, int) for row in row_ids) and list(row_ids) == list(range(len(row_ids)))
    ):
        return None
    used = np.unique(np.concatenate(rows))
    used = used[used >= 0]
    for part in rows:
        part[:] = np.where(part >= 0, np.searchsorted(used, part), -1)
    return [one_line(row_ids[row]) for row in used]


def _tenths(values: FloatArray) -> list[int | None]:
    """Return numbers in whole tenths, None where they are not finite."""
    finite = np.isfinite(values)
    tenths = np.rint(np.where(finite, values, 0.0) * 10).astype(np.int64)
    return [tenth if good else None for tenth, good in zip(tenths.tolist(), finite.tolist(), strict=True)]


def _first(links: Links, columns: dict[str, Any], chosen: IntArray) -> list[Line]:
    """Return some lines of the table as the page's script writes them."""
    lines = []
    for k in chosen:
        table = links.tables[1 + int(columns["table"][k])]
        match, other, likely = int(columns["match"][k]), int(columns["other"][k]), steps(float(columns["likely"][k]))
        lines.append(
            Line(
                row=label(links.tables[0].row_ids[int(columns["row"][k])]),
                table=label(table.name),
                match=label(table.row_ids[match]) if match >= 0 else None,
                probability=shown_probability(steps(float(columns["probability"][k]))),
                other=label(table.row_ids[other]) if other >= 0 else None,
                likely=shown_probability(likely) if other >= 0 or likely else "",
            )
        )
    return lines
