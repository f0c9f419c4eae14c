"""Before two tables are released: who could be singled out, by which columns, and what to do about it.

Every proposal is verified by linking the changed tables again, with the same options. That the link is not found again
is what was tried here, and no proof that nobody can find it; `docs/audit.md` says what an audit cannot tell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from keyless.answers.explaining import ExplainedPairs, explain_all
from keyless.arrays import some_of
from keyless.block import Block
from keyless.errors import printable
from keyless.links import Links
from keyless.tables import Table

__all__ = ["LEVELS", "Audit", "Change", "Proposal", "audit", "changed", "singled_out"]

Action = Literal["drop", "round", "noise"]
Column = tuple[str, str]
"""The name of a table and of one of its columns."""

LEVELS = (0.5, 0.9, 0.99)
"""Probabilities of a match from which on its row counts as singled out; rows are counted for each of them."""

_ROUNDING = (0.5, 1.0, 2.0)
"""Steps that columns are rounded to, tried in this order, in standard deviations of the column: the last leaves about
three different numbers."""

_NOISE = (0.5, 1.0, 2.0, 4.0)
"""Standard deviations of the added noise, tried in this order, as multiples of that of the column. After the last, 6%
of the variance is the column's own."""

_GREEDY_ROWS = 100
"""Matched rows by which the order of columns is chosen: their mean is known to a tenth of the spread between rows."""

_STEPS = 30
"""Each step of the search for an order drops one in so many of the columns that are left, and at least one."""

_MOST_RESTORED = 6
"""In sets of up to so many dropped columns, each column is put back once, to see whether it can stay. Larger sets are
as the search along the order left them."""


@dataclass(frozen=True)
class Change:
    """What to do with one column.

    Attributes:
        table: name of the table.
        column: name of the column.
        action: `"drop"`, `"round"` or `"noise"`.
        amount: the step to round to, or the standard deviation of the noise, in the column's unit (dates: days); None
            for a column that is dropped.
    """

    table: str
    column: str
    action: Action
    amount: float | None = None

    def __str__(self) -> str:
        where = printable(f"{self.table}: {self.column}")
        if self.action == "drop":
            return f"drop {where}"
        if self.action == "round":
            return f"round {where} to multiples of {self.amount:g}"
        return f"add noise of standard deviation {self.amount:g} to {where}"


@dataclass(frozen=True)
class Proposal:
    """Changes, and what linking the changed tables gave.

    Attributes:
        changes: what to do.
        verdict: on the changed tables; `"nothing left"` where no column of a table is left to link by.
        singled_out: per level, how many rows could still be singled out.
        holds: whether the changed tables are no longer linkable.
    """

    changes: tuple[Change, ...]
    verdict: str
    singled_out: dict[float, int]
    holds: bool


@dataclass(frozen=True, eq=False)
class Audit:
    """What you must know before you release tables.

    Attributes:
        verdict: on the tables as they are.
        rows: how many rows the reference has.
        singled_out: per level of certainty, how many matches are at least so sure, over all tables.
        columns: which columns make it possible to single out rows; `Explanation.columns`, empty where nothing can be
            linked.
        proposals: what was tried, the sets that hold first; each verified by linking again.
        finished: whether everything was tried; False where the search was stopped.
        looked_at: how many matches `columns` is about, over all tables.
    """

    verdict: str
    rows: int
    singled_out: dict[float, int]
    columns: pd.DataFrame = field(repr=False)
    proposals: tuple[Proposal, ...]
    finished: bool = True
    looked_at: int = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} at {100 * level:.0f}%" for level, count in self.singled_out.items())
        lines = [f"Audit: {self.verdict}; of {self.rows:,} rows can be singled out: {counts}"]
        for proposal in self.proposals:
            said = "no longer linkable" if proposal.holds else f"still {proposal.verdict}"
            lines.append(f"  {said} after: {_in_words(proposal.changes)}")
        return "\n".join(lines)


def singled_out(links: Links) -> dict[float, int]:
    """Return how many matches of all tables reach each of `LEVELS`."""
    chance = [link.probability[link.permutation >= 0] for link in links.found.values()]
    sure = np.nan_to_num(np.concatenate(chance))
    return {level: int((sure >= level).sum()) for level in LEVELS}


