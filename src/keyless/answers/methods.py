"""The answers of a result, as its methods; `Links` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from keyless.answers import adding, joining, placing, scoring, transferring
from keyless.answers.candidates import candidates
from keyless.answers.explaining import Explanation, RowExplanation, explain_all, explain_row
from keyless.answers.joining import Fill, How
from keyless.answers.questions import Question, questions
from keyless.answers.scoring import Score, Threshold
from keyless.display import Views
from keyless.tables import Reading

__all__ = ["Answers"]

_ALL = object()
"""Stands for "no row was named", since None may be an id."""


class Answers(Views):
    """What can be asked of a result."""

    def joined(
        self,
        *,
        how: How = "left",
        min_probability: float | None = None,
        fill: Fill = True,
        indicator: bool = False,
        suffixes: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Any:
        """Return one wide table: all columns of all tables side by side.

        Each table but the reference also has a column `<table>_id`, the id of the partner, and `<table>_probability`,
        how likely that is right. Both are missing where there is no partner.

        Args:
            how: `"left"` has all rows of the reference, in its order; `"inner"` those that have a partner in every
                table; `"outer"` also the rows of other tables that are nobody's partner, at the end.
            min_probability: matches that are less likely than this are left out, as if there were no partner.
            fill: True fills missing entries of rows that a table has; False leaves them missing. `"all"` also makes up
                the entries of rows that a table does not have, where there is no partner.
            indicator: add `_merge` (`"both"`, `"left_only"` or `"right_only"`, as pandas does; `_merge_<table>` for
                several tables) and `_filled`, the names of the columns that were filled in that row.
            suffixes: what to add to columns that several tables have: one per table, or by the table's name. Unless
                given, such columns get the table's name and a dot in front.
        """
        return joining.joined(
            self, how=how, min_probability=min_probability, fill=fill, indicator=indicator, suffixes=suffixes
        )

    def candidates(self, k: int = 5, *, table: str | None = None) -> Any:
        """Return the likeliest partners of each reference row, and how likely it is that there is none.

        Args:
            k: how many partners of each row and table, at most.
            table: of one table only; None: of all.

        Returns:
            A frame with reference_id, table, rank (from 1), row_id and probability, the likeliest first. A line whose
            row_id is missing stands for "nobody": it is there for each row beside its k partners. Over all partners and
            "nobody" the probabilities of a row sum to 1.
        """
        return candidates(self, k, table=table)

    def questions(self, k: int = 5, *, table: str | None = None, skip: Iterable[Any] = ()) -> list[Question]:
        """Return the rows whose true partner would help most, if somebody can look it up; the most helpful first.

        Which rows these are depends on what is in doubt: the map between the tables, which of its mirror images is
        right, or which of several similar rows is which. Give what was found out to `answer`.

        Args:
            k: how many rows, at most.
            table: about one table only; None: about all, the one whose link is weakest first.
            skip: ids of reference rows not to ask for, such as those whose partner nobody can tell. Rows of known pairs
                are never asked for.
        """
        return questions(self, k, table=table, skip=skip)

    def threshold(self, precision: float = 0.95, *, table: str | None = None) -> Threshold:
        """Return the lowest probability from which matches can be kept so that enough of them are expected right.

        How many are right is expected from the stated probabilities; `score_against` tells whether these hold on rows
        whose partner you know.

        Args:
            precision: share of the kept matches that must be expected right.
            table: look at the matches of one table only; None: at those of all.
        """
        return scoring.threshold(self, precision=precision, table=table)

    def score_against(self, pairs: Any, *, min_probability: float = 0.0) -> Score:
        """Return precision, recall and calibration on rows whose partner you know, with intervals.

        Args:
            pairs: pairs (reference id, row id), the row id missing where a row is known to have no partner; by table
                name for several tables, or a frame with columns reference_id, table and row_id. Or, per table, an array
                with the row number of each reference row's partner, −1 for none. Other rows are not looked at.
            min_probability: matches that are less likely count as not made.
        """
        return scoring.score_against(self, pairs, min_probability=min_probability)

    def explain(
        self, row: Any = _ALL, *, table: str | None = None, partner: Any = None
    ) -> Explanation | RowExplanation:
        """Return which columns carry the link; or, for one row, why it has the partner it has.

        Contributions of columns are in nats and add up to the log-likelihood ratio of the pair; `drop_cost` is what
        that ratio loses without the column. The module `answers.contributions` says how they are computed.

        Args:
            row: id of a reference row; all rows unless given.
            table: of the link to explain; None: of all tables.
            partner: id of a row of `table`, to see what speaks for and against that pair instead of the match.
        """
        if row is _ALL:
            return explain_all(self, table=table)
        return explain_row(self, row, table=table, partner=partner)

    def place(self, rows: Any, *, table: str, candidates: int = 5, reading: Reading | None = None) -> pd.DataFrame:
        """Place new rows of a known table among the reference's entities, or say that they are none of these.

        Args:
            rows: a frame or file with columns of that table, or an array with its numbers (`Table.columns`). Columns
                that are not there count as missing; others are not looked at.
            table: name of the table.
            candidates: how many reference rows to return for each, at most.
            reading: how to read a file.

        Returns:
            One line per new row and candidate, the likeliest first: row, reference_id and probability. A line whose
            reference_id is missing stands for "nobody"; it is there for each row. Over all reference rows and "nobody"
            the probabilities sum to 1. Before its entries are looked at, a new row is as likely to have a partner as to
            have none.
        """
        return placing.place(self, rows, table=table, candidates=candidates, reading=reading)

    def add(self, table: str, rows: Any, *, reading: Reading | None = None) -> Any:
        """Return links that know more rows of a table; the map between the tables is not searched for again.

        New rows of a table are matched to reference rows that have no partner yet, one to one, or to nobody; new rows
        of the reference likewise to rows of every other table. The matches made before stay, and so do model and
        verdict. Where rows match inside groups only (`within=`), this holds for new rows, too.

        Args:
            table: name of the table the rows are of.
            rows: a frame, file, array, sparse matrix or AnnData like that table; columns that are not there count as
                missing.
            reading: how to read a file.
        """
        return adding.add(self, table, rows, reading=reading)

    def transfer(self, table: str, column: str, *, to: str | None = None) -> Any:
        """Return a column of one table for the rows of another, weighed by all partners that a row may have.

        Args:
            table: the table that has the column.
            column: its name; any column, also one that was not used for linking, and of an AnnData also one of `obs`.
            to: the table whose rows get it: the reference unless given. From the reference it goes to any table.

        Returns:
            A frame with a line per row. Of labels: row_id, value (the likeliest label) and probability (of that label,
            over all partners). Of numbers: row_id, value (the expected one, given that there is a partner),
            standard_deviation (over the partners there may be) and probability (that there is a partner whose number is
            known). Both have a column `nobody`: how likely it is that there is no partner. The value is missing where
            no possible partner has one.
        """
        return transferring.transfer(self, table, column, to=to)
