"""The front door: `link` and `TableLinker`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from keyless.arrays import RandomState
from keyless.doorway import (
    check_no_options,
    check_reference,
    gathered,
    refusing_removed,
    repeated_first,
    warn_of_text_numbers,
)
from keyless.linking import Linking
from keyless.links import Links
from keyless.options import Options
from keyless.progress import Callback, Deadline, usual_view
from keyless.search_options import Device, Effort, Partners, ScaleName, Shared
from keyless.tables import Reading, read_tables

__all__ = ["TableLinker", "link"]


@refusing_removed
def link(
    tables: Any,
    *others: Any,
    reference: str | None = None,
    reading: Reading | None = None,
    known_pairs: Any = None,
    forbid: Any = None,
    within: str | Sequence[str] | None = None,
    shared: Shared = "auto",
    partners: Partners = "auto",
    repeats: str | None = None,
    scales: ScaleName | Mapping[str, ScaleName] = "auto",
    rank: int | None = None,
    effort: Effort = "normal",
    max_time: float | None = None,
    device: Device = "cpu",
    random_state: RandomState = None,
    checkpoint: str | Path | None = None,
    callback: Callback | None = None,
) -> Links:
    """Find which rows of the tables are the same entity, how sure that is, and whether it can be told at all.

    All cores are used. Progress is shown in a terminal and in a notebook, unless `callback` is given.

    Args:
        tables: two or more tables about the same things, by name (`{"clinic": a, "lab": b}`), in a list or one after
            the other (`link(a, b)`): arrays (NaN is missing), frames (pandas, polars, pyarrow, Dask), sparse matrices,
            lists of dicts, AnnData, or paths of files and of folders of Parquet files. Where a Dask client is open its
            cluster works on large folders.
        others: the second table and so on, where they are given one after the other.
        reference: name of the table that gives the order of the rows in the results; the first unless given.
        reading: how tables are read: missing markers, id column, columns to drop, ….
        known_pairs: a few sure matches: pairs (reference id, row id), per table name when there are several tables.
        forbid: pairs known to be wrong, likewise.
        within: column, or columns, of all tables that must agree; rows match inside a group only.
        shared: numeric columns two tables both have: `"auto"` goes by name (frames), a list names them, None ignores
            them.
        partners: `"all"`: every row of the smaller table has a partner; `"some"`: rows may have none; `"auto"`: found
            from the data.
        repeats: name of the table that has several rows of one entity. Several of its rows may then get the same
            partner, and it becomes the reference. `"auto"` finds out whether there is such a table. None: each row is
            matched at most once, and tables that seem to repeat entities are not called linked.
        scales: how columns are scaled: `"auto"` chooses for each column among identity, log and root. Or name one scale
            for all columns, or map some columns (`"column"` or `"table:column"`) to scales.
        rank: the largest number of factors to use; factors are what several columns have in common. None: found from
            the data.
        effort: how much is tried. `"quick"` tries fewer ways to fit the tables, and compares the result with chance
            once; `"normal"` compares it up to three times, and `"thorough"` up to five times.
        max_time: seconds after which the best so far is returned, with a status that says so. The result may come later
            than that by a second and a tenth of the time, at most. Where nothing was found by then, nobody is matched.
            The time to read files does not count. Ctrl-C does the same as soon as there is anything to return; a second
            Ctrl-C interrupts.
        device: where neighbours of rows are sought, rows coupled and sums over rows with gaps computed: `"cpu"`, or
            `"cuda"`, a graphics card that PyTorch sees. The answer is the same but for rounding; see docs/gpu.md.
        random_state: seed; the same seed gives the same answer.
        checkpoint: folder in which finished stages are kept; with the same tables and options they are not repeated.
        callback: called with stage, step, total (0 where not known) and objective; when it returns True the best so
            far is returned soon.

    Returns:
        The links; see `Links`.

    Example:
        >>> from keyless.datasets import make_shuffled_tables
        >>> tables, truth = make_shuffled_tables(60, (20, 15), rank=3, random_state=0)
        >>> links = link(tables, random_state=0)
        >>> links.evidence.verdict, int((links.permutations["table1"] == truth["table1"]).sum())
        ('linked', 60)
    """
    given = locals()
    linker = TableLinker(**{option.name: given[option.name] for option in fields(Options)})
    return linker.fit(gathered(tables, others)).links_


@dataclass(kw_only=True, eq=False, repr=False)
class TableLinker(BaseEstimator, Options):  # type: ignore[misc]
    """`link` as a scikit-learn style estimator; the options are those of `link`.

    Attributes:
        links_: the result, after `fit`.
        n_features_in_: columns used of each table, by name.
    """

    def fit(self, tables: Mapping[str, Any] | Iterable[Any], y: Any = None) -> TableLinker:
        """Link the tables.

        Args:
            tables: two or more tables, by name or in order.
            y: ignored.
        """
        del y
        options = Options(**{option.name: getattr(self, option.name) for option in fields(Options)})
        options.check()
        if isinstance(options.random_state, np.random.RandomState):
            options = replace(options, random_state=int(options.random_state.randint(2**31 - 1)))
        check_no_options(tables)
        reading = _without_groups(self.reading, self.within)
        check_reference(options)
        read, _ = read_tables(tables, reference=options.reference, reading=reading)
        if options.repeats not in (None, "auto"):
            read = repeated_first(read, options.repeats)
        warn_of_text_numbers(read)
        deadline = Deadline(options.max_time)
        with usual_view(self.callback) as callback:
            self.links_ = Linking(replace(options, callback=callback), read, deadline=deadline).links()
            repeated = self.links_.repeated if options.repeats == "auto" else None
            if repeated is not None and not deadline.passed:
                read = repeated_first(read, repeated)
                options = replace(options, callback=callback, repeats=repeated)
                self.links_ = Linking(options, read, deadline=deadline).links()
        self.n_features_in_ = {table.name: table.block.shape[1] for table in read}
        return self

    def transform(self, rows: Any, *, table: str, candidates: int = 5) -> Any:
        """Place new rows of a known table among the reference's entities.

        Args:
            rows: new rows with the columns of that table.
            table: name of the table they are of.
            candidates: how many reference rows to return for each.

        Returns:
            A frame with row, reference_id and probability, the likeliest reference rows first.
        """
        check_is_fitted(self, "links_")
        return self.links_.place(rows, table=table, candidates=candidates)

    def score(self, tables: Mapping[str, Any] | Iterable[Any], y: Any = None) -> float:
        """Return how well entries that were missing at `fit`, and are given now, were filled: R² on standard scores."""
        del y
        check_is_fitted(self, "links_")
        return self.links_.held_out_score(tables)


def _without_groups(reading: Reading | None, within: str | Sequence[str] | None) -> Reading | None:
    """Columns that must agree say nothing more inside a group: they are not used as numbers."""
    if within is None:
        return reading
    columns = (within,) if isinstance(within, str) else tuple(within)
    return replace(Reading() if reading is None else reading, within=columns)