def audit(
    links: Links,
    relink: Callable[[Sequence[Table]], Links],
    *,
    seed: int = 0,
    report: Callable[[str], object] | None = None,
    stopped: Callable[[], bool] | None = None,
) -> Audit:
    """Say who could be singled out, and find few columns to drop, round or blur until the tables are not linkable.

    Columns are ordered greedily: each step drops those whose loss lowers the mean log-likelihood ratio of the matches
    most, by the model at hand. The shortest beginning of that order whose removal makes the tables unlinkable is then
    found by linking again, and each of its columns is put back once, where they are few. The same columns are then
    rounded, and blurred by noise, in steps, until that is enough.

    Args:
        links: the result for the tables as they are.
        relink: links changed tables with the same options.
        seed: of the noise.
        report: told what is being tried, in words.
        stopped: asked between two links; True ends the audit with what is known by then.
    """
    return _Auditor(links, relink, seed, report or (lambda _: None), stopped or (lambda: False)).run()


@dataclass(eq=False)
class _Auditor:
    """One audit: the order of columns, and what was found by linking again."""

    links: Links
    relink: Callable[[Sequence[Table]], Links]
    seed: int
    report: Callable[[str], object]
    stopped: Callable[[], bool]
    known: dict[tuple[Change, ...], Proposal] = field(default_factory=dict)
    finished: bool = True

    def run(self) -> Audit:
        """Find and verify proposals."""
        rows = self.links.tables[0].block.shape[0]
        verdict, certain = self.links.evidence.verdict, singled_out(self.links)
        if verdict == "unlinkable" or not any((link.permutation >= 0).any() for link in self.links.found.values()):
            return Audit(verdict, rows, certain, pd.DataFrame(), ())
        explained = explain_all(self.links)
        chosen = self.smallest(self.ordered())
        proposals = []
        if chosen is not None:
            proposals.append(self.known[_dropped(chosen)])
            proposals += self.milder(chosen, "round", _ROUNDING) + self.milder(chosen, "noise", _NOISE)
        ordered = sorted(proposals, key=lambda proposal: not proposal.holds)
        looked_at = sum(explained.rows.values())
        return Audit(verdict, rows, certain, explained.columns, tuple(ordered), self.finished, looked_at)

    def ordered(self) -> list[Column]:
        """Return all columns, those first whose loss lowers the ratio of the matches most."""
        sides = {
            name: ExplainedPairs(self.links, name, rows, link.permutation[rows])
            for name, link in self.links.found.items()
            if (rows := some_of(np.flatnonzero(link.permutation >= 0), _GREEDY_ROWS)).size
        }
        # The column "x is observed" is kept and dropped together with x.
        real = {(table.name, use.name) for table in self.links.tables for use in table.uses}
        every = [c for c in dict.fromkeys(column for side in sides.values() for column in side.columns) if c in real]
        order: list[Column] = []
        while left := [column for column in every if column not in order]:
            count = Counter(table for table, _ in left)
            # A table without columns is no release: the last column of each table is dropped last.
            left = [column for column in left if count[column[0]] > 1] or left
            ratios = {
                column: sum(side.ratio_without(_numbers(side, [*order, column])) for side in sides.values())
                for column in left
            }
            for column in sorted(left, key=lambda one: ratios[one])[: math.ceil(len(left) / _STEPS)]:
                if count[column[0]] > 1 or max(count.values()) == 1:
                    order.append(column)
                    count[column[0]] -= 1
        return order

    def smallest(self, order: Sequence[Column]) -> tuple[Column, ...] | None:
        """Return few columns without which the tables are not linkable; None where none were found in time."""
        low, high = 0, 1  # with `low` columns dropped the tables are linkable, with `high` they are not
        while high < len(order) and not self.holds(_dropped(order[:high])):
            if not self.finished:
                return None
            low, high = high, min(2 * high, len(order))
        if high == len(order) and not self.holds(_dropped(order)):
            return None
        while high - low > 1 and self.finished:
            middle = (low + high) // 2
            low, high = (low, middle) if self.holds(_dropped(order[:middle])) else (middle, high)
        chosen = tuple(order[:high])
        if 1 < len(chosen) <= _MOST_RESTORED:
            for column in chosen[:-1]:
                rest = tuple(one for one in chosen if one != column)
                if self.holds(_dropped(rest)):
                    chosen = rest
        return chosen

    def milder(self, chosen: Sequence[Column], action: Action, amounts: Sequence[float]) -> list[Proposal]:
        """Return the mildest change of these columns that holds, or the strongest where none does."""
        found: list[Proposal] = []
        for amount in amounts:
            changes = tuple(self.change(column, action, amount) for column in chosen)
            if all(change.action == "drop" for change in changes):
                return []  # categories only
            holds = self.holds(changes)
            if not self.finished:
                return []
            found = [self.known[changes]]
            if holds:
                break
        return found

    def change(self, column: Column, action: Action, amount: float) -> Change:
        """Return what to do with a column; one that holds no numbers is dropped."""
        table = next(table for table in self.links.tables if table.name == column[0])
        use = next((use for use in table.uses if use.name == column[1]), None)
        if use is None or use.kind not in ("number", "integer", "date"):
            return Change(*column, "drop")
        at = table.columns.index(use.columns[0])
        spread = float(np.std(table.block.values[table.block.mask[:, at], at]))
        return Change(*column, action, _round_number(amount * spread))

    def holds(self, changes: tuple[Change, ...]) -> bool:
        """Link the changed tables, unless that was done before; tell whether they are no longer linkable."""
        if changes in self.known:
            return self.known[changes].holds
        if self.stopped():
            self.finished = False
            return False
        self.report(f"linking again: {_in_words(changes)}")
        if _leaves_nothing(self.links.tables, changes):
            self.known[changes] = Proposal(changes, "nothing left", dict.fromkeys(LEVELS, 0), True)
            return True
        links = self.relink(changed(self.links.tables, changes, seed=self.seed))
        if self.stopped():
            self.finished = False  # the verdict is on a search that was cut short
            return False
        verdict = links.evidence.verdict
        self.known[changes] = Proposal(changes, verdict, singled_out(links), verdict == "unlinkable")
        return self.known[changes].holds


