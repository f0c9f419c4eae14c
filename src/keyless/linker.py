"""The front door: `link` and `TableLinker`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from keyless.links import Links
from keyless.model.scales import ScaleName
from keyless.progress import Callback
from keyless.settings import Settings
from keyless.staircase import Staircase
from keyless.tables import Reading, read_tables

__all__ = ["TableLinker", "link"]


def link(
    tables: Mapping[str, Any] | Iterable[Any],
    *,
    reference: str | None = None,
    reading: Reading | None = None,
    known_pairs: Any = None,
    forbid: Any = None,
    within: str | Sequence[str] | None = None,
    shared: Any = "auto",
    strangers: bool | None = None,
    scales: ScaleName | Mapping[str, ScaleName] = "auto",
    rank: int | None = None,
    method: Literal["auto", "joint", "pairs", "landmarks"] = "auto",
    missingness: bool = False,
    null_searches: int | None = None,
    random_state: int | np.random.Generator | None = None,
    n_jobs: int = 1,
    max_time: float | None = None,
    checkpoint: str | Path | None = None,
    verbose: bool = False,
    callback: Callback | None = None,
) -> Links:
    """Find which rows of the tables are the same entity, how sure that is, and whether it can be told at all.

    Args:
        tables: two or more tables about the same things, by name or in order: arrays (NaN is missing), frames (pandas,
            polars, pyarrow), sparse matrices, lists of dicts, AnnData, or paths of files.
        reference: name of the table whose row order the answer is given in; the first unless given.
        reading: how tables are read: missing markers, id column, columns to drop, ….
        known_pairs: a few sure matches: pairs (reference id, row id), per table name when there are several tables.
        forbid: pairs known to be wrong, likewise.
        within: column, or columns, of all tables that must agree; rows match inside a group only.
        shared: numeric columns two tables both have: `"auto"` goes by name (frames), a list names them, None ignores
            them.
        strangers: whether rows may have no partner; None: decided from the data.
        scales: how columns are scaled: `"auto"` chooses for each among identity, log and root; or one for all; or, by
            column (`"column"` or `"table:column"`), some of them.
        rank: how many factors the tables have at most; None: found from the data.
        method: `"joint"` fits one model to all tables, `"pairs"` searches table by table for canonical pairs,
            `"landmarks"` finds the map by few rows and never looks at all pairs of rows; `"auto"` takes what links,
            and landmarks from 5,000 rows on.
        missingness: let which entries are observed count as information about the entity.
        null_searches: how often the link is destroyed and searched for, to know what chance reaches; None: three times,
            or once from 500 rows on, where chance hardly varies.
        random_state: seed; the same seed gives the same answer.
        n_jobs: how many candidates are worked on at a time; the answer does not depend on it.
        max_time: seconds after which the best so far is returned, with a status that says so. Ctrl-C does the same at
            once; a second Ctrl-C interrupts.
        checkpoint: folder in which finished stages are kept; with the same tables and options they are not repeated.
        verbose: log progress, at level INFO, to the logger `keyless`.
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
    linker = TableLinker(
        reference=reference,
        reading=reading,
        known_pairs=known_pairs,
        forbid=forbid,
        within=within,
        shared=shared,
        strangers=strangers,
        scales=scales,
        rank=rank,
        method=method,
        missingness=missingness,
        null_searches=null_searches,
        random_state=random_state,
        n_jobs=n_jobs,
        max_time=max_time,
        checkpoint=checkpoint,
        verbose=verbose,
        callback=callback,
    )
    return linker.fit(tables).links_


class TableLinker(BaseEstimator):  # type: ignore[misc]
    """`link` as a scikit-learn style estimator; the options are those of `link`.

    Attributes:
        links_: the result, after `fit`.
        n_features_in_: columns used of each table, by name.
    """

    def __init__(
        self,
        *,
        reference: str | None = None,
        reading: Reading | None = None,
        known_pairs: Any = None,
        forbid: Any = None,
        within: str | Sequence[str] | None = None,
        shared: Any = "auto",
        strangers: bool | None = None,
        scales: ScaleName | Mapping[str, ScaleName] = "auto",
        rank: int | None = None,
        method: Literal["auto", "joint", "pairs", "landmarks"] = "auto",
        missingness: bool = False,
        null_searches: int | None = None,
        random_state: int | np.random.Generator | None = None,
        n_jobs: int = 1,
        max_time: float | None = None,
        checkpoint: str | Path | None = None,
        verbose: bool = False,
        callback: Callback | None = None,
    ) -> None:
        self.reference = reference
        self.reading = reading
        self.known_pairs = known_pairs
        self.forbid = forbid
        self.within = within
        self.shared = shared
        self.strangers = strangers
        self.scales = scales
        self.rank = rank
        self.method = method
        self.missingness = missingness
        self.null_searches = null_searches
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.max_time = max_time
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.callback = callback

    def fit(self, tables: Mapping[str, Any] | Iterable[Any], y: Any = None) -> TableLinker:
        """Link the tables.

        Args:
            tables: two or more tables, by name or in order.
            y: ignored.
        """
        del y
        settings = Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})
        read, _ = read_tables(tables, reference=self.reference, reading=_without_groups(self.reading, self.within))
        self.links_ = Staircase(settings, read).links()
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
        """Return how well entries missing at `fit` and given now were filled: R² on the columns' standard scores."""
        del y
        check_is_fitted(self, "links_")
        return self.links_.held_out_score(tables)


def _without_groups(reading: Reading | None, within: str | Sequence[str] | None) -> Reading | None:
    """Columns that must agree say nothing more inside a group: they are not used as numbers."""
    if within is None:
        return reading
    columns = (within,) if isinstance(within, str) else tuple(within)
    return replace(Reading() if reading is None else reading, within=columns)
