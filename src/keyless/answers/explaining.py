"""Why rows are linked: what each column contributed, and what the rows say of each other in their own units.

`pieces` has the numbers for any pairs of rows; `explain_row` and `explain_all` say them in the words of the tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from keyless.answers.contributions import Side, contributions, costs_of_dropping, log_ratios, predictions, ratio
from keyless.answers.distributions import distribution
from keyless.answers.labels import row_number
from keyless.errors import InputError, printable
from keyless.likelihood.pairs import approximate_log_ratio
from keyless.tables import Table

__all__ = [
    "Explanation",
    "PairExplanation",
    "Pieces",
    "RowExplanation",
    "explain_all",
    "explain_row",
    "pieces",
    "shown",
]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

MOST_ROWS = 300
"""Matched rows that the overall explanation looks at, drawn at random but always the same: a mean over so many is known
to 6% of the spread between rows."""

_LONG_NUMBER = re.compile(r"-?\d+\.\d{4,}")

_SHOWN = 8
"""Columns that are shown in one line each; the others are in the frame."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """The numbers behind the explanation of some pairs of rows.

    Attributes:
        table: the table whose rows are linked; the other side of each pair is the reference's row with all that is
            linked to it in other tables.
        rows: reference rows.
        partners: their rows in the table.
        columns: (table, column) for each column of the arrays below, in the caller's names.
        log_ratio: per pair, how much likelier the two are one entity than two, in nats.
        contributions: pairs × columns, in nats; they add up to `log_ratio`.
        drop_costs: pairs × columns: `log_ratio` less what it is without the column, in nats.
        predicted: per table, pairs × the columns of its block: what the other side predicts, in the table's units.
        errors: per table, standard errors of these.
        scores: per table, predicted and actual standard scores and where they are observed.
    """

    table: str
    rows: IntArray
    partners: IntArray
    columns: tuple[tuple[str, str], ...]
    log_ratio: FloatArray
    contributions: FloatArray
    drop_costs: FloatArray
    predicted: dict[str, FloatArray]
    errors: dict[str, FloatArray]
    scores: dict[str, tuple[FloatArray, FloatArray, BoolArray]]


def pieces(links: Any, name: str, rows: Any, partners: Any) -> Pieces:
    """Return the numbers behind the explanation of pairs of rows.

    Args:
        links: the result.
        name: the table whose rows are paired.
        rows: numbers of reference rows.
        partners: numbers of rows of the table, one for each.
    """
    rows, partners = np.asarray(rows, dtype=np.int64), np.asarray(partners, dtype=np.int64)
    sides = Sides(links, name, rows, partners)
    parts = [np.concatenate(part, axis=1) for part in (contributions(*sides.both), sides.costs())]
    added, costs = sides.grouped(parts[0]), parts[1]
    predicted, errors, scores = {}, {}, {}
    for number in sides.order:
        table = links.tables[number]
        own, other = (0, 1) if number != sides.number else (1, 0)
        guess, deviation = predictions(sides.both[own], sides.both[other])
        place = sides.places[number]
        seen = sides.both[own]
        scales = links.model.scales[number]
        predicted[table.name] = np.column_stack([s.undo(g) for s, g in zip(scales, guess[:, place].T, strict=True)])
        slopes = np.column_stack([s.slope(g) for s, g in zip(scales, guess[:, place].T, strict=True)])
        errors[table.name] = slopes * deviation[:, place]
        scores[table.name] = (guess[:, place], seen.scores[:, place], seen.mask[:, place])
    return Pieces(name, rows, partners, sides.columns, log_ratios(*sides.both), added, costs, predicted, errors, scores)


class Sides:
    """The two sides of pairs: a table, and all the others joined; and which columns belong together."""

    def __init__(self, links: Any, name: str, rows: IntArray, partners: IntArray) -> None:
        self.number = links._number(name)
        blocks, known = links._placed
        places = [index[rows] for index in known]
        places[self.number] = partners
        others = [number for number in range(len(blocks)) if number != self.number]
        self.order = [*others, self.number]
        self.places: dict[int, slice] = {}
        self.both = self._side(links, blocks, places, others), self._side(links, blocks, places, [self.number])
        self._name_columns(links)

    def _side(self, links: Any, blocks: Any, places: Sequence[IntArray], numbers: Sequence[int]) -> Side:
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
        return Side(model, np.concatenate(scores, axis=1), np.concatenate(masks, axis=1))

    def _name_columns(self, links: Any) -> None:
        names: list[tuple[str, str]] = []
        self.groups: tuple[list[list[int]], list[list[int]]] = ([], [])
        for number in self.order:
            table = links._used(links.tables[number])
            first = self.places[number].start
            at = {column: first + k for k, column in enumerate(table.columns)}
            own = [(use.name, [at.pop(column) for column in use.columns]) for use in table.uses if use.columns]
            own += [(column, [place]) for column, place in at.items()]
            names += [(table.name, column) for column, _ in own]
            self.groups[number == self.number].extend(group for _, group in own)
        self.columns = tuple(names)

    def ratio_without(self, dropped: Sequence[int]) -> float:
        """Return the mean log-likelihood ratio of the pairs without some columns, by their numbers in `columns`."""
        count = len(self.groups[0])
        left = [k for number in dropped if number < count for k in self.groups[0][number]]
        right = [k for number in dropped if number >= count for k in self.groups[1][number - count]]
        ours, theirs = self.both[0].information(without=left), self.both[1].information(without=right)
        return float(ratio(ours, theirs).mean())

    def costs(self) -> tuple[FloatArray, FloatArray]:
        """Return the cost of dropping each column, for both sides."""
        return costs_of_dropping(*self.both, self.groups)

    def grouped(self, cells: FloatArray) -> FloatArray:
        """Return sums over the columns of the model that one column of the caller was made into."""
        width = self.both[0].scores.shape[1]
        groups = [*self.groups[0], *([width + k for k in group] for group in self.groups[1])]
        return np.column_stack([cells[:, group].sum(axis=1) for group in groups])


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
    """

    table: str
    row_id: Any
    matched: bool
    probability: float
    log_ratio: float
    cells: pd.DataFrame = field(repr=False)


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
        lines = []
        for name, pair in self.pairs.items():
            what = "linked to" if pair.matched else "not linked to"
            lines.append(
                f"Row {shown(self.reference_id)} is {what} {shown(pair.row_id)} of {shown(name)}: probability "
                f"{pair.probability:.3f}, "
                f"ratio {pair.log_ratio:+.1f} nats, of which"
            )
            ordered = pair.cells.reindex(pair.cells["contribution"].abs().sort_values(ascending=False).index)
            for cell in ordered.head(_SHOWN).to_dict("records"):
                error = "" if np.isnan(cell["standard_error"]) else f" ± {cell['standard_error']:.3g}"
                lines.append(
                    f"  {cell['contribution']:+6.1f}  {shown(cell['table'])}: {shown(cell['column'])} "
                    f"is {shown(cell['actual'])}, predicted {shown(cell['predicted'])}{error}"
                )
            rest = ordered["contribution"].iloc[_SHOWN:]
            if len(rest):
                lines.append(f"  {rest.sum():+6.1f}  {len(rest)} other columns")
        return "\n".join(lines)


