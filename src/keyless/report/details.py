"""Why rows are matched, row by row: both records, what each column says for or against the pair, and the candidates.

The page's script shows it when a row of the match table is opened. Only some rows have it, so that the page stays
small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyless.answers.candidates import ranked
from keyless.answers.distributions import distribution, link_of_rows
from keyless.answers.explaining import ExplainedPairs, Records, records
from keyless.answers.labels import shown, shown_guess
from keyless.arrays import IntArray
from keyless.errors import InputError
from keyless.links import Links
from keyless.report.markup import one_line, packed, steps
from keyless.tables import Table

__all__ = ["MOST_PAIRS", "Details", "TableRecords", "details", "pair_records"]


MOST_PAIRS = 200
"""Rows of the match table that have details: about a hundred kilobytes of the page."""

FEWEST_PAIRS = 25
"""Rows that have details however many columns there are: those shown first."""

MOST_CELLS = 400_000
"""Rows × columns that are looked at: a few seconds of work."""

MOST_COLUMNS = 20
"""Columns of a record that are listed, those that say most for or against the pair first."""

MOST_CANDIDATES = 4
"""Partners that are named with their probabilities, beside "no partner"."""

LONGEST_ENTRY = 60
"""Characters of an entry that are shown."""


@dataclass(frozen=True)
class Details:
    """The details of a page.

    Attributes:
        store: all of them, for the page's script.
        count: how many rows have details.
        trouble: why there are none; empty where there are.
    """

    store: str
    count: int
    trouble: str = ""


def details(links: Links, places: IntArray, tables: IntArray, rows: IntArray) -> Details:
    """Return the details of lines of the match table.

    Args:
        links: the result.
        places: numbers of lines of the match table, those shown first in front.
        tables: for each the number of its table, from 0 for the first after the reference.
        rows: for each its reference row.
    """
    width = sum(len(table.uses) for table in links.tables)
    count = int(np.clip(MOST_CELLS // max(width, 1), FEWEST_PAIRS, MOST_PAIRS))
    places, tables, rows = places[:count], tables[:count], rows[:count]
    pairs: dict[int, dict[str, Any]] = {}
    try:
        for number, name in enumerate(links.found):
            own = tables == number
            if own.any():
                pairs |= dict(zip(places[own].tolist(), _of_table(links, name, rows[own]), strict=True))
    except InputError as error:
        # A large file that is no longer as it was.
        return Details("", 0, str(error))
    document = {
        "tables": [one_line(table.name) for table in links.tables],
        "columns": [[one_line(name) for name in _columns(links, table)] for table in links.tables],
        "pairs": pairs,
    }
    return Details(packed(document), len(pairs))


def _columns(links: Links, table: Table) -> list[str]:
    """Return the names of a table's columns: all that were given, and those that say whether an entry is there."""
    used = links._used(table)
    return [*(use.name for use in table.uses), *used.columns[len(table.columns) :]]


def _of_table(links: Links, name: str, rows: IntArray) -> list[dict[str, Any]]:
    """Return the details of some reference rows and one table."""
    link = link_of_rows(links.found[name], rows)
    labels = next(table.row_ids for table in links.tables if table.name == name)
    chance, nobody = distribution(link)
    lines, partners, likely = ranked(chance, nobody, MOST_CANDIDATES)
    likeliest = np.zeros(len(rows), dtype=np.int64)
    # The likeliest partner stays: candidates of a row come in order, and are written from the last to the first.
    named = np.flatnonzero(partners >= 0)[::-1]
    likeliest[lines[named]] = partners[named]
    matched = link.permutation >= 0
    explained = np.where(matched, link.permutation, likeliest)
    found, listed = pair_records(links, name, rows, explained)
    return [
        {
            "matched": bool(matched[i]),
            "partner": one_line(labels[int(explained[i])]),
            "ratio": _nats(found.log_ratio[i]),
            "candidates": _candidates(
                labels, partners[lines == i], likely[lines == i], answer=int(link.permutation[i]), own=chance[[i]]
            ),
            "records": [table.record(i) for table in listed if table.told.row_ids[i] is not None],
        }
        for i in range(len(rows))
    ]


def pair_records(
    links: Links, name: str, rows: IntArray, partners: IntArray
) -> tuple[ExplainedPairs, list[TableRecords]]:
    """Return the numbers behind pairs of rows, and their records in each table, the one that is linked last.

    Args:
        links: the result.
        name: the table whose rows are paired.
        rows: numbers of reference rows.
        partners: numbers of rows of the table, one for each.
    """
    found = ExplainedPairs(links, name, rows, partners)
    told = records(links, found)
    return found, [TableRecords(links, number, told[links.tables[number].name], found) for number in found.order]


def _candidates(labels: Any, partners: IntArray, likely: Any, *, answer: int, own: Any) -> list[list[Any]]:
    """Return label (None: no partner), probability in steps and whether it is the answer, the likeliest first.

    The answer is always among them: all rows are matched at once, so that a row may not get its likeliest partner.
    """
    listed = [(int(place), float(share)) for place, share in zip(partners, likely, strict=True)]
    if answer not in partners:
        listed.append((answer, float(own[0, answer])))
    return [
        [one_line(labels[place]) if place >= 0 else None, steps(share), place == answer]
        for place, share in listed
        if share > 0 or place == answer
    ]


class TableRecords:
    """The rows of one table that belong to pairs, and what each of its columns says.

    Attributes:
        names: of the columns, by the numbers that `record` has for them.
        told: the entries.
    """

    def __init__(self, links: Links, number: int, told: Records, found: ExplainedPairs) -> None:
        table = links.tables[number]
        self.number, self.told, self.names = number, told, _columns(links, table)
        places = {name: k for k, name in enumerate(self.names)}
        own = [(at, places[column]) for at, (name, column) in enumerate(found.columns) if name == table.name]
        self.used = [place for _, place in own]
        used = set(self.used)
        self.nats = found.contributions[:, [at for at, _ in own]]
        self.spare = [k for k in range(len(self.names)) if k not in used][:MOST_COLUMNS]

    def record(self, pair: int) -> dict[str, Any]:
        """Return one row: its columns that say most, what the others say together, and some that are not used."""
        nats = self.nats[pair]
        first = np.argsort(-np.abs(nats), kind="stable")[:MOST_COLUMNS]
        listed = [(self.used[k], float(nats[k])) for k in first]
        rest = float(nats.sum() - nats[first].sum())
        actual = {k: _entry(self.told.actual[self.names[k]][pair]) for k in [*self.spare, *(k for k, _ in listed)]}
        return {
            "table": self.number,
            "id": one_line(self.told.row_ids[pair]),
            "cells": [[k, _nats(says), actual[k], self.guess(self.names[k], pair)] for k, says in listed],
            "others": [len(self.used) - len(listed), _nats(rest) if len(self.used) > len(listed) else 0.0],
            "unused": [[k, actual[k]] for k in self.spare if actual[k] is not None],
        }

    def guess(self, column: str, pair: int) -> str:
        """Return what is predicted for a column, with its standard error."""
        error = self.told.errors[column][pair] if column in self.told.errors else np.nan
        guess = self.told.predicted[column][pair]
        text = shown_guess(guess, error, comma=column in self.told.commas, longest=LONGEST_ENTRY)
        return one_line(text).replace(" ± ", " ±\u00a0")


def _nats(value: float) -> float | None:
    """Return nats to two decimals; None where they are no number."""
    return round(float(value), 2) if np.isfinite(value) else None


def _entry(value: Any) -> str | None:
    text = shown(value, LONGEST_ENTRY)
    return None if text == "missing" else one_line(text)
