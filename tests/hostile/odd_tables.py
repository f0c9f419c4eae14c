"""Odd tables: columns that nobody would make on purpose, beside enough numbers to be linked by."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa

from hostile.names import NAMES
from keyless.tables import Reading
from keyless.tables.frames import as_text


def _numbers(draw, rows):
    scale = draw.choice([1.0, 1e-200, 1e160, 1e300, 1e-310, 0.0])
    with np.errstate(over="ignore"):
        values = np.array([draw.gauss(0, 1) for _ in range(rows)]) * scale
    for row in range(rows):
        if draw.random() < 0.1:
            values[row] = np.nan
    return values


ODD = {
    "numbers": _numbers,
    "whole": lambda draw, rows: [draw.choice([0, 1, -1, 2**62, -(2**62)]) for _ in range(rows)],
    "huge whole": lambda draw, rows: [draw.randrange(10**30) for _ in range(rows)],
    "one value": lambda draw, rows: [draw.choice([1.5, "x", True, None])] * rows,
    "nothing": lambda _, rows: [None] * rows,
    "booleans": lambda draw, rows: [draw.choice([True, False, None]) for _ in range(rows)],
    "text": lambda draw, rows: [draw.choice(NAMES) for _ in range(rows)],
    "levels": lambda draw, rows: [draw.choice(["a", "b", "c", None]) for _ in range(rows)],
    "mixed": lambda draw, rows: [draw.choice([1, 2.5, "a", None, b"x", (1, 2)]) for _ in range(rows)],
    "decimals": lambda draw, rows: [
        draw.choice([Decimal("1.25"), Decimal("NaN"), Decimal(7), None]) for _ in range(rows)
    ],
    "signalling": lambda draw, rows: [draw.choice([Decimal("sNaN"), Decimal(7)]) for _ in range(rows)],
    "dates": lambda draw, rows: [datetime.date(draw.randrange(1, 9999), 1, 1) for _ in range(rows)],
    "times": lambda draw, rows: [datetime.time(draw.randrange(24), 1) for _ in range(rows)],
    "moments": lambda draw, rows: pd.to_datetime([draw.randrange(10**9) for _ in range(rows)], unit="s"),
    "zoned": lambda draw, rows: pd.to_datetime([draw.randrange(10**9) for _ in range(rows)], unit="s", utc=True),
    "durations": lambda draw, rows: pd.to_timedelta([draw.randrange(10**9) for _ in range(rows)], unit="s"),
    "complex": lambda draw, rows: [complex(draw.random(), 1) for _ in range(rows)],
    "infinite": lambda draw, rows: [draw.choice([1.0, float("inf")]) for _ in range(rows)],
    "lists": lambda draw, rows: [list(range(draw.randrange(3))) for _ in range(rows)],
    "dicts": lambda draw, rows: [{"a": draw.random()} for _ in range(rows)],
    "arrays": lambda draw, rows: [np.arange(draw.randrange(3)) for _ in range(rows)],
    "objects": lambda _, rows: [object() for _ in range(rows)],
    "sparse": lambda draw, rows: pd.arrays.SparseArray([draw.choice([0.0, 1.0, np.nan]) for _ in range(rows)]),
    "categories": lambda draw, rows: pd.Categorical([draw.choice(["x", "y", None]) for _ in range(rows)]),
    "ordered": lambda draw, rows: pd.Categorical(
        [draw.choice(["x", "y"]) for _ in range(rows)], categories=["y", "x", "z"], ordered=True
    ),
    "periods": lambda _, rows: pd.period_range("2020-01", periods=rows, freq="M"),
    "intervals": lambda _, rows: pd.interval_range(0, rows),
    "nullable": lambda draw, rows: pd.array([draw.choice([1, 2, None]) for _ in range(rows)], dtype="Int8"),
    "maps": lambda draw, rows: pd.Series(
        pa.array([[("k", draw.randrange(9))] for _ in range(rows)], pa.map_(pa.string(), pa.int64())),
        dtype=pd.ArrowDtype(pa.map_(pa.string(), pa.int64())),
    ),
    "nanoseconds": lambda draw, rows: pd.Series(
        pa.array([draw.randrange(10**12) for _ in range(rows)], pa.int64()).cast(pa.time64("ns")),
        dtype=pd.ArrowDtype(pa.time64("ns")),
    ),
}
"""Kinds of columns: each makes the entries of some rows with a `random.Random`."""


def odd_frame(draw, rows):
    """Return a pandas frame of some odd columns."""
    frame = pd.DataFrame(index=pd.RangeIndex(rows))
    for number in range(draw.randrange(1, 5)):
        kind = draw.choice(list(ODD))
        entries = ODD[kind](draw, rows)
        name = draw.choice([kind, f"{kind} {number}", draw.choice(NAMES)[:60]])
        if name != as_text(name) and int(pd.__version__.split(".")[0]) >= 3:
            name = kind  # no frame of pandas 3 can be given such a column
        frame[name] = (
            pd.Series(list(entries), dtype=object) if isinstance(entries, list) and draw.random() < 0.5 else entries
        )
    return frame


def odd_table(draw):
    """Return a table of any kind that keyless takes, or nearly."""
    rows = draw.choice([0, 1, 2, 3, 5, 8, 13])
    frame = odd_frame(draw, rows)
    kind = draw.choice(["pandas", "pandas", "indexed", "arrow", "records", "array", "matrix", "sparse", "other"])
    if kind == "indexed" and rows:
        return frame.set_index(frame.columns[0])
    if kind == "arrow":
        try:
            return pa.Table.from_pandas(frame, preserve_index=False)
        except Exception:
            return frame
    if kind == "records":
        return frame.to_dict("records")
    values = np.array([[draw.gauss(0, 1) for _ in range(3)] for _ in range(rows)]).reshape(rows, 3)
    if kind == "array":
        with np.errstate(over="ignore"):
            return values * draw.choice([1.0, 1e300, 1e-300])
    if kind == "matrix":
        return np.array([[draw.choice([1, 2.5, "x", None]) for _ in range(2)] for _ in range(rows)], dtype=object)
    if kind == "sparse":
        import scipy.sparse as sp

        return sp.csr_array(np.where(values > 0, values, 0.0))
    if kind == "other":
        return draw.choice([None, 7, "nowhere.csv", [], {}, [[1, 2], [3]], np.zeros(3), np.zeros((2, 2, 2)), object()])
    return frame


def odd_reading(draw):
    """Return options of reading, most of them as usual."""
    return draw.choice([None, None, None, Reading(unstored="zero"), Reading(id=None), Reading(layout="long")])