def explain_row(links: Any, row: Any, *, table: str | None = None, partner: Any = None) -> RowExplanation:
    """Return why a reference row has the partners it has.

    Args:
        links: the result.
        row: id of a reference row.
        table: of the link to explain; None: of all tables.
        partner: id of a row of that table, to explain that pair instead of the match.
    """
    names = list(links.found) if table is None else [table]
    if table is not None and table not in links.found:
        raise InputError(f"table: must be one of {', '.join(map(repr, links.found))}; found {table!r}.")
    if partner is not None and len(names) > 1:
        raise InputError(f"table: must be given with partner; it is one of {', '.join(map(repr, names))}.")
    number = row_number(links.tables[0], row, name="row")
    pairs = {}
    for name in names:
        link, other = links.found[name], links.tables[links._number(name)]
        chance = distribution(link)[0][[number]]
        chance = np.asarray(chance.toarray() if hasattr(chance, "toarray") else chance).ravel()
        match = int(link.permutation[number])
        place = match if partner is None else row_number(other, partner, name="partner")
        if place < 0:
            place = int(chance.argmax())
        found = pieces(links, name, [number], [place])
        pairs[name] = PairExplanation(
            name, other.row_ids[place], place == match, float(chance[place]), float(found.log_ratio[0]),
            _cells(links, found),
        )  # fmt: skip
    return RowExplanation(links.tables[0].row_ids[number], pairs)


