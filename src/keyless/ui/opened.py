"""Runs that are open: read once, and asked for matches, rows and sections by the page."""

from __future__ import annotations

import tomllib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from keyless.answers.candidates import ranked
from keyless.answers.distributions import distribution, link_of_rows
from keyless.arrays import IntArray
from keyless.errors import InputError
from keyless.report.details import TableRecords, pair_records
from keyless.report.markup import one_line, shown_probability, steps
from keyless.report.matches import match_columns
from keyless.report.page import page_values
from keyless.report.sections import SECTIONS, Writer
from keyless.runs import CONFIGURATION, read_run

__all__ = ["Opened", "Query", "Shelf"]


_OPEN = 3
"""Runs that are held in memory at a time."""

MOST_LINES = 500
"""Lines of the match table that are given out at a time."""

CANDIDATES = 5
"""Likeliest partners that are shown of a row."""

_PLAIN = frozenset(("matches", "reproduce"))
"""Sections of the report that the page has in another form."""


@dataclass(frozen=True)
class Query:
    """What of the match table is asked for.

    Attributes:
        search: text that an id must contain.
        show: `all`, `kept` (matches that reach the threshold), `check` (rows below it) or `alone` (no partner).
        threshold: a probability.
        table: number of a table, −1 for all.
        sort: `row`, `table`, `match`, `probability`, `other` or `likely`; empty for the order of the reference.
        down: the largest first.
    """

    search: str = ""
    show: str = "all"
    threshold: float = 0.9
    table: int = -1
    sort: str = ""
    down: bool = False


