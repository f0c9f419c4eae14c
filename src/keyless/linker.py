"""The front door: `link` and `TableLinker`."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import narwhals.stable.v2 as nw
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from keyless.arrays import RandomState
from keyless.errors import InputError
from keyless.linking import Linking
from keyless.links import Links
from keyless.options import Options
from keyless.progress import Callback, Deadline, usual_view
from keyless.search_options import Device, Effort, Partners, ScaleName, Shared, check_not_removed
from keyless.tables import Reading, Table, read_tables
from keyless.tables.column_use import is_named_like_id

__all__ = ["TableLinker", "link"]

Given = ParamSpec("Given")
Result = TypeVar("Result")

_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?%?")
_MOSTLY = 0.8
"""A text column is taken for one of numbers if at least this share of its entries read like numbers."""

_LOOKED_AT = 1000
"""Most entries of a text column that are looked at."""


def refusing_removed(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let a function refuse options of earlier versions by naming what takes their place.

    Args:
        function: takes options by name.
    """

    @wraps(function)
    def checked(*given: Given.args, **options: Given.kwargs) -> Result:
        for name in options:
            check_not_removed(name)
        return function(*given, **options)

    return checked


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


# --- what callers may mean by what they give: tables in any arrangement, options in the wrong place -------------------


def gathered(tables: Any, others: Sequence[Any]) -> Any:
    """Return tables that were given one after the other as one list.

    Args:
        tables: the first argument: one table, or all of them.
        others: the arguments after it.
    """
    for given in others:
        if _looks_like_pairs(given):
            raise InputError(
                "tables: must be tables; found a list of pairs among them. Give known pairs as an option: "
                "link(..., known_pairs=pairs). Give a table of two columns as an array or a frame."
            )
    if not others:
        return tables
    several = isinstance(tables, Mapping) or (isinstance(tables, list | tuple) and not _is_one_table(tables))
    if several:
        raise InputError(
            "tables: must be given all in one mapping or list, or one after the other; found both. "
            "Give options by name: link(tables, known_pairs=..., within=...)."
        )
    return [tables, *others]


def _is_one_table(given: Any) -> bool:
    """Tell whether a list is one table: dictionaries one per row, or rows of numbers."""
    return bool(given) and all(
        isinstance(row, Mapping) or (isinstance(row, list | tuple) and all(np.isscalar(entry) for entry in row))
        for row in given
    )


def _looks_like_pairs(given: Any) -> bool:
    if isinstance(given, list | tuple | set):
        return bool(given) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in given)
    if nw.dependencies.is_into_dataframe(given):
        return {"reference_id", "row_id"} <= set(nw.from_native(given, eager_only=True).columns)
    return False


def check_no_options(tables: Any) -> None:
    """Refuse an option that stands among the tables.

    Args:
        tables: tables by name, or in order.
    """
    options = {field.name for field in fields(Options)} & (set(tables) if isinstance(tables, Mapping) else set())
    for name in options:
        if tables[name] is None or not hasattr(tables[name], "shape"):
            raise InputError(
                f"tables: must be tables by name; {name!r} is an option. Give it beside them: link(tables, {name}=...)."
            )


def check_reference(options: Options) -> None:
    """Refuse a reference that is not the table that repeats entities.

    Args:
        options: of the caller.
    """
    if options.repeats in (None, "auto") or options.reference in (None, options.repeats):
        return
    raise InputError(
        f"repeats: must be the same table as reference, since each of its rows gets a partner; found "
        f"repeats={options.repeats!r} and reference={options.reference!r}. Leave reference out."
    )


def repeated_first(tables: Sequence[Table], repeats: str | None) -> tuple[Table, ...]:
    """Return the tables, first the one that repeats entities: each of its rows is matched for itself.

    Args:
        tables: all tables.
        repeats: the name of that table.
    """
    names = [table.name for table in tables]
    if repeats not in names:
        raise InputError(f"repeats: must be 'auto' or one of {', '.join(map(repr, names))}; found {repeats!r}.")
    return tuple(sorted(tables, key=lambda table: table.name != repeats))


def warn_of_text_numbers(tables: Iterable[Table]) -> None:
    """Warn of columns of frames that hold numbers as text and are therefore not used as numbers.

    Tables from text files are left out: there every entry is text, and numbers are read from it.

    Args:
        tables: the tables as read.
    """
    for table in tables:
        if table.form not in ("frame", "lazy", "records") or table.large_file is not None:
            continue
        for use in table.uses:
            if use.columns or use.kind not in ("left out", "id") or use.reason.startswith(("named in", "says which")):
                continue
            seen = [entry for entry in table.column(use.name)[:_LOOKED_AT] if entry is not None]
            texts = [entry.strip() for entry in seen if isinstance(entry, str)]
            numbers = [text for text in texts if _NUMBER.fullmatch(text)]
            if not numbers or len(numbers) < _MOSTLY * len(seen) or len(set(numbers)) < 2:
                continue
            # Ids are often digits: a column that names rows is taken for numbers only if it has decimals.
            decimals = any(mark in text for text in numbers for mark in ".,")
            if use.kind == "id" and (is_named_like_id(use.name) or not decimals):
                continue
            warnings.warn(
                f"{table.name}: column {use.name!r} holds numbers as text ({numbers[0]!r}, …) and is not used. To use "
                f"it, convert it to numbers, or say reading=Reading(as_number={use.name!r}).",
                UserWarning,
                stacklevel=_callers_level(),
            )


def _callers_level() -> int:
    """Return how many calls up the first line outside keyless is: a warning points there."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "keyless":
        frame, level = frame.f_back, level + 1
    return level
