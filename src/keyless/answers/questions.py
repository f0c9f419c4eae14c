"""Which rows to look up: those whose true partner would help most, and what an answer is expected to change.

What helps depends on what is in doubt:

* no map is believed: known pairs of rows pin a map as they pin a regression of one table's factors on the other's. So
  rows are asked for, one after the other, whose answers leave the map least uncertain (a greedy D-optimal design).
  Outliers come last: what they say often does not hold for other rows;
* a mirror image of the map fits as well: rows that every image moves far tell the images apart;
* the map is believed, but rows are too alike: those rows are asked for whose answer settles most rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.spatial.distance import cdist

from keyless.answers.distributions import distribution, likeliest_partners, soft_answers
from keyless.answers.labels import row_number
from keyless.arrays import BoolArray, IntArray, NumpyArray, check_count
from keyless.engine import Side
from keyless.engine.foretold import FEWEST_KNOWN, far_out
from keyless.engine.forms import ROWS_PER_FACTOR
from keyless.engine.symmetry import LEADING, OUTERMOST, SOFT_CORRELATION, turns
from keyless.errors import InputError, printable
from keyless.table_link import LinkedTables

__all__ = ["Kind", "Question", "known_rows", "questions"]

Kind = Literal["symmetry", "look-alikes", "map"]

_CANDIDATES = 5
"""Likeliest partners that are shown with a question, at most."""

_BETTER_THAN_A_GUESS = 1.5
"""A candidate is shown if it is more than this many times as likely as a row of the table drawn at random."""

_FACTORS = 40
"""The most factors of the reference by which a map is pinned, of those that stand out of its noise. All count alike:
both tables have weak ones in common, too."""

_PINNED = 1 / 3
"""Share of the factors of the reference for which so many known rows are usually enough to find the map: rows that fit
a map of some factors help to find the others."""

_TELL_IMAGES_APART = 3
"""Known rows from which mirror images are not asked about any more. Each answer rules out all images that move its row
far, and these are nearly all of them: if the map is still in doubt after three, it is so for another reason."""

_MOST_ROWS = 5_000
"""Most rows among which the best ones to ask for are sought; of a larger table so many are taken, evenly."""

_CLEAR = 0.5
"""From this belief on, a map that is in doubt for its mirror images is clear of chance, and only the images are in
doubt. A wrong map has mirror images, too."""

_AS_GOOD = 1.5
"""A mirror image counts if the mean squared distance of its rows from their partners is up to this many times that of
the best image."""

_LIKELY = 0.1
"""Probability from which a row counts as a likely partner."""

_CERTAIN = 0.99
"""Probability above which an answer about a row is not needed: of a hundred such rows less than one is wrong."""


@dataclass(frozen=True)
class Question:
    """A row whose true partner would help, if somebody can look it up.

    Attributes:
        table: the table that its partner is sought in.
        row_id: id of the reference row.
        row: its number in the reference.
        kind: what an answer settles: `"map"`, which map leads from one table to the other; `"symmetry"`, which of
            several mirror images of a map is right; `"look-alikes"`, which of several similar rows is which.
        why: the reason for asking, in a sentence.
        candidates: the likeliest partners by what is known so far, the likeliest first: id, row number and probability.
            None where they are no better than a guess, as where no map is believed.
        expected: what an answer is expected to change, in a sentence.
    """

    table: str
    row_id: Any
    row: int
    kind: Kind
    why: str
    candidates: tuple[tuple[Any, int, float], ...]
    expected: str

    def __repr__(self) -> str:
        listed = ", ".join(f"{label!r} ({chance:.2f})" for label, _, chance in self.candidates)
        lines = [
            f"Which row of {self.table!r} is reference row {self.row_id!r}? ({self.kind})",
            f"  why: {self.why}",
            f"  candidates: {listed or 'none'}",
            f"  expected: {self.expected}",
        ]
        return printable("\n".join(lines), lines=True)


def questions(links: LinkedTables, k: int = 5, *, table: str | None = None, skip: Iterable[Any] = ()) -> list[Question]:
    """Return the rows whose true partner would help most, if somebody can look it up; the most helpful first.

    Which rows these are depends on what is in doubt: the map between the tables, which of its mirror images is
    right, or which of several similar rows is which. Give what was found out to `answer`.

    Args:
        links: the result.
        k: how many rows, at most.
        table: about one table only; None: about all, the one whose link is weakest first.
        skip: ids of reference rows not to ask for, such as those whose partner nobody can tell. Rows of known pairs
            are never asked for.
    """
    count = check_count(k, name="k")
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        raise InputError(f"skip: must be a list of ids of reference rows; found {skip!r}.")
    names = links._chosen(table)
    passed_over = [row_number(links.tables[0], label, name="skip") for label in skip]
    # The table whose link is weakest comes first; several tables take turns.
    names.sort(key=lambda name: (links.found[name].evidence.believed, links.found[name].evidence.excess))
    asked = [_asked(links, name, count, passed_over) for name in names]
    turns = chain.from_iterable(zip_longest(*asked))
    return list(islice((question for question in turns if question is not None), count))


def known_rows(links: LinkedTables, name: str, kind: Literal["known", "forbidden"] = "known") -> IntArray:
    """Return the pairs of row numbers that the caller said are one entity, or are not: k × 2.

    Args:
        links: the result.
        name: name of the table.
        kind: `"known"` for one entity, `"forbidden"` for not.
    """
    told = links.choices.get("told", {}).get(kind, {}).get(name, [])
    return np.asarray(told, dtype=np.int64).reshape(-1, 2)


def _asked(links: LinkedTables, name: str, count: int, skip: Sequence[int]) -> list[Question]:
    """Return the questions about one table."""
    link = links.found[name]
    told = known_rows(links, name)[:, 0]
    # An answer names rows by their ids: rows that share an id cannot be asked for.
    free = ~pd.Index(links.tables[0].row_ids).duplicated(keep=False)
    free[list(skip)] = False
    free[told] = False
    if not free.any():
        return []
    if link.evidence.believed or link.evidence.doubt == "repeats":
        chosen = _settling(links, name, free, count)
    elif link.evidence.ambiguous and link.evidence.belief >= _CLEAR and len(told) < _TELL_IMAGES_APART:
        chosen = _telling_images_apart(links, name, free, count)
    else:
        chosen = _pinning(links, free, count, told, link.evidence.verdict)
    rows = [row for row, *_ in chosen]
    listed = _candidates(links, name, rows)
    labels = links.tables[0].row_ids
    return [
        Question(name, labels[row], row, kind, why, partners, expected)
        for (row, kind, why, expected), partners in zip(chosen, listed, strict=True)
    ]


Chosen = tuple[int, Kind, str, str]
"""Row number, kind, why and what is expected."""


def _candidates(links: LinkedTables, name: str, rows: Sequence[int]) -> list[tuple[tuple[Any, int, float], ...]]:
    """Return the likeliest partners of some rows: id, row number and probability of each; none that is a mere guess."""
    labels = links.tables[links._number(name)].row_ids
    partners, _ = distribution(links.found[name])
    found: list[list[tuple[Any, int, float]]] = [[] for _ in rows]
    for row, place, chance in zip(*likeliest_partners(partners[list(rows)], _CANDIDATES), strict=True):
        if chance * len(labels) > _BETTER_THAN_A_GUESS:
            found[row].append((labels[place], int(place), float(chance)))
    return [tuple(listed) for listed in found]


# --- no map is believed ----------------------------------------------------------------------------------------------


def _pinning(links: LinkedTables, free: BoolArray, count: int, told: IntArray, verdict: str) -> list[Chosen]:
    """Return the rows that pin a map best: far from the mean row, and spread over the factors; outliers come last."""
    rows = _evenly(np.arange(len(free)))
    scores = _factors(links, 0, rows, _FACTORS, signal=True)
    left, begun, chosen = free[rows], np.isin(rows, told), list[int]()
    outliers = far_out(scores)
    for among in (left & ~outliers, left & outliers):
        places = np.flatnonzero(among)
        chosen += places[design(scores[places], count - len(chosen), begun=scores[begun])].tolist()
        begun[chosen] = True
    size = scores.shape[1]
    far = np.sqrt(np.sum(scores**2, axis=1) / np.mean(np.sum(scores**2, axis=1)))
    distance = dict(zip(rows.tolist(), far.tolist(), strict=True))
    needed = max(FEWEST_KNOWN, math.ceil(_PINNED * size))
    return [
        (
            row,
            "map",
            f"It helps to find the map between the tables: this row is {distance[row]:.1f} times as far from the mean "
            "row as rows are on average, and differs most from the rows that are known or asked for before.",
            f"With this answer {known} {'row is' if known == 1 else 'rows are'} known. From about {max(needed, known)} "
            f"known rows on, the verdict is expected to change from {verdict} to linked, if the tables can be linked "
            "at all.",
        )
        for known, row in enumerate(rows[chosen].tolist(), start=len(told) + 1)
    ]


def _evenly(rows: IntArray) -> IntArray:
    """Return all rows if they are few, else some of them, evenly taken."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(np.int64))]