class Opened:
    """A run that is open.

    Attributes:
        folder: where it is.
        links: the result.
        record: what `run.json` says.
    """

    def __init__(self, folder: Path) -> None:
        run = read_run(folder)
        self.folder, self.links, self.record = folder, run.links, run.record
        self._lock = RLock()
        self._orders: OrderedDict[Query, IntArray] = OrderedDict()

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """The options it was made with, by the names of the command line; none where `config.toml` is not whole."""
        try:
            return tomllib.loads((self.folder / CONFIGURATION).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    @property
    def values(self) -> dict[str, Any]:
        """What the templates of the report need, made when first asked for."""
        with self._lock:  # one page at a time draws its plots
            return self._values

    @cached_property
    def _values(self) -> dict[str, Any]:
        command = self.record.get("command")
        writer = Writer(self.links, redact=False, numbers=count(1), command=command if command else None)
        return page_values(writer, [section for section in SECTIONS if section[0] not in _PLAIN])

    @cached_property
    def _columns(self) -> dict[str, Any]:
        return match_columns(self.links)

    @cached_property
    def _steps(self) -> IntArray:
        """Probabilities as the page shows them: whole steps, rounded down, −1 for what is no number."""
        return np.array([-1 if (s := steps(p)) is None else s for p in self._columns["probability"].tolist()])

    @cached_property
    def _texts(self) -> list[str]:
        """The ids of each line, to search in."""
        lines = zip(*(self._columns[key].tolist() for key in ("table", "row", "match", "other")), strict=True)
        first, others = self.links.tables[0].row_ids, [table.row_ids for table in self.links.tables[1:]]
        return [
            "\n".join(
                (str(first[row]), *(str(others[table][other]) for other in (match, second) if other >= 0))
            ).casefold()
            for table, row, match, second in lines
        ]

    def matches(self, query: Query, *, start: int, most: int) -> dict[str, Any]:
        """Return some lines of the match table, and how many there are.

        Args:
            query: what is asked for.
            start: number of the first line.
            most: how many lines.
        """
        with self._lock:
            order = self._orders.get(query)
            if order is None:
                order = self._orders[query] = self._ordered(query)
                while len(self._orders) > 2 * _OPEN:
                    self._orders.popitem(last=False)
            chosen = order[start : start + min(most, MOST_LINES)]
            matched = self._columns["match"] >= 0
            reached = self._steps >= (steps(query.threshold) or 0)
            believed = all(link.evidence.believed for link in self.links.found.values())
            right = float(np.nansum(self._columns["probability"][matched & reached]))
            return {
                "total": len(order),
                "all": len(matched),
                "kept": int((matched & reached).sum()),
                "below": int((~reached).sum()),
                "right": round(right) if believed else None,
                "start": start,
                "lines": [self._line(int(k)) for k in chosen],
            }

    def _ordered(self, query: Query) -> IntArray:
        columns = self._columns
        inside = np.ones(len(columns["row"]), dtype=bool)
        reached = self._steps >= (steps(query.threshold) or 0)
        if query.show == "kept":
            inside &= (columns["match"] >= 0) & reached
        elif query.show == "check":
            inside &= ~reached
        elif query.show == "alone":
            inside &= columns["match"] < 0
        if query.table >= 0:
            inside &= columns["table"] == query.table
        chosen = np.flatnonzero(inside)
        wanted = query.search.strip().casefold()
        if wanted:
            texts = self._texts
            chosen = np.array([k for k in chosen.tolist() if wanted in texts[k]], dtype=np.int64)
        if query.sort:
            chosen = chosen[self._by(query.sort, chosen, down=query.down)]
        return chosen

    def _by(self, key: str, chosen: IntArray, *, down: bool) -> IntArray:
        """Return the order of some lines by a column; what is missing comes last either way."""
        columns = self._columns
        if key in ("probability", "likely", "table"):
            values = self._steps[chosen] if key == "probability" else columns[key][chosen]
            gone = values < 0
        else:
            numbers = columns["row" if key == "row" else key][chosen]
            tables = np.zeros(len(chosen), dtype=int) if key == "row" else columns["table"][chosen] + 1
            gone = numbers < 0
            values = self._ranks(tables, numbers)
        values = np.asarray(values, dtype=np.float64)
        return np.lexsort((np.arange(len(chosen)), -values if down else values, gone))

    def _ranks(self, tables: IntArray, numbers: IntArray) -> IntArray:
        """Return the place of each row's id among all ids: by number where all are numbers, else by letters."""
        ids = [
            str(self.links.tables[table].row_ids[number]) if number >= 0 else ""
            for table, number in zip(tables.tolist(), numbers.tolist(), strict=True)
        ]
        try:
            keys: Any = np.array([float(one) if one else np.inf for one in ids])
        except ValueError:
            keys = np.array(ids, dtype=object).astype(str)
        return np.unique(keys, return_inverse=True)[1].reshape(-1)

    def _line(self, k: int) -> dict[str, Any]:
        columns = self._columns
        number = int(columns["table"][k])
        table, match, other = self.links.tables[1 + number], int(columns["match"][k]), int(columns["other"][k])
        likely = steps(float(columns["likely"][k]))
        return {
            "row": int(columns["row"][k]),
            "table": number,
            "id": one_line(self.links.tables[0].row_ids[int(columns["row"][k])]),
            "name": one_line(table.name, 40),
            "match": one_line(table.row_ids[match]) if match >= 0 else None,
            "probability": shown_probability(steps(float(columns["probability"][k]))),
            "share": max(0, int(self._steps[k])) / 10_000,
            "other": one_line(table.row_ids[other]) if other >= 0 else ("no partner" if likely else ""),
            "likely": shown_probability(likely) if other >= 0 or likely else "",
        }

    def table_name(self, number: int) -> str:
        """Return the name of a table in unknown order."""
        names = list(self.links.found)
        if not 0 <= number < len(names):
            raise InputError(f"table {number}: there is none of that number.")
        return names[number]

    def check_row(self, row: int) -> int:
        """Refuse a row that the reference does not have."""
        if not 0 <= row < len(self.links.tables[0].row_ids):
            raise InputError(f"row {row}: {self.links.reference} has none of that number.")
        return row

    def candidates(self, name: str, row: int) -> list[tuple[int, float]]:
        """Return the likeliest partners of a row with their probabilities, −1 for nobody, the likeliest first.

        Args:
            name: of the table.
            row: number of the reference row.
        """
        partners, nobody = distribution(link_of_rows(self.links.found[name], [row]))
        _, places, chance = ranked(partners, nobody, CANDIDATES)
        listed = zip(places.tolist(), chance.tolist(), strict=True)
        return [(place, probability) for place, probability in listed if probability > 0]

    def alone(self, name: str, row: int) -> dict[str, Any]:
        """Return a reference row as `side_by_side` shows it, with nothing beside it: columns in the table's order."""
        both = self.side_by_side(name, row, 0)
        side = both["sides"][0]
        cells = sorted(side["cells"], key=lambda cell: cell["place"])
        return both | {"partner": -1, "sides": [side | {"cells": cells}]}

    def side_by_side(self, name: str, row: int, partner: int | None = None) -> dict[str, Any]:
        """Return a reference row and a row of a table beside each other, and what each column says of the pair.

        Rows of other tables that are linked to the reference row stand between the two: they speak, too.

        Args:
            name: of the table.
            row: number of the reference row.
            partner: number of the table's row; the match, or the likeliest candidate, unless given.
        """
        links = self.links
        link = links.found[name]
        if partner is None:
            partner = int(link.permutation[row])
        if partner < 0:
            partner = next((place for place, _ in self.candidates(name, row) if place >= 0), 0)
        if partner >= link.coupling.shape[1]:
            raise InputError(f"row {partner}: {name} has none of that number.")
        found, listed = pair_records(links, name, np.array([row]), np.array([partner]))
        sides = [_side(one, links.tables[one.number].name) for one in listed if one.told.row_ids[0] is not None]
        nats = [abs(cell["nats"] or 0.0) for side in sides for cell in side["cells"]]
        probability = float(distribution(link_of_rows(link, [row]))[0][0, partner])
        return {
            "sides": sides,
            "partner": partner,
            "matched": partner == link.permutation[row],
            "probability": shown_probability(steps(probability)),
            "nats": f"{found.log_ratio[0]:+.1f}",
            "largest": max(nats, default=0.0) or 1.0,
        }

    def other_rows(self, name: str, row: int) -> list[dict[str, Any]]:
        """Return the candidates of a row as the page shows them."""
        labels = self.links.tables[self.links._number(name)].row_ids
        return [
            {
                "place": place,
                "id": one_line(labels[place]) if place >= 0 else "no partner",
                "probability": shown_probability(steps(chance)),
            }
            for place, chance in self.candidates(name, row)
        ]


def _side(records: TableRecords, table: str) -> dict[str, Any]:
    """Return a row as the page shows it: what names it and is not used, then the columns that say most."""
    record, names = records.record(0), records.names
    unused = [
        {"place": k, "column": one_line(names[k]), "value": value, "predicted": "", "nats": None}
        for k, value in record["unused"]
    ]
    used = [
        {"place": k, "column": one_line(names[k]), "value": value, "predicted": guess, "nats": nats}
        for k, nats, value, guess in record["cells"]
    ]
    more, rest = record["others"]
    return {"table": one_line(table, 40), "id": record["id"], "cells": [*unused, *used], "more": more, "rest": rest}


class Shelf:
    """The runs that are open, the few that were asked for last."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[Path, int], Opened] = OrderedDict()
        self._lock = RLock()

    def open(self, folder: Path) -> Opened:
        """Return a run; it is read again when it was written again."""
        key = (folder, (folder / "links.keyless").stat().st_mtime_ns)
        with self._lock:
            if key not in self._runs:
                self._runs[key] = Opened(folder)
                while len(self._runs) > _OPEN:
                    self._runs.popitem(last=False)
            self._runs.move_to_end(key)
            return self._runs[key]
