"""The match table: all matches in a compressed store that the page's script pages through, the first ones as HTML."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.links import Links
from keyless.pairs.posterior import pair_places
from keyless.report.markup import label, one_line, text

__all__ = ["MatchTable", "match_table", "second_best"]

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

PAGE = 25
"""Matches shown at a time."""

LARGEST = 5_200_000
"""Characters of the store, so that the whole page stays below six million."""

MOST = 1_000_000
"""More matches never fit, and need not be packed to find that out."""


def second_best(links: Links, name: str) -> tuple[IntArray, FloatArray]:
    """Return for each reference row its likeliest alternative, and how likely that is.

    That is another partner; where rows can be alone, for a row with a match it can also be that it has no partner.

    Args:
        links: the result.
        name: of the table.

    Returns:
        The rows, −1 for no partner and where there is no alternative, and the probabilities, 0 where there is none.
    """
    coupling: Any = links.coupling(name)
    permutation = links.permutations[name]
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
    if (permutation < 0).any():
        alone = 1 - np.asarray(coupling.sum(axis=1), dtype=np.float64).ravel()
        alone[permutation < 0] = 0.0
        best, likely = np.where(alone > likely, -1, best), np.maximum(alone, likely)
    return best, likely


@dataclass(frozen=True)
class MatchTable:
    """The match table of a page.

    Attributes:
        store: all of it, for the page's script.
        first: its first lines as HTML.
        kept: how many matches the store holds.
        total: how many there are.
    """

    store: str
    first: str
    kept: int
    total: int


def match_table(links: Links) -> MatchTable:
    """Return the match table of a result.

    Where all matches would make the page too large, the least sure ones are kept: those are the ones to look at.

    Args:
        links: the result.
    """
    columns = _columns(links)
    total = kept = len(columns["probability"])
    doubt = np.argsort(columns["probability"], kind="stable")
    chosen = np.arange(total)
    if total > MOST:
        kept, chosen = MOST, np.sort(doubt[:MOST])
    while len(store := _packed(links, columns, chosen)) > LARGEST:
        # Somewhat less than would fit if all matches took the same room.
        kept = int(0.95 * kept * LARGEST / len(store))
        chosen = np.sort(doubt[:kept])
    return MatchTable(store, _first(links, columns, chosen[:PAGE]), kept, total)


def _columns(links: Links) -> dict[str, Any]:
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
    tables = [{"name": one_line(name)} for name in links.found]
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
        # In steps of 0.0001, and margins of 0.1 nats; −1 where there is none.
        "probability": _steps(part["probability"], 1e4),
        "margin": _steps(part["margin"], 10),
        "other": part["other"].tolist(),
        "likely": _steps(part["likely"], 1e4),
    }
    plain = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(plain, 6)).decode()


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


def _steps(values: FloatArray, per_unit: float) -> list[int | None]:
    """Return numbers in whole steps, None where they are not finite."""
    finite = np.isfinite(values)
    steps = np.rint(np.where(finite, values, 0.0) * per_unit).astype(np.int64)
    return [step if good else None for step, good in zip(steps.tolist(), finite.tolist(), strict=True)]


def _first(links: Links, columns: dict[str, Any], chosen: IntArray) -> str:
    """Return some lines of the table as the page's script writes them."""
    names, lines = list(links.found), []
    for k in chosen:
        table = links.tables[1 + int(columns["table"][k])]
        match, other, likely = int(columns["match"][k]), int(columns["other"][k]), float(columns["likely"][k])
        cells = [f'<th scope="row">{label(links.tables[0].row_ids[int(columns["row"][k])])}</th>']
        if len(names) > 1:
            cells.append(f"<td>{label(table.name)}</td>")
        cells += [
            f"<td>{label(table.row_ids[match])}</td>" if match >= 0 else '<td class="none">no partner</td>',
            f'<td class="n p">{_number(columns["probability"][k], ".4f")}</td>',
            f'<td class="n">{_number(columns["margin"][k], ".1f")}</td>',
            f"<td>{label(table.row_ids[other])}</td>" if other >= 0 else f'<td class="none">{_alone(likely)}</td>',
            f'<td class="n">{_number(likely, ".4f")}</td>' if likely else "<td></td>",
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(lines)


def _alone(likely: float) -> str:
    return "no partner" if likely else "none"


def _number(value: float, form: str) -> str:
    return text(format(float(value), form)) if np.isfinite(value) else "–"
