"""The one result: which row belongs to which, how sure that is, and the tables filled in.

A `Links` stores little (permutations, couplings, the joint model, the tables as given) and derives the rest when asked.

If tables have `memory.LARGE_CELLS` cells or more, nothing that is derived is kept. Then `completed`, `filled`, `joined`
and `standard_errors` make only the table that is asked for, in as much memory as that table takes. The observed entries
of a large file are read again from that file, which must not have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from keyless import display
from keyless.answers import adding, explaining, joining, scoring, transferring
from keyless.answers.answering import earlier_couplings, options_with
from keyless.answers.candidates import candidates as _candidates
from keyless.answers.labels import ids
from keyless.answers.questions import questions as _questions
from keyless.arrays import FloatArray
from keyless.errors import InputError, check_among, printable
from keyless.progress import Callback, usual_view
from keyless.saved_links import read_links, save_links
from keyless.table_link import LinkedTables, TableLink
from keyless.tables import Reading, Table, frame_like, name_tables, read_like

__all__ = ["Links", "TableLink", "load"]


@dataclass(frozen=True, eq=False)
class Links(LinkedTables):
    """Which row of each table belongs to which row of the reference.

    Attributes:
        tables: the tables as given, the reference first.
        found: per table in unknown order, by name, what was found.
        model: the joint model of all tables, for filling in.
        status: how the search ended.
        choices: what was chosen from the data (rank, scales, route, …) and what was set.
        starts: how the starts of the search differed: one record each.
        seed: what the random generator was made from.
        history: what was reported on the way: records of stage, step, total, objective and, until the result is
            saved, seconds.
    """

    # What a result answers and how it shows itself: functions whose first argument is the result.
    joined = joining.joined
    candidates = _candidates
    questions = _questions
    threshold = scoring.threshold
    score_against = scoring.score_against
    explain = explaining.explain
    place = adding.place
    add = adding.add
    transfer = transferring.transfer
    plot_evidence = display.plot_evidence
    plot_certainty = display.plot_certainty
    plot_coverage = display.plot_coverage
    plot_factors = display.plot_factors
    plot_correlations = display.plot_correlations
    plot_objective = display.plot_objective
    plot_starts = display.plot_starts
    _repr_html_ = display.shown_in_notebook

    @cached_property
    def matches(self) -> Any:
        """One row per reference row and table: reference_id, table, row_id, probability, margin."""
        (reference, *others), labels = self.tables, self.tables[0].row_ids
        found = [self.found[table.name] for table in others]
        columns = {
            "reference_id": np.tile(labels, len(others)) if isinstance(labels, range) else list(labels) * len(others),
            "table": np.repeat(np.array([table.name for table in others], dtype=object), len(labels)),
            "row_id": ids(*zip(others, self.permutations.values(), strict=True), like=reference),
            "probability": np.concatenate([link.probability for link in found]),
            "margin": np.concatenate([link.margin for link in found]),
        }
        return frame_like(reference, columns)

    @property
    def completed(self) -> Mapping[str, Any]:
        """Each table in the caller's kind, rows in reference order, missing entries filled from the joint model.

        Observed entries are as they were given; those of text files are the very text of the cell. Filled entries are
        in the unit and type of their column: whole numbers, categories and dates stay such. Columns that are not used
        for linking are carried along and not filled.

        Entries of a large file are read again from that file, which must not have changed.
        """
        return _Lazy(self.tables, self._complete)

    @property
    def filled(self) -> Mapping[str, Any]:
        """The same kind of tables as `completed`, with True where an entry was filled."""
        return _Lazy(self.tables, self._mark)

    @property
    def standard_errors(self) -> Mapping[str, FloatArray]:
        """Standard error of each number the tables are made of, in its unit; 0 where it was observed.

        One column per name in `Table.columns`: for arrays and numbers that is the column itself, for a category one
        per indicator (`"sex=F"`), for a date in days.
        """
        return _Lazy(self.tables, self._errors)

    def answer(self, pairs: Any, not_pairs: Any = None, *, callback: Callback | None = None) -> Links:
        """Link the tables again, knowing more pairs of rows; everything else stays as it was set.

        Where the map was believed and the answers do not contradict it, the search begins from this link. Pairs that
        were known before stay known, but an answer about a row replaces an earlier one about it.

        Args:
            pairs: pairs that are one entity, as in `known_pairs` of `keyless.link`: (reference id, row id), per table
                name for several tables; or (table, reference id, row id). None or an empty list: none.
            not_pairs: pairs that are not, likewise.
            callback: as in `keyless.link`.
        """
        from keyless.linking import Linking  # noqa: PLC0415 - linking stands above its result

        options = options_with(self, pairs, not_pairs)
        with usual_view(callback) as shown:
            return Linking(
                replace(options, callback=shown), self.tables, earlier=earlier_couplings(self, pairs)
            ).links()

    def held_out_score(self, tables: Mapping[str, Any] | Iterable[Any], *, reading: Reading | None = None) -> float:
        """Return R² of the filled entries that were missing when the tables were linked and are observed in `tables`.

        Args:
            tables: tables as they were linked, by name or in order, with more entries observed. Entries are scored on
                the standard scores of their columns, over rows that have a place in the reference.
            reading: how to read files.
        """
        errors = total = 0.0
        named, names = name_tables(tables), [table.name for table in self.tables]
        for name in named:
            if name not in names:
                raise InputError(f"tables: must be some of {', '.join(map(repr, names))}; found {name!r}.")
        for table in self.tables:
            if table.name not in named:
                continue
            fuller = read_like(named[table.name], like=table, reading=reading).block
            if fuller.shape != table.block.shape:
                raise InputError(f"{table.name}: must have shape {table.block.shape}, as linked; found {fuller.shape}.")
            rows = self._rows(table.name)
            placed = np.flatnonzero(rows >= 0)
            fresh = fuller.mask[rows[placed]] & ~table.block.mask[rows[placed]]
            filled = self._values(table.name)[placed]
            for k, scale in enumerate(self.model.scales[self._number(table.name)][: fuller.shape[1]]):
                truth = scale.apply(fuller.values[rows[placed], k][fresh[:, k]])
                errors += float(((truth - scale.apply(filled[fresh[:, k], k])) ** 2).sum())
                total += float((truth**2).sum())
        if total == 0:
            raise InputError(
                "tables: must have a value for an entry that was missing when the tables were linked; found none."
            )
        return 1 - errors / total

    def save(self, path: str | Path) -> None:
        """Save the result in one file, to be read by `keyless.load`.

        Tables come back as what they were, with their types and labels; frames of a library that is not installed then
        come back as pandas frames. Nothing is pickled: Python objects that are neither text, numbers nor dates come
        back as text. An AnnData comes back whole, with layers, obsm, obsp, varm, varp, uns and raw; what it holds that
        is no number, text, array, sparse matrix or frame is left out, and a warning names it.
        """
        save_links(self, path)

    def __repr__(self) -> str:
        lines = [
            f"Links to {printable(repr(self.reference))} ({len(self.tables[0].row_ids)} rows): {self.evidence.verdict}"
        ]
        for name, link in self.found.items():
            matched = int((link.permutation >= 0).sum())
            line = f"  {printable(name)}: {link.evidence.verdict}; {matched} of {len(link.permutation)} rows matched"
            if link.evidence.believed:
                line += f", {link.expected_right} expected right"
            lines.append(line)
        return "\n".join(lines)

    def _values(self, name: str) -> FloatArray:
        """Numbers of a table in reference order; of large tables only the filled-in numbers, and 0 elsewhere."""
        if not self._large:
            return self._all_filled[name][0]
        number = self._number(name)
        return self.model.gaps(number, *self._placed)[:, : self.tables[number].block.shape[1]]

    def _errors(self, table: Table) -> FloatArray:
        if not self._large:
            return self._all_filled[table.name][1].copy()
        return self.model.gap_errors(self._number(table.name), *self._placed)[:, : table.block.shape[1]]

    @cached_property
    def _all_filled(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        filled = self.model.complete(*self._placed)
        widths = [table.block.shape[1] for table in self.tables]
        return {
            table.name: (values[:, :width], errors[:, :width])
            for table, (values, errors), width in zip(self.tables, filled, widths, strict=True)
        }

    def _complete(self, table: Table) -> Any:
        return table.rebuilt(self._values(table.name), self._rows(table.name), index=self.tables[0].index)

    def _mark(self, table: Table) -> Any:
        return table.marked(self._rows(table.name), index=self.tables[0].index)


class _Lazy(Mapping[str, Any]):
    """A mapping whose values are made when asked for."""

    def __repr__(self) -> str:
        shapes = (f"{name!r}: {t.block.shape[0]} × {len(t.all_columns)}" for name, t in self._tables.items())
        return f"{{{', '.join(shapes)}}}, rows × columns; made when asked for"

    def __init__(self, tables: Sequence[Table], make: Callable[[Table], Any]) -> None:
        self._tables, self._make = {table.name: table for table in tables}, make

    def __getitem__(self, name: str) -> Any:
        check_among("table", name, self._tables)
        return self._make(self._tables[name])

    def __contains__(self, name: object) -> bool:
        return name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def load(path: str | Path) -> Links:
    """Read links saved by `Links.save`.

    The file is checked, not trusted: its size, and the type, shape, range and consistency of every part. Nothing in it
    is run, and only the large files that it names are read later, when their entries are asked for.

    Args:
        path: the file.
    """
    read = read_links(path)
    return Links(**{part.name: getattr(read, part.name) for part in fields(read)})
