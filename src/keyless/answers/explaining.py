"""Why rows are linked: what each column contributed, and what the rows say of each other in their own units.

`ExplainedPairs` has the numbers for any pairs of rows; `explain` says them in the words of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from keyless.answers.contributions import PairSide, contributions, costs_of_dropping, log_ratios, predictions, ratio
from keyless.answers.distributions import distribution, link_of_rows
from keyless.answers.labels import row_number, shown, shown_guess, stated
from keyless.arrays import BoolArray, FloatArray, IntArray, some_of
from keyless.errors import InputError
from keyless.pairs.likelihood import approximate_log_ratio
from keyless.table_link import LinkedTables
from keyless.tables import Table

__all__ = [
    "ExplainedPairs",
    "Explanation",
    "PairExplanation",
    "Records",
    "RowExplanation",
    "explain",
    "explain_all",
    "records",
]

MOST_ROWS = 300
"""Matched rows that the overall explanation looks at, drawn at random but always the same: a mean over so many is known
to 6% of the spread between rows."""

_ALL = object()
"""Stands for "no row was named", since None may be an id."""

_SHOWN = 8
"""Columns that are shown in one line each; the others are in the frame."""


class ExplainedPairs:
    """Pairs of rows, and the numbers that explain them.

    One side of each pair is a row of a table, the other the reference's row with all that is linked to it in other
    tables.

    Args:
        links: the result.
        name: the table whose rows are paired.
        rows: numbers of reference rows.
        partners: numbers of rows of the table, one for each.

    Attributes:
        table: name of the table.
        both: the two sides, that of the table last.
        order: numbers of the tables as they stand there.
        columns: (table, column) for each column of the arrays below, in the caller's names.
        groups: for each side, the columns of the model that each of them was made into.
        numbers: number of the table of each.
        scores: per table, predicted and actual standard scores and where they are observed.
        predicted: per table, pairs × the columns of its block: what the other side predicts, in the table's units.
        errors: per table, standard errors of these predictions.
    """

    def __init__(self, links: LinkedTables, name: str, rows: Any, partners: Any) -> None:
        self.table, self.number = name, links._number(name)
        self.rows, self.partners = np.asarray(rows, dtype=np.int64), np.asarray(partners, dtype=np.int64)
        blocks, known = links._placed
        places = [index[self.rows] for index in known]
        places[self.number] = self.partners
        others = [number for number in range(len(blocks)) if number != self.number]
        self.order = [*others, self.number]
        self.places: dict[int, slice] = {}
        self.both = self._side(links, blocks, places, others), self._side(links, blocks, places, [self.number])
        self._name_columns(links)
        self.scores: dict[str, tuple[FloatArray, FloatArray, BoolArray]] = {}
        self.predicted, self.errors = dict[str, FloatArray](), dict[str, FloatArray]()
        for own, other, numbers in ((*self.both, others), (*self.both[::-1], [self.number])):
            guess, deviation = predictions(own, other)
            for number in numbers:
                table, place = links.tables[number].name, self.places[number]
                mine = list(zip(links.model.scales[number], guess[:, place].T, strict=True))
                self.scores[table] = (guess[:, place], own.scores[:, place], own.mask[:, place])
                self.predicted[table] = np.column_stack([scale.undo(scores) for scale, scores in mine])
                slopes = np.column_stack([scale.slope(scores) for scale, scores in mine])
                self.errors[table] = slopes * deviation[:, place]

    @cached_property
    def log_ratio(self) -> FloatArray:
        """Per pair, how much likelier the two are one entity than two, in nats."""
        return log_ratios(*self.both)

    @cached_property
    def contributions(self) -> FloatArray:
        """Pairs × columns: what each column contributes to `log_ratio`, in nats; they add up to it."""
        cells = np.concatenate(contributions(*self.both), axis=1)
        width = self.both[0].scores.shape[1]
        groups = [*self.groups[0], *([width + k for k in group] for group in self.groups[1])]
        return np.column_stack([cells[:, group].sum(axis=1) for group in groups])

    @cached_property
    def drop_costs(self) -> FloatArray:
        """Pairs × columns: `log_ratio` less what it is without the column, in nats."""
        return np.concatenate(costs_of_dropping(*self.both, self.groups), axis=1)

    def _side(self, links: LinkedTables, blocks: Any, places: Sequence[IntArray], numbers: Sequence[int]) -> PairSide:
        models, scores, masks, start = [], [], [], 0
        for number in numbers:
            index = places[number]
            models.append(links.model.table_factors(number))
            scores.append(links.model.scores(number, blocks[number], rows=index))
            masks.append(blocks[number].mask[np.maximum(index, 0)] & (index >= 0)[:, None])
            self.places[number] = slice(start, start + blocks[number].shape[1])
            start += blocks[number].shape[1]
        model = models[0]
        for more in models[1:]:
            model = model.joined(more)
        return PairSide(model, np.concatenate(scores, axis=1), np.concatenate(masks, axis=1))

    def _name_columns(self, links: LinkedTables) -> None:
        names: list[tuple[str, str]] = []
        self.numbers: list[int] = []
        self.groups: tuple[list[list[int]], list[list[int]]] = ([], [])
        for number in self.order:
            table = links._used(links.tables[number])
            first = self.places[number].start
            at = {column: first + k for k, column in enumerate(table.columns)}
            own = [(use.name, [at.pop(column) for column in use.columns]) for use in table.uses if use.columns]
            own += [(column, [place]) for column, place in at.items()]
            names += [(table.name, column) for column, _ in own]
            self.numbers += [number] * len(own)
            self.groups[number == self.number].extend(group for _, group in own)
        self.columns = tuple(names)

    def ratio_without(self, dropped: Sequence[int]) -> float:
        """Return the mean log-likelihood ratio of the pairs without some columns, by their numbers in `columns`."""
        count = len(self.groups[0])
        left = [k for number in dropped if number < count for k in self.groups[0][number]]
        right = [k for number in dropped if number >= count for k in self.groups[1][number - count]]
        ours, theirs = self.both[0].information(without=left), self.both[1].information(without=right)
        return float(ratio(ours, theirs).mean())


@dataclass(frozen=True, eq=False)
class PairExplanation:
    """Why two rows are taken for one entity, or not.

    Attributes:
        table: the table whose row is linked.
        row_id: that row's id.
        matched: whether it is the match; False: a candidate that was looked at.
        probability: of the pair, among all candidates and "nobody".
        log_ratio: how much likelier the two rows are one entity than two, in nats, by their own entries alone.
        cells: one line per column of both rows: table, row_id, column, actual, predicted (from the other row),
            standard_error (of the prediction; missing for categories), contribution and drop_cost, in nats. The
            contributions add up to `log_ratio`.
        commas: table and name of the columns that are text with decimal commas.
    """

    table: str
    row_id: Any
    matched: bool
    probability: float
    log_ratio: float
    cells: pd.DataFrame = field(repr=False)
    commas: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)

    def guess(self, cell: Mapping[Any, Any]) -> str:
        """Return what is predicted for a cell, with its standard error, in the decimal mark of the column."""
        comma = (cell["table"], cell["column"]) in self.commas
        return shown_guess(cell["predicted"], cell["standard_error"], comma=comma)


@dataclass(frozen=True, eq=False)
class RowExplanation:
    """Why a reference row has the partners it has.

    Attributes:
        reference_id: the row.
        pairs: per table, the pair that is explained: the match, or where there is none the likeliest candidate.
    """

    reference_id: Any
    pairs: dict[str, PairExplanation]

    @property
    def cells(self) -> pd.DataFrame:
        """The cells of all pairs, with the table that is linked as the column `link`."""
        parts = [pair.cells.assign(link=name) for name, pair in self.pairs.items()]
        whole = pd.concat(parts, ignore_index=True)
        return whole[["link", *(column for column in whole.columns if column != "link")]]

    def __repr__(self) -> str:
        return self.told(_SHOWN)

    def told(self, most: int | None = None) -> str:
        """Return it in words.

        Args:
            most: how many columns have a line of their own; None: all.
        """
        lines = []
        for name, pair in self.pairs.items():
            what = "matched with" if pair.matched else "not matched with"
            lines.append(
                f"Row {shown(self.reference_id)} is {what} {shown(pair.row_id)} of {shown(name)}: probability "
                f"{stated(pair.probability)}, ratio {pair.log_ratio:+.1f} nats, of which"
            )
            ordered = pair.cells.sort_values("contribution", key=abs, ascending=False, kind="stable")
            lines += [
                f"  {cell['contribution']:+6.1f}  {shown(cell['table'])}: {shown(cell['column'])} "
                f"is {shown(cell['actual'])}, predicted {pair.guess(cell)}"
                for cell in ordered.head(most or len(ordered)).to_dict("records")
            ]
            rest = ordered["contribution"].iloc[most or len(ordered) :]
            if len(rest):
                lines.append(f"  {rest.sum():+6.1f}  {len(rest)} other columns")
        return "\n".join(lines)


def explain(
    links: LinkedTables, row: Any = _ALL, *, table: str | None = None, partner: Any = None
) -> Explanation | RowExplanation:
    """Return which columns carry the link; or, for one row, why it has the partner it has.

    Contributions of columns are in nats and add up to the log-likelihood ratio of the pair; `drop_cost` is what
    that ratio loses without the column. The module `answers.contributions` says how they are computed.

    Args:
        links: the result.
        row: id of a reference row; all rows unless given.
        table: of the link to explain; None: of all tables.
        partner: id of a row of `table`, to see what speaks for and against that pair instead of the match.
    """
    if row is _ALL:
        return explain_all(links, table=table)
    return explain_row(links, row, table=table, partner=partner)


def explain_row(links: LinkedTables, row: Any, *, table: str | None = None, partner: Any = None) -> RowExplanation:
    """Return why a reference row has the partners it has.

    Args:
        links: the result.
        row: id of a reference row.
        table: of the link to explain; None: of all tables.
        partner: id of a row of that table, to explain that pair instead of the match.
    """
    names = links._chosen(table)
    if partner is not None and len(names) > 1:
        raise InputError(f"table: must say which table the partner is of; it is one of {', '.join(map(repr, names))}.")
    number = row_number(links.tables[0], row, name="row")
    pairs = {}
    for name in names:
        link, other = links.found[name], links.tables[links._number(name)]
        chance = distribution(link_of_rows(link, [number]))[0]
        chance = np.asarray(chance.toarray() if hasattr(chance, "toarray") else chance).ravel()
        match = int(link.permutation[number])
        place = match if partner is None else row_number(other, partner, name="partner")
        if place < 0:
            place = int(chance.argmax())
        found = ExplainedPairs(links, name, [number], [place])
        told = records(links, found)
        pairs[name] = PairExplanation(
            name, other.row_ids[place], place == match, float(chance[place]), float(found.log_ratio[0]),
            _cells(told, found), frozenset((key, column) for key, own in told.items() for column in own.commas),
        )  # fmt: skip
    return RowExplanation(links.tables[0].row_ids[number], pairs)


def _cells(told: Mapping[str, Records], found: ExplainedPairs) -> pd.DataFrame:
    """Return one line per column of the first pair, in the units and types of the tables."""
    lines = []
    for k, (name, column) in enumerate(found.columns):
        own = told[name]
        lines.append(
            {
                "table": name,
                "row_id": own.row_ids[0],
                "column": column,
                "actual": own.actual[column][0],
                "predicted": own.predicted[column][0],
                "standard_error": own.errors[column][0] if column in own.errors else np.nan,
                "contribution": found.contributions[0, k],
                "drop_cost": found.drop_costs[0, k],
            }
        )
    # Entries keep their types: no whole number becomes a decimal one, and a missing entry is None.
    entries = {
        name: pd.Series([line[name] for line in lines], dtype=object) for name in ("row_id", "actual", "predicted")
    }
    return pd.DataFrame(lines).assign(**entries)


@dataclass(frozen=True, eq=False)
class Records:
    """The rows of one table that belong to pairs, beside what the other side of each pair predicts for them.

    Attributes:
        row_ids: per pair the row's id; None where the table has no row in the pair.
        actual: per column, one entry per pair in the type of the column; None where missing. All columns of the table,
            also those that are not used.
        predicted: the same for the predicted entries; entries of columns that are not used mean nothing.
        errors: per column of numbers or dates, the standard errors of the predictions.
        commas: columns that are text with decimal commas.
    """

    row_ids: list[Any]
    actual: dict[str, list[Any]]
    predicted: dict[str, list[Any]]
    errors: dict[str, list[float]]
    commas: frozenset[str]


def records(links: LinkedTables, found: ExplainedPairs) -> dict[str, Records]:
    """Return the rows of each table that belong to the pairs, in the units and types of the tables."""
    return {table.name: _records(links, table, found) for table in links.tables}


def _records(links: LinkedTables, table: Table, found: ExplainedPairs) -> Records:
    places = found.partners if table.name == found.table else links._rows(table.name)[found.rows]
    width, count = len(table.columns), len(places)
    guess = found.predicted[table.name]
    # Columns of a large file are read once for both: the actual entries stand first, then the predictions.
    numbers = np.concatenate([np.zeros((count, width)), guess[:, :width]])
    whole = table.entries(numbers, np.concatenate([places, np.full(count, -1)]))
    actual, predicted = {}, {}
    for use, entries, seen in zip(table.uses, whole.values(), table.observed(places), strict=True):
        listed = entries.to_list() if hasattr(entries, "to_list") else list(entries)
        there = seen & (places >= 0)
        actual[use.name] = [entry if known else None for entry, known in zip(listed, there, strict=False)]
        predicted[use.name] = listed[count:]
    errors = {
        use.name: found.errors[table.name][:, table.places[use.columns[0]]].tolist()
        for use in table.uses
        if use.columns and use.kind in ("number", "integer", "date")
    }
    used = links._used(table)
    for k, column in enumerate(used.columns[width:], start=width):
        # Columns such as "x is observed", where it counts as information which entries are missing.
        predicted[column] = guess[:, k].tolist()
        actual[column] = [None if place < 0 else float(used.block.values[place, k]) for place in places]
    labels = [None if place < 0 else table.row_ids[place] for place in places]
    commas = [use.name for use in table.uses if table.form == "cells" and use.coding and use.coding.decimal == ","]
    return Records(labels, actual, predicted, errors, frozenset(commas))


@dataclass(frozen=True, eq=False)
class Explanation:
    """Which columns carry the links.

    Attributes:
        columns: one line per link, table and column, those that carry most first: `contribution` (mean over matched
            rows, in nats), `share` of the sum, `drop_cost` (what the mean ratio loses without the column, in nats),
            `explained` (share of the column's variance that partners predict) and `told_apart` (share of the rows
            looked at whose partner, without the column, is likelier than the partners of all other rows looked at).
        ratio: per link, mean log-likelihood ratio of the matches, in nats; the contributions add up to it.
        told_apart: per link, the share told apart with all columns.
        rows: per link, how many matches were looked at.
        verdict: of the evidence.
    """

    columns: pd.DataFrame = field(repr=False)
    ratio: dict[str, float]
    told_apart: dict[str, float]
    rows: dict[str, int]
    verdict: str

    def __repr__(self) -> str:
        return self.told(_SHOWN)

    def told(self, most: int | None = None) -> str:
        """Return it in words.

        Args:
            most: how many columns of a link have a line of their own; None: all.
        """
        lines = []
        for name, mean in self.ratio.items():
            lines.append(
                f"Link to {shown(name)}: {mean:.1f} nats a row over {self.rows[name]:,} matches; "
                f"{100 * self.told_apart[name]:.0f}% of them are told apart from each other. Carried by"
            )
            own = self.columns[self.columns["link"] == name]
            lines += [
                f"  {one['contribution']:+6.2f}  {shown(one['table'])}: {shown(one['column'])} "
                f"(without it {-one['drop_cost']:+.2f} nats, {100 * one['told_apart']:.0f}% told apart)"
                for one in own.head(most or len(own)).to_dict("records")
            ]
            rest = own["contribution"].iloc[most or len(own) :]
            if len(rest):
                lines.append(f"  {rest.sum():+6.2f}  {len(rest)} other columns")
        if self.verdict != "linked":
            lines.append(f"The tables are {self.verdict}: this explains matches that may all be wrong.")
        return "\n".join(lines)


def explain_all(links: LinkedTables, *, table: str | None = None) -> Explanation:
    """Return which columns carry the links, and what dropping each would cost.

    The model stays as it is. `keyless check --advise` goes further: it links again without the columns.

    Args:
        links: the result.
        table: of the link to explain; None: of all tables.
    """
    frames, ratios, apart, count = [], {}, {}, {}
    for name in links._chosen(table):
        permutation = links.found[name].permutation
        rows = some_of(np.flatnonzero(permutation >= 0), MOST_ROWS)
        if not rows.size:
            raise InputError(f"{name}: must have at least one matched row to explain; no row has a partner.")
        found = ExplainedPairs(links, name, rows, permutation[rows])
        added = found.contributions.mean(axis=0)
        ratios[name], count[name] = float(found.log_ratio.mean()), len(rows)
        apart[name] = _told_apart(found)
        total = added.sum()
        frames.append(
            pd.DataFrame(
                {
                    "link": name,
                    "table": [one for one, _ in found.columns],
                    "column": [column for _, column in found.columns],
                    "contribution": added,
                    "share": added / total if total > 0 else np.nan,
                    "drop_cost": found.drop_costs.mean(axis=0),
                    "explained": _explained(links, found),
                    "told_apart": [_told_apart(found, left=group) for group in found.groups[0]]
                    + [_told_apart(found, right=group) for group in found.groups[1]],
                }
            ).sort_values("contribution", ascending=False, kind="stable")
        )
    return Explanation(pd.concat(frames, ignore_index=True), ratios, apart, count, links.evidence.verdict)


def _explained(links: LinkedTables, found: ExplainedPairs) -> FloatArray:
    """Return, per column of the caller, the share of its variance over the pairs that the other side predicts."""
    shares = []
    for group, number in zip([*found.groups[0], *found.groups[1]], found.numbers, strict=True):
        first = found.places[number].start
        guess, actual, seen = found.scores[links.tables[number].name]
        at = [k - first for k in group]
        known = seen[:, at]
        middle = np.where(known, actual[:, at], 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        total = float((known * (actual[:, at] - middle) ** 2).sum())
        missed = float((known * (actual[:, at] - guess[:, at]) ** 2).sum())
        shares.append(1 - missed / total if total > 0 else np.nan)
    return np.array(shares)


def _told_apart(found: ExplainedPairs, *, left: Sequence[int] = (), right: Sequence[int] = ()) -> float:
    """Return the share of pairs whose right row is the likeliest of all right rows, some columns left out."""
    ratios = approximate_log_ratio(found.both[0].information(without=left), found.both[1].information(without=right))
    # A tie tells nobody apart.
    own = np.diag(ratios).copy()
    np.fill_diagonal(ratios, -np.inf)
    return float((own > ratios.max(axis=1)).mean()) if len(own) > 1 else 1.0
