"""What every hostile case must come to: a result, or one `InputError` of one line; and inputs as they were."""

import copy
import warnings

import numpy as np
import pandas as pd

from hostile.making import links_of
from keyless.errors import InputError
from keyless.runs.dialect import text_of, typed, write_table
from keyless.runs.outputs import _pandas, with_ids, write_parquet
from keyless.tables import Dialect, Reading, read_table


class BrokenPromiseError(AssertionError):
    """A promise that was not kept."""


def one_line(error):
    """Check a refusal."""
    said = str(error)
    if not said or "\n" in said or len(said) > 2_000 or not said.isprintable():
        raise BrokenPromiseError(f"not one line: {said[:200]!r}")


def table_outcome(table, beside, reading, folder):
    """Read a table beside an ordinary one, and do with a result all that can be done; return what became of it."""
    before = copy.deepcopy(table) if isinstance(table, np.ndarray | list | dict | pd.DataFrame) else None
    try:
        links = links_of({"odd": table, "plain": beside}, reading=reading)
    except InputError as error:
        one_line(error)
        outcome = "refused"
    else:
        written(links, folder)
        outcome = "result"
    if before is not None and not _same(before, table):
        raise BrokenPromiseError("an input was changed")
    return outcome


def written(links, folder):
    """Write a result in every form, and read it again."""
    import keyless

    ids = links.tables[0].row_ids
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joined = with_ids(_pandas(links.joined()), ids)
        write_table(joined, folder / "joined.csv", Dialect(), tables=links.tables, raw_cells=True)
        text_of(joined, Dialect(), tables=links.tables).encode()
        write_parquet(typed(joined, links.tables), folder / "joined.parquet")
        for table in links.tables:
            links.filled[table.name]
            completed = links.completed[table.name]
            if table.form == "array" and not np.isfinite(np.asarray(completed, dtype=float)).all():
                raise BrokenPromiseError("something that is not finite was filled in")
        len(links.matches)
        links.save(folder / "links.keyless")
        again = keyless.load(folder / "links.keyless")
    if again.joined().__class__ is not links.joined().__class__:
        raise BrokenPromiseError("a saved result has another kind of frame")


def _same(before, after):
    if isinstance(before, pd.DataFrame):
        return before.shape == after.shape and list(before.columns) == list(after.columns)
    if isinstance(before, np.ndarray) and before.dtype.kind == "f":
        return np.array_equal(before, after, equal_nan=True)
    if isinstance(before, list):  # records; objects in them have no equals
        return len(before) == len(after) and all(list(one) == list(two) for one, two in zip(before, after, strict=True))
    return repr(before) == repr(after)


def file_outcome(path):
    """Read a file; return what became of it. The file must be as it was, and nothing may be left beside it."""
    before, beside = path.read_bytes(), sorted(path.parent.iterdir())
    try:
        read = read_table(path, name="odd", reading=Reading(max_memory=2**30))
    except InputError as error:
        one_line(error)
        outcome = "refused"
    else:
        if not np.isfinite(read.block.values).all():
            raise BrokenPromiseError("a number that is not finite was read")
        outcome = "result"
    if path.read_bytes() != before:
        raise BrokenPromiseError("an input was changed")
    if sorted(path.parent.iterdir()) != beside:
        raise BrokenPromiseError("something was left beside an input")
    return outcome