def _cells(links: Any, found: Pieces) -> pd.DataFrame:
    """Return one line per column of the first pair, in the units and types of the tables."""
    lines = []
    known = {table.name: table for table in links.tables}
    said: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, float], Any]] = {}
    for k, (name, column) in enumerate(found.columns):
        if name not in said:
            said[name] = _said(links, known[name], found)
        actual, predicted, errors, label = said[name]
        lines.append(
            {
                "table": name,
                "row_id": label,
                "column": column,
                "actual": actual.get(column),
                "predicted": predicted.get(column),
                "standard_error": errors.get(column, np.nan),
                "contribution": found.contributions[0, k],
                "drop_cost": found.drop_costs[0, k],
            }
        )
    # Entries keep their types: no number becomes another, and missing is None.
    entries = {
        name: pd.Series([line[name] for line in lines], dtype=object) for name in ("row_id", "actual", "predicted")
    }
    return pd.DataFrame(lines).assign(**entries)


def _said(links: Any, table: Table, found: Pieces) -> tuple[dict[str, Any], dict[str, Any], dict[str, float], Any]:
    """Return actual and predicted entries of one row by column, standard errors of numbers, and the row's id."""
    place = int(found.partners[0])
    if table.name != found.table:
        place = int(links._rows(table.name)[found.rows[0]])
    width, index = len(table.columns), np.array([place])
    names = [use.name for use in table.uses]
    guess = table.entries(found.predicted[table.name][:, :width], np.array([-1]))
    predicted = dict(zip(names, (_first(entries) for entries in guess.values()), strict=True))
    if place < 0:
        actual: dict[str, Any] = dict.fromkeys(names)
    else:
        given = table.entries(np.zeros((1, width)), index)
        seen = [bool(known[0]) for known in table.observed(index)]
        actual = {n: _first(e) if s else None for n, e, s in zip(names, given.values(), seen, strict=True)}
    errors = {
        use.name: float(found.errors[table.name][0, table.columns.index(use.columns[0])])
        for use in table.uses
        if use.columns and use.kind in ("number", "integer", "date")
    }
    used = links._used(table)
    for k, column in enumerate(used.columns[width:], start=width):
        # "x is observed", where which entries are missing counts as information.
        predicted[column] = float(found.predicted[table.name][0, k])
        actual[column] = None if place < 0 else float(used.block.values[place, k])
    return actual, predicted, errors, None if place < 0 else table.row_ids[place]


def _first(entries: Any) -> Any:
    return next(iter(entries.to_list() if hasattr(entries, "to_list") else list(entries)))