def changed(tables: Sequence[Table], changes: Sequence[Change], *, seed: int = 0) -> list[Table]:
    """Return the tables with columns dropped, rounded or blurred, as whoever links them would get them.

    Args:
        tables: the tables.
        changes: what to do.
        seed: of the noise.
    """
    rng = np.random.default_rng(seed)
    made = []
    for table in tables:
        own = {change.column: change for change in changes if change.table == table.name}
        values = np.array(table.block.values, dtype=np.float64)
        kept, uses = [], []
        for use in table.uses:
            change = own.get(use.name)
            at = [table.columns.index(column) for column in use.columns]
            if change is not None and change.action == "drop":
                uses.append(replace(use, kind="left out", columns=(), reason="dropped by the audit"))
                continue
            if change is not None and change.amount:
                for k in at:
                    if change.action == "round":
                        values[:, k] = np.round(values[:, k] / change.amount) * change.amount
                    else:
                        values[:, k] += rng.normal(scale=change.amount, size=len(values))
            uses.append(use)
            kept += at
        mask = np.asarray(table.block.mask)
        names = tuple(table.columns[k] for k in kept)
        block = Block(np.where(mask, values, 0.0)[:, kept], mask[:, kept], table.name, names, table.row_ids)
        made.append(replace(table, block=block, uses=tuple(uses)))
    return made


def _leaves_nothing(tables: Sequence[Table], changes: Sequence[Change]) -> bool:
    """Tell whether no column of a table is left to link by."""
    gone = {(change.table, change.column) for change in changes if change.action == "drop"}
    return any(all((table.name, use.name) in gone for use in table.uses if use.columns) for table in tables)


def _dropped(columns: Sequence[Column]) -> tuple[Change, ...]:
    return tuple(Change(*column, "drop") for column in columns)


def _numbers(side: ExplainedPairs, columns: Sequence[Column]) -> list[int]:
    wanted = set(columns)
    return [number for number, column in enumerate(side.columns) if column in wanted]


def _round_number(amount: float) -> float:
    """Return 1, 2 or 5 times a power of ten, the nearest in ratio: a step that people use."""
    power = 10.0 ** math.floor(math.log10(amount))
    return min((factor * power for factor in (1, 2, 5, 10)), key=lambda nice: abs(math.log(nice / amount)))


def _in_words(changes: Sequence[Change]) -> str:
    first = "; ".join(map(str, changes[:3]))
    return first if len(changes) <= 3 else f"{first} and {len(changes) - 3} more"