def _factors(links: LinkedTables, number: int, rows: IntArray, most: int, *, signal: bool = False) -> NumpyArray:
    """Return the leading factors of some rows of a table; those of rows with many gaps are near 0.

    Args:
        links: the result.
        number: of the table.
        rows: its rows.
        most: how many factors, at most.
        signal: whether factors that do not stand out of the table's noise are left out.
    """
    table = links._used(links.tables[number])
    scores = links.model.scores(number, table.block, rows=rows)
    side = Side(scores, table.block.mask[rows], scales="identity", max_rank=most, name=table.name)
    factors = side.factors()
    scores = factors.scores[:, : factors.signal_rank or None] if signal else factors.scores
    return scores[np.argsort(side.order)]


def design(scores: NumpyArray, count: int, *, begun: NumpyArray) -> IntArray:
    """Return rows, one after the other, that each raise log det(I + Σ x·xᵀ) most (a greedy D-optimal design).

    Args:
        scores: factors of the rows that may be chosen.
        count: how many to choose, at most.
        begun: factors of rows that are known already.
    """
    inverse = np.linalg.inv(np.eye(scores.shape[1]) + begun.T @ begun)
    left = np.ones(len(scores), dtype=bool)
    chosen = []
    for _ in range(min(count, len(scores))):
        leverage = np.einsum("ij,jk,ik->i", scores, inverse, scores)
        best = int(np.where(left, leverage, -1.0).argmax())
        moved = inverse @ scores[best]
        inverse = inverse - np.outer(moved, moved) / (1.0 + leverage[best])
        left[best] = False
        chosen.append(best)
    return np.array(chosen, dtype=np.int64)