@dataclass(frozen=True, eq=False)
class Explanation:
    """Which columns carry the links.

    Attributes:
        columns: one line per link, table and column, those that carry most first: `contribution` (mean over matched
            rows, in nats), `share` of the sum, `drop_cost` (what the mean ratio loses without the column, in nats),
            `explained` (share of the column's variance that partners predict) and `told_apart` (share of the rows
            looked at whose partner is the likeliest of their partners without the column).
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
                for one in own.head(_SHOWN).to_dict("records")
            ]
            if len(own) > _SHOWN:
                lines.append(f"  {own['contribution'].iloc[_SHOWN:].sum():+6.2f}  {len(own) - _SHOWN} other columns")
        if self.verdict != "linked":
            lines.append(f"The tables are {self.verdict}: this explains matches that may all be wrong.")
        return "\n".join(lines)


def explain_all(links: Any, *, table: str | None = None) -> Explanation:
    """Return which columns carry the links, and what dropping each would cost.

    The model stays as it is: that is what `keyless check --advise` goes beyond, by linking again.

    Args:
        links: the result.
        table: of the link to explain; None: of all tables.
    """
    if table is not None and table not in links.found:
        raise InputError(f"table: must be one of {', '.join(map(repr, links.found))}; found {table!r}.")
    frames, ratios, apart, count = [], {}, {}, {}
    for name in links.found if table is None else [table]:
        permutation = links.found[name].permutation
        rows = some_matches(permutation, MOST_ROWS)
        if not rows.size:
            raise InputError(f"{name}: must have a matched row to explain; none has a partner.")
        found = pieces(links, name, rows, permutation[rows])
        sides = Sides(links, name, rows, permutation[rows])
        added = found.contributions.mean(axis=0)
        ratios[name], count[name] = float(found.log_ratio.mean()), len(rows)
        apart[name] = _told_apart(sides)
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
                    "explained": _explained(links, sides, found),
                    "told_apart": _each_told_apart(sides),
                }
            ).sort_values("contribution", ascending=False, kind="stable")
        )
    return Explanation(pd.concat(frames, ignore_index=True), ratios, apart, count, links.evidence.verdict)


def some_matches(permutation: IntArray, most: int) -> IntArray:
    """Return at most so many reference rows that have a partner, drawn at random but always the same."""
    rows = np.flatnonzero(permutation >= 0)
    return rows if rows.size <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _explained(links: Any, sides: Sides, found: Pieces) -> FloatArray:
    """Return, per column of the caller, the share of its variance over the pairs that the other side predicts."""
    shares = []
    for group, number in _groups_by_table(sides):
        first = sides.places[number].start
        guess, actual, seen = found.scores[links.tables[number].name]
        at = [k - first for k in group]
        known = seen[:, at]
        middle = np.where(known, actual[:, at], 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        total = float((known * (actual[:, at] - middle) ** 2).sum())
        missed = float((known * (actual[:, at] - guess[:, at]) ** 2).sum())
        shares.append(1 - missed / total if total > 0 else np.nan)
    return np.array(shares)


def _groups_by_table(sides: Sides) -> list[tuple[list[int], int]]:
    listed = []
    for groups, numbers in zip(sides.groups, (sides.order[:-1], sides.order[-1:]), strict=True):
        for group in groups:
            number = next(n for n in numbers if sides.places[n].start <= group[0] < sides.places[n].stop)
            listed.append((group, number))
    return listed


def _told_apart(sides: Sides, *, left: Sequence[int] = (), right: Sequence[int] = ()) -> float:
    """Return the share of pairs whose right row is the likeliest of all right rows, some columns left out."""
    ratios = approximate_log_ratio(sides.both[0].information(without=left), sides.both[1].information(without=right))
    # A tie tells nobody apart.
    own = np.diag(ratios).copy()
    np.fill_diagonal(ratios, -np.inf)
    return float((own > ratios.max(axis=1)).mean()) if len(own) > 1 else 1.0


def _each_told_apart(sides: Sides) -> list[float]:
    return [
        *(_told_apart(sides, left=group) for group in sides.groups[0]),
        *(_told_apart(sides, right=group) for group in sides.groups[1]),
    ]


def shown(value: Any) -> str:
    """Return an entry as one short piece of text; "missing" where there is none."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "missing"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    text = printable(value)
    if _LONG_NUMBER.fullmatch(text):
        # A cell of a text file, with more digits than a reader needs.
        return f"{float(text):.4g}"
    return text if len(text) <= 30 else f"{text[:29]}…"