# --- a mirror image fits as well -------------------------------------------------------------------------------------


def _telling_images_apart(links: LinkedTables, name: str, free: BoolArray, count: int) -> list[Chosen]:
    """Return the rows that the mirror images of the map move farthest."""
    link = links.found[name]
    matched = _evenly(np.flatnonzero(link.permutation >= 0))
    moved = _moved(*_positions(links, links._number(name), matched, link.permutation[matched]))
    order = np.argsort(-np.where(free[matched], moved, -1.0), kind="stable")[: min(count, int(free[matched].sum()))]
    return [
        (
            int(matched[place]),
            "symmetry",
            f"It settles a symmetry: mirror images of the map fit as well, and in them the partner of this row is at "
            f"least {moved[place]:.1f} standard deviations away from its partner here.",
            "The verdict is expected to change from uncertain to linked. If it does not, the search found no image "
            "that agrees with the answer; then answer one more.",
        )
        for place in order.tolist()
    ]


def _positions(links: LinkedTables, number: int, rows: IntArray, partners: IntArray) -> tuple[NumpyArray, NumpyArray]:
    """Return where matched rows and their partners lie along canonical pairs of directions, the leading ones."""
    rank = max(1, len(rows) // ROWS_PER_FACTOR)
    sides = [_factors(links, table, places, rank) for table, places in ((0, rows), (number, partners))]
    left, correlations, right = np.linalg.svd(sides[0].T @ sides[1] / len(rows), full_matrices=False)
    known = np.minimum(correlations[:LEADING], SOFT_CORRELATION)
    # On this scale a squared distance is nearly twice the nats that speak against a pair.
    weight = known / np.sqrt(1 - known**2)
    return sides[0] @ left[:, :LEADING] * weight, sides[1] @ right[:LEADING].T * weight


def _moved(left: NumpyArray, right: NumpyArray) -> NumpyArray:
    """Return how far, in standard deviations, every mirror image that fits moves each row at the least."""
    far = np.argsort(-np.sum(left**2, axis=1), kind="stable")[:OUTERMOST]
    own = cdist(left[far], right[far]).argmin(axis=1)
    costs, distances = [], []
    for turn in turns(left.shape[1]):
        apart = cdist(left[far] @ turn, right[far], "sqeuclidean")
        # If most rows keep their partners, the turned directions tell no row from another: this image settles nothing.
        if np.mean(apart.argmin(axis=1) != own) > 0.5:
            costs.append(apart.min(axis=1).mean())
            distances.append(np.linalg.norm(left - left @ turn, axis=1))
    if not costs:
        return np.asarray(np.linalg.norm(left, axis=1))
    fitting = [far for far, cost in zip(distances, costs, strict=True) if cost <= _AS_GOOD * min(costs)]
    return np.asarray(np.min(fitting, axis=0))


# --- the map is believed, rows are alike -----------------------------------------------------------------------------


def _settling(links: LinkedTables, name: str, free: BoolArray, count: int) -> list[Chosen]:
    """Return the rows whose answer is expected to settle most rows, each given the answers about those before it."""
    link = links.found[name]
    partners, nobody = soft_answers(link)
    # Each row has a "nobody" of its own, which is no candidate of any other row.
    partners = sparse.csr_array(sparse.hstack([partners, sparse.diags_array(nobody)], format="csr"))
    partners.eliminate_zeros()
    right = float(link.probability.sum())
    then = "the verdict stays linked"
    if link.evidence.doubt == "repeats":
        many = links.repeated
        then = (
            f"the verdict stays {link.evidence.verdict} whatever the answers are, since {many!r} seems to hold several "
        )
        then += f"rows of one entity: link again with repeats={many!r}"
    elif link.evidence.verdict != "linked":
        then = "the verdict becomes linked when more than half of the matches can be told apart"
    left, chosen = free.copy(), list[Chosen]()
    for _ in range(min(count, int(free.sum()))):
        gains = settled_rows(partners)
        row = int(np.where(left, gains, -np.inf).argmax())
        places, chances = (
            part[partners.indptr[row] : partners.indptr[row + 1]] for part in (partners.indices, partners.data)
        )
        alike = int((chances > _LIKELY).sum())
        best = float(chances.max(initial=0.0))
        why = "Its partner is the least certain of those that are left."
        if alike > 1:
            why = f"It settles look-alikes: {alike} rows of the table are likely partners of this row."
        elif best > _CERTAIN:
            why = "No answer is needed: even the least certain row that is left, this one, is nearly sure."
        more = max(float(gains[row]), 0.0)
        counts = f"About {right:.1f} of {len(gains)} rows are expected right, with this answer {right + more:.1f}"
        chosen.append((row, "look-alikes", why, f"{counts}; {then}."))
        right += more
        left[row] = False
        if len(places):
            partners = _taken(partners, row, int(places[chances.argmax()]))
    return chosen


def _taken(partners: sparse.csr_array, row: int, place: int) -> sparse.csr_array:
    """Return the probabilities of partners when one pair is known: nobody else has that partner."""
    rows = np.repeat(np.arange(partners.shape[0]), np.diff(partners.indptr))
    own = partners.indices == place
    lost = np.bincount(rows[own], weights=partners.data[own], minlength=partners.shape[0])
    kept = (rows != row) & ~own & (lost[rows] < 1.0)
    data = np.append(partners.data[kept] / (1.0 - lost[rows[kept]]), 1.0)
    index = np.append(rows[kept], row), np.append(partners.indices[kept], place)
    return sparse.csr_array((data, index), shape=partners.shape)


def settled_rows(partners: sparse.csr_array) -> NumpyArray:
    """Return how many more rows are expected right when the partner of each row is told.

    If row i turns out to have partner j, with probability p_ij, row i is right, and every other row loses the candidate
    j: its other candidates share what j had.

    Args:
        partners: probabilities, rows × partners; the "nobody" of each row that may have no partner is one more column.
    """
    rows = np.repeat(np.arange(partners.shape[0]), np.diff(partners.indptr))
    chance = np.minimum(partners.data, 1.0)
    best, second = np.zeros(partners.shape[0]), np.zeros(partners.shape[0])
    order = np.lexsort((-chance, rows))
    place = np.arange(len(rows)) - partners.indptr[rows]
    best[rows[place == 0]] = chance[order][place == 0]
    second[rows[place == 1]] = chance[order][place == 1]
    first = np.zeros(len(rows), dtype=bool)
    first[order[place == 0]] = True
    left = np.where(first, second[rows], best[rows])
    after = np.divide(left, 1.0 - chance, out=np.zeros(len(rows)), where=chance < 1.0)
    change = np.where(chance < 1.0, np.minimum(after, 1.0) - best[rows], 0.0)
    freed = np.bincount(partners.indices, weights=change, minlength=partners.shape[1])
    told = chance * (freed[partners.indices] - change)
    return np.asarray(1.0 - best + np.bincount(rows, weights=told, minlength=partners.shape[0]))
